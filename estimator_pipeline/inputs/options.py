"""The options that all `input_fn` factories share."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs import sampler
from estimator_pipeline.inputs.sharding import check_policy

__all__ = ["InputOptions", "make_options"]


@dataclass(frozen=True)
class InputOptions:
    """What every factory takes besides the data itself.

    Args:
        global_batch_size: Records that all replicas together read at a training step; each replica gets its
            equal part, and a size that can't be shared equally is refused when the `input_fn` is called.
            Under a parameter server each worker steps on its own, and reads a batch of this size at each of
            its steps.
        eval_batch_size: The same for evaluation, the most that a step reads; by default global_batch_size.
        seed: Seed of the order of the training records.
        shuffle: Whether training records are shuffled, anew in each epoch. Evaluation never is.
        epochs: Epochs of the training stream; None for a stream without an end (the steps are then what ends
            it).
        drop_remainder: For a finite stream, whether the records that fill no global batch at its end are
            dropped or read as a smaller batch.
        shard_policy: "auto", "file", "data", "hint" or "off": see :mod:`estimator_pipeline.inputs.sharding`.
        worker_seeds: "same", or with the policy "off" "distinct": each worker reads everything in its own
            order.
        shuffle_window: Data that is not held in memory is shuffled by file, then within windows of so many
            records of that sequence, so that a file is read in one go; None shuffles all records together.
        scale: A factor for the features, which become float32: 1/255 brings bytes to [0, 1]. A number holds
            for each numeric feature, a mapping from name to number for those it names.
        record_transform: `f(features, labels)` applied to each record before it is batched; it must bring
            records of different shapes to one. TensorFlow operations, and for an order that can be repeated
            no random ones but the stateless.
        transform: `f(features, labels)` applied to each batch, in training and in evaluation.
        train_transform: As `transform`, in training alone (augmentation), before it.
        memory_limit: Bytes; data that decodes to less is held in memory.
        prefetch: Batches to have ready ahead of the step.
        start_step: The global step at which training begins to read, or a function that gives it when the
            `input_fn` is called (the step of the latest checkpoint, say).

    Raises:
        InputError: A value that can't work.
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

    def __post_init__(self) -> None:
        sampler.check_global_batch(self.global_batch_size, 1)
        if self.eval_batch_size is not None:
            sampler.check_global_batch(self.eval_batch_size, 1)
        # The order checks its own values; how many records there will be makes no difference to that.
        sampler.IndexSampler(1, seed=self.seed, epochs=self.epochs)
        check_policy(self.shard_policy)
        if self.shard_policy == "hint" and self.epochs is not None and not self.drop_remainder:
            raise _bad(
                "drop_remainder",
                "False with shard_policy='hint'",
                "TensorFlow cannot share out a smaller last batch: drop it, or use shard_policy='data'",
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
        for name in ("memory_limit", "prefetch"):
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


def make_options(factory: str, options: Mapping[str, Any]) -> InputOptions:
    """The shared options out of a factory's keyword arguments.

    Raises:
        InputError: An option is not known, or global_batch_size is missing.
    """
    known = [field.name for field in fields(InputOptions)]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the shared options are {', '.join(known)}"
            raise InputError(f"{factory} has no option {name!r}", code="argument/unknown-name", hint=hint)
    if "global_batch_size" not in options:
        raise InputError(
            f"{factory} needs global_batch_size",
            code="argument/missing",
            hint="give the number of records that all workers together read at a step",
        )
    return InputOptions(**options)


def _bad(name: str, value: object, hint: str) -> InputError:
    return InputError(f"A value that {name} cannot have", code="argument/bad-value", found=f"{name}={value}", hint=hint)


def _check_count(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _bad(name, repr(value), f"give a whole number of at least {least}")
