"""Progress of tasks: progress files, heartbeats, one-line errors and stacks, both written and read.

The tasks are those of the engines and of unchanged programs. `launch` uses the progress for restarts and views. No
TensorFlow.
"""
