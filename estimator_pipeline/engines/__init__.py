"""The engines that walk a job: train, evaluate, checkpoint, export.

`estimator.py` walks it with `tf.estimator`. What belongs to every engine lies beside it: the result of a job
(`result.py`) and the rendezvous on which the tasks of a cluster tell each other how far they are
(`rendezvous/rendezvous.py`).
"""
