"""The common part of the factories: from a source of records to an `input_fn` for an Estimator.

    data = inputs.from_tfds("digits", global_batch_size=64, scale=1 / 16)
    tf.estimator.TrainSpec(data.train_input_fn, max_steps=1000)
    tf.estimator.EvalSpec(data.eval_input_fn, steps=None)      # TensorFlow's default is 100 batches, not all

TensorFlow calls an `input_fn` once per worker, in a separate graph, with an InputContext that has the index and
the number of the pipelines, passed by its name, `input_context`. Under a strategy with several devices a worker
distributes the batches of its dataset to its devices in turn.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.features import FeatureLayout, TableTransform
from estimator_pipeline.inputs.ledger.plans import facts_of, global_ids
from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.reader import Reader, replicas_of
from estimator_pipeline.inputs.sampler import records_at, steps_per_epoch
from estimator_pipeline.inputs.sharding import EvalShards, ShardOptions, TrainShards
from estimator_pipeline.inputs.source import Source, files_of, tensorflow
from estimator_pipeline.inputs.tf_dataset import batches_to_rebatch, eval_batches, train_batches

__all__ = ["InputFn", "Inputs", "parsed_examples"]


class Inputs:
    """A data set for an Estimator, as returned by the factories of `estimator_pipeline.inputs`.

    Attributes:
        train_input_fn: `train_input_fn(input_context=None)` for TrainSpec.
        eval_input_fn: `eval_input_fn(input_context=None)` for EvalSpec; set `steps=None` in EvalSpec, otherwise
            TensorFlow stops after 100 batches.
        options: The InputOptions.
        single_feature: The name of the feature that is passed as a single tensor; None if features are a dict.
        num_classes: The number of classes of the label; None if unknown.
        class_names: Their names, in the order of the numbers; () if unknown.
        transform: The transformation of columns to the model's inputs, for tables with features; or None.
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
        class_names: tuple[str, ...] = (),
        transform: TableTransform | None = None,
    ) -> None:
        self.options = options
        self.num_classes = num_classes
        self.class_names = class_names
        self._train = Reader(train, options) if train is not None else None
        self._eval = Reader(evaluation, options) if evaluation is not None else None
        self.transform = transform
        self._layout = FeatureLayout(features_key, label_key, options.scale, transform)
        self.single_feature = self._layout.single_feature
        for reader in (self._train, self._eval):
            if reader is not None and reader.source.num_records == 0:
                raise InputError(
                    f"There are no records in {reader.source.description}",
                    code="data/empty",
                    hint="check the files, or the name of the split",
                )
        if train is None and evaluation is None:
            raise InputError(
                "There is neither training nor evaluation data", code="argument/missing", hint="give at least one"
            )
        self._specs: tuple[Any, Any] | None = None
        # Errors in names and shapes are raised here, in the caller's frame. Transforms are traced on first use:
        # tracing starts TensorFlow's runtime, and some strategies must be created before.
        tf = tensorflow()
        specs = [self._layout.pack_specs(tf, source.specs()) for source in (train, evaluation) if source]
        if len(specs) == 2 and options.record_transform is None:
            _check_same(tf, *specs)
        self.train_input_fn = InputFn(self, training=True)
        self.eval_input_fn = InputFn(self, training=False)

    def __repr__(self) -> str:
        parts = [_text(reader, training) for reader, training in ((self._train, True), (self._eval, False)) if reader]
        return f"Inputs({'; '.join(parts)})"

    @property
    def has_training(self) -> bool:
        """Whether there is training data."""
        return self._train is not None

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
        """Training steps per epoch, rounded up."""
        full, rest = steps_per_epoch(self.num_train_records, self.options.global_batch_size)
        return full + bool(rest)

    @property
    def features_spec(self) -> dict[str, Any]:
        """Feature name -> tf.TensorSpec without the batch axis, after scaling and transforms.

        A single feature (see `single_feature`) is listed under its name.
        """
        features = self._shapes()[0]
        return dict(features) if isinstance(features, Mapping) else {self.single_feature or "features": features}

    @property
    def serving_spec(self) -> dict[str, Any]:
        """The same of what an exported model takes: before `transform`, if there is one."""
        return self.features_spec if self.transform is None else self.transform.raw_specs(tensorflow())

    def parse_examples(self, records: Any) -> dict[str, Any]:
        """Return the features of `serving_spec` of serialized tf.train.Example records; builds graph operations.

        Args:
            records: String [B]. With TFRecord files they are records as in the files, of which the labels may be
                missing: a feature with a default may be missing, too, an image is encoded, and `scale` is applied.
                With other sources they have the features as the model receives them (float32, int64 or string); before
                `transform`, missing numbers are NaN and missing texts "".
        """
        tf, spec = tensorflow(), self.serving_spec
        source = (self._train or self._reader(False)).source
        if self.transform is None and (values := source.parse_examples(records, list(spec))) is not None:
            return self._layout.scaled(tf, values)
        return parsed_examples(tf, records, spec, optional=self.transform is not None)

    def eval_examples(self, count: int) -> list[bytes]:
        """Return the first evaluation records as serialized tf.train.Example; [] if they are different records."""
        source = self._reader(False).source
        return source.examples(np.arange(min(count, source.num_records), dtype=np.int64))

    def without_transform(self) -> Inputs:
        """Return the same data with the columns as features."""
        other = self.with_start_step(self.train_input_fn.start_step)
        other.transform, other._specs = None, None
        other._layout = dataclasses.replace(self._layout, transform=None)
        return other

    @property
    def label_spec(self) -> Any:
        """tf.TensorSpec of the label without the batch axis; a dict of them for several labels."""
        return self._shapes()[1]

    def with_training(self, source: Source, options: InputOptions) -> Inputs:
        """Return the same evaluation data with other training records, of the same features and labels."""
        other = copy.copy(self)
        other.options, other._specs = options, None
        other._train = Reader(source, options)
        other.train_input_fn = InputFn(other, training=True)
        other.eval_input_fn = InputFn(other, training=False)
        return other

    def with_origin(self, origin: int) -> Inputs:
        """Return the same data whose first training record is read at the global step `origin`."""
        return self.with_training(self._reader(True).source, dataclasses.replace(self.options, origin=origin))

    def with_start_step(self, start_step: int | Callable[[], int]) -> Inputs:
        """Return the same data with training that starts to read at a global step.

        Args:
            start_step: The step, or a function that returns it at each call of `train_input_fn`.
        """
        other = copy.copy(self)  # The records in memory are shared.
        other.train_input_fn = InputFn(other, training=True).at(start_step)
        other.eval_input_fn = InputFn(other, training=False)
        return other

    def at_step(self, step: int) -> Inputs:
        """Return the same data with training that starts to read at the global step `step`."""
        return self.with_start_step(step)

    def train_shards(self, replicas: ShardOptions | None = None) -> TrainShards:
        """Return which records a pipeline reads in training; opens no file."""
        return self._reader(True).train_shards(replicas or ShardOptions())

    def eval_shards(self, replicas: ShardOptions | None = None) -> EvalShards:
        """Return which records a pipeline reads in evaluation; opens no file."""
        return self._reader(False).eval_shards(replicas or ShardOptions())

    def describe(self, num_pipelines: int = 1, *, replicas_per_pipeline: int = 1, asynchronous: bool = False) -> str:
        """Return a text: which pipeline reads which records, the policy and its reason, and the guarantees.

        Args:
            num_pipelines: Input pipelines (workers).
            replicas_per_pipeline: Devices of each worker.
            asynchronous: Whether workers step independently (parameter servers).
        """
        from estimator_pipeline.inputs.describe import describe

        return describe(self, num_pipelines, replicas_per_pipeline, asynchronous)

    def identity(self, num_pipelines: int = 1) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the settings that decide which training records a step reads.

        Args:
            num_pipelines: Input pipelines of the job.

        Returns:
            Plain values by name, equal for two runs that read the same records at the same step; and texts for the
            changes after which a step reads different records.
        """
        reader, options = self._reader(True), self.options
        policy, _ = reader.policy(num_pipelines)
        sampler = reader.sampler()
        identity: dict[str, Any] = {
            "global_batch_size": options.global_batch_size,
            "input.seed": options.seed,
            "input.records": reader.source.num_records,
            "input.fingerprint": reader.fingerprint,
            "input.shuffle": options.shuffle,
            "input.shuffle_window": sampler.window,
        }
        if reader.contents:
            identity["input.content"] = reader.contents
        open_ = []
        if policy in ("file", "off"):
            # Which pipeline reads which records depends on the number of pipelines.
            identity["input.shard_policy"], identity["input.worker_seeds"] = policy, options.worker_seeds
            identity["input.workers"] = num_pipelines
            open_.append(f"another number of workers than {num_pipelines} (shard policy {policy})")
        return identity, tuple(open_)

    def with_policy(self, policy: str) -> Inputs:
        """Return the same data with the shard policy under which a run began.

        Args:
            policy: "file".

        Returns:
            The data; the same object with an explicit policy, and for data without files.
        """
        reader = self._reader(True).with_policy(policy)
        if reader is self._train:
            return self
        other = self.with_start_step(self.train_input_fn.start_step)
        other._train = reader
        return other

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
        """Return the metadata that decides which records a pipeline reads in training, as a ledger stores it."""
        reader = self._reader(True)
        return facts_of(
            reader.train_shards(replicas or ShardOptions()),
            sampler=reader.sampler(),
            part_records=reader.source.part_records,
            start_step=start_step,
            options=self.options,
            description=reader.source.description,
        )

    def _ledger_callback(self, ledger: Any, plan: TrainShards, start_step: int) -> Callable[..., None]:
        """Return a callback that writes the ids of batches to a ledger, counted through all parts."""
        part_records = self._reader(True).source.part_records
        facts: dict[str, Any] = {"kind": "records", "plan": self.train_facts(plan.replicas, start_step=start_step)}
        who = plan.replicas
        facts |= {"pipelines": who.num_pipelines, "pipeline": who.pipeline, "batches_per_step": who.local}
        stream = ledger.stream(facts)

        def write(first: bool, batches: Any, **more: Any) -> None:
            if plan.parts is not None:
                if isinstance(batches, np.ndarray):
                    batches = global_ids(batches.ravel(), plan.parts, part_records).reshape(batches.shape)
                else:
                    batches = [global_ids(batch, plan.parts, part_records) for batch in batches]
            stream(first, batches, **more)

        return write

    def _dataset(self, training: bool, context: Any, start_step: int, ledger: Any = None) -> Any:
        tf = tensorflow()
        self._shapes()  # An invalid transform is rejected here, not from within the dataset.
        replicas = replicas_of(tf, context)
        reader = self._reader(training)
        policies = tf.data.experimental.AutoShardPolicy
        # The data is already sharded: TensorFlow's sharding in addition would lose records.
        policy, rebatched = policies.OFF, False
        if training:
            if self.options.shard_policy == "hint":
                if replicas.num_pipelines > 1:
                    raise _hint_not_applied(replicas.num_pipelines)
                rebatched = context is None
                policy = policies.HINT if rebatched else policy
            plan = reader.train_shards(replicas)
            on_fetch = None if ledger is None else self._ledger_callback(ledger, plan, start_step)
            first = max(0, start_step - self.options.origin)
            dataset = self._batches(tf, reader, plan, first, rebatched=rebatched, on_fetch=on_fetch)
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
        on_fetch: Callable[..., None] | None = None,
    ) -> Any:
        source = reader.selected(plan.parts)
        transforms = [self.options.transform]

        pack = self._layout.packer(tf)

        def assemble(*raw: Any) -> tuple[Any, Any]:
            return self._assemble(tf, source, raw, pack)

        if self.options.record_transform is None:
            # Only user functions may need AutoGraph, which takes a fraction of a second.
            assemble = tf.autograph.experimental.do_not_convert(assemble)
        if isinstance(plan, TrainShards):
            transforms.insert(0, self.options.train_transform)
        if isinstance(plan, TrainShards) and rebatched:
            dataset, count = batches_to_rebatch(tf, source, plan, start_step, assemble, on_fetch=on_fetch)
        elif isinstance(plan, TrainShards):
            # Scaling and the like work for many batches at once.
            by_block = source.decodes_blocks and self.options.record_transform is None
            dataset, count = train_batches(tf, source, plan, start_step, assemble, by_block=by_block, on_fetch=on_fetch)
        else:
            dataset, count = eval_batches(tf, source, plan, assemble)
        for function in transforms:
            if function is not None:
                dataset = dataset.map(
                    lambda features, labels, function=function: _pair(function(features, labels)),
                    num_parallel_calls=tf.data.AUTOTUNE,
                    deterministic=True,
                )
        # unbatch() loses the cardinality. With it, a strategy need not ask all replicas at each step whether they
        # have a batch.
        return dataset if count is None else dataset.apply(tf.data.experimental.assert_cardinality(count))

    def _assemble(
        self, tf: Any, source: Source, raw: Sequence[Any], pack: Callable[[Mapping[str, Any]], tuple[Any, Any]]
    ) -> tuple[Any, Any]:
        """Convert the raw values of a batch to (features, labels)."""
        function = self.options.record_transform
        if function is None:
            return pack(source.decode(raw))

        def convert(row: Sequence[Any]) -> tuple[Any, Any]:
            values = source.decode([tf.expand_dims(value, 0) for value in row])
            single = {name: value[0] for name, value in values.items()}
            return _pair(function(*pack(single)))

        signature = self._traced(tf, source, training=False, batched=False)
        return tf.map_fn(convert, list(raw), fn_output_signature=signature)

    def _shapes(self) -> tuple[Any, Any]:
        """Return the specs of (features, labels) of one record, after all transforms."""
        if self._specs is None:
            tf = tensorflow()
            specs = [
                self._traced(tf, reader.source, training=training, batched=True)
                for reader, training in ((self._train, True), (self._eval, False))
                if reader is not None
            ]
            if len(specs) == 2:
                _check_same(tf, *specs)
            self._specs = tf.nest.map_structure(lambda spec: _record_spec(tf, spec), specs[0])
        return self._specs

    def _traced(self, tf: Any, source: Source, *, training: bool, batched: bool) -> tuple[Any, Any]:
        """Return the specs after the transforms: the whole chain on a batch, or only record_transform."""
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
    """The input function for TrainSpec and EvalSpec; a call creates the dataset.

    Attributes:
        start_step: For training, the global step at which reading starts, or a function that returns it at each
            call; see `at`.
        as_many_for_all: Whether every worker of a synchronous training gets the same number of batches.
    """

    as_many_for_all = True

    def __init__(self, data: Inputs, *, training: bool) -> None:
        self._data = data
        self._training = training
        self._ledger: Any = None
        self.start_step: int | Callable[[], int] = data.options.start_step if training else 0

    def at(self, step: int | Callable[[], int]) -> InputFn:
        """Return the input function of the same training data that starts to read at a global step.

        Args:
            step: The step, or a function that returns it at each call.
        """
        other = copy.copy(self)
        other.start_step = step
        return other

    def with_ledger(self, writer: Any) -> InputFn:
        """Return the training input function that also writes the ids of its records as they are fetched.

        Args:
            writer: A `estimator_pipeline.inputs.ledger.LedgerWriter`.
        """
        other = copy.copy(self)
        other._ledger = writer
        return other

    def __repr__(self) -> str:
        return f"InputFn({_text(self._data._train if self._training else self._data._eval, self._training)})"

    @property
    def rebatched(self) -> bool:
        """Whether the dataset is for `Strategy.experimental_distribute_dataset`: its shard policy is "hint"."""
        return self._training and self._data.options.shard_policy == "hint"

    @property
    def global_batch_size(self) -> int:
        """Records per step, over all replicas."""
        options = self._data.options
        return options.global_batch_size if self._training else options.eval_batch_size or options.global_batch_size

    def identity(self, num_pipelines: int = 1) -> tuple[dict[str, Any], tuple[str, ...]]:
        """See `Inputs.identity`."""
        return self._data.identity(num_pipelines)

    @property
    def files(self) -> dict[str, str]:
        """The files whose content is part of `identity`: name -> path."""
        return files_of(self._data._reader(self._training).source)

    @property
    def source(self) -> Source:
        """The records, before scaling and transforms."""
        return self._data._reader(self._training).source

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The names of the features and of the labels in the records."""
        return self._data._layout.names(self.source.specs())

    def eval_steps(self, replicas: int) -> int:
        """Return the number of steps of an evaluation in one process with this number of replicas."""
        return self._data.eval_shards(ShardOptions(num_replicas=replicas)).steps

    def records_before(self, step: int, *, most: int) -> np.ndarray:
        """Return the ids of the records up to and with those of a global step, the last `most`; for one stream."""
        end = (step + 1 - self._data.options.origin) * self.global_batch_size
        sampler = self._data._reader(self._training).sampler()
        return records_at(sampler, np.arange(max(0, end - most), end))

    @property
    def is_in_memory(self) -> bool:
        """Whether the records are read once, at the start."""
        return self._data._reader(self._training).in_memory

    def is_unchanged(self, path: str) -> bool:
        """See `Source.is_unchanged`."""
        return self._data._reader(self._training).source.is_unchanged(path)

    def with_policy(self, policy: str) -> InputFn:
        """See `Inputs.with_policy`."""
        data = self._data.with_policy(policy)
        if data is self._data:
            return self
        other = copy.copy(self)
        other._data = data
        return other

    def __call__(self, input_context: Any = None) -> Any:
        """Return the dataset of (features, labels) of one input pipeline.

        Args:
            input_context: tf.distribute.InputContext; None for a single replica. With shard_policy "hint" None
                returns the global batches for `Strategy.experimental_distribute_dataset`.

        Returns:
            A tf.data.Dataset of batches; the batch of each replica is the global batch divided by the number
            of replicas.

        Raises:
            InputError: The batch cannot be split among the replicas, or the policy cannot be applied.
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
        return self._data._dataset(self._training, input_context, start, self._ledger)


def _text(reader: Reader | None, training: bool) -> str:
    """Return the data, batch size and shard policy of training or evaluation, for `repr`; reads no data."""
    kind = "training" if training else "evaluation"
    if reader is None:
        return f"no {kind} data"
    options = reader.options
    size = options.global_batch_size if training else options.eval_batch_size or options.global_batch_size
    source = f"{reader.source.description}, {reader.source.num_records} records"
    return f"{kind}: {source}, batch size {size}, shard policy {options.shard_policy}"


def _hint_not_applied(pipelines: int) -> InputError:
    return InputError(
        "shard_policy='hint' leaves the sharding to Strategy.experimental_distribute_dataset",
        code="argument/not-applicable",
        found=f"an InputContext of {pipelines} input pipelines, with which TensorFlow does not apply the hint",
        hint="call strategy.experimental_distribute_dataset(train_input_fn()), or use shard_policy='data'",
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
    """Return the output specs of a transform for these input specs."""
    traced = tf.function(lambda features, labels: function(features, labels)).get_concrete_function(*specs)
    return tf.nest.map_structure(tf.type_spec_from_value, _pair(traced.structured_outputs), expand_composites=False)


def parsed_examples(tf: Any, records: Any, features_spec: Mapping[str, Any], *, optional: bool) -> dict[str, Any]:
    """Return the features of serialized tf.train.Example records, string [B].

    If they are `optional`, a missing number is NaN and a missing text "".
    """

    def stored(spec: Any) -> Any:
        dtype = spec.dtype if spec.dtype == tf.string else tf.float32 if spec.dtype.is_floating else tf.int64
        missing = None if not optional else "" if dtype == tf.string else float("nan")
        return tf.io.FixedLenFeature(spec.shape.as_list(), dtype, missing)

    parsed = tf.io.parse_example(records, {name: stored(spec) for name, spec in features_spec.items()})
    return {name: tf.cast(parsed[name], spec.dtype) for name, spec in features_spec.items()}


def _record_spec(tf: Any, spec: Any) -> Any:
    # Sparse and ragged values keep their batch axis.
    return tf.TensorSpec(spec.shape[1:], spec.dtype) if isinstance(spec, tf.TensorSpec) else spec


def _check_same(tf: Any, train: Any, evaluation: Any) -> None:
    same = True
    try:
        tf.nest.assert_same_structure(train, evaluation)
        for first, second in zip(tf.nest.flatten(train), tf.nest.flatten(evaluation), strict=True):
            same = same and first.dtype == second.dtype and first.shape.is_compatible_with(second.shape)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise InputError(
            "Training and evaluation data have different structures",
            code="data/bad-feature",
            found=f"training {train}, evaluation {evaluation}",
            hint="give both the same features and labels, of the same types and shapes",
        )
