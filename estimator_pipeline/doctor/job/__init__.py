"""Checks of the job: its data, its functions, whether the model fits the data, what it asks of Slurm.

Checks of the machine are a level above, checks of the cluster in `doctor/cluster`.
"""
