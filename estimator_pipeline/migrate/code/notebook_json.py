"""Replacement of the code in a notebook's cells; the rest of its JSON is unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["decoded", "rewritten"]


def decoded(content: bytes) -> str:
    """Return the text of a notebook's JSON from the bytes of its file."""
    return content.decode("utf-8-sig")


def rewritten(text: str, sources: Mapping[int, str]) -> str:
    """Return a notebook's JSON with new code in some cells, in the original layout.

    The outputs of these cells are removed.

    Args:
        text: the JSON.
        sources: cell number, counted from 1 among all cells -> its new code.
    """
    document = json.loads(text)
    like = _layout(text, document)
    for number, source in sources.items():
        cell = document["cells"][number - 1]
        cell["source"] = re.findall(r"[^\n]*\n|[^\n]+", source) if isinstance(cell["source"], list) else source
        cell["outputs"] = []
        if "execution_count" in cell:
            cell["execution_count"] = None
    return _dumped(document, like) + ("\n" if text.endswith("\n") else "")


def _layout(text: str, document: Any) -> dict[str, Any]:
    """Return the options of `json.dumps` that reproduce the text, except for trailing whitespace."""
    match = re.match(r"\s*\{\n([ \t]+)", text)
    indent: Any = (match[1] if "\t" in match[1] else len(match[1])) if match else None
    options: list[dict[str, Any]] = [
        {"indent": indent, "ensure_ascii": ensure_ascii, "separators": (",", ": ") if indent else separators}
        for ensure_ascii in (False, True)
        for separators in ((", ", ": "), (",", ":"))
    ]
    return next((candidate for candidate in options if _dumped(document, candidate) == text.rstrip()), options[0])


def _dumped(document: Any, options: dict[str, Any]) -> str:
    text = json.dumps(document, **options)
    try:
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON may contain as an escape
        return json.dumps(document, **{**options, "ensure_ascii": True})
    return text
