"""Writes the list of rooms and modules in docs/architecture.md, by their docstrings.

python tools/architecture.py            writes it anew
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- modules: tools/architecture.py writes them -->\n", "<!-- end of modules -->\n"
WIDTH = 120


def doc(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def first_paragraph(text: str) -> str:
    """In Markdown, without the roles of reStructuredText."""
    plain = re.sub(r":(?:\w+):`~?([\w.]+)`", lambda match: f"`{match[1].removeprefix('estimator_pipeline.')}`", text)
    return " ".join(plain.split("\n\n")[0].split())


def rooms() -> Iterator[str]:
    """A section for each folder: what it is, and its modules."""
    for face in sorted((ROOT / "estimator_pipeline").rglob("__init__.py"), key=lambda path: path.parent.parts):
        folder = face.parent
        depth = len(folder.relative_to(ROOT).parts)
        yield f"{'#' * min(depth + 2, 5)} {folder.relative_to(ROOT).as_posix()}/\n"
        yield textwrap.fill(first_paragraph(doc(face)), WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
        modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        if modules:
            yield "| module | |\n| --- | --- |"
            lines = (
                f"| `{path.name}` | {first_paragraph(doc(path)).replace('|', chr(92) + '|')} |" for path in modules
            )
            yield "\n".join(lines) + "\n"


def written(text: str) -> str:
    """The document with the list as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n" + "\n".join(rooms()) + f"\n{END}{after}"


def main() -> int:
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
