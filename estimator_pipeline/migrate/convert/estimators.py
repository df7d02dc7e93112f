"""The Estimators of a program, and what it does with each: train, evaluate, predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf
from estimator_pipeline.migrate.code.analysis.syntax import Tree
from estimator_pipeline.migrate.convert.allowed import LOGGING_HOOKS
from estimator_pipeline.migrate.convert.canned import CANNED, parameters_of
from estimator_pipeline.migrate.convert.exports import serving_nodes
from estimator_pipeline.migrate.convert.factories import Factory, factory_of
from estimator_pipeline.migrate.convert.keras_models import MODEL_TO_ESTIMATOR, check_model
from estimator_pipeline.migrate.convert.model_fn import parameters
from estimator_pipeline.migrate.convert.names import FileNames, Refused

__all__ = ["ESTIMATOR", "RUN_CONFIGS", "Config", "EstimatorJob", "Stop", "Use", "read_estimators", "statement_around"]

ESTIMATOR = "tf.estimator.Estimator"
_TRAIN_AND_EVALUATE = "tf.estimator.train_and_evaluate"
# Function or method -> its parameters: `!` has to be passed, `-` has no replacement and may only be None or [].
_CALLS = {
    "Estimator": "model_fn! model_dir config params warm_start_from-",
    "train": "input_fn! hooks steps max_steps saving_listeners-",
    "evaluate": "input_fn! steps hooks checkpoint_path- name",
    "predict": "input_fn! predict_keys hooks checkpoint_path- yield_single_examples-",
    "train_and_evaluate": "estimator! train_spec! eval_spec!",
    "add_metrics": "estimator! metric_fn!",
    "TrainSpec": "input_fn! max_steps hooks saving_listeners-",
    "EvalSpec": "input_fn! steps name hooks exporters start_delay_secs throttle_secs",
    "export_saved_model": "export_dir_base! serving_input_receiver_fn! assets_extra- as_text- checkpoint_path- "
                          "strip_default_attrs",
    "LatestExporter": "name! serving_input_receiver_fn! assets_extra- as_text- exports_to_keep",
    "BestExporter": "name serving_input_receiver_fn! event_file_pattern- compare_fn- assets_extra- as_text- "
                    "exports_to_keep",
    "stop_if_no_decrease_hook": "estimator! metric_name! max_steps_without_decrease! eval_dir- min_steps "
                                "run_every_secs run_every_steps",
    "stop_if_no_increase_hook": "estimator! metric_name! max_steps_without_increase! eval_dir- min_steps "
                                "run_every_secs run_every_steps",
    "RunConfig": "model_dir tf_random_seed save_summary_steps save_checkpoints_steps save_checkpoints_secs "
                 "session_config keep_checkpoint_max keep_checkpoint_every_n_hours- log_step_count_steps "
                 "train_distribute device_fn- protocol- eval_distribute experimental_distribute- "
                 "experimental_max_worker_delay_secs- session_creation_timeout_secs- checkpoint_save_graph_def-",
    "model_to_estimator": "keras_model! keras_model_path- custom_objects model_dir config checkpoint_format "
                          "use_v2_estimator metric_names_map- export_outputs-",
}  # fmt: skip
_CALLS |= {"export_savedmodel": _CALLS["export_saved_model"], "FinalExporter": _CALLS["LatestExporter"]}
_DEFAULTS = {"as_text": "False", "yield_single_examples": "True", "keep_checkpoint_max": "5"}  # those other than None
_EXPORTERS = tuple(f"tf.estimator.{name}Exporter" for name in ("Latest", "Final", "Best"))
_BEST = cst.SimpleString('"best_exporter"')  # the name that a BestExporter has without one
_STOPPING = tuple(f"{module}.stop_if_no_{change}_hook" for change in ("decrease", "increase")
                  for module in ("tf.estimator.experimental", "tf.contrib.estimator"))  # fmt: skip
RUN_CONFIGS = ("tf.estimator.RunConfig", "tf.contrib.learn.RunConfig")
MULTI_WORKER = "tf.distribute.MultiWorkerMirroredStrategy"
_STRATEGIES = (MULTI_WORKER, "tf.distribute.MirroredStrategy", "tf.distribute.OneDeviceStrategy")


@dataclass(frozen=True)
class Config:
    """The settings of a RunConfig.

    Attributes:
        fields: field -> the user's expression.
        strategy: the expression of `train_distribute`, None without.
        strategy_kind: the full name of its class.
        reads: other reads of its `model_dir`.
    """

    fields: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    strategy: cst.BaseExpression | None = None
    strategy_kind: str = ""
    reads: tuple[cst.Attribute, ...] = ()

    @property
    def is_multi_worker(self) -> bool:
        return self.strategy_kind == MULTI_WORKER


@dataclass(frozen=True)
class Stop:
    """A hook of early stopping.

    Attributes:
        call: the call that makes it.
        mode: `min` for a metric that has to decrease, else `max`.
        metric: its name.
        steps: the number of steps without improvement.
        first: the step before which evaluations do not count; None without.
    """

    call: cst.Call
    mode: str
    metric: cst.BaseExpression
    steps: cst.BaseExpression
    first: cst.BaseExpression | None


@dataclass(frozen=True)
class Use:
    """A call on an Estimator.

    Attributes:
        kind: train, evaluate, predict, train_and_evaluate, export, add_metrics, or a member that is a folder.
        call: the call; the expression of a folder.
        args: parameter -> the user's expression; those of the specs for train_and_evaluate: `max_steps`, `eval_steps`.
        exporters: the class of each exporter, its name and its serving_input_receiver_fn.
        stops: the calls that make hooks of early stopping.
        metric_fn: the function of add_metrics.
        passed: the Estimator as the argument of a function of the file, which makes the call on its parameter.
    """

    kind: str
    call: cst.Call | cst.Attribute
    args: Mapping[str, cst.BaseExpression]
    exporters: tuple[tuple[str, cst.BaseExpression, cst.BaseExpression], ...] = ()
    stops: tuple[Stop, ...] = ()
    metric_fn: cst.FunctionDef | None = None
    passed: cst.Name | None = None

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
        statements: those that only make its RunConfig, specs and exporters, which the conversion removes.
        left_out: the same for hooks that log and for `session_config`: comments on the new program repeat them.
        unread: nodes that other modules of the conversion read, or that only comments repeat.
        factory: the function that makes it, where `call` calls that.
    """

    call: cst.Call
    statement: cst.SimpleStatementLine | None
    model_fn: FunctionOf | cst.Call
    args: Mapping[str, cst.BaseExpression]
    config: Config
    uses: tuple[Use, ...]
    statements: tuple[cst.CSTNode, ...] = ()
    left_out: tuple[cst.CSTNode, ...] = ()
    unread: tuple[cst.CSTNode, ...] = ()
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


def read_estimators(names: FileNames) -> list[tuple[FileNames, EstimatorJob]]:
    """Return the Estimators that a file makes, each with the names of the file that uses it.

    Raises:
        Refused: one is used in a way that cannot be followed.
    """
    jobs: list[tuple[FileNames, EstimatorJob]] = []
    readers: dict[Tree, _Reader] = {names.tree: _Reader(names)}
    for call in names.tree.calls:
        if names.name(call.func) in (ESTIMATOR, MODEL_TO_ESTIMATOR, *CANNED):
            reader = readers[names.tree]
            model_fn, args = reader.model_fn(call)
            factory = factory_of(names, call, args)
            if factory is None:
                jobs.append((names, reader.job(call, model_fn, args)))
            else:
                jobs += _made_by(readers, factory, model_fn)
    _check_folders(jobs)
    for reader in readers.values():
        reader.check()
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


def _made_by(
    readers: dict[Tree, _Reader], factory: Factory, model_fn: FunctionOf | cst.Call
) -> Iterator[tuple[FileNames, EstimatorJob]]:
    """Yield a job for each call of a function that makes an Estimator."""
    home, run_config = readers[factory.names.tree], factory.args.get("config")
    is_local = run_config is not None and isinstance(factory.names.value(run_config), cst.Call)
    config = home.config(run_config) if run_config is not None and is_local else Config()
    if config.reads:
        raise Refused("a RunConfig that is used elsewhere, too", config.reads[0])
    statements, left_out, _ = home.taken()
    removed = [*statements, *left_out]
    nodes = [node for name in ("model_dir", "config") if (node := factory.args.get(name)) is not None]
    factory = replace(factory, gone=factory.only_taken_by([*nodes, *removed]), statements=tuple(removed))
    if isinstance(run_config, cst.Name) and not is_local and run_config.value not in factory.gone:
        raise Refused("a RunConfig that is used elsewhere, too", run_config)
    passed = [name for name in ("model_dir", "config") if name in factory.args and not (is_local and name == "config")]
    for names, call in factory.callers():
        reader = readers.setdefault(names.tree, _Reader(names))
        args = {name: factory.of_caller(names, call, factory.args[name]) for name in passed}
        fields = {name: factory.of_caller(names, call, value) for name, value in config.fields.items()
                  if name != "session_config"}  # fmt: skip
        of_job = replace(config, fields=fields, strategy=fields.get("train_distribute")) if is_local else None
        args = {name: value for name, value in args.items() if names.text(value) != "None"}
        yield names, replace(reader.job(call, model_fn, args, of_job), factory=factory)


def statement_around(names: FileNames, node: cst.CSTNode) -> cst.CSTNode:
    """Return the innermost statement around a node."""
    for above in (node, *names.tree.above(node)):
        if isinstance(above, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            return above
    raise AssertionError("a node outside of any statement")


class _Reader:
    """Reads the Estimators of a file, and what it does with them.

    An Estimator takes a RunConfig, hooks, specs and exporters, often by a name. The statements that make them go with
    the job; nothing else may read the name.
    """

    def __init__(self, names: FileNames) -> None:
        self.names = names
        self.values: dict[cst.CSTNode, tuple[cst.Name, str]] = {}  # value -> a name for it, and what it is
        self.read: set[cst.CSTNode] = set()  # the names that jobs read
        self.statements: list[cst.CSTNode] = []
        self.left_out: list[cst.CSTNode] = []
        self.unread: list[cst.CSTNode] = []
        self.passed: dict[tuple[cst.CSTNode, str], list[cst.Call]] = {}  # (function, parameter) -> calls

    def job(
        self, call: cst.Call, model_fn: FunctionOf | cst.Call, args: Mapping[str, cst.BaseExpression],
        config: Config | None = None,
    ) -> EstimatorJob:  # fmt: skip
        """Return the job of the Estimator that a call makes."""
        names = self.names
        if config is None:
            config = self.config(args["config"]) if "config" in args else Config()
        parent = names.tree.parents.get(call)
        statement = names.tree.parents[parent] if isinstance(parent, cst.Assign) else None
        if isinstance(parent, cst.Assign):
            target = parent.targets[0].target
            is_line = isinstance(statement, cst.SimpleStatementLine)
            if len(parent.targets) != 1 or not isinstance(target, cst.Name) or not is_line:
                raise Refused("an Estimator that is not assigned to one name", call)
            uses = tuple(self.uses(target, call))
        elif (use := self.method(call)) is not None:
            uses = (use,)
        else:
            with_type = isinstance(parent, cst.AnnAssign)
            how = "assigned with an annotation" if with_type else "passed on where it is made"
            raise Refused(f"an Estimator that is {how}", call)
        line = statement if isinstance(statement, cst.SimpleStatementLine) else None
        return EstimatorJob(call, line, model_fn, args, config, uses, *self.taken())

    def taken(self) -> tuple[tuple[cst.CSTNode, ...], tuple[cst.CSTNode, ...], tuple[cst.CSTNode, ...]]:
        """Return the statements, those left out and the unread nodes of one job, and start those of the next."""
        taken = tuple(self.statements), tuple(self.left_out), (*self.left_out, *self.unread)
        self.statements, self.left_out, self.unread = [], [], []
        return taken

    # Values that jobs take

    def value(self, node: cst.BaseExpression, kind: str, *, logs: bool = False) -> cst.BaseExpression:
        """Return the value behind a name, whose statement is not needed any more.

        Args:
            kind: what the value is, for a refusal.
            logs: whether comments repeat the statement.
        """
        for _ in range(8):
            binding = self.names.binding(node) if isinstance(node, cst.Name) else None
            if binding is None or binding.kind != "value" or not isinstance(node, cst.Name):
                break
            self.read.add(node)
            self.values[binding.node] = (node, kind)
            (self.left_out if logs else self.statements).append(statement_around(self.names, binding.node))
            node = binding.node
        return node

    def check(self) -> None:
        """Check that jobs are all that reads what they take by a name.

        Raises:
            Refused: something else reads it.
        """
        names = self.names
        for value, (name, kind) in self.values.items():
            for place in names.places(name.value):
                bindings = {binding.node for binding in names.program.bindings(place.value, names.scope(place))}
                binding = names.binding(place)
                is_it = value in bindings and (binding is None or binding.node is value)
                if is_it and place not in self.read and not isinstance(names.tree.parents.get(place), cst.AssignTarget):
                    raise Refused(f"{kind} that is used elsewhere, too", place)
        self.check_callers()

    def args(
        self, call: cst.Call, callee: str, takes: tuple[str, ...] = (), name: str = ""
    ) -> dict[str, cst.BaseExpression]:
        """Return parameter -> expression of a call, without those that are None.

        Args:
            callee: a key of the table of calls; "" for the parameters `takes` of a function `name`.
        """
        marked, name = _CALLS[callee].split() if callee else list(takes), name or callee
        order = tuple(mark.rstrip("!-") for mark in marked)
        passed, text = arguments(call, order), self.names.text
        if any(arg.star for arg in call.args) or len(passed) != len(call.args):
            raise Refused(f"{name} with arguments that cannot be followed", call)
        args = {key: arg.value for key, arg in passed.items() if text(arg.value) != _DEFAULTS.get(key, "None")}
        for key, value in list(args.items()):
            if key not in marked and f"{key}!" not in marked:
                if not isinstance(value, cst.List) or value.elements:
                    raise Refused(f"{key} of {name}", value)
                del args[key]
        missing = next((mark[:-1] for mark in marked if mark.endswith("!") and mark[:-1] not in args), "")
        if missing:
            raise Refused(f"{name} without {missing}", call)
        return args

    def model_fn(self, call: cst.Call) -> tuple[FunctionOf | cst.Call, dict[str, cst.BaseExpression]]:
        """Return the model_fn of an Estimator, or the call of a canned one or of a Keras model's, and its arguments."""
        names = self.names
        if (name := names.name(call.func)) in CANNED:
            return call, self.args(call, "", parameters_of(name), name)
        if name == MODEL_TO_ESTIMATOR:
            args = self.args(call, "model_to_estimator")
            check_model(names, call, args["keras_model"])
            return call, args
        args = self.args(call, "Estimator")
        function = names.function(args["model_fn"])
        by_name = isinstance(args["model_fn"], (cst.Name, cst.Attribute))
        if function is None or not by_name or not isinstance(function.node, cst.FunctionDef):
            raise Refused("a model_fn that is not one function of the program, by its name", args["model_fn"])
        home = function.tree.scopes[function.node].parent
        visible = home is not None and home.kind == "function" and home.node in names.tree.above(call)
        if home is not function.tree.scope and not visible:
            raise Refused("a model_fn inside of a class, or of another function than its Estimator", function.node)
        return function, args

    # RunConfig

    def config(self, node: cst.BaseExpression) -> Config:
        names, steps = self.names, list(self.steps(node))
        fields = {name: value for step in reversed(steps) for name, value in self.fields(step).items()}
        reads = tuple(self.model_dirs(node)) if isinstance(node, cst.Name) else ()
        strategy = fields.get("train_distribute")
        kind = names.kind(strategy) if strategy is not None else ""
        if strategy is not None and kind not in _STRATEGIES:
            raise Refused(f"train_distribute={names.text(strategy)}", strategy)
        evaluating = fields.get("eval_distribute")
        if evaluating is not None and (strategy is None or names.kind(evaluating) != kind):
            raise Refused("eval_distribute that is not train_distribute", evaluating)
        if "session_config" in fields:
            self.session(fields["session_config"])
        return Config(fields, strategy, kind, reads)

    def steps(self, node: cst.BaseExpression) -> Iterator[cst.Call]:
        """Yield the calls that make a RunConfig, the last first."""
        value = self.value(node, "a RunConfig")
        if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value == "replace":
            yield value
            yield from self.steps(value.func.value)
        elif isinstance(value, cst.Call) and self.names.name(value.func) in RUN_CONFIGS:
            yield value
        else:
            raise Refused("a RunConfig of a function or another file", node)

    def fields(self, call: cst.Call) -> dict[str, cst.BaseExpression]:
        """Return the fields of `RunConfig(...)` or `.replace(...)`."""
        of_estimator = self.names.name(call.func) == RUN_CONFIGS[0]
        if not of_estimator and any(arg.keyword is None for arg in call.args):
            raise Refused("RunConfig with arguments that cannot be followed", call)
        return self.args(call, "RunConfig")

    def model_dirs(self, node: cst.Name) -> Iterator[cst.Attribute]:
        """Yield the reads of `config.model_dir`, which is the folder of the job."""
        last = self.names.binding(node)
        for name in self.names.places(node.value):
            member = self.names.tree.parents.get(name)
            is_read = isinstance(member, cst.Attribute) and member.attr.value == "model_dir"
            if is_read and self.names.whole(name) is member and self.names.binding(name) is last:
                self.read.add(name)
                yield cst.ensure_type(member, cst.Attribute)

    def session(self, node: cst.BaseExpression) -> None:
        """Take a ConfigProto of sessions: `c = ConfigProto()`, `c.gpu_options.a = True`."""
        names = self.names
        self.unread.append(node)
        value = self.value(node, "a session_config", logs=True)
        if not isinstance(value, cst.Call) or names.name(value.func) != "tf.compat.v1.ConfigProto":
            raise Refused("a session_config that is not made in the same function", node)
        for name in names.places(node.value) if isinstance(node, cst.Name) else ():
            chain = names.whole(name)
            if isinstance(names.tree.parents.get(chain), cst.AssignTarget) and chain is not name:
                self.read.add(name)
                self.left_out.append(statement_around(names, chain))

    # Uses

    def uses(self, target: cst.Name, call: cst.Call) -> Iterator[Use]:
        """Yield what a program does with the Estimator that a call assigns to a name."""
        names, home = self.names, self.names.scope(call)
        for name in names.places(target.value):
            bindings = names.program.bindings(name.value, names.scope(name))
            if not any(binding.node is call for binding in bindings):
                continue
            binding = names.binding(name)
            is_target = isinstance(names.tree.parents.get(name), cst.AssignTarget)
            if binding is None and name is not target and not is_target:
                raise Refused(f"{target.value}, which is assigned at several places", name)
            if binding is None or binding.node is not call:
                continue
            if names.scope(name).around() is not home.around():
                raise Refused(f"{target.value} in another function than the one that makes it", name)
            call_with = self.call_with(name)
            if call_with is not None and names.name(call_with.func) in _STOPPING:
                continue
            use = self.method(name) or self.evaluated(name) or self.with_metrics(name)
            yield from self.in_function(name) if use is None else (use,)
            if use is not None and use.kind == "add_metrics":
                yield from self.uses(target, cst.ensure_type(use.call, cst.Call))

    def method(self, node: cst.BaseExpression) -> Use | None:
        """Return the use `node.train(...)`."""
        member = self.names.tree.parents.get(node)
        if not isinstance(member, cst.Attribute) or member.value is not node:
            return None
        method, call = member.attr.value, self.names.tree.parents.get(member)
        if method == "model_dir":
            return Use("model_dir", member, {})
        if not isinstance(call, cst.Call) or call.func is not member:
            return None
        if method == "eval_dir" and not call.args:
            return Use(method, call, {})
        if method in ("export_saved_model", "export_savedmodel"):
            args = self.args(call, method)
            self.receive(args["serving_input_receiver_fn"])
            return Use("export", call, args)
        if method not in ("train", "evaluate", "predict"):
            raise Refused(f"Estimator.{method}", call)
        args = self.args(call, method)
        if stops := list(self.hooks(args, method)):
            raise Refused(f"early stopping of {method}, which evaluates nothing", stops[0].call)
        return Use(method, call, args)

    def evaluated(self, node: cst.Name) -> Use | None:
        """Return the use `train_and_evaluate(node, ...)`."""
        call = self.call_with(node)
        if call is None or self.names.name(call.func) != _TRAIN_AND_EVALUATE:
            return None
        passed = self.args(call, "train_and_evaluate")
        train, evaluation = (self.spec(passed[f"{name}_spec"], f"{name.title()}Spec") for name in ("train", "eval"))
        args, of_eval = self.args(train, "TrainSpec"), self.args(evaluation, "EvalSpec")
        stops = tuple(self.hooks(args, "TrainSpec"))
        if any(self.hooks(of_eval, "EvalSpec")):
            raise Refused("early stopping in an EvalSpec", evaluation)
        exported = list(self.exporters(of_eval.pop("exporters", None)))
        keeps = [each["exports_to_keep"] for _, each in exported if "exports_to_keep" in each]
        if len(keeps) > 1:
            raise Refused("exports_to_keep of several exporters", keeps[1])
        args |= {"exports_to_keep": keeps[0]} if keeps else {}
        if "steps" not in arguments(evaluation, ("input_fn", "steps")):
            of_eval["steps"] = cst.Integer("100")  # the default of EvalSpec
        args |= {name if name.endswith("_secs") else f"eval_{name}": value for name, value in of_eval.items()}
        exporters = tuple((kind, each.get("name", _BEST), each["serving_input_receiver_fn"]) for kind, each in exported)
        return Use("train_and_evaluate", call, args, exporters, stops)

    def spec(self, node: cst.BaseExpression, name: str) -> cst.Call:
        value = self.value(node, f"a {name}")
        if not isinstance(value, cst.Call) or self.names.name(value.func) != f"tf.estimator.{name}":
            raise Refused(f"a {name} that is not made in the same function", node)
        return value

    def hooks(self, args: dict[str, cst.BaseExpression], callee: str) -> Iterator[Stop]:
        """Yield the hooks of early stopping among the argument `hooks`, and leave those that log in it.

        Raises:
            Refused: one of them does more.
        """
        node = args.pop("hooks", None)
        hooks, logging = self.value(node, "a hook") if node is not None else cst.List([]), []
        if not isinstance(hooks, (cst.List, cst.Tuple)):
            raise Refused(f"hooks of {callee}", hooks)
        self.unread += [hooks] if node is None else [node, hooks]
        for element in hooks.elements:
            target = self.names.value(element.value)
            full = self.names.name(target.func) if isinstance(target, cst.Call) else ""
            hook = self.value(element.value, "a hook", logs=full in LOGGING_HOOKS)
            if isinstance(hook, cst.Call) and full in _STOPPING:
                takes = self.args(hook, full.rpartition(".")[2])
                mode, steps = ("min", "decrease") if "no_decrease" in full else ("max", "increase")
                yield Stop(
                    hook, mode, takes["metric_name"], takes[f"max_steps_without_{steps}"], takes.get("min_steps")
                )
            elif full in LOGGING_HOOKS:
                logging.append(element.with_changes(comma=cst.MaybeSentinel.DEFAULT))
            else:
                raise Refused(f"hooks of {callee}: {self.names.text(element.value)}", element.value)
        args |= {"hooks": cst.List(logging)} if logging else {}

    def exporters(self, node: cst.BaseExpression | None) -> Iterator[tuple[str, Mapping[str, cst.BaseExpression]]]:
        """Yield the class and the arguments of each exporter."""
        value = self.value(node, "an exporter") if node is not None else None
        if isinstance(value, (cst.List, cst.Tuple)):
            for element in value.elements:
                yield from self.exporters(element.value)
        elif value is not None:
            full = self.names.name(value.func) if isinstance(value, cst.Call) else ""
            if not isinstance(value, cst.Call) or full not in _EXPORTERS:
                raise Refused(f"the exporter {full or self.names.text(value)}", value)
            args = self.args(value, full.rpartition(".")[2])
            self.receive(args["serving_input_receiver_fn"])
            yield full.rpartition(".")[2], args

    def receive(self, node: cst.BaseExpression) -> None:
        """Take a serving_input_receiver_fn, and the statement `fn = build_raw_serving_input_receiver_fn(...)`."""
        if isinstance(self.names.value(node), cst.Call):
            self.value(node, "a serving_input_receiver_fn")
        self.unread += serving_nodes(self.names, node)

    def with_metrics(self, name: cst.Name) -> Use | None:
        """Return the use `name = add_metrics(name, metric_fn)`."""
        names, call = self.names, self.call_with(name)
        if call is None or not names.name(call.func).endswith(".estimator.add_metrics"):
            return None
        args, assign = self.args(call, "add_metrics"), names.tree.parents.get(call)
        targets = [names.text(target.target) for target in assign.targets] if isinstance(assign, cst.Assign) else []
        metric_fn = args["metric_fn"]
        binding = names.binding(metric_fn) if isinstance(metric_fn, cst.Name) else None
        function = binding.node if binding is not None else None
        if targets != [name.value] or not isinstance(function, cst.FunctionDef) or function not in names.tree.parents:
            raise Refused("add_metrics with another name or a metric_fn that is not a function of the file", call)
        self.statements.append(statement_around(names, call))
        return Use("add_metrics", call, args, metric_fn=function)

    def in_function(self, name: cst.Name) -> Iterator[Use]:
        """Yield what a function of the file does with an Estimator that it is passed: evaluate and predict.

        Raises:
            Refused: it does something else.
        """
        names, call = self.names, self.call_with(name)
        refusal = Refused(f"{name.value}, which is used in another way than train, evaluate, predict", name)
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
            use = self.method(inner) if names.flag(inner) else None
            if use is None or use.kind not in ("evaluate", "predict"):
                raise refusal
            self.passed.setdefault((function.node, parameter), []).append(call)
            yield replace(use, passed=name)

    def check_callers(self) -> None:
        """Check that each use of a function that evaluates a parameter is a call with an Estimator of the file."""
        functions = {function for function, _ in self.passed}
        for tree in self.names.program.trees.values() if functions else ():
            for chain in tree.chains:
                function = self.names.of(tree).function(chain)
                if function is not None and function.node in functions:
                    for (node, _), calls in self.passed.items():
                        if node is function.node and tree.parents.get(chain) not in calls:
                            text = self.names.text(chain)
                            raise Refused(f"{text}, which is not passed an Estimator everywhere", chain)

    def call_with(self, node: cst.CSTNode) -> cst.Call | None:
        """Return the call that a node is an argument of."""
        arg = self.names.tree.parents.get(node)
        call = self.names.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
        return call if isinstance(call, cst.Call) else None
