"""The code of a Jupyter notebook: its cells one below the other, where lines come from, and the files it writes."""

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
           "is_written", "joined", "python_tree", "restored", "split"]  # fmt: skip

# A comment that no person writes: it stands for a line of IPython, by its number in the cell, and between two cells.
_MARK = "#\x7f"
_MARKED = re.compile(rf"([ \t]*)(.*?){_MARK}(\d+)$")
_BETWEEN = re.compile(rf"(?m)^{_MARK}cell[ \t]*\n")

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
        text: its code, with a marked comment, `pass` or None for what is IPython's; see `restored`.
        above: how many lines of the cell stand above that text.
        source: the cell as the notebook has it.
    """

    number: int
    first: int
    text: str
    above: int = 0
    source: str = ""


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
    """Return the code cells of a notebook (nbformat 3 and 4).

    Lines of IPython (`%matplotlib inline`, `!pip install`, `name?`) become comments or `pass`, so that lines keep their
    numbers; of `%time f(x)` the statement stays. Cells of other languages are blank, and so are those that
    `%%writefile` writes to files: Python files among them come by themselves. A marked comment is between two cells.
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
    found: list[NotebookCell] = []
    written: dict[str, list[NotebookCell]] = {}
    for number, cell in enumerate(cells if isinstance(cells, list) else [], start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        source = "".join(map(str, source)) if isinstance(source, list) else str(source)
        _keep_written(written, number, source)
        text = _python(source)
        found.append(NotebookCell(number, 1, text if text.endswith("\n") else f"{text}\n", source=source))
    files = tuple(WrittenFile(name, tuple(cells)) for name, cells in written.items())
    return NotebookCode(joined(found), _counted(found), (), files)


def joined(cells: Sequence[NotebookCell]) -> str:
    """Return the text of all cells: one program."""
    return f"{_MARK}cell\n".join(cell.text for cell in cells)


def _counted(cells: Sequence[NotebookCell]) -> tuple[NotebookCell, ...]:
    """Return the cells, with the lines at which they begin in the text of all."""
    found, line = [], 1
    for cell in cells:
        found.append(cell._replace(first=line))
        line += cell.text.count("\n") + 1
    return tuple(found)


def split(cells: Sequence[NotebookCell], text: str) -> tuple[NotebookCell, ...] | None:
    """Return the cells of a text that `joined` gave and that was changed since; None where they cannot be told."""
    texts = _BETWEEN.split(text)
    if len(texts) != len(cells):
        return None
    found = _counted([cell._replace(text=text) for cell, text in zip(cells, texts, strict=True)])
    same = all(restored(old, new.text) is not None for old, new in zip(cells, found, strict=True))
    return found if same else None


def restored(cell: NotebookCell, text: str) -> str | None:
    """Return what a notebook has of a cell whose text was changed: with its lines of IPython; None where one is gone.

    Args:
        cell: as it was read.
        text: what its `text` became.
    """
    if text == cell.text:
        return cell.source
    if not cell.text.strip():  # it is not Python, or cannot be read
        return None if text.strip() else cell.source
    source, told = cell.source.split("\n"), _python(cell.source).split("\n")
    magics = [_STATEMENT.match(line) for line, now in zip(source, told, strict=False)
              if line.lstrip().startswith("%") and now.lstrip().startswith("if 1:")]  # fmt: skip
    marks = [found for line in told if (found := _MARKED.match(line))]
    whole = next((found[3] for found in marks if source[int(found[3]) - 1].startswith("%%")), "")
    made: list[str] = []
    for line in text.split("\n"):
        found = _MARKED.match(line)
        if found is not None:
            if not marks or marks[0][2] != found[2] or marks[0][3] != found[3]:
                return None
            if found[3] == whole and any(one.strip() and not one.lstrip().startswith("#") for one in made):
                return None  # the magic of a cell is its first line
            line = found[1] + source[int(found[3]) - 1][len(marks[0][1]) :]
            del marks[0]
        elif magics and line.lstrip().startswith("if 1:"):
            statement = line.lstrip().removeprefix("if 1:").lstrip()
            magic = magics.pop(0)
            if magic is None or not _is_statement(statement):
                return None
            line = f"{line[: len(line) - len(line.lstrip())]}{magic[2]}{statement}"
        made.append(line)
    if marks or magics:
        return None
    return "\n".join(made).removesuffix("" if cell.source.endswith("\n") else "\n")


def _keep_written(written: dict[str, list[NotebookCell]], number: int, text: str) -> None:
    """Keep the Python file that a cell writes; another cell writes it anew, or appends to it."""
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
    """Where the first line is that is neither blank nor a comment."""
    return next((at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), 0)


def is_written(text: str) -> bool:
    """Whether a cell writes its text to a file."""
    lines = text.split("\n")
    return bool(_written_name(lines[_first(lines)].strip())[0])


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
    if (told and _is_other(told[0], len(told) > 1)) or "\x7f" in text:
        return "\n" * text.count("\n")
    if python_tree(text) is not None:
        return text
    made: list[str] = []
    before, goes_on = "", False
    for number, line in enumerate(lines, start=1):
        plain = "" if goes_on else _plain(line, before)
        # A command may go over several lines, as Python's own do.
        goes_on = (goes_on or plain != line) and line.rstrip().endswith("\\")
        is_magic = plain != line and not plain.lstrip().startswith("if 1:")
        made.append(f"{plain}{'  ' if plain else ''}{_MARK}{number}" if is_magic else plain)
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
    found = python_tree(text)
    return found is not None and not any(hasattr(node, "body") for node in found.body)


def python_tree(text: str) -> ast.Module | None:
    """Python's own tree of a text; None where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def first_import(text: str) -> int:
    """Return the line of the first statement that imports something when a program is run; 0 where there is none."""
    module = python_tree(text)
    for one in module.body if module is not None else ():
        imports = [node for node in ast.walk(one) if isinstance(node, (ast.Import, ast.ImportFrom))]
        is_run = not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if is_run and any(getattr(node, "module", "") != "__future__" for node in imports):
            return one.lineno
    return 0
