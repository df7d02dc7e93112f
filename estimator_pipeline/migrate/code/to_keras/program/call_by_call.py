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
from estimator_pipeline.migrate.code.to_keras.program.linking import imported_files, reached
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible
from estimator_pipeline.migrate.code.to_keras.unresolved_names import unknown_names

__all__ = ["convert_call_by_call"]

_RUNTIME = "estimator_pipeline.models.keras_runtime"
_NAME = "keras_model_fn"
# Row of the catalogue -> name in keras_model_fn.
_NAMES = {
    "tf.estimator.Estimator": "ModelFnModel",
    "tf.compat.v1.estimator.tpu.TPUEstimator": "tpu_model",
    "tf.estimator.EstimatorSpec": "ModelFnSpec",
    "tf.compat.v1.estimator.tpu.TPUEstimatorSpec": "TPUModelFnSpec",
    "tf.estimator.RunConfig": "RunConfig",
    "tf.compat.v1.estimator.tpu.RunConfig": "RunConfig",
    "tf.compat.v1.estimator.tpu.TPUConfig": "TPUConfig",
    "tf.compat.v1.estimator.tpu.InputPipelineConfig": "TPUConfig.InputPipelineConfig",
    "tf.estimator.TrainSpec": "TrainSpec",
    "tf.estimator.EvalSpec": "EvalSpec",
    "tf.estimator.train_and_evaluate": "train_and_evaluate",
    "tf.estimator.LatestExporter": "LatestExporter",
    "tf.estimator.FinalExporter": "FinalExporter",
    "tf.estimator.BestExporter": "BestExporter",
    "tf.estimator.export.PredictOutput": "PredictOutput",
    "tf.estimator.export.ClassificationOutput": "ClassificationOutput",
    "tf.estimator.export.RegressionOutput": "RegressionOutput",
    "tf.estimator.export.ServingInputReceiver": "ServingInputReceiver",
    "tf.estimator.export.TensorServingInputReceiver": "TensorServingInputReceiver",
    "tf.estimator.export.build_parsing_serving_input_receiver_fn": "build_parsing_serving_input_receiver_fn",
    "tf.estimator.export.build_raw_serving_input_receiver_fn": "build_raw_serving_input_receiver_fn",
    "tf.compat.v1.estimator.inputs.numpy_input_fn": "numpy_input_fn",
    "tf.compat.v1.estimator.inputs.pandas_input_fn": "pandas_input_fn",
    "tf.estimator.WarmStartSettings": "WarmStartSettings",
    "tf.estimator.add_metrics": "add_metrics",
    "tf.estimator.ProfilerHook": "ProfilerHook",
}
# Of TensorFlow 1 alone: those of TensorFlow 2 have other losses, optimizers and names of variables.
_CANNED = re.compile(r"tf\.compat\.v1\.estimator\.((DNN|Linear|DNNLinearCombined)(Classifier|Regressor))$")
# Of tf.contrib what is about Estimators.
_CONTRIB = re.compile(r"contrib\.(estimator|learn|distribute|tpu)\.\w+")
_OF_CONTRIB = {"estimator.forward_features": "forward_features"}
_MODES = {"TRAIN": "'train'", "EVAL": "'eval'", "PREDICT": "'infer'", "INFER": "'infer'"}
# Modules of Estimators: every use of what is imported from them is to be replaced.
_OF_ESTIMATORS = re.compile(r"tensorflow(\.compat\.v[12]|\.python)?\.estimator\b|tensorflow_estimator\b")
# Hooks are TensorFlow's own, and stay under another name.
_HOOKS = re.compile(r"tf\.estimator\.(SessionRun\w+|\w+Hook|CheckpointSaverListener|SecondOrStepTimer|NanLoss\w+)$")
_METHOD = "tf.estimator.Estimator."
_FIELDS = {
    "train": ("input_fn", "hooks", "steps", "max_steps", "saving_listeners"),
    "evaluate": ("input_fn", "steps", "hooks", "checkpoint_path", "name"),
    "predict": ("input_fn", "predict_keys", "hooks", "checkpoint_path", "yield_single_examples"),
}
_STAY = ("get_variable_names", "get_variable_value", "latest_checkpoint", "eval_dir")
_EXPORTS = ("export_saved_model", "export_savedmodel")
# A row of one of these kinds is the Estimator's: what is not converted of it declines the file.
_KINDS = ("estimator", "canned estimator", "spec", "run config", "train and eval spec", "call", "keras estimator",
          "exporter", "head", "export output", "serving input", "tpu")  # fmt: skip
# What several processes train by.
_CLUSTERS = ("tf.distribute.MultiWorkerMirroredStrategy", "tf.distribute.experimental.MultiWorkerMirroredStrategy",
             "tf.distribute.experimental.ParameterServerStrategy", "tf.distribute.ParameterServerStrategy",
             "tf.distribute.TPUStrategy", "tf.distribute.experimental.TPUStrategy",
             "tf.contrib.distribute.CollectiveAllReduceStrategy", "tf.compat.v1.train.Server")  # fmt: skip
# What needs a graph, where an Estimator made its own.
_OF_GRAPHS = ("tf.compat.v1.placeholder", "tf.compat.v1.Session", "tf.compat.v1.InteractiveSession",
              "tf.compat.v1.summary.FileWriter", "tf.compat.v1.train.Saver")  # fmt: skip
# TensorFlow's own, which stays.
_TENSORFLOWS = ("tf.compat.v1.tpu.CrossShardOptimizer",)


def convert_call_by_call(program: Program, trees: Sequence[Tree], found: dict[Tree, list[Construct]]) -> None:
    """Converts what `tree.keras` says that nothing else can; the outcome is there.

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
        declined = {tree: one for tree, one in made.items() if not one.text}
        if not declined:
            for tree, one in made.items():
                before = tree.keras or one
                tree.keras = dataclasses.replace(one, reason=before.reason, line=before.line)
            continue
        first, one = next(iter(declined.items()))
        for tree in group:
            if tree in declined:
                tree.keras = declined[tree]
            elif tree.keras is not None or tree in made:
                said = f"it is one program with {first.source.path}, line {one.line}: {one.reason}"
                tree.keras = ConversionOutcome(reason=said, line=tree.keras.line if tree.keras else 1)


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
    """What becomes of a file; None where it has nothing of Estimators."""
    if tree.source.cells or not tree.verbatim:
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
        self.runtime = next(one for one in (_NAME, f"{_NAME}_", f"{_NAME}_of_estimator_pipeline") if one not in taken)
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
        if not self.edits:
            return None
        self._imports()
        text = apply(self.lines.text, self.edits)
        unknown = unknown_names(text) - unknown_names(self.lines.text)
        for name in sorted(unknown & self.gone.keys()):
            dotted, node = self.gone[name]
            raise NotConvertible(f"{dotted}, which is the Estimator's own", node)
        if unknown:
            raise NotConvertible(f"the name {min(unknown)} would be gone", self.tree.module, 1)
        return ConversionOutcome(text, keeps_model_fn=True)

    # Constructs

    def _construct(self, one: Construct) -> None:
        row, node = one.row, one.node
        if node in self.done or one.details.get("imported"):
            return
        name = row.name
        if is_guarded(self.tree, node) and (row.kind in _KINDS or name in _NAMES or name == "tf.estimator.ModeKeys"):
            raise NotConvertible(f"{one.match.spelled} in a branch of another TensorFlow", node)
        method = one.call.func if one.call is not None else None
        if isinstance(method, cst.Attribute) and method.attr is node and name.startswith(_METHOD):
            assert one.call is not None and isinstance(node, cst.Name)
            self._method(name.removeprefix(_METHOD), one.call, node)
        elif name == "tf.estimator.ModeKeys":
            self._mode(node)
        elif name in _NAMES and isinstance(node, (cst.Attribute, cst.Name)) and not self._is_field(one):
            self._name(node, name)
        elif _CANNED.match(one.match.spelled) and not self._is_field(one):
            self._chain(node, f"{self._module()}.{one.match.spelled.rpartition('.')[2]}")
        elif _HOOKS.match(name) and isinstance(node, (cst.Attribute, cst.Name)) and not self._is_field(one):
            self._chain(node, self._v1(f"train.{name.rpartition('.')[2]}", node))
        elif name in _OF_GRAPHS and self._is_of_job(node):
            self._of_graph(one)
        elif name in _CLUSTERS:
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
                if _HOOKS.match(spelled) and arg.value not in self.done:
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
        if one.row.name in _TENSORFLOWS:
            return False
        if one.row.kind not in _KINDS or self._is_field(one):
            # A subclass, or a method of an object that is no Estimator of a model_fn.
            return one.row.name.endswith(" subclass") and one.row.kind in _KINDS
        return one.row.name not in ("serving_input_receiver_fn",)

    def _name(self, node: cst.BaseExpression, row: str) -> None:
        self._chain(node, f"{self._module()}.{_NAMES[row]}")

    def _module(self) -> str:
        self.needs_runtime = True
        return self.runtime

    def _mode(self, node: cst.CSTNode) -> None:
        parent = self.tree.parents.get(node)
        name = node.attr.value if isinstance(node, cst.Attribute) else ""
        if name not in _MODES and isinstance(parent, cst.Attribute) and parent.value is node:
            node, name = parent, parent.attr.value
        self._chain(node, _MODES.get(name) or f"{self._module()}.ModeKeys")

    def _chain(self, node: cst.CSTNode, text: str) -> None:
        start, end = self._span(node)
        self.edits.append(Edit(start, end, text))
        self.done.add(node)

    def _v1(self, name: str, node: cst.CSTNode) -> str:
        """A name of tf.compat.v1, by how the file calls TensorFlow."""
        for alias, binding in self.tree.imports:
            if isinstance(alias, cst.ImportAlias) and binding.kind == "import" and alias.asname is not None:
                if binding.name == "tensorflow.compat.v1":
                    return f"{alias.evaluated_alias}.{name}"
                if binding.name == "tensorflow":
                    return f"{alias.evaluated_alias}.compat.v1.{name}"
            if binding.kind == "import" and binding.name == "tensorflow":
                return f"tensorflow.compat.v1.{name}"
        raise NotConvertible("tensorflow is not imported by a name", node)

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
            if not _CONTRIB.match(name) or not any(one.endswith("import contrib") for one in self.tree.needs):
                continue
            below = name.removeprefix("contrib.")
            if below not in _OF_CONTRIB:
                raise NotConvertible(f"tf.contrib.{below}: no call of Keras takes its place", node)
            self._chain(node, f"{self._module()}.{_OF_CONTRIB[below]}")

    # Methods

    def _method(self, name: str, call: cst.Call, node: cst.Name) -> None:
        func = call.func
        if not isinstance(func, cst.Attribute):
            raise NotConvertible(f"{name} of an Estimator that is not called by it", node)
        if name in _STAY:
            return
        if name in _EXPORTS:
            self._function("export_saved_model", func, call)
            return
        if name not in _FIELDS or any(arg.star for arg in call.args):
            raise NotConvertible(f"{name} of an Estimator: no call of Keras takes its place", node)
        given = arguments(call, _FIELDS[name])
        if "input_fn" not in given:
            raise NotConvertible(f"{name} without an input_fn", node)
        unknown = given.keys() - set(_FIELDS[name])
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
        """What of the mode, params and config an input function may be told; all, where it is not known."""
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
        """Takes names away that nothing has any more, and brings the module in, before TensorFlow."""
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
        self.edits.append(Edit(at, at, f"from {_RUNTIME} import {alias}{newline}"))

    def _of_tensorflow_1(self) -> None:
        """What the new names need, and the switch of a program that builds graphs."""
        self._behind(tensorflow_1.last_import(self.tree), self.tree.needs)
        files = reached(self.program, self.tree, set(self.program.trees.values()))
        switches, of_1 = tensorflow_1.switches_behavior(files), any(one.was_tensorflow_1 for one in files)
        place = tensorflow_1.switch(self.program, self.tree, switches, self.is_imported, of_1=of_1)
        if place is not None:
            self._behind(place, ["", self._v1("disable_v2_behavior()", self.tree.module)])

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
        """Imports of what is the Estimator's, of which every use is replaced."""
        gone: dict[cst.SimpleStatementLine, list[cst.ImportAlias]] = {}
        for alias, binding in self.tree.imports:
            dotted = binding.name if binding.kind == "import" else f"{binding.module}.{binding.name}"
            if not _OF_ESTIMATORS.match(dotted):
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
