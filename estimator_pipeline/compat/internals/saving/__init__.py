"""Features of checkpoints, SavedModels and listeners without a public API.

`engines/model_dir` selects the checkpoint from which a run resumes.
"""
