"""The record ledger: which records each worker consumed at which step, written while it trains, and checked.

    from estimator_pipeline import ledger

    found = ledger.read("runs/digits/ledger")
    found.ids(12)                     # {"worker:0": array of record numbers, "worker:1": ...}
    print(ledger.check(found))        # records read twice or never, steps that are missing

================= =================================================================================
`read`            a folder's :class:`Ledger`: attempts, runs, the steps that count, their records
`check`           a :class:`LedgerReport`: findings and notes
`fingerprints`    what stands for the ids of records of an input function of one's own
`LedgerWriter`    what an engine writes with
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
