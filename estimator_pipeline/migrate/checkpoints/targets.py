"""Targets of a migration: a compiled model of Keras 2 or Keras 3, or the training graph of an Estimator.

A target describes its initial values as a `TrainingState`, so that the plan has the same types on both sides. Then it
assigns the plan's values and writes them in the format of its engine.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.state import TrainingState, state_of
from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.keras3_variables import ModelVariables
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers

__all__ = ["EstimatorTarget", "KerasTarget", "hyper_of"]

Planned = Callable[[TrainingState, Mapping[str, Any]], Mapping[str, np.ndarray]]


class KerasTarget:
    """A compiled, built Keras model of this process's Keras, and its optimizer.

    Attributes:
        ambiguous: Names of the variables that share their name with others in the model.

    Args:
        model: The model.
        description: Its name in messages.

    Raises:
        ConfigError: The model is not compiled, or has no variables yet.
    """

    def __init__(self, model: Any, *, description: str) -> None:
        if getattr(model, "optimizer", None) is None:
            raise ConfigError(
                f"{description} is not compiled",
                code="model/bad-function",
                hint="call model.compile(optimizer, loss, metrics)",
            )
        if not model.built or not model.variables:
            raise ConfigError(
                f"{description} has no variables yet: its layers have no input shape",
                code="model/bad-function",
                hint="start it with tf.keras.Input(shape), or call it on a batch before the function returns it",
            )
        self.model = model
        keras_optimizers.create_slots(model)
        if compat.keras_generation() == 3:
            self.variables = ModelVariables(model)
            named = {**self.variables.model, **self.variables.optimizer}
            self.ambiguous: frozenset[str] = frozenset()
        else:
            named = dict(_of_keras_2(model))
            counts = collections.Counter(keras_names.plain_of(variable) for variable in named.values())
            self.ambiguous = frozenset(
                name for name, variable in named.items() if counts[keras_names.plain_of(variable)] > 1
            )
        self._named: dict[str, Any] = named
        optimizer = _inner(model)
        self.hyper = hyper_of(optimizer)
        self.state = state_of(
            {name: variable.numpy() for name, variable in named.items()},
            source=description,
            kind="keras3" if compat.keras_generation() == 3 else "keras",
            style="v1" if type(optimizer).__name__.startswith("V1") else "keras",
        )

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Assign values to the variables of the model."""
        for name, value in values.items():
            variable = self._named[name]
            variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype))

    def checkpoint(self, *, of_engine: bool) -> Any:
        """Return the `tf.train.Checkpoint` of the engine or of the model."""
        if of_engine and compat.keras_generation() == 3:
            return self.variables.checkpoint()
        return compat.tensorflow().train.Checkpoint(model=self.model, optimizer=self.model.optimizer)


def _inner(model: Any) -> Any:
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def _of_keras_2(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and variable of a Keras 2 model, without a loss scale."""
    wanted = (*keras_optimizers.weights_of(model), *keras_optimizers.variables_of(_inner(model)))
    known = {id(variable) for variable in wanted}
    return ((name, variable) for name, variable in keras_names.named(model) if id(variable) in known)


# Argument of an optimizer class -> its name in Keras 2.
_HYPER = {"beta1": "beta_1", "beta2": "beta_2"}


def hyper_of(optimizer: Any) -> dict[str, Any]:
    """Return the hyperparameters of a Keras optimizer; a schedule as a mapping."""
    try:
        config = dict(optimizer.get_config())
    except NotImplementedError:
        # A schedule without get_config, such as a user's function.
        return {"learning_rate": {}}
    if type(optimizer).__name__.startswith("V1RMSProp"):
        config["rho"] = config.pop("decay")
    hyper = {_HYPER.get(str(name), str(name)): value for name, value in config.items()}
    return {name: _plain(value) for name, value in hyper.items() if name != "name"}


def _plain(value: Any) -> Any:
    return (
        value.item() if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.shape) else value
    )


class _GraphBuilt(Exception):
    """The checkpoint is written, so the training stops before its first step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatorTarget:
    """The training graph of an Estimator.

    Attributes:
        estimator: Its `model_fn`, `params` and `config` are used; its `model_dir` is neither read nor written.
        input_fn: The function that returns the training data, with the shapes for the graph.
        description: Its name in messages.
        hyper: Known hyperparameters of its optimizer.
    """

    estimator: Any
    input_fn: Callable[..., Any]
    description: str
    hyper: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def write(self, folder: str, planned: Planned) -> str:
        """Build the graph, assign the planned values, and write the checkpoint.

        Args:
            folder: A new folder, the model_dir of the Estimator.
            planned: A function from the initial state of the graph to the values: name -> value.

        Returns:
            The prefix of the checkpoint.
        """
        tf: Any = compat.tensorflow()
        v1 = tf.compat.v1
        original_fn = self.estimator.model_fn

        def model_fn(features: Any, labels: Any, mode: Any, config: Any) -> Any:
            return original_fn(features, labels, mode, config)

        # Without a strategy, because a checkpoint does not contain the copies of other replicas.
        config = self.estimator.config.replace(
            model_dir=folder,
            train_distribute=None,
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            save_summary_steps=None,
        )
        copy = tf.estimator.Estimator(model_fn, folder, config=config)
        base: Any = v1.train.SessionRunHook
        target, written = self, []

        class Writer(base):
            def begin(self) -> None:
                self._whole = _partitions(v1.global_variables())
                self._assign = {}
                for parts in self._whole.values():
                    for variable, _ in parts:
                        holder = v1.placeholder(variable.dtype.base_dtype, variable.shape)
                        self._assign[variable.name] = (holder, variable.assign(holder))

            def after_create_session(self, session, coord):
                first = {
                    name: _joined(parts, [session.run(variable) for variable, _ in parts])
                    for name, parts in self._whole.items()
                }
                state = state_of(first, source=target.description, kind="name-based")
                values = planned(state, {**_settings(state), **target.hyper})
                for name, value in values.items():
                    for variable, place in self._whole[name]:
                        holder, assign = self._assign[variable.name]
                        session.run(assign, {holder: value[place]})
                step = int(session.run(v1.train.get_global_step()))
                # The Estimator's saver maps the variables to their names in the file.
                saver = v1.get_collection(v1.GraphKeys.SAVERS)[0]
                written.append(saver.save(session, f"{folder}/model.ckpt", global_step=step, write_meta_graph=False))
                raise _GraphBuilt

        try:
            copy.train(self.input_fn, steps=1, hooks=[Writer()])
        except _GraphBuilt:
            return str(written[0])
        raise ConfigError(
            f"{self.description} created no training session",
            code="model/bad-function",
            hint="return a train_op in TRAIN mode",
        )


def _partitions(variables: list[Any]) -> dict[str, list[tuple[Any, Any]]]:
    """Group partitioned variables by name, each with its slice of the value."""
    partitions: dict[str, list[tuple[Any, Any]]] = {}
    for variable in variables:
        info = getattr(variable, "_save_slice_info", None)
        if info is None:
            partitions[variable.name.partition(":")[0]] = [(variable, ...)]
            continue
        place = tuple(slice(o, o + n) for o, n in zip(info.var_offset, info.var_shape, strict=True))
        partitions.setdefault(info.full_name, []).append((variable, place))
    return partitions


def _joined(parts: list[tuple[Any, Any]], values: list[Any]) -> Any:
    if len(parts) == 1 and parts[0][1] is ...:
        return values[0]
    whole = np.zeros(parts[0][0]._save_slice_info.full_shape, values[0].dtype)
    for (_, place), value in zip(parts, values, strict=True):
        whole[place] = value
    return whole


def _settings(state: TrainingState) -> dict[str, Any]:
    """Return the optimizer settings that the graph stores as variables."""
    return {name.rpartition("/")[2]: entry.value.item() for name, entry in state.settings.items()}
