"""Renames of TensorFlow 1 names to TensorFlow 2: `tf.layers.dense` becomes `tf.compat.v1.layers.dense`.

A file that uses a name that only TensorFlow 1 has, with `import tensorflow as tf`, was written for TensorFlow 1: all of
its names have their TensorFlow 1 meaning. Names that TensorFlow 2 lacks are renamed, and so are names with a different
meaning in TensorFlow 2 (`tf.argmax`, `tf.estimator.Estimator`). The new name is the same object as the old one, as the
tests of the catalogue prove. The result is still an Estimator program, with the same numeric results.

A shared name is unchanged where no argument of the call distinguishes its two meanings: `tf.reduce_mean(x)`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.constructs import Construct
from estimator_pipeline.migrate.code.analysis.name_resolution import ClassOf, Program
from estimator_pipeline.migrate.code.analysis.syntax import Binding, Scope, Tree, dotted_of
from estimator_pipeline.migrate.code.others import Others
from estimator_pipeline.migrate.code.renames import python_names, tf_contrib
from estimator_pipeline.migrate.code.renames.tensorflow_1 import is_guarded, root_of_tensorflow

__all__ = ["ON_THE_WAY", "RenamedName", "decide", "plan", "plan_aliases", "plan_classes"]

_V1 = "tensorflow.compat.v1"
# Methods that `tf.compat.v1.data.Dataset` inherits from `tf.data.Dataset`, so that they return a TensorFlow 2 dataset.
_GIVE_2 = ("enumerate", "rebatch", "ragged_batch", "sparse_batch", "ignore_errors", "group_by_window",
           "bucket_by_sequence_length", "snapshot", "scan", "take_while", "unique", "rejection_resample")  # fmt: skip
_ITERATORS = ("make_one_shot_iterator", "make_initializable_iterator")

ON_THE_WAY = re.compile(r"\w+\.(compat\.v1|estimator)\b")
"""Renamed names that the conversion to Keras replaces again."""

# Functions that are the same in tf and tf.compat.v1 with these arguments: (number of positional arguments, keywords).
# The V1 function has further arguments, older names or a different order after these; the defaults are the same.
_REDUCE = (3, ("axis", "keepdims", "name"))
ONE_BY_ARGUMENTS: dict[str, tuple[int, tuple[str, ...]]] = {
    **{f"{prefix}reduce_{name}": _REDUCE for prefix in ("", "math.")
       for name in ("all", "any", "logsumexp", "max", "mean", "min", "prod", "sum")},
    "argmax": (2, ("axis", "output_type", "name")),
    "argmin": (2, ("axis", "output_type", "name")),
    "boolean_mask": (2, ("axis", "name")),
    "constant": (2, ("dtype", "name")),
    "convert_to_tensor": (2, ("dtype", "name", "dtype_hint")),
    "expand_dims": (2, ("axis", "name")),
    "gather": (2, ("axis", "batch_dims", "name")),
    "gather_nd": (2, ("batch_dims", "name")),
    "math.argmax": (2, ("axis", "output_type", "name")),
    "nn.log_softmax": (2, ("axis", "name")),
    "nn.softmax": (2, ("axis", "name")),
    "ones_like": (2, ("dtype", "name")),
    "pad": (3, ("constant_values", "name")),
    "shape": (1, ("out_type", "name")),
    "size": (1, ("out_type", "name")),
    "squeeze": (2, ("axis", "name")),
    "transpose": (2, ("perm", "conjugate", "name")),
    "zeros_like": (2, ("dtype", "name")),
}  # fmt: skip


class RenamedName(NamedTuple):
    """A name and its new spelling.

    Attributes:
        node: the node that is replaced.
        before, after: the old and the new text.
        spans: arguments of the call that change too: (node, text before it, text after it).
        needs: the import that the new text needs.
        function_of: the method call that becomes a call of the function `after`.
    """

    node: cst.CSTNode
    before: str
    after: str
    spans: tuple[tuple[cst.CSTNode, str, str], ...] = ()
    needs: str = ""
    function_of: cst.Call | None = None


def plan(program: Program, tree: Tree) -> None:
    """Collect the renames of a TensorFlow 1 file in `tree.renamed`, by the node that the program uses.

    Requires `tree.tensorflow_1`, which the scan sets.
    """
    if not tree.tensorflow_1 or not tree.verbatim:
        return
    for node in tree.chains:
        if not isinstance(node, cst.Attribute) or is_guarded(tree, node):
            continue
        module = _module_of(program, node, tree.where[node])
        if module in python_names.MODULES:
            _of_python(tree, node, module)
            continue
        if module == _V1 and (dotted_of(node) or "").split(".")[1] != "contrib":
            continue
        renamed = _of_chain(tree, node, module == _V1) if module else None
        if renamed is not None:
            tree.renamed[node] = renamed
    for alias, binding in tree.imports:
        statement = tree.parents.get(alias)
        if binding.level or not isinstance(alias, cst.ImportAlias) or is_guarded(tree, alias):
            continue
        if isinstance(statement, cst.ImportFrom):
            renamed = _of_imported_names(tree, statement, binding)
        else:
            renamed = _of_imported_module(alias, binding)
        if renamed is not None:
            tree.renamed[alias] = tree.renamed_parts[alias.name] = renamed
    for node in tree.chains:
        if isinstance(node, cst.Attribute) and node.attr.value in _ITERATORS:
            # The rename at the start of a chain like `tf.data.Dataset.range(3).batch(2)`.
            starts = (tree.renamed.get(part) for part, _ in program.chain(node.value, tree.where[node]))
            origin = next((renamed for renamed in starts if renamed is not None), None)
            if origin is None or _is_of_2(program, node.value, tree.where[node]):
                _of_iterator(program, tree, node)
            else:
                tree.renamed_parts[node.attr] = origin
        elif isinstance(node, cst.Attribute) and node.attr.value == "tostring":
            _of_array(tree, node)


def plan_classes(program: Program, trees: list[Tree]) -> None:
    """Mark the classes with a renamed base, directly or through a base class in any file."""
    classes = {node: tree for tree in trees for node in tree.classes}
    known: dict[cst.ClassDef, RenamedName | None] = {}

    def of(node: cst.ClassDef) -> RenamedName | None:
        if node not in known:
            known[node] = None  # for a class that inherits from itself
            tree = classes[node]
            renamed = [tree.renamed[arg.value] for arg in node.bases if arg.value in tree.renamed]
            for base in program.bases(ClassOf(node, tree)):
                if isinstance(base, ClassOf):
                    renamed += [above] if (above := of(base.node)) is not None else []
            known[node] = renamed[0] if renamed else None
        return known[node]

    for node, tree in classes.items():
        renamed = of(node)
        if renamed is not None:
            tree.renamed_parts[node.name] = renamed


def plan_aliases(trees: list[Tree], others: Others, stage: str) -> None:
    """Store the new spellings by the old names, for constructs that a program reaches through its own variables."""
    names = {
        renamed.before.partition(".")[2]: [tree.source.path, renamed.after]
        for tree in trees for node, renamed in tree.renamed.items() if isinstance(node, cst.Attribute)
    }  # fmt: skip
    others.reported.update({f"{stage}: new name of {below}": new for below, new in names.items()})

    def new_name(below: str) -> RenamedName | None:
        latest = others.last(f"{stage}: new name of {below}", names.get(below))
        return None if latest is None else RenamedName(cst.Name("tf"), below, latest[1])

    for tree in trees:
        tree.new_name = new_name


def _is_of_2(program: Program, node: cst.BaseExpression, scope: Scope) -> bool:
    """Return whether a dataset may come from a method that returns a TensorFlow 2 dataset for a TensorFlow 1 one."""
    values = [node]
    if isinstance(node, cst.Name):
        bindings = program.bindings(node.value, scope)
        values = [binding.node for binding in bindings if isinstance(binding.node, cst.BaseExpression)]
    for value in values:
        while isinstance(value, (cst.Call, cst.Attribute)):
            if isinstance(value, cst.Attribute) and value.attr.value in _GIVE_2:
                return True
            value = value.func if isinstance(value, cst.Call) else value.value
    return False


def _of_iterator(program: Program, tree: Tree, node: cst.Attribute) -> None:
    """Rename `data.make_one_shot_iterator()` of an unknown dataset to the function, which accepts both versions."""
    call, root = tree.parents.get(node), root_of_tensorflow(program, tree)
    if root is None or not isinstance(call, cst.Call) or call.func is not node or call.args or is_guarded(tree, node):
        return
    after = f"{root}.compat.v1.data.{node.attr.value}"
    renamed = RenamedName(node.attr, node.attr.value, after, function_of=call)
    tree.renamed[node] = tree.renamed_parts[node.attr] = renamed


def _of_array(tree: Tree, node: cst.Attribute) -> None:
    """Rename `array.tostring()`, which NumPy 2.3 removed."""
    call = tree.parents.get(node)
    if isinstance(call, cst.Call) and call.func is node and not call.args:
        tree.renamed[node] = RenamedName(node.attr, "tostring", "tobytes")


def _module_of(program: Program, node: cst.Attribute, scope: Scope) -> str:
    """Return the module of a chain's first name: tensorflow, tensorflow.compat.v1, numpy or collections; else ""."""
    root: cst.BaseExpression = node
    while isinstance(root, cst.Attribute):
        root = root.value
    if not isinstance(root, cst.Name):
        return ""
    known = {"tensorflow", _V1, *python_names.MODULES}
    modules = {
        b.module if b.kind == "import" else f"{b.module}.{b.name}" if b.kind == "from" else ""
        for b in program.bindings(root.value, scope)
    }
    if not modules & known:  # imported by `from nets import *`
        modules = {getattr(value, "dotted", "") for value in program.look_up(root.value, scope)}
    return next(iter(modules)) if len(modules) == 1 and modules <= known else ""


def _of_python(tree: Tree, node: cst.Attribute, module: str) -> None:
    if not isinstance(node.value, cst.Name):
        return
    root, name = node.value.value, node.attr.value
    after = python_names.of_chain(module, root, name)
    scopes = (tree.scope, *tree.scopes.values())
    if after is not None and not any(after in scope.names for scope in scopes):
        tree.renamed[node] = RenamedName(node, f"{root}.{name}", after)


def _of_chain(tree: Tree, node: cst.Attribute, v1: bool) -> RenamedName | None:
    parts = (dotted_of(node) or "").split(".")
    root, below = parts[0], parts[1:]
    if below[0] == "compat":
        return None
    parent = tree.parents.get(node)
    call = parent if isinstance(parent, cst.Call) and parent.func is node else None
    if below[0] == "contrib":
        new = tf_contrib.of_chain(tree, root, v1, below[1:], call) if below[1:] else None
        if new is None:
            return None
        before = ".".join([root, *below[: new.length]])
        return RenamedName(_part(node, len(below) - new.length), before, new.text, new.spans, new.needs)
    for length in range(len(below), 0, -1):
        name, whole = ".".join(below[:length]), length == len(below)
        part = _part(node, len(below) - length)
        after = _successor(name, whole, call if whole else None)
        if whole and name not in catalogue.shared_names() and isinstance(parent, cst.Assign):
            target = parent.targets[0].target  # `layers = tf.keras.layers`: the attributes used of it decide
            if isinstance(target, cst.Name) and f"{name}." in catalogue.shared_names() and (
                not _asks_for_v1(tree, name, target.value)
            ):  # fmt: skip
                return None
        if after is not None:
            return RenamedName(part, f"{root}.{name}", f"{root}.{after}") if after != name else None
    return None


def _part(node: cst.CSTNode, less: int) -> cst.CSTNode:
    """Return the chain without its last `less` parts."""
    for _ in range(less):
        node = node.value  # type: ignore[attr-defined]
    return node


def _successor(name: str, whole: bool, call: cst.Call | None) -> str | None:
    """Return the name below tf with the old meaning of `tf.name`, which may be the same name; None if unknown."""
    if name in catalogue.v1_names():
        return catalogue.v1_names()[name] or f"compat.v1.{name}"
    if catalogue.is_v1_only(f"tf.{name}"):
        match = catalogue.find(f"tensorflow.{name}")
        return f"compat.v1.{name}" if match is not None and match.spelled == f"tf.{name}" else None
    if name in catalogue.shared_names():
        return name if call is not None and _is_same(name, call) else f"compat.v1.{name}"
    if whole and f"{name}." in catalogue.shared_names():
        return f"compat.v1.{name}"  # a module without an attribute: `losses = tf.losses`
    return None


def _is_same(name: str, call: cst.Call) -> bool:
    """Return whether the functions of tf and tf.compat.v1 do the same with the arguments of a call."""
    if name not in ONE_BY_ARGUMENTS:
        return False
    most, names = ONE_BY_ARGUMENTS[name]
    positional = [arg for arg in call.args if arg.keyword is None]
    keywords = [arg.keyword.value for arg in call.args if arg.keyword is not None]
    # A first argument that is passed by keyword may have a name that only V1 has.
    return (
        1 <= len(positional) <= most
        and not any(arg.star for arg in call.args)
        and all(keyword in names for keyword in keywords)
    )


def _of_imported_module(alias: cst.ImportAlias, binding: Binding) -> RenamedName | None:
    """Return the rename of `import tensorflow.contrib.slim as slim`."""
    if alias.asname is None or not f"{binding.name}.".startswith("tensorflow.contrib."):
        return None
    module = tf_contrib.of_import(binding.name)
    return None if module is None else RenamedName(alias.name, binding.name, module)


def _of_imported_names(tree: Tree, statement: cst.ImportFrom, binding: Binding) -> RenamedName | None:
    """Return the rename of the module of `from tensorflow import layers`; tensorflow.compat.v1 has all of the names."""
    module, shared = binding.module, catalogue.shared_names()
    assert not isinstance(statement.names, cst.ImportStar) and statement.module is not None
    names = {name.evaluated_name: name.evaluated_alias or name.evaluated_name for name in statement.names}
    after = None
    if module in python_names.MODULES:
        after = python_names.of_imported_names(module, [*names])
    elif f"{module}.{binding.name}.".startswith("tensorflow.contrib.") or (module, binding.name) == (_V1, "contrib"):
        return _of_names_of_contrib(statement, module)
    elif module == "tensorflow" and not {"contrib", "compat"} & names.keys() and any(
        name in catalogue.v1_names() or name in shared or (f"{name}." in shared and _asks_for_v1(tree, name, bound))
        for name, bound in names.items()
    ):  # fmt: skip
        after = _V1
    return None if after is None else RenamedName(statement.module, module, after)


def _asks_for_v1(tree: Tree, module: str, bound: str) -> bool:
    """Return whether the file uses an attribute of a module that differs below tf.compat.v1.

    If the file uses no attribute of the module, a different file may.

    Args:
        bound: the name that the module is bound to.
    """
    used = False
    for node in tree.chains:
        root, *below = (dotted_of(node) or "").split(".")
        if root != bound or isinstance(tree.parents.get(node), cst.AssignTarget):
            continue
        used = True
        names = [".".join([module, *below[:length]]) for length in range(len(below) + 1)]
        if any(_successor(name, name == names[-1], None) not in (None, name) for name in names):
            return True
    return not used


def _of_names_of_contrib(statement: cst.ImportFrom, module: str) -> RenamedName | None:
    assert not isinstance(statement.names, cst.ImportStar) and statement.module is not None
    names = [name.evaluated_name for name in statement.names]
    if module in ("tensorflow", _V1):
        home = tf_contrib.FACADE.rpartition(".")[0]
        return RenamedName(statement.module, module, home) if names == ["contrib"] else None
    new = tf_contrib.of_imported_names(module, names)
    if new is None:
        return None
    home, name = new
    if home and name == names[0]:
        return RenamedName(statement.module, module, home)
    # A single import whose name changed.
    bound = statement.names[0].evaluated_alias or names[0]
    after = f"from {home} import {name}" if home else f"import {name}"
    after += f" as {bound}" if bound != name else ""
    return RenamedName(statement, f"from {module} import {names[0]}", after)


def decide(construct: Construct) -> tuple[str, str]:
    """Return (the new name of a construct, why it has none); both "" for other constructs."""
    renamed = _renamed_at(construct)
    if renamed is None:
        gone = construct.tree.tensorflow_1 and not construct.match.exists
        return "", "TensorFlow 2 has no equivalent name" if gone else ""
    keras = construct.tree.keras
    by_keras = keras is not None and construct.node in keras.gone and ON_THE_WAY.match(renamed.after)
    return "" if by_keras else renamed.after, ""


def _renamed_at(construct: Construct) -> RenamedName | None:
    """Return the rename of a construct: of its node, base class, call, import or alias."""
    tree, node = construct.tree, construct.node
    planned = tree.renamed
    if node in planned or node in tree.renamed_parts:
        return planned.get(node) or tree.renamed_parts[node]
    if isinstance(node, cst.Call):  # getattr(tf.train, "AdamOptimizer")
        return next((planned[arg.value] for arg in node.args[:1] if arg.value in planned), None)
    if construct.match.exists and not construct.match.ambiguous:
        return None
    if construct.call is not None and node is not construct.call.func and construct.call.func in planned:
        return planned[construct.call.func]  # a field of a renamed class
    below = construct.match.spelled.removeprefix("tf.")
    if below.startswith("contrib."):
        return _of_contrib_by_another_name(construct, below.removeprefix("contrib."))
    by_its_root = _by_its_root(tree, node if construct.call is None else construct.call.func)
    if by_its_root is None:
        return None
    return by_its_root if isinstance(by_its_root, RenamedName) else tree.new_name(below)


def _of_contrib_by_another_name(construct: Construct, below: str) -> RenamedName | None:
    """Return the rename of a tf.contrib name that is used through an import, a variable or a subclass.

    Examples are `slim.conv2d`, and `conv(x)` after `conv = slim.conv2d`.
    """
    tree, node = construct.tree, construct.node
    after = tf_contrib.written(below)
    root = _by_its_root(tree, node if construct.call is None else construct.call.func)
    if after is None or (root is None and all(node is not class_def.name for class_def in tree.classes)):
        return None
    return root if isinstance(root, RenamedName) else RenamedName(node, construct.match.spelled, after)


def _by_its_root(tree: Tree, node: cst.CSTNode) -> RenamedName | bool | None:
    """Return the rename of the root of `layers.dense`, after `from tensorflow import layers` or `layers = tf.layers`.

    True for other variables of the program: `Cell(8)` after `Cell = tf.nn.rnn_cell.GRUCell if small else ...`.
    """
    scope: Scope | None = tree.where.get(node)
    while isinstance(node, cst.Attribute):
        node = node.value
    while scope is not None and isinstance(node, cst.Name):
        if node.value in scope.names:
            bindings = scope.names[node.value]
            renamed = [tree.renamed.get(binding.node) for binding in bindings]
            if len(renamed) == 1 and renamed[0] is not None:
                return renamed[0]
            return True if not any(binding.module.split(".")[0] == "tensorflow" for binding in bindings) else None
        scope = scope.parent
    return None
