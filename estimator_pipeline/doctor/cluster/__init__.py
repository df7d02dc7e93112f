"""Checks of the cluster: TF_CONFIG, addresses and ports, and what shows when all tasks are asked.

Checks of a single machine are a level above, checks of the job in `doctor/job`.
"""
