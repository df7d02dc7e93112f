"""Selection of the tests of a part of the package: those that import it, or a part that imports it.

    make test AREA=parity

Parts are the folders and modules of estimator_pipeline/ (`parity`, `inputs`, `run_config`). The code is read, not run;
imports inside functions count.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "estimator_pipeline"


def files_of(area: str) -> list[str]:
    """Return the test files of `area`, relative to the repository.

    Raises:
        SystemExit: There is no such part.
    """
    needs = {part: set(_parts(files)) for part, files in _files_of_parts().items()}
    if area not in needs:
        sys.exit(f"error: no part of {PACKAGE} is called {area!r}\n  found: {', '.join(sorted(needs))}")
    about = {area}
    while more := {part for part, needed in needs.items() if needed & about} - about:
        about |= more
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    helpers = {path.stem: path for path in (ROOT / "tests").rglob("*.py") if path.stem != "conftest"}
    return [str(path.relative_to(ROOT)) for path in tests if about & set(_parts(_with_helpers(path, helpers)))]


def _files_of_parts() -> dict[str, list[Path]]:
    files = {path.stem: [path] for path in (ROOT / PACKAGE).glob("*.py") if not path.stem.startswith("__")}
    folders = (path for path in (ROOT / PACKAGE).iterdir() if (path / "__init__.py").exists())
    return files | {path.name: sorted(path.rglob("*.py")) for path in folders}


def _with_helpers(path: Path, helpers: dict[str, Path]) -> list[Path]:
    """Return a test file and the helpers that it imports, directly or indirectly."""
    files, pending = [path], [path]
    while pending:
        named = {name.partition(".")[0] for name in _imported(pending.pop())}
        new = [helpers[name] for name in named & helpers.keys() if helpers[name] not in files]
        files += new
        pending += new
    return files


def _parts(files: list[Path]) -> Iterator[str]:
    for path in files:
        for name in _imported(path):
            package, _, rest = name.partition(".")
            if package == PACKAGE and rest:
                yield rest.partition(".")[0]


@functools.cache
def _imported(path: Path) -> tuple[str, ...]:
    """Return the imported dotted names; `from a import b` gives `a.b`."""
    return tuple(_names(ast.parse(path.read_bytes())))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


if __name__ == "__main__":
    print("\n".join(files_of(sys.argv[1])))
