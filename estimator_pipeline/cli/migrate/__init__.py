"""The commands of `estimator-pipeline migrate`, one per file.

They parse arguments and print results. The package `estimator_pipeline/migrate` does the work.
"""
