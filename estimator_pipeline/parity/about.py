"""What a comparison ran, told as plain values: the job as it was trained, and what was allowed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline.job import Job
from estimator_pipeline.parity.compare import BIT_EQUAL
from estimator_pipeline.parity.tolerances import Tolerances

__all__ = ["about"]


def about(
    path: str | os.PathLike[str], job: Job, *, engines: Sequence[str], settings: Sequence[str], tolerances: Tolerances
) -> dict[str, Any]:
    """What was run, by name.

    Args:
        path: the job file.
        job: the job as it was trained.
        engines: by which engines.
        settings: changes to the job file that were asked for.
        tolerances: what may differ by how much; what training starts from must be bit-equal.
    """
    data = job.input.model_dump()
    return {
        "job": os.fspath(path),
        "settings": list(settings),
        "engines": list(engines),
        "workers": job.cluster.num_training_tasks,
        "steps": job.train.max_steps,
        "model": job.model.name or job.model.function,
        "optimizer": _words(job.model.optimizer.model_dump()),
        "strategy": job.run.train_distribute,
        "global_batch_size": data.get("global_batch_size"),
        "run.seed": job.run.seed,
        "input.seed": data.get("seed"),
        "tolerances": {
            "initial values": str(BIT_EQUAL),
            **tolerances.told(),
        },
    }


def _words(section: Mapping[str, Any]) -> str:
    """`name: adam`, `learning_rate: 0.01` -> "adam, learning_rate 0.01"; what is not set is left out."""
    rest = dict(section)
    head = rest.pop("name", None) or rest.pop("kind", None)
    words = [] if head is None else [str(head)]
    for name, value in rest.items():
        if isinstance(value, Mapping):
            words += [f"{name} ({_words(value)})"] if value else []
        elif value is not None:
            words.append(f"{name} {value}")
    return ", ".join(words)
