"""A program whose model_fn stays: each call of tf.estimator becomes the call that takes its place in Keras.

What a rewrite of the whole program declines is often one idiom of many. Here no function is read as a whole: the
model_fn stays a function of TensorFlow 1, in a Keras model that calls it (`models/keras_runtime/model_fn`), and `fit`,
`evaluate` and `predict` stand where the Estimator's methods stood. Files that import each other are converted together,
or none of them.
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


def convert_call_by_call(program: Program, trees: Sequence[Tree], found: dict[Tree, list[Construct]]) -> None:
    """Convert what `tree.keras` says that nothing else can; the outcome is there.

    Args:
        trees: the files that have constructs.
        found: the constructs of each.
    """
    if all(tree.keras is None for tree in trees):
        return
    imported = imported_files(program, program.trees.values())
    for whole in _groups(program, trees):
        group = [tree for tree in whole if tree.keras is None or not tree.keras.text]
        if all(tree.keras is None for tree in group):
            continue
        graphs = tensorflow_1.switches_behavior(whole) or any(tree.was_tensorflow_1 for tree in whole)
        made: dict[Tree, ConversionOutcome] = {}
        for tree in group:
            outcome = _outcome(program, tree, found[tree], tree in imported, graphs)
            if outcome is not None:
                made[tree] = outcome
        declined = {tree: _reason(tree.keras, one) for tree, one in made.items() if not one.text}
        if not declined:
            for tree, one in made.items():
                before = tree.keras or one
                tree.keras = dataclasses.replace(before, text=one.text, keeps_model_fn=one.keeps_model_fn)
            continue
        first, one = next(iter(declined.items()))
        for tree in group:
            if tree in declined:
                tree.keras = declined[tree]
            elif tree.keras is not None or tree in made:
                tree.keras = dataclasses.replace(one, path=first.source.path)


def _reason(whole: ConversionOutcome | None, here: ConversionOutcome) -> ConversionOutcome:
    """Canned Estimators of TensorFlow 2 are converted with all of their program, and stop for what stops that too."""
    if whole is None or not whole.reason or not _CANNED_OF_2.match(here.reason):
        return here
    return dataclasses.replace(here, reason=f"{here.reason}; as a whole: {whole.told()}")


def _groups(program: Program, trees: Sequence[Tree]) -> list[list[Tree]]:
    """Files that import each other, at once or through others."""
    groups: list[list[Tree]] = [[tree] for tree in trees]
    chosen = set(trees)
    for tree in program.trees.values():  # a file that has nothing itself brings two others together
        try:
            group = [one for one in reached(program, tree, chosen) if one in chosen]
        except DEFECTS:
            continue
        members = set(group)
        for other in [one for one in groups if not members.isdisjoint(one)]:
            groups.remove(other)
            group = list(dict.fromkeys([*other, *group]))
        if group:
            groups.append(group)
    return groups


def _outcome(
    program: Program, tree: Tree, constructs: Sequence[Construct], is_imported: bool, graphs: bool
) -> ConversionOutcome | None:  # fmt: skip
    """Return what becomes of a file; None where it has nothing of Estimators."""
    if not tree.verbatim:
        return None
    try:
        return _File(program, tree, constructs, is_imported, graphs).outcome()
    except NotConvertible as declined:
        return ConversionOutcome(reason=declined.reason, line=declined.line or tree.position(declined.node)[0])
    except DEFECTS as error:
        return ConversionOutcome(reason=f"the converter fails at it: {type(error).__name__}: {error}", line=1)


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
            one for one in (calls.NAME, f"{calls.NAME}_", f"{calls.NAME}_of_estimator_pipeline") if one not in taken
        )
        self.needs_runtime = False
        self.gone: dict[str, tuple[str, cst.CSTNode]] = {}  # name -> (what was imported, where)
        # The functions that make or use an Estimator; None: the module's own statements.
        self.jobs = {
            next((above for above in tree.above(one.node) if isinstance(above, (cst.FunctionDef, cst.Lambda))), None)
            for one in constructs
            if one.row.kind in ("call", "estimator", "canned estimator") and not self._is_field(one)
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
            # What is run imports TensorFlow before the files of its program do, which need Keras 2.
            self.needs_runtime = True
        self._refuse_what_is_left()
        self._imports()
        text = apply(self.lines.text, self.edits)
        unknown = unknown_names(text) - unknown_names(self.lines.text)
        for name in sorted(unknown & self.gone.keys()):
            dotted, node = self.gone[name]
            raise NotConvertible(f"{dotted}, which is the Estimator's own", node)
        if unknown:
            raise NotConvertible(f"the name {min(unknown)} would be gone", self.tree.module, 1)
        if line := calls.unread_cell(self.tree.source):
            raise NotConvertible("a cell with Estimators that cannot be read", self.tree.module, line)
        if not self.tree.source.keeps_cells(text):
            raise NotConvertible("its cells cannot be told in what takes their place", self.tree.module, 1)
        return ConversionOutcome(text, keeps_model_fn=True)

    def _refuse_what_is_left(self) -> None:
        """Names of Estimators that are no construct of the catalogue, and Estimators of other packages."""
        for call in self.tree.calls:
            for value in self.program.meaning(call.func, self.tree, self.tree.where.get(call, self.tree.scope)):
                if isinstance(value, Outside) and calls.OF_OTHERS.match(value.dotted):
                    raise NotConvertible(f"{value.dotted}: an Estimator of another package", call)
        for node in self.tree.chains:
            name = dotted_of(node) or ""
            if calls.OF_ROOT.match(name) and node not in self.done and not set(self.tree.above(node)) & self.done:
                start, end = self._span(node)
                if not any(edit.start <= start and end <= edit.end for edit in self.edits if edit.end > edit.start):
                    raise NotConvertible(f"{name}: no call of Keras takes its place", node)

    # Constructs

    def _construct(self, one: Construct) -> None:
        row, node = one.row, one.node
        if node in self.done or one.details.get("imported"):
            return
        name = row.name
        if is_guarded(self.tree, node) and (
            row.kind in calls.KINDS or name in calls.NAMES or name == "tf.estimator.ModeKeys"
        ):
            raise NotConvertible(f"{one.match.spelled} in a branch of another TensorFlow", node)
        method = one.call.func if one.call is not None else None
        if isinstance(method, cst.Attribute) and method.attr is node and name.startswith(calls.METHOD):
            assert one.call is not None and isinstance(node, cst.Name)
            self._method(name.removeprefix(calls.METHOD), one.call, node)
        elif name == "tf.estimator.ModeKeys":
            self._mode(node)
        elif name in calls.NAMES and isinstance(node, (cst.Attribute, cst.Name)) and not self._is_field(one):
            self._name(node, name)
        elif (canned := calls.CANNED.match(one.match.spelled)) and not self._is_field(one):
            self._chain(node, f"{self._module()}.{canned[2]}{'' if canned[1] else 'V2'}")
        elif calls.HOOKS.match(name) and isinstance(node, (cst.Attribute, cst.Name)) and not self._is_field(one):
            self._chain(node, self._v1(f"train.{name.rpartition('.')[2]}", node))
        elif name in calls.OF_GRAPHS and self._is_of_job(node):
            self._of_graph(one)
        elif name in calls.CLUSTERS:
            raise NotConvertible(f"{one.match.spelled}: a model_fn that stays trains in one process", node)
        elif name in ("make_one_shot_iterator", "make_initializable_iterator"):
            self._iterator(name, node)
        elif name.endswith(" subclass") and row.kind == "hook":
            self._bases(node)
        elif row.kind == "contrib" and not one.match.exists and not is_guarded(self.tree, node):
            raise NotConvertible(f"{one.match.spelled}, which runs under `exec --tf1` alone", node)
        elif self._is_estimators(one):
            raise NotConvertible(f"{one.match.spelled}: no call of Keras takes its place", node)

    def _bases(self, name: cst.CSTNode) -> None:
        """The hooks that a class comes from, by TensorFlow's own name."""
        for arg in next(one for one in self.tree.classes if one.name is name).bases:
            for value in self.program.meaning(arg.value, self.tree, self.tree.where.get(arg.value, self.tree.scope)):
                spelled = catalogue.spell(value.dotted) if isinstance(value, Outside) else ""
                if calls.HOOKS.match(spelled) and arg.value not in self.done:
                    self._chain(arg.value, self._v1(f"train.{spelled.rpartition('.')[2]}", arg.value))

    def _iterator(self, name: str, node: cst.CSTNode) -> None:
        """A method that data sets of TensorFlow 1 have, as the function that takes those of both."""
        for call in self.tree.calls:
            if isinstance(call.func, cst.Attribute) and call.func.attr is node and not call.args:
                break
        else:
            raise NotConvertible(f"{name} of a data set, which is not called", node)
        start, end = self._span(cst.ensure_type(call.func, cst.Attribute).value)
        self.edits.append(Edit(start, start, f"{self._v1(f'data.{name}', node)}("))
        self.edits.append(Edit(end, self._span(call)[1], ")"))

    def _is_field(self, one: Construct) -> bool:
        """Whether a construct is an argument of a call that is a construct of its own."""
        return one.call is not None and one.call.func is not one.node

    def _is_estimators(self, one: Construct) -> bool:
        """Whether a construct is the Estimator's, and not a field or a function of the program."""
        if one.row.name in calls.TENSORFLOWS:
            return False
        if one.row.kind not in calls.KINDS or self._is_field(one):
            # A subclass, or a method of an object that is no Estimator of a model_fn.
            return one.row.name.endswith(" subclass") and one.row.kind in calls.KINDS
        return one.row.name not in ("serving_input_receiver_fn",)

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
        """Return a name of tf.compat.v1, by how the file calls TensorFlow."""
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
        raise NotConvertible(f"tf.compat.v1.{name}, and tensorflow is not imported by a name", node)

    def _is_of_job(self, node: cst.CSTNode) -> bool:
        """Whether a node stands where an Estimator is made or used: there is no graph around it any more."""
        around = next((one for one in self.tree.above(node) if isinstance(one, (cst.FunctionDef, cst.Lambda))), None)
        return around in self.jobs

    def _of_graph(self, one: Construct) -> None:
        """A placeholder is what it is like; all else needs a graph, which programs of TensorFlow 1 have."""
        fields = ("dtype", "shape", "name")
        call = one.call
        is_placeholder = one.row.name == "tf.compat.v1.placeholder" and call is not None
        given = arguments(call, fields) if call is not None and is_placeholder else {}
        if not {"dtype", "shape"} <= given.keys() or (call is not None and any(arg.star for arg in call.args)):
            if self.builds_graphs:
                return
            said = "a placeholder of any shape" if is_placeholder else f"{one.match.spelled} of a graph of its own"
            raise NotConvertible(f"{said}, beside an Estimator", one.node)
        self._chain(one.node, self._v1("", one.node).replace("compat.v1.", "") + "TensorSpec")
        for field, arg in given.items():
            if arg.keyword is None:
                at = self._span(arg.value)[0]
                self.edits.append(Edit(at, at, f"{field}="))

    def _contrib(self) -> None:
        """What takes or makes an Estimator in the package that has what tf.contrib had."""
        for node in self.tree.chains:
            name = dotted_of(node) or ""
            if not calls.CONTRIB.match(name) or not any(one.endswith("import contrib") for one in self.tree.needs):
                continue
            below = name.removeprefix("contrib.")
            if below not in calls.OF_CONTRIB:
                raise NotConvertible(f"tf.contrib.{below}: no call of Keras takes its place", node)
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
            raise NotConvertible(f"{name} of an Estimator that is not called by it", node)
        if name in calls.STAY:
            return
        if name in calls.EXPORTS:
            self._function("export_saved_model", func, call)
            return
        if name not in calls.FIELDS or any(arg.star for arg in call.args):
            raise NotConvertible(f"{name} of an Estimator: no call of Keras takes its place", node)
        given = arguments(call, calls.FIELDS[name])
        if "input_fn" not in given:
            raise NotConvertible(f"{name} without an input_fn", node)
        unknown = given.keys() - set(calls.FIELDS[name])
        if unknown:
            raise NotConvertible(f"{name} of an Estimator with {min(unknown)}", node)
        owner = func.value
        for field, arg in given.items():
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
        """`object.method(...)` as `function(object, ...)`."""
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
        told = self._told(arg.value)
        mode = {"train": "", "evaluate": "'eval'", "predict": "'infer'"}[method]
        behind = ""
        if "mode" in told and mode:
            behind += f", mode={mode}"
        if told & {"params", "config"}:
            if not isinstance(owner, (cst.Name, cst.Attribute)):
                raise NotConvertible("an input function that is told params, for an Estimator without a name", arg)
            behind += f", model={self._text(owner)}"
        self.edits += [Edit(start, start, before), Edit(end, end, f"{behind})")]

    def _told(self, node: cst.BaseExpression) -> set[str]:
        """Return what of the mode, params and config an input function may be told; all, where it is not known."""
        told = {"mode", "params", "config"}
        if isinstance(node, cst.Name):
            bindings = self.program.bindings(node.value, self.tree.where.get(node, self.tree.scope))
            made = bindings[0].node if len(bindings) == 1 and bindings[0].kind == "value" else None
            if made is not None and any(one.call is made and one.row.kind == "data" for one in self.constructs):
                return set()  # numpy_input_fn and its like
        found = self.program.meaning(node, self.tree, self.tree.where.get(node, self.tree.scope))
        if isinstance(node, cst.Lambda):
            return told & {param.name.value for param in node.params.params}
        functions = [one for one in found if isinstance(one, FunctionOf)]
        if not functions or len(functions) != len(found):
            return set() if isinstance(node, cst.Call) and not found else told
        names = {name for one in functions for name in parameters_of(one.node)}
        return told & names

    # The text

    def _imports(self) -> None:
        """Take names away that nothing has any more, and brings the module in, before TensorFlow."""
        self._gone_imports()
        self._of_tensorflow_1()
        if not self.needs_runtime:
            return
        first = next((node for node in self.tree.module.body if self._is_import(node)), None)
        if first is None:
            raise NotConvertible("a file without an import at its top", self.tree.module, 1)
        line = self.tree.position(first)[0]
        at, newline = self.lines.starts[line - 1], self.lines.newline(line)
        alias = "model_fn as " + self.runtime
        self.edits.append(Edit(at, at, f"from {calls.RUNTIME} import {alias}{newline}"))

    def _of_tensorflow_1(self) -> None:
        """What the new names need, and the switch of a program that builds graphs."""
        self._behind(tensorflow_1.last_import(self.tree), self.tree.needs)
        files = reached(self.program, self.tree, set(self.program.trees.values()))
        switches, of_1 = tensorflow_1.switches_behavior(files), any(one.was_tensorflow_1 for one in files)
        place = tensorflow_1.switch(self.program, self.tree, switches, self.is_imported, of_1=of_1)
        if place is not None:
            self._behind(place, tensorflow_1.switch_lines(self.tree, self._v1("", self.tree.module).rstrip(".")))

    def _behind(self, statement: cst.CSTNode | None, lines: Sequence[str]) -> None:
        if not lines:
            return
        if statement is None:
            raise NotConvertible("a file without an import at its top", self.tree.module, 1)
        number = self.tree.position(statement)[2]
        at = self.lines.starts[number] if number < len(self.lines.starts) else len(self.lines.text)
        self.edits.append(Edit(at, at, "".join(f"{one}{self.lines.newline(number)}" for one in lines)))

    def _is_import(self, node: cst.CSTNode) -> bool:
        one = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
        if isinstance(one, cst.ImportFrom) and self._text(one).startswith("from __future__"):
            return False
        return isinstance(one, (cst.Import, cst.ImportFrom))

    def _gone_imports(self) -> None:
        """Import of what is the Estimator's, of which every use is replaced."""
        gone: dict[cst.SimpleStatementLine, list[cst.ImportAlias]] = {}
        for alias, binding in self.tree.imports:
            dotted = binding.name if binding.kind == "import" else f"{binding.module}.{binding.name}"
            if not calls.OF_ESTIMATORS.match(dotted):
                continue
            statement = next(self._statements(alias), None)
            if statement is None or len(statement.body) > 1 or not isinstance(alias, cst.ImportAlias):
                raise NotConvertible("an import of what is gone among others", alias)
            self.gone[alias.evaluated_alias or alias.evaluated_name] = (dotted, alias)
            gone.setdefault(statement, []).append(alias)
        for statement, aliases in gone.items():
            one = statement.body[0]
            assert isinstance(one, (cst.Import, cst.ImportFrom)) and not isinstance(one.names, cst.ImportStar)
            left = [alias for alias in one.names if alias not in aliases]
            start, end = self._span(one)
            if left:
                left[-1] = left[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                text = self.tree.module.code_for_node(one.with_changes(names=left))
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
