"""The model directory: lock, run identity, checkpoints and their recovery, disk errors.

`engines/core/rendezvous` has the files through which tasks communicate.
"""
