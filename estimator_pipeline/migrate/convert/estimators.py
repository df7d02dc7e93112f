"""The Estimators of a program, and what it does with each: train, evaluate, predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf
from estimator_pipeline.migrate.convert.names import FileNames, Refused

__all__ = ["ESTIMATOR", "Config", "EstimatorJob", "Use", "read_estimators", "statement_around"]

ESTIMATOR = "tf.estimator.Estimator"
_TRAIN_AND_EVALUATE = "tf.estimator.train_and_evaluate"
_FIELDS = ("model_fn", "model_dir", "config", "params", "warm_start_from")
# Method or function -> its parameters, and those that may be passed; None is as if it were missing.
_CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "train": (("input_fn", "hooks", "steps", "max_steps", "saving_listeners"), ("input_fn", "steps", "max_steps")),
    "evaluate": (("input_fn", "steps", "hooks", "checkpoint_path", "name"), ("input_fn", "steps", "name")),
    "predict": (("input_fn", "predict_keys", "hooks", "checkpoint_path", "yield_single_examples"), ("input_fn",)),
    "train_and_evaluate": (("estimator", "train_spec", "eval_spec"), ("estimator", "train_spec", "eval_spec")),
}
_SPECS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "TrainSpec": (("input_fn", "max_steps", "hooks", "saving_listeners"), ("input_fn", "max_steps")),
    "EvalSpec": (("input_fn", "steps", "name", "hooks", "exporters", "start_delay_secs", "throttle_secs"),
                 ("input_fn", "steps", "name", "start_delay_secs", "throttle_secs")),
}  # fmt: skip
_RUN_CONFIG = ("model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs",
               "session_config", "keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps",
               "train_distribute", "device_fn", "protocol", "eval_distribute", "experimental_distribute",
               "experimental_max_worker_delay_secs", "session_creation_timeout_secs",
               "checkpoint_save_graph_def")  # fmt: skip
_CONVERTED = ("model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs",
              "keep_checkpoint_max", "log_step_count_steps", "train_distribute", "eval_distribute")  # fmt: skip
MULTI_WORKER = "tf.distribute.MultiWorkerMirroredStrategy"
_STRATEGIES = (MULTI_WORKER, "tf.distribute.MirroredStrategy", "tf.distribute.OneDeviceStrategy")


@dataclass(frozen=True)
class Config:
    """The settings of a RunConfig.

    Attributes:
        fields: field -> the user's expression.
        statement: the statement that makes it, which the conversion removes; None for one made in the Estimator's call.
        strategy: the expression of `train_distribute`, None without.
        strategy_kind: the full name of its class.
    """

    fields: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    statement: cst.CSTNode | None = None
    strategy: cst.BaseExpression | None = None
    strategy_kind: str = ""

    @property
    def is_multi_worker(self) -> bool:
        return self.strategy_kind == MULTI_WORKER


@dataclass(frozen=True)
class Use:
    """A call on an Estimator.

    Attributes:
        kind: train, evaluate, predict or train_and_evaluate.
        call: the call.
        args: parameter -> the user's expression; those of the specs for train_and_evaluate: `max_steps`, `eval_steps`.
        statements: statements that only make its specs, which the conversion removes.
    """

    kind: str
    call: cst.Call
    args: Mapping[str, cst.BaseExpression]
    statements: tuple[cst.CSTNode, ...] = ()


@dataclass(frozen=True)
class EstimatorJob:
    """An Estimator of a program.

    Attributes:
        call: the call that makes it.
        statement: the statement `name = Estimator(...)`; None if it is made where it is used.
        model_fn: its model_fn.
        args: parameter -> the user's expression.
        config: its RunConfig.
        uses: the calls on it, in the order of the text.
    """

    call: cst.Call
    statement: cst.SimpleStatementLine | None
    model_fn: FunctionOf
    args: Mapping[str, cst.BaseExpression]
    config: Config
    uses: tuple[Use, ...]

    @property
    def model_dir(self) -> cst.BaseExpression | None:
        return self.args.get("model_dir", self.config.fields.get("model_dir"))


def read_estimators(names: FileNames) -> list[EstimatorJob]:
    """Return the Estimators of a file.

    Raises:
        Refused: one is used in a way that cannot be followed.
    """
    calls = [call for call in names.tree.calls if names.name(call.func) == ESTIMATOR]
    return [_read(names, call) for call in calls]


def statement_around(names: FileNames, node: cst.CSTNode) -> cst.CSTNode:
    """Return the innermost statement around a node."""
    for above in (node, *names.tree.above(node)):
        if isinstance(above, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            return above
    raise AssertionError("a node outside of any statement")


def _read(names: FileNames, call: cst.Call) -> EstimatorJob:
    args = _passed(names, call, _FIELDS, ("model_fn", "model_dir", "config", "params"), "Estimator")
    if "model_fn" not in args:
        raise Refused("an Estimator without a model_fn", call)
    function = names.function(args["model_fn"])
    by_name = isinstance(args["model_fn"], (cst.Name, cst.Attribute))
    if function is None or not by_name or not isinstance(function.node, cst.FunctionDef):
        raise Refused("a model_fn that is not one function of the program, by its name", args["model_fn"])
    if function.tree.parents.get(function.node) is not function.tree.module:
        raise Refused("a model_fn inside of another function or class", function.node)
    config = _config(names, args["config"]) if "config" in args else Config()
    parent = names.tree.parents.get(call)
    if isinstance(parent, cst.Assign):
        statement = names.tree.parents[parent]
        target = parent.targets[0].target
        if (
            len(parent.targets) != 1
            or not isinstance(target, cst.Name)
            or not isinstance(statement, cst.SimpleStatementLine)
        ):
            raise Refused("an Estimator that is not assigned to one name", call)
        uses = tuple(_uses(names, target, call))
        return EstimatorJob(call, statement, function, args, config, uses)
    use = _method(names, call)
    if use is None:
        raise Refused("an Estimator that is passed on where it is made", call)
    return EstimatorJob(call, None, function, args, config, (use,))


def _passed(
    names: FileNames, call: cst.Call, parameters: tuple[str, ...], converted: tuple[str, ...], callee: str
) -> dict[str, cst.BaseExpression]:
    """Return parameter -> expression of a call, without those that are None."""
    passed = arguments(call, parameters)
    if any(arg.star for arg in call.args) or len(passed) != len(call.args):
        raise Refused(f"{callee} with arguments that cannot be followed", call)
    values = {name: arg.value for name, arg in passed.items() if names.text(arg.value) != "None"}
    for name, value in values.items():
        if name not in converted and not (isinstance(value, cst.List) and not value.elements):
            raise Refused(f"{name} of {callee}", value)
    return {name: value for name, value in values.items() if name in converted}


def _call_of(names: FileNames, node: cst.BaseExpression, name: str) -> tuple[cst.Call, cst.CSTNode | None]:
    """Return the call of a class behind an expression, and the statement that assigns it if it is used once."""
    value = names.value(node)
    if not isinstance(value, cst.Call) or names.name(value.func) != f"tf.estimator.{name}":
        raise Refused(f"a {name} that is not made in the same function", node)
    if value is node:
        return value, None
    assert isinstance(node, cst.Name)
    statement = statement_around(names, value)
    readers = [chain for chain in _chains(names, node.value) if chain is not node
               and not isinstance(names.tree.parents.get(chain), cst.AssignTarget)]  # fmt: skip
    return value, None if readers else statement


def _config(names: FileNames, node: cst.BaseExpression) -> Config:
    value, statement = _call_of(names, node, "RunConfig")
    if value is not node and statement is None:
        raise Refused("a RunConfig that is used elsewhere, too", node)
    fields = _passed(names, value, _RUN_CONFIG, _CONVERTED, "RunConfig")
    strategy = fields.get("train_distribute")
    kind = names.kind(strategy) if strategy is not None else ""
    if strategy is not None and kind not in _STRATEGIES:
        raise Refused(f"train_distribute={names.text(strategy)}", strategy)
    evaluating = fields.get("eval_distribute")
    if evaluating is not None and (strategy is None or names.kind(evaluating) != kind):
        raise Refused("eval_distribute that is not train_distribute", evaluating)
    return Config(fields, statement, strategy, kind)


def _chains(names: FileNames, name: str) -> Iterator[cst.Name]:
    """Yield the places of a name in a file, without keywords."""
    for chain in names.tree.chains:
        root: cst.CSTNode = chain
        while isinstance(root, cst.Attribute):
            root = root.value
        if isinstance(root, cst.Name) and root.value == name:
            yield root


def _uses(names: FileNames, target: cst.Name, call: cst.Call) -> Iterator[Use]:
    home = names.scope(call)
    for name in _chains(names, target.value):
        bindings = names.program.bindings(name.value, names.scope(name))
        if not any(binding.node is call for binding in bindings):
            continue
        if len(bindings) != 1:
            raise Refused(f"{target.value}, which is assigned at several places", name)
        if names.scope(name).around() is not home.around():
            raise Refused(f"{target.value} in another function than the one that makes it", name)
        use = _method(names, name) or _evaluated(names, name)
        if use is None:
            raise Refused(f"{target.value}, which is used in another way than train, evaluate, predict", name)
        yield use


def _method(names: FileNames, node: cst.BaseExpression) -> Use | None:
    """Return the use `node.train(...)`."""
    call = next((call for call in names.tree.calls
                 if isinstance(call.func, cst.Attribute) and call.func.value is node), None)  # fmt: skip
    if call is None or not isinstance(call.func, cst.Attribute):
        return None
    method = call.func.attr.value
    if method not in ("train", "evaluate", "predict"):
        raise Refused(f"Estimator.{method}", call)
    parameters, converted = _CALLS[method]
    args = _passed(names, call, parameters, converted, method)
    if "input_fn" not in args:
        raise Refused(f"{method} without an input_fn", call)
    return Use(method, call, args)


def _evaluated(names: FileNames, node: cst.Name) -> Use | None:
    """Return the use `train_and_evaluate(node, ...)`."""
    arg = names.tree.parents.get(node)
    call = names.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or names.name(call.func) != _TRAIN_AND_EVALUATE:
        return None
    parameters, converted = _CALLS["train_and_evaluate"]
    passed = _passed(names, call, parameters, converted, "train_and_evaluate")
    if passed.keys() != set(converted):
        raise Refused("the arguments of train_and_evaluate", call)
    train, of_train = _call_of(names, passed["train_spec"], "TrainSpec")
    evaluation, of_evaluation = _call_of(names, passed["eval_spec"], "EvalSpec")
    args = dict(_passed(names, train, *_SPECS["TrainSpec"], "TrainSpec"))
    of_eval = _passed(names, evaluation, *_SPECS["EvalSpec"], "EvalSpec")
    args["eval_input_fn"] = of_eval["input_fn"]
    args |= {name: of_eval[name] for name in ("throttle_secs", "start_delay_secs") if name in of_eval}
    if "name" in of_eval:
        args["eval_name"] = of_eval["name"]
    if "steps" in of_eval:
        args["eval_steps"] = of_eval["steps"]
    elif "steps" not in arguments(evaluation, _SPECS["EvalSpec"][0]):
        args["eval_steps"] = cst.Integer("100")  # the default of EvalSpec
    if "max_steps" not in args:
        raise Refused("a TrainSpec without max_steps", train)
    statements = tuple(statement for statement in (of_train, of_evaluation) if statement is not None)
    return Use("train_and_evaluate", call, args, statements)
