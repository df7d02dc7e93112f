"""Call-by-call conversion, which keeps the model_fn and replaces each call of tf.estimator by a Keras call.

The conversion of a whole program often fails because of a single construct. This one does not analyze whole functions:
a Keras model (`models/keras_runtime/model_fn`) calls the unchanged TensorFlow 1 model_fn, and `fit`, `evaluate` and
`predict` replace the Estimator's methods. Files that import each other are converted only together.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.constructs import Construct, arguments
from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, apply
from estimator_pipeline.migrate.code.analysis.functions import parameters_of
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf, Outside, Program
from estimator_pipeline.migrate.code.analysis.syntax import Tree, dotted_of
from estimator_pipeline.migrate.code.analysis.version_guards import is_guarded
from estimator_pipeline.migrate.code.renames import tensorflow_1
from estimator_pipeline.migrate.code.to_keras.convert_file import DEFECTS, ConversionOutcome
from estimator_pipeline.migrate.code.to_keras.program import calls
from estimator_pipeline.migrate.code.to_keras.program.linking import imported_files, reached
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible
from estimator_pipeline.migrate.code.to_keras.unresolved_names import unknown_names

__all__ = ["convert_call_by_call"]

_CANNED_OF_2 = re.compile(r"tf\.estimator\.(Baseline|DNN|Linear)\w+: ")


def convert_call_by_call(program: Program, trees: Sequence[Tree], constructs: dict[Tree, list[Construct]]) -> None:
    """Convert the files that the other conversions rejected; set `tree.keras`.

    Args:
        program: The program.
        trees: The files with constructs.
        constructs: The constructs of each file.
    """
    if all(tree.keras is None for tree in trees):
        return
    imported = imported_files(program, program.trees.values())
    for whole in _groups(program, trees):
        group = [tree for tree in whole if tree.keras is None or not tree.keras.text]
        if all(tree.keras is None for tree in group):
            continue
        graphs = tensorflow_1.switches_behavior(whole) or any(tree.was_tensorflow_1 for tree in whole)
        outcomes: dict[Tree, ConversionOutcome] = {}
        for tree in group:
            outcome = _outcome(program, tree, constructs[tree], tree in imported, graphs)
            if outcome is not None:
                outcomes[tree] = outcome
        declined = {
            tree: _with_whole_reason(tree.keras, outcome) for tree, outcome in outcomes.items() if not outcome.text
        }
        if not declined:
            for tree, outcome in outcomes.items():
                before = tree.keras or outcome
                tree.keras = dataclasses.replace(before, text=outcome.text, keeps_model_fn=outcome.keeps_model_fn)
            continue
        first, rejection = next(iter(declined.items()))
        for tree in group:
            if tree in declined:
                tree.keras = declined[tree]
            elif tree.keras is not None or tree in outcomes:
                tree.keras = dataclasses.replace(rejection, path=first.source.path)


def _with_whole_reason(whole: ConversionOutcome | None, here: ConversionOutcome) -> ConversionOutcome:
    """Add the reason of the whole-program conversion for canned Estimators of TensorFlow 2."""
    if whole is None or not whole.reason or not _CANNED_OF_2.match(here.reason):
        return here
    return dataclasses.replace(here, reason=f"{here.reason}; as a whole: {whole.describe()}")


def _groups(program: Program, trees: Sequence[Tree]) -> list[list[Tree]]:
    """Return groups of files that import each other, directly or indirectly."""
    groups: list[list[Tree]] = [[tree] for tree in trees]
    chosen = set(trees)
    for tree in program.trees.values():  # a file without constructs can connect two others
        try:
            group = [member for member in reached(program, tree, chosen) if member in chosen]
        except DEFECTS:
            continue
        members = set(group)
        for other in [existing for existing in groups if not members.isdisjoint(existing)]:
            groups.remove(other)
            group = list(dict.fromkeys([*other, *group]))
        if group:
            groups.append(group)
    return groups


def _outcome(
    program: Program, tree: Tree, constructs: Sequence[Construct], is_imported: bool, graphs: bool
) -> ConversionOutcome | None:  # fmt: skip
    """Return the outcome for a file; None if it does not use Estimators."""
    if not tree.verbatim:
        return None
    try:
        return _File(program, tree, constructs, is_imported, graphs).outcome()
    except NotConvertible as declined:
        return ConversionOutcome(reason=declined.reason, line=declined.line or tree.position(declined.node)[0])
    except DEFECTS as error:
        return ConversionOutcome(reason=f"the converter failed: {type(error).__name__}: {error}", line=1)


class _File:
    def __init__(
        self, program: Program, tree: Tree, constructs: Sequence[Construct], is_imported: bool, graphs: bool
    ) -> None:  # fmt: skip
        self.program, self.tree, self.constructs = program, tree, constructs
        self.is_imported, self.builds_graphs = is_imported, graphs
        self.lines = Lines(tree.source.text)
        self.edits: list[Edit] = []
        self.done: set[cst.CSTNode] = set()
        taken = set(tree.scope.names) | {name for scope in tree.scopes.values() for name in scope.names}
        self.runtime = next(
            alias
            for alias in (calls.NAME, f"{calls.NAME}_", f"{calls.NAME}_of_estimator_pipeline")
            if alias not in taken
        )
        self.needs_runtime = False
        self.gone: dict[str, tuple[str, cst.CSTNode]] = {}  # name -> (imported object, import)
        # The functions that create or use an Estimator; None for the module's top level.
        self.jobs = {
            next(
                (above for above in tree.above(construct.node) if isinstance(above, (cst.FunctionDef, cst.Lambda))),
                None,
            )
            for construct in constructs
            if construct.row.kind in ("call", "estimator", "canned estimator") and not self._is_field(construct)
        }

    def outcome(self) -> ConversionOutcome | None:
        for construct in self.constructs:
            self._construct(construct)
        self._contrib()
        self._private()
        if not self.edits:
            has_tensorflow = tensorflow_1.root_of_tensorflow(self.program, self.tree) is not None
            if self.is_imported or not has_tensorflow or not tensorflow_1.is_run(self.tree):
                return None
            # A script imports TensorFlow before the program's other files, which need Keras 2.
            self.needs_runtime = True
        self._check_remaining()
        self._imports()
        text = apply(self.lines.text, self.edits)
        unknown = unknown_names(text) - unknown_names(self.lines.text)
        for name in sorted(unknown & self.gone.keys()):
            dotted, node = self.gone[name]
            raise NotConvertible(f"{dotted}, which is specific to Estimators", node)
        if unknown:
            raise NotConvertible(f"the name {min(unknown)} would be undefined", self.tree.module, 1)
        if line := calls.unread_cell(self.tree.source):
            raise NotConvertible("a cell with Estimators that is not valid Python", self.tree.module, line)
        if not self.tree.source.keeps_cells(text):
            raise NotConvertible("its cells cannot be identified in the converted text", self.tree.module, 1)
        return ConversionOutcome(text, keeps_model_fn=True)

    def _check_remaining(self) -> None:
        """Reject remaining Estimator names and Estimators of other packages."""
        for call in self.tree.calls:
            for value in self.program.meaning(call.func, self.tree, self.tree.where.get(call, self.tree.scope)):
                if isinstance(value, Outside) and calls.OF_OTHERS.match(value.dotted):
                    raise NotConvertible(f"{value.dotted}: an Estimator of another package", call)
        for node in self.tree.chains:
            name = dotted_of(node) or ""
            if calls.OF_ROOT.match(name) and node not in self.done and not set(self.tree.above(node)) & self.done:
                start, end = self._span(node)
                if not any(edit.start <= start and end <= edit.end for edit in self.edits if edit.end > edit.start):
                    raise NotConvertible(f"{name}: Keras has no equivalent call", node)

    # Constructs

    def _construct(self, construct: Construct) -> None:
        row, node = construct.row, construct.node
        if node in self.done or construct.details.get("imported"):
            return
        name = row.name
        if is_guarded(self.tree, node) and (
            row.kind in calls.KINDS or name in calls.NAMES or name == "tf.estimator.ModeKeys"
        ):
            raise NotConvertible(f"{construct.match.spelled} in a branch for a different TensorFlow version", node)
        method = construct.call.func if construct.call is not None else None
        if isinstance(method, cst.Attribute) and method.attr is node and name.startswith(calls.METHOD):
            assert construct.call is not None and isinstance(node, cst.Name)
            self._method(name.removeprefix(calls.METHOD), construct.call, node)
        elif name == "tf.estimator.ModeKeys":
            self._mode(node)
        elif name in calls.NAMES and isinstance(node, (cst.Attribute, cst.Name)) and not self._is_field(construct):
            self._name(node, name)
        elif (canned := calls.CANNED.match(construct.match.spelled)) and not self._is_field(construct):
            self._chain(node, f"{self._module()}.{canned[2]}{'' if canned[1] else 'V2'}")
        elif calls.HOOKS.match(name) and isinstance(node, (cst.Attribute, cst.Name)) and not self._is_field(construct):
            self._chain(node, self._v1(f"train.{name.rpartition('.')[2]}", node))
        elif name in calls.OF_GRAPHS and self._is_of_job(node):
            self._of_graph(construct)
        elif name in calls.CLUSTERS:
            raise NotConvertible(f"{construct.match.spelled}: a kept model_fn trains in one process", node)
        elif name in ("make_one_shot_iterator", "make_initializable_iterator"):
            self._iterator(name, node)
        elif name.endswith(" subclass") and row.kind == "hook":
            self._bases(node)
        elif row.kind == "contrib" and not construct.match.exists and not is_guarded(self.tree, node):
            raise NotConvertible(f"{construct.match.spelled}, which runs only under `exec --tf1`", node)
        elif self._is_estimators(construct):
            raise NotConvertible(f"{construct.match.spelled}: Keras has no equivalent call", node)

    def _bases(self, name: cst.CSTNode) -> None:
        """Rename a class's hook bases to their tf.compat.v1 names."""
        for arg in next(node for node in self.tree.classes if node.name is name).bases:
            for value in self.program.meaning(arg.value, self.tree, self.tree.where.get(arg.value, self.tree.scope)):
                spelled = catalogue.spell(value.dotted) if isinstance(value, Outside) else ""
                if calls.HOOKS.match(spelled) and arg.value not in self.done:
                    self._chain(arg.value, self._v1(f"train.{spelled.rpartition('.')[2]}", arg.value))

    def _iterator(self, name: str, node: cst.CSTNode) -> None:
        """Replace a TensorFlow 1 dataset method by the function that works in both versions."""
        for call in self.tree.calls:
            if isinstance(call.func, cst.Attribute) and call.func.attr is node and not call.args:
                break
        else:
            raise NotConvertible(f"{name} of a dataset, which is not called", node)
        start, end = self._span(cst.ensure_type(call.func, cst.Attribute).value)
        self.edits.append(Edit(start, start, f"{self._v1(f'data.{name}', node)}("))
        self.edits.append(Edit(end, self._span(call)[1], ")"))

    def _is_field(self, construct: Construct) -> bool:
        """Whether a construct is an argument of another construct's call."""
        return construct.call is not None and construct.call.func is not construct.node

    def _is_estimators(self, construct: Construct) -> bool:
        """Whether a construct belongs to the Estimator API, not to an argument or user function."""
        if construct.row.name in calls.TENSORFLOWS:
            return False
        if construct.row.kind not in calls.KINDS or self._is_field(construct):
            # A subclass, or a method of an object that is not an Estimator with a model_fn.
            return construct.row.name.endswith(" subclass") and construct.row.kind in calls.KINDS
        return construct.row.name not in ("serving_input_receiver_fn",)

    def _name(self, node: cst.BaseExpression, row: str) -> None:
        self._chain(node, f"{self._module()}.{calls.NAMES[row]}")

    def _module(self) -> str:
        self.needs_runtime = True
        return self.runtime

    def _mode(self, node: cst.CSTNode) -> None:
        parent = self.tree.parents.get(node)
        name = node.attr.value if isinstance(node, cst.Attribute) else ""
        if name not in calls.MODES and isinstance(parent, cst.Attribute) and parent.value is node:
            node, name = parent, parent.attr.value
        self._chain(node, calls.MODES.get(name) or f"{self._module()}.ModeKeys")

    def _chain(self, node: cst.CSTNode, text: str) -> None:
        start, end = self._span(node)
        self.edits.append(Edit(start, end, text))
        self.done.add(node)

    def _v1(self, name: str, node: cst.CSTNode) -> str:
        """Return a tf.compat.v1 name in the file's spelling."""
        for alias, binding in self.tree.imports:
            if isinstance(alias, cst.ImportAlias) and binding.kind == "import" and alias.asname is not None:
                if binding.name == "tensorflow.compat.v1":
                    return f"{alias.evaluated_alias}.{name}"
                if binding.name == "tensorflow":
                    return f"{alias.evaluated_alias}.compat.v1.{name}"
            if binding.kind == "import" and binding.name == "tensorflow":
                return f"tensorflow.compat.v1.{name}"
        root = tensorflow_1.root_of_tensorflow(self.program, self.tree)
        if root is not None:
            return f"{root}.compat.v1.{name}"
        raise NotConvertible(f"tf.compat.v1.{name}, in a file that does not import tensorflow under a name", node)

    def _is_of_job(self, node: cst.CSTNode) -> bool:
        """Whether a node is in a function that uses an Estimator, which no longer builds a graph."""
        around = next(
            (above for above in self.tree.above(node) if isinstance(above, (cst.FunctionDef, cst.Lambda))), None
        )
        return around in self.jobs

    def _of_graph(self, construct: Construct) -> None:
        """Replace a placeholder by a TensorSpec; other graph objects need a TensorFlow 1 program."""
        fields = ("dtype", "shape", "name")
        call = construct.call
        is_placeholder = construct.row.name == "tf.compat.v1.placeholder" and call is not None
        args = arguments(call, fields) if call is not None and is_placeholder else {}
        if not {"dtype", "shape"} <= args.keys() or (call is not None and any(arg.star for arg in call.args)):
            if self.builds_graphs:
                return
            reason = (
                "a placeholder without dtype and shape"
                if is_placeholder
                else f"{construct.match.spelled} of a separate graph"
            )
            raise NotConvertible(f"{reason}, in a function that uses an Estimator", construct.node)
        self._chain(construct.node, self._v1("", construct.node).replace("compat.v1.", "") + "TensorSpec")
        for field, arg in args.items():
            if arg.keyword is None:
                at = self._span(arg.value)[0]
                self.edits.append(Edit(at, at, f"{field}="))

    def _contrib(self) -> None:
        """Replace names of the contrib package that create or take an Estimator."""
        for node in self.tree.chains:
            name = dotted_of(node) or ""
            if not calls.CONTRIB.match(name) or not any(line.endswith("import contrib") for line in self.tree.needs):
                continue
            below = name.removeprefix("contrib.")
            if below not in calls.OF_CONTRIB:
                raise NotConvertible(f"tf.contrib.{below}: Keras has no equivalent call", node)
            self._chain(node, f"{self._module()}.{calls.OF_CONTRIB[below]}")

    def _private(self) -> None:
        for node in self.tree.chains:
            if not any((dotted_of(node) or "").endswith(name.rpartition(".")[2]) for name in calls.PRIVATE):
                continue
            for value in self.program.meaning(node, self.tree, self.tree.where.get(node, self.tree.scope)):
                module, _, below = value.dotted.partition(".estimator.") if isinstance(value, Outside) else ("", "", "")
                if calls.OF_ESTIMATORS.match(f"{module}.estimator.") and below in calls.PRIVATE:
                    self._chain(node, f"{self._module()}.{calls.PRIVATE[below]}")

    # Methods

    def _method(self, name: str, call: cst.Call, node: cst.Name) -> None:
        func = call.func
        if not isinstance(func, cst.Attribute):
            raise NotConvertible(f"{name} of an Estimator that is not called as a method", node)
        if name in calls.STAY:
            return
        if name in calls.EXPORTS:
            self._function("export_saved_model", func, call)
            return
        if name not in calls.FIELDS or any(arg.star for arg in call.args):
            raise NotConvertible(f"{name} of an Estimator: Keras has no equivalent call", node)
        args = arguments(call, calls.FIELDS[name])
        if "input_fn" not in args:
            raise NotConvertible(f"{name} without an input_fn", node)
        unknown = args.keys() - set(calls.FIELDS[name])
        if unknown:
            raise NotConvertible(f"{name} of an Estimator with {min(unknown)}", node)
        owner = func.value
        for field, arg in args.items():
            at = self._span(arg.value)[0]
            if field == "input_fn":
                self._input(name, owner, call, arg)
            elif name == "train" and field == "steps":
                start = self._span(arg.keyword)[0] if arg.keyword is not None else at
                self.edits.append(Edit(start, at, "steps_per_epoch="))
            elif arg.keyword is None:
                self.edits.append(Edit(at, at, f"{field}="))
        if name == "predict":
            self._function("predictions", func, call)
            return
        self._chain(node, "fit" if name == "train" else name)
        if name == "evaluate":
            end = self._span(call.args[-1].value)[1]
            self.edits.append(Edit(end, end, ", return_dict=True"))

    def _function(self, name: str, func: cst.Attribute, call: cst.Call) -> None:
        """Replace `object.method(...)` by `function(object, ...)`."""
        start, end = self._span(func.value)
        self.edits.append(Edit(start, start, f"{self._module()}.{name}("))
        first = call.args[0]
        behind = self._span(first.keyword if first.keyword is not None else first.value)[0]
        opening = self.lines.text.index("(", self._span(func)[1])
        self.edits.append(Edit(end, opening + 1, ", " if behind else ""))
        self.done.add(func.attr)

    def _input(self, method: str, owner: cst.BaseExpression, call: cst.Call, arg: cst.Arg) -> None:
        start, end = self._span(arg.value)
        before = f"{self._module()}.dataset("
        if arg.keyword is not None:
            begin = self._span(arg.keyword)[0]
            name = "" if call.args[0] is arg else "data=" if method == "predict" else "x="
            self.edits.append(Edit(begin, start, name))
        mode_args = self._mode_arguments(arg.value)
        mode = {"train": "", "evaluate": "'eval'", "predict": "'infer'"}[method]
        behind = ""
        if "mode" in mode_args and mode:
            behind += f", mode={mode}"
        if mode_args & {"params", "config"}:
            if not isinstance(owner, (cst.Name, cst.Attribute)):
                raise NotConvertible("an input_fn that takes params, for an Estimator that is not bound to a name", arg)
            behind += f", model={self._text(owner)}"
        self.edits += [Edit(start, start, before), Edit(end, end, f"{behind})")]

    def _mode_arguments(self, node: cst.BaseExpression) -> set[str]:
        """Return which of mode, params and config an input_fn takes; all if unknown."""
        mode_args = {"mode", "params", "config"}
        if isinstance(node, cst.Name):
            bindings = self.program.bindings(node.value, self.tree.where.get(node, self.tree.scope))
            value = bindings[0].node if len(bindings) == 1 and bindings[0].kind == "value" else None
            if value is not None and any(
                construct.call is value and construct.row.kind == "data" for construct in self.constructs
            ):
                return set()  # numpy_input_fn and similar
        values = self.program.meaning(node, self.tree, self.tree.where.get(node, self.tree.scope))
        if isinstance(node, cst.Lambda):
            return mode_args & {param.name.value for param in node.params.params}
        functions = [value for value in values if isinstance(value, FunctionOf)]
        if not functions or len(functions) != len(values):
            return set() if isinstance(node, cst.Call) and not values else mode_args
        names = {name for function in functions for name in parameters_of(function.node)}
        return mode_args & names

    # The text

    def _imports(self) -> None:
        """Remove unused imports and import the runtime module before TensorFlow."""
        self._gone_imports()
        self._of_tensorflow_1()
        if not self.needs_runtime:
            return
        first = next((node for node in self.tree.module.body if self._is_import(node)), None)
        if first is None:
            raise NotConvertible("a file without a top-level import", self.tree.module, 1)
        line = self.tree.position(first)[0]
        at, newline = self.lines.starts[line - 1], self.lines.newline(line)
        alias = "model_fn as " + self.runtime
        self.edits.append(Edit(at, at, f"from {calls.RUNTIME} import {alias}{newline}"))

    def _of_tensorflow_1(self) -> None:
        """Add the imports of the new names and the switch to TensorFlow 1 behavior."""
        self._behind(tensorflow_1.last_import(self.tree), self.tree.needs)
        files = reached(self.program, self.tree, set(self.program.trees.values()))
        switches, of_1 = tensorflow_1.switches_behavior(files), any(file.was_tensorflow_1 for file in files)
        place = tensorflow_1.switch(self.program, self.tree, switches, self.is_imported, of_1=of_1)
        if place is not None:
            self._behind(place, tensorflow_1.switch_lines(self.tree, self._v1("", self.tree.module).rstrip(".")))

    def _behind(self, statement: cst.CSTNode | None, lines: Sequence[str]) -> None:
        if not lines:
            return
        if statement is None:
            raise NotConvertible("a file without a top-level import", self.tree.module, 1)
        number = self.tree.position(statement)[2]
        at = self.lines.starts[number] if number < len(self.lines.starts) else len(self.lines.text)
        self.edits.append(Edit(at, at, "".join(f"{line}{self.lines.newline(number)}" for line in lines)))

    def _is_import(self, node: cst.CSTNode) -> bool:
        small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
        if isinstance(small, cst.ImportFrom) and self._text(small).startswith("from __future__"):
            return False
        return isinstance(small, (cst.Import, cst.ImportFrom))

    def _gone_imports(self) -> None:
        """Remove the imports of Estimator names, whose uses are all replaced."""
        gone: dict[cst.SimpleStatementLine, list[cst.ImportAlias]] = {}
        for alias, binding in self.tree.imports:
            dotted = binding.name if binding.kind == "import" else f"{binding.module}.{binding.name}"
            if not calls.OF_ESTIMATORS.match(dotted):
                continue
            statement = next(self._statements(alias), None)
            if statement is None or len(statement.body) > 1 or not isinstance(alias, cst.ImportAlias):
                raise NotConvertible("an import of Estimator names with `*`, or on a line with other statements", alias)
            self.gone[alias.evaluated_alias or alias.evaluated_name] = (dotted, alias)
            gone.setdefault(statement, []).append(alias)
        for statement, aliases in gone.items():
            small = statement.body[0]
            assert isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(small.names, cst.ImportStar)
            left = [alias for alias in small.names if alias not in aliases]
            start, end = self._span(small)
            if left:
                left[-1] = left[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                text = self.tree.module.code_for_node(small.with_changes(names=left))
                self.edits.append(Edit(start, end, text))
            elif self.tree.parents.get(statement) is self.tree.module:
                last = self.tree.position(statement)[2]
                start = self.lines.starts[self.tree.position(statement)[0] - 1]
                end = self.lines.starts[last] if last < len(self.lines.starts) else len(self.lines.text)
                self.edits.append(Edit(start, end, ""))
            else:
                self.edits.append(Edit(start, end, "pass"))

    def _statements(self, node: cst.CSTNode) -> Iterator[cst.SimpleStatementLine]:
        for above in self.tree.above(node):
            if isinstance(above, cst.SimpleStatementLine):
                yield above

    def _span(self, node: cst.CSTNode) -> tuple[int, int]:
        line, column, end_line, end_column = self.tree.position(node)
        return self.lines.offset(line, column), self.lines.offset(end_line, end_column)

    def _text(self, node: cst.CSTNode) -> str:
        start, end = self._span(node)
        return self.lines.text[start:end]
