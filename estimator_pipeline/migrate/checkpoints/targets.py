"""What a state is moved to: a compiled model of Keras 2 or Keras 3, or the training graph of an Estimator.

A target is described as a `TrainingState` of its own first values,
so that the plan sees the same on both sides. Then it is given the plan's values, and writes itself the way its engine
does.
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
        alike: names of the variables that the model itself calls as it calls others.

    Args:
        model: the model.
        what: how messages call it.

    Raises:
        ConfigError: it is not compiled, or has no variables yet.
    """

    def __init__(self, model: Any, *, what: str) -> None:
        if getattr(model, "optimizer", None) is None:
            raise ConfigError(
                f"{what} is not compiled", code="model/bad-function", hint="model.compile(optimizer, loss, metrics)"
            )
        if not model.built or not model.variables:
            raise ConfigError(
                f"{what} has no variables yet: its layers do not say what they take in",
                code="model/bad-function",
                hint="begin it with tf.keras.Input(shape), or call it on a batch before it is returned",
            )
        self.model = model
        keras_optimizers.create_slots(model)
        if compat.keras_generation() == 3:
            self.variables = ModelVariables(model)
            named = {**self.variables.model, **self.variables.optimizer}
            self.alike: frozenset[str] = frozenset()
        else:
            named = dict(_of_keras_2(model))
            counts = collections.Counter(keras_names.plain_of(variable) for variable in named.values())
            self.alike = frozenset(name for name, one in named.items() if counts[keras_names.plain_of(one)] > 1)
        self._named: dict[str, Any] = named
        optimizer = _inner(model)
        self.hyper = hyper_of(optimizer)
        self.state = state_of(
            {name: variable.numpy() for name, variable in named.items()},
            source=what,
            kind="keras3" if compat.keras_generation() == 3 else "keras",
            style="v1" if type(optimizer).__name__.startswith("V1") else "keras",
        )

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Give its variables these values."""
        for name, value in values.items():
            variable = self._named[name]
            variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype))

    def checkpoint(self, *, of_engine: bool) -> Any:
        """The `tf.train.Checkpoint` to write: that of the engine of this Keras, or of the model and its optimizer."""
        if of_engine and compat.keras_generation() == 3:
            return self.variables.checkpoint()
        return compat.tensorflow().train.Checkpoint(model=self.model, optimizer=self.model.optimizer)


def _inner(model: Any) -> Any:
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def _of_keras_2(model: Any) -> Iterator[tuple[str, Any]]:
    """Name -> variable of a model of Keras 2 and its optimizer, without the numbers of a loss scale."""
    wanted = (*keras_optimizers.weights_of(model), *keras_optimizers.variables_of(_inner(model)))
    known = {id(variable) for variable in wanted}
    return ((name, variable) for name, variable in keras_names.named(model) if id(variable) in known)


# An argument of an optimizer's class -> Keras 2's name of it.
_HYPER = {"beta1": "beta_1", "beta2": "beta_2"}


def hyper_of(optimizer: Any) -> dict[str, Any]:
    """The numbers that an optimizer of Keras is made with; a schedule stands as the mapping that describes it."""
    try:
        config = dict(optimizer.get_config())
    except NotImplementedError:
        # A schedule that is a function of one's own.
        return {"learning_rate": {}}
    if type(optimizer).__name__.startswith("V1RMSProp"):
        config["rho"] = config.pop("decay")
    found = {_HYPER.get(str(name), str(name)): value for name, value in config.items()}
    return {name: _plain(value) for name, value in found.items() if name != "name"}


def _plain(value: Any) -> Any:
    return (
        value.item() if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.shape) else value
    )


class _Seen(Exception):
    """The graph was seen, and no step is to be made."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatorTarget:
    """The training graph of an Estimator.

    Attributes:
        estimator: its `model_fn`, `params` and `config` are used, its `model_dir` is neither read nor written.
        input_fn: gives the training data, whose shapes the graph is built for.
        what: how messages call it.
        hyper: numbers of its optimizer, as far as they are known.
    """

    estimator: Any
    input_fn: Callable[..., Any]
    what: str
    hyper: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def write(self, folder: str, planned: Planned) -> str:
        """Build the graph, give its variables what `planned` says, and write the Estimator's checkpoint of them.

        Args:
            folder: a new one; the Estimator works in it.
            planned: from the state that the graph begins with, the values: name -> value.

        Returns:
            The checkpoint's prefix.
        """
        tf: Any = compat.tensorflow()
        v1 = tf.compat.v1
        own = self.estimator.model_fn

        def model_fn(features: Any, labels: Any, mode: Any, config: Any) -> Any:
            return own(features, labels, mode, config)

        # Without a strategy: further replicas' copies are no part of a checkpoint.
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
                state = state_of(first, source=target.what, kind="name-based")
                values = planned(state, {**_settings(state), **target.hyper})
                for name, value in values.items():
                    for variable, place in self._whole[name]:
                        holder, assign = self._assign[variable.name]
                        session.run(assign, {holder: value[place]})
                step = int(session.run(v1.train.get_global_step()))
                # The Estimator's own, which knows how its variables are called in a file.
                saver = v1.get_collection(v1.GraphKeys.SAVERS)[0]
                written.append(saver.save(session, f"{folder}/model.ckpt", global_step=step, write_meta_graph=False))
                raise _Seen

        try:
            copy.train(self.input_fn, steps=1, hooks=[Writer()])
        except _Seen:
            return str(written[0])
        raise ConfigError(
            f"{self.what} made no session to train in", code="model/bad-function", hint="return a train_op in TRAIN"
        )


def _partitions(variables: list[Any]) -> dict[str, list[tuple[Any, Any]]]:
    """Name -> the variables that it is, and which part of the value each holds."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for variable in variables:
        info = getattr(variable, "_save_slice_info", None)
        if info is None:
            found[variable.name.partition(":")[0]] = [(variable, ...)]
            continue
        place = tuple(slice(o, o + n) for o, n in zip(info.var_offset, info.var_shape, strict=True))
        found.setdefault(info.full_name, []).append((variable, place))
    return found


def _joined(parts: list[tuple[Any, Any]], values: list[Any]) -> Any:
    if len(parts) == 1 and parts[0][1] is ...:
        return values[0]
    whole = np.zeros(parts[0][0]._save_slice_info.full_shape, values[0].dtype)
    for (_, place), value in zip(parts, values, strict=True):
        whole[place] = value
    return whole


def _settings(state: TrainingState) -> dict[str, Any]:
    """Return the settings that a graph keeps as variables."""
    return {name.rpartition("/")[2]: entry.value.item() for name, entry in state.settings.items()}
