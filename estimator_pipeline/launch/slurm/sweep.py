"""Sweeps: one job with different fields in each element of an array."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job, load_job
from estimator_pipeline.utils.io_errors import code_of

__all__ = ["MOST_ELEMENTS", "load_elements", "read_sweep"]

MOST_ELEMENTS = 1000
"""Slurm's MaxArraySize is 1001 by default."""


def read_sweep(path: str | Path) -> list[list[str]]:
    """Read the changes of each element, in the form of `--set`.

    Args:
        path: A YAML file: a list of mappings from dotted keys to values, one mapping per element; or one mapping from
            dotted keys to lists of values, whose Cartesian product is used (the last key varies fastest).

    Raises:
        ConfigError: The file cannot be read, or has neither form.
    """
    try:
        sweep = YAML(typ="safe", pure=True).load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigError(
            f"the sweep {path} cannot be read.",
            code=code_of(error),
            found=" ".join(str(error).split()),
            hint="name a YAML file.",
        ) from None
    if isinstance(sweep, dict) and sweep and all(isinstance(values, list) and values for values in sweep.values()):
        sweep = [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
    if not isinstance(sweep, list) or not sweep or not all(isinstance(element, dict) for element in sweep):
        raise ConfigError(
            f"the sweep {path} has no elements.",
            code="file/bad-format",
            found=f"{sweep!r:.80}",
            hint="write a list of mappings (- {train.max_steps: 100}), or one mapping of lists "
            "(model.optimizer.learning_rate: [0.1, 0.01]).",
        )
    if len(sweep) > MOST_ELEMENTS:
        raise ConfigError(
            f"the sweep {path} has {len(sweep)} elements.",
            code="file/bad-format",
            found=f"allowed: up to {MOST_ELEMENTS}",
            hint="split it into several files.",
        )
    return [[f"{key}={_yaml(value)}" for key, value in element.items()] for element in sweep]


def load_elements(job: Job, file: Path, settings: Sequence[str], sweep: Path) -> list[Job]:
    """Return the elements of a sweep over a job, each with a separate model directory.

    Args:
        job: The job.
        file: Its job file.
        settings: The changes of --set.
        sweep: See `read_sweep`.

    Raises:
        ConfigError: The elements need different resources, or would train in the same model directory.
    """
    elements, base = [], job.run.model_dir.rstrip("/")
    for i, changes in enumerate(read_sweep(sweep)):
        model_dir = "run.model_dir=" + json.dumps(f"{base}/{i}")
        element = load_job(file, overrides=[*settings, model_dir, *changes])
        if element.cluster != job.cluster or element.slurm != job.slurm:
            raise ConfigError(
                f"element {i} of the sweep {sweep} changes the sections cluster or slurm.",
                code="job/conflict",
                found=", ".join(changes),
                hint="all elements of an array have the same tasks and resources; submit this job separately.",
            )
        elements.append(element)
    folders = [element.run.model_dir for element in elements]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"several elements of the sweep {sweep} would train in the same model directory.",
            code="job/conflict",
            found=twice,
            hint="set a different run.model_dir for each, or none: then the element's number is appended.",
        )
    return elements


def _yaml(value: Any) -> str:
    # JSON is YAML.
    return json.dumps(value, default=str)
