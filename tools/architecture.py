"""Generator of docs/internals/modules.md, the list of packages and modules, from their docstrings.

python tools/architecture.py
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from markdown_table import cell, row

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "internals" / "modules.md"
HEAD = """# Modules

<!-- tools/architecture.py writes this page from the docstrings. -->

[Architecture](../architecture.md) shows how they fit together.

"""
WIDTH = 120


def doc(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def first_paragraph(text: str) -> str:
    """Return the first paragraph as Markdown, without the roles of reStructuredText."""
    plain = re.sub(r":(?:\w+):`~?([\w.]+)`", lambda match: f"`{match[1].removeprefix('estimator_pipeline.')}`", text)
    return " ".join(plain.split("\n\n")[0].split())


def table(folder: Path) -> str:
    """Return the table of the modules of a folder."""
    paths = [*sorted(folder.glob("*.py")), *sorted(folder.glob("*.sh"))]
    lines = []
    for path in paths:
        if path.name != "__init__.py":
            text = first_paragraph(doc(path)) if path.suffix == ".py" else comment(path)
            lines.append(row(f"`{path.name}`", cell(text)))
    return "\n".join(["| module | |\n| --- | --- |", *lines, ""]) if lines else ""


def comment(path: Path) -> str:
    """Return the first comment of a shell script."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    text = " ".join(line.lstrip("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), lines))
    return text.partition(". ")[0]


def sections() -> Iterator[str]:
    """Yield a section for each folder, with its purpose and its modules."""
    faces = sorted((ROOT / "estimator_pipeline").rglob("__init__.py"), key=lambda path: path.parent.parts)
    for face in [*faces, ROOT / "model_fns" / "__init__.py", *(ROOT / name for name in ("benchmarks", "tools"))]:
        folder = face.parent if face.suffix else face
        depth = len(folder.relative_to(ROOT).parts)
        yield f"{'#' * min(depth + 1, 4)} {folder.relative_to(ROOT).as_posix()}/\n"
        if face.suffix:
            yield (
                textwrap.fill(first_paragraph(doc(face)), WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
            )
        yield table(folder)


def render() -> str:
    """Return the page."""
    return HEAD + "\n".join(section for section in sections() if section)


def main() -> int:
    DOCUMENT.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
