"""The code of a Jupyter notebook: its cells as one text, the origin of each line, and the files that it writes."""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shlex
import warnings
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["NotebookCell", "NotebookCode", "NotebookProblem", "WrittenFile", "code_of", "first_import",
           "joined", "python_tree", "restored", "split"]  # fmt: skip

# The marker comment for an IPython line, followed by its number in the cell, and for the border between two cells.
_MARK = "#\x7f"
_MARKED = re.compile(rf"([ \t]*)(.*?){_MARK}(\d+)$")
_BETWEEN = re.compile(rf"(?m)^{_MARK}cell[ \t]*\n")

# Cell magics with Python code.
_PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python", "%%python3", "%%tensorflow_version",
                  "%%memit", "%%wandb")  # fmt: skip
# Cell magics that write the cell to a file; Datalab used a single %.
_WRITE_MAGICS = ("writefile", "file", "writetemplate")
# Cell magics that Datalab used with a single %, which people also write by mistake.
_WHOLE = ("bash", "sh", "script", "system", "sx", "html", "HTML", "javascript", "js", "latex", "markdown", "perl", "R",
          "ruby", "svg", "sql", "bq", "bigquery", "ml", "mlalpha", "gcs", "storage", "chart", "pipeline")  # fmt: skip
# Line magics that are followed by a Python statement, with their options.
_STATEMENT = re.compile(r"(\s*)(%(?:time|timeit|prun|memit|mprun|lprun)\s+(?:-\w+(?:\s+\d+)?\s+)*)(\S.*)$")
# Commands that IPython accepts without % or !: `ls data`.
_COMMANDS = re.compile(
    r"(?:ls|ll|cd|pwd|cat|cp|mv|mkdir|rmdir|rm|man|more|less|pip3?|conda|head|tail|wget|git|gsutil|gcloud)"
    r"(?:\s+(?!(?:=|in|is|and|or|not|if|for|else)\b)[\w./~*$\"'{-][^=]*)$"
)
_ASSIGNED = re.compile(r"^(\s*)([\w.,\s]+?)\s*=\s*[!%](?!=)")


class NotebookProblem(NamedTuple):
    """A place that cannot be read: line and column, counted from 1, and the reason."""

    line: int
    column: int
    why: str
    cell: int | None = None


class NotebookCell(NamedTuple):
    """A code cell.

    Attributes:
        number: the number of the cell, counted from 1 among all cells of the notebook.
        first: its first line in the text of all cells, counted from 1.
        text: its code, with a marker comment, `pass` or None instead of IPython syntax; see `restored`.
        above: the number of lines of the cell above that text.
        source: the cell's text in the notebook.
    """

    number: int
    first: int
    text: str
    above: int = 0
    source: str = ""


class WrittenFile(NamedTuple):
    """A Python file that cells write with `%%writefile`.

    Attributes:
        name: the path relative to the notebook, never outside of its folder.
        cells: the cells that write it, with `first` as a line of the file; several if they append to it.
    """

    name: str
    cells: tuple[NotebookCell, ...]

    @property
    def text(self) -> str:
        return "".join(cell.text for cell in self.cells)


class NotebookCode(NamedTuple):
    """The contents of a notebook: the text of all code cells, the cells, the problems, the written files."""

    text: str = ""
    cells: tuple[NotebookCell, ...] = ()
    problems: tuple[NotebookProblem, ...] = ()
    written: tuple[WrittenFile, ...] = ()


def code_of(content: bytes) -> NotebookCode:
    """Return the code cells of a notebook (nbformat 4).

    IPython lines (`%matplotlib inline`, `!pip install`, `name?`) become comments or `pass`, so that line numbers are
    unchanged; `%time f(x)` keeps its statement. Cells of other languages and `%%writefile` cells are blank. Python
    files that they write are returned separately. A marker comment separates the cells.
    """
    try:
        document = json.loads(content.decode("utf-8-sig"))
        cells = document["cells"]
        language = document.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    except (UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return NotebookCode(problems=(NotebookProblem(1, 1, f"not a notebook: {type(error).__name__}: {error}"),))
    if not isinstance(language, str) or not language.lower().startswith("python"):
        return NotebookCode()
    code_cells: list[NotebookCell] = []
    written: dict[str, list[NotebookCell]] = {}
    for number, cell in enumerate(cells if isinstance(cells, list) else [], start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        source = "".join(map(str, source)) if isinstance(source, list) else str(source)
        _keep_written(written, number, source)
        text = _python(source)
        code_cells.append(NotebookCell(number, 1, text if text.endswith("\n") else f"{text}\n", source=source))
    files = tuple(WrittenFile(name, tuple(cells)) for name, cells in written.items())
    return NotebookCode(joined(code_cells), _counted(code_cells), (), files)


def joined(cells: Sequence[NotebookCell]) -> str:
    """Return the text of all cells: one program."""
    return f"{_MARK}cell\n".join(cell.text for cell in cells)


def _counted(cells: Sequence[NotebookCell]) -> tuple[NotebookCell, ...]:
    """Return the cells with their first lines in the text of all cells."""
    counted, line = [], 1
    for cell in cells:
        counted.append(cell._replace(first=line))
        line += cell.text.count("\n") + 1
    return tuple(counted)


def split(cells: Sequence[NotebookCell], text: str) -> tuple[NotebookCell, ...] | None:
    """Return the cells of a changed text that `joined` returned; None if it cannot be split."""
    texts = _BETWEEN.split(text)
    if len(texts) != len(cells):
        return None
    new_cells = _counted([cell._replace(text=text) for cell, text in zip(cells, texts, strict=True)])
    same = all(restored(old, new.text) is not None for old, new in zip(cells, new_cells, strict=True))
    return new_cells if same else None


def restored(cell: NotebookCell, text: str) -> str | None:
    """Return the notebook's version of a changed cell, with its IPython lines; None if one of them is missing.

    Args:
        cell: the original cell.
        text: the changed `text` of the cell.
    """
    if text == cell.text:
        return cell.source
    if not cell.text.strip():  # not Python, or unreadable
        return None if text.strip() else cell.source
    source, translated = cell.source.split("\n"), _python(cell.source).split("\n")
    magics = [_STATEMENT.match(line) for line, now in zip(source, translated, strict=False)
              if line.lstrip().startswith("%") and now.lstrip().startswith("if 1:")]  # fmt: skip
    marks = [match for line in translated if (match := _MARKED.match(line))]
    whole = next((match[3] for match in marks if source[int(match[3]) - 1].startswith("%%")), "")
    result: list[str] = []
    for line in text.split("\n"):
        match = _MARKED.match(line)
        if match is not None:
            if not marks or marks[0][2] != match[2] or marks[0][3] != match[3]:
                return None
            if match[3] == whole and any(before.strip() and not before.lstrip().startswith("#") for before in result):
                return None  # a cell magic must be the first line
            line = match[1] + source[int(match[3]) - 1][len(marks[0][1]) :]
            del marks[0]
        elif magics and line.lstrip().startswith("if 1:"):
            statement = line.lstrip().removeprefix("if 1:").lstrip()
            magic = magics.pop(0)
            if magic is None or not _is_statement(statement):
                return None
            line = f"{line[: len(line) - len(line.lstrip())]}{magic[2]}{statement}"
        result.append(line)
    if marks or magics:
        return None
    return "\n".join(result).removesuffix("" if cell.source.endswith("\n") else "\n")


def _keep_written(written: dict[str, list[NotebookCell]], number: int, text: str) -> None:
    """Record the Python file that a cell writes; a later cell replaces it or appends to it."""
    lines = text.split("\n")
    at = _first(lines)
    name, append = _written_name(lines[at].strip())
    if not name.endswith(".py"):
        return
    body = "\n".join(lines[at + 1 :]).rstrip("\n") + "\n"
    before = written.get(name, []) if append else []
    first = 1 + sum(cell.text.count("\n") for cell in before)
    written[name] = [*before, NotebookCell(number, first, body, at + 1)]


def _first(lines: Sequence[str]) -> int:
    """Return the index of the first line that is neither blank nor a comment."""
    return next((at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), 0)


def _written_name(first: str) -> tuple[str, bool]:
    """Return (file that a cell with this first line writes or "", whether it appends to the file)."""
    magic, _, rest = first.partition(" ")
    if magic.lstrip("%") not in _WRITE_MAGICS or not 1 <= len(magic) - len(magic.lstrip("%")) <= 2:
        return "", False
    try:
        words = shlex.split(rest)
    except ValueError:
        words = rest.split()
    names = [word for word in words if not word.startswith("-")]
    if not names:
        return "", False
    path = re.sub(r"[^\w./ -]", "_", names[-1].replace("\\", "/"))
    inside = posixpath.normpath("/" + path.lstrip("/")).lstrip("/")
    return inside, "-a" in words or "--append" in words


def _is_other(first: str, more: bool) -> bool:
    """Return whether a cell with this first line is not Python; `more` means that it has further lines."""
    word = first.split()[0] if first.split() else ""
    if word.startswith("%%"):
        return word not in _PYTHON_MAGICS
    if word.startswith("!!"):
        return True
    return word.startswith("%") and (word[1:] in _WRITE_MAGICS or (more and word[1:] in _WHOLE))


def _python(text: str) -> str:
    lines = text.split("\n")
    filled = [line.strip() for line in lines if line.strip()]
    while len(filled) > 1 and filled[0].startswith("#"):  # comments above a cell magic
        del filled[0]
    if (filled and _is_other(filled[0], len(filled) > 1)) or "\x7f" in text:
        return "\n" * text.count("\n")
    if python_tree(text) is not None:
        return text
    result: list[str] = []
    before, continued = "", False
    for number, line in enumerate(lines, start=1):
        plain = "" if continued else _plain(line, before)
        # A command may continue over several lines, like a Python statement.
        continued = (continued or plain != line) and line.rstrip().endswith("\\")
        is_magic = plain != line and not plain.lstrip().startswith("if 1:")
        result.append(f"{plain}{'  ' if plain else ''}{_MARK}{number}" if is_magic else plain)
        before = "" if plain.lstrip().startswith("#") else plain
    return "\n".join(result)


def _plain(line: str, before: str) -> str:
    if before.rstrip().endswith((",", "(", "[", "{", "\\", "+", "-", "*", "/", "%")):
        return line  # continues the line above: `a = (b\n % c)`
    stripped = line.lstrip()
    indent = line[: len(line) - len(stripped)]
    statement = _STATEMENT.match(line)
    if statement is not None and _is_statement(statement[3]):
        # The statement keeps its column.
        return f"{indent}{'if 1:':{len(statement[2])}}{statement[3]}"
    if _COMMANDS.match(stripped) and not _is_statement(stripped):
        return f"{indent}pass" if indent else ""
    if stripped.startswith(("%", "!", "?")) or re.match(r"^[\w.]+\?{1,2}\s*$", stripped):
        return f"{indent}pass" if indent else ""
    assigned = _ASSIGNED.match(line)
    return f"{assigned[1]}{assigned[2]} = None" if assigned else line


def _is_statement(text: str) -> bool:
    """Return whether a line is a complete Python statement."""
    module = python_tree(text)
    return module is not None and not any(hasattr(node, "body") for node in module.body)


def python_tree(text: str) -> ast.Module | None:
    """Return the `ast` tree of a text; None if Python cannot parse it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def first_import(text: str) -> int:
    """Return the line of the first statement that imports something when a program runs; 0 without one."""
    module = python_tree(text)
    for statement in module.body if module is not None else ():
        imports = [node for node in ast.walk(statement) if isinstance(node, (ast.Import, ast.ImportFrom))]
        is_run = not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if is_run and any(getattr(node, "module", "") != "__future__" for node in imports):
            return statement.lineno
    return 0
