"""`RunConfig` and distribution strategies by name, for the task of this process.

`cluster` parses TF_CONFIG; `models` has the models.
"""
