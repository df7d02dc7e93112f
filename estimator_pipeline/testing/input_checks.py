"""`check_input_fn`: what an `input_fn` must hold so that a job reads its data right, on one worker and on many.

The input_fn is called as an Estimator calls it: in a graph of its own, with the graph's seed set, parameters filled by
their names, and, for a job of several workers, an InputContext for each of them.
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
)

__all__ = ["EVALUATION_CHECKS", "TRAINING_CHECKS", "check_input_fn", "input_fn_checks"]

MODES = {"train": "train", "eval": "eval", "infer": "infer", "predict": "infer"}

_COMMON: list[Definition] = []
_TRAINING: list[Definition] = []
_EVALUATION: list[Definition] = []
_LAST: list[Definition] = []

_SHARD = (
    "take input_context=None and call dataset.shard(input_context.num_input_pipelines, "
    "input_context.input_pipeline_id) before shuffle, repeat and batch"
)


def _some(records: Sequence[Hashable], texts: Mapping[Hashable, str]) -> str:
    shown = " | ".join(texts[record] for record in records[:3])
    return shown + (f" | and {len(records) - 3} more" if len(records) > 3 else "")


# The checks ----------------------------------------------------------------------------------------------------


@define(_COMMON)
def parameters_are_known(subject: InputSubject) -> str | None:
    """Every parameter is one that Estimator fills (mode, params, config, input_context), none misspelt or hidden."""
    subject.check_parameters()
    return None


@define(_COMMON)
def returns_batches(subject: InputSubject) -> str | None:
    """It returns a Dataset or tensors of (features, labels) or features, and they can be read, by every pipeline."""
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
    """The number of dimensions of every feature and label is known before the data is read."""
    unknown = [leaf.path for leaf in subject.base().spec if leaf.shape is None]
    if unknown:
        raise ComplianceFinding(
            f"{', '.join(unknown)}: not even the number of dimensions is known; layers cannot be built on it",
            hint="after tf.py_function, tf.numpy_function or tf.io.decode_raw, say the shape: x.set_shape([...]) or "
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
    """No batch is empty: a mean over no examples is not a number."""
    subject.require_records()
    for stream in subject.all_streams():
        if 0 in stream.sizes:
            raise ComplianceFinding(
                f"batch {stream.sizes.index(0)} of {stream.who} has no records",
                hint="filter records before they are batched, and drop empty batches",
            )
    return None


@define(_COMMON)
def every_pipeline_gets_data(subject: InputSubject) -> str | None:
    """Each pipeline has at least one batch: a worker without data ends the job, or lets the others wait."""
    for stream in subject.all_streams():
        if not stream.batches:
            raise ComplianceFinding(
                f"{stream.who} has no batch at all",
                hint="shard by record, or have at least as many files as pipelines; with drop_remainder=True each "
                "pipeline needs a whole batch",
            )
    return None


@define(_COMMON)
def per_replica_batch(subject: InputSubject) -> str | None:
    """Each replica's batch is the global batch divided by the number of replicas."""
    subject.require_records()
    base, given = max(subject.base().sizes, default=0), subject.options.global_batch_size
    found = {layout: max(size for s in pipelines for size in (*s.sizes, 0)) for layout, pipelines in subject.each()}
    found = {layout: size for layout, size in found.items() if size}
    hint = "batch by input_context.get_per_replica_batch_size(global_batch_size)"
    if not subject.takes_context:
        hint = f"take the parameter input_context=None, and {hint}; each pipeline reads whole batches now"
    if given is not None:
        if base != given and subject.base().whole and sum(subject.base().sizes) >= given:
            raise ComplianceFinding(
                f"without an input_context the batch is {base}, and global_batch_size is {given}",
                hint="batch by global_batch_size where there is no input_context",
            )
        for layout, size in found.items():
            if given % layout.all_replicas or sum(subject.base().sizes) < given:
                continue
            if size != given // layout.all_replicas:
                raise ComplianceFinding(
                    f"{layout}: the batch of a replica is {size}, not {given // layout.all_replicas} = "
                    f"{given} / {layout.all_replicas}",
                    hint=hint,
                )
        return None
    divided = [layout for layout, size in found.items() if size * layout.all_replicas == base]
    constant = [layout for layout, size in found.items() if size == base]
    for layout, size in found.items():
        if layout not in divided and layout not in constant and base % layout.all_replicas == 0:
            raise ComplianceFinding(
                f"{layout}: the batch of a replica is {size}, where a single one has {base}; that is neither the same "
                f"nor {base} / {layout.all_replicas}",
                hint=hint,
            )
    apart = [layout for layout in found if layout.all_replicas > 1]
    if any(x in divided for x in apart) and any(x in constant for x in apart):
        sizes = ", ".join(f"{layout}: {found[layout]}" for layout in apart)
        raise ComplianceFinding(f"the batch of a replica is {base} alone, and with {sizes}", hint=hint)
    if not any(x in divided for x in apart) and any(x in constant for x in apart):
        return f"a replica's batch is {base} whatever their number; give global_batch_size= if it should be divided"
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
                hint="look for what leaves records out: take, skip, filter, drop_remainder, a list of files",
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
                    hint="shard by input_context.num_input_pipelines and input_context.input_pipeline_id, which counts "
                    "from 0; not by the number of replicas",
                )
            )
    return f"{len(universe)} different records"


def _dropped(pipelines: Sequence[Stream]) -> int:
    """How many records training may leave out: each pipeline's last batch where batches have a fixed size."""
    return sum((stream.static_batch or 1) - 1 for stream in pipelines if stream.ended)


@define(_TRAINING)
def shards_do_not_overlap(subject: InputSubject) -> str | None:
    """No record is read by two pipelines; or each reads all records, in its own order."""
    if not any(layout.pipelines > 1 for layout in subject.layouts):
        raise Skip("one pipeline alone has nothing to overlap with")
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
                    hint=f"{_SHARD}; if there are records of equal content, give key=",
                )
            )
        if layout.pipelines > 1:
            ways.append(f"{layout}: {_WAYS[sharing.way]}")
    return "; ".join(ways)


_WAYS = {
    "shards": "each reads records of its own",
    "one order": "they take turns in one order",
    "everything": "each reads all records, in its own order",
}


def _same_batches(subject: InputSubject) -> None:
    """Two pipelines that read the same batches; seen without reading everything."""
    expected = shards.multiplicities(subject.base(), subject.options.num_records)
    for layout, pipelines in subject.each():
        sharing = shards.same_order(pipelines)
        # Records of equal content, one for each of these pipelines, or a single record: the order says nothing.
        if not sharing or len(expected) < 2 or min(expected.values()) >= len(sharing):
            continue
        hint = f"{_SHARD}; or shuffle with a seed of each pipeline's own"
        if subject.options.seed is not None:
            hint += f" (the graph's seed {subject.options.seed}, RunConfig.tf_random_seed, is the same on all workers)"
        if not subject.takes_context:
            hint += "; if the job will always be one process, say pipelines=(1,)"
        raise ComplianceFinding(
            f"{layout}: pipelines {' and '.join(map(str, sharing))} read the same records in the same order, so that "
            f"more workers only repeat each other's work",
            hint=hint,
        )


@define(_TRAINING)
def training_repeats(subject: InputSubject) -> str | None:
    """Training data has no end, or is declared finite."""
    base, finite = subject.base(), subject.options.finite
    if base.ended and not finite:
        raise ComplianceFinding(
            f"the data ends after {len(base.batches)} batches, and training with it, before max_steps",
            hint="end with dataset.repeat(), or say finite=True if training should end there",
        )
    if finite and base.declared == -1:
        raise ComplianceFinding(
            "finite=True was said, and the data has no end", hint="repeat(epochs) with a number of epochs"
        )
    if finite and not base.ended:
        raise Skip(f"the end was not seen in {len(base.batches)} batches; give a larger steps=")
    return None


@define(_EVALUATION)
def evaluation_ends(subject: InputSubject) -> str | None:
    """Evaluation and prediction data come to an end: EvalSpec(steps=None) would never finish."""
    subject.ends()
    return None


@define(_EVALUATION)
def evaluation_reads_every_record_once(subject: InputSubject) -> str | None:
    """Evaluation reads every record, and each of them once."""
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
            hint = "no repeat() outside training, and shard for each pipeline or not at all"
            subject.judge(ComplianceFinding(f"{who}{many}", hint=hint))
        missing = [record for record in universe if record not in counts]
        if missing:
            found = f"{who}{len(missing)} of {len(universe)} records are never read, such as {_some(missing, universe)}"
            subject.judge(ComplianceFinding(found, hint="no drop_remainder=True, take or skip outside training"))
        total = sum(counts.values())
        if options.num_records is not None and total != options.num_records:
            raise ComplianceFinding(
                f"{who}{total} records are read, and there are {options.num_records}",
                hint="no drop_remainder=True, take, skip or repeat outside training",
            )
    return f"{sum(base.sizes)} records in {len(base.batches)} batches"


@define(_LAST)
def deterministic_for_a_seed(subject: InputSubject) -> str | None:
    """Two readings with the same graph seed give the same batches in the same order (if asked for)."""
    if not subject.options.deterministic:
        raise Skip("not asked for; say deterministic=True")
    seed = 1 if subject.options.seed is None else subject.options.seed
    base = subject.base() if seed == subject.options.seed else subject.read("a first reading", seed=seed)
    again = subject.read("a second reading", seed=seed)
    for step, (one, other) in enumerate(zip(base.digests, again.digests, strict=False)):
        if one != other:
            raise ComplianceFinding(
                f"batch {step} is another one in a second reading with the same seed {seed}",
                hint="look for what the graph's seed does not govern: random and numpy.random, the order of files in a "
                "folder, interleave and parallel maps with deterministic=False",
            )
    if len(base.digests) != len(again.digests):
        raise ComplianceFinding(
            f"{len(base.digests)} batches were read, and {len(again.digests)} in a second reading",
            hint="look for state outside the dataset: generators and files that are used up",
        )
    return f"{len(base.digests)} batches read twice"


TRAINING_CHECKS: tuple[Definition, ...] = (*_COMMON, *_TRAINING, *_LAST)
EVALUATION_CHECKS: tuple[Definition, ...] = (*_COMMON, *_EVALUATION, *_LAST)


# For users -----------------------------------------------------------------------------------------------------


def _suite(given: dict[str, Any]) -> Suite:
    input_fn = given.pop("input_fn")
    skip, only = given.pop("skip"), given.pop("only")
    mode = given["mode"]
    if mode not in MODES:
        raise ConfigError(f"mode is {mode!r}", code="argument/bad-value", found=f"allowed: {', '.join(MODES)}")
    given["mode"] = MODES[mode]
    pipelines = given["pipelines"]
    # Estimator evaluates and predicts in one process.
    given["pipelines"] = tuple(pipelines) if pipelines is not None else (1, 2, 3) if mode == "train" else (1,)
    if not callable(input_fn):
        raise ConfigError(
            f"the input_fn is a {type(input_fn).__name__}",
            code="argument/bad-value",
            hint="give the function itself, not what it returns: a dataset belongs to the graph it was made in",
        )
    if not given["pipelines"] or min(given["pipelines"]) < 1 or given["steps"] < 1:
        raise ConfigError(
            f"pipelines={given['pipelines']}, steps={given['steps']}",
            code="argument/bad-value",
            hint="numbers from 1 on",
        )
    config, seed = given["config"], given.pop("tf_random_seed")
    given["seed"] = getattr(config, "tf_random_seed", None) if seed == "config" else seed
    options = InputCheckOptions(**given)
    known = [d.name for d in (*_COMMON, *_TRAINING, *_EVALUATION, *_LAST)]
    definitions = TRAINING_CHECKS if options.mode == "train" else EVALUATION_CHECKS
    title = f"{calling.describe(input_fn)} in mode {options.mode}"
    return Suite(title, definitions, lambda: InputSubject(input_fn, options), skip=skip, only=only, known=known)


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
    deterministic: bool = False,
    params: Any = None,
    config: Any = None,
    tf_random_seed: int | str | None = "config",
    skip: Iterable[str] = (),
    only: Iterable[str] | None = None,
) -> tuple[ComplianceCheck, ...]:
    """The checks of :func:`check_input_fn`, with its arguments, as callables for pytest.

    Nothing is read, and TensorFlow is not imported, before the first of them runs; they share what they read.
    """
    return _suite(dict(locals())).checks()


def check_input_fn(
    input_fn: Callable[..., Any],
    *,
    mode: str = "train",
    global_batch_size: int | None = None,
    pipelines: Sequence[int] | None = None,
    steps: int = 1000,
    key: Callable[[Any, Any], Hashable] | None = None,
    num_records: int | None = None,
    finite: bool = False,
    deterministic: bool = False,
    params: Any = None,
    config: Any = None,
    tf_random_seed: int | str | None = "config",
    skip: Iterable[str] = (),
    only: Iterable[str] | None = None,
    raise_on_failure: bool = True,
) -> ComplianceReport:
    """Checks that an `input_fn` reads its data right, alone and shared by several pipelines.

    Args:
        input_fn: Any function that an Estimator takes: its parameters are some of mode, params, config and
            input_context; it returns a Dataset or the tensors of a batch, (features, labels) or features.
        mode: "train", "eval" or "predict" (also "infer"): which data is meant. Training data has other duties.
        global_batch_size: Records of all replicas together at a step. Without it, both ways of batching are right:
            by replica, and by dividing a global batch.
        pipelines: The numbers of input pipelines (workers) to try; None: 1, 2 and 3 in training, 1 otherwise.
        steps: The largest number of batches to read from each pipeline. Endless data is read about three times over.
        key: `key(features, labels)` of one record, as arrays without the batch axis, gives what identifies it. None:
            its content, which random augmentation and records of equal content make useless.
        num_records: How many records there are; None: as many as are seen by any pipeline.
        finite: Whether the training data is meant to end, as with `repeat(epochs)`.
        deterministic: Whether two readings with the same graph seed (1 where there is none) must be equal.
        params: What the Estimator gives as `params`.
        config: What the Estimator gives as `config`, a RunConfig.
        tf_random_seed: The graph's seed, which all workers of a job share. "config": that of `config`, or none, as
            RunConfig has none by default.
        skip: Names of checks to leave out.
        only: Names of the checks to run; None: all.
        raise_on_failure: Whether a failure raises.

    Returns:
        The Report.

    Raises:
        ComplianceError: checks failed; it holds the report.
        ConfigError: an argument that cannot work.
    """
    given = dict(locals())
    del given["raise_on_failure"]
    report = _suite(given).report()
    return report.raise_on_failure() if raise_on_failure else report
