"""Removal of aliases and imports that a converted program no longer uses."""

from __future__ import annotations

import symtable
from collections.abc import Iterator

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.rewriter import Rewriter

__all__ = ["names_read", "remove_unused_names"]

# Packages whose unused imports are removed, and modules whose unused aliases are (`layers = tf.compat.v1.layers`).
_PACKAGES = ("tensorflow", "tf_slim", "tensorflow_gan", "estimator_pipeline.compat")
_MODULES = (".compat.v1.", ".estimator.", ".feature_column.")
_OLD_PARTS = {"contrib", "estimator", "feature_column", "tensorflow_gan", "tf_slim", "v1"}


def remove_unused_names(reader: Rewriter, text: str) -> bool:
    """Remove the statements that bind only names which a converted text does not read.

    Args:
        reader: The rewriter that wrote the text; its rewrites are extended.
        text: The converted text.

    Returns:
        Whether a statement was removed, so that the text has to be written again.
    """
    try:
        read = names_read(text)
    except SyntaxError:  # reported by the final check of the text
        return False
    unused = [
        statement
        for statement, names, is_global in (*_aliases(reader), *_imports(reader))
        if statement not in reader.replaced and not names & read[is_global]
    ]
    reader.replaced.update(dict.fromkeys(unused, REMOVED))
    return bool(unused)


def names_read(text: str) -> dict[bool, set[str]]:
    """Return the names that a text reads: True -> names of the module, False -> names of functions and classes."""
    read: dict[bool, set[str]] = {True: set(), False: set()}
    module = symtable.symtable(text, "text", "exec")
    waiting = [module]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced():
                read[table is module or symbol.is_global()].add(symbol.get_name())
    return read


def _aliases(reader: Rewriter) -> Iterator[tuple[cst.CSTNode, set[str], bool]]:
    """Yield the assignments of former TensorFlow modules to a name, with the name."""
    contrib_names = {line.split()[-1] for line in reader.tree.needs}
    for scope in (reader.tree.scope, *reader.tree.scopes.values()):
        for name, bindings in scope.names.items():
            value = bindings[0].node if len(bindings) == 1 and bindings[0].kind == "value" else None
            if not isinstance(value, (cst.Name, cst.Attribute)):
                continue
            statement, new = reader.statement_of(value), f"{reader.text(value)}."
            is_old = reader.name(value).startswith("tf.") and any(module in new for module in _MODULES)
            if statement is not None and (is_old or (dotted_of(value) or "").split(".")[0] in contrib_names):
                yield statement, {name}, scope is reader.tree.scope


def _imports(reader: Rewriter) -> Iterator[tuple[cst.CSTNode, set[str], bool]]:
    """Yield the imports of TensorFlow and functools, with the names that they bind."""
    before = names_read(reader.lines.text)[True]
    for statement in reader.tree.module.body:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(small, (cst.Import, cst.ImportFrom)) or isinstance(small.names, cst.ImportStar):
            continue
        modules = [small.module] if isinstance(small, cst.ImportFrom) else [alias.name for alias in small.names]
        dotted = [f"{dotted_of(module) or ''}." for module in modules]
        names = {alias.evaluated_alias or alias.evaluated_name.split(".")[0] for alias in small.names}
        is_removable = all(name.startswith(tuple(f"{package}." for package in _PACKAGES)) for name in dotted)
        is_removable |= dotted == ["functools."] and names == {"functools"}
        parts = {part for name in dotted for part in name.split(".")} | {alias.evaluated_name for alias in small.names}
        # What the program did not use before is only removed if it may not exist.
        if is_removable and (names & before or parts & _OLD_PARTS):
            yield statement, names, True
