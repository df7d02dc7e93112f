"""Progress of tasks: progress files, heartbeats, one-line errors and stacks.

The tasks are those of the engines and of unchanged programs. `launch` uses the progress for restarts and views. No
TensorFlow.
"""
