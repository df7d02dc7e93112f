"""The code of Estimator programs: read with libcst, never imported; every construct named, with what becomes of it.

files.py, notebooks.py   which files are read, and how
syntax.py                one file as a tree with scopes and bindings
names.py                 what an expression means, over all files
catalogue/               the constructs, their Keras successors
constructs.py, functions.py, modes.py   what is found
rules.py                 what the converter converts
respelling.py, respelled_text.py, contrib.py   names of TensorFlow 1
scanning.py, result.py   all of it together; failures.py: files that it fails at
converting.py, edits.py, notes.py, writing.py   from a program to the converted one
reports/                 how it is told: text, SARIF, HTML, a diff
"""

from estimator_pipeline.migrate.code.converter import Converted, convert
from estimator_pipeline.migrate.code.findings import CodeFinding, Scan
from estimator_pipeline.migrate.code.reports import diff, page, sarif_document, summary, text
from estimator_pipeline.migrate.code.scanner import scan

__all__ = ["CodeFinding", "Converted", "Scan", "convert", "diff", "page", "sarif_document", "scan", "summary", "text"]
