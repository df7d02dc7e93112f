"""The common part of the factories: from a source of records to an `input_fn` that an Estimator calls.

    data = inputs.from_tfds("digits", global_batch_size=64, scale=1 / 16)
    tf.estimator.TrainSpec(data.train_input_fn, max_steps=1000)
    tf.estimator.EvalSpec(data.eval_input_fn, steps=None)      # TensorFlow's default is 100 batches, not all

TensorFlow calls an `input_fn` once a worker, in a graph of its own, with an InputContext that says which of
how many pipelines this is; it takes the parameter by its name, `input_context`. Under a strategy with several
devices a worker hands the batches of its dataset to its devices in turn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.blocks import eval_batches, train_batches
from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.order import steps_per_epoch
from estimator_pipeline.inputs.plan import EvalPlan, Replicas, TrainPlan
from estimator_pipeline.inputs.reader import Reader, replicas_of
from estimator_pipeline.inputs.sources import Source, tensorflow

__all__ = ["InputFn", "Inputs"]


class Inputs:
    """A data set made ready for an Estimator; the factories of `estimator_pipeline.inputs` return one.

    Attributes:
        train_input_fn: `train_input_fn(input_context=None)` for TrainSpec.
        eval_input_fn: `eval_input_fn(input_context=None)` for EvalSpec; give EvalSpec `steps=None`, for else
            TensorFlow stops after 100 batches.
        options: The InputOptions in force.
        single_feature: The name of the one feature that is handed over as a tensor; None where features are a
            dict.
    """

    def __init__(
        self,
        *,
        train: Source | None,
        evaluation: Source | None,
        options: InputOptions,
        features_key: str | Sequence[str] | None,
        label_key: str | Sequence[str],
    ) -> None:
        self.options = options
        self._train = Reader(train, options) if train is not None else None
        self._eval = Reader(evaluation, options) if evaluation is not None else None
        self._features_key = features_key
        self._label_key = label_key
        self.single_feature = features_key if isinstance(features_key, str) else None
        for reader in (self._train, self._eval):
            if reader is not None and reader.source.num_records == 0:
                raise InputError(
                    f"There are no records in {reader.source.what}",
                    mend="check the files, or the name of the split",
                )
        # Fails here, where the names are in the caller's view, and not when the job has started.
        self._specs = self._trace()
        self.train_input_fn = InputFn(self, training=True)
        self.eval_input_fn = InputFn(self, training=False)

    @property
    def num_train_records(self) -> int:
        """Records in the training data."""
        return self._reader(True).source.num_records

    @property
    def num_eval_records(self) -> int:
        """Records in the evaluation data."""
        return self._reader(False).source.num_records

    @property
    def steps_per_epoch(self) -> int:
        """Training steps that read as many records as an epoch holds, the last begun one included."""
        full, rest = steps_per_epoch(self.num_train_records, self.options.global_batch_size)
        return full + bool(rest)

    @property
    def features_spec(self) -> dict[str, Any]:
        """Feature name -> tf.TensorSpec without the batch axis, as the model gets them (scaled, transformed).

        A single feature (see `single_feature`) is under its own name.
        """
        features = self._specs[0]
        return (
            dict(features) if isinstance(features, Mapping) else {self.single_feature or "features": features}
        )

    @property
    def label_spec(self) -> Any:
        """tf.TensorSpec of the label without the batch axis; a dict of them for several labels."""
        return self._specs[1]

    def with_start_step(self, start_step: int | Callable[[], int]) -> Inputs:
        """The same data, with training to begin to read at a global step.

        Args:
            start_step: The step, or a function that gives it each time that `train_input_fn` is called.
        """
        other = copy.copy(self)  # The records in memory are shared.
        other.train_input_fn = InputFn(other, training=True)
        other.eval_input_fn = InputFn(other, training=False)
        other.train_input_fn.start_step = start_step
        return other

    def at_step(self, step: int) -> Inputs:
        """The same data, with training to begin to read at the global step `step`."""
        return self.with_start_step(step)

    def train_plan(self, replicas: Replicas | None = None) -> TrainPlan:
        """Which records a pipeline reads in training, as arithmetic; opens no file."""
        return self._reader(True).train_plan(replicas or Replicas())

    def eval_plan(self, replicas: Replicas | None = None) -> EvalPlan:
        """Which records a pipeline reads in evaluation, as arithmetic; opens no file."""
        return self._reader(False).eval_plan(replicas or Replicas())

    def describe(
        self, num_pipelines: int = 1, *, replicas_per_pipeline: int = 1, asynchronous: bool = False
    ) -> str:
        """Who reads what, by which policy and why, and what cannot be promised.

        Args:
            num_pipelines: Input pipelines (workers).
            replicas_per_pipeline: Devices of each worker.
            asynchronous: Whether workers step on their own (parameter servers).
        """
        from estimator_pipeline.inputs.describe import describe

        return describe(self, num_pipelines, replicas_per_pipeline, asynchronous)

    def _reader(self, training: bool) -> Reader:
        reader = self._train if training else self._eval
        if reader is None:
            kind, other = ("training", "train") if training else ("evaluation", "eval")
            raise InputError(
                f"There is no {kind} data",
                mend=f"give the factory its {kind} data ({other}= or {other}_split=)",
            )
        return reader

    def _dataset(self, training: bool, context: Any, start_step: int) -> Any:
        tf = tensorflow()
        replicas = replicas_of(tf, context)
        reader = self._reader(training)
        if training:
            dataset = self._batches(tf, reader, reader.train_plan(replicas), start_step)
        else:
            dataset = self._batches(tf, reader, reader.eval_plan(replicas), 0)
        options = tf.data.Options()
        # Sharded here already: TensorFlow's own sharding on top of it would lose records.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        options.deterministic = True
        options.autotune.enabled = False
        return dataset.prefetch(self.options.prefetch).with_options(options)

    def _batches(self, tf: Any, reader: Reader, plan: TrainPlan | EvalPlan, start_step: int) -> Any:
        source = reader.selected(plan.parts)
        transforms = [self.options.transform]

        def assemble(*raw: Any) -> tuple[Any, Any]:
            return self._assemble(tf, source, raw)

        if isinstance(plan, TrainPlan):
            transforms.insert(0, self.options.train_transform)
            # In memory nothing but the scale is left to do, and that can be done for many batches at once.
            by_block = source.in_memory and self.options.record_transform is None
            dataset, count = train_batches(tf, source, plan, start_step, assemble, by_block=by_block)
        else:
            dataset, count = eval_batches(tf, source, plan, assemble)
        for function in transforms:
            if function is not None:
                dataset = dataset.map(
                    lambda features, labels, function=function: _pair(function(features, labels)),
                    num_parallel_calls=tf.data.AUTOTUNE,
                    deterministic=True,
                )
        # Said aloud, for unbatch() loses it, and a strategy that knows that a stream has no end (or how long
        # it is) need not ask all replicas at each step whether they have a batch.
        return dataset.apply(tf.data.experimental.assert_cardinality(count))

    def _assemble(self, tf: Any, source: Source, raw: Sequence[Any]) -> tuple[Any, Any]:
        """Raw values of a batch -> (features, labels)."""
        function = self.options.record_transform
        if function is None:
            return self._pack(tf, source.decode(raw))

        def one(row: Sequence[Any]) -> tuple[Any, Any]:
            values = source.decode([tf.expand_dims(value, 0) for value in row])
            for name, value in values.items():
                if not isinstance(value, tf.Tensor):
                    raise InputError(
                        "record_transform cannot take features of variable length",
                        found=f"{name} is a {type(value).__name__}",
                        mend="use transform=, which gets the batch",
                    )
            return _pair(function(*self._pack(tf, {name: value[0] for name, value in values.items()})))

        specs = [tf.TensorSpec(shape, dtype) for dtype, shape in source.raw_specs]
        made = tf.function(lambda *row: one(row)).get_concrete_function(*specs).structured_outputs
        signature = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), made)
        return tf.map_fn(one, list(raw), fn_output_signature=signature)

    def _pack(self, tf: Any, values: dict[str, Any]) -> tuple[Any, Any]:
        labels = [self._label_key] if isinstance(self._label_key, str) else list(self._label_key)
        if self._features_key is None:
            names = [name for name in values if name not in labels]
        else:
            names = [self.single_feature] if self.single_feature else list(self._features_key)
        for kind, wanted in (("feature", names), ("label", labels)):
            for name in wanted:
                if name not in values:
                    raise InputError(
                        f"The data has no {kind} {name!r}",
                        found=f"it has {', '.join(sorted(values))}",
                        mend=f"give one of these as {'features_key' if kind == 'feature' else 'label_key'}",
                    )
        if not names:
            raise InputError("No features are left beside the labels", mend="give features_key")
        features = {name: self._scaled(tf, name, values[name], names) for name in names}
        label = {name: values[name] for name in labels}
        return (
            features[self.single_feature] if self.single_feature else features,
            label[self._label_key] if isinstance(self._label_key, str) else label,
        )

    def _scaled(self, tf: Any, name: str, value: Any, names: Sequence[str]) -> Any:
        scale = self.options.scale
        if isinstance(scale, Mapping):
            unknown = sorted(set(scale) - set(names))
            if unknown:
                raise InputError(
                    f"scale names the feature {unknown[0]!r}, which there is not",
                    found=f"features {', '.join(names)}",
                    mend="use their names",
                )
            factor = scale.get(name)
        else:
            factor = None if value.dtype in (tf.string, tf.bool) else scale
        return value if factor is None else tf.cast(value, tf.float32) * np.float32(factor)

    def _trace(self) -> tuple[Any, Any]:
        """The specs of (features, labels), from building the graph of a batch; reads no record."""
        tf = tensorflow()
        found = []
        for reader, training in ((self._train, True), (self._eval, False)):
            if reader is None:
                continue
            with tf.Graph().as_default():
                pair = self._assemble(tf, reader.source, reader.source.placeholders(tf))
                for function in (self.options.train_transform if training else None, self.options.transform):
                    if function is not None:
                        pair = _pair(function(*pair))
                found.append(tf.nest.map_structure(lambda value: _record_spec(tf, value), pair))
        if len(found) == 2:
            _check_same(tf, *found)
        if not found:
            raise InputError("Neither training nor evaluation data was given", mend="give at least one")
        return found[0]


class InputFn:
    """What TrainSpec and EvalSpec are given; calling it makes the dataset.

    Attributes:
        start_step: For training, where reading begins: a global step, or a function that gives it at each
            call. Set it before training starts to go on where a checkpoint ends.
    """

    def __init__(self, data: Inputs, *, training: bool) -> None:
        self._data = data
        self._training = training
        self.start_step: int | Callable[[], int] = data.options.start_step if training else 0

    def __call__(self, input_context: Any = None) -> Any:
        """The dataset of (features, labels) of one input pipeline.

        Args:
            input_context: tf.distribute.InputContext; None reads for one replica alone.

        Returns:
            A tf.data.Dataset of batches; the batch of each replica is the global batch divided by the number
            of replicas.

        Raises:
            InputError: The batch can't be shared by the replicas, or the policy can't be followed.
        """
        start = self.start_step() if callable(self.start_step) else self.start_step
        try:
            start = int(start)
        except (TypeError, ValueError):
            start = -1
        if start < 0:
            raise InputError(
                "start_step must be a step, from 0 on",
                found=f"{self.start_step!r}",
                mend="give the global step",
            )
        return self._data._dataset(self._training, input_context, start)


def _pair(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise InputError(
            "A transform must return (features, labels)",
            found=f"{type(value).__name__}",
            mend="end the function with: return features, labels",
        )
    return value


def _record_spec(tf: Any, value: Any) -> Any:
    if isinstance(value, tf.Tensor):
        return tf.TensorSpec(value.shape[1:], value.dtype)
    return tf.type_spec_from_value(value)  # Sparse and ragged values keep their batch axis.


def _check_same(tf: Any, train: Any, evaluation: Any) -> None:
    same = True
    try:
        tf.nest.assert_same_structure(train, evaluation)
        for one, other in zip(tf.nest.flatten(train), tf.nest.flatten(evaluation), strict=True):
            same = same and one.dtype == other.dtype and one.shape.is_compatible_with(other.shape)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise InputError(
            "Training and evaluation data do not look alike",
            found=f"training {train}, evaluation {evaluation}",
            mend="give both the same features and labels, of the same types and shapes",
        )
