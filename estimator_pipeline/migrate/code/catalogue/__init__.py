"""The catalogue: every construct of Estimator programs, its Keras successor, what to write and how long it takes.

`find` answers for a full name as a program writes it, in any of its spellings, and says whether TensorFlow 2 with
`compat.install()` has it by that spelling. A test holds the rows against TensorFlow's real API, both ways: every name
of a row is there, and every public name of tf.estimator, and of V1's layers, losses, metrics, optimizers and hooks, has
a row.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping
from typing import NamedTuple

from estimator_pipeline.compat.moved_names.table import FILE, MovedNamesTable
from estimator_pipeline.migrate.code.catalogue import columns, estimators, graphs, hooks, layers, training
from estimator_pipeline.migrate.code.catalogue.row import KINDS, Row

__all__ = ["KINDS", "ROWS", "CatalogueMatch", "ContribNames", "Row", "contrib_names", "find", "is_private", "is_there",
           "is_v1_only", "moved_names", "private_modules", "row", "shared_names", "spell", "v1_names"]  # fmt: skip

ROWS: tuple[Row, ...] = (
    *estimators.ROWS,
    *hooks.ROWS,
    *columns.ROWS,
    *layers.ROWS,
    *training.ROWS,
    *graphs.ROWS,
)

# Names that tf and tf.compat.v1 both have, as two things.
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
# What lay below tf.contrib before it had a name of its own.
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
# Private packages -> where the public names of what they define are.
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
# Estimators had hooks and specs by these packages as well.
_SAME = {
    "tensorflow_estimator.python.estimator.api._v1.estimator": "tf.compat.v1.estimator",
    "tensorflow_estimator.python.estimator.api._v2.estimator": "tf.estimator",
    "tensorflow_estimator._api.v1.estimator": "tf.compat.v1.estimator",
    "tensorflow_estimator._api.v2.estimator": "tf.estimator",
    "tensorflow_estimator.estimator": "tf.compat.v1.estimator",
    "tensorflow.compat.v1.contrib": "tf.contrib",
    "tensorflow.compat.v1": "tf.compat.v1",
    "tensorflow.compat.v2": "tf",
    "tensorflow_core": "tf",
    "tensorflow": "tf",
}


class CatalogueMatch(NamedTuple):
    """A row, and what of the name led to it.

    Attributes:
        row: what is known.
        spelled: the name by which the program reaches it: `tf.layers.dense`.
        exists: whether TensorFlow 2 under compat has something by that name.
        ambiguous: whether that something may be TensorFlow 2's own thing of the same name.
        public: the name of a V1 symbol below `tf.compat.v1.`, where the row speaks of all of them.
    """

    row: Row
    spelled: str
    exists: bool
    ambiguous: bool = False
    public: str = ""


@functools.cache
def v1_names() -> Mapping[str, str]:
    """Name below tf.compat.v1 that tf does not have -> the name below tf of the same object, or ""."""
    text = importlib.resources.files(__package__).joinpath("v1_names.txt").read_text(encoding="utf-8")
    pairs = (line.partition(" = ") for line in text.splitlines())
    return {name: successor for name, _, successor in pairs}


@functools.cache
def shared_names() -> frozenset[str]:
    """Names that tf and tf.compat.v1 both have, as two things; with a dot behind it, a module of tf.compat.v1.

    Functions that differ by their decorators alone, with one signature and one docstring, are one thing.
    """
    text = importlib.resources.files(__package__).joinpath("shared_names.txt").read_text(encoding="utf-8")
    return frozenset(text.splitlines())


@functools.cache
def private_modules() -> frozenset[str]:
    """Modules of tensorflow.python that TensorFlow 2.15 and 2.21 both have."""
    text = importlib.resources.files(__package__).joinpath("private_modules.txt").read_text(encoding="utf-8")
    return frozenset(f"tensorflow.python.{line}" for line in text.splitlines())


class ContribNames(NamedTuple):
    """Where the names of tf.contrib are today: catalogue/contrib_names.txt, which tools/contrib_names.py writes.

    Attributes:
        homes: name below tf.contrib -> `tf.X`, `tf_slim.X`, or `contrib` for what estimator_pipeline.compat.contrib
            alone has.
        wholes: package below tf.contrib -> the module of tf_slim that has all of it.
        packages: packages that estimator_pipeline.compat.contrib has.
    """

    homes: Mapping[str, str]
    wholes: Mapping[str, str]
    packages: frozenset[str]


@functools.cache
def contrib_names() -> ContribNames:
    """Return the table."""
    homes: dict[str, str] = {}
    wholes: dict[str, str] = {}
    packages: set[str] = set()
    text = importlib.resources.files(__package__).joinpath("contrib_names.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
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


# What compat puts back, beside all of the estimator package: see compat/bootstrap/import_aliases.py and
# compat/moved_names/moved_names.txt.
_PUT_BACK = (
    "tensorflow_estimator", "tensorflow.python.estimator", "tensorflow.python.distribute.estimator_training",
    "tensorflow._api.v2.compat.v1.estimator",
)  # fmt: skip


@functools.cache
def moved_names() -> MovedNamesTable:
    """Return what compat finds where it is no longer."""
    return MovedNamesTable(FILE.read_text(encoding="utf-8"))


def is_there(dotted: str) -> bool:
    """Whether a private module, or what is imported from one, is there on every supported TensorFlow under compat."""
    if any(dotted == name or dotted.startswith(name + ".") for name in _PUT_BACK):
        return True
    module = dotted.removesuffix(".*")
    above, _, name = module.rpartition(".")
    if above in moved_names() and (name in moved_names()[above].homes or name in moved_names()[above].gone):
        return name in moved_names()[above].homes
    if module in private_modules():
        return True
    for one in (module, above):
        if one in moved_names() and moved_names()[one].whole:
            return True
    if module in moved_names():
        return bool(moved_names()[module].homes)
    # `from package import name`: a module that is gone, where the package holds nothing but modules.
    return above in private_modules() and not any(one.startswith(above + ".") for one in private_modules())


@functools.cache
def _spellings() -> Mapping[str, Row]:
    found: dict[str, Row] = {}
    for one in ROWS:
        for name in one.spellings:
            found.setdefault(name, one)
    return found


@functools.cache
def _by_name() -> Mapping[str, Row]:
    return {one.name: one for one in ROWS}


def row(name: str) -> Row:
    """Return the row of a canonical name.

    Raises:
        KeyError: there is none.
    """
    return _by_name()[name]


def spell(dotted: str) -> str:
    """Return a full name as people write it: `tensorflow.compat.v1.layers` is `tf.compat.v1.layers`."""
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
    """Whether a full name (of an import) reaches past TensorFlow's public face."""
    return dotted.startswith(("tensorflow.python.", "tensorflow_estimator.python.", "tensorflow._api.")) and (
        not spell(dotted).startswith("tf.compat.v1.estimator") and not spell(dotted).startswith("tf.estimator")
    )


def is_v1_only(spelled: str) -> bool:
    """Whether `tf.X` is a name that TensorFlow 1 had, and TensorFlow 2 has below tf.compat.v1 alone."""
    if not spelled.startswith("tf.") or spelled.startswith(("tf.compat.", "tf.contrib")):
        return False
    below = spelled.removeprefix("tf.")
    if below in v1_names() or below.startswith("layers."):
        return True
    found = _spellings().get(spelled)
    return found is not None and found.name.startswith("tf.compat.v1.") and below not in TWO_MEANINGS


@functools.lru_cache(maxsize=100_000)
def find(dotted: str) -> CatalogueMatch | None:
    """Return the row of a full name, or of the longest part of it that has one; None for what is no construct.

    Args:
        dotted: the name as the imports of a program lead to it: `tensorflow.estimator.ModeKeys.TRAIN`.
    """
    private = _private(dotted)
    if private is not None:
        return private
    parts = spell(dotted).split(".")
    if parts[0] != "tf" or len(parts) < 2:
        return None
    for length in range(len(parts), 1, -1):
        spelled = ".".join(parts[:length])
        found = _row_of(spelled)
        if found is not None:
            gone = spelled.startswith("tf.contrib")
            below = spelled.removeprefix("tf.")
            if found.name in ("tf.contrib", "tf.examples"):
                return CatalogueMatch(found, ".".join(parts), False)
            return CatalogueMatch(found, spelled, not gone and not is_v1_only(spelled), below in TWO_MEANINGS)
    return _v1_symbol(parts)


def _row_of(spelled: str) -> Row | None:
    found = _spellings().get(spelled)
    if found is not None and found.name != "tf.contrib":
        return found
    for home, now in _CONTRIB_HOMES.items():
        if spelled.startswith(home):
            moved = _spellings().get(now + spelled[len(home) :])
            if moved is not None:
                return moved
    return found


def _v1_symbol(parts: list[str]) -> CatalogueMatch | None:
    """Return a V1 symbol without a row of its own."""
    v1 = parts[:3] == ["tf", "compat", "v1"]
    below = parts[3:] if v1 else parts[1:]
    for length in range(len(below), 0, -1):
        name = ".".join(below[:length])
        if name in v1_names():
            spelled = ("tf.compat.v1." if v1 else "tf.") + name
            return CatalogueMatch(row("v1 symbol"), spelled, v1, public=name)
    return None


def _private(dotted: str) -> CatalogueMatch | None:
    """Return what a private module defines, by the last part of its name, where that is a public name too."""
    if not is_private(dotted):
        return None
    for home, publics in _PRIVATE_HOMES.items():
        if not dotted.startswith(home):
            continue
        parts = dotted.split(".")
        for position in range(len(parts) - 1, 1, -1):
            for public in publics:
                found = _spellings().get(public + parts[position])
                if found is not None and parts[position] not in ("estimator", "flags", "logging"):
                    return CatalogueMatch(found, ".".join(parts[: position + 1]), True)
        return None
    return None
