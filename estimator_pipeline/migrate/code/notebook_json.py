"""A notebook with other code in its cells: everything else of its JSON stays."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.migrate.code.notes import MARK

__all__ = ["decoded", "rewritten", "with_notes_on_packages"]

# What puts TensorFlow 1 under a notebook: `!pip install tensorflow-gpu==1.15`, Colab's `%tensorflow_version 1.x`.
_TENSORFLOW_1 = re.compile(
    r"[ \t]*[!%]*[ \t]*(?:sudo )?(?:(?:python[\d.]*[ \t]+-m[ \t]+)?pip[\d.]*|conda)[ \t]+install\b.*"
    r"[\s'\"]tensorflow(?:-gpu)?(?:\[[\w,]*\])?[ \t]*[=~<]=?=?[ \t]*1\."
    r"|[ \t]*%{1,2}tensorflow_version[ \t]+1"
)
_NOTE = f"{MARK} asks for TensorFlow 1; write estimator_pipeline, which brings TensorFlow 2, in its place"


def decoded(content: bytes) -> str:
    """Return the text of a notebook's JSON, as it was read from a file."""
    return content.decode("utf-8-sig")


def with_notes_on_packages(source: str) -> str:
    """Return a cell with a marked comment above each line that installs TensorFlow 1."""
    lines = source.split("\n")
    made: list[str] = []
    for line in lines:
        if _TENSORFLOW_1.match(line) and not (made and made[-1].lstrip().startswith(MARK)):
            made.append(f"{line[: len(line) - len(line.lstrip())]}{_NOTE}")
        made.append(line)
    return "\n".join(made)


def rewritten(text: str, sources: Mapping[int, str]) -> str:
    """Return the JSON of a notebook with other code in cells, which lose their outputs; laid out as it was.

    Args:
        text: the JSON.
        sources: the code of cells that change, by their number among all cells, counted from 1.
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
    """Return the options of `json.dumps` that give the text, but for white space at its end."""
    found = re.match(r"\s*\{\n([ \t]+)", text)
    indent: Any = (found[1] if "\t" in found[1] else len(found[1])) if found else None
    options: list[dict[str, Any]] = [
        {"indent": indent, "ensure_ascii": ascii_alone, "separators": (",", ": ") if indent else separators}
        for ascii_alone in (False, True)
        for separators in ((", ", ": "), (",", ":"))
    ]
    return next((one for one in options if _dumped(document, one) == text.rstrip()), options[0])


def _dumped(document: Any, options: dict[str, Any]) -> str:
    text = json.dumps(document, **options)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a pair of surrogates, which JSON's escapes may hold
        return json.dumps(document, **{**options, "ensure_ascii": True})
    return text
