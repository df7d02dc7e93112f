"""The Estimator engine: `tf.estimator.Estimator` under `train_and_evaluate`, its hooks and exporters.

`engines/core` and `engines/model_dir` have what it shares with the other engines; `engines/jobs` reads job files.
"""
