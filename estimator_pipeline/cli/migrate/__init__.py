"""The commands of `estimator-pipeline migrate`, one a file.

They read arguments and print results. What they do is in `estimator_pipeline/migrate`.
"""
