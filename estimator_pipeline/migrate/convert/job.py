"""The statements of a program that uses an Estimator, on the Keras model: fit, evaluate, predict.

`tf.estimator` writes a checkpoint each `save_checkpoints_steps`: an epoch of `fit`, after which Keras saves and
evaluates. An interrupted job resumes at its last epoch; a finished one trains no further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import Scope, Tree
from estimator_pipeline.migrate.convert.datasets import InputFnCall, read_input_fn
from estimator_pipeline.migrate.convert.estimators import EstimatorJob, Use, statement_around
from estimator_pipeline.migrate.convert.model import Model
from estimator_pipeline.migrate.convert.names import FileNames, Refused, names_read
from estimator_pipeline.migrate.convert.rest import Rest

__all__ = ["NewStatements", "write_job"]

_WIDTH = 100
_WITHOUT_COUNTERPART = ("save_checkpoints_secs", "save_summary_steps", "log_step_count_steps", "throttle_secs",
                        "start_delay_secs", "eval_name", "name")  # fmt: skip


@dataclass
class NewStatements:
    """The new statements of an Estimator.

    Attributes:
        before: statement -> the lines that come before it.
        replaced: statement -> the lines that replace it.
        calls: call -> the expression that replaces it.
        removed: statements that are not needed any more.
        needs: names of program_helpers.py, and `os`.
    """

    before: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    replaced: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    calls: dict[cst.CSTNode, str] = field(default_factory=dict)
    removed: list[cst.CSTNode] = field(default_factory=list)
    needs: set[str] = field(default_factory=set)


def write_job(
    names: FileNames, rests: Mapping[Tree, Rest], estimator: EstimatorJob, model: Model, *, alone: bool = True
) -> NewStatements:
    """Return the statements of an Estimator's job.

    Args:
        rests: file of the program -> its other names.
        alone: whether it is the only Estimator of the file; the models of several keep the names of the Estimators.

    Raises:
        Refused: its calls cannot be followed.
    """
    return _Writer(names, rests, estimator, model, alone).job()


class _Writer:
    def __init__(
        self, names: FileNames, rests: Mapping[Tree, Rest], estimator: EstimatorJob, model: Model, alone: bool
    ) -> None:  # fmt: skip
        self.names, self.rests, self.estimator, self.model = names, rests, estimator, model
        self.rest = rest = rests[names.tree]
        self.tf, self.config, self.result = names.tf, estimator.config, NewStatements()
        self.params = rest.text(estimator.args["params"]) if "params" in estimator.args else ""
        self.folder = rest.text(estimator.model_dir) if estimator.model_dir is not None else ""
        self.name = self.fresh("model") if alone else self.own_name()
        self.data = self.fresh("training") if alone else f"{self.name}_training"
        self.callbacks: list[str] = []

    def job(self) -> NewStatements:
        estimator, uses = self.estimator, self.estimator.uses
        if not uses:
            raise Refused("an Estimator that is not used", estimator.call)
        if all(use.kind not in ("train", "train_and_evaluate") for use in uses):
            raise Refused("an Estimator that is not trained here: its checkpoint is of another program", uses[0].call)
        home = estimator.statement or statement_around(self.names, uses[0].call)
        first = self.place(uses[0], home)
        self.begin(uses[0], first)
        for use in uses:
            self.write(use, at_start=use is uses[0] and statement_around(self.names, use.call) is first)
        gone = [estimator.statement, self.config.statement, *(node for use in uses for node in use.statements)]
        self.result.removed += [node for node in gone if node is not None]
        return self.result

    def own_name(self) -> str:
        """Return the name of the Estimator."""
        assign = self.names.tree.parents.get(self.estimator.call)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
        if not isinstance(target, cst.Name):
            raise Refused("an Estimator without a name, beside others", self.estimator.call)
        return target.value

    def fresh(self, name: str) -> str:
        scope: Scope | None = self.names.scope(self.estimator.call)
        while scope is not None:
            if any(binding.node is not self.estimator.call for binding in scope.names.get(name, ())):
                return f"keras_{name}"
            scope = scope.parent
        return name

    def place(self, use: Use, home: cst.CSTNode) -> cst.CSTNode:
        """Return the statement beside the Estimator's that its first use is in."""
        block = self.names.tree.parents.get(home)
        at: cst.CSTNode = statement_around(self.names, use.call)
        while self.names.tree.parents.get(at) is not block:
            above = self.names.tree.parents.get(at)
            if above is None:
                raise Refused("an Estimator that is used outside of the block that makes it", use.call)
            if isinstance(above, cst.For) and names_read(use.args["input_fn"]) & set(_targets(above)):
                raise Refused("an input_fn that depends on the loop around it", use.call)
            at = above
        return at

    def input_fn(self, use: Use, name: str = "input_fn") -> InputFnCall:
        kind = "evaluate" if name == "eval_input_fn" else use.kind
        return read_input_fn(self.names, self.rests, use.args[name], kind, self.params)

    def begin(self, use: Use, first: cst.CSTNode) -> None:
        """Write the lines that make the model, before the first statement that uses it."""
        data, lines = self.input_fn(use), self.comments()
        self.result.needs.add("model_inputs")
        if self.folder and isinstance(self.estimator.model_dir, (cst.Call, cst.BinaryOperation)):
            name = self.fresh("model_dir")
            lines.append(f"{name} = {self.folder}")
            self.folder = name
        seed = self.config.fields.get("tf_random_seed")
        if seed is not None:
            lines.append(f"{self.tf}.keras.utils.set_random_seed({self.rest.text(seed)})")
        inputs, makes = data.call(), [self.params or "{}"] if self.model.takes_params else []
        if self.config.strategy is None:
            lines.append(f"{self.data} = {inputs}")
            written = f"{self.name} = {self.model.make}({', '.join([f'model_inputs({self.data})', *makes])})"
            lines.append(written)
        else:
            strategy = self.rest.text(self.config.strategy)
            if isinstance(self.config.strategy, cst.Call):
                lines.append(f"strategy = {strategy}")
                strategy = "strategy"
            lines.append(f"with {strategy}.scope():")
            lines.append(f"    {self.name} = {self.model.make}({', '.join([f'model_inputs({inputs})', *makes])})")
            context = "input_context" if data.takes_context else ""
            lines.append(f"{self.data} = {strategy}.distribute_datasets_from_function(")
            lines.append(f"    lambda input_context: {data.call(context)})")
        self.callbacks = self.saving(lines)
        self.result.before.setdefault(first, []).extend(lines)

    def comments(self) -> list[str]:
        """Return comments on the settings that have no counterpart in `fit`."""
        settings = [(name, value) for name, value in self.config.fields.items() if name in _WITHOUT_COUNTERPART]
        settings += [(name.removeprefix("eval_"), value) for use in self.estimator.uses
                     for name, value in use.args.items() if name in _WITHOUT_COUNTERPART]  # fmt: skip
        text = ", ".join(f"{name}={self.names.text(value)}" for name, value in settings)
        return [f"# Without a counterpart in fit: {' '.join(text.split())}"] if settings else []

    def saving(self, lines: list[str]) -> list[str]:
        """Return the callbacks that save and log; `lines` get what they need."""
        if not self.folder:
            return []
        self.result.needs.add("os")
        folder = self.folder
        log = f"{self.tf}.keras.callbacks.TensorBoard({folder})"
        if self.config.is_multi_worker:
            backup = f'os.path.join({folder}, "backup"), delete_checkpoint=False'
            return [f"{self.tf}.keras.callbacks.BackupAndRestore({backup})", log]
        self.result.needs.add("checkpoints")
        keep = self.config.fields.get("keep_checkpoint_max")
        more = f", max_to_keep={self.rest.text(keep)}" if keep is not None else ""
        save = self.fresh("save")
        lines.append(f'{save} = checkpoints({self.name}, os.path.join({folder}, "keras"){more})')
        return [save, log]

    def write(self, use: Use, *, at_start: bool) -> None:
        if use.kind == "train":
            self.train(use, at_start=at_start)
        elif use.kind == "train_and_evaluate":
            self.train_and_evaluate(use)
        elif use.kind == "evaluate":
            self.result.calls[use.call] = self.evaluated(self.input_fn(use), use.args.get("steps"), use.call)
        elif not self.model.predictions:
            raise Refused("predict, of a model_fn without predictions", use.call)
        else:
            self.result.needs.add("predict")
            self.result.calls[use.call] = f"predict({self.name}, {self.input_fn(use).call()}, {self.model.predictions})"

    def evaluated(self, data: InputFnCall, steps: cst.BaseExpression | None, call: cst.CSTNode) -> str:
        text = data.call()
        text = f"{text}.take({self.rest.text(steps)})" if steps is not None else text
        written = f"{self.name}.evaluate({text}, return_dict=True, verbose=0)"
        if isinstance(self.names.tree.parents.get(call), cst.Expr):
            return written
        return f"dict({written}, global_step=int({self.name}.optimizer.iterations.numpy()))"

    def train(self, use: Use, *, at_start: bool) -> None:
        """Write `fit` for `train`, as the statement that it is."""
        if not isinstance(self.names.tree.parents.get(use.call), cst.Expr):
            raise Refused("a use of what train returns", use.call)
        data = self.data if at_start or self.config.strategy is not None else self.input_fn(use).call()
        options = [data]
        if "max_steps" in use.args and self.folder:
            options += self.epochs(use.args["max_steps"])
        elif steps := use.args.get("steps", use.args.get("max_steps")):
            options.append(f"steps_per_epoch={self.rest.text(steps)}")
            options += [f"callbacks=[{', '.join(self.callbacks)}]"] if self.callbacks else []
        else:
            options += [f"callbacks=[{', '.join(self.callbacks)}]"] if self.callbacks else []
        self.replace(use.call, [*options, "verbose=2"])

    def replace(self, call: cst.Call, options: list[str]) -> None:
        """Write `fit` for a statement; in one line where the statement shares its line: `if x: train()`."""
        statement = statement_around(self.names, call)
        if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
            self.result.replaced[statement] = self.fit(options)
        else:
            self.result.calls[call] = f"{self.name}.fit({', '.join(options)})"

    def fit(self, options: list[str]) -> list[str]:
        """Return the lines of a call of `fit`, one for each argument where one line is too long."""
        line = f"{self.name}.fit({', '.join(options)})"
        if len(line) <= _WIDTH:
            return [line]
        return [f"{self.name}.fit(", *(f"    {option}," for option in options), ")"]

    def epochs(self, last: cst.BaseExpression) -> list[str]:
        """Return the arguments of `fit` that train up to a step, an epoch for each checkpoint."""
        total, every = self.rest.text(last), self.config.fields.get("save_checkpoints_steps")
        each = self.rest.text(every) if every is not None else total
        self.result.needs.add("StopAt")
        stop = f"StopAt({total}, {each})"
        count = "1" if each == total else f"-(-{_operand(total)} // {_operand(each)})"
        if total.isdigit() and each.isdigit():
            count = str(-(-int(total) // int(each)))
        start = []
        if self.folder and not self.config.is_multi_worker:
            self.result.needs.add("first_epoch")
            start.append(f"initial_epoch=first_epoch({self.name}, {total}, {each})")
        return [
            f"epochs={count}",
            *start,
            f"steps_per_epoch={each}",
            f"callbacks=[{', '.join([stop, *self.callbacks])}]",
        ]

    def train_and_evaluate(self, use: Use) -> None:
        evaluation = self.input_fn(use, "eval_input_fn")
        steps = use.args.get("eval_steps")
        text = evaluation.call()
        text = f"{text}.take({self.rest.text(steps)})" if steps is not None else text
        options = [self.data, *self.epochs(use.args["max_steps"]), f"validation_data={text}", "verbose=2"]
        statement = statement_around(self.names, use.call)
        if isinstance(self.names.tree.parents.get(use.call), cst.Expr):
            self.replace(use.call, options)
            return
        evaluated = f"{self.fresh('metrics')} = {self.name}.evaluate({text}, return_dict=True, verbose=0)"
        self.result.before.setdefault(statement, []).extend([*self.fit(options), evaluated])
        step = f"global_step=int({self.name}.optimizer.iterations.numpy())"
        self.result.calls[use.call] = f"(dict({self.fresh('metrics')}, {step}), [])"


def _operand(text: str) -> str:
    return text if text.replace(".", "").replace("_", "").isalnum() else f"({text})"


def _targets(node: cst.For) -> set[str]:
    return set(names_read(node.target))
