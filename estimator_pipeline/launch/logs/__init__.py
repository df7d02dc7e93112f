"""Filters for logs that are shown: TensorFlow's startup messages and terminal control sequences.

`progress/log_reader.py` reads events from logs.
"""
