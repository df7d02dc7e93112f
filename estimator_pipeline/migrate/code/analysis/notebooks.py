"""The code of a Jupyter notebook: its cells one below the other, and where each line comes from."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

__all__ = ["NotebookCell", "NotebookProblem", "code_of"]

# Cell magics below which there is Python.
_PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3", "%%tensorflow_version")
_ASSIGNED = re.compile(r"^(\s*)([\w.,\s]+?)\s*=\s*[!%](?!=)")


class NotebookProblem(NamedTuple):
    """What cannot be read: a line and a column, counted from 1, and why."""

    line: int
    column: int
    why: str
    cell: int | None = None


class NotebookCell(NamedTuple):
    """A code cell.

    Attributes:
        number: among all cells of the notebook, counted from 1.
        first: its first line in the text of all cells, counted from 1.
        text: its code, with the lines of magics blanked.
    """

    number: int
    first: int
    text: str


def code_of(content: bytes) -> tuple[str, tuple[NotebookCell, ...], list[NotebookProblem]]:
    """The code cells of a notebook (nbformat 3 and 4), as one text, as cells, and what is wrong with it.

    Lines of IPython (`%matplotlib inline`, `!pip install`, `name?`) become blank or `pass`, so that lines keep their
    numbers.
    """
    try:
        document = json.loads(content.decode("utf-8-sig"))
        sheets = document.get("worksheets")
        cells = document["cells"] if sheets is None else [cell for sheet in sheets for cell in sheet["cells"]]
        language = document.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    except (UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return "", (), [NotebookProblem(1, 1, f"it is no notebook: {type(error).__name__}: {error}")]
    if not isinstance(language, str) or not language.lower().startswith("python"):
        return "", (), []
    found, line = [], 1
    for number, cell in enumerate(cells if isinstance(cells, list) else [], start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        text = _python(text)
        if not text.endswith("\n"):
            text += "\n"
        found.append(NotebookCell(number, line, text))
        line += text.count("\n")
    return "".join(cell.text for cell in found), tuple(found), []


def _python(text: str) -> str:
    lines = text.split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and first.split()[0] not in _PYTHON_MAGICS:
        return "\n" * text.count("\n")
    return "\n".join(_plain(line, before) for line, before in zip(lines, ["", *lines], strict=False))


def _plain(line: str, before: str) -> str:
    if before.rstrip().endswith((",", "(", "[", "{", "\\", "+", "-", "*", "/", "%")):
        return line  # goes on from the line above: `a = (b\n % c)`
    stripped = line.lstrip()
    indent = line[: len(line) - len(stripped)]
    if stripped.startswith(("%", "!", "?")) or re.match(r"^[\w.]+\?{1,2}\s*$", stripped):
        return f"{indent}pass" if indent else ""
    assigned = _ASSIGNED.match(line)
    return f"{assigned[1]}{assigned[2]} = None" if assigned else line
