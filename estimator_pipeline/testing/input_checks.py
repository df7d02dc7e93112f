"""`check_input_fn`: checks that an `input_fn` provides correct data, on one worker and on several.

The input_fn is called like in an Estimator: in a new graph with its seed set, with arguments passed by name and, for
several workers, with an InputContext for each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.testing import calling
from estimator_pipeline.testing import shard_checks as shards
from estimator_pipeline.testing.input_subject import InputCheckOptions, InputSubject, uneven
from estimator_pipeline.testing.record_stream import Stream
from estimator_pipeline.testing.report import (
    ComplianceCheck,
    ComplianceFinding,
    ComplianceReport,
    Definition,
    Skip,
    Suite,
    define,
    run_checks,
)
from estimator_pipeline.utils.text import few

__all__ = ["EVALUATION_CHECKS", "TRAINING_CHECKS", "check_input_fn", "input_fn_checks"]

MODES = {"train": "train", "eval": "eval", "infer": "infer", "predict": "infer"}

_COMMON: list[Definition] = []
_TRAINING: list[Definition] = []
_EVALUATION: list[Definition] = []
_SHARD = (
    "add the parameter input_context=None and call dataset.shard(input_context.num_input_pipelines, "
    "input_context.input_pipeline_id) before shuffle, repeat and batch"
)


def _some(records: Sequence[Hashable], texts: Mapping[Hashable, str]) -> str:
    return few((texts[record] for record in records), 3, separator=" | ")


# The checks ----------------------------------------------------------------------------------------------------


@define(_COMMON)
def parameters_are_known(subject: InputSubject) -> str | None:
    """Estimator passes every parameter (mode, params, config, input_context); none is misspelt or hidden."""
    subject.check_parameters()
    return None


@define(_COMMON)
def returns_batches(subject: InputSubject) -> str | None:
    """It returns a readable Dataset or tensors, of features or (features, labels), for every pipeline."""
    base = subject.base()
    for _ in subject.each():
        pass
    left_out = "; ".join(subject.left_out.values())
    return f"{', '.join(map(str, base.spec))}{'; ' if left_out else ''}{left_out}"


@define(_COMMON)
def same_structure_in_each_call(subject: InputSubject) -> str | None:
    """Names, dtypes and shapes are the same in each call and for each pipeline."""
    subject.specs()
    return None


@define(_COMMON)
def shapes_are_known(subject: InputSubject) -> str | None:
    """The rank of every feature and label is known statically."""
    unknown = [leaf.path for leaf in subject.base().spec if leaf.shape is None]
    if unknown:
        raise ComplianceFinding(
            f"{', '.join(unknown)}: the rank is unknown, so layers cannot be built",
            hint="set the shape after tf.py_function, tf.numpy_function or tf.io.decode_raw: x.set_shape([...]) or "
            "tf.ensure_shape(x, [...])",
        )
    return None


@define(_COMMON)
def rows_agree(subject: InputSubject) -> str | None:
    """All features and labels of a batch have the same number of rows."""
    for stream in subject.all_streams():
        if stream.uneven:
            raise uneven(stream.uneven)
    return None


@define(_COMMON)
def no_empty_batches(subject: InputSubject) -> str | None:
    """No batch is empty: the mean loss of an empty batch is NaN."""
    subject.require_records()
    for stream in subject.all_streams():
        if 0 in stream.sizes:
            raise ComplianceFinding(
                f"batch {stream.sizes.index(0)} of {stream.who} has no records",
                hint="filter records before batching, and drop empty batches",
            )
    return None


@define(_COMMON)
def every_pipeline_gets_data(subject: InputSubject) -> str | None:
    """Each pipeline has at least one batch: a worker without data fails, or the others wait for it."""
    for stream in subject.all_streams():
        if not stream.batches:
            raise ComplianceFinding(
                f"{stream.who} has no batch",
                hint="shard by record, or use at least as many files as pipelines; with drop_remainder=True each "
                "pipeline needs a full batch",
            )
    return None


@define(_COMMON)
def per_replica_batch(subject: InputSubject) -> str | None:
    """The batch size per replica is the global batch size divided by the number of replicas."""
    subject.require_records()
    base, expected = max(subject.base().sizes, default=0), subject.options.global_batch_size
    sizes = {layout: max(size for s in pipelines for size in (*s.sizes, 0)) for layout, pipelines in subject.each()}
    sizes = {layout: size for layout, size in sizes.items() if size}
    hint = "batch by input_context.get_per_replica_batch_size(global_batch_size)"
    if not subject.takes_context:
        hint = f"add the parameter input_context=None, and {hint}; now each pipeline reads global batches"
    if expected is not None:
        if base != expected and subject.base().whole and sum(subject.base().sizes) >= expected:
            raise ComplianceFinding(
                f"without an input_context the batch size is {base}, and global_batch_size is {expected}",
                hint="use global_batch_size as the batch size where there is no input_context",
            )
        for layout, size in sizes.items():
            if expected % layout.all_replicas or sum(subject.base().sizes) < expected:
                continue
            if size != expected // layout.all_replicas:
                raise ComplianceFinding(
                    f"{layout}: the batch size per replica is {size}, not {expected // layout.all_replicas} = "
                    f"{expected} / {layout.all_replicas}",
                    hint=hint,
                )
        return None
    divided = [layout for layout, size in sizes.items() if size * layout.all_replicas == base]
    constant = [layout for layout, size in sizes.items() if size == base]
    for layout, size in sizes.items():
        if layout not in divided and layout not in constant and base % layout.all_replicas == 0:
            raise ComplianceFinding(
                f"{layout}: the batch size per replica is {size}, and {base} for a single replica; expected {base} or "
                f"{base} / {layout.all_replicas}",
                hint=hint,
            )
    apart = [layout for layout in sizes if layout.all_replicas > 1]
    if any(x in divided for x in apart) and any(x in constant for x in apart):
        others = ", ".join(f"{layout}: {sizes[layout]}" for layout in apart)
        raise ComplianceFinding(f"the batch size is {base} for a single replica, and with {others}", hint=hint)
    if not any(x in divided for x in apart) and any(x in constant for x in apart):
        return f"the batch size per replica is always {base}; pass global_batch_size= if it should be divided"
    return None


@define(_TRAINING)
def shards_cover(subject: InputSubject) -> str | None:
    """The pipelines of a job together read every record."""
    subject.require_whole()
    universe, base = subject.universe(), subject.base()
    options = subject.options
    size = sum(shards.multiplicities(base, options.num_records).values())
    if base.ended:
        size //= shards.repeats(base.counts)
    if options.num_records is not None and size + _dropped([base]) < options.num_records:
        subject.judge(
            ComplianceFinding(
                f"{base.who} reads {size} records, and there are {options.num_records}",
                hint="look for operations that drop records: take, skip, filter, drop_remainder, a list of files",
            )
        )
    for layout, pipelines in [(None, (base,)), *subject.each()]:
        read = set().union(*(stream.texts for stream in pipelines))
        missing = [record for record in universe if record not in read]
        if len(missing) > _dropped(pipelines):
            who = "without an input_context" if layout is None else str(layout)
            subject.judge(
                ComplianceFinding(
                    f"{who}: {len(missing)} of {len(universe)} records are read by no pipeline, such as "
                    f"{_some(missing, universe)}",
                    hint="shard by input_context.num_input_pipelines and input_context.input_pipeline_id (from 0), "
                    "not by the number of replicas",
                )
            )
    return f"{len(universe)} different records"


def _dropped(pipelines: Sequence[Stream]) -> int:
    """Return how many records training may drop: each pipeline's last batch if the batch size is fixed."""
    return sum((stream.static_batch or 1) - 1 for stream in pipelines if stream.ended)


@define(_TRAINING)
def shards_do_not_overlap(subject: InputSubject) -> str | None:
    """No record is read by two pipelines, or each pipeline reads all records in a different order."""
    if not any(layout.pipelines > 1 for layout in subject.layouts):
        raise Skip("a single pipeline cannot overlap")
    _same_batches(subject)
    subject.require_whole()
    universe, ways = subject.universe(), []
    for layout, pipelines in subject.each():
        sharing = shards.share(subject.base(), pipelines, subject.options.num_records)
        if not sharing.way:
            record, by = next(iter(sharing.twice.items()))
            readers = f"pipelines {' and '.join(map(str, by))}" if len(by) > 1 else f"pipeline {by[0]}, twice"
            subject.judge(
                ComplianceFinding(
                    f"{layout}: {len(sharing.twice)} of {len(universe)} records are read more than once in an epoch, "
                    f"such as {universe[record]} (by {readers})",
                    hint=f"{_SHARD}; if some records have equal content, pass key=",
                )
            )
        if layout.pipelines > 1:
            ways.append(f"{layout}: {_WAYS[sharing.way]}")
    return "; ".join(ways)


_WAYS = {
    "shards": "each reads different records",
    "one order": "they take turns in a common order",
    "everything": "each reads all records, in a different order",
}


def _same_batches(subject: InputSubject) -> None:
    """Raise a finding if two pipelines read the same batches; needs only part of the data."""
    expected = shards.multiplicities(subject.base(), subject.options.num_records)
    for layout, pipelines in subject.each():
        sharing = shards.same_order(pipelines)
        # With a single record, or with a record of equal content for each pipeline, the order proves nothing.
        if not sharing or len(expected) < 2 or min(expected.values()) >= len(sharing):
            continue
        hint = f"{_SHARD}; or shuffle with a different seed in each pipeline"
        if subject.options.seed is not None:
            hint += f" (the graph's seed {subject.options.seed}, RunConfig.tf_random_seed, is the same on all workers)"
        if not subject.takes_context:
            hint += "; if the job will always be one process, pass pipelines=(1,)"
        raise ComplianceFinding(
            f"{layout}: pipelines {' and '.join(map(str, sharing))} read the same records in the same order, so that "
            f"all workers do the same work",
            hint=hint,
        )


@define(_TRAINING)
def training_repeats(subject: InputSubject) -> str | None:
    """Training data repeats endlessly, or finite=True is passed."""
    base, finite = subject.base(), subject.options.finite
    if base.ended and not finite:
        raise ComplianceFinding(
            f"the data ends after {len(base.batches)} batches, and training stops there, before max_steps",
            hint="add dataset.repeat(), or pass finite=True if training should stop there",
        )
    if finite and base.declared == -1:
        raise ComplianceFinding(
            "finite=True is set, and the data repeats endlessly", hint="use repeat(epochs) with a number of epochs"
        )
    if finite and not base.ended:
        raise Skip(f"the data did not end within {len(base.batches)} batches; pass a larger steps=")
    return None


@define(_EVALUATION)
def evaluation_ends(subject: InputSubject) -> str | None:
    """Evaluation and prediction data end: with endless data EvalSpec(steps=None) never finishes."""
    subject.ends()
    return None


@define(_EVALUATION)
def evaluation_reads_every_record_once(subject: InputSubject) -> str | None:
    """Evaluation reads every record exactly once."""
    subject.ends()
    subject.require_whole()
    universe, base, options = subject.universe(), subject.base(), subject.options
    for layout, pipelines in [(None, (base,)), *subject.each()]:
        counts = sum((stream.counts for stream in pipelines), type(base.counts)())
        who = "" if layout is None else f"{layout}: "
        times = shards.repeats(counts)
        twice = [record for record, count in counts.items() if count > base.counts.get(record, count)]
        if options.key is not None:
            twice = [record for record, count in counts.items() if count > 1]
        if times > 1 or twice:
            many = (
                f"all {len(counts)} records are read {times} times"
                if times > 1
                else (
                    f"{len(twice)} of {len(universe)} records are read more than once, such as {_some(twice, universe)}"
                )
            )
            hint = "use no repeat() outside training, and shard either for each pipeline or never"
            subject.judge(ComplianceFinding(f"{who}{many}", hint=hint))
        missing = [record for record in universe if record not in counts]
        if missing:
            message = (
                f"{who}{len(missing)} of {len(universe)} records are never read, such as {_some(missing, universe)}"
            )
            subject.judge(ComplianceFinding(message, hint="use no drop_remainder=True, take or skip outside training"))
        total = sum(counts.values())
        if options.num_records is not None and total != options.num_records:
            raise ComplianceFinding(
                f"{who}{total} records are read, and there are {options.num_records}",
                hint="use no drop_remainder=True, take, skip or repeat outside training",
            )
    return f"{sum(base.sizes)} records in {len(base.batches)} batches"


TRAINING_CHECKS: tuple[Definition, ...] = (*_COMMON, *_TRAINING)
EVALUATION_CHECKS: tuple[Definition, ...] = (*_COMMON, *_EVALUATION)


# For users -----------------------------------------------------------------------------------------------------


def input_fn_checks(
    input_fn: Callable[..., Any],
    *,
    mode: str = "train",
    global_batch_size: int | None = None,
    pipelines: Sequence[int] | None = None,
    steps: int = 1000,
    key: Callable[[Any, Any], Hashable] | None = None,
    num_records: int | None = None,
    finite: bool = False,
    params: Any = None,
    config: Any = None,
    skip: Iterable[str] = (),
    only: Iterable[str] | None = None,
) -> tuple[ComplianceCheck, ...]:
    """Return the checks of an `input_fn`, as callables for pytest.

    The first check that runs imports TensorFlow and reads the data; all checks share the data.

    Args:
        input_fn: Any function that an Estimator accepts. Its parameters are some of mode, params, config and
            input_context. It returns a Dataset, or the tensors of a batch: (features, labels) or features.
        mode: "train", "eval" or "predict" (also "infer"). The requirements on training data differ.
        global_batch_size: Records per step of all replicas together. Without it, the input_fn may either batch per
            replica or divide a global batch.
        pipelines: The numbers of input pipelines (workers) to test; None: 1, 2 and 3 in training, 1 otherwise.
        steps: The largest number of batches to read from each pipeline. Endless data is read about three times.
        key: `key(features, labels)` returns the identity of one record, from arrays without the batch axis. None:
            the record's content, which fails with random augmentation and with records of equal content.
        num_records: The number of records; None: as many as all pipelines read.
        finite: Whether the training data is expected to end, as with `repeat(epochs)`.
        params: The Estimator's `params`.
        config: The Estimator's `config`, a RunConfig; its seed is the graph seed, which all workers of a job share.
        skip: Names of checks to skip.
        only: Names of the checks to run; None: all.

    Raises:
        ConfigError: An argument is invalid.
    """
    if mode not in MODES:
        raise ConfigError(f"mode is {mode!r}", code="argument/bad-value", found=f"allowed: {', '.join(MODES)}")
    # Estimator evaluates and predicts in one process.
    pipelines = tuple(pipelines) if pipelines is not None else (1, 2, 3) if mode == "train" else (1,)
    if not callable(input_fn):
        raise ConfigError(
            f"the input_fn is a {type(input_fn).__name__}",
            code="argument/bad-value",
            hint="pass the function itself, not its result: a dataset belongs to the graph in which it was created",
        )
    if not pipelines or min(pipelines) < 1 or steps < 1:
        raise ConfigError(
            f"pipelines={pipelines}, steps={steps}", code="argument/bad-value", hint="use numbers of 1 or more"
        )
    options = InputCheckOptions(
        mode=MODES[mode],
        global_batch_size=global_batch_size,
        pipelines=pipelines,
        steps=steps,
        key=key,
        num_records=num_records,
        finite=finite,
        params=params,
        config=config,
        seed=getattr(config, "tf_random_seed", None),
    )
    suite = Suite(
        f"{calling.describe(input_fn)} in mode {options.mode}",
        TRAINING_CHECKS if mode == "train" else EVALUATION_CHECKS,
        lambda: InputSubject(input_fn, options),
        skip=skip,
        only=only,
        known=(*TRAINING_CHECKS, *_EVALUATION),
    )
    return suite.checks()


def check_input_fn(input_fn: Callable[..., Any], *, raise_on_failure: bool = True, **options: Any) -> ComplianceReport:
    """Check that an `input_fn` reads its data correctly, in one pipeline and in several.

    Args:
        input_fn: Any function that an Estimator accepts.
        raise_on_failure: Whether to raise an error if a check fails.
        **options: Options of `input_fn_checks`.

    Returns:
        The report.

    Raises:
        ComplianceError: Checks failed; the error has the report.
        ConfigError: An argument is invalid.
    """
    return run_checks(input_fn_checks(input_fn, **options), raise_on_failure=raise_on_failure)
