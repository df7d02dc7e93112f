"""What a training does, step by step, handed to a writer: a hook for Estimators, callbacks for Keras 2 and Keras 3.

All tell the same things under the same names, so that two runs can be held against each other: the loss of the global
batch before the step, the learning rate that it is made with, and every variable after it. Where several workers
train, all of them record, for reading what replicas have of their own is done by all together; all but one have a
writer that writes nothing. What its pipeline reads each worker tells for itself.
"""

from __future__ import annotations

import dataclasses
import inspect
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.engines.recording.environment import environment_of
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.keras3_variables import ModelVariables
from estimator_pipeline.models.model_fn import LEARNING_RATE
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers.inspection import rate_of, step_of

Canonical = Callable[[Iterable[str]], Mapping[str, str]]


class StepWriterProtocol(Protocol):
    """Where the record goes; :class:`estimator_pipeline.parity.step_records.StepWriter` is one."""

    def environment(self, facts: Mapping[str, Any]) -> None: ...

    def initial(self, variables: Mapping[str, Any]) -> None: ...

    def step(
        self,
        step: int,
        *,
        loss: float,
        learning_rate: float | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None: ...


class NullStepWriter:
    """Writes nothing: for all workers but one."""

    def environment(self, facts: Mapping[str, Any]) -> None: ...

    def initial(self, variables: Mapping[str, Any]) -> None: ...

    def step(self, step: int, **told: Any) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecorder:
    """What is to be recorded of a run, and where.

    Attributes:
        writer: where the record goes; asked for by the chief alone.
        canonical: names of all variables -> canonical name -> name.
        start: canonical name -> value: what the variables are set to before the first step, on every worker.
        batches: task -> what is told the checksums of each batch that its pipeline reads.
    """

    writer: Callable[[], StepWriterProtocol]
    canonical: Canonical
    start: Mapping[str, Any] | None = None
    batches: Callable[[str], Callable[[list[int]], None]] | None = None

    def input_fn(self, input_fn: Callable[..., Any], *, task: str) -> Callable[..., Any]:
        """A training task's input function, which tells what it reads."""
        return input_fn if self.batches is None else told_batches(input_fn, self.batches(task))

    def hook(self, *, chief: bool) -> Any:
        """For `TrainSpec.hooks` of one training task."""
        return estimator_hook(self._writer(chief), canonical=self.canonical, start=self.start)

    def callback(self, *, chief: bool) -> Any:
        """For `Model.fit` of one training task."""
        return keras_callback(self._writer(chief), canonical=self.canonical, start=self.start)

    def keras3_callback(self, *, chief: bool, strategy: Any) -> Any:
        """For the training loop of the Keras 3 engine."""
        return keras3_callback(self._writer(chief), canonical=self.canonical, start=self.start, strategy=strategy)

    def _writer(self, chief: bool) -> StepWriterProtocol:
        return self.writer() if chief else NullStepWriter()


def told_batches(
    input_fn: Callable[..., Any], tell: Callable[[list[int]], None], chosen: Callable[..., list[Any]] | None = None
) -> Callable[..., Any]:
    """An input function that says which records its dataset gives, in order; batches and records stay as they are.

    Args:
        input_fn: returns a `tf.data.Dataset` of batches [B, ...]; with a parameter `input_context` or without. What it
            returns otherwise (tensors of a queue, as programs of TensorFlow 1 have it) is not told.
        tell: called with a checksum (CRC-32) of each record of a batch. A batch whose parts have no common first
            dimension (sparse features) has one checksum.
        chosen: makes of an element, given as `Dataset.map` gives it, the tensors that the checksums are of; None: all
            of it.
    """
    tf: Any = compat.tensorflow()

    def told(dataset: Any) -> Any:
        if not isinstance(dataset, tf.data.Dataset | tf.compat.v1.data.Dataset):
            return dataset

        def look(*parts: Any) -> Any:
            tell(_checksums([getattr(part, "numpy", lambda part=part: part)() for part in parts]))
            return 0

        def pass_on(*element: Any) -> Any:
            parts = tf.nest.flatten(element, expand_composites=True) if chosen is None else chosen(*element)
            with tf.control_dependencies([tf.numpy_function(look, parts, tf.int64)]):
                same = tf.nest.map_structure(tf.identity, element, expand_composites=True)
            return same[0] if len(same) == 1 else same

        return dataset.map(tf.autograph.experimental.do_not_convert(pass_on))

    inner: Any = input_fn

    def given(**context: Any) -> Any:
        if hasattr(inner, "start_step"):
            # An engine tells it where the data begin, and knows the outer function alone.
            inner.start_step = outer.start_step
        if hasattr(inner, "ledger"):
            inner.ledger = outer.ledger
        return told(inner(**context))

    def with_context(input_context: Any = None) -> Any:
        return given(input_context=input_context)

    def without_context() -> Any:
        return given()

    outer: Any = with_context if "input_context" in inspect.signature(inner).parameters else without_context
    for name in ("start_step", "rebatched", "ledger", "follow"):
        if hasattr(inner, name):
            setattr(outer, name, getattr(inner, name))
    return outer


def _checksums(parts: list[Any]) -> list[int]:
    """Of each record of a batch, over all its parts."""
    sizes = {part.shape[:1] for part in parts}
    if len(sizes) != 1 or not sizes.copy().pop():
        return [_checksum(parts)]
    return [_checksum([part[index] for part in parts]) for index in range(len(parts[0]))]


def _checksum(parts: list[Any]) -> int:
    found = 0
    for part in parts:
        array = np.asarray(part)
        texts = array.dtype.kind in "OSU"
        found = zlib.crc32(b"\0".join(map(bytes, array.ravel())) if texts else array.tobytes(), found)
    return found


def estimator_hook(
    writer: StepWriterProtocol,
    *,
    canonical: Canonical,
    start: Mapping[str, Any] | None = None,
    replaced: dict[str, Any] | None = None,
) -> Any:
    """The hook for `TrainSpec.hooks`.

    Args:
        writer: where the record goes.
        canonical: names of all variables -> canonical name -> name.
        start: canonical name -> value: what the variables are set to before the first step.
        replaced: filled with what these held before.

    Returns:
        A `tf.estimator.SessionRunHook`.
    """
    tf: Any = compat.tensorflow()
    v1 = tf.compat.v1

    base: Any = v1.train.SessionRunHook

    class Recorder(base):
        def begin(self) -> None:
            # An Estimator makes its sessions in its strategy's scope.
            writer.environment(environment_of(tf, strategy=tf.distribute.get_strategy()))
            found = {variable.name: variable for variable in v1.global_variables()}
            self._variables = {name: found[given] for name, given in canonical(found).items()}
            self._values = {name: tf.identity(variable) for name, variable in self._variables.items()}
            rates = v1.get_collection(LEARNING_RATE)
            self._fetches: dict[str, Any] = {"loss": v1.get_collection(v1.GraphKeys.LOSSES)[-1]}
            if rates:
                self._fetches["rate"] = tf.convert_to_tensor(rates[0])
            self._misfit = _misfit(start, self._variables)
            self._set = {
                name: (holder := v1.placeholder(variable.dtype.base_dtype, variable.shape), variable.assign(holder))
                for name, variable in self._variables.items()
                if start is not None and name in start and self._misfit is None
            }

        def after_create_session(self, session, coord):
            if replaced is not None:
                replaced.update(session.run({name: self._values[name] for name in self._set}))
            for name, (holder, assign) in self._set.items():
                session.run(assign, {holder: (start or {})[name]})
            writer.initial(session.run(self._values))
            _refuse(self._misfit)

        def before_run(self, run_context):
            return v1.train.SessionRunArgs(self._fetches)

        def after_run(self, run_context, run_values):
            told = run_values.results
            values = run_context.session.run(self._values)
            rate = float(told["rate"]) if "rate" in told else None
            step = int(values["global_step"])
            writer.step(step, loss=float(told["loss"]), learning_rate=rate, variables=values)

    return Recorder()


def keras_callback(writer: StepWriterProtocol, *, canonical: Canonical, start: Mapping[str, Any] | None = None) -> Any:
    """The callback for `Model.fit`; see :func:`estimator_hook` for the arguments.

    While it records, Keras's metrics are those of a single step, not of the epoch so far.
    """
    tf: Any = compat.tensorflow()
    base: Any = tf.keras.callbacks.Callback

    class Recorder(base):
        def on_train_begin(self, logs=None):
            writer.environment(environment_of(tf, strategy=self.model.distribute_strategy))
            keras_optimizers.create_slots(self.model)
            found = dict(keras_names.named(self.model))
            self._variables = {name: found[given] for name, given in canonical(found).items()}
            misfit = _misfit(start, self._variables)
            for name, value in (start or {}).items() if misfit is None else ():
                self._variables[name].assign(value)
            writer.initial(self._values())
            _refuse(misfit)

        def on_train_batch_begin(self, batch, logs=None):
            self.model.reset_metrics()
            # Before the step: the schedule is asked for the step that is being made.
            self._rate = keras_optimizers.current_rate(self.model.optimizer)

        def on_train_batch_end(self, batch, logs=None):
            step = step_of(self.model)
            if "loss" not in (logs or {}):
                raise ConfigError(
                    "a step of the Keras model does not tell its loss",
                    code="model/bad-function",
                    found=f"it tells: {', '.join(logs or ()) or 'nothing'}",
                    hint="let train_step return {'loss': ...} of the batch",
                )
            writer.step(step, loss=float(logs["loss"]), learning_rate=self._rate, variables=self._values())

        def _values(self):
            return {name: variable.numpy() for name, variable in self._variables.items()}

    return Recorder()


def keras3_callback(
    writer: StepWriterProtocol, *, canonical: Canonical, start: Mapping[str, Any] | None = None, strategy: Any = None
) -> Any:
    """The callback for the training loop of the Keras 3 engine; see :func:`estimator_hook` for the arguments.

    What replicas have of their own is recorded as its mean. Seeds are left out: Keras 2 has no such variables.
    """
    tf: Any = compat.tensorflow()
    base: Any = tf.keras.callbacks.Callback

    class Recorder(base):
        def on_train_begin(self, logs=None):
            writer.environment(environment_of(tf, strategy=strategy or tf.distribute.get_strategy()))
            self._all = ModelVariables(self.model, strategy=strategy)
            variables = {**self._all.model, **self._all.optimizer}
            self._names = canonical(self._all.values())
            found = {name: variables[given] for name, given in self._names.items()}
            misfit = _misfit(start, found)
            for name, value in (start or {}).items() if misfit is None else ():
                found[name].assign(value)
            writer.initial(self._values())
            _refuse(misfit)

        def on_train_batch_begin(self, batch, logs=None):
            self._rate = rate_of(self.model)

        def on_train_batch_end(self, batch, logs=None):
            step = step_of(self.model)
            writer.step(step, loss=float(logs["loss"]), learning_rate=self._rate, variables=self._values())

        def _values(self):
            values = self._all.values()
            return {name: values[given] for name, given in self._names.items()}

    return Recorder()


def _misfit(start: Mapping[str, Any] | None, variables: Mapping[str, Any]) -> ConfigError | None:
    """What is wrong with the values that training is to start from; None: nothing."""
    unknown = sorted(set(start or {}) - set(variables))
    if unknown:
        return ConfigError(
            f"values were given for variables that the model does not have: {', '.join(unknown[:5])}",
            code="parity/no-counterpart",
            found=f"its variables: {', '.join(list(variables)[:12])}",
        )
    for name, value in (start or {}).items():
        wanted = variables[name].shape.as_list()
        if list(np.shape(value)) != wanted:
            return ConfigError(
                f"a value was given for {name} that has another shape",
                code="parity/no-counterpart",
                found=f"shape {list(np.shape(value))} given; the variable {variables[name].name} has {wanted}",
            )
    return None


def _refuse(misfit: ConfigError | None) -> None:
    """Ends a training whose variables are others, once the record has told which: they can be compared by name."""
    if misfit is not None:
        raise misfit
