"""Reading of source files, and the reasons for skipped ones. Nothing is imported or executed."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.code.analysis import notebooks
from estimator_pipeline.migrate.code.analysis.notebooks import NotebookCell, NotebookProblem, WrittenFile

__all__ = ["Skipped", "SourceFile", "read_tree"]

LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", ".bzr", "node_modules", ".venv", "venv", "site-packages", ".tox", ".nox",
     ".eggs", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".idea", ".vscode"}
)  # fmt: skip
MOST_BYTES = {".py": 2 * 2**20, ".ipynb": 64 * 2**20}  # a notebook holds its pictures
_SUFFIXES = (".py", ".pyw", ".ipynb")


@dataclass(frozen=True)
class Skipped:
    """A file or folder that was not read, relative to the root, and the reason."""

    path: str
    why: str


@dataclass
class SourceFile:
    """The text of a file.

    Attributes:
        path: the path relative to the root, with slashes.
        text: the whole text; for a notebook, its code cells one below the other.
        cells: the code cells of a notebook.
        problems: the parts that cannot be read.
        encoding: the encoding of the file.
        notebook: the notebook whose cells write this file with `%%writefile`, if the file does not exist yet.
        origin: those cells.
    """

    path: str
    text: str
    cells: tuple[NotebookCell, ...] = ()
    problems: list[NotebookProblem] = field(default_factory=list)
    encoding: str = "utf-8"
    notebook: str = ""
    origin: tuple[NotebookCell, ...] = ()

    @property
    def shown(self) -> str:
        """The path of the user's file: the notebook for a file that a notebook writes."""
        return self.notebook or self.path

    def place(self, line: int) -> tuple[int | None, int]:
        """Return (cell, line within the cell) of a line; without a notebook the cell is missing."""
        for cell in reversed(self.cells or self.origin):
            if line >= cell.first:
                return cell.number, line - cell.first + 1 + cell.above
        return None, line

    def shown_line(self, line: int) -> str:
        """Return a line of the user's file without surrounding whitespace; "" if it does not exist."""
        cell = next((candidate for candidate in reversed(self.cells) if line >= candidate.first), None)
        lines = (self.text if cell is None else cell.source).splitlines()
        at = line if cell is None else line - cell.first + 1
        return lines[at - 1].strip() if 0 < at <= len(lines) else ""

    def with_text(self, text: str) -> SourceFile:
        """Return a copy with a different text; for a notebook with the cells of that text."""
        cells = notebooks.split(self.cells, text) if self.cells else ()
        return replace(self, text=text, cells=self.cells if cells is None else cells, problems=list(self.problems))

    def keeps_cells(self, text: str) -> bool:
        """Return whether a different text of a notebook can be split into its cells; True for other files."""
        return not self.cells or notebooks.split(self.cells, text) is not None


def read_tree(root: str | os.PathLike[str]) -> tuple[Path, list[SourceFile], list[Skipped]]:
    """Read a file, or every Python file and notebook below a folder, sorted by name.

    Returns:
        The folder that paths are relative to, the sources, and the skipped files.

    Raises:
        ConfigError: the path does not exist, cannot be read or has no Python file.
    """
    root = Path(root)
    skipped: list[Skipped] = []
    if not root.exists():
        raise ConfigError(
            f"{root}: no such file or folder",
            code="file/not-found",
            hint="name a Python file, a notebook or a folder",
        )
    if root.is_file():
        if not _is_python(root):
            raise ConfigError(
                f"{root} is not a Python file",
                code="file/bad-format",
                found=f"the suffix {root.suffix!r}",
                hint="name a .py or .ipynb file",
            )
        paths = [root]
        base = root.parent
    else:
        base = root
        paths = list(_walk(root, skipped))
    sources: list[SourceFile] = []
    written: list[tuple[str, WrittenFile]] = []
    for path in paths:
        name = path.relative_to(base).as_posix()
        source = _read(path, name, skipped, written)
        if source is not None:
            sources.append(source)
    sources += _written(sources, written)
    if not sources:
        reasons = "; ".join(f"{entry.path}: {entry.why}" for entry in skipped[:3])
        raise ConfigError(
            f"{root} has no Python file that can be read",
            code="file/bad-format",
            found=f"left out: {reasons}" if reasons else "no file that ends in .py or .ipynb",
            hint="name the folder of the program's sources",
        )
    return base, sorted(sources, key=lambda source: source.path), sorted(skipped, key=lambda entry: entry.path)


def _written(sources: list[SourceFile], written: list[tuple[str, WrittenFile]]) -> Iterator[SourceFile]:
    """Yield the files that cells of notebooks write, except those that exist with the same text."""
    there = {source.path: source.text.rstrip() for source in sources}
    for notebook, file in written:
        for folder in (PurePosixPath(notebook).parent, PurePosixPath(notebook).with_suffix("").as_posix() + "_files"):
            path = PurePosixPath(folder, file.name).as_posix()
            if there.get(path, file.text.rstrip()) == file.text.rstrip():
                break
        else:
            continue
        if path not in there:
            there[path] = file.text.rstrip()
            yield SourceFile(path, file.text, notebook=notebook, origin=file.cells)


def _walk(root: Path, skipped: list[Skipped]) -> Iterator[Path]:
    """Yield the Python files below a folder. Symbolic links are skipped: their targets below it are read there."""

    def note(path: str, why: str) -> None:
        skipped.append(Skipped(os.path.relpath(path, root).replace(os.sep, "/"), why))

    def failed(error: OSError) -> None:
        note(error.filename or str(root), error.strerror or "cannot be read")

    for folder, folders, names in os.walk(root, onerror=failed):
        kept = []
        for name in sorted(folders):
            path = os.path.join(folder, name)
            if name == "__pycache__":
                continue
            if name in LEFT_OUT or name.endswith(".egg-info"):
                note(path, "a folder of tools or installed packages")
            elif os.path.exists(os.path.join(path, "pyvenv.cfg")):
                note(path, "a virtual environment")
            elif os.path.islink(path):
                note(path, "a symbolic link")
            else:
                kept.append(name)
        folders[:] = kept
        for name in sorted(names):
            path = os.path.join(folder, name)
            if _is_python(Path(path)):
                if os.path.islink(path):
                    note(path, "a symbolic link")
                else:
                    yield Path(path)


def _is_python(path: Path) -> bool:
    if path.suffix in _SUFFIXES:
        return True
    if path.suffix or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            first_line = file.readline(200)
    except OSError:
        return False
    return first_line.startswith(b"#!") and b"python" in first_line


def _read(
    path: Path, name: str, skipped: list[Skipped], written: list[tuple[str, WrittenFile]]
) -> SourceFile | None:  # fmt: skip
    try:
        if not path.is_file():  # reading a pipe would block
            skipped.append(Skipped(name, "not an ordinary file"))
            return None
        size, most = path.stat().st_size, MOST_BYTES.get(path.suffix, MOST_BYTES[".py"])
        if size > most:
            skipped.append(Skipped(name, f"{size:,} bytes; files above {most:,} bytes are not read"))
            return None
        content = path.read_bytes()
    except OSError as error:
        skipped.append(Skipped(name, error.strerror or "cannot be read"))
        return None
    if path.suffix == ".ipynb":
        code = notebooks.code_of(content)
        written += [(name, file) for file in code.written]
        return SourceFile(name, code.text, code.cells, list(code.problems))
    if b"\0" in content and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        skipped.append(Skipped(name, "binary: it holds a NUL byte"))
        return None
    return _decoded(name, content)


def _decoded(name: str, content: bytes) -> SourceFile:
    """Return the file decoded by its encoding declaration (PEP 263), or as UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except (SyntaxError, LookupError) as error:
        problem = NotebookProblem(1, 1, f"its encoding cannot be determined: {error}")
        return SourceFile(name, content.decode("latin-1"), problems=[problem])
    try:
        return SourceFile(name, content.decode(encoding), encoding=encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        why = f"it is not {encoding}: byte 0x{error.object[error.start]:02x}; declare its encoding in the first line"
    except LookupError as error:
        line, why = 1, f"it is not {encoding}: {error}"
    return SourceFile(name, content.decode("latin-1"), problems=[NotebookProblem(line, 1, why)])
