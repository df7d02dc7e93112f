"""Whether the tasks of a cluster were started with one job: each says what its own is made of, and all compare.

Nothing in TensorFlow looks. A worker with another learning rate, seed or batch trains on with the others, and what
comes of it is no model that anybody asked for.

The training tasks of synchronous training compare through the coordination service before the first step, so that each
sees all and each refuses. Where there is no such service (parameter servers, and an evaluator anywhere) the chief's
word in the model directory says what the chief's job is made of, and each other task is held against it.

Of a job file every difference is refused. Programs may mean theirs: a seed for each task, a checkpoint interval of the
chief's own. Of these, what makes the result wrong whatever was meant is refused, and the rest is a warning.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.engines.model_dir.run_identity import (
    CONTENT,
    RunIdentity,
    as_json,
    brief,
    content_by_kind,
    differences,
    in_short,
)
from estimator_pipeline.errors import OtherJobError
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.version import __version__

__all__ = [
    "MODEL_DIR",
    "OF_PROGRAMS",
    "OTHER_JOB",
    "agree",
    "digest",
    "facts",
    "of_task",
    "refuse_other",
    "versions",
]

MODEL_DIR = "run.model_dir"
# How a task that refuses says so in its report.
OTHER_JOB = "other job"
# Of a program: who reads what by this package's own input functions, and where training ends.
OF_PROGRAMS = ("input.", "global_batch_size", "max_steps")
# So many differences are told one by one.
_MOST = 8
_HINT = (
    "start every task with the same job: the same file, the same --set options, the same versions (what has to differ "
    "by task, such as devices, threads and ports, is not compared)"
)
_PROGRAMS_HINT = "start every task with the same program, arguments and data"


def versions() -> dict[str, str]:
    """What trains, by version."""
    tf = compat.tensorflow()
    # Keras 3 has versions of its own; tf_keras has TensorFlow's.
    keras = {"the version of keras": sys.modules["keras"].__version__} if compat.keras_generation() == 3 else {}
    return {
        "the version of estimator_pipeline": __version__,
        "the version of tensorflow": tf.__version__,
        **keras,
    }


def facts(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """What a job is made of, as JSON gives it back; long values by their fingerprints."""
    return {name: brief(value) for part in parts for name, value in as_json(part).items()}


def agree(
    own: Mapping[str, Any],
    tf_config: TFConfig,
    *,
    timeout: float,
    about: str = "job",
    refused: Sequence[str] | None = None,
    apart: bool = False,
) -> None:
    """All training tasks of synchronous training have one job. Nothing, where there is no coordination service.

    Args:
        own: what this task's is made of, from :func:`facts`.
        tf_config: which task this is.
        timeout: seconds for the others to say theirs.
        about: what is compared.
        refused: how the names begin of what must not differ; a warning tells of the rest. None: nothing must differ.
        apart: whether this task's model directory is not the chief's.

    Raises:
        OtherJobError: they have not.
        WaitError: a task did not say in time what its job is made of.
    """
    cluster = tf_config.cluster
    if cluster is None or len(cluster.training_tasks) < 2:
        return
    tasks = [str(task) for task in cluster.training_tasks]
    told = coordination.exchange(about, document(own, apart), own=str(tf_config.task), tasks=tasks, timeout=timeout)
    if told is None:
        return
    said = {task: json.loads(text) for task, text in told.items()}
    chief = str(cluster.chief)
    found: dict[str, dict[str, Any]] = {}
    for task, other in said.items():
        for name, ours, theirs in _differences(said[chief]["facts"], other["facts"], apart=other["apart"]):
            found.setdefault(name, {chief: ours})[task] = theirs
    _judge(found, refused)


def document(own: Mapping[str, Any], apart: bool) -> str:
    """What a task says of its job to the others, see :func:`agree`."""
    return json.dumps({"facts": dict(own), "apart": apart})


def refuse_other(said: Mapping[str, Any], own: Mapping[str, Any] | None, tf_config: TFConfig, *, apart: bool) -> None:
    """Ends a task whose job is not the chief's, whose word says what that is made of.

    Args:
        said: the chief's word.
        own: what this task's is made of; None: not known.
        tf_config: which task this is.
        apart: whether its model directory is not the chief's.

    Raises:
        OtherJobError: it is not.
    """
    chiefs = said.get("job")
    if not chiefs or own is None:
        return
    found = {
        name: {str(said.get("chief", "the chief")): ours, str(tf_config.task): theirs}
        for name, ours, theirs in _differences(chiefs, own, apart=apart)
    }
    _judge(found, None)


def _differences(chiefs: Mapping[str, Any], own: Mapping[str, Any], *, apart: bool) -> list[tuple[str, Any, Any]]:
    # A folder may have several names; and a folder that is not shared is no other job's where its name is the same.
    return [one for one in differences(chiefs, own) if apart or one[0] != MODEL_DIR]


def digest(value: Any) -> str:
    """A short text for a plain value, the same for the same value alone."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def of_task(made_of: RunIdentity, shared: Mapping[str, Any]) -> dict[str, Any]:
    """What a training task's job is made of.

    Args:
        made_of: its run, for the run that goes on from its checkpoint.
        shared: what else all tasks must have in common, from :func:`facts`.
    """
    fixed = {name: value for name, value in made_of.fixed.items() if name != CONTENT}
    own = facts(fixed, content_by_kind(made_of.fixed), made_of.described)
    # A job file has names of its own for these.
    twice = {"seed": "run.seed", "global_batch_size": "input.global_batch_size"}
    return {name: value for name, value in own.items() if twice.get(name) not in shared} | dict(shared)


def _judge(found: Mapping[str, Mapping[str, Any]], refused: Sequence[str] | None) -> None:
    wrong = {name: by for name, by in found.items() if refused is None or name.startswith(tuple(refused))}
    if wrong:
        hint = _HINT if refused is None else _PROGRAMS_HINT
        raise OtherJobError(
            "the tasks of this cluster were started with different jobs", found=_words(wrong), hint=hint
        )
    if found:
        logger.warning("The tasks of this cluster differ, and train on all the same: %s", _words(found))


def _words(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Each difference, and whose it is."""
    told = [
        f"{name}: {', '.join(f'{in_short(value)} on {task}' for task, value in by.items())}"
        for name, by in sorted(found.items())
    ]
    more = [f"and {len(told) - _MOST} more"] if len(told) > _MOST else []
    return "; ".join(told[:_MOST] + more)
