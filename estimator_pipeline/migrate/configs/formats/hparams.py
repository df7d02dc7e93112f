"""`tf.contrib.training.HParams`: as JSON (`to_json`), and as the text that `parse` takes (`a=1,b=[2,3]`)."""

from __future__ import annotations

import re
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Document, bad
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.hyperparameters import apply, typed

__all__ = ["convert", "is_text", "read"]

_PAIR = re.compile(
    r"\s*(?P<name>[A-Za-z][\w.]*)(?P<index>\[\s*\d+\s*\])?\s*=\s*(?:\[(?P<list>[^\]\n]*)\]|(?P<value>[^,\[\]\n]*))\s*"
)


def is_text(text: str) -> bool:
    """Return whether a text consists of `name=value` pairs, separated by commas."""
    try:
        _pairs(text, "")
    except ConfigError:
        return False
    return True


def read(text: str, *, source: str) -> Document:
    """Read `name=value,name=[v1,v2]`.

    Raises:
        ConfigError: The text does not have this form, a name has two values, or a value is one item of a list.
    """
    document = Document(source, {})
    text = text.strip()
    for pair in _pairs(text, source):
        name, line = pair["name"], text.count("\n", 0, pair.start("name")) + 1
        value: Any = typed((pair["value"] or "").strip())
        if pair["list"] is not None:
            value = [typed(part.strip()) for part in pair["list"].split(",") if part.strip()]
        if pair["index"]:
            problem = f"{source}, line {line}: {name}{pair['index']} is one item of a list"
            raise bad(problem, pair[0], f"write the whole list: {name}=[...]")
        if name in document.data:
            problem = f"{source}, line {line}: the hyperparameter {name!r} has two values"
            raise bad(problem, f"{document.data[name]!r} and {value!r}", "keep one of the two")
        document.data[name], document.lines[(name,)] = value, line
    return document


def _pairs(text: str, source: str) -> list[re.Match[str]]:
    pairs: list[re.Match[str]] = []
    at = 0
    while at < len(text) or not pairs:
        pair = _PAIR.match(text, at)
        end = pair.end() if pair else at
        if pair is None or (end < len(text) and text[end] != ","):
            problem = f"{source}, line {text.count(chr(10), 0, end) + 1}: these are not hyperparameters as text"
            hint = "write name=value, separated by commas; lists in brackets: hidden=[10,20]"
            raise bad(problem, f"{text[end : end + 50]!r}", hint)
        pairs.append(pair)
        at = end + 1
    return pairs


def convert(draft: JobDraft) -> None:
    """Convert each hyperparameter; unknown ones become parameters of the model."""
    items = [(str(item.path[-1]), item) for item in draft.document.items()]
    apply(draft, [(name, item._replace(field=name)) for name, item in items], others_are_params=True)
