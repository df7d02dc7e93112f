"""Data sources, one per file: TFRecord, CSV, arrays, TensorFlow Datasets, the embedded digits.

Each factory returns `Inputs`. `inputs/sampler.py` and `inputs/sharding.py`
determine the records of each step.
"""
