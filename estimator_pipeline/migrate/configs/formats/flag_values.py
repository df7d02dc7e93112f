"""Values of flags as JSON: what `json.dump(FLAGS.flag_values_dict(), file)` leaves."""

from __future__ import annotations

from typing import Any

from estimator_pipeline.migrate.configs.documents import Item
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.hyperparameters import OWN_FLAGS, apply, normal

__all__ = ["convert", "surely"]

# Of the flags that every program with absl has, those that no hyperparameter is called by.
_TELLING = OWN_FLAGS - {"v", "help"}


def surely(data: Any) -> bool:
    """Whether names are among them that only flags have."""
    return isinstance(data, dict) and any(name in _TELLING or "-" in name for name in data)


def convert(draft: JobDraft) -> None:
    """Says of each flag what becomes of it."""
    given = [(str(item.path[-1]), item) for item in draft.document.items()]
    names: dict[str, str] = {}
    single = []
    for name, item in given:
        if normal(name) in names:
            draft.decide(item, f"the same flag as {names[normal(name)]}, by another name")
            continue
        names[normal(name)] = name
        single.append((name, Item(item.path, item.value, item.line, name)))
    apply(draft, single)
