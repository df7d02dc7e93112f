"""Slurm: the batch script of a job file (`script.py`, `script.jinja`), and the status of submitted jobs.

Only `jobs.py` calls Slurm's commands. The command line is in `cli/submit`.
"""
