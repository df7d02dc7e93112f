"""`migrate checkpoint`: a training's state from one engine to another. `api.py` is the way in, `pipeline.py` the steps.

Exports are in `migrate/exports`; checkpoints of this package's own runs are read in `engines/model_dir`.
"""
