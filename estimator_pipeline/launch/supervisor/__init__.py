"""Restarts: which failure is worth another attempt (`restart_policy.py`), and the attempts themselves.

One attempt is run in `launch/local`.
"""
