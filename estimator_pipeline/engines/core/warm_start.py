"""Warm start: the initial values of a new run's variables, from a checkpoint of a run of the same engine.

Variables are matched by name, as with `tf.estimator.WarmStartSettings`. Only the model's variables are: neither
optimizer slots nor the global step. Every task reads the checkpoint, so all start with the same values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from estimator_pipeline import compat
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.sections.run import WarmStartSection
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few

__all__ = ["checkpoint_of", "choose"]

_FIELD = "run.warm_start_from"
# The largest number of names in a message.
_MOST = 10
Shapes = Mapping[str, Sequence[int]]


def checkpoint_of(section: WarmStartSection) -> str:
    """Return the path of the checkpoint; of a model directory, that of its latest one.

    Raises:
        ConfigError: The path has no checkpoint.
    """
    tf, path = compat.tensorflow(), section.path.rstrip("/")
    if tf.io.gfile.exists(f"{path}.index"):
        return path
    if not tf.io.gfile.isdir(path):
        folder = os.path.dirname(path) or "."
        names = sorted(tf.io.gfile.listdir(folder)) if tf.io.gfile.isdir(folder) else []
        beside = [os.path.join(folder, name[: -len(".index")]) for name in names if name.endswith(".index")]
        raise ConfigError(
            f"{_FIELD}: {section.path} is neither a checkpoint nor a model directory",
            code="file/not-found",
            found=f"checkpoints beside it: {few(beside)}" if beside else f"no checkpoint in {folder}",
            hint="name a checkpoint without a suffix, such as runs/old/model.ckpt-200, or a model directory",
        )
    latest = tf.train.latest_checkpoint(path)
    if latest is None:
        raise ConfigError(
            f"{_FIELD}: {section.path} has no checkpoint",
            code="file/not-found",
            found="a folder whose file `checkpoint` is missing or names no existing checkpoint",
            hint="name a model directory of a run of the same engine, or a checkpoint",
        )
    return str(latest)


def choose(context: TaskContext, checkpoint: str, model: Shapes, saved: Shapes) -> dict[str, str]:
    """Return the variables to restore: name -> its name in the checkpoint. The chief logs which ones.

    Args:
        context: This task.
        checkpoint: Path of the checkpoint.
        model: The new model's variables: name -> shape.
        saved: The checkpoint's variables: name -> shape.

    Raises:
        ConfigError: The section names variables that do not exist, or nothing matches.
    """
    section = context.options.warm_start_from
    assert section is not None
    both = f"variables of the model: {few(model, _MOST)}; of {checkpoint}: {few(saved, _MOST)}"
    selected = [name for name in model if any(re.match(pattern, name) for pattern in section.variables)]
    for new, old in section.map.items():
        if new not in selected or old not in saved:
            problem = (
                f"the model has no variable {new}" if new not in model
                else f"{_FIELD}.variables does not match {new}" if new not in selected
                else f"{checkpoint} has no variable {old}"
            )  # fmt: skip
            raise ConfigError(
                f"{_FIELD}.map has {new}: {old}, and {problem}",
                code="argument/unknown-name",
                found=both,
                hint="correct the names; the new one is before the colon",
            )
    names = {name: section.map.get(name, name) for name in selected}
    missing = [name for name, old in names.items() if old not in saved]
    other = [name for name, old in names.items() if old in saved and list(saved[old]) != list(model[name])]
    taken = {name: old for name, old in names.items() if name not in missing and name not in other}
    if not taken:
        raise ConfigError(
            f"{_FIELD}: no variable of the model gets its initial value from {checkpoint}",
            code="argument/unknown-name",
            found=both,
            hint=f"correct {_FIELD}.variables, which match the start of a name, or map the names: {_FIELD}.map. A "
            "checkpoint of a different engine can be converted: estimator-pipeline migrate checkpoint",
        )
    if context.is_chief:
        shapes = [f"{name} {list(model[name])}, there {list(saved[names[name]])}" for name in other]
        rest = [
            ("other shape", shapes),
            ("not in the checkpoint", missing),
            ("not selected", [name for name in model if name not in selected]),
        ]
        keep = "; ".join(f"{reason}: {few(which, _MOST)}" for reason, which in rest if which)
        logger.info(
            "Warm start from %s: %d of %d variables take its values%s",
            *(checkpoint, len(taken), len(model), f". The others keep their initial values ({keep})" if keep else ""),
        )
    return taken
