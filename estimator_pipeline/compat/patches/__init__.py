"""Patches of bugs in tf.estimator, on TensorFlow 2.15 and later.

`compat.install()` applies them; programs need no change. Each patch has a name, by which it can be disabled, and is
listed by `compat.status()`. Each module has one patch, with three names: `NAME`, `WHAT` (one line) and `apply()`, which
patches TensorFlow or the estimator package once.

`install(patches=…)` or the variable ESTIMATOR_PIPELINE_PATCHES selects the patches:

=================== ==========================================
`all` (the default) all patches
`none`              no patch
`-NAME,-NAME`       all but these
`NAME,NAME`         only these
=================== ==========================================

Submitted scripts may have the variable's old name, ESTIMATOR_PIPELINE_REPAIRS, and old names of patches. Both work.
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
    graph_seed,
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
    shard_order,
    shared_embeddings,
    short_waits,
    sigterm,
    spawned_children,
    sync_replicas,
    train_and_evaluate,
    train_op,
    v2_summaries,
    warm_start,
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
        name: The name by which the patch is selected.
        description: The bug and the fix.
        on: Whether it is applied in this process.
    """

    name: str
    description: str
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
    shard_order,
    shared_embeddings,
    warm_start,
    v2_summaries,
    graph_seed,
)
NAMES = tuple(module.NAME for module in _MODULES)

# Old name -> new name.
OLD_NAMES = {
    "kept-evaluation": cached_evaluation.NAME,
    "whole-rounds": even_batches.NAME,
    "own-model-dir": model_dir_lock.NAME,
    "pandas-text": pandas_strings.NAME,
    "keras-averages": batch_norm_averages.NAME,
}


def chosen(patches: str | Sequence[str] | None, environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the names of the selected patches.

    Args:
        patches: As in the table above, as a string or as a list of names; None: the setting in `environ`.
        environ: Where ESTIMATOR_PIPELINE_PATCHES is looked up, or ESTIMATOR_PIPELINE_REPAIRS if the former is unset or
            empty; `os.environ` by default.

    Raises:
        CompatError: There is no such patch, or names to apply and names to disable are mixed.
    """
    source = "patches"
    if patches is None:
        environ = os.environ if environ is None else environ
        source = VARIABLE if environ.get(VARIABLE) or not environ.get(OLD_VARIABLE) else OLD_VARIABLE
        patches = environ.get(source, "")
    words = patches.split(",") if isinstance(patches, str) else list(patches)
    words = [_current_name(word.strip()) for word in words if word.strip()]
    if words in ([], ["all"]):
        # An empty list selects no patch; an empty string is the default.
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
            f"{source}={','.join(words)} mixes names to apply and names to disable",
            code="argument/conflict",
            hint="use either NAME,NAME (only these) or -NAME,-NAME (all but these)",
        )
    if without:
        return frozenset(NAMES) - {word[1:] for word in without}
    return frozenset(words)


def _current_name(word: str) -> str:
    """Replace an old name, optionally after "-", with the new one."""
    name = word.removeprefix("-")
    return word.removesuffix(name) + OLD_NAMES.get(name, name)


def apply(names: frozenset[str]) -> None:
    """Apply the patches with these names, after TensorFlow is imported and `tf.estimator` is restored."""
    for module in _MODULES:
        if module.NAME in names and module.NAME not in _applied:
            patch: Callable[[], None] = module.apply
            patch()
            _applied.add(module.NAME)


def listed() -> tuple[Patch, ...]:
    """Return all patches, and whether each is applied in this process."""
    return tuple(Patch(module.NAME, module.WHAT, is_on(module.NAME)) for module in _MODULES)
