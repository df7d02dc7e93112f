"""Where records come from, one source a file: TFRecord, CSV, arrays, TensorFlow Datasets, the embedded digits.

Each factory gives :class:`~estimator_pipeline.inputs.Inputs`. Which record comes at which step is in
`inputs/sampler.py` and `inputs/sharding.py`.
"""
