"""What a task tells of itself, and how it is read: progress files, heartbeats, errors in one line, stacks.

Both sides are here, for tasks of the engines and of unchanged programs. What is made of it, restarts and views, is in
`launch`. No TensorFlow.
"""
