"""`migrate export`: a SavedModel with an old export's signatures. `api.py` is the way in, `pipeline.py` the steps.

Checkpoints are in `migrate/checkpoints`.
"""
