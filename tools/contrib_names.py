"""Generator of the files that follow from the table of tf.contrib's names, compat/tf1/contrib/names.txt.

    python tools/contrib_names.py                      docs/reference/contrib.md: where --tf1 looks up each package
    python tools/contrib_names.py --successors [FILE]  catalogue/contrib_names.txt: the names that `migrate convert`
                                                       writes; needs TensorFlow, tf-slim and `contrib install`. FILE
                                                       has further names, one per line, such as those of public programs

A line of the second file is `PACKAGE HOME NAMES`: `tf.contrib.PACKAGE.NAME` is the same object as `HOME.NAME`, or of
`HOME.NEW` for `OLD=NEW`. HOME is below `tf`, `tf_slim` or `tensorflow_gan`, or it is `contrib` for names that only
estimator_pipeline.compat.contrib has. The name `*` means all names of a package, `.` the package itself.
"""

from __future__ import annotations
import __future__

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DOCUMENT = ROOT / "docs" / "reference" / "contrib.md"
CONTRIB = ROOT / "estimator_pipeline" / "compat" / "tf1" / "contrib"
PROGRAMS = ROOT / "tests" / "programs" / "tf1"
UNITS = ROOT / "tests" / "compat" / "tf1" / "test_contrib.py"
SUCCESSORS = ROOT / "estimator_pipeline" / "migrate" / "code" / "catalogue" / "contrib_names.txt"
# Successors with the same arguments that are a different object, and the choice between two names of one object.
CHOSEN = {
    "data.AUTOTUNE": "tf.data.experimental.AUTOTUNE",
    "data.map_and_batch": "tf.data.experimental.map_and_batch",
    "data.unbatch": "tf.data.experimental.unbatch",
    "learn.ModeKeys.EVAL": "tf.estimator.ModeKeys.EVAL",
    "learn.ModeKeys.INFER": "tf.estimator.ModeKeys.PREDICT",
    "learn.ModeKeys.TRAIN": "tf.estimator.ModeKeys.TRAIN",
    "tpu.TPUEstimator": "tf.compat.v1.estimator.tpu.TPUEstimator",
}

HEAD = """\
# tf.contrib names

[TensorFlow 1 programs](../guides/tf1.md#tfcontrib) describes how to run a program that uses `tf.contrib`. This page
lists where `exec --tf1` finds each of its packages: in the places of the row, from left to right. `v1` is
`tf.compat.v1`, `v2` is TensorFlow 2. **new** is reimplemented in estimator_pipeline with the original arguments and
variable names. All other names and packages come from TensorFlow 1.15's files, which
`estimator-pipeline contrib install` downloads.

"Tested by": programs in `tests/programs/tf1`, which train, and numeric tests ("numbers") in
`tests/compat/tf1/test_contrib.py`.

<!-- tools/contrib_names.py writes all of this page -->
"""


def place(home: str) -> str:
    """Return a HOME of the table as the document shows it."""
    if home.startswith("@"):
        return "new"
    if home.startswith("."):
        return f"`tensorflow.python{home}`"
    return f"`{home}`"


def new_names(home: str) -> list[str]:
    """Return the public names of a reimplemented module."""
    path = CONTRIB.joinpath(*home[1:].split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def uses() -> dict[str, list[str]]:
    """Return package -> the programs and tests that use it."""
    users: dict[str, list[str]] = {}
    for path in sorted(PROGRAMS.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        packages = set(re.findall(r"\bcontrib\.(\w+)", text))
        for names in re.findall(r"from tensorflow\.contrib import (.+)", text):
            packages.update(name.strip().split(" ")[0] for name in names.split(","))
        for package in packages:
            users.setdefault(package, []).append(f"`{path.stem}`")
    for package in set(re.findall(r"contrib import (\w+)|contrib\.(\w+) import", UNITS.read_text(encoding="utf-8"))):
        name = next(filter(None, package))
        users.setdefault(name, []).append("numbers")
    return users


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
        reimplemented = [
            name for home in homes if home.startswith("@") and home != "@files" for name in new_names(home)
        ]
        where = ", ".join(dict.fromkeys(place(home) for home in homes if home != "@files")) or "name by name"
        by_name = ", ".join(f"`{name}`" for name in named)
        new = ", ".join(f"`{name}`" for name in dict.fromkeys(reimplemented))
        yield f"| `{package}` | {where} | {new} | {by_name} | {', '.join(tested.get(package, []))} |"


def page() -> str:
    head = "| package | looked up in | new | names located one by one | tested by |\n| --- | --- | --- | --- | --- |\n"
    examples = (
        "`tensorflow.examples.tutorials.mnist.input_data` (new) reads the four MNIST files from the directory that "
        "the\nprogram passes, and downloads missing ones."
    )
    return f"{HEAD}\n{head}" + "\n".join(rows()) + f"\n\n{examples}\n"


class Successors:
    """Public names for the objects of tf.contrib, preferably names that tf and tf.compat.v1 share."""

    def __init__(self) -> None:
        from estimator_pipeline import compat
        from estimator_pipeline.compat.tf1.contrib import files

        # TensorFlow 1.15's files list the old names. They are not a possible home, so they are hidden below.
        self.files = files.folder()
        os.environ[files.VARIABLE] = os.devnull

        compat.install(tf1=True)
        from estimator_pipeline.compat.tf1 import contrib

        self.tf, self.contrib = sys.modules["tensorflow"], contrib
        self.newer, self.older = _by_object(self.tf), _by_object(self.tf.compat.v1)
        import tf_slim

        self.slim = tf_slim

    def names(self) -> set[str]:
        """Return all names of the table and of the reimplemented modules."""
        table = self.contrib.names()
        known = set(table.modules)
        for package in table.modules:
            homes = [
                home for home in table.homes.get(package, ())
                if home.startswith(("@", "tf_slim.", "v1.", "v2.")) and home not in ("v1.nn", "v1.keras")
            ]  # fmt: skip
            new = [name for home in homes for name in self._all(home) if home[0] != "v" or self._had(package, name)]
            known.update(f"{package}.{name}" for name in (*table.rows.get(package, ()), *new))
        return {name for name in known if not name.startswith("examples")}

    def _had(self, package: str, name: str) -> bool:
        """Return whether TensorFlow 1.15's file of a package has the name: TensorFlow has added names since."""
        file = self.files.joinpath(*package.split("."), "__init__.py")
        return file.is_file() and re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) is not None

    def _all(self, home: str) -> list[str]:
        module = self.contrib._home(home)
        names = getattr(module, "__all__", None) or dir(module)
        names = [name for name in names if name[0] != "_" and name not in __future__.all_feature_names]
        return [name for name in names if not isinstance(getattr(module, name, None), ModuleType)]

    def of(self, dotted: str) -> tuple[str, str]:
        """Return (name cut below a class or function, its home); "" and "" if it does not exist."""
        if dotted in CHOSEN:
            return dotted, CHOSEN[dotted]
        value: Any = self.contrib.module(self.contrib.ROOT)
        parts = dotted.split(".")
        for count, part in enumerate(parts):
            try:
                value = getattr(value, part)
            except Exception:
                return "", ""
            if not isinstance(value, ModuleType):
                return ".".join(parts[: count + 1]), self._home(".".join(parts[:count]), part, value)
        return dotted, self._in_slim(value.__name__, value) or "contrib"

    def _in_slim(self, path: str, value: Any) -> str:
        """Return a path that starts at `import tf_slim`, whose `layers` is not the package tf_slim.layers."""
        last = path.rpartition(".")[2]
        for candidate in (path, f"tf_slim.{last}", f"tf_slim.layers.{last}"):
            top, _, below = candidate.partition(".")
            if top == "tf_slim" and below and _reach(self.slim, below) is value:
                return candidate
        return ""

    def _home(self, package: str, name: str, value: Any) -> str:
        if callable(value) and id(value) in self.newer:
            path = _best(self.newer[id(value)], name)
            if _reach(self.tf.compat.v1, path) is value:
                return f"tf.{path}"
        if callable(value) and id(value) in self.older:
            return f"tf.compat.v1.{_best(self.older[id(value)], name)}"
        table = self.contrib.names()
        homes = ((home, name) for home in table.homes_of(package))
        for home, new in (*table.rows.get(package, {}).get(name, ()), *homes):
            if self.contrib._attribute(home, new) is not self.contrib._NOWHERE:
                if home.startswith("v1"):
                    return f"tf.compat.{home}.{new}"
                if home.startswith("tf_slim") and self._in_slim(f"{home}.{new}", value):
                    return self._in_slim(f"{home}.{new}", value)
                break
        return self._in_slim(f"{getattr(value, '__module__', None)}.{name}", value) or "contrib"


def _by_object(root: ModuleType) -> dict[int, list[str]]:
    """Return id of an object -> its public names."""
    from v1_names import public

    names_by_id: dict[int, list[str]] = {}
    for name, value in public(root).items():
        if callable(value):
            names_by_id.setdefault(id(value), []).append(name)
    return names_by_id


def _best(paths: list[str], name: str) -> str:
    same = [path for path in paths if path.rpartition(".")[2] == name] or paths
    return min(same, key=lambda path: ("rnn_cell" in path and "nn." not in path, path.count("."), len(path), path))


def _reach(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def successors(further: list[str]) -> str:
    """Return the text of catalogue/contrib_names.txt."""
    finder = Successors()
    rows: dict[tuple[str, str], set[str]] = {}
    for dotted in sorted(finder.names() | {*CHOSEN, *further}):
        name, home = finder.of(dotted)
        package, _, last = name.rpartition(".")
        if not name or last.startswith("_") or name == "slim":
            continue
        value = _reach(finder.contrib.module(finder.contrib.ROOT), name)
        if type(value).__module__.endswith("tpu_stubs"):
            continue
        if isinstance(value, ModuleType):
            if home == "contrib" and name not in finder.contrib.names().modules:
                continue  # only the files of TensorFlow 1.15 have it
            rows.setdefault((name, home), set()).add("." if home == "contrib" else "*")
            continue
        where, _, new = home.rpartition(".") if home != "contrib" else ("contrib", "", last)
        rows.setdefault((package, where), set()).add(last if last == new else f"{last}={new}")
    rows["slim", "tf_slim"] = rows["gan", "tensorflow_gan"] = {"*"}
    rows["keras", "tf.compat.v1.keras"] = {"*"}
    for row in [row for row in rows if f"{row[0]}.".startswith(("gan.", "keras.")) and "*" not in rows[row]]:
        del rows[row]
    whole = {package: home for (package, home), names in rows.items() if names == {"*"}}
    for (package, home), _ in list(rows.items()):
        # A `*` of a parent package covers it.
        parents = [
            parent
            for parent in whole
            if f"{package}.".startswith(f"{parent}.") and (parent, whole[parent]) != (package, home)
        ]
        if any(home == whole[parent] + package[len(parent) :] for parent in parents):
            del rows[package, home]
    return "".join(f"{package} {home} {' '.join(sorted(names))}\n" for (package, home), names in sorted(rows.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--successors"]:
        names = [line for path in sys.argv[2:] for line in Path(path).read_text(encoding="utf-8").split()]
        from estimator_pipeline.migrate.code.catalogue import contrib_names

        names += [*contrib_names().homes, *contrib_names().wholes]
        SUCCESSORS.write_text(successors(names), encoding="utf-8")
    else:
        DOCUMENT.write_text(page(), encoding="utf-8")
