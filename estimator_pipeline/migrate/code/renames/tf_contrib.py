"""New names for tf.contrib, in TensorFlow, tf-slim, TF-GAN or estimator_pipeline.

The table is `contrib_names.txt` of the catalogue: each name is the object that `exec --tf1` provides for it. The new
name is TensorFlow's public name if there is one; else that of tf-slim (`import tf_slim`) or TF-GAN; else `contrib.X`
(`from estimator_pipeline.compat import contrib`). Names outside the table are unchanged: under `exec --tf1`, the
tf.contrib files of TensorFlow 1.15 may provide them.
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
# The modules whose existing imports may have the names of the new imports.
_SAME = (*_LIBRARIES, FACADE, "tensorflow.contrib")

# Functions that compute the same as a well-known public function.
_SAME_NUMBERS = {
    "layers.xavier_initializer": "tf.compat.v1.glorot_uniform_initializer",
    "layers.l2_regularizer": "tf.keras.regularizers.l2",
    "layers.l1_regularizer": "tf.keras.regularizers.l1",
}


class Written(NamedTuple):
    """The new text of a name.

    Attributes:
        text: the new text.
        length: the number of parts of the name that it replaces, including `contrib`.
        needs: the import statement that the text needs, or "".
        spans: arguments of the call that change too: (node, text before it, text after it).
    """

    text: str
    length: int
    needs: str = ""
    spans: tuple[tuple[cst.CSTNode, str, str], ...] = ()


def written(name: str) -> str | None:
    """Return the new name for a name below tf.contrib, or for its longest known prefix, or None."""
    parts = name.split(".")
    match = _home(parts)
    if match is None:
        return None
    return match[0] if match[0] != "contrib" else ".".join(["contrib", *parts[: match[1]]])


def of_chain(tree: Tree, root: str, v1: bool, parts: list[str], call: cst.Call | None) -> Written | None:
    """Return the new text for `tf.contrib.layers.conv2d`, or for the prefix that is a class, function or module.

    Args:
        tree: the file, in which the new import must not hide a name.
        root: the file's name for TensorFlow.
        v1: whether that name is tensorflow.compat.v1.
        parts: the parts of the name below tf.contrib.
        call: the call of the whole name, if it is called.

    Returns:
        None if the table does not have the name, or if its import would hide a name of the file.
    """
    if ".".join(parts) in _SAME_NUMBERS:
        same = _same_numbers(_SAME_NUMBERS[".".join(parts)], call)
        if same is not None:
            return Written(_below(same[0], root, v1), len(parts) + 1, spans=same[1])
    match = _home(parts)
    if match is None:
        return None
    home, length = match
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
    """Return the new module for `import tensorflow.contrib.X as y`."""
    if name == "tensorflow.contrib":
        return FACADE
    below = name.removeprefix("tensorflow.contrib.")
    match = _home(below.split("."), whole=True)
    if match is None:
        return None
    return f"{FACADE}.{below}" if match[0] == "contrib" else _as_module(match[0])


def of_imported_names(module: str, names: list[str]) -> tuple[str, str] | None:
    """Return the new (module, name) for `from tensorflow.contrib.X import a, b`.

    The name matters only for a single import whose name changed: `from tensorflow.contrib import slim` becomes
    `import tf_slim as slim`, with the module "".
    """
    package = module.removeprefix("tensorflow.contrib").lstrip(".")
    homes = []
    for name in names:
        match = _home([*filter(None, package.split(".")), name], whole=True)
        if match is None:
            return None
        homes.append(match[0])
    parents = {home.rpartition(".")[0] for home in homes}
    if len(parents) == 1 and "contrib" not in homes:
        (parent,) = parents
        last = homes[0].rpartition(".")[2]
        if len(names) == 1 or all(home.rpartition(".")[2] == name for home, name in zip(homes, names, strict=True)):
            return _as_module(parent), last
    return f"{FACADE}.{package}".rstrip("."), names[0]


def _home(parts: list[str], *, whole: bool = False) -> tuple[str, int] | None:
    """Return (new home, number of parts it covers); with `whole`, for imports, only if it covers all parts."""
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
    """Return `tf.X` with the file's name for TensorFlow; tf.compat.v1 has the table's names of tf as well."""
    below = home.removeprefix(_V1) if v1 and home.startswith(_V1) else home.removeprefix("tf.")
    return f"{root}.{below}"


def _as_module(home: str) -> str:
    return f"tensorflow{home[2:]}" if home == "tf" or home.startswith("tf.") else home


def _is_free(tree: Tree, name: str) -> bool:
    """Return whether an import may bind a name: it is unused in the file, or bound by the same import."""
    scopes = (tree.scope, *tree.scopes.values())
    return all(
        binding.kind in ("import", "from") and (f"{binding.module}." * (binding.kind == "from") + binding.name) in _SAME
        for scope in scopes
        for binding in scope.names.get(name, ())
    )


def _same_numbers(
    after: str, call: cst.Call | None
) -> tuple[str, tuple[tuple[cst.CSTNode, str, str], ...]] | None:  # fmt: skip
    """Return the new name and the changed arguments; None if it would compute something different for this call."""
    if after.endswith("glorot_uniform_initializer"):
        # The default is uniform. contrib's normal variant scales the truncated normal differently than TensorFlow 2.
        keywords = {arg.keyword.value for arg in call.args if arg.keyword} if call is not None else set()
        plain = call is not None and all(arg.keyword is not None for arg in call.args)
        return (after, ()) if plain and keywords <= {"seed", "dtype"} else None
    arg = call.args[0] if call is not None and len(call.args) == 1 else None
    if arg is None or arg.star or arg.keyword is not None:
        return None
    if after.endswith("l1"):
        return after, ()
    # contrib computes scale * l2_loss(w), and l2_loss is half the sum of squares.
    simple = isinstance(arg.value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Float, cst.Integer))
    wrap = ("0.5 * ", "") if simple else ("0.5 * (", ")")
    return after, ((arg.value, *wrap),)
