"""`tf.contrib.training.HParams`: as JSON (`to_json`), and as the text that `parse` takes (`a=1,b=[2,3]`)."""

from __future__ import annotations

import re
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Document, Item
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.hyperparameters import apply, typed

__all__ = ["convert", "is_text", "read"]

_PAIR = re.compile(
    r"\s*(?P<name>[A-Za-z][\w.]*)(?:\[\s*(?P<index>\d+)\s*\])?\s*=\s*(?:\[(?P<list>[^\]\n]*)\]|(?P<value>[^,\[\]\n]*))\s*"
)


def is_text(text: str) -> bool:
    """Return whether a text consists of `name=value` pairs, separated by commas."""
    try:
        _pairs(text, "")
    except ConfigError:
        return False
    return True


def read(text: str, *, source: str) -> Document:
    """Read `name=value,name=[v1,v2],name[0]=v`.

    Raises:
        ConfigError: The text does not have this form, or a name has two values.
    """
    result: dict[str, Any] = {}
    lines: dict[tuple[str | int, ...], int] = {}
    for name, index, value, at in _pairs(text.strip(), source):
        line = text.strip().count("\n", 0, at) + 1
        if index is None and name in result:
            raise ConfigError(
                f"{source}, line {line}: the hyperparameter {name!r} has two values.",
                code="file/bad-format",
                found=f"{result[name]!r} and {value!r}",
                hint="keep one of the two.",
            )
        lines.setdefault((name,), line)
        if index is None:
            result[name] = value
        else:
            _put(result, name, index, value, f"{source}, line {line}")
    return Document(source, result, lines)


def _put(result: dict[str, Any], name: str, index: int, value: Any, place: str) -> None:
    known = result.setdefault(name, [])
    if not isinstance(known, list) or index != len(known):
        raise ConfigError(
            f"{place}: {name}[{index}] is not the next index of {name}.",
            code="file/bad-format",
            found=f"{name}: {known!r}",
            hint=f"write the whole list: {name}=[...].",
        )
    known.append(value)


def _pairs(text: str, source: str) -> list[tuple[str, int | None, Any, int]]:
    pairs = []
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        end = pair.end() if pair else at
        if pair is None or (end < len(text) and text[end] != ","):
            line = text.count("\n", 0, end) + 1
            raise ConfigError(
                f"{source}, line {line}: these are not hyperparameters as text.",
                code="file/bad-format",
                found=f"{text[end : end + 50]!r}",
                hint="write name=value, separated by commas; lists in brackets: hidden=[10,20].",
            )
        values = pair["list"]
        parts = [typed(part.strip()) for part in values.split(",") if part.strip()] if values is not None else None
        index = int(pair["index"]) if pair["index"] else None
        pairs.append(
            (pair["name"], index, typed(pair["value"].strip()) if parts is None else parts, pair.start("name"))
        )
        at = end + 1
    if not pairs:
        raise ConfigError(
            f"{source} has no hyperparameters.", code="file/bad-format", hint="write name=value, separated by commas."
        )
    return pairs


def convert(draft: JobDraft) -> None:
    """Convert each hyperparameter; unknown ones become parameters of the model."""
    items = draft.document.items()
    apply(draft, [(str(item.path[-1]), _named(item)) for item in items], others_are_params=True)


def _named(item: Item) -> Item:
    return Item(item.path, item.value, item.line, str(item.path[-1]))
