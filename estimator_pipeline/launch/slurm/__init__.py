"""Slurm: a job file as a batch script (`script.py`, `script.jinja`), and the life of the submitted job.

The script is made without asking Slurm; `jobs.py` asks it. The commands are in `cli/submit`.
"""
