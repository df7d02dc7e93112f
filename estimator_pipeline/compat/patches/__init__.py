"""Patches for faults of tf.estimator itself, the same on 2.15 and later, under every legacy program.

`compat.install()` applies them; a program needs no edit. Each has a name, can be left out by it, and is listed by
`compat.status()`. One module a patch, with three names: `NAME`, `WHAT` (one line) and `apply()`, which patches
TensorFlow or the estimator package once.

`install(patches=…)` says which are applied, or the variable ESTIMATOR_PIPELINE_PATCHES:

=================== ==========================================
`all` (the default) every one
`none`              none
`-NAME,-NAME`       all but these
`NAME,NAME`         these alone
=================== ==========================================

Submitted scripts hold the variable's old name, ESTIMATOR_PIPELINE_REPAIRS, and old names of patches. Both are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from estimator_pipeline.compat.patches import (
    baseline_features,
    batch_norm_averages,
    best_exporter,
    cached_evaluation,
    column_classes,
    common_end,
    device_filters,
    durable_checkpoints,
    early_stopping,
    embedding_gathers,
    endless_evaluation,
    evaluator_strategy,
    even_batches,
    every_checkpoint,
    gather_sizes,
    gradient_packs,
    graph_text,
    in_memory_evaluator,
    init_fn,
    layer_apply,
    literal_paths,
    lost_peers,
    mirrored_cpu,
    missing_peers,
    model_dir_lock,
    moved_names,
    optimizer_objects,
    pandas_strings,
    refused_steps,
    restored_shapes,
    short_waits,
    sigterm,
    spawned_children,
    sync_replicas,
    train_and_evaluate,
    train_op,
    weights_h5,
)
from estimator_pipeline.compat.patches.applied import _applied, is_on
from estimator_pipeline.errors import CompatError

__all__ = ["NAMES", "OLD_NAMES", "OLD_VARIABLE", "VARIABLE", "Patch", "apply", "chosen", "listed"]

VARIABLE = "ESTIMATOR_PIPELINE_PATCHES"
OLD_VARIABLE = "ESTIMATOR_PIPELINE_REPAIRS"


@dataclass(frozen=True)
class Patch:
    """One patch, as `compat.status()` lists it.

    Attributes:
        name: by which it is left out.
        what: the fault and what is done about it.
        on: whether it is applied in this process.
    """

    name: str
    what: str
    on: bool = False


# In the order in which they are applied.
_MODULES = (
    train_and_evaluate,
    every_checkpoint,
    cached_evaluation,
    even_batches,
    evaluator_strategy,
    missing_peers,
    lost_peers,
    common_end,
    refused_steps,
    short_waits,
    device_filters,
    init_fn,
    sync_replicas,
    sigterm,
    early_stopping,
    model_dir_lock,
    durable_checkpoints,
    best_exporter,
    in_memory_evaluator,
    baseline_features,
    mirrored_cpu,
    gather_sizes,
    embedding_gathers,
    endless_evaluation,
    gradient_packs,
    moved_names,
    optimizer_objects,
    restored_shapes,
    train_op,
    batch_norm_averages,
    weights_h5,
    literal_paths,
    pandas_strings,
    graph_text,
    spawned_children,
    layer_apply,
    column_classes,
)
NAMES = tuple(module.NAME for module in _MODULES)

# Old name -> today's.
OLD_NAMES = {
    "kept-evaluation": cached_evaluation.NAME,
    "whole-rounds": even_batches.NAME,
    "own-model-dir": model_dir_lock.NAME,
    "pandas-text": pandas_strings.NAME,
    "keras-averages": batch_norm_averages.NAME,
}


def chosen(patches: str | Sequence[str] | None, environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """The names of the patches that are asked for.

    Args:
        patches: as in the table above, as one text or as a list of names; None: what `environ` says.
        environ: where ESTIMATOR_PIPELINE_PATCHES is looked up, and ESTIMATOR_PIPELINE_REPAIRS where that one is not
            set or empty; `os.environ` by default.

    Raises:
        CompatError: a name that no patch has, or names to keep and names to leave out mixed.
    """
    source = "patches"
    if patches is None:
        environ = os.environ if environ is None else environ
        source = VARIABLE if environ.get(VARIABLE) or not environ.get(OLD_VARIABLE) else OLD_VARIABLE
        patches = environ.get(source, "")
    words = patches.split(",") if isinstance(patches, str) else list(patches)
    words = [_todays(word.strip()) for word in words if word.strip()]
    if words in ([], ["all"]):
        # An empty list is a choice of its own; an empty text is none.
        return frozenset(NAMES) if isinstance(patches, str) or words else frozenset()
    if words == ["none"]:
        return frozenset()
    without = [word for word in words if word.startswith("-")]
    unknown = [word for word in words if word.lstrip("-") not in NAMES]
    if unknown:
        raise CompatError(
            f"{source} names {', '.join(unknown)}",
            code="argument/unknown-name",
            found=f"the patches are {', '.join(NAMES)}",
        )
    if without and len(without) < len(words):
        raise CompatError(
            f"{source}={','.join(words)} mixes names to keep and names to leave out",
            code="argument/conflict",
            hint="either NAME,NAME (these alone) or -NAME,-NAME (all but these)",
        )
    if without:
        return frozenset(NAMES) - {word[1:] for word in without}
    return frozenset(words)


def _todays(word: str) -> str:
    """A name, or "-" and a name, with today's name for an old one."""
    name = word.removeprefix("-")
    return word.removesuffix(name) + OLD_NAMES.get(name, name)


def apply(names: frozenset[str]) -> None:
    """Applies the patches with these names. TensorFlow has been imported, and `tf.estimator` is in place."""
    for module in _MODULES:
        if module.NAME in names and module.NAME not in _applied:
            patch: Callable[[], None] = module.apply
            patch()
            _applied.add(module.NAME)


def listed() -> tuple[Patch, ...]:
    """Every patch, and whether it is applied in this process."""
    return tuple(Patch(module.NAME, module.WHAT, is_on(module.NAME)) for module in _MODULES)
