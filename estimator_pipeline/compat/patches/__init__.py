"""Repairs: faults of tf.estimator itself, the same on 2.15 and later, mended under every legacy program.

`compat.install()` applies them; a program needs no edit. Each has a name, can be left out by it, and is listed by
`compat.status()`. One module a repair, with three names: `NAME`, `WHAT` (one line) and `apply()`, which patches
TensorFlow or the estimator package once.

Which are applied is said by `install(repairs=…)`, or by ESTIMATOR_PIPELINE_REPAIRS:

=================== ==========================================
`all` (the default) every one
`none`              none
`-NAME,-NAME`       all but these
`NAME,NAME`         these alone
=================== ==========================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from estimator_pipeline.compat.patches import (
    baseline_features,
    best_exporter,
    common_end,
    durable_checkpoints,
    early_stopping,
    embedding_gathers,
    endless_evaluation,
    evaluator_strategy,
    every_checkpoint,
    gather_sizes,
    gradient_packs,
    graph_text,
    in_memory_evaluator,
    init_fn,
    literal_paths,
    lost_peers,
    mirrored_cpu,
    missing_peers,
    moved_names,
    optimizer_objects,
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
from estimator_pipeline.compat.patches import batch_norm_averages as keras_averages
from estimator_pipeline.compat.patches import cached_evaluation as kept_evaluation
from estimator_pipeline.compat.patches import even_batches as whole_rounds
from estimator_pipeline.compat.patches import model_dir_lock as own_model_dir
from estimator_pipeline.compat.patches import pandas_strings as pandas_text
from estimator_pipeline.compat.patches.applied import _applied, is_on
from estimator_pipeline.errors import CompatError

__all__ = ["NAMES", "VARIABLE", "Repair", "apply", "chosen", "listed"]

VARIABLE = "ESTIMATOR_PIPELINE_REPAIRS"


@dataclass(frozen=True)
class Repair:
    """One repair, as `compat.status()` lists it.

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
    kept_evaluation,
    whole_rounds,
    evaluator_strategy,
    missing_peers,
    lost_peers,
    common_end,
    refused_steps,
    short_waits,
    init_fn,
    sync_replicas,
    sigterm,
    early_stopping,
    own_model_dir,
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
    keras_averages,
    weights_h5,
    literal_paths,
    pandas_text,
    graph_text,
    spawned_children,
)
NAMES = tuple(module.NAME for module in _MODULES)


def chosen(repairs: str | Sequence[str] | None, environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """The names of the repairs that are asked for.

    Args:
        repairs: as in the table above, as one text or as a list of names; None: what `environ` says.
        environ: where ESTIMATOR_PIPELINE_REPAIRS is looked up; `os.environ` by default.

    Raises:
        CompatError: a name that no repair has, or names to keep and names to leave out mixed.
    """
    source = "repairs"
    if repairs is None:
        source, repairs = VARIABLE, (os.environ if environ is None else environ).get(VARIABLE, "")
    words = repairs.split(",") if isinstance(repairs, str) else list(repairs)
    words = [word.strip() for word in words if word.strip()]
    if words in ([], ["all"]):
        # An empty list is a choice of its own; an empty text is none.
        return frozenset(NAMES) if isinstance(repairs, str) or words else frozenset()
    if words == ["none"]:
        return frozenset()
    without = [word for word in words if word.startswith("-")]
    unknown = [word for word in words if word.lstrip("-") not in NAMES]
    if unknown:
        raise CompatError(
            f"{source} names {', '.join(unknown)}",
            code="argument/unknown-name",
            found=f"the repairs are {', '.join(NAMES)}",
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


def apply(names: frozenset[str]) -> None:
    """Applies the repairs with these names. TensorFlow has been imported, and `tf.estimator` is in place."""
    for module in _MODULES:
        if module.NAME in names and module.NAME not in _applied:
            patch: Callable[[], None] = module.apply
            patch()
            _applied.add(module.NAME)


def listed() -> tuple[Repair, ...]:
    """Every repair, and whether it is applied in this process."""
    return tuple(Repair(module.NAME, module.WHAT, is_on(module.NAME)) for module in _MODULES)
