"""Logs as people read them: what TensorFlow says anyway is left out, and what a terminal would obey.

Events in logs are read in `progress/log_reader.py`.
"""
