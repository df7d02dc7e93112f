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

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Finding": "report",
    "Ledger": "reading",
    "LedgerReport": "report",
    "LedgerWriter": "writing",
    "check": "checking",
    "fingerprints": "hashing",
    "read": "reading",
}

__all__ = ["Finding", "Ledger", "LedgerReport", "LedgerWriter", "check", "fingerprints", "read"]

if TYPE_CHECKING:
    from estimator_pipeline.inputs.ledger.checking import check
    from estimator_pipeline.inputs.ledger.hashing import fingerprints
    from estimator_pipeline.inputs.ledger.reading import Ledger, read
    from estimator_pipeline.inputs.ledger.report import Finding, LedgerReport
    from estimator_pipeline.inputs.ledger.writing import LedgerWriter


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
