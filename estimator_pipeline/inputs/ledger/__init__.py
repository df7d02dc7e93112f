"""The record ledger: which records each worker consumed at which step, written during training and checked later.

    from estimator_pipeline import ledger

    records = ledger.read("runs/digits/ledger")
    records.ids(12)                   # {"worker:0": array of record numbers, "worker:1": ...}
    print(ledger.check(records))      # records read twice or never, missing steps

================= =================================================================================
`read`            a folder's `Ledger`: attempts, runs, the steps that count, their records
`check`           a `LedgerReport`: findings and notes
`fingerprints`    the ids of records of a user input function
`LedgerWriter`    the writer for an engine
================= =================================================================================

Nothing here imports TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator_pipeline.utils import lazy

__all__ = ["Ledger", "LedgerFinding", "LedgerReport", "LedgerWriter", "check", "fingerprints", "read"]

if TYPE_CHECKING:
    from estimator_pipeline.inputs.ledger.checking import check
    from estimator_pipeline.inputs.ledger.hashing import fingerprints
    from estimator_pipeline.inputs.ledger.reading import Ledger, read
    from estimator_pipeline.inputs.ledger.report import LedgerFinding, LedgerReport
    from estimator_pipeline.inputs.ledger.writing import LedgerWriter

_PUBLIC = {
    "LedgerFinding": "estimator_pipeline.inputs.ledger.report:LedgerFinding",
    "Ledger": "estimator_pipeline.inputs.ledger.reading:Ledger",
    "LedgerReport": "estimator_pipeline.inputs.ledger.report:LedgerReport",
    "LedgerWriter": "estimator_pipeline.inputs.ledger.writing:LedgerWriter",
    "check": "estimator_pipeline.inputs.ledger.checking:check",
    "fingerprints": "estimator_pipeline.inputs.ledger.hashing:fingerprints",
    "read": "estimator_pipeline.inputs.ledger.reading:read",
}

__getattr__, __dir__ = lazy.attach(__name__, _PUBLIC)
