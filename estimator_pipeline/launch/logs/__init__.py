"""Filters for logs: TensorFlow's startup messages and terminal sequences.

`progress/log_reader.py` reads events from logs.
"""
