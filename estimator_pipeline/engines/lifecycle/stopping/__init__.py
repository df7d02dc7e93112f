"""How training stops: signals, all workers after the same step, the last checkpoint, the exit code.

Which signals ask for it is in `progress/preemption_signals.py`. Whether a job is started again is decided in
`launch/supervisor`.
"""
