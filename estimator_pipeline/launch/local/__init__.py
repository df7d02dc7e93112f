"""A cluster on this machine: planned as data (`plan.py`), then run to its end (`run.py`), watched and shown.

Restarts are decided in `launch/supervisor`.
"""
