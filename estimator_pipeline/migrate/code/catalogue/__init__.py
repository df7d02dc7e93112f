"""The catalogue: every construct of Estimator programs, its Keras replacement and the code for it.

`find` accepts a full name in any spelling and returns whether TensorFlow 2 with `compat.install()` has that spelling.
A test compares the rows with TensorFlow's API in both directions: every name of a row exists, and every public name of
tf.estimator and of V1's layers, losses, metrics, optimizers and hooks has a row.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping
from typing import NamedTuple

from estimator_pipeline.compat.moved_names.table import FILE, MovedNamesTable
from estimator_pipeline.migrate.code.catalogue.row import KINDS, Row, read_rows

__all__ = ["KINDS", "ROWS", "CatalogueMatch", "ContribNames", "Row", "contrib_names", "find", "is_private", "is_there",
           "is_v1_only", "moved_names", "private_modules", "row", "shared_names", "spell", "v1_names"]  # fmt: skip


def _text(name: str) -> str:
    """Return the text of a table of the catalogue."""
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


ROWS = tuple(read_rows(_text("constructs.txt")))
_BY_NAME = {row.name: row for row in ROWS}
_SPELLINGS = {name: row for row in ROWS for name in row.spellings}

# Names that tf and tf.compat.v1 both have, for different objects.
TWO_MEANINGS = frozenset(
    {
        *(f"summary.{name}" for name in ("audio", "histogram", "image", "scalar", "text")),
        "losses.Reduction",
        "losses.mean_squared_error",
        "metrics.mean_absolute_error",
        "metrics.mean_squared_error",
        "data.Iterator",
    }
)
# Prefixes in tf.contrib -> the later prefixes of the same names.
_CONTRIB_HOMES = {
    "tf.contrib.tpu.": "tf.compat.v1.estimator.tpu.",
    "tf.contrib.estimator.": "tf.estimator.",
    "tf.contrib.learn.": "tf.estimator.",
    "tf.contrib.distribute.": "tf.distribute.",
    "tf.contrib.losses.": "tf.compat.v1.losses.",
    "tf.contrib.summary.": "tf.compat.v1.summary.",
    "tf.contrib.feature_column.": "tf.feature_column.",
    "tf.contrib.data.": "tf.data.experimental.",
}
# Private packages -> the prefixes of the public names for what they define.
_PRIVATE_HOMES = {
    "tensorflow.python.estimator.": ("tf.estimator.", "tf.estimator.export.", "tf.estimator.experimental.",
                                     "tf.compat.v1.estimator.inputs.", "tf.compat.v1.estimator.tpu."),
    "tensorflow_estimator.": ("tf.estimator.", "tf.estimator.export.", "tf.estimator.experimental.",
                              "tf.compat.v1.estimator.inputs.", "tf.compat.v1.estimator.tpu."),
    "tensorflow.python.training.": ("tf.estimator.", "tf.compat.v1.train."),
    "tensorflow.python.feature_column.": ("tf.feature_column.",),
    "tensorflow.python.layers.": ("tf.compat.v1.layers.",),
    "tensorflow.python.summary.": ("tf.compat.v1.summary.",),
    "tensorflow.python.ops.losses.": ("tf.compat.v1.losses.",),
    "tensorflow.python.ops.metrics.": ("tf.compat.v1.metrics.",),
    "tensorflow.python.ops.": ("tf.compat.v1.",),
    "tensorflow.python.client.session.": ("tf.compat.v1.",),
}  # fmt: skip
# Equivalent packages; programs imported hooks and specs from these too.
_SAME = {
    "tensorflow_estimator.python.estimator.api._v1.estimator": "tf.compat.v1.estimator",
    "tensorflow_estimator.python.estimator.api._v2.estimator": "tf.estimator",
    "tensorflow_estimator._api.v1.estimator": "tf.compat.v1.estimator",
    "tensorflow_estimator._api.v2.estimator": "tf.estimator",
    "tensorflow_estimator.estimator": "tf.compat.v1.estimator",
    "tensorflow.compat.v1.contrib": "tf.contrib",
    "tensorflow.python.keras": "tf.keras",
    "tensorflow.contrib.keras": "tf.keras",
    "tensorflow.compat.v1": "tf.compat.v1",
    "tensorflow.compat.v2": "tf",
    "tensorflow_core": "tf",
    "tensorflow": "tf",
}


class CatalogueMatch(NamedTuple):
    """A row and the part of the name that matches it.

    Attributes:
        row: the row.
        spelled: the name as the program spells it: `tf.layers.dense`.
        exists: whether TensorFlow 2 under compat has an object with that name.
        ambiguous: whether TensorFlow 2 may have a different object with that name.
        public: the name of a V1 symbol below `tf.compat.v1.`, if the row covers all V1 symbols.
    """

    row: Row
    spelled: str
    exists: bool
    ambiguous: bool = False
    public: str = ""


@functools.cache
def v1_names() -> Mapping[str, str]:
    """Return name below tf.compat.v1 that tf lacks -> name below tf of the same object, or ""."""
    pairs = (line.partition(" = ") for line in _text("v1_names.txt").splitlines())
    return {name: successor for name, _, successor in pairs}


@functools.cache
def shared_names() -> frozenset[str]:
    """Return the names that tf and tf.compat.v1 have for different objects; a trailing dot marks a module.

    Functions with equal signatures and docstrings, which only differ in their decorators, count as the same object.
    """
    return frozenset(_text("shared_names.txt").splitlines())


@functools.cache
def private_modules() -> frozenset[str]:
    """Return the modules of tensorflow.python that both TensorFlow 2.15 and 2.21 have."""
    return frozenset(f"tensorflow.python.{line}" for line in _text("private_modules.txt").splitlines())


class ContribNames(NamedTuple):
    """The current names of tf.contrib: catalogue/contrib_names.txt, which tools/contrib_names.py writes.

    Attributes:
        homes: name below tf.contrib -> `tf.X`, `tf_slim.X`, or `contrib` for names that only
            estimator_pipeline.compat.contrib has.
        wholes: package below tf.contrib -> the module of tf_slim with all of its names.
        packages: the packages in estimator_pipeline.compat.contrib.
    """

    homes: Mapping[str, str]
    wholes: Mapping[str, str]
    packages: frozenset[str]


@functools.cache
def contrib_names() -> ContribNames:
    """Return the parsed table of contrib_names.txt."""
    homes: dict[str, str] = {}
    wholes: dict[str, str] = {}
    packages: set[str] = set()
    for line in _text("contrib_names.txt").splitlines():
        package, home, *names = line.split(" ")
        parts = package.split(".")
        packages.update(".".join(parts[:length]) for length in range(1, len(parts) + 1))
        for name in names:
            old, _, new = name.partition("=")
            if name == "*":
                wholes[package] = home
            elif name != ".":
                homes[f"{package}.{old}"] = home if home == "contrib" else f"{home}.{new or old}"
    return ContribNames(homes, wholes, frozenset(packages))


# The packages that compat restores, including the estimator package: see compat/bootstrap/import_aliases.py and
# compat/moved_names/moved_names.txt.
_PUT_BACK = (
    "tensorflow_estimator", "tensorflow.python.estimator", "tensorflow.python.distribute.estimator_training",
    "tensorflow._api.v2.compat.v1.estimator",
)  # fmt: skip


@functools.cache
def moved_names() -> MovedNamesTable:
    """Return the table of private names that compat redirects to their new modules."""
    return MovedNamesTable(FILE.read_text(encoding="utf-8"))


def is_there(dotted: str) -> bool:
    """Return whether a private module or name exists on every supported TensorFlow version under compat."""
    if any(dotted == name or dotted.startswith(name + ".") for name in _PUT_BACK):
        return True
    module = dotted.removesuffix(".*")
    above, _, name = module.rpartition(".")
    if above in moved_names() and (name in moved_names()[above].homes or name in moved_names()[above].gone):
        return name in moved_names()[above].homes
    if module in private_modules():
        return True
    for candidate in (module, above):
        if candidate in moved_names() and moved_names()[candidate].whole:
            return True
    if module in moved_names():
        return bool(moved_names()[module].homes)
    # `from package import name`: if the package contains only modules, the name is a module that was removed.
    return above in private_modules() and not any(other.startswith(above + ".") for other in private_modules())


def row(name: str) -> Row:
    """Return the row of a canonical name.

    Raises:
        KeyError: no row has the name.
    """
    return _BY_NAME[name]


def spell(dotted: str) -> str:
    """Return the usual spelling of a full name: `tensorflow.compat.v1.layers` is `tf.compat.v1.layers`."""
    for home, short in _SAME.items():
        if dotted == home or dotted.startswith(home + "."):
            dotted = short + dotted[len(home) :]
            break
    while dotted.startswith(("tf.compat.v1.compat.v1.", "tf.compat.v2.compat.")):
        dotted = "tf." + dotted.split(".", 3)[3]
    for again in ("tf.compat.v1.compat.v2.", "tf.compat.v2."):
        if dotted.startswith(again):
            dotted = "tf." + dotted[len(again) :]
    return dotted


def is_private(dotted: str) -> bool:
    """Return whether the full name of an import is private to TensorFlow."""
    return dotted.startswith(("tensorflow.python.", "tensorflow_estimator.python.", "tensorflow._api.")) and (
        not spell(dotted).startswith("tf.compat.v1.estimator") and not spell(dotted).startswith("tf.estimator")
    )


def is_v1_only(spelled: str) -> bool:
    """Return whether TensorFlow 1 had the name `tf.X`, and TensorFlow 2 has it only below tf.compat.v1."""
    if not spelled.startswith("tf.") or spelled.startswith(("tf.compat.", "tf.contrib")):
        return False
    below = spelled.removeprefix("tf.")
    if below in v1_names() or below.startswith("layers."):
        return True
    match = _SPELLINGS.get(spelled)
    return match is not None and match.name.startswith("tf.compat.v1.") and below not in TWO_MEANINGS


@functools.lru_cache(maxsize=100_000)
def find(dotted: str) -> CatalogueMatch | None:
    """Return the row of a full name or of its longest prefix with a row; None if it is not a construct.

    Args:
        dotted: the name with imports resolved: `tensorflow.estimator.ModeKeys.TRAIN`.
    """
    private = _private(dotted)
    if private is not None:
        return private
    parts = spell(dotted).split(".")
    if parts[0] != "tf" or len(parts) < 2:
        return None
    for length in range(len(parts), 1, -1):
        spelled = ".".join(parts[:length])
        match = _row_of(spelled)
        if match is not None:
            gone = spelled.startswith("tf.contrib")
            below = spelled.removeprefix("tf.")
            if match.name in ("tf.contrib", "tf.examples"):
                return CatalogueMatch(match, ".".join(parts), False)
            return CatalogueMatch(match, spelled, not gone and not is_v1_only(spelled), below in TWO_MEANINGS)
    return _v1_symbol(parts)


def _row_of(spelled: str) -> Row | None:
    match = _SPELLINGS.get(spelled)
    if match is not None and match.name != "tf.contrib":
        return match
    for home, now in _CONTRIB_HOMES.items():
        if spelled.startswith(home):
            moved = _SPELLINGS.get(now + spelled[len(home) :])
            if moved is not None:
                return moved
    return match


def _v1_symbol(parts: list[str]) -> CatalogueMatch | None:
    """Return the match of a V1 symbol that only the row for all V1 symbols covers."""
    v1 = parts[:3] == ["tf", "compat", "v1"]
    below = parts[3:] if v1 else parts[1:]
    for length in range(len(below), 0, -1):
        name = ".".join(below[:length])
        if name in v1_names():
            spelled = ("tf.compat.v1." if v1 else "tf.") + name
            return CatalogueMatch(row("v1 symbol"), spelled, v1, public=name)
    return None


def _private(dotted: str) -> CatalogueMatch | None:
    """Return the match of a name in a private module by its last part, if that is also a public name."""
    if not is_private(dotted):
        return None
    for home, publics in _PRIVATE_HOMES.items():
        if not dotted.startswith(home):
            continue
        parts = dotted.split(".")
        for position in range(len(parts) - 1, 1, -1):
            for public in publics:
                match = _SPELLINGS.get(public + parts[position])
                if match is not None and parts[position] not in ("estimator", "flags", "logging"):
                    return CatalogueMatch(match, ".".join(parts[: position + 1]), True)
        return None
    return None
