"""`migrate checkpoint`: training state for a different engine. `api.py` is the entry, `pipeline.py` has the steps.

Exports are in `migrate/exports`. `engines/model_dir` reads checkpoints of this package's runs.
"""
