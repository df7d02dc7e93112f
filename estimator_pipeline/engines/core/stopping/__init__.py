"""How training stops: signals, the same last step on all workers, the last checkpoint, the exit code.

`progress/preemption_signals.py` defines the signals. `launch/supervisor` decides whether a job is restarted.
"""
