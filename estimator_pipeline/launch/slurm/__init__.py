"""Slurm: the batch script of a job file, and submitted jobs.

Only `jobs.py` calls Slurm's commands. The command line is in `cli/submit`.
"""
