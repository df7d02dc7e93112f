"""Restarts of failed jobs: the policy (`restart_policy.py`) and the attempts.

`launch/local` runs one attempt.
"""
