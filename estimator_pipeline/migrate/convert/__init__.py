"""Conversion of Estimator programs to Keras programs that need nothing of this package.

`convert.py` reads, analyses, plans and verifies; `rules/` has a file for each kind of construct. A construct without a
rule is refused by its line, and the file remains an Estimator program.
"""
