"""The model directory: its lock, what a run is made of, checkpoints and their recovery, errors of the disk.

What tasks tell each other by its files is in `engines/lifecycle/rendezvous`.
"""
