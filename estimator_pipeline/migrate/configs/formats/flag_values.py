"""Flag values as JSON, as `json.dump(FLAGS.flag_values_dict(), file)` writes them."""

from __future__ import annotations

from typing import Any

from estimator_pipeline.migrate.configs.documents import Item
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.hyperparameters import OWN_FLAGS, apply, normal

__all__ = ["convert", "has_flag_names"]

# Flags that absl defines in every program, without names that a hyperparameter may also have.
_ONLY_FLAGS = OWN_FLAGS - {"v", "help"}


def has_flag_names(data: Any) -> bool:
    """Return whether a mapping has names that only flags have."""
    return isinstance(data, dict) and any(name in _ONLY_FLAGS or "-" in name for name in data)


def convert(draft: JobDraft) -> None:
    """Convert each flag."""
    flags = [(str(item.path[-1]), item) for item in draft.document.items()]
    names: dict[str, str] = {}
    single = []
    for name, item in flags:
        if normal(name) in names:
            draft.decide(item, f"the same flag as {names[normal(name)]}, with a different name")
            continue
        names[normal(name)] = name
        single.append((name, Item(item.path, item.value, item.line, name)))
    apply(draft, single)
