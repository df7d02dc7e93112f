"""Conversion of a mapping by a table of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from estimator_pipeline.migrate.configs.documents import Item, Path
from estimator_pipeline.migrate.configs.findings import JobDraft

__all__ = ["Table", "convert_table", "later", "names_in", "taken"]

Table = Mapping[str, Any]
"""Name -> why the field is no longer needed; or why the user must decide, and the field of the job file ("": none);
or the table of a mapping; or a function of the draft and the field."""


def convert_table(draft: JobDraft, table: Table, items: Iterable[Item]) -> None:
    """Convert each field that a table has."""
    for item in items:
        rule = table.get(str(item.path[-1]))
        if rule is None:
            continue
        if item.value is None:
            draft.drop(item, "not set")
        elif isinstance(rule, str):
            draft.drop(item, rule)
        elif isinstance(rule, tuple):
            draft.decide(item, rule[0], tuple(rule[1].split(".")) if rule[1] else None)
        elif isinstance(rule, Mapping):
            convert_table(draft, rule, draft.document.items(*item.path))
        else:
            rule(draft, item)


def names_in(table: Table) -> Callable[[Path], Iterable[str]]:
    """Return a function from the path of a mapping to the names that its table has."""

    def names_below(path: Path) -> Iterable[str]:
        at: Any = table
        for step in path:
            if isinstance(at, Mapping):
                at = at.get(step, at.get("*"))
            elif isinstance(at, list):
                at = at[0]
        return at if isinstance(at, Mapping) else ()

    return names_below


def taken(to: str, why: str = "") -> Callable[[JobDraft, Item], None]:
    """Return a function that sets a field of the job file; "{scheduler}" is the section for machines."""

    def take(draft: JobDraft, item: Item) -> None:
        draft.take(item, tuple(to.format(scheduler=draft.scheduler).split(".")), why=why)

    return take


def later(draft: JobDraft, item: Item) -> None:
    """Leave a field to its format, which converts it together with others."""
