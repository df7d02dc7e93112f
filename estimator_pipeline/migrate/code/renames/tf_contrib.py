"""What is written for a name of tf.contrib: where TensorFlow or tf-slim has it today, or estimator_pipeline.

The table is the catalogue's (`contrib_names.txt`): each name leads to the very object that `exec --tf1` gives a program
for it. Where TensorFlow has that object by a public name, that is written; else tf-slim's, by `import tf_slim`, or
TF-GAN's; else `contrib.X`, by `from estimator_pipeline.compat import contrib`. A name that the table does not have
stays: TensorFlow 1.15's own files of tf.contrib may have it, under `exec --tf1`.
"""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.syntax import Tree

__all__ = ["FACADE", "Written", "of_chain", "of_import", "of_imported_names", "written"]

FACADE = "estimator_pipeline.compat.contrib"
_LIBRARIES = ("tf_slim", "tensorflow_gan")
_V1 = "tf.compat.v1."
# What may have the names of the imports already.
_SAME = (*_LIBRARIES, FACADE, "tensorflow.contrib")

# Functions whose arithmetic is that of a public one, which a reader knows.
_SAME_NUMBERS = {
    "layers.xavier_initializer": "tf.compat.v1.glorot_uniform_initializer",
    "layers.l2_regularizer": "tf.keras.regularizers.l2",
    "layers.l1_regularizer": "tf.keras.regularizers.l1",
}


class Written(NamedTuple):
    """The new text of a name.

    Attributes:
        text: what stands there.
        length: of how many parts of the name, `contrib` among them.
        needs: the import statement that the text needs, or "".
        spans: further pieces of a call that change with it: (node, text before it, text behind it).
    """

    text: str
    length: int
    needs: str = ""
    spans: tuple[tuple[cst.CSTNode, str, str], ...] = ()


def written(name: str) -> str | None:
    """Where a name below tf.contrib is, or the class, function or package that it is below; None for nowhere."""
    parts = name.split(".")
    found = _home(parts)
    if found is None:
        return None
    return found[0] if found[0] != "contrib" else ".".join(["contrib", *parts[: found[1]]])


def of_chain(tree: Tree, root: str, v1: bool, parts: list[str], call: cst.Call | None) -> Written | None:
    """Return what is written for `tf.contrib.layers.conv2d`, or for as much of it as is a class, function or module.

    Args:
        tree: the file, whose own names are left alone.
        root: by which name it has TensorFlow.
        v1: whether that name is tensorflow.compat.v1.
        parts: what is below tf.contrib.
        call: the call of the whole name, where it is one.

    Returns:
        None where the table does not have it, or where its import would take a name of the program's own.
    """
    if ".".join(parts) in _SAME_NUMBERS:
        same = _same_numbers(_SAME_NUMBERS[".".join(parts)], call)
        if same is not None:
            return Written(_below(same[0], root, v1), len(parts) + 1, spans=same[1])
    found = _home(parts)
    if found is None:
        return None
    home, length = found
    if home.startswith("tf."):
        return Written(_below(home, root, v1), length + 1)
    library = home.split(".")[0]
    if library in _LIBRARIES:
        return Written(home, length + 1, f"import {library}") if _is_free(tree, library) else None
    for alias in ("contrib", "tf_contrib"):
        if _is_free(tree, alias):
            needs = f"from estimator_pipeline.compat import contrib{f' as {alias}' if alias != 'contrib' else ''}"
            return Written(".".join([alias, *parts[:length]]), length + 1, needs)
    return None


def of_import(name: str) -> str | None:
    """Return the module that is imported for `import tensorflow.contrib.X as y`."""
    if name == "tensorflow.contrib":
        return FACADE
    below = name.removeprefix("tensorflow.contrib.")
    found = _home(below.split("."), whole=True)
    if found is None:
        return None
    return f"{FACADE}.{below}" if found[0] == "contrib" else _as_module(found[0])


def of_imported_names(module: str, names: list[str]) -> tuple[str, str] | None:
    """Return (module, name) from which `from tensorflow.contrib.X import a, b` takes its names today.

    The name is that of a single one, where today it is another: `from tensorflow.contrib import slim` is
    `import tf_slim as slim`, for which the module is "".
    """
    package = module.removeprefix("tensorflow.contrib").lstrip(".")
    homes = []
    for name in names:
        found = _home([*filter(None, package.split(".")), name], whole=True)
        if found is None:
            return None
        homes.append(found[0])
    parents = {home.rpartition(".")[0] for home in homes}
    if len(parents) == 1 and "contrib" not in homes:
        (parent,) = parents
        last = homes[0].rpartition(".")[2]
        if len(names) == 1 or all(home.rpartition(".")[2] == name for home, name in zip(homes, names, strict=True)):
            return _as_module(parent), last
    return f"{FACADE}.{package}".rstrip("."), names[0]


def _home(parts: list[str], *, whole: bool = False) -> tuple[str, int] | None:
    """(home, of how many parts). `whole`: of all of them, for an import."""
    table = catalogue.contrib_names()
    for length in range(len(parts), 0, -1):
        home = table.homes.get(".".join(parts[:length]))
        if home is not None:
            return None if whole and length < len(parts) else (home, length)
    for length in range(len(parts), 0, -1):
        home = table.wholes.get(".".join(parts[:length]))
        if home is not None:
            return ".".join([home, *parts[length:]]), len(parts)
    return ("contrib", len(parts)) if ".".join(parts) in table.packages else None


def _below(home: str, root: str, v1: bool) -> str:
    """`tf.X` by the name that the file has for TensorFlow; tf.compat.v1 has what the table has of tf by the same."""
    below = home.removeprefix(_V1) if v1 and home.startswith(_V1) else home.removeprefix("tf.")
    return f"{root}.{below}"


def _as_module(home: str) -> str:
    return f"tensorflow{home[2:]}" if home == "tf" or home.startswith("tf.") else home


def _is_free(tree: Tree, name: str) -> bool:
    """Whether a file has nothing by a name that an import is to bind, or has that import already."""
    scopes = (tree.scope, *tree.scopes.values())
    return all(
        binding.kind in ("import", "from") and (f"{binding.module}." * (binding.kind == "from") + binding.name) in _SAME
        for scope in scopes
        for binding in scope.names.get(name, ())
    )


def _same_numbers(
    after: str, call: cst.Call | None
) -> tuple[str, tuple[tuple[cst.CSTNode, str, str], ...]] | None:  # fmt: skip
    """Return the new name, and what of the call changes with it; None where this call means something else by it."""
    if after.endswith("glorot_uniform_initializer"):
        # Uniform by default; the normal one of contrib is no truncated normal of today's scale.
        keywords = {arg.keyword.value for arg in call.args if arg.keyword} if call is not None else set()
        plain = call is not None and all(arg.keyword is not None for arg in call.args)
        return (after, ()) if plain and keywords <= {"seed", "dtype"} else None
    arg = call.args[0] if call is not None and len(call.args) == 1 else None
    if arg is None or arg.star or arg.keyword is not None:
        return None
    if after.endswith("l1"):
        return after, ()
    # contrib's is scale * l2_loss(w), and l2_loss is half of the sum of squares.
    simple = isinstance(arg.value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Float, cst.Integer))
    wrap = ("0.5 * ", "") if simple else ("0.5 * (", ")")
    return after, ((arg.value, *wrap),)
