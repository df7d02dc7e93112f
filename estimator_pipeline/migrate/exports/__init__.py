"""`migrate export`: a Keras SavedModel with the signatures of an old export. `api.py` is the entry point.

`pipeline.py` has the steps. Checkpoints are in `migrate/checkpoints`.
"""
