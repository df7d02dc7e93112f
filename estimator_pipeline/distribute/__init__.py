"""`RunConfig` and the distribution strategies, by name, for the task that this process is.

TF_CONFIG is read in `cluster`; models are in `models`.
"""
