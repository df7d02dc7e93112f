"""The engines that run a job: train, evaluate, checkpoint, export.

`estimator`, `keras` and `keras3` are the engines. `lifecycle` has what all of them share, such as the result of a job
(`result.py`) and the rendezvous through which the tasks of a cluster publish their progress
(`rendezvous/rendezvous.py`).
"""
