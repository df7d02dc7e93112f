"""Writes docs/reference/contrib.md: where each package of tf.contrib leads under --tf1, as the table has it.

python tools/contrib_names.py           writes it
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DOCUMENT = ROOT / "docs" / "reference" / "contrib.md"
CONTRIB = ROOT / "estimator_pipeline" / "compat" / "tf1" / "contrib"
PROGRAMS = ROOT / "tests" / "programs" / "tf1"
UNITS = ROOT / "tests" / "compat" / "tf1" / "test_contrib.py"

HEAD = """\
# tf.contrib

Where the packages of `tf.contrib` lead for a program under `exec --tf1` ([tf1.md](../tf1.md)). TensorFlow 2.0 removed
all of them. A name is looked up in the places of its row, from left to right: `v1` is `tf.compat.v1`, `v2` is
TensorFlow 2, **new** is written anew in estimator_pipeline with the arguments and variables' names that it had. What
no row has, and all other packages, come from TensorFlow 1.15's own files, once `estimator-pipeline contrib install`
has brought them.

"Tested by": programs in `tests/programs/tf1`, which train, and the numbers in `tests/compat/tf1/test_contrib.py`.

<!-- tools/contrib_names.py writes all of this page -->
"""


def place(home: str) -> str:
    """A HOME of the table, for people."""
    if home.startswith("@"):
        return "new"
    if home.startswith("."):
        return f"`tensorflow.python{home}`"
    return f"`{home}`"


def new_names(home: str) -> list[str]:
    """What a module written anew offers."""
    path = CONTRIB.joinpath(*home[1:].split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def uses() -> dict[str, list[str]]:
    """Package -> the programs and tests that use it."""
    found: dict[str, list[str]] = {}
    for path in sorted(PROGRAMS.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        packages = set(re.findall(r"\bcontrib\.(\w+)", text))
        for names in re.findall(r"from tensorflow\.contrib import (.+)", text):
            packages.update(name.strip().split(" ")[0] for name in names.split(","))
        for package in packages:
            found.setdefault(package, []).append(f"`{path.stem}`")
    for package in set(re.findall(r"contrib import (\w+)|contrib\.(\w+) import", UNITS.read_text(encoding="utf-8"))):
        name = next(filter(None, package))
        found.setdefault(name, []).append("numbers")
    return found


def rows() -> Iterator[str]:
    from estimator_pipeline.compat.tf1.contrib import names

    table, tested = names(), uses()
    for package in sorted({name.split(".")[0] for name in table.modules} - {"examples"}):
        below = sorted(name for name in table.modules if name.split(".")[0] == package)
        homes = list(dict.fromkeys(home for name in below for home in table.homes.get(name, ())))
        named = [
            f"{name[len(package) + 1 :]}.{old}" if name != package else old
            for name in below
            for old in table.rows.get(name, {})
        ]
        anew = [name for home in homes if home.startswith("@") and home != "@files" for name in new_names(home)]
        where = ", ".join(dict.fromkeys(place(home) for home in homes if home != "@files")) or "name by name"
        by_name = ", ".join(f"`{name}`" for name in named)
        new = ", ".join(f"`{name}`" for name in dict.fromkeys(anew))
        yield f"| `{package}` | {where} | {new} | {by_name} | {', '.join(tested.get(package, []))} |"


def page() -> str:
    head = "| package | looked up in | new | names of their own places | tested by |\n| --- | --- | --- | --- | --- |\n"
    examples = (
        "`tensorflow.examples.tutorials.mnist.input_data` is there as well (new): it reads the four files of MNIST "
        "from the\nfolder that the program names, and fetches those that are missing."
    )
    return f"{HEAD}\n{head}" + "\n".join(rows()) + f"\n\n{examples}\n"


if __name__ == "__main__":
    DOCUMENT.write_text(page(), encoding="utf-8")
