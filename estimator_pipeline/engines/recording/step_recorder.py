"""Step records of a training: a hook for Estimators, callbacks for Keras 2 and Keras 3.

All record the same values under the same names, so that two runs can be compared: the loss of the global batch before
the step, the learning rate of the step, and every variable after it. With several workers, all of them record, because
reading replica-local variables needs all of them; only one writes. Each worker records the batches of its pipeline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.engines.recording.environment import environment_of
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.ledger.hashing import fingerprints
from estimator_pipeline.inputs.wrapping import wrap_input_fn
from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.keras3_variables import ModelVariables
from estimator_pipeline.models.model_fn import LEARNING_RATE
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers.inspection import rate_of, step_of

Canonical = Callable[[Iterable[str]], Mapping[str, str]]


class NullStepWriter:
    """Writes nothing; for all workers except one."""

    def environment(self, facts: Mapping[str, Any]) -> None: ...

    def initial(self, variables: Mapping[str, Any]) -> None: ...

    def step(self, step: int, **values: Any) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecorder:
    """What to record of a run, and where.

    Attributes:
        writer: Creates the writer, such as a `parity.step_records.StepWriter`; called only on the chief.
        canonical: Names of all variables -> canonical name -> name.
        start: Canonical name -> value that the variables are set to before the first step, on every worker.
        batches: Task -> a function that receives the checksums of each batch of its pipeline.
    """

    writer: Callable[[], Any]
    canonical: Canonical
    start: Mapping[str, Any] | None = None
    batches: Callable[[str], Callable[[list[int]], None]] | None = None

    def input_fn(self, input_fn: Callable[..., Any], *, task: str) -> Callable[..., Any]:
        """Return a training task's input function, with recording of its batches."""
        return input_fn if self.batches is None else recorded_batches(input_fn, self.batches(task))

    def hook(self, *, chief: bool) -> Any:
        """Return the hook for `TrainSpec.hooks` of a training task."""
        return estimator_hook(self._writer(chief), canonical=self.canonical, start=self.start)

    def callback(self, *, chief: bool, strategy: Any = None) -> Any:
        """Return the Keras callback of a training task; see `keras_callback`."""
        return keras_callback(self._writer(chief), canonical=self.canonical, start=self.start, strategy=strategy)

    def _writer(self, chief: bool) -> Any:
        return self.writer() if chief else NullStepWriter()


def recorded_batches(
    input_fn: Callable[..., Any], record: Callable[[list[int]], None], chosen: Callable[..., list[Any]] | None = None
) -> Callable[..., Any]:
    """Return an input function that records the checksums of its batches; the dataset is unchanged.

    Args:
        input_fn: Returns a `tf.data.Dataset` of batches [B, ...]; with or without a parameter `input_context`. Other
            results (tensors of a queue, as in TensorFlow 1 programs) are not recorded.
        record: Called with the fingerprint of each record of a batch, see `inputs.ledger.hashing`. A batch whose parts
            have no common first dimension (sparse features) has one.
        chosen: Selects the tensors for the checksums from an element, passed as by `Dataset.map`; None: all.
    """
    tf: Any = compat.tensorflow()

    def record_batch(*parts: Any) -> Any:
        record(fingerprints([getattr(part, "numpy", lambda part=part: part)() for part in parts]).tolist())
        return 0

    def pass_on(*element: Any) -> Any:
        parts = tf.nest.flatten(element, expand_composites=True) if chosen is None else chosen(*element)
        with tf.control_dependencies([tf.numpy_function(record_batch, parts, tf.int64)]):
            same = tf.nest.map_structure(tf.identity, element, expand_composites=True)
        return same[0] if len(same) == 1 else same

    def recorded(input_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        data = input_fn(*args, **kwargs)
        if not isinstance(data, tf.data.Dataset | tf.compat.v1.data.Dataset):
            return data
        return data.map(tf.autograph.experimental.do_not_convert(pass_on))

    return wrap_input_fn(input_fn, recorded)


def estimator_hook(
    writer: Any,
    *,
    canonical: Canonical,
    start: Mapping[str, Any] | None = None,
    replaced: dict[str, Any] | None = None,
) -> Any:
    """Return the hook for `TrainSpec.hooks`.

    Args:
        writer: Writer of the step records.
        canonical: Names of all variables -> canonical name -> name.
        start: Canonical name -> value that the variables are set to before the first step.
        replaced: Filled with the values of these variables before.

    Returns:
        A `tf.estimator.SessionRunHook`.
    """
    tf: Any = compat.tensorflow()
    v1 = tf.compat.v1

    base: Any = v1.train.SessionRunHook

    class Recorder(base):
        def begin(self) -> None:
            # An Estimator creates its sessions in the scope of its strategy.
            writer.environment(environment_of(tf, strategy=tf.distribute.get_strategy()))
            by_name = {variable.name: variable for variable in v1.global_variables()}
            self._variables = {name: by_name[actual] for name, actual in canonical(by_name).items()}
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
            results = run_values.results
            values = run_context.session.run(self._values)
            rate = float(results["rate"]) if "rate" in results else None
            step = int(values["global_step"])
            writer.step(step, loss=float(results["loss"]), learning_rate=rate, variables=values)

    return Recorder()


def keras_callback(
    writer: Any, *, canonical: Canonical, start: Mapping[str, Any] | None = None, strategy: Any = None
) -> Any:
    """Return the callback for `Model.fit`, or for the training loop of the Keras 3 engine.

    While it records, the metrics of Keras 2 are those of a single step, not of the epoch so far. With Keras 3,
    replica-local variables are recorded as their mean, and seeds are left out: Keras 2 has no such variables.
    `strategy` is that of a training with Keras 3; for the other arguments see `estimator_hook`.
    """
    tf: Any = compat.tensorflow()
    base: Any = tf.keras.callbacks.Callback
    is_keras_3 = compat.keras_generation() == 3

    class Recorder(base):
        def on_train_begin(self, logs=None):
            used = (strategy or tf.distribute.get_strategy()) if is_keras_3 else self.model.distribute_strategy
            writer.environment(environment_of(tf, strategy=used))
            if is_keras_3:
                of_model = ModelVariables(self.model, strategy=strategy)
                variables = {**of_model.model, **of_model.optimizer}
                self._read, names = of_model.values, of_model.values()
            else:
                keras_optimizers.create_slots(self.model)
                names = variables = dict(keras_names.named(self.model))
                self._read = lambda: {name: variable.numpy() for name, variable in variables.items()}
            self._names = canonical(names)
            by_name = {name: variables[actual] for name, actual in self._names.items()}
            misfit = _misfit(start, by_name)
            for name, value in (start or {}).items() if misfit is None else ():
                by_name[name].assign(value)
            writer.initial(self._values())
            _refuse(misfit)

        def on_train_batch_begin(self, batch, logs=None):
            # Before the step: the schedule must be evaluated at the current step.
            if is_keras_3:
                self._rate = rate_of(self.model)
            else:
                self.model.reset_metrics()
                self._rate = keras_optimizers.current_rate(self.model.optimizer)

        def on_train_batch_end(self, batch, logs=None):
            step = step_of(self.model)
            if "loss" not in (logs or {}):
                raise ConfigError(
                    "a step of the Keras model does not return its loss",
                    code="model/bad-function",
                    found=f"it returns: {', '.join(logs or ()) or 'nothing'}",
                    hint="let train_step return {'loss': ...} of the batch",
                )
            writer.step(step, loss=float(logs["loss"]), learning_rate=self._rate, variables=self._values())

        def _values(self):
            values = self._read()
            return {name: values[actual] for name, actual in self._names.items()}

    return Recorder()


def _misfit(start: Mapping[str, Any] | None, variables: Mapping[str, Any]) -> ConfigError | None:
    """Return an error if the start values do not match the variables."""
    unknown = sorted(set(start or {}) - set(variables))
    if unknown:
        return ConfigError(
            f"values were given for variables that the model does not have: {', '.join(unknown[:5])}",
            code="parity/no-counterpart",
            found=f"its variables: {', '.join(list(variables)[:12])}",
        )
    for name, value in (start or {}).items():
        expected = variables[name].shape.as_list()
        if list(np.shape(value)) != expected:
            return ConfigError(
                f"the value for {name} has a different shape",
                code="parity/no-counterpart",
                found=f"shape {list(np.shape(value))} given; the variable {variables[name].name} has {expected}",
            )
    return None


def _refuse(misfit: ConfigError | None) -> None:
    """Stop a training with mismatching variables, after they were recorded and can be compared by name."""
    if misfit is not None:
        raise misfit
