"""Results of runs, from the files in their model directories: metrics over time, comparison, report.

Nothing here imports TensorFlow.
"""
