"""Slurm: the batch script of a job file, and the commands for submitted jobs."""
