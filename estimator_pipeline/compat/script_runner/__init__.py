"""`estimator-pipeline exec`: a program run unchanged, and the processes that it spawns.

The command itself is `cli/exec_.py`.
"""
