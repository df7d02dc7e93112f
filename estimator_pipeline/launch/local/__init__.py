"""Local cluster of processes: the plan (`plan.py`) and the launcher (`run.py`).

Restarts are decided in `launch/supervisor`.
"""
