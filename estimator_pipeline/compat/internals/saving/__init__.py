"""Checkpoints, SavedModels and listeners, as far as their public functions do not reach.

Which checkpoint a run goes on from is decided in `engines/model_dir`.
"""
