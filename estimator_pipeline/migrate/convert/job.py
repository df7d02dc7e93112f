"""The statements of a program that uses an Estimator, on the Keras model: fit, evaluate, predict.

`tf.estimator` writes a checkpoint each `save_checkpoints_steps`: an epoch of `fit`, after which Keras saves and
evaluates. An interrupted job resumes at its last epoch; a finished one trains no further.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import Scope, Tree, children, iter_nodes
from estimator_pipeline.migrate.convert.allowed import BUILTINS, METHODS, is_message
from estimator_pipeline.migrate.convert.datasets import InputFnCall, read_input_fn
from estimator_pipeline.migrate.convert.estimators import EstimatorJob, Use, statement_around
from estimator_pipeline.migrate.convert.exports import check_outputs, serving_arguments
from estimator_pipeline.migrate.convert.keras_models import WITHOUT_COUNTERPART
from estimator_pipeline.migrate.convert.model import Model
from estimator_pipeline.migrate.convert.model_fn import parameters
from estimator_pipeline.migrate.convert.names import (
    FileNames,
    Refused,
    calls_in,
    names_bound,
    names_changed,
    names_read,
)
from estimator_pipeline.migrate.convert.rest import Rest
from estimator_pipeline.migrate.convert.rule import operand

__all__ = ["write_job"]

_WIDTH = 100
_WITHOUT_COUNTERPART = ("save_checkpoints_secs", "save_summary_steps", "log_step_count_steps", "session_config",
                        "throttle_secs", "start_delay_secs", "exports_to_keep", "eval_name", "name", "hooks",
                        "eval_hooks")  # fmt: skip
_TRAINS = ("train", "train_and_evaluate")
_FOLDERS = ("model_dir", "eval_dir")
_PLAIN = {*METHODS, "flag_values_dict", "_asdict", "to_dict"}  # methods that are the same later
_REMOVALS = (".rmtree", ".DeleteRecursively")
_COMPOUND = (cst.BaseCompoundStatement, cst.Else)
_NOT_ONCE = (cst.IfExp, cst.BooleanOperation, cst.BaseComp, cst.While)  # may evaluate what is inside never, or again


def write_job(
    names: FileNames, rests: Mapping[Tree, Rest], estimator: EstimatorJob, model: Model, *, alone: bool = True
) -> None:
    """Write the statements of an Estimator's job, into the changes of its file.

    Args:
        rests: file of the program -> its changes.
        alone: whether it is the only Estimator of the file; the models of several keep the names of the Estimators.

    Raises:
        Refused: its calls cannot be followed.
    """
    _Writer(names, rests, estimator, model, alone).job()


class _Writer:
    def __init__(
        self, names: FileNames, rests: Mapping[Tree, Rest], estimator: EstimatorJob, model: Model, alone: bool
    ) -> None:  # fmt: skip
        self.names, self.rests, self.estimator, self.model = names, rests, estimator, model
        rest = rests[names.tree]
        self.tf, self.config, self.rest = names.tf, estimator.config, rest
        self.params = rest.text(estimator.args["params"]) if "params" in estimator.args else ""
        self.folder = rest.text(estimator.model_dir) if estimator.model_dir is not None else ""
        self.keras = estimator.keras_model
        variable = self.keras if isinstance(self.keras, cst.Name) and estimator.factory is None else None
        self.is_made = variable is not None  # the user has a name for the model
        self.name = variable.value if variable else self.fresh("model") if alone else self.own_name()
        self.alone, self.data, self.strategy, self.distributed = alone, "", "", ""
        self.callbacks: list[str] = []

    def job(self) -> None:
        estimator = self.estimator
        uses = [use for use in estimator.uses if use.kind not in (*_FOLDERS, "add_metrics")]
        if estimator.metric_fns and not isinstance(estimator.model_fn, cst.Call):
            raise Refused("add_metrics, of an Estimator of a model_fn", next(iter(estimator.metric_fns)))
        if not uses:
            raise Refused("an Estimator that is not used", estimator.call)
        folder = self.names.value(estimator.model_dir) if estimator.model_dir is not None else None
        if isinstance(folder, (cst.IfExp, cst.BooleanOperation)) and "None" in map(self.names.text, children(folder)):
            raise Refused("a model_dir that may be None", folder)
        if self.keras is None and not self.folder and all(use.kind not in _TRAINS for use in uses):
            raise Refused("an Estimator that is not trained here: its checkpoint is of another program", uses[0].call)
        self.home = estimator.statement or statement_around(self.names, uses[0].site)
        places: dict[cst.CSTNode, list[Use]] = {}
        for use in uses:
            existing = next((place for place in reversed(places) if self.is_behind(use.site, place)), None)
            place = existing or self.place(use, shared=not self.folder or self.config.strategy is not None)
            places.setdefault(place, []).append(use)
        self.check_lateness(places)
        self.comment(next(iter(places)))
        if self.keras is not None and not self.is_made:
            self.make_keras(self.keras)
        for place, group in places.items():
            self.begin(group, place)
            for use in group:
                self.check(use, group)
                self.write(use, at_start=use is group[0] and statement_around(self.names, use.call) is place)
                if use.passed is not None:
                    self.rest.new[use.passed] = self.name
        for use in estimator.uses:
            if use.kind in _FOLDERS:
                self.folder_of(use)
        for node in self.config.reads:
            self.folder_of(Use("model_dir", node, {}))
        statement = None if estimator.statement in self.rest.replaced else estimator.statement
        gone = [statement, *estimator.statements, *estimator.left_out]
        self.rest.removed += [node for node in gone if node is not None]

    def check_lateness(self, places: Collection[cst.CSTNode]) -> None:
        """Check that what the Estimator takes is the same where the model is made, which is later than the Estimator.

        Raises:
            Refused: a name of it changes in between, or the effect of a call would come in another order or number.
        """
        names, config, factory = self.names, self.config, self.estimator.factory
        taken = {name: node for name, node in self.estimator.args.items() if name not in ("model_fn", "config")}
        taken |= {f"{name} of config": node for name, node in config.fields.items() if name not in _WITHOUT_COUNTERPART}
        late = [*taken.values(), *(node for node in self.model.passed if isinstance(node, cst.Arg))]
        read = set[str]().union(*map(names_read, late), () if factory is None else names_read(factory.node))
        called = [function.node for call in calls_in(*late) if (function := names.function(call.func)) is not None]
        read = read.union(*(names_read(node) for node in called)) - {"self", "None", "True", "False"}
        ends = [statement_around(names, use.site) for use in self.estimator.uses]
        first = [statement_around(names, use.site) for use in self.estimator.uses
                 if use.kind not in (*_FOLDERS, "add_metrics")]  # fmt: skip
        for node in self.between(ends, loops=True):
            bound = names_bound(node)
            again = any(node in names.tree.above(end) for end in ends)
            for call in calls_in(node):
                later = again or self.position(call) > min(map(self.position, first))
                if later and self.folder and names.name(call.func).endswith(_REMOVALS):
                    raise Refused("a removal of files between the uses of an Estimator", call)
                function = names.function(call.func)
                if function is not None and function.node is not getattr(self.estimator.model_fn, "node", None):
                    bound |= names_bound(function.node.body) - {*function.tree.scopes[function.node].names}
                    changed = {name.value for name in names_changed(function.node.body)}
                    if changed & {*parameters(function.node)}:
                        bound = bound.union(*map(names_read, call.args))
            if bound & read:
                raise Refused(f"{min(bound & read)}, which changes between the Estimator and its use", node)
        effect = next(self.effects(names, late), None)
        if factory is not None:
            effect = effect or next(self.effects(factory.names, [factory.node.body]), None)
        takes_params = any("params" in self.input_fn(use).takes for use in self.estimator.uses
                           if "input_fn" in use.args and not use.passed) and factory is None  # fmt: skip
        if effect is not None and (len(places) > 1 or takes_params or any(
            next(self.effects(names, [node]), None) for node in self.between(places, loops=False)
        )):  # fmt: skip
            raise Refused("a call with an effect that would come at another time than the Estimator", effect)

    def between(self, ends: Collection[cst.CSTNode], *, loops: bool) -> Iterator[cst.CSTNode]:
        """Yield the statements between those of the Estimator and the last of some others, without those of the job.

        Args:
            loops: whether a loop around one of those counts as a whole.
        """
        tree, block = self.names.tree, self.names.tree.parents.get(self.home)
        of_job = {self.home, *self.estimator.statements, *self.estimator.left_out}
        fields = [value for value in self.config.fields.values() if value in tree.parents and names_read(value)]
        starts = [self.home, *(statement_around(self.names, value) for value in fields)]
        starts = [node for node in starts if tree.parents.get(node) is block]
        start, last = min(map(self.position, starts)), max(map(self.position, ends))
        around = {above for node in ends for above in tree.above(node)}
        waiting = [node for node in getattr(block, "body", ()) if self.position(node) > start]
        while waiting:
            node = waiting.pop(0)
            if node in of_job or self.position(node) >= last or isinstance(node, (cst.FunctionDef, cst.ClassDef)):
                continue
            if node in around and not (loops and isinstance(node, (cst.For, cst.While))):
                waiting += children(node)
            elif node not in ends:
                yield node

    def effects(self, names: FileNames, nodes: Sequence[cst.CSTNode]) -> Iterator[cst.CSTNode]:
        """Yield the calls and changes in nodes that may have an effect, or another result later."""
        for node in nodes:
            for call in calls_in(node):
                full = names.name(call.func)
                method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
                is_builtin = isinstance(call.func, cst.Name) and call.func.value in BUILTINS and not names.is_variable(
                    call.func)  # fmt: skip
                plain = full.startswith(("tf.", "os.path.")) or (method in _PLAIN and not full)
                if not plain and not is_builtin and not is_message(names, call):
                    yield call
            for name in names_changed(node):
                home = names.home(name)
                if home is not names.scope(name).around() or home is names.tree.scope:
                    yield name

    def folder_of(self, use: Use) -> None:
        """Write the folder that `estimator.model_dir` and `estimator.eval_dir()` are."""
        if not self.folder or isinstance(self.estimator.model_dir, (cst.Call, cst.BinaryOperation)):
            raise Refused(f"{use.kind} of an Estimator without a model_dir that is a name or text", use.call)
        eval_dir = f'os.path.join({self.folder}, "eval")'
        self.rest.needs |= {"os"} if use.kind == "eval_dir" else set()
        self.rest.new[use.call] = eval_dir if use.kind == "eval_dir" else self.folder

    def is_behind(self, node: cst.CSTNode, statement: cst.CSTNode) -> bool:
        """Return whether a node is in the block of a statement, at it or behind it, so that it runs later."""
        block = self.names.tree.parents.get(statement)
        chain = [node, *self.names.tree.above(node)]
        if block not in chain:
            return False
        at = chain[chain.index(block) - 1]
        return self.position(at) >= self.position(statement)

    def position(self, node: cst.CSTNode) -> tuple[int, ...]:
        return self.names.tree.position(node)

    def own_name(self) -> str:
        """Return the name of the Estimator."""
        assign = self.names.tree.parents.get(self.estimator.call)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
        if not isinstance(target, cst.Name):
            raise Refused("an Estimator without a name, beside others", self.estimator.call)
        return target.value

    def fresh(self, name: str) -> str:
        scope: Scope | None = self.names.scope(self.estimator.call)
        calls = [self.estimator.call, *(use.call for use in self.estimator.uses if use.kind == "add_metrics")]
        while scope is not None:
            if any(binding.node not in calls for binding in scope.names.get(name, ())):
                return f"keras_{name}"
            scope = scope.parent
        return name

    def name_of(self, name: str) -> str:
        """Return a new name for something of this Estimator, apart from those of the file's other Estimators."""
        return self.fresh(name if self.alone else f"{self.name}_{name}")

    def place(self, use: Use, *, shared: bool) -> cst.CSTNode:
        """Return the statement before which the model of a use is made, outside of the loops around the use.

        Args:
            shared: whether the branches of the program share one model: it has no folder to restore another from.
        """
        tree = self.names.tree
        block = tree.parents.get(self.home)
        at: cst.CSTNode = statement_around(self.names, use.site)
        while tree.parents.get(at) is not block:
            above = next((node for node in tree.above(at) if isinstance(node, _COMPOUND)), None)
            if above is None or isinstance(above, cst.FunctionDef):
                raise Refused("an Estimator that is used outside of the block that makes it", use.call)
            if isinstance(above, (cst.If, cst.Else)) and not shared:
                break
            if isinstance(above, (cst.Try, cst.With)):
                self.check_guard(above, at, shared)
                break
            reads = self.reads_of_input_fn(use)
            if reads & (_targets(above) if isinstance(above, cst.For) else set()):
                raise Refused("an input_fn that depends on the loop around it", use.call)
            if reads & names_bound(above):
                raise Refused("an input_fn that is made in the block of its use, which others share", use.call)
            at = above
        return at

    def check_guard(self, guard: cst.CSTNode, at: cst.CSTNode, shared: bool) -> None:
        """Check that a model that is made inside of a `try` or `with` serves all uses, unless a folder keeps it."""
        above = self.names.tree.above
        inside = all(self.names.tree.parents[at] in above(use.site) for use in self.estimator.uses)
        loops = [node for node in above(guard) if isinstance(node, (cst.For, cst.While))]
        if shared and (not inside or any(loop not in above(self.home) for loop in loops)):
            raise Refused("a try or with around some uses of an Estimator", guard)

    def reads_of_input_fn(self, use: Use) -> frozenset[str]:
        """Return the names that the input_fn of a use reads, also those of a function of the same block."""
        if "input_fn" not in use.args or use.passed:
            return frozenset()
        read, function = names_read(use.args["input_fn"]), self.names.function(use.args["input_fn"])
        scope = function.tree.scopes[function.node].parent if function is not None else None
        is_here = scope is self.names.scope(use.call).around()
        return read | names_read(function.node) if function is not None and is_here else read

    def check(self, use: Use, group: list[Use]) -> None:
        """Let the program check that the model of an evaluation or prediction is trained."""
        statement = statement_around(self.names, use.site)
        trains = [other for other in group if other.kind in _TRAINS]
        if use.kind in _TRAINS or not trains or self.keras is not None:
            return
        if not any(self.is_behind(use.site, statement_around(self.names, other.call)) for other in trains):
            if isinstance(self.names.tree.parents.get(use.call), cst.Assign) and use.kind == "predict":
                raise Refused("predictions that are read after a later training", use.call)
            self.rest.needs.add("check_trained")
            self.rest.before.setdefault(statement, []).append(f"check_trained({self.name})")

    def make_keras(self, node: cst.BaseExpression) -> None:
        """Write the line that makes the user's model where the Estimator was made."""
        lines = [f"{self.name} = {self.rest.text(node)}"]
        if self.estimator.factory is not None:
            lines = _call(f"{self.name} = {self.model.make}", [self.rest.text(value) for value in self.model.passed])
        at = self.rest.before if self.estimator.statement is None else self.rest.replaced
        at.setdefault(self.home, []).extend(lines)

    def dataset(self, use: Use, name: str = "input_fn") -> str:
        """Return the dataset of an input function, as the model takes it."""
        read, trains = self.input_fn(use, name), use.kind in _TRAINS and name == "input_fn"
        distributes = trains and self.config.strategy is not None
        data = read.call("input_context" if distributes and read.takes_context else "")
        in_epochs = trains and "max_steps" in use.args and "save_checkpoints_steps" in self.config.fields
        if in_epochs and (use.kind == "train_and_evaluate" or self.resumes(use)):
            self.rest.needs.add("once")
            data = f"once({data})"
        if distributes:
            return f"{self.strategy}.distribute_datasets_from_function(lambda input_context: {data})"
        return data if self.keras is None else f"keras_data({self.model_of(use)}, {data})"

    def training_data(self, use: Use, at_start: bool) -> str:
        """Return the dataset of a training: the first one, by its name, also where a strategy has distributed it."""
        data = self.dataset(use)
        return self.data if at_start or data == self.distributed else data

    def input_fn(self, use: Use, name: str = "input_fn") -> InputFnCall:
        kind = "evaluate" if name == "eval_input_fn" else use.kind
        return read_input_fn(self.names, self.rests, use.args[name], kind, self.params)

    def begin(self, group: list[Use], first: cst.CSTNode) -> None:
        """Write the lines that make the model, before the first statement that uses it."""
        lines: list[str] = []
        shown = next((use for use in group if "input_fn" in use.args and not use.passed), None)
        shown = shown or self.readable(group[0])
        data = self.input_fn(shown)
        trains = any(use.kind in _TRAINS for use in group)
        self.data = self.name_of("training" if group[0].kind in _TRAINS else "data")
        self.rest.needs |= {"model_inputs"} if self.keras is None else {"keras_data", "named_outputs"}
        if self.folder and isinstance(self.estimator.model_dir, (cst.Call, cst.BinaryOperation)):
            name = self.name_of("model_dir")
            lines.append(f"{name} = {self.rest.text(self.estimator.model_dir)}")
            self.folder = name
        seed = self.config.fields.get("tf_random_seed")
        if seed is not None:
            lines.append(f"{self.tf}.keras.utils.set_random_seed({self.rest.text(seed)})")
        makes = [self.params or "{}"] if self.model.takes_params else []
        makes += [self.rest.text(value) for value in self.model.passed]
        if self.config.strategy is None:
            lines.append(f"{self.data} = {self.dataset(shown)}")
            if self.keras is None:
                values = ", ".join([f"model_inputs({self.data})", *makes])
                lines.append(f"{self.name} = {self.model.make}({values})")
        else:
            strategy = self.rest.text(self.config.strategy)
            if isinstance(self.config.strategy, cst.Call):
                values, strategy = strategy, self.name_of("strategy")
                lines.append(f"{strategy} = {values}")
            lines.append(f"with {strategy}.scope():")
            lines.append(f"    {self.name} = {self.model.make}({', '.join([f'model_inputs({data.call()})', *makes])})")
            self.strategy = strategy
            self.distributed = self.dataset(shown)
            called, _, read = self.distributed.partition("(")
            lines += _call(f"{self.data} = {called}", [read.removesuffix(")")])
        if trains:
            self.callbacks = self.saving(lines)
        elif self.config.is_multi_worker:
            raise Refused("an Estimator of several workers that is not trained here", group[0].call)
        elif self.keras is not None:  # it keeps its own weights where no checkpoint is
            self.rest.needs |= {"os", "checkpoints"} if self.folder else set()
            lines += [f'checkpoints({self.name}, os.path.join({self.folder}, "keras"))'] if self.folder else []
        else:
            self.rest.needs |= {"os", "restore"}
            lines.append(f'restore({self.name}, os.path.join({self.folder}, "keras"))')
        self.rest.before.setdefault(first, []).extend(lines)

    def readable(self, export: Use) -> Use:
        """Return a use whose input function shows what the model of an export takes."""
        for use in self.estimator.uses:
            around = [node for node in self.names.tree.above(use.call) if isinstance(node, cst.If)]
            local = set().union(*(names_bound(node) for node in around if node not in self.names.tree.above(self.home)))
            if "input_fn" in use.args and not use.passed and not names_read(use.args["input_fn"]) & local:
                return use
        raise Refused("an Estimator without an input_fn that shows what the model takes", export.call)

    def comment(self, first: cst.CSTNode) -> None:
        """Write comments on the settings that have no counterpart in `fit`."""
        without = {*_WITHOUT_COUNTERPART}
        if any(use.kind == "train" and "max_steps" not in use.args for use in self.estimator.uses):
            without.add("save_checkpoints_steps")
        settings = [(name, value) for name, value in self.config.fields.items() if name in without]
        settings += [(name.removeprefix("eval_"), value) for use in self.estimator.uses
                     for name, value in use.args.items() if name in _WITHOUT_COUNTERPART]  # fmt: skip
        settings += [(name, value) for name, value in self.estimator.args_made.items() if name in WITHOUT_COUNTERPART]
        texts = [f"{name}={self.names.text(value)}" for name, value in settings if self.names.text(value) != "[]"]
        texts += [self.names.text(node) for node in self.estimator.left_out]
        lines = list(dict.fromkeys(" ".join(text.split()) for text in texts))
        if lines:
            joined = ", ".join(lines)
            written = [f"# Without a counterpart in fit: {joined}"]
            if len(joined) > _WIDTH:
                written = ["# Without a counterpart in fit:", *(f"#     {line}" for line in lines)]
            self.rest.before.setdefault(first, []).extend(written)

    def saving(self, lines: list[str]) -> list[str]:
        """Return the callbacks that save and log; `lines` get what they need."""
        if not self.folder:
            return []
        self.rest.needs.add("os")
        folder = self.folder
        log = f"{self.tf}.keras.callbacks.TensorBoard({folder})"
        if self.config.is_multi_worker:
            backup = f'os.path.join({folder}, "backup"), delete_checkpoint=False'
            return [f"{self.tf}.keras.callbacks.BackupAndRestore({backup})", log]
        self.rest.needs.add("checkpoints")
        keep = self.config.fields.get("keep_checkpoint_max")
        text = self.rest.text(keep) if keep is not None else "5"
        all_of_them = "None" if text in ("None", "0") else f"{text} or None"
        more = f", max_to_keep={text if text.isdigit() and text != '0' else all_of_them}" if keep is not None else ""
        more += ", restores_rates=True" if self.model.restores_rates else ""
        save = self.name_of("save")
        lines.append(f'{save} = checkpoints({self.name}, os.path.join({folder}, "keras"){more})')
        return [save, log]

    def write(self, use: Use, *, at_start: bool) -> None:
        if use.kind == "train":
            self.train(use, at_start=at_start)
        elif use.kind == "train_and_evaluate":
            self.train_and_evaluate(use, at_start=at_start)
        elif use.kind == "evaluate":
            self.rest.write(use.call, self.evaluated(use, at_start=at_start))
        elif self.keras is None and not self.model.predictions:
            raise Refused(f"{use.kind}, of a model_fn without predictions", use.call)
        elif use.kind == "export":
            if not isinstance(self.names.tree.parents.get(use.call), cst.Expr):
                raise Refused("a use of the path of an export", use.call)
            folder = self.rest.text(use.args["export_dir_base"])
            self.rest.replaced[self.line(use)] = _call(*self.export(folder, use.args["serving_input_receiver_fn"]))
        else:
            self.rest.needs.add("predict")
            data = self.data if at_start else self.dataset(use)
            predictions = self.model.predictions or f"lambda _, outputs: named_outputs({self.model_of(use)}, outputs)"
            keys = [self.rest.text(use.args["predict_keys"])] if "predict_keys" in use.args else []
            options = ", ".join([self.model_of(use), data, predictions, *keys])
            self.rest.write(use.call, f"predict({options})")

    def line(self, use: Use) -> cst.CSTNode:
        """Return the line of a call that is a statement, which new lines replace."""
        statement = statement_around(self.names, use.call)
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            raise Refused(f"{use.kind} beside other statements in a line", use.call)
        return statement

    def export(self, folder: str, serving: cst.BaseExpression) -> tuple[str, list[str]]:
        """Return the function and the arguments of the call that exports the model."""
        if self.config.is_multi_worker:
            raise Refused("an export of several workers, which would write the same files", serving)
        receivers = serving_arguments(self.names, self.rests, serving)
        if self.keras is not None:
            self.rest.needs.add("export_keras")
            return "export_keras", [self.name, folder, *receivers]
        named = check_outputs(self.names, self.estimator.model_fn)
        self.rest.needs.add("export")
        receivers += [self.model.of_examples] if self.model.of_examples else []
        receivers += [f"other_names={named!r}"] if named else []
        return "export", [self.name, self.model.predictions, folder, *receivers]

    def exporters(self, use: Use, *, best: bool) -> list[tuple[str, list[str]]]:
        """Return the calls of exports, of the best model or of the last; LatestExporter wrote earlier ones, too."""
        if use.exporters and not (self.folder and (self.keras is not None or self.model.predictions)):
            raise Refused("an exporter without a model_dir or predictions", use.exporters[0][1])
        self.rest.needs |= {"os"} if use.exporters else set()
        return [self.export(f'os.path.join({self.folder}, "export", {self.rest.text(name)})', serving)
                for kind, name, serving in use.exporters if best is (kind == "BestExporter")]  # fmt: skip

    def stopping(self, use: Use, each: str) -> Iterator[str]:
        """Yield the callbacks of early stopping and of the best model; `each` is the number of steps of an epoch."""
        for stop in use.stops:
            if "save_checkpoints_steps" not in self.config.fields:
                raise Refused("early stopping without save_checkpoints_steps: no evaluation before the end", stop.call)
            metric = str(stop.metric.evaluated_value) if isinstance(stop.metric, cst.SimpleString) else ""
            monitor = repr(f"val_{metric}") if metric else f'"val_" + {operand(self.rest.text(stop.metric))}'
            options = [monitor, f"mode={stop.mode!r}", f"patience={_ratio(self.rest.text(stop.steps), each)}"]
            if stop.first is not None:
                options.append(f"start_from_epoch={_ratio(self.rest.text(stop.first), each)} - 1")
            yield f"{self.tf}.keras.callbacks.EarlyStopping({', '.join(options)})"
        for function, options in self.exporters(use, best=True):
            self.rest.needs.add("ExportBest")
            yield f"ExportBest(lambda: {function}({', '.join(options)}))"

    def evaluated(self, use: Use, *, at_start: bool) -> str:
        text = self.data if at_start else self.dataset(use)
        text += self.taken(use.args.get("steps"))
        written = f"{self.model_of(use)}.evaluate({text}, return_dict=True, verbose=0)"
        if isinstance(self.names.tree.parents.get(use.call), cst.Expr):
            return written
        return f"dict({written}, global_step=int({self.model_of(use)}.optimizer.iterations.numpy()))"

    def taken(self, steps: cst.BaseExpression | None) -> str:
        """Return `.take(...)` for a number of steps; None takes all."""
        if steps is None:
            return ""
        text = self.count(steps)
        return f".take(-1 if {operand(text)} is None else {text})" if self.may_be_none(steps) else f".take({text})"

    def count(self, steps: cst.BaseExpression) -> str:
        """Return a number of steps; a fraction, after which the Estimator stopped, is rounded up."""
        text = self.rest.text(steps)
        return f"int(-(-{operand(text)} // 1))" if self.divides(steps) else text

    def divides(self, node: cst.BaseExpression, hops: int = 8) -> bool:
        """Return whether a number, or another that it is computed of, is a quotient."""
        value = self.names.value(node)
        of = [inner for inner in iter_nodes(value) if isinstance(inner, cst.Name) and inner in self.names.tree.where]
        return not isinstance(value, cst.Call) and (
            any(isinstance(inner, cst.Divide) for inner in iter_nodes(value))
            or any(self.divides(inner, hops - 1) for inner in of if hops and self.names.value(inner) is not inner)
        )

    def defaults(self, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """Yield the defaults of a parameter, or of an option such as `args.steps` or `FLAGS.steps`."""
        names, value = self.names, self.names.value(node)
        function, parameter = names.flag(value) or (None, "")
        params = function.params if isinstance(function, cst.FunctionDef) else cst.Parameters()
        for param in (*params.params, *params.kwonly_params):
            if param.name.value == parameter and param.default is not None:
                yield param.default
        option = value.attr.value if isinstance(value, cst.Attribute) else None
        for call in (call for tree in names.program.trees.values() for call in tree.calls):
            method = names.text(call.func).rpartition(".")[2]
            texts = [names.text(arg.value).strip("'\"") for arg in call.args if arg.keyword is None]
            is_flag, is_option = method.startswith("DEFINE_"), method == "add_argument"
            defined = {text.strip("-").replace("-", "_") for text in texts[:2]} if is_flag or is_option else set()
            if option not in defined:
                continue
            passed = arguments(call, ("name", "default") if is_flag else ())
            default = passed.get("default", passed.get("default_value"))
            if default is not None:
                yield default.value
            elif is_option and texts[0].startswith("-") and "required" not in passed:
                yield cst.Name("None")

    def may_be_none(self, node: cst.BaseExpression) -> bool:
        """Return whether a number of steps may be None: a variable, or an option without a number as its default."""
        value = self.names.value(node)
        if isinstance(value, cst.Attribute) and any(isinstance(each, (cst.Integer, cst.BinaryOperation))
                                                    for each in self.defaults(node)):  # fmt: skip
            return False
        looked_up = isinstance(value, cst.Call) and self.names.text(value.func).endswith(".get")
        return looked_up or isinstance(value, (cst.Name, cst.Attribute, cst.Subscript, cst.IfExp, cst.BooleanOperation))

    def model_of(self, use: Use) -> str:
        """Return the name of the model, which is a parameter in a function that is passed it."""
        return self.names.text(use.call).partition(".")[0] if use.passed is not None else self.name

    def train(self, use: Use, *, at_start: bool) -> None:
        """Write `fit` for `train`, as the statement that it is."""
        if not isinstance(self.names.tree.parents.get(use.call), cst.Expr):
            raise Refused("a use of what train returns", use.call)
        options = [self.training_data(use, at_start)]
        if "max_steps" in use.args and self.resumes(use):
            options += self.epochs(use)
        else:
            steps = use.args.get("steps", use.args.get("max_steps"))
            self.check_end(use, steps)
            options += [f"steps_per_epoch={self.count(steps)}"] if steps is not None else []
            counts = ["CountSteps()"] if steps is None else []  # to the end of the data
            self.rest.needs |= {"CountSteps"} if counts else set()
            options += _callbacks([*counts, *self.callbacks])
        self.replace(use.call, [*options, "verbose=2"])

    def check_end(self, use: Use, steps: cst.BaseExpression | None) -> None:
        if steps is None and self.config.strategy is not None:
            raise Refused("a training under a strategy without a number of steps, which fit requires", use.call)

    def resumes(self, use: Use) -> bool:
        """Return whether a training may continue an earlier one: from a checkpoint, or of the same model."""
        loops = [node for node in self.names.tree.above(use.call) if isinstance(node, (cst.For, cst.While))]
        again = any(loop not in self.names.tree.above(self.home) for loop in loops)
        return bool(self.folder) or again or sum(other.kind in _TRAINS for other in self.estimator.uses) > 1

    def replace(self, call: cst.BaseExpression, options: list[str]) -> None:
        """Write `fit` for a statement; in one line where the statement shares its line: `if x: train()`."""
        statement = statement_around(self.names, call)
        if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
            self.rest.replaced[statement] = self.fit(options)
        else:
            self.rest.new[call] = f"{self.name}.fit({', '.join(options)})"

    def fit(self, options: list[str]) -> list[str]:
        return _call(f"{self.name}.fit", options)

    def epochs(self, use: Use) -> list[str]:
        """Return the arguments of `fit` that train up to a step, an epoch for each checkpoint; or to the data's end."""
        every = self.config.fields.get("save_checkpoints_steps")
        self.check_end(use, use.args.get("max_steps"))
        if "max_steps" not in use.args:
            if every is not None:
                raise Refused("save_checkpoints_steps without max_steps: the number of epochs is not known", every)
            self.rest.needs.add("CountSteps")
            return _callbacks(["CountSteps()", *self.callbacks, *self.stopping(use, "")])
        total, most = self.count(use.args["max_steps"]), self.names.value(use.args["max_steps"])
        defaults = {self.names.text(each) for each in self.defaults(most)}
        sides = {self.names.text(side) for side in (most, *children(most)) if isinstance(side, cst.Name)}
        if "None" in sides | defaults:
            raise Refused("max_steps that may be None", most)
        each = self.count(every) if every is not None else total
        self.rest.needs.add("StopAt")
        stop = f"StopAt({total}, {each})"
        count = "1" if each == total else _ratio(total, each)
        if total.isdigit() and each.isdigit():
            count = str(-(-int(total) // int(each)))
        start = []
        if self.resumes(use) and not self.config.is_multi_worker:
            self.rest.needs.add("first_epoch")
            start.append(f"initial_epoch=first_epoch({self.name}, {total}, {each})")
        return [
            f"epochs={count}",
            *start,
            f"steps_per_epoch={each}",
            *_callbacks([stop, *self.callbacks, *self.stopping(use, each)]),
        ]

    def train_and_evaluate(self, use: Use, *, at_start: bool) -> None:
        text = self.dataset(use, "eval_input_fn") + self.taken(use.args.get("eval_steps"))
        options = [self.training_data(use, at_start), *self.epochs(use), f"validation_data={text}", "verbose=2"]
        statement = statement_around(self.names, use.call)
        exported = [line for export in self.exporters(use, best=False) for line in _call(*export)]
        if isinstance(self.names.tree.parents.get(use.call), cst.Expr):
            if exported:
                self.rest.replaced[self.line(use)] = [*self.fit(options), *exported]
            else:
                self.replace(use.call, options)
            return
        parent = self.names.tree.parents.get(use.call)
        read = self.names.text(parent.targets[0].target if isinstance(parent, cst.Assign) else parent or use.call)
        read = read.rstrip("()")
        if use.exporters and not read.endswith(("[0]", ", _")):
            raise Refused("a use of the paths of exports, which train_and_evaluate returns", use.call)
        self.check_once(use, statement)
        metrics = self.name_of("metrics")
        evaluated = f"{metrics} = {self.name}.evaluate({text}, return_dict=True, verbose=0)"
        self.rest.before.setdefault(statement, []).extend([*self.fit(options), *exported, evaluated])
        step = f"global_step=int({self.name}.optimizer.iterations.numpy())"
        self.rest.new[use.call] = f"(dict({metrics}, {step}), [])"

    def check_once(self, use: Use, statement: cst.CSTNode) -> None:
        """Check that a statement evaluates a call once, and before other uses: its lines come before the statement."""
        inside = [node for node in self.names.tree.above(use.call) if node not in self.names.tree.above(statement)]
        here = [other for other in self.estimator.uses if statement_around(self.names, other.call) is statement]
        if any(isinstance(node, _NOT_ONCE) for node in inside) or any(
            other is not use and other.kind not in _FOLDERS for other in here
        ):
            reason = "train_and_evaluate in a conditional expression, comprehension or while, or beside another use"
            raise Refused(reason, use.call)


def _call(function: str, options: list[str]) -> list[str]:
    """Return the lines of a call, one for each argument where one line is too long."""
    line = f"{function}({', '.join(options)})"
    if len(line) <= _WIDTH and "\n" not in line:
        return [line]
    return [f"{function}(", *(f"    {part}" for option in options for part in f"{option},".split("\n")), ")"]


def _callbacks(callbacks: list[str]) -> list[str]:
    """Return the argument `callbacks` of `fit`, in several lines where one is too long; nothing without any."""
    text = f"callbacks=[{', '.join(callbacks)}]"
    if len(text) > _WIDTH:
        text = "\n".join(["callbacks=[", *(f"    {callback}," for callback in callbacks), "]"])
    return [text] if callbacks else []


def _ratio(number: str, by: str) -> str:
    """Return the text of a quotient that is rounded up."""
    return f"-(-{operand(number)} // {operand(by)})"


def _targets(node: cst.For) -> set[str]:
    return set(names_read(node.target))
