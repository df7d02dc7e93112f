"""Metadata of a training graph: optimizer options and random operations.

Step records hold the results of a training; this metadata holds its settings, so that a finding can name the option
that causes a difference. It is read from the operations of the graph, and so works for any `model_fn`.
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
from estimator_pipeline.parity.optimizer_slots import behind, updates_in

__all__ = ["GraphFacts", "options_of_keras", "random_of_model"]

# Keras optimizer class -> kind, and the options that are compared.
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
_DRAWS = re.compile(r"Random|Multinomial|TruncatedNormal|StatefulUniform|StatefulStandardNormal|SampleDistorted")
_STREAMS = re.compile(rf"^(?!Stateless).*({_DRAWS.pattern})")
_DRAWS_NOT = re.compile(r"Get(Key|Alg)|Dataset|Seed|RandomIndex")


class GraphFacts:
    """Filled by `hook` while an Estimator trains.

    Attributes:
        options: optimizer options: `kind` ("sgd", "momentum", "adam", ...) and its numbers by Keras's names, without a
            scheduled learning rate and without options that differ between variables. Empty where other operations
            make the update, or optimizers of several kinds.
        random: names of the random operations that the loss depends on.
    """

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.random: list[str] = []

    def hook(self) -> Any:
        """Return a hook for `Estimator.train` that reads the graph, and options from variables in its session."""
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
                by_option = session.run(self._asked)
                facts.options |= _alike(
                    {name: [_plain(value) for value in values] for name, values in by_option.items()}
                )

        return Reader()

    def of_updates(self, graph: Any) -> dict[str, list[Any]]:
        """Read constant options; return name -> tensors of the options that need a session."""
        tf: Any = compat.tensorflow()
        known = [entry for entry in updates_in(graph) if entry[1].kind is not None]
        if len({update.kind for _, update, _ in known}) != 1:
            return {}  # no known optimizer, or different ones for parts of the model
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
        # An option that is constant only for some variables differs between variables.
        self.options |= _alike(
            {name: constants for name, constants in {**flags, **values}.items() if name not in asked}
        )
        return {name: list(tensors.values()) for name, tensors in asked.items() if name not in values}


def _alike(by_name: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return the options whose values all agree."""
    return {
        name: settings[0]
        for name, settings in by_name.items()
        if settings and all(value == settings[0] for value in settings)
    }


def _plain(value: Any) -> float:
    # The number as written in the program, not its nearest float32 to 17 digits.
    return float(f"{float(np.asarray(value)):.7g}")


def _reads(tensor: Any, of: Iterable[str]) -> bool:
    """Whether a tensor depends on operations of these types or names."""
    return any(word in operation.type or word in operation.name for operation in behind([tensor]) for word in of)


def random_of(graph: Any, tensors: Iterable[Any], *, streams: bool = False) -> list[str]:
    """Return the scopes of random operations that tensors depend on, including those within functions.

    Args:
        graph: the graph.
        tensors: tensors such as the loss.
        streams: only stateful operations, which continue a random stream; not those that draw by a key.
    """
    pattern = _STREAMS if streams else _DRAWS
    operations = behind(tensors)
    names = [operation.name for operation in operations if _draws(operation.type, pattern)]
    named = {name: operation for operation in operations for name in _functions_of(operation.node_def)}
    if named:
        try:
            library = {function.signature.name: function for function in graph.as_graph_def().library.function}
        except ValueError:  # over 2 GB, the limit of a protocol buffer
            library = {}
        for name, operation in named.items():
            if _draws_within(name, library, set(), pattern):
                names.append(operation.name)
    return sorted({_scope(name) for name in names})


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
    """`dropout_1/dropout/random_uniform/RandomUniform` -> `dropout_1`; a name without a scope is unchanged."""
    parts = [part for part in name.split("/") if not re.match(r"random_|Random|Stateless|stateless_", part)]
    outer = zip(["", *parts], parts, strict=False)
    kept = [part for last, part in outer if part not in (last, re.sub(r"_\d+$", "", last))]
    return "/".join(kept) or name


def random_of_model(model: Any, features: Any, *, of_a_job: bool = False) -> tuple[list[str], list[str]]:
    """Return the names of random operations in a Keras model's training: layers, and functions within them.

    Args:
        model: a Keras model.
        features: features of a batch, to trace the model; nothing is computed.
        of_a_job: skip operations that draw by the step, as the layers of a job do: they are equal on its engines.

    Returns:
        The names, and notes: the reason why they are unknown, where a model overrides its training step and calls its
        layers differently.
    """
    tf: Any = compat.tensorflow()
    strategy = model.distribute_strategy

    def call(inputs: Any) -> Any:
        by_step = step_random.drawn_by_step(tf, seed=0, step=0) if of_a_job else contextlib.nullcontext()
        with by_step:
            return model(inputs, training=True)

    def all_replicas(inputs: Any) -> Any:
        return strategy.run(tf.autograph.experimental.do_not_convert(call), args=(inputs,))

    try:
        traced = tf.function(all_replicas, autograph=False).get_concrete_function(features)
    except Exception as error:
        return [], [f"whether the Keras model draws random numbers is unknown: {describe_error(error)}"]
    names = random_of(traced.graph, traced.graph.outputs, streams=of_a_job)
    return [name.removeprefix(f"{model.name}/") for name in names], []


def options_of_keras(optimizer: Any) -> dict[str, Any]:
    """Return the options of a Keras optimizer, as `GraphFacts.options`; empty for an unknown class."""
    name = type(optimizer).__name__
    if name not in _OF_KERAS:
        return {}
    kind, names = _OF_KERAS[name]
    config = {_FTRL.get(key, key): value for key, value in optimizer.get_config().items()}
    options = {key: config[key] for key in names if config.get(key) is not None}
    if not isinstance(config.get("learning_rate"), Mapping):
        options["learning_rate"] = config["learning_rate"]
    if not options.get("l2_shrinkage"):
        options.pop("l2_shrinkage", None)  # a separate operation has it
    if kind == "ftrl" and config.get("beta"):
        # The update operation takes both as one number.
        rate = options.get("learning_rate")
        options["l2"] = options["l2"] + config["beta"] / (2 * rate) if rate else None
        options = {key: value for key, value in options.items() if value is not None}
    if kind == "sgd":
        kind = "momentum" if options.get("momentum") else "sgd"
        if kind == "sgd":
            options = {key: value for key, value in options.items() if key == "learning_rate"}
    return {"kind": kind, **{key: v if isinstance(v, bool) else _plain(v) for key, v in options.items()}}
