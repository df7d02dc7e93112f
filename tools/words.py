"""Counter of the words of the banned list (tests/repository/words.toml) in code, documents and messages.

python tools/words.py                    the number of uses for each room
python tools/words.py PATH [PATH ...]    each use in these files and folders, with its line
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "repository" / "words.toml"


class Use(NamedTuple):
    """One use of a banned word: file, line, and the word or name."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


@functools.cache
def lists() -> dict:
    """Return the contents of words.toml."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


@functools.cache
def phrases() -> re.Pattern[str]:
    """Return the banned words of prose, as one pattern."""
    spaced = [phrase.replace(" ", r"\s+") for phrase in lists()["prose"]]
    return re.compile(rf"(?<![\w.])(?:{'|'.join(spaced)})(?![\w(])", re.IGNORECASE)


def in_prose(path: Path, text: str, first_line: int = 1) -> Iterator[Use]:
    """Yield the uses in prose."""
    for match in phrases().finditer(text):
        yield Use(path, first_line + text.count("\n", 0, match.start()), match[0])


def in_document(path: Path) -> Iterator[Use]:
    """Return the uses in a Markdown document, without its fenced blocks and inline code."""
    text = path.read_text(encoding="utf-8")

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = re.sub(r"^```.*?^```$", blank, text, flags=re.MULTILINE | re.DOTALL)
    return in_prose(path, re.sub(r"`[^`\n]+`|\]\([^)]+\)", blank, text))


def in_code(path: Path) -> Iterator[Use]:
    """Yield the uses in the comments, docstrings, strings and introduced names of a Python file."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from in_prose(path, token.string, token.start[0])
    names, parts = set(lists()["names"]), set(lists()["parts_of_names"])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in lists()["stored"]:
            yield from in_prose(path, node.value, node.lineno)
        for name in _introduced(node):
            bare = name.strip("_")
            if bare in names or parts & set(bare.lower().split("_")):
                yield Use(path, getattr(node, "lineno", 1), f"name {name}")


def _introduced(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node introduces."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr != "found":
        yield node.attr  # `found` as below
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.arg) and node.arg != "found":  # an error's, as `PipelineError` calls it
        yield node.arg
    elif isinstance(node, ast.alias) and node.asname:
        yield node.asname


def rooms() -> dict[str, list[Use]]:
    """Return the uses of each room of the package, of `model_fns`, `tools`, `benchmarks` and `tests`."""
    folders = [path for path in sorted((ROOT / "estimator_pipeline").iterdir()) if (path / "__init__.py").exists()]
    counted = {f"{folder.parent.name}/{folder.name}": sorted(folder.rglob("*.py")) for folder in folders}
    counted["estimator_pipeline"] = sorted((ROOT / "estimator_pipeline").glob("*.py"))
    for name in ("model_fns", "tools", "benchmarks", "tests"):
        counted[name] = sorted((ROOT / name).rglob("*.py"))
    return {room: [use for path in paths for use in in_code(path)] for room, paths in counted.items()}


def main() -> int:
    if sys.argv[1:]:
        for argument in map(Path, sys.argv[1:]):
            top = argument.resolve()
            for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
                if path.suffix in (".py", ".md"):
                    for use in in_code(path) if path.suffix == ".py" else in_document(path):
                        print(use)
        return 0
    for room, uses in rooms().items():
        print(f"{len(uses):6d}  {room}: {dict(Counter(use.text.lower() for use in uses).most_common(6))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
