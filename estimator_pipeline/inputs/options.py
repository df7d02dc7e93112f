"""The common options of all `input_fn` factories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs import sampler
from estimator_pipeline.inputs.sharding import check_policy
from estimator_pipeline.utils.text import nearest

if TYPE_CHECKING:
    # Python 3.10 has no typing.Required. pydantic and TensorFlow bring typing_extensions.
    from typing_extensions import Required

__all__ = ["FactoryOptions", "InputOptions", "make_options"]


@dataclass(frozen=True)
class InputOptions:
    """The options of every factory, in addition to the data.

    Args:
        global_batch_size: Records per training step, over all replicas. Each replica gets an equal share; a size
            that cannot be split equally is rejected when the `input_fn` is called. With parameter servers each
            worker steps independently, and reads a batch of this size at each of its steps.
        eval_batch_size: The maximum number of records per evaluation step; defaults to global_batch_size.
        seed: Seed of the shuffle.
        shuffle: Whether to shuffle training records, differently in each epoch. Evaluation is never shuffled.
        epochs: Epochs of the training stream; None for a stream without an end.
        drop_remainder: For a finite stream, whether to drop the last, incomplete global batch, or to read it as a
            smaller batch.
        shard_policy: "auto", "file", "data", "hint" or "off": see `estimator_pipeline.inputs.sharding`.
        worker_seeds: "same"; or "distinct", with the policy "off": each worker reads everything in a different
            order.
        shuffle_window: Data that is not held in memory is shuffled by file, then within windows of this many
            records, so that files are read sequentially; None shuffles all records together.
        scale: A factor for the features, which become float32: 1/255 maps bytes to [0, 1]. A number applies to
            all numeric features, a mapping to the features it names.
        record_transform: `f(features, labels)` applied to each record before batching; it must return records of
            one shape. Use TensorFlow operations; for reproducible training only stateless random operations.
        transform: `f(features, labels)` applied to each batch, in training and evaluation.
        train_transform: Like `transform`, only in training (augmentation), and before it.
        memory_limit: Bytes; data that decodes to less is held in memory.
        prefetch: Batches to prefetch.
        start_step: The global step at which training starts to read, or a function that returns it when the
            `input_fn` is called (such as the step of the latest checkpoint).
        origin: The global step at which the first record of these data is read; other data were trained before it.
        merge_remainder: For a finite stream with `drop_remainder=False`, whether a remainder of less than half a global
            batch is added to the last batch. The number of steps then does not depend on the number of replicas.
        continuation: The number of the continuation of a run that reads these data; 0: the run began with them.

    Raises:
        InputError: An invalid value.
    """

    global_batch_size: int
    eval_batch_size: int | None = None
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = None
    drop_remainder: bool = True
    shard_policy: str = "auto"
    worker_seeds: str = "same"
    shuffle_window: int | None = 65536
    scale: float | Mapping[str, float] | None = None
    record_transform: Callable[[Any, Any], tuple[Any, Any]] | None = None
    transform: Callable[[Any, Any], tuple[Any, Any]] | None = None
    train_transform: Callable[[Any, Any], tuple[Any, Any]] | None = None
    memory_limit: int = 2**30
    prefetch: int = 4
    start_step: int | Callable[[], int] = 0
    origin: int = 0
    merge_remainder: bool = False
    continuation: int = 0

    def __post_init__(self) -> None:
        sampler.check_global_batch(self.global_batch_size, 1)
        if self.eval_batch_size is not None:
            sampler.check_global_batch(self.eval_batch_size, 1)
        # The sampler checks these values; the number of records does not matter.
        sampler.IndexSampler(1, seed=self.seed, epochs=self.epochs)
        check_policy(self.shard_policy)
        if self.shard_policy == "hint" and self.epochs is not None and not self.drop_remainder:
            raise _bad(
                "drop_remainder",
                "False with shard_policy='hint'",
                "TensorFlow cannot shard a smaller last batch: drop it, or use shard_policy='data'",
            )
        if self.worker_seeds not in ("same", "distinct"):
            raise _bad("worker_seeds", self.worker_seeds, "use 'same' or 'distinct'")
        if self.worker_seeds == "distinct" and self.shard_policy != "off":
            raise _bad(
                "worker_seeds",
                f"'distinct' with shard_policy={self.shard_policy!r}",
                "distinct seeds need every worker to read all the data: add shard_policy='off'",
            )
        if self.worker_seeds == "distinct" and not self.shuffle:
            raise _bad("worker_seeds", "'distinct' with shuffle=False", "distinct orders need shuffle=True")
        for name in ("memory_limit", "prefetch", "origin", "continuation"):
            _check_count(name, getattr(self, name), least=0)
        if self.shuffle_window is not None:
            _check_count("shuffle_window", self.shuffle_window, least=1)
        for name in ("record_transform", "transform", "train_transform"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise _bad(name, value, "give a function of (features, labels)")
        factors = self.scale.values() if isinstance(self.scale, Mapping) else [self.scale]
        for factor in factors:
            if factor is not None and (isinstance(factor, bool) or not isinstance(factor, (int, float))):
                raise _bad("scale", self.scale, "give a number, or a mapping from feature names to numbers")
        if not callable(self.start_step):
            _check_count("start_step", self.start_step, least=0)


class FactoryOptions(TypedDict, total=False):
    """The fields of `InputOptions`, as type checkers and editors see the keyword arguments of the factories."""

    global_batch_size: Required[int]
    eval_batch_size: int | None
    seed: int
    shuffle: bool
    epochs: int | None
    drop_remainder: bool
    shard_policy: str
    worker_seeds: str
    shuffle_window: int | None
    scale: float | Mapping[str, float] | None
    record_transform: Callable[[Any, Any], tuple[Any, Any]] | None
    transform: Callable[[Any, Any], tuple[Any, Any]] | None
    train_transform: Callable[[Any, Any], tuple[Any, Any]] | None
    memory_limit: int
    prefetch: int
    start_step: int | Callable[[], int]
    origin: int
    merge_remainder: bool
    continuation: int


def make_options(factory: str, options: Mapping[str, Any]) -> InputOptions:
    """Return the common options from a factory's keyword arguments.

    Raises:
        InputError: An option is unknown, or global_batch_size is missing.
    """
    known = [field.name for field in fields(InputOptions)]
    for name in options:
        if name not in known:
            # The whole batch is meant, not that of an evaluation, whose name is as close.
            close = "global_batch_size" if name == "batch_size" else nearest(name, known)
            hint = f"did you mean {close}?" if close else f"the shared options are {', '.join(known)}"
            raise InputError(f"{factory} has no option {name!r}", code="argument/unknown-name", hint=hint)
    if "global_batch_size" not in options:
        raise InputError(
            f"{factory} needs global_batch_size",
            code="argument/missing",
            hint="give the number of records per step, over all workers",
        )
    return InputOptions(**options)


def _bad(name: str, value: object, hint: str) -> InputError:
    return InputError(f"A value that {name} cannot have", code="argument/bad-value", found=f"{name}={value}", hint=hint)


def _check_count(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _bad(name, repr(value), f"give a whole number of at least {least}")
