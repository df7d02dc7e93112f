"""Scan and conversion of a repository, program by program, in several processes and with a cache of results.

repository.py      the programs of a repository and their results
worker.py          runs the work on one program after another
processes.py       worker processes; subprocess_main.py is their main module
results_cache.py   results of programs, keyed by the contents of their files
"""
