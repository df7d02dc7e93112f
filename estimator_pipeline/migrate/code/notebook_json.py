"""Replacement of the code in a notebook's cells; the rest of its JSON is unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.migrate.code.notes import MARK

__all__ = ["decoded", "rewritten", "with_notes_on_packages"]

# Lines that install TensorFlow 1: `!pip install tensorflow-gpu==1.15`, Colab's `%tensorflow_version 1.x`.
_TENSORFLOW_1 = re.compile(
    r"[ \t]*[!%]*[ \t]*(?:sudo )?(?:(?:python[\d.]*[ \t]+-m[ \t]+)?pip[\d.]*|conda)[ \t]+install\b.*"
    r"[\s'\"]tensorflow(?:-gpu)?(?:\[[\w,]*\])?[ \t]*[=~<]=?=?[ \t]*1\."
    r"|[ \t]*%{1,2}tensorflow_version[ \t]+1"
)
_NOTE = f"{MARK} installs TensorFlow 1; install estimator_pipeline instead, which requires TensorFlow 2"


def decoded(content: bytes) -> str:
    """Return the text of a notebook's JSON from the bytes of its file."""
    return content.decode("utf-8-sig")


def with_notes_on_packages(source: str) -> str:
    """Return a cell's code with a marked comment above each line that installs TensorFlow 1."""
    lines = source.split("\n")
    result: list[str] = []
    for line in lines:
        if _TENSORFLOW_1.match(line) and not (result and result[-1].lstrip().startswith(MARK)):
            result.append(f"{line[: len(line) - len(line.lstrip())]}{_NOTE}")
        result.append(line)
    return "\n".join(result)


def rewritten(text: str, sources: Mapping[int, str]) -> str:
    """Return a notebook's JSON with new code in some cells, in the original layout.

    The outputs of these cells are removed.

    Args:
        text: the JSON.
        sources: cell number, counted from 1 among all cells -> its new code.
    """
    document = json.loads(text)
    sheets = document.get("worksheets")
    cells = document["cells"] if sheets is None else [cell for sheet in sheets for cell in sheet["cells"]]
    like = _layout(text, document)
    for number, source in sources.items():
        cell = cells[number - 1]
        field = "source" if "source" in cell else "input"
        cell[field] = re.findall(r"[^\n]*\n|[^\n]+", source) if isinstance(cell[field], list) else source
        cell["outputs"] = []
        for count in ("execution_count", "prompt_number"):
            if count in cell:
                cell[count] = None
        if cell.get("prompt_number", 0) is None:
            del cell["prompt_number"]
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
