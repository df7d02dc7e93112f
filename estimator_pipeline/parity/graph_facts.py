"""What a training's graph says of itself: the optimizer's options, what draws random numbers, what its metrics count.

Records tell what a training did; these tell what it was asked to do, so that a difference can be named by the option
that it comes from. Read from the graph's own operations, and so from any `model_fn`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import stateless_random as step_random
from estimator_pipeline.job.user_code import describe_error
from estimator_pipeline.parity.optimizer_slots import VARIABLES, behind, updates_in

__all__ = ["GraphFacts", "kind_of_metric", "options_of_keras", "random_of_model", "thresholds_of"]

# Of Keras's optimizers: class -> kind, and the options that are compared.
_OF_KERAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "SGD": ("sgd", ("momentum", "nesterov")),
    "Adam": ("adam", ("beta_1", "beta_2", "epsilon")),
    "AdamW": ("adam", ("beta_1", "beta_2", "epsilon")),
    "Adamax": ("adamax", ("beta_1", "beta_2", "epsilon")),
    "Nadam": ("nadam", ("beta_1", "beta_2", "epsilon")),
    "Adadelta": ("adadelta", ("rho", "epsilon")),
    "Lion": ("lion", ("beta_1", "beta_2")),
    "Adafactor": ("adafactor", ()),
    "Adagrad": ("adagrad", ("epsilon",)),
    "RMSprop": ("rmsprop", ("rho", "momentum", "epsilon")),
    "Ftrl": ("ftrl", ("l1", "l2", "l2_shrinkage", "learning_rate_power")),
}
_FTRL = {"l1_regularization_strength": "l1", "l2_regularization_strength": "l2",
         "l2_shrinkage_regularization_strength": "l2_shrinkage"}  # fmt: skip
# What makes classes, or true and false, of a model's outputs.
_MAKES_CLASSES = ("Round", "Rint", "Floor", "ArgMax", "TopKV2", "Greater", "GreaterEqual", "Less", "LessEqual",
                  "LogicalNot", "LogicalAnd", "Sign")  # fmt: skip
_PASSED_ON = ("Cast", "Identity", "Mul", "Reshape", "Squeeze", "ExpandDims")
_DRAWS = re.compile(r"Random|Multinomial|TruncatedNormal|StatefulUniform|StatefulStandardNormal|SampleDistorted")
_STREAMS = re.compile(rf"^(?!Stateless).*({_DRAWS.pattern})")
_DRAWS_NOT = re.compile(r"Get(Key|Alg)|Dataset|Seed|RandomIndex")


class GraphFacts:
    """Filled by `hook` while an Estimator trains.

    Attributes:
        options: of the optimizer: `kind` ("sgd", "momentum", "adam", ...) and its numbers by Keras's names; a learning
            rate that follows a schedule is left out, and so is what is not the same for all variables. Empty where the
            update is made of other operations, or by optimizers of several kinds.
        random: names of what draws random numbers for the loss.
    """

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.random: list[str] = []

    def hook(self) -> Any:
        """For the hooks of `Estimator.train`: it reads the graph, and asks a session for options kept in variables."""
        tf: Any = compat.tensorflow()
        v1, facts = tf.compat.v1, self
        base: Any = v1.train.SessionRunHook

        class Reader(base):
            def begin(self) -> None:
                graph = v1.get_default_graph()
                losses = v1.get_collection(v1.GraphKeys.LOSSES)
                facts.random = random_of(graph, losses[-1:])
                self._asked = facts.of_updates(graph)

            def after_create_session(self, session: Any, coord: Any) -> None:
                told = session.run(self._asked)
                facts.options |= _alike({name: [_plain(one) for one in values] for name, values in told.items()})

        return Reader()

    def of_updates(self, graph: Any) -> dict[str, list[Any]]:
        """Read what the graph holds as constants; returns name -> tensors of what a session has to be asked for."""
        tf: Any = compat.tensorflow()
        known = [one for one in updates_in(graph) if one[1].kind is not None]
        if len({update.kind for _, update, _ in known}) != 1:
            return {}  # none that is known, or one for each part of a model
        self.options = {"kind": known[0][1].kind}
        flags: dict[str, list[Any]] = {}
        values: dict[str, list[Any]] = {}
        asked: dict[str, dict[str, Any]] = {}
        for operation, update, inputs in known:
            if update.kind == "momentum":
                flags.setdefault("nesterov", []).append(bool(operation.get_attr("use_nesterov")))
            for argument, name in update.options.items():
                value = tf.get_static_value(inputs[argument])
                if value is not None:
                    values.setdefault(name, []).append(_plain(value))
                elif not _reads(inputs[argument], ("Iterator", "Placeholder", "Queue", "global_step")):
                    asked.setdefault(name, {})[inputs[argument].name] = inputs[argument]
        # One that is a constant for some variables alone is not the same for all.
        self.options |= _alike({name: found for name, found in {**flags, **values}.items() if name not in asked})
        return {name: list(tensors.values()) for name, tensors in asked.items() if name not in values}


def _alike(values: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Those that are the same wherever they are told."""
    return {name: found[0] for name, found in values.items() if found and all(one == found[0] for one in found)}


def _plain(value: Any) -> float:
    # The number that a person has written, and not its nearest float32 to 17 digits.
    return float(f"{float(np.asarray(value)):.7g}")


def _reads(tensor: Any, of: Iterable[str]) -> bool:
    """Whether a tensor depends on operations of these types or names."""
    return any(word in operation.type or word in operation.name for operation in behind([tensor]) for word in of)


def random_of(graph: Any, tensors: Iterable[Any], *, streams: bool = False) -> list[str]:
    """Scopes of the operations behind tensors that draw random numbers, those within functions too.

    Args:
        graph: it.
        tensors: such as the loss.
        streams: those alone that go on from where they were, and not those that draw by a key.
    """
    pattern = _STREAMS if streams else _DRAWS
    operations = behind(tensors)
    found = [operation.name for operation in operations if _draws(operation.type, pattern)]
    named = {name: operation for operation in operations for name in _functions_of(operation.node_def)}
    if named:
        try:
            library = {function.signature.name: function for function in graph.as_graph_def().library.function}
        except ValueError:  # beyond 2 GB, which a message of its kind cannot hold
            library = {}
        for name, operation in named.items():
            if _draws_within(name, library, set(), pattern):
                found.append(operation.name)
    return sorted({_scope(name) for name in found})


def _draws(kind: str, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(kind)) and not _DRAWS_NOT.search(kind)


def _functions_of(node: Any) -> list[str]:
    return [value.func.name for value in node.attr.values() if value.HasField("func")]


def _draws_within(name: str, library: Mapping[str, Any], seen: set[str], pattern: re.Pattern[str]) -> bool:
    if name in seen or name not in library:
        return False
    seen.add(name)
    return any(
        _draws(node.op, pattern) or any(_draws_within(inner, library, seen, pattern) for inner in _functions_of(node))
        for node in library[name].node_def
    )


def _scope(name: str) -> str:
    """`dropout_1/dropout/random_uniform/RandomUniform` -> `dropout_1`; what stands alone keeps its name."""
    parts = [part for part in name.split("/") if not re.match(r"random_|Random|Stateless|stateless_", part)]
    outer = zip(["", *parts], parts, strict=False)
    kept = [part for last, part in outer if part not in (last, re.sub(r"_\d+$", "", last))]
    return "/".join(kept) or name


def random_of_model(model: Any, features: Any, *, of_a_job: bool = False) -> tuple[list[str], list[str]]:
    """Names of what draws random numbers in a Keras model's training: layers, and functions within them.

    Args:
        model: a Keras model.
        features: of a batch; it is traced with them, and nothing is computed.
        of_a_job: only what does not draw by the step, as the layers of a job do, which is the same for its engines.

    Returns:
        The names, and notes: why they are not known, where a model with a training step of its own calls its layers
        otherwise.
    """
    tf: Any = compat.tensorflow()
    strategy = model.distribute_strategy

    def call(given: Any) -> Any:
        by_step = step_random.drawn_by_step(tf, seed=0, step=0) if of_a_job else contextlib.nullcontext()
        with by_step:
            return model(given, training=True)

    def all_replicas(given: Any) -> Any:
        return strategy.run(tf.autograph.experimental.do_not_convert(call), args=(given,))

    try:
        traced = tf.function(all_replicas, autograph=False).get_concrete_function(features)
    except Exception as error:
        return [], [f"whether the Keras model draws random numbers of its own is not known: {describe_error(error)}"]
    found = random_of(traced.graph, traced.graph.outputs, streams=of_a_job)
    return [name.removeprefix(f"{model.name}/") for name in found], []


def options_of_keras(optimizer: Any) -> dict[str, Any]:
    """Return the options of a Keras optimizer, as `GraphFacts.options`; empty for a class that is not known."""
    name = type(optimizer).__name__
    if name not in _OF_KERAS:
        return {}
    kind, names = _OF_KERAS[name]
    config = {_FTRL.get(key, key): value for key, value in optimizer.get_config().items()}
    found = {key: config[key] for key in names if config.get(key) is not None}
    if not isinstance(config.get("learning_rate"), Mapping):
        found["learning_rate"] = config["learning_rate"]
    if not found.get("l2_shrinkage"):
        found.pop("l2_shrinkage", None)  # an operation of its own has it
    if kind == "ftrl" and config.get("beta"):
        # The update is given both in one number.
        rate = found.get("learning_rate")
        found["l2"] = found["l2"] + config["beta"] / (2 * rate) if rate else None
        found = {key: value for key, value in found.items() if value is not None}
    if kind == "sgd":
        kind = "momentum" if found.get("momentum") else "sgd"
        if kind == "sgd":
            found = {key: value for key, value in found.items() if key == "learning_rate"}
    return {"kind": kind, **{key: v if isinstance(v, bool) else _plain(v) for key, v in found.items()}}


def kind_of_metric(graph: Any, value: Any) -> dict[str, Any]:
    """Return what a metric of `tf.compat.v1.metrics` counts, from the variables of its scope: whatever it is called.

    Args:
        graph: of the evaluation.
        value: its value tensor, or a Keras metric.

    Returns:
        `kind`: "auc", "precision", "recall", "accuracy", "mean", "mean of batches" (of one number a batch) or a Keras
        class; `thresholds` where it has any; `classes` where it is given these, and not what a model computes. Empty
        for others.
    """
    if hasattr(value, "result"):
        return thresholds_of(value)
    tf: Any = compat.tensorflow()
    kept = graph.get_collection(tf.compat.v1.GraphKeys.METRIC_VARIABLES)
    # The value may have been made by a strategy or a cast: its scope is that of the variables which it reads.
    read = {operation.name for operation in behind([value])}
    mine = {variable.op.name: variable.shape for variable in kept if variable.op.name in read}
    counts = {re.sub(r"_\d+$", "", name.removesuffix("/count").rpartition("/")[2]): shape
              for name, shape in mine.items()}  # fmt: skip
    many = next((shape[0] for shape in counts.values() if shape.rank == 1 and shape[0]), None)
    told = {} if many is None else {"thresholds": int(many)}
    # Of a precision-recall curve the value does not read the true negatives.
    if {"true_positives", "false_negatives", "false_positives"} <= counts.keys():
        return {"kind": "auc", **told}
    for other, kind in (("false_positives", "precision"), ("false_negatives", "recall")):
        if {"true_positives", other} <= counts.keys():
            scope = next(name for name in mine if "true_positives" in name).partition("true_positives")[0]
            inner = [one for one in graph.get_operations() if one.type == "Cast" and one.name.startswith(scope)]
            casts = [one.inputs[0] for one in inner if one.outputs[0].dtype == tf.bool]
            return {"kind": kind, **told, **({"classes": True} if not any(map(_is_probability, casts)) else {})}
    totals = [name.removesuffix("total") for name in mine if name.rpartition("/")[2] == "total"]
    if totals:
        sums = [one for one in graph.get_operations() if one.type == "Sum" and one.name.startswith(totals[0])]
        compared = [equal for one in sums for equal in _comparisons_in(one)]
        if compared:
            classes = not any(_is_probability(tensor) for one in compared for tensor in one.inputs)
            return {"kind": "accuracy", **({"classes": True} if classes else {})}
        # What is summed of each batch is one number: the mean that was made of it before.
        whole = any(one.inputs[0].shape.rank == 0 for one in sums)
        return {"kind": "mean of batches" if whole else "mean"}
    return {}


def _comparisons_in(summed: Any) -> list[Any]:
    """Return the comparisons that a sum counts, with weights or without."""
    found, rest = [], [tensor.op for tensor in summed.inputs]
    while rest:
        operation = rest.pop()
        if operation.type == "Equal":
            found.append(operation)
        elif operation.type in _PASSED_ON:
            rest += [tensor.op for tensor in operation.inputs]
    return found


def _is_probability(tensor: Any) -> bool:
    """Whether a metric is given what a model computes as it is: labels, and classes made of outputs, are none."""
    if tensor.dtype.is_integer or tensor.dtype.is_bool:
        return False
    if not any(operation.type in VARIABLES for operation in behind([tensor])):
        return False
    operation = tensor.op
    while operation.type in _PASSED_ON:
        if operation.inputs[0].dtype.is_integer or operation.inputs[0].dtype.is_bool:
            return False
        operation = operation.inputs[0].op
    return operation.type not in _MAKES_CLASSES


def thresholds_of(metric: Any) -> dict[str, Any]:
    """The same of a Keras metric: its class, the count of its thresholds, the curve, what counts as positive."""
    config = metric.get_config()
    found: dict[str, Any] = {"kind": type(metric).__name__}
    function = config.get("fn")
    if hasattr(function, "__name__"):  # "accuracy", given to `compile`
        found["kind"] = "".join(part.capitalize() for part in function.__name__.split("_"))
    if "num_thresholds" in config:
        found["thresholds"] = int(config["num_thresholds"])
    for name in ("curve", "summation_method", "threshold", "thresholds"):
        if name in config and name not in found and config[name] is not None:
            found["threshold" if name == "thresholds" else name] = config[name]
    return found
