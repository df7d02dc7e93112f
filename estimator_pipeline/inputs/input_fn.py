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
from estimator_pipeline.inputs.features import FeatureLayout
from estimator_pipeline.inputs.ledger.plans import facts_of, global_ids
from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.reader import Reader, replicas_of
from estimator_pipeline.inputs.sampler import steps_per_epoch
from estimator_pipeline.inputs.sharding import EvalShards, ShardOptions, TrainShards
from estimator_pipeline.inputs.source import Source, files_of, tensorflow
from estimator_pipeline.inputs.tf_dataset import batches_to_rebatch, eval_batches, train_batches

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
        num_classes: How many classes the label has; None where the data do not say.
    """

    def __init__(
        self,
        *,
        train: Source | None,
        evaluation: Source | None,
        options: InputOptions,
        features_key: str | Sequence[str] | None,
        label_key: str | Sequence[str],
        num_classes: int | None = None,
    ) -> None:
        self.options = options
        self.num_classes = num_classes
        self._train = Reader(train, options) if train is not None else None
        self._eval = Reader(evaluation, options) if evaluation is not None else None
        self._layout = FeatureLayout(features_key, label_key, options.scale)
        self.single_feature = self._layout.single_feature
        for reader in (self._train, self._eval):
            if reader is not None and reader.source.num_records == 0:
                raise InputError(
                    f"There are no records in {reader.source.what}",
                    code="data/empty",
                    hint="check the files, or the name of the split",
                )
        if train is None and evaluation is None:
            raise InputError(
                "Neither training nor evaluation data was given", code="argument/missing", hint="give at least one"
            )
        self._specs: tuple[Any, Any] | None = None
        # Names and shapes fail here, in the caller's view. Transforms are traced when first needed: that
        # starts TensorFlow's runtime, and some strategies must be made before.
        tf = tensorflow()
        told = [self._layout.pack_specs(tf, source.specs()) for source in (train, evaluation) if source]
        if len(told) == 2 and options.record_transform is None:
            _check_same(tf, *told)
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
        features = self._shapes()[0]
        return dict(features) if isinstance(features, Mapping) else {self.single_feature or "features": features}

    @property
    def label_spec(self) -> Any:
        """tf.TensorSpec of the label without the batch axis; a dict of them for several labels."""
        return self._shapes()[1]

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

    def train_shards(self, replicas: ShardOptions | None = None) -> TrainShards:
        """Which records a pipeline reads in training, as arithmetic; opens no file."""
        return self._reader(True).train_shards(replicas or ShardOptions())

    def eval_shards(self, replicas: ShardOptions | None = None) -> EvalShards:
        """Which records a pipeline reads in evaluation, as arithmetic; opens no file."""
        return self._reader(False).eval_shards(replicas or ShardOptions())

    def describe(self, num_pipelines: int = 1, *, replicas_per_pipeline: int = 1, asynchronous: bool = False) -> str:
        """Who reads what, by which policy and why, and what cannot be promised.

        Args:
            num_pipelines: Input pipelines (workers).
            replicas_per_pipeline: Devices of each worker.
            asynchronous: Whether workers step on their own (parameter servers).
        """
        from estimator_pipeline.inputs.describe import describe

        return describe(self, num_pipelines, replicas_per_pipeline, asynchronous)

    def identity(self, num_pipelines: int = 1) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What decides which training records a step reads, and what of that cannot be promised.

        Args:
            num_pipelines: Input pipelines of the job.

        Returns:
            Plain values by name, equal for two runs that read the same records at the same step; and words.
        """
        reader, options = self._reader(True), self.options
        policy, _ = reader.policy(num_pipelines)
        sampler = reader.sampler()
        told: dict[str, Any] = {
            "global_batch_size": options.global_batch_size,
            "input.seed": options.seed,
            "input.records": reader.source.num_records,
            "input.fingerprint": reader.fingerprint,
            "input.shuffle": options.shuffle,
            "input.shuffle_window": sampler.window,
        }
        if reader.contents:
            told["input.content"] = reader.contents
        open_ = []
        if policy in ("file", "off"):
            # Who reads what depends on how many they are.
            told["input.shard_policy"], told["input.worker_seeds"] = policy, options.worker_seeds
            told["input.workers"] = num_pipelines
            open_.append(f"another number of workers than {num_pipelines} (shard policy {policy})")
        return told, tuple(open_)

    def follow(self, policy: str | None) -> bool:
        """Reads for a run that began under a shard policy by that policy, where the option is "auto".

        Args:
            policy: "file"; None: by the policy that "auto" is for a run that begins now.

        Returns:
            Whether another policy is followed: not where one was asked for, nor for data in no files.
        """
        return self._reader(True).follow(policy)

    def _reader(self, training: bool) -> Reader:
        reader = self._train if training else self._eval
        if reader is None:
            kind, other = ("training", "train") if training else ("evaluation", "eval")
            raise InputError(
                f"There is no {kind} data",
                code="data/empty",
                hint=f"give the factory its {kind} data ({other}= or {other}_split=)",
            )
        return reader

    def train_facts(self, replicas: ShardOptions | None = None, *, start_step: int = 0) -> dict[str, Any]:
        """What decides which records a pipeline reads in training, as plain values; what a ledger bears."""
        reader = self._reader(True)
        return facts_of(
            reader.train_shards(replicas or ShardOptions()),
            sampler=reader.sampler(),
            part_records=reader.source.part_records,
            global_batch_size=self.options.global_batch_size,
            worker_seeds=self.options.worker_seeds,
            start_step=start_step,
            what=reader.source.what,
        )

    def _teller(self, ledger: Any, plan: TrainShards, start_step: int) -> Callable[..., None]:
        """Tells a ledger the ids of batches, counted through all parts."""
        part_records = self._reader(True).source.part_records
        facts: dict[str, Any] = {"kind": "records", "plan": self.train_facts(plan.replicas, start_step=start_step)}
        who = plan.replicas
        facts |= {"pipelines": who.num_pipelines, "pipeline": who.pipeline, "batches_per_step": who.local}
        stream = ledger.stream(facts)

        def tell(first: bool, batches: Any, **more: Any) -> None:
            if plan.parts is not None:
                if isinstance(batches, np.ndarray):
                    batches = global_ids(batches.ravel(), plan.parts, part_records).reshape(batches.shape)
                else:
                    batches = [global_ids(batch, plan.parts, part_records) for batch in batches]
            stream(first, batches, **more)

        return tell

    def _dataset(self, training: bool, context: Any, start_step: int, ledger: Any = None) -> Any:
        tf = tensorflow()
        self._shapes()  # A transform that can't work is refused here, not from within the dataset.
        replicas = replicas_of(tf, context)
        reader = self._reader(training)
        policies = tf.data.experimental.AutoShardPolicy
        # Sharded here already: TensorFlow's own sharding on top of it would lose records.
        policy, rebatched = policies.OFF, False
        if training:
            if self.options.shard_policy == "hint":
                if replicas.num_pipelines > 1:
                    raise _no_hint(replicas.num_pipelines)
                rebatched = context is None
                policy = policies.HINT if rebatched else policy
            plan = reader.train_shards(replicas)
            tell = None if ledger is None else self._teller(ledger, plan, start_step)
            dataset = self._batches(tf, reader, plan, start_step, rebatched=rebatched, tell=tell)
        else:
            dataset = self._batches(tf, reader, reader.eval_shards(replicas), 0)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policy
        options.deterministic = True
        options.autotune.enabled = False
        return dataset.prefetch(self.options.prefetch).with_options(options)

    def _batches(
        self,
        tf: Any,
        reader: Reader,
        plan: TrainShards | EvalShards,
        start_step: int,
        *,
        rebatched: bool = False,
        tell: Callable[..., None] | None = None,
    ) -> Any:
        source = reader.selected(plan.parts)
        transforms = [self.options.transform]

        def assemble(*raw: Any) -> tuple[Any, Any]:
            return self._assemble(tf, source, raw)

        if self.options.record_transform is None:
            # What is ours needs no AutoGraph, which takes a part of a second; a user's function may.
            assemble = tf.autograph.experimental.do_not_convert(assemble)
        if isinstance(plan, TrainShards):
            transforms.insert(0, self.options.train_transform)
        if isinstance(plan, TrainShards) and rebatched:
            dataset, count = batches_to_rebatch(tf, source, plan, start_step, assemble, tell=tell)
        elif isinstance(plan, TrainShards):
            # In memory nothing but the scale is left to do, and that can be done for many batches at once.
            by_block = source.in_memory and self.options.record_transform is None
            dataset, count = train_batches(tf, source, plan, start_step, assemble, by_block=by_block, tell=tell)
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
        return dataset if count is None else dataset.apply(tf.data.experimental.assert_cardinality(count))

    def _assemble(self, tf: Any, source: Source, raw: Sequence[Any]) -> tuple[Any, Any]:
        """Raw values of a batch -> (features, labels)."""
        function = self.options.record_transform
        if function is None:
            return self._layout.pack(tf, source.decode(raw))

        def one(row: Sequence[Any]) -> tuple[Any, Any]:
            values = source.decode([tf.expand_dims(value, 0) for value in row])
            single = {name: value[0] for name, value in values.items()}
            return _pair(function(*self._layout.pack(tf, single)))

        signature = self._traced(tf, source, training=False, batched=False)
        return tf.map_fn(one, list(raw), fn_output_signature=signature)

    def _shapes(self) -> tuple[Any, Any]:
        """The specs of (features, labels) of one record, after all the transforms."""
        if self._specs is None:
            tf = tensorflow()
            found = [
                self._traced(tf, reader.source, training=training, batched=True)
                for reader, training in ((self._train, True), (self._eval, False))
                if reader is not None
            ]
            if len(found) == 2:
                _check_same(tf, *found)
            self._specs = tf.nest.map_structure(lambda spec: _record_spec(tf, spec), found[0])
        return self._specs

    def _traced(self, tf: Any, source: Source, *, training: bool, batched: bool) -> tuple[Any, Any]:
        """The specs that the transforms make: the whole chain on a batch, or record_transform alone."""
        options = self.options
        pair = self._layout.pack_specs(tf, source.specs())
        if options.record_transform is not None:
            for spec in tf.nest.flatten(pair):
                if not isinstance(spec, tf.TensorSpec):
                    raise InputError(
                        "record_transform cannot take features of variable length",
                        code="data/bad-feature",
                        found=str(spec),
                        hint="use transform=, which gets the batch",
                    )
            pair = tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), pair)
            pair = _outputs(tf, options.record_transform, pair)
            if batched:
                pair = tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), pair)
        if batched:
            for function in (options.train_transform if training else None, options.transform):
                pair = pair if function is None else _outputs(tf, function, pair)
        return pair


class InputFn:
    """What TrainSpec and EvalSpec are given; calling it makes the dataset.

    Attributes:
        start_step: For training, where reading begins: a global step, or a function that gives it at each
            call. Set it before training starts to go on where a checkpoint ends.
        ledger: For training, what is told the ids of the records as they are fetched
            (:class:`estimator_pipeline.inputs.ledger.LedgerWriter`).
        as_many_for_all: every worker of a synchronous training gets as many batches.
    """

    ledger: Any = None
    as_many_for_all = True

    def __init__(self, data: Inputs, *, training: bool) -> None:
        self._data = data
        self._training = training
        self.start_step: int | Callable[[], int] = data.options.start_step if training else 0

    @property
    def rebatched(self) -> bool:
        """Whether the dataset is for `Strategy.experimental_distribute_dataset`: its shard policy is "hint"."""
        return self._training and self._data.options.shard_policy == "hint"

    @property
    def global_batch_size(self) -> int:
        """Records that all replicas together read at a step."""
        options = self._data.options
        return options.global_batch_size if self._training else options.eval_batch_size or options.global_batch_size

    def identity(self, num_pipelines: int = 1) -> tuple[dict[str, Any], tuple[str, ...]]:
        """See :meth:`Inputs.identity`."""
        return self._data.identity(num_pipelines)

    @property
    def files(self) -> dict[str, str]:
        """The files that `identity` tells the content of: name -> path."""
        return files_of(self._data._reader(self._training).source)

    def follow(self, policy: str | None) -> bool:
        """See :meth:`Inputs.follow`."""
        return self._data.follow(policy)

    def __call__(self, input_context: Any = None) -> Any:
        """The dataset of (features, labels) of one input pipeline.

        Args:
            input_context: tf.distribute.InputContext; None reads for one replica alone. With shard_policy "hint" None
                gives the global batches that `Strategy.experimental_distribute_dataset` takes.

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
                code="argument/bad-value",
                found=f"{self.start_step!r}",
                hint="give the global step",
            )
        return self._data._dataset(self._training, input_context, start, self.ledger)


def _no_hint(pipelines: int) -> InputError:
    return InputError(
        "shard_policy='hint' leaves the sharing out to Strategy.experimental_distribute_dataset",
        code="argument/not-applicable",
        found=f"an InputContext of {pipelines} input pipelines, with which nobody fills the hint in",
        hint="give strategy.experimental_distribute_dataset(train_input_fn()), or use shard_policy='data'",
    )


def _pair(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise InputError(
            "A transform must return (features, labels)",
            code="model/bad-function",
            found=f"{type(value).__name__}",
            hint="end the function with: return features, labels",
        )
    return value


def _outputs(tf: Any, function: Callable[..., Any], specs: tuple[Any, Any]) -> tuple[Any, Any]:
    """What a transform makes of these specs."""
    made = tf.function(lambda features, labels: function(features, labels)).get_concrete_function(*specs)
    return tf.nest.map_structure(tf.type_spec_from_value, _pair(made.structured_outputs), expand_composites=False)


def _record_spec(tf: Any, spec: Any) -> Any:
    # Sparse and ragged values keep their batch axis.
    return tf.TensorSpec(spec.shape[1:], spec.dtype) if isinstance(spec, tf.TensorSpec) else spec


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
            code="data/bad-feature",
            found=f"training {train}, evaluation {evaluation}",
            hint="give both the same features and labels, of the same types and shapes",
        )
