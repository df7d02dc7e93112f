"""Scan and conversion of Estimator programs. The code is parsed with libcst and never imported.

analysis/                source files, syntax trees, name resolution, constructs
catalogue/               the constructs of tf.estimator and their Keras replacements
renames/                 renames from TensorFlow 1 to TensorFlow 2: tf1_names.py, renamed_text.py, tf_contrib.py
repository.py, others.py a folder in several processes; the facts that its programs share
scanner.py, findings.py  the scan and its result; failures.py: files on which the scan fails
verdicts.py, judging.py  the verdict on each file
converter.py, notes.py, write.py   the conversion of a program, its comments, the output folder
keras.py                 the outcome of the conversion to Keras, of `migrate/convert`, for each file
reports/                 output as text, SARIF and diff
"""

from estimator_pipeline.migrate.code.converter import Converted, convert
from estimator_pipeline.migrate.code.findings import CodeFinding, Scan
from estimator_pipeline.migrate.code.reports import NOT_RUN, diff, sarif_document, summary, text
from estimator_pipeline.migrate.code.scanner import scan

__all__ = ["NOT_RUN", "CodeFinding", "Converted", "Scan", "convert", "diff", "sarif_document", "scan", "summary",
           "text"]  # fmt: skip
