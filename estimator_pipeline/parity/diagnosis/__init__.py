"""Why two trainings differ: from the first difference to its cause, where it is certain. NumPy only.

What differs is found in `parity/comparison.py`.
"""
