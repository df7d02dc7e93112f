"""The edits of one file: its models, functions, jobs, names and imports."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

import libcst as cst

from estimator_pipeline.migrate.code.analysis.edits import Edit
from estimator_pipeline.migrate.code.analysis.syntax import iter_nodes
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.convert import helpers
from estimator_pipeline.migrate.convert.names import FileNames, Refused
from estimator_pipeline.migrate.convert.rest import Rest

__all__ = ["FileEdits"]

_KERAS_2 = """\
# Keras 3 does not train under MultiWorkerMirroredStrategy: on TensorFlow 2.16 and later, tf.keras has to be tf_keras.
if tuple(map(int, importlib.metadata.version("tensorflow").split(".")[:2])) >= (2, 16):
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
"""
_EVALUATOR = """\
if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type") == "evaluator":
    raise SystemExit("the workers evaluate, with the validation_data of fit: start no evaluator")
"""


class FileEdits:
    """Writes the edits of a file."""

    def __init__(self, names: FileNames) -> None:
        self.names, self.tree, self.lines, self.span = names, names.tree, names.lines, names.span

    def all(
        self, definitions: Mapping[cst.FunctionDef, Sequence[cst.BaseStatement]], rest: Rest, *, multi_worker: bool
    ) -> tuple[Edit, ...]:
        """Return the edits of the file, with its line endings.

        Args:
            definitions: function -> the definitions that replace it.
            rest: its other changes.
            multi_worker: whether it makes a MultiWorkerMirroredStrategy for an Estimator.
        """
        edits = [*self.of_definitions(definitions), *self.of_statements(rest)]
        edits += [Edit(*self.span(alias), ", ".join(dict.fromkeys(texts))) for alias, texts in rest.imported.items()]
        edits += self.of_imports(rest, multi_worker=multi_worker)
        edits += self.without_imports(rest.imports)
        if self.names.v1_import is not None:
            edits.append(Edit(*self.span(self.names.v1_import), self.import_of_tensorflow(self.names.v1_import)))
        newline = self.lines.newline(1)
        if newline != "\n":
            edits = [edit._replace(new=edit.new.replace("\r\n", "\n").replace("\n", newline)) for edit in edits]
        return tuple(edits)

    def of_definitions(self, definitions: Mapping[cst.FunctionDef, Sequence[cst.BaseStatement]]) -> Iterator[Edit]:
        for node, new in definitions.items():
            line, column, last, _ = self.tree.position(node)
            nodes = [inner for part in new for inner in iter_nodes(part)]
            docs = [inner.value for inner in nodes if isinstance(inner, cst.Expr)]
            strings = [inner for inner in nodes if isinstance(inner, cst.SimpleString) and inner not in docs]
            if column > 1 and any("\n" in string.value for string in strings):
                raise Refused("a text of several lines in a model_fn inside of another function", node)
            texts = [self.tree.module.code_for_node(part).strip("\n") for part in new]
            indent = " " * (column - 1)
            texts = [textwrap.indent(text, indent).removeprefix(indent) for text in texts]
            if not texts:
                yield self.lines.deletion(line, last)
                continue
            yield Edit(*self.span(node), f"\n\n{indent}".join(texts) if indent else "\n\n\n".join(texts))

    def of_statements(self, rest: Rest) -> Iterator[Edit]:
        """Yield the edits of statements and expressions."""
        for node in (*rest.replaced, *rest.removed):
            if not isinstance(node, cst.SimpleStatementLine) or len(node.body) > 1:
                raise Refused("several statements in one line, of which one would be replaced", node)
        for node in dict.fromkeys([*rest.before, *rest.replaced, *rest.removed]):
            line, last = self.tree.position(node)[0], self.tree.position(rest.until.get(node, (node,))[-1])[2]
            indent = self.lines.indent(line)
            start, end = self.lines.starts[line - 1], self.lines.end(last)
            texts = [*rest.before.get(node, ()), *rest.replaced.get(node, ())]
            written = "".join(f"{indent}{text}".rstrip() + "\n" for text in texts)
            yield Edit(start, end if node in rest.replaced or node in rest.removed else start, written)
        removed = {*rest.removed, *rest.replaced, *(node for nodes in rest.until.values() for node in nodes)}
        for node, text in rest.new.items():
            above = [*self.tree.above(node)]
            if not any(outer in rest.new or outer in removed for outer in above) and node not in removed:
                yield Edit(*self.span(node), text)

    def of_imports(self, rest: Rest, *, multi_worker: bool) -> Iterator[Edit]:
        """Yield the edits that add imports and, behind them, helpers and other code."""
        wanted = {"os"} & rest.needs | ({"importlib.metadata", "json", "os"} if multi_worker else set())
        missing = sorted(name for name in wanted if self.place_of(name) < 0)
        imports = [node for node in self.tree.module.body if _is_import(node)]
        first = next(node for node in imports if not _is_future(node))
        at = self.lines.starts[self.tree.position(first)[0] - 1]
        text = "".join(f"import {name}\n" for name in missing)
        if multi_worker:
            before = self.lines.starts[self.tree.position(self.first_use_of_tensorflow(imports))[0] - 1]
            earlier = "".join(f"import {name}\n" for name in sorted(wanted) if before < self.place_of(name))
            if before != at:
                yield Edit(at, at, text)
                text = ""
            yield Edit(before, before, f"{text}{earlier if text == '' else ''}\n{_KERAS_2}\n")
        elif text:
            yield Edit(at, at, text)
        last = [tensorflow_1.last_import(self.tree) or imports[-1]]  # of the first imports, or the one of TensorFlow
        last += [node for node in imports if "tensorflow" in self.names.text(node)][:1]
        end = max(self.lines.end(self.tree.position(node)[2]) for node in last)
        code = [self.tree.module.code_for_node(part).strip("\n") for part in rest.code]
        sources = [*helpers.sources(rest.needs, self.names.tf), *(f"{text}\n" for text in code)]
        guard = f"\n{_EVALUATOR}" if multi_worker else ""
        if sources or guard:
            blank = self.tree.source.text[end:].split("\n", 3)[:3].count("") if sources else 2
            behind = "\n" * max(2 - blank, 0)
            yield Edit(end, end, guard + "".join(f"\n\n{source}" for source in sources) + behind)

    def without_imports(self, gone: Sequence[cst.ImportAlias]) -> Iterator[Edit]:
        """Yield the edits that remove imports; a statement of several keeps the others."""
        for statement in dict.fromkeys(self.tree.parents[alias] for alias in gone):
            assert isinstance(statement, (cst.Import, cst.ImportFrom))
            kept = [alias for alias in list(statement.names) if alias not in gone]  # type: ignore[arg-type]
            whole = cst.ensure_type(self.tree.parents[statement], cst.SimpleStatementLine)
            if kept:
                kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                yield Edit(*self.span(statement), self.names.text(statement.with_changes(names=kept)))
            elif len(whole.body) == 1 and self.tree.parents.get(whole) is self.tree.module:
                line, _, last, _ = self.tree.position(whole)
                yield Edit(self.lines.starts[line - 1], self.lines.end(last), "")
            else:
                yield Edit(*self.span(statement), "pass")

    def import_of_tensorflow(self, node: cst.CSTNode) -> str:
        """Return `tensorflow as tf` for the alias `tensorflow.compat.v1 as tf`, or for a whole `from` statement."""
        if isinstance(node, cst.ImportFrom) and len(list(node.names)) != 1:  # type: ignore[arg-type]
            raise Refused("an import of tensorflow.compat.v1 together with others", node)
        text = f"tensorflow as {self.names.tf}"
        return f"import {text}" if isinstance(node, cst.ImportFrom) else text

    def first_use_of_tensorflow(self, imports: Sequence[cst.SimpleStatementLine]) -> cst.SimpleStatementLine:
        """Return the first import of TensorFlow, or of another file of the program, which may import it."""
        files = {id(statement) for statement in imports for alias, binding in self.tree.imports
                 if statement in set(self.tree.above(alias))
                 and any(self.names.program.files_of_import(self.tree, binding))}  # fmt: skip
        return next(node for node in imports if id(node) in files or "tensorflow" in self.names.text(node))

    def place_of(self, name: str) -> int:
        """Return where the file imports a module; -1 if it does not."""
        for alias, binding in self.tree.imports:
            if binding.kind == "import" and binding.name == name and binding.scope is self.tree.scope:
                return self.span(alias)[0]
        return -1


def _is_import(node: cst.CSTNode) -> TypeGuard[cst.SimpleStatementLine]:
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], (cst.Import, cst.ImportFrom))


def _is_future(node: cst.SimpleStatementLine) -> bool:
    statement = node.body[0]
    return isinstance(statement, cst.ImportFrom) and isinstance(statement.module, cst.Name) and (
        statement.module.value == "__future__"
    )  # fmt: skip
