"""Data sources, one per file: TFRecord, CSV, arrays, TensorFlow Datasets, the embedded digits.

Each factory returns :class:`~estimator_pipeline.inputs.Inputs`. `inputs/sampler.py` and `inputs/sharding.py`
determine the records of each step.
"""
