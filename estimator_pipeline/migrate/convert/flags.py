"""Command-line flags: `tf.app.flags` -> `flags` of absl, `tf.app.run()` -> `app.run(main)`.

TensorFlow 1 parses flags when the first is read, absl in `app.run`. TensorFlow 1 ignores flags that are not defined,
absl reports them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import Binding, root_of
from estimator_pipeline.migrate.convert.names import FileNames, Refused

__all__ = ["FlagEdits", "is_flags", "read_flags"]

_V1 = "tf.compat.v1."
# Arguments of DEFINE_... that TensorFlow 1 renamed.
_RENAMED = {"flag_name": "name", "default_value": "default", "docstring": "help"}


@dataclass
class FlagEdits:
    """The edits of a file that has flags.

    Attributes:
        new: expression -> its new text.
        removed: the statements `flags = tf.app.flags`.
        imports: the import of absl, as lines.
    """

    new: dict[cst.CSTNode, str] = field(default_factory=dict)
    removed: list[cst.CSTNode] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)


def is_flags(full: str) -> bool:
    """Return whether a full name is of the flags of TensorFlow 1."""
    return bool(_below(full))


def _below(full: str) -> str:
    """Return `app.run`, `flags` or `flags.NAME` for a name of V1's flags, else ""."""
    below = full.removeprefix(_V1)
    below = below.removeprefix("app.") if below.startswith("app.flags") else below
    return below if below != full and (below == "app.run" or below.split(".")[0] == "flags") else ""


def read_flags(names: FileNames) -> FlagEdits:
    """Return the edits that let a file use absl.

    Raises:
        Refused: a flag is read before absl has parsed the command line.
    """
    return _Reader(names).edits()


class _Reader:
    def __init__(self, names: FileNames) -> None:
        self.names, self.tree, self.result = names, names.tree, FlagEdits()
        self.module: dict[str, str] = {}  # app, flags -> the name in this file

    def edits(self) -> FlagEdits:
        chains = [(node, below) for node in self.tree.chains if (below := _below(self.names.name(node)))]
        for node, below in chains:
            root = root_of(node)
            if below.startswith("flags.FLAGS."):
                self.check_parsed(node)
            if isinstance(self.tree.parents.get(node), cst.ImportAlias):
                raise Refused("flags of TensorFlow that are imported by name", node)
            if not self.is_variable(root):
                self.rename(node, below)
            call = self.tree.parents.get(node)
            if isinstance(call, cst.Call) and call.func is node:
                self.call(call, below)
        used = [f"{name} as {alias}" if alias != name else name for name, alias in sorted(self.module.items())
                if not self.imported(name)]  # fmt: skip
        if used:
            self.result.imports.append(f"from absl import {', '.join(used)}")
        return self.result

    def is_variable(self, root: cst.CSTNode) -> bool:
        return self.names.is_variable(root) and root in self.tree.where

    def rename(self, node: cst.BaseExpression, below: str) -> None:
        if below == "app.run":
            self.result.new[node] = f"{self.name_of('app')}.run"
            return
        parts = below.split(".")[1:]
        if any(part.startswith("_") for part in parts):
            raise Refused(f"{_V1}{below}", node)
        assign = self.tree.parents.get(node)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
        same = isinstance(target, cst.Name) and target.value == self.name_of("flags")
        if not parts and same and self.names.scope(node) is self.tree.scope:
            self.result.removed.append(self.tree.parents[assign])  # type: ignore[index]
            return
        self.result.new[node] = ".".join([self.name_of("flags"), *parts])

    def name_of(self, module: str) -> str:
        """Return the name of a module of absl in this file: a different one where the file uses that name."""
        if module not in self.module:
            scopes = [self.tree.scope, *self.tree.scopes.values()]
            taken = [binding for scope in scopes for binding in scope.names.get(module, ())]
            other = any(not self.is_module(binding, module) for binding in taken)
            self.module[module] = self.imported(module) or (f"absl_{module}" if other else module)
        return self.module[module]

    def is_module(self, binding: Binding, module: str) -> bool:
        """Return whether a name is bound to the flags of TensorFlow or to the module of absl."""
        if binding.kind == "value" and binding.scope is self.tree.scope:
            return _below(self.names.name(binding.node)) == module
        return binding.kind == "from" and (binding.module, binding.name) == ("absl", module)

    def imported(self, module: str) -> str:
        for alias, binding in self.tree.imports:
            if self.is_module(binding, module) and isinstance(alias, cst.ImportAlias):
                return alias.evaluated_alias or module
        return ""

    def check_parsed(self, node: cst.BaseExpression) -> None:
        """Check that `app.run` has parsed the flags where one is read."""
        scope = self.names.scope(node).around()
        while scope.kind == "class" and scope.parent is not None:
            scope = scope.parent
        if scope.kind == "module":
            raise Refused("a flag that is read before app.run parses the command line", node)
        if not any("app.run(" in tree.source.text for tree in self.names.program.trees.values()):
            raise Refused("a flag in a program without tf.app.run, which lets absl parse the command line", node)

    def call(self, call: cst.Call, below: str) -> None:
        for arg in call.args:
            if arg.keyword is not None and below.startswith("flags.DEFINE_") and arg.keyword.value in _RENAMED:
                self.result.new[arg.keyword] = _RENAMED[arg.keyword.value]
        if below == "app.run" and "main" not in arguments(call, ("main", "argv")):
            if "main" not in self.tree.scope.names or call.args:
                raise Refused("tf.app.run of a main that is not in the file", call)
            self.result.new.pop(call.func, None)
            self.result.new[call] = f"{self.name_of('app')}.run(main)"
