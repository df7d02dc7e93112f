"""`estimator-pipeline exec`: runs an unchanged program and patches its child processes.

The command itself is `cli/exec_.py`.
"""
