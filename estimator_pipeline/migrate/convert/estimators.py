"""The Estimators of a program, and what it does with each: train, evaluate, predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf
from estimator_pipeline.migrate.convert.allowed import LOGGING_HOOKS
from estimator_pipeline.migrate.convert.canned import CANNED, parameters_of
from estimator_pipeline.migrate.convert.exports import serving_nodes
from estimator_pipeline.migrate.convert.factories import Factory, factory_of
from estimator_pipeline.migrate.convert.keras_models import MODEL_TO_ESTIMATOR, PARAMETERS, TAKEN, check_model
from estimator_pipeline.migrate.convert.model_fn import parameters
from estimator_pipeline.migrate.convert.names import FileNames, Refused

__all__ = ["ESTIMATOR", "RUN_CONFIGS", "Config", "EstimatorJob", "Use", "read_estimators", "statement_around"]

ESTIMATOR = "tf.estimator.Estimator"
_TRAIN_AND_EVALUATE = "tf.estimator.train_and_evaluate"
_FIELDS = ("model_fn", "model_dir", "config", "params", "warm_start_from")
# Method or function -> its parameters, and those that may be passed; None is as if it were missing.
_CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "train": (("input_fn", "hooks", "steps", "max_steps", "saving_listeners"),
              ("input_fn", "hooks", "steps", "max_steps")),
    "evaluate": (("input_fn", "steps", "hooks", "checkpoint_path", "name"), ("input_fn", "steps", "hooks", "name")),
    "predict": (("input_fn", "predict_keys", "hooks", "checkpoint_path", "yield_single_examples"),
                ("input_fn", "predict_keys", "hooks")),
    "train_and_evaluate": (("estimator", "train_spec", "eval_spec"), ("estimator", "train_spec", "eval_spec")),
}  # fmt: skip
_EXPORT = ("export_dir_base", "serving_input_receiver_fn", "assets_extra", "as_text", "checkpoint_path",
           "strip_default_attrs")  # fmt: skip
_DEFAULTS = {"as_text": "False"}  # of arguments whose default is not None
_EXPORTERS = {
    f"tf.estimator.{name}": ("name", "serving_input_receiver_fn", "assets_extra", "as_text", "exports_to_keep")
    for name in ("LatestExporter", "FinalExporter")
}
_SPECS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "TrainSpec": (("input_fn", "max_steps", "hooks", "saving_listeners"), ("input_fn", "max_steps", "hooks")),
    "EvalSpec": (("input_fn", "steps", "name", "hooks", "exporters", "start_delay_secs", "throttle_secs"),
                 ("input_fn", "steps", "name", "hooks", "exporters", "start_delay_secs", "throttle_secs")),
}  # fmt: skip
_RUN_CONFIG = ("model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs",
               "session_config", "keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps",
               "train_distribute", "device_fn", "protocol", "eval_distribute", "experimental_distribute",
               "experimental_max_worker_delay_secs", "session_creation_timeout_secs",
               "checkpoint_save_graph_def")  # fmt: skip
RUN_CONFIGS = ("tf.estimator.RunConfig", "tf.contrib.learn.RunConfig")
_CONVERTED = ("model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs",
              "session_config", "keep_checkpoint_max", "log_step_count_steps", "train_distribute",
              "eval_distribute")  # fmt: skip
MULTI_WORKER = "tf.distribute.MultiWorkerMirroredStrategy"
_STRATEGIES = (MULTI_WORKER, "tf.distribute.MirroredStrategy", "tf.distribute.OneDeviceStrategy")


@dataclass(frozen=True)
class Config:
    """The settings of a RunConfig.

    Attributes:
        fields: field -> the user's expression.
        statements: those that make it, which the conversion removes; none for one made in the Estimator's call.
        strategy: the expression of `train_distribute`, None without.
        strategy_kind: the full name of its class.
        session: the statements that make `session_config`, which has no counterpart.
        reads: other reads of its `model_dir`.
    """

    fields: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    statements: tuple[cst.CSTNode, ...] = ()
    strategy: cst.BaseExpression | None = None
    strategy_kind: str = ""
    session: tuple[cst.CSTNode, ...] = ()
    reads: tuple[cst.Attribute, ...] = ()

    @property
    def is_multi_worker(self) -> bool:
        return self.strategy_kind == MULTI_WORKER


@dataclass(frozen=True)
class Use:
    """A call on an Estimator.

    Attributes:
        kind: train, evaluate, predict, train_and_evaluate, export, add_metrics, or a member that is a folder.
        call: the call; the expression of a folder.
        args: parameter -> the user's expression; those of the specs for train_and_evaluate: `max_steps`, `eval_steps`.
        statements: statements that only make its specs, which the conversion removes.
        hooks: statements that only make hooks that log.
        exporters: the name of each exporter, its serving_input_receiver_fn.
        receivers: nodes that make serving inputs.
        metric_fn: the function of add_metrics.
        passed: the Estimator as the argument of a function of the file, which makes the call on its parameter.
    """

    kind: str
    call: cst.Call | cst.Attribute
    args: Mapping[str, cst.BaseExpression]
    statements: tuple[cst.CSTNode, ...] = ()
    hooks: tuple[cst.CSTNode, ...] = ()
    exporters: tuple[tuple[cst.BaseExpression, cst.BaseExpression], ...] = ()
    receivers: tuple[cst.CSTNode, ...] = ()
    passed: cst.Name | None = None
    metric_fn: cst.FunctionDef | None = None

    @property
    def site(self) -> cst.BaseExpression:
        """Return where the code that makes the Estimator uses it."""
        return self.passed or self.call


@dataclass(frozen=True)
class EstimatorJob:
    """An Estimator of a program.

    Attributes:
        call: the call that makes it.
        statement: the statement `name = Estimator(...)`; None if it is made where it is used.
        model_fn: its model_fn; the call itself for a canned Estimator or one of a Keras model.
        args: parameter -> the user's expression.
        config: its RunConfig.
        uses: what the program does with it, in the order of the text.
        factory: the function that makes it, where `call` calls that.
    """

    call: cst.Call
    statement: cst.SimpleStatementLine | None
    model_fn: FunctionOf | cst.Call
    args: Mapping[str, cst.BaseExpression]
    config: Config
    uses: tuple[Use, ...]
    factory: Factory | None = None

    @property
    def args_made(self) -> Mapping[str, cst.BaseExpression]:
        """Return the arguments of the call that makes the Estimator, in the function that has that call."""
        return self.args if self.factory is None else self.factory.args

    @property
    def keras_model(self) -> cst.BaseExpression | None:
        """Return the model of `model_to_estimator`, in the function that calls it; None for another Estimator."""
        return self.args_made.get("keras_model")

    @property
    def model_dir(self) -> cst.BaseExpression | None:
        return self.args.get("model_dir", self.config.fields.get("model_dir"))

    @property
    def metric_fns(self) -> dict[cst.BaseExpression, cst.FunctionDef]:
        """Return the argument and the function of each `add_metrics`, which become metrics of the model."""
        return {use.args["metric_fn"]: use.metric_fn for use in self.uses if use.metric_fn is not None}

    @property
    def unread(self) -> tuple[cst.CSTNode, ...]:
        """Return the expressions and statements that only the comments on the new program repeat."""
        hooks = [value for use in self.uses for name, value in use.args.items() if name.endswith("hooks")]
        session = self.config.fields.get("session_config")
        unread = [node for use in self.uses for node in use.hooks]
        unread += [node for use in self.uses for node in use.receivers]
        return (*hooks, *unread, *([session] if session is not None else []), *self.config.session)


def read_estimators(names: FileNames) -> list[tuple[FileNames, EstimatorJob]]:
    """Return the Estimators that a file makes, each with the names of the file that uses it.

    Raises:
        Refused: one is used in a way that cannot be followed.
    """
    jobs: list[tuple[FileNames, EstimatorJob]] = []
    for call in names.tree.calls:
        if names.name(call.func) in (ESTIMATOR, MODEL_TO_ESTIMATOR, *CANNED):
            model_fn, args = _model_fn(names, call)
            factory = factory_of(names, call, args)
            if factory is not None:
                jobs += _made_by(factory, model_fn)
                continue
            config = _config(names, args["config"]) if "config" in args else Config()
            jobs.append((names, _with_uses(names, call, model_fn, args, config)))
    _check_folders(jobs)
    for used in {id(used): used for used, _ in jobs}.values():
        _check_callers(
            used, [use for other, job in jobs if other is used for use in job.uses if use.passed is not None]
        )
    return jobs


def _check_folders(jobs: Sequence[tuple[FileNames, EstimatorJob]]) -> None:
    """Check that two Estimators do not take turns with one folder, where each continued what the other saved."""
    for names, job in jobs:
        for used, other in jobs:
            if other is job or used is not names or names.scope(job.call).around() is not names.scope(
                other.call).around():  # fmt: skip
                continue
            folders = [each.model_dir for each in (job, other)]
            if folders[0] is None or folders[1] is None or names.text(folders[0]) != names.text(folders[1]):
                continue
            first, second = sorted((job, other), key=lambda each: names.tree.position(each.call))
            if any(names.tree.position(use.site) > names.tree.position(second.call) for use in first.uses):
                raise Refused("two Estimators that take turns with one folder", second.call)


def _made_by(factory: Factory, model_fn: FunctionOf | cst.Call) -> Iterator[tuple[FileNames, EstimatorJob]]:
    """Yield a job for each call of a function that makes an Estimator."""
    run_config = factory.args.get("config")
    local = run_config is not None and isinstance(factory.names.value(run_config), cst.Call)
    config = _config(factory.names, run_config) if run_config is not None and local else Config()
    if config.reads:
        raise Refused("a RunConfig that is used elsewhere, too", config.reads[0])
    nodes = [node for name in ("model_dir", "config") if (node := factory.args.get(name)) is not None]
    removed = [*config.statements, *config.session]
    factory = replace(factory, gone=factory.only_taken_by([*nodes, *removed]), statements=tuple(removed))
    if isinstance(run_config, cst.Name) and not local and run_config.value not in factory.gone:
        raise Refused("a RunConfig that is used elsewhere, too", run_config)
    for names, call in factory.callers():

        def of_caller(node: cst.BaseExpression, names: FileNames = names, call: cst.Call = call) -> cst.BaseExpression:
            return factory.of_caller(names, call, node)

        fields = {name: of_caller(value) for name, value in config.fields.items() if name != "session_config"}
        strategy = fields.get("train_distribute")
        of_job = Config(fields, strategy=strategy, strategy_kind=config.strategy_kind)
        if run_config is not None and not local:
            value = of_caller(run_config)
            of_job = _config(names, value) if names.text(value) != "None" else Config()
        args = {name: of_caller(value) for name, value in factory.args.items() if name == "model_dir"}
        args = {name: value for name, value in args.items() if names.text(value) != "None"}
        yield names, replace(_with_uses(names, call, model_fn, args, of_job), factory=factory)


def statement_around(names: FileNames, node: cst.CSTNode) -> cst.CSTNode:
    """Return the innermost statement around a node."""
    for above in (node, *names.tree.above(node)):
        if isinstance(above, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            return above
    raise AssertionError("a node outside of any statement")


def _model_fn(names: FileNames, call: cst.Call) -> tuple[FunctionOf | cst.Call, dict[str, cst.BaseExpression]]:
    """Return the model_fn of an Estimator, or the call of a canned one or of a Keras model's, and its arguments."""
    if (name := names.name(call.func)) in CANNED:
        takes = parameters_of(name)
        return call, _passed(names, call, takes, takes, name)
    if name == MODEL_TO_ESTIMATOR:
        args = _passed(names, call, PARAMETERS, TAKEN, "model_to_estimator")
        check_model(names, call, args.get("keras_model"))
        return call, args
    args = _passed(names, call, _FIELDS, ("model_fn", "model_dir", "config", "params"), "Estimator")
    if "model_fn" not in args:
        raise Refused("an Estimator without a model_fn", call)
    function = names.function(args["model_fn"])
    by_name = isinstance(args["model_fn"], (cst.Name, cst.Attribute))
    if function is None or not by_name or not isinstance(function.node, cst.FunctionDef):
        raise Refused("a model_fn that is not one function of the program, by its name", args["model_fn"])
    home = function.tree.scopes[function.node].parent
    visible = home is not None and home.kind == "function" and home.node in names.tree.above(call)
    if home is not function.tree.scope and not visible:
        raise Refused("a model_fn inside of a class, or of another function than its Estimator", function.node)
    return function, args


def _with_uses(
    names: FileNames, call: cst.Call, model_fn: FunctionOf | cst.Call, args: Mapping[str, cst.BaseExpression],
    config: Config,
) -> EstimatorJob:  # fmt: skip
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
        return EstimatorJob(call, statement, model_fn, args, config, uses)
    use = _method(names, call)
    if use is None:
        raise Refused("an Estimator that is passed on where it is made", call)
    return EstimatorJob(call, None, model_fn, args, config, (use,))


def _passed(
    names: FileNames, call: cst.Call, parameters: tuple[str, ...], converted: tuple[str, ...], callee: str
) -> dict[str, cst.BaseExpression]:
    """Return parameter -> expression of a call, without those that are None."""
    passed = arguments(call, parameters)
    if any(arg.star for arg in call.args) or len(passed) != len(call.args):
        raise Refused(f"{callee} with arguments that cannot be followed", call)
    values = {name: arg.value for name, arg in passed.items() if names.text(arg.value) != _DEFAULTS.get(name, "None")}
    for name, value in values.items():
        if name not in converted and not (isinstance(value, cst.List) and not value.elements):
            raise Refused(f"{name} of {callee}", value)
    return {name: value for name, value in values.items() if name in converted}


def _call_of(names: FileNames, node: cst.BaseExpression, name: str) -> tuple[cst.Call, cst.CSTNode | None]:
    """Return the call of a class behind an expression, and the statement that assigns it if it is used once."""
    value = names.value(node)
    if not isinstance(value, cst.Call) or names.name(value.func) != f"tf.estimator.{name}":
        raise Refused(f"a {name} that is not made in the same function", node)
    return value, _statement_of(names, node, value)


def _statement_of(names: FileNames, node: cst.BaseExpression, value: cst.BaseExpression) -> cst.CSTNode | None:
    """Return the statement that assigns a value to a name, if `node` is the only use of it."""
    if value is node or not isinstance(node, cst.Name):
        return None
    statement, binding = statement_around(names, value), names.binding(node)
    readers = [chain for chain in names.places(node.value) if chain is not node
               and not isinstance(names.tree.parents.get(chain), cst.AssignTarget)
               and binding in names.program.bindings(chain.value, names.scope(chain))
               and names.binding(chain) in (binding, None)]  # fmt: skip
    return None if readers else statement


def _config(names: FileNames, node: cst.BaseExpression) -> Config:
    steps = dict(_steps(names, node))
    fields = {name: value for step in reversed(steps) for name, value in _fields(names, step).items()}
    statements = tuple(statement for statement in steps.values() if statement is not None)
    reads = tuple(_reads(names, node, steps)) if isinstance(node, cst.Name) else ()
    strategy = fields.get("train_distribute")
    kind = names.kind(strategy) if strategy is not None else ""
    if strategy is not None and kind not in _STRATEGIES:
        raise Refused(f"train_distribute={names.text(strategy)}", strategy)
    evaluating = fields.get("eval_distribute")
    if evaluating is not None and (strategy is None or names.kind(evaluating) != kind):
        raise Refused("eval_distribute that is not train_distribute", evaluating)
    session = tuple(_session(names, fields["session_config"])) if "session_config" in fields else ()
    return Config(fields, statements, strategy, kind, session, reads)


def _reads(
    names: FileNames, node: cst.Name, steps: Mapping[cst.Call, cst.CSTNode | None]
) -> Iterator[cst.Attribute]:  # fmt: skip
    """Yield the reads `config.model_dir` beside the one that the Estimator takes.

    Raises:
        Refused: the RunConfig is used otherwise.
    """
    last = names.binding(node)
    for name in names.places(node.value):
        is_target = isinstance(names.tree.parents.get(name), cst.AssignTarget)
        if name is node or is_target or statement_around(names, name) in steps.values():
            continue
        binding = names.binding(name)
        bindings = names.program.bindings(name.value, names.scope(name)) if binding is None else (binding,)
        if not any(each.node in steps for each in bindings):
            continue
        member = names.tree.parents.get(name)
        is_read = isinstance(member, cst.Attribute) and member.attr.value == "model_dir" and names.whole(name) is member
        if not is_read or binding is not last:
            raise Refused("a RunConfig that is used elsewhere, too", name)
        assert isinstance(member, cst.Attribute)
        yield member


def _steps(names: FileNames, node: cst.BaseExpression) -> Iterator[tuple[cst.Call, cst.CSTNode | None]]:
    """Yield the calls that make a RunConfig, the last first, and the statements that assign them to a name."""
    value = names.value(node)
    statement = statement_around(names, value) if value is not node else None
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value == "replace":
        yield value, statement
        yield from _steps(names, value.func.value)
    elif isinstance(value, cst.Call) and names.name(value.func) in RUN_CONFIGS:
        yield value, statement
    else:
        raise Refused("a RunConfig that is not made in the same file", node)


def _fields(names: FileNames, call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Return the fields of `RunConfig(...)` or `.replace(...)`."""
    of_estimator = names.name(call.func) == RUN_CONFIGS[0]
    takes = _RUN_CONFIG if of_estimator else ()
    keep = arguments(call, takes).get("keep_checkpoint_max")  # None keeps all, and is not the default
    kept = {"keep_checkpoint_max": keep.value} if keep is not None else {}
    return _passed(names, call, takes, _CONVERTED, "RunConfig") | kept


def _session(names: FileNames, node: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    """Yield the statements that make a ConfigProto of sessions: `c = ConfigProto()`, `c.gpu_options.a = True`."""
    value = names.value(node)
    if not isinstance(value, cst.Call) or names.name(value.func) != "tf.compat.v1.ConfigProto":
        raise Refused("a session_config that is not made in the same function", node)
    if value is node:
        return
    assert isinstance(node, cst.Name)
    yield statement_around(names, value)
    for name in names.places(node.value):
        chain = names.whole(name)
        statement = statement_around(names, chain)
        if name is node or isinstance(names.tree.parents.get(name), cst.AssignTarget):
            continue
        assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
        if not isinstance(target, cst.Attribute) or not names.text(target).startswith(f"{node.value}."):
            raise Refused("a session_config that is used elsewhere, too", name)
        yield statement


def _uses(names: FileNames, target: cst.Name, call: cst.Call) -> Iterator[Use]:
    home = names.scope(call)
    for name in names.places(target.value):
        bindings = names.program.bindings(name.value, names.scope(name))
        if not any(binding.node is call for binding in bindings):
            continue
        binding = names.binding(name)
        if binding is None and name is not target and not isinstance(names.tree.parents.get(name), cst.AssignTarget):
            raise Refused(f"{target.value}, which is assigned at several places", name)
        if binding is None or binding.node is not call:
            continue
        if names.scope(name).around() is not home.around():
            raise Refused(f"{target.value} in another function than the one that makes it", name)
        use = _method(names, name) or _evaluated(names, name) or _with_metrics(names, name)
        yield from _in_function(names, name) if use is None else (use,)
        if use is not None and use.kind == "add_metrics":
            yield from _uses(names, target, cst.ensure_type(use.call, cst.Call))


def _with_metrics(names: FileNames, name: cst.Name) -> Use | None:
    """Return the use `name = add_metrics(name, metric_fn)`."""
    call = _call_with(names, name)
    if call is None or not names.name(call.func).endswith(".estimator.add_metrics"):
        return None
    takes = ("estimator", "metric_fn")
    args = _passed(names, call, takes, takes, "add_metrics")
    assign = names.tree.parents.get(call)
    targets = [names.text(target.target) for target in assign.targets] if isinstance(assign, cst.Assign) else []
    metric_fn = args.get("metric_fn")
    binding = names.binding(metric_fn) if isinstance(metric_fn, cst.Name) else None
    function = binding.node if binding is not None else None
    if targets != [name.value] or not isinstance(function, cst.FunctionDef) or function not in names.tree.parents:
        raise Refused("add_metrics with another name or a metric_fn that is not a function of the file", call)
    return Use("add_metrics", call, args, (statement_around(names, call),), metric_fn=function)


def _in_function(names: FileNames, name: cst.Name) -> Iterator[Use]:
    """Yield what a function of the file does with an Estimator that it is passed: evaluate and predict.

    Raises:
        Refused: it does something else.
    """
    refusal = Refused(f"{name.value}, which is used in another way than train, evaluate, predict", name)
    call = _call_with(names, name)
    function = names.function(call.func) if call is not None else None
    if call is None or function is None or function.tree is not names.tree or any(arg.star for arg in call.args):
        raise refusal
    passed = arguments(call, parameters(function.node))
    parameter = next((key for key, arg in passed.items() if arg.value is name), "")
    params = [param for param in function.node.params.params if param.name.value == parameter]
    if not params:
        raise refusal
    for inner in names.places(parameter):
        bindings = names.program.bindings(inner.value, names.scope(inner))
        if not any(each.node in params for each in bindings):
            continue
        use = _method(names, inner) if names.flag(inner) else None
        if use is None or use.kind not in ("evaluate", "predict"):
            raise refusal
        yield replace(use, passed=name)


def _call_with(names: FileNames, node: cst.CSTNode) -> cst.Call | None:
    """Return the call that a node is an argument of."""
    arg = names.tree.parents.get(node)
    call = names.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
    return call if isinstance(call, cst.Call) else None


def _check_callers(names: FileNames, uses: Sequence[Use]) -> None:
    """Check that each use of a function that evaluates a parameter is a call with an Estimator of the file for it."""
    callers: dict[tuple[cst.CSTNode, str] | None, list[cst.CSTNode | None]] = {}
    for use in uses:
        parameter = cst.ensure_type(cst.ensure_type(use.call, cst.Call).func, cst.Attribute).value
        callers.setdefault(names.flag(parameter), []).append(_call_with(names, use.site))
    functions = {key[0] for key in callers if key is not None}
    for tree in names.program.trees.values() if functions else ():
        for chain in tree.chains:
            function = names.of(tree).function(chain)
            if function is not None and function.node in functions:
                for key, calls in callers.items():
                    if key is not None and key[0] is function.node and tree.parents.get(chain) not in calls:
                        raise Refused(f"{names.text(chain)}, which is not passed an Estimator everywhere", chain)


def _method(names: FileNames, node: cst.BaseExpression) -> Use | None:
    """Return the use `node.train(...)`."""
    member = names.tree.parents.get(node)
    if isinstance(member, cst.Attribute) and member.attr.value == "model_dir":
        return Use("model_dir", member, {})
    call = next((call for call in names.tree.calls
                 if isinstance(call.func, cst.Attribute) and call.func.value is node), None)  # fmt: skip
    if call is None or not isinstance(call.func, cst.Attribute):
        return None
    method = call.func.attr.value
    if method == "eval_dir" and not call.args:
        return Use(method, call, {})
    if method in ("export_saved_model", "export_savedmodel"):
        args = _passed(names, call, _EXPORT, _EXPORT[:2] + _EXPORT[-1:], method)
        if not args.keys() >= set(_EXPORT[:2]):
            raise Refused(f"the arguments of {method}", call)
        serving = args["serving_input_receiver_fn"]
        statements = _receiver_statement(names, serving)
        return Use("export", call, args, statements, receivers=tuple(serving_nodes(names, serving)))
    if method not in ("train", "evaluate", "predict"):
        raise Refused(f"Estimator.{method}", call)
    parameters, converted = _CALLS[method]
    args = _passed(names, call, parameters, converted, method)
    if "input_fn" not in args:
        raise Refused(f"{method} without an input_fn", call)
    return Use(method, call, args, hooks=tuple(_hooks(names, args.get("hooks"), method)))


def _hooks(names: FileNames, node: cst.BaseExpression | None, callee: str) -> Iterator[cst.CSTNode]:
    """Yield the statements that make hooks, after a check that they only log.

    Raises:
        Refused: one of them does more.
    """
    if node is None:
        return
    hooks = names.value(node)
    if not isinstance(hooks, (cst.List, cst.Tuple)):
        raise Refused(f"hooks of {callee}", node)
    used: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [(node, hooks)]
    for element in hooks.elements:
        hook = names.value(element.value)
        if not isinstance(hook, cst.Call) or names.name(hook.func) not in LOGGING_HOOKS:
            raise Refused(f"hooks of {callee}: {names.text(element.value)}", element.value)
        used.append((element.value, hook))
    for name, value in used:
        if value is not name:
            statement = _statement_of(names, name, value)
            if statement is None:
                raise Refused("a hook that is used elsewhere, too", name)
            yield statement


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
    hooks = [*_hooks(names, args.get("hooks"), "TrainSpec"), *_hooks(names, of_eval.get("hooks"), "EvalSpec")]
    args["eval_input_fn"] = of_eval.pop("input_fn")
    exported = list(_exporters(names, of_eval.pop("exporters", None)))
    keeps = [keep for *_, keep in exported if keep is not None]
    if len(keeps) > 1:
        raise Refused("exports_to_keep of several exporters", keeps[1])
    args |= {"exports_to_keep": keeps[0]} if keeps else {}
    if "steps" not in arguments(evaluation, _SPECS["EvalSpec"][0]):
        of_eval["steps"] = cst.Integer("100")  # the default of EvalSpec
    args |= {name if name.endswith("_secs") else f"eval_{name}": value for name, value in of_eval.items()}
    statements = [of_train, of_evaluation, *(statement for _, _, statement, _ in exported)]
    statements += [statement for _, serving, *_ in exported for statement in _receiver_statement(names, serving)]
    receivers = tuple(node for _, serving, *_ in exported for node in serving_nodes(names, serving))
    exporters = tuple((name, serving) for name, serving, *_ in exported)
    return Use("train_and_evaluate", call, args, tuple(node for node in statements if node is not None), tuple(hooks),
               exporters, receivers)  # fmt: skip


def _receiver_statement(names: FileNames, node: cst.BaseExpression) -> tuple[cst.CSTNode, ...]:
    """Return the statement `fn = build_raw_serving_input_receiver_fn(...)` behind a name, if there is one."""
    value = names.value(node)
    if value is node or not isinstance(value, cst.Call):
        return ()
    statement = _statement_of(names, node, value)
    if statement is None:
        raise Refused("a serving_input_receiver_fn that is used elsewhere, too", node)
    return (statement,)


def _exporters(
    names: FileNames, node: cst.BaseExpression | None
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, cst.CSTNode | None, cst.BaseExpression | None]]:
    """Yield the name, serving_input_receiver_fn, statement and exports_to_keep of each exporter."""
    value = names.value(node) if node is not None else None
    if node is not None and isinstance(value, (cst.List, cst.Tuple)):
        if value is not node:
            raise Refused("exporters that are not listed in EvalSpec", node)
        for element in value.elements:
            yield from _exporters(names, element.value)
        return
    if node is None:
        return
    full = names.name(value.func) if isinstance(value, cst.Call) else ""
    if not isinstance(value, cst.Call) or full not in _EXPORTERS:
        raise Refused(f"the exporter {full or names.text(node)}", node)
    statement = _statement_of(names, node, value)
    if value is not node and statement is None:
        raise Refused("an exporter that is used elsewhere, too", node)
    kept = ("name", "serving_input_receiver_fn", "exports_to_keep")
    args = _passed(names, value, _EXPORTERS[full], kept, full.rpartition(".")[2])
    if not args.keys() >= set(kept[:2]):
        raise Refused(f"the arguments of {full}", value)
    yield args["name"], args["serving_input_receiver_fn"], statement, args.get("exports_to_keep")
