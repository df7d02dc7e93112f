"""Python stacks of running tasks: the request and the analysis.

`progress/stack_dumps.py` answers the request in the task.
"""
