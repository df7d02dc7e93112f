"""The code of a Jupyter notebook: its cells one below the other, where lines come from, and the files it writes."""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shlex
import warnings
from typing import NamedTuple

__all__ = ["NotebookCell", "NotebookCode", "NotebookProblem", "WrittenFile", "code_of"]

# Cell magics below which there is Python.
_PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3", "%%tensorflow_version",
                  "%%memit", "%%wandb")  # fmt: skip
# Those that write the cell to a file; Datalab had them by one sign.
_WRITE_MAGICS = ("writefile", "file", "writetemplate")
# Of one sign, and yet about the whole cell: so Datalab had them, and so people write them by mistake.
_WHOLE = ("bash", "sh", "script", "system", "sx", "html", "HTML", "javascript", "js", "latex", "markdown", "perl", "R",
          "ruby", "svg", "sql", "bq", "bigquery", "ml", "mlalpha", "gcs", "storage", "chart", "pipeline")  # fmt: skip
# Line magics with a statement of Python behind them, and the options that they may have.
_STATEMENT = re.compile(r"(\s*)(%(?:time|timeit|prun|memit|mprun|lprun)\s+(?:-\w+(?:\s+\d+)?\s+)*)(\S.*)$")
# Commands that IPython takes without a sign: `ls data`.
_COMMANDS = re.compile(
    r"(?:ls|ll|cd|pwd|cat|cp|mv|mkdir|rmdir|rm|man|more|less|pip3?|conda|head|tail|wget|git|gsutil|gcloud)"
    r"(?:\s+(?!(?:=|in|is|and|or|not|if|for|else)\b)[\w./~*$\"'{-][^=]*)$"
)
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
        above: how many lines of the cell stand above that text.
    """

    number: int
    first: int
    text: str
    above: int = 0


class WrittenFile(NamedTuple):
    """A Python file that cells write by `%%writefile`.

    Attributes:
        name: as the notebook has it, relative to the notebook, and never outside of its folder.
        cells: those that write it, `first` in the lines of the file; more than one where they append to it.
    """

    name: str
    cells: tuple[NotebookCell, ...]

    @property
    def text(self) -> str:
        return "".join(cell.text for cell in self.cells)


class NotebookCode(NamedTuple):
    """What a notebook holds: the text of all code cells, the cells, what is wrong with it, and the files it writes."""

    text: str = ""
    cells: tuple[NotebookCell, ...] = ()
    problems: tuple[NotebookProblem, ...] = ()
    written: tuple[WrittenFile, ...] = ()


def code_of(content: bytes) -> NotebookCode:
    """The code cells of a notebook (nbformat 3 and 4).

    Lines of IPython (`%matplotlib inline`, `!pip install`, `name?`) become blank or `pass`, so that lines keep their
    numbers; of `%time f(x)` the statement stays. Cells of other languages are blank, and so are those that
    `%%writefile` writes to files: Python files among them come by themselves.
    """
    try:
        document = json.loads(content.decode("utf-8-sig"))
        sheets = document.get("worksheets")
        cells = document["cells"] if sheets is None else [cell for sheet in sheets for cell in sheet["cells"]]
        language = document.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    except (UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return NotebookCode(problems=(NotebookProblem(1, 1, f"it is no notebook: {type(error).__name__}: {error}"),))
    if not isinstance(language, str) or not language.lower().startswith("python"):
        return NotebookCode()
    found, line = [], 1
    written: dict[str, list[NotebookCell]] = {}
    for number, cell in enumerate(cells if isinstance(cells, list) else [], start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        _keep_written(written, number, text)
        text = _python(text)
        if not text.endswith("\n"):
            text += "\n"
        found.append(NotebookCell(number, line, text))
        line += text.count("\n")
    files = tuple(WrittenFile(name, tuple(cells)) for name, cells in written.items())
    return NotebookCode("".join(cell.text for cell in found), tuple(found), (), files)


def _keep_written(written: dict[str, list[NotebookCell]], number: int, text: str) -> None:
    """Keeps the Python file that a cell writes; another cell writes it anew, or appends to it."""
    lines = text.split("\n")
    at = next((at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), 0)
    name, append = _written_name(lines[at].strip())
    if not name.endswith(".py"):
        return
    body = "\n".join(lines[at + 1 :]).rstrip("\n") + "\n"
    before = written.get(name, []) if append else []
    first = 1 + sum(cell.text.count("\n") for cell in before)
    written[name] = [*before, NotebookCell(number, first, body, at + 1)]


def _written_name(first: str) -> tuple[str, bool]:
    """The file that a cell with this first line writes, "" where it writes none, and whether it appends to it."""
    magic, _, given = first.partition(" ")
    if magic.lstrip("%") not in _WRITE_MAGICS or not 1 <= len(magic) - len(magic.lstrip("%")) <= 2:
        return "", False
    try:
        told = shlex.split(given)
    except ValueError:
        told = given.split()
    names = [one for one in told if not one.startswith("-")]
    if not names:
        return "", False
    path = re.sub(r"[^\w./ -]", "_", names[-1].replace("\\", "/"))
    inside = posixpath.normpath("/" + path.lstrip("/")).lstrip("/")
    return inside, "-a" in told or "--append" in told


def _is_other(first: str, more: bool) -> bool:
    """Whether a cell with this first line is not Python; `more` says whether it has further lines."""
    word = first.split()[0] if first.split() else ""
    if word.startswith("%%"):
        return word not in _PYTHON_MAGICS
    if word.startswith("!!"):
        return True
    return word.startswith("%") and (word[1:] in _WRITE_MAGICS or (more and word[1:] in _WHOLE))


def _python(text: str) -> str:
    lines = text.split("\n")
    told = [line.strip() for line in lines if line.strip()]
    while len(told) > 1 and told[0].startswith("#"):  # what stands above a cell's magic
        del told[0]
    if told and _is_other(told[0], len(told) > 1):
        return "\n" * text.count("\n")
    made: list[str] = []
    before, goes_on = "", False
    for line in lines:
        plain = "" if goes_on else _plain(line, before)
        # A command may go over several lines, as Python's own do.
        goes_on = (goes_on or plain != line) and line.rstrip().endswith("\\")
        made.append(plain)
        before = "" if plain.lstrip().startswith("#") else plain
    return "\n".join(made)


def _plain(line: str, before: str) -> str:
    if before.rstrip().endswith((",", "(", "[", "{", "\\", "+", "-", "*", "/", "%")):
        return line  # goes on from the line above: `a = (b\n % c)`
    stripped = line.lstrip()
    indent = line[: len(line) - len(stripped)]
    statement = _STATEMENT.match(line)
    if statement is not None and _is_statement(statement[3]):
        # At the same column, as the user has it.
        return f"{indent}{'if 1:':{len(statement[2])}}{statement[3]}"
    if _COMMANDS.match(stripped) and not _is_statement(stripped):
        return f"{indent}pass" if indent else ""
    if stripped.startswith(("%", "!", "?")) or re.match(r"^[\w.]+\?{1,2}\s*$", stripped):
        return f"{indent}pass" if indent else ""
    assigned = _ASSIGNED.match(line)
    return f"{assigned[1]}{assigned[2]} = None" if assigned else line


def _is_statement(text: str) -> bool:
    """Whether a line is a statement of Python by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return not any(hasattr(node, "body") for node in found.body)
