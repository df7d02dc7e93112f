"""The Estimator engine: `tf.estimator.Estimator` under `train_and_evaluate`, its hooks and exporters.

What it shares with the other engines is in `engines/lifecycle` and `engines/model_dir`; job files are read in
`engines/jobs`.
"""
