"""The Python stacks of running tasks: asked for, and read.

The task's own side is `progress/stack_dumps.py`.
"""
