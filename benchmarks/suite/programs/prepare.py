"""Program that writes the data sets of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite import work


def run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Write each data set of `spec["sets"]`: folder, data, records, records to evaluate."""
    for folder, data, records, evaluation in spec["sets"]:
        work.prepare(Path(folder), data, records=records, evaluation=evaluation)
    return {}
