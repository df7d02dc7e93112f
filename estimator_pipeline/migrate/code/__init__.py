"""The code of Estimator programs: read with libcst, never imported; every construct named, with what becomes of it.

analysis/                which files are read, and how; what an expression means, over all files; what is found
catalogue/               the constructs, their Keras successors
renames/                 what the converter renames; tf1_names.py, renamed_text.py, tf_contrib.py: TensorFlow 1
scanner.py, findings.py  all of it together; failures.py: files that it fails at
verdicts.py, judging.py  what becomes of each file; checkout.py: of which commit
converter.py, notes.py, write.py   from a program to the converted one
to_keras/                a whole file, or a program of several, becomes Keras code
reports/                 how it is told: text, SARIF, HTML, a diff
"""

from estimator_pipeline.migrate.code.converter import Converted, convert
from estimator_pipeline.migrate.code.findings import CodeFinding, Scan
from estimator_pipeline.migrate.code.reports import NOT_RUN, diff, page, sarif_document, summary, text
from estimator_pipeline.migrate.code.scanner import scan

__all__ = ["NOT_RUN", "CodeFinding", "Converted", "Scan", "convert", "diff", "page", "sarif_document", "scan",
           "summary", "text"]  # fmt: skip
