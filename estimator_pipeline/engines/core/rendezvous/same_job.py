"""Comparison of the jobs of a cluster's tasks.

TensorFlow does not compare them. A worker with a different learning rate, seed or batch size would train with the
others, and the resulting model would be wrong.

In synchronous training the tasks compare through the coordination service before the first step, so that each task
sees all others and raises the error. Without that service (parameter servers, and an evaluator in any cluster), the
chief publishes its job in the model directory, and each other task compares its job with it.

With a job file every difference is an error. In a program a difference may be intended, such as a seed per task or a
different checkpoint interval of the chief: differences that always make the result wrong are errors, others are
warnings.
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
from estimator_pipeline.engines.model_dir import run_identity as identities
from estimator_pipeline.errors import OtherJobError
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few
from estimator_pipeline.utils.version import __version__

# Name -> task -> value; the chief first.
Differences = dict[str, dict[str, Any]]

MODEL_DIR = "run.model_dir"
# The status of a task that has raised this error.
OTHER_JOB = "other job"
# Settings of a program that must not differ: sharding by this package's input functions, and the end of training.
OF_PROGRAMS = ("input.", "global_batch_size", "max_steps")
# Maximum number of differences in a message.
_MOST = 8
_HINT = (
    "start every task with the same job: the same file, the same --set options, the same versions (settings that "
    "differ by task, such as devices, threads and ports, are not compared)"
)
_PROGRAMS_HINT = "start every task with the same program, arguments and data"


# -- the settings of a job --------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Return the versions of the packages that train."""
    tf = compat.tensorflow()
    # Keras 3 has separate versions; tf_keras has TensorFlow's.
    keras = {"the version of keras": sys.modules["keras"].__version__} if compat.keras_generation() == 3 else {}
    return {
        "the version of estimator_pipeline": __version__,
        "the version of tensorflow": tf.__version__,
        **keras,
    }


def facts(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON values; long values as fingerprints."""
    return {name: identities.brief(value) for part in parts for name, value in identities.as_json(part).items()}


def of_task(identity: identities.RunIdentity, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a training task's job; `shared`: others that all tasks must share, from `facts`."""
    fixed = {name: value for name, value in identity.fixed.items() if name != identities.CONTENT}
    settings = facts(fixed, identities.content_by_kind(identity.fixed), identity.described)
    # A job file has different names for these.
    twice = {"seed": "run.seed", "global_batch_size": "input.global_batch_size"}
    return {name: value for name, value in settings.items() if twice.get(name) not in shared} | dict(shared)


def digest(value: Any) -> str:
    """Return a short digest of a plain value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


# -- comparison through the coordination service ----------------------------------------------------------------------


def agree(
    settings: Mapping[str, Any],
    tf_config: TFConfig,
    *,
    timeout: float,
    refused: Sequence[str] | None = None,
    apart: bool = False,
) -> None:
    """Check that all tasks of synchronous training have the same job, see `compare` and `judge`."""
    judge(compare(settings, tf_config, about="job", timeout=timeout, apart=apart), refused)


def compare(
    settings: Mapping[str, Any], tf_config: TFConfig, *, about: str, timeout: float, apart: bool = False
) -> Differences:
    """Return the settings that differ between the tasks of synchronous training, on all tasks the same; see `exchange`.

    Args:
        settings: The settings of this task's job, from `facts`.
        tf_config: Cluster and task of this process.
        about: Name of the comparison.
        timeout: Seconds to wait for the other tasks.
        apart: Whether this task has a different model directory than the chief.
    """
    documents = exchange(about, document(settings, apart), tf_config, timeout=timeout)
    differing: Differences = {}
    for task, other in documents.items():
        assert tf_config.cluster is not None
        chief = str(tf_config.cluster.chief)
        for name, ours, theirs in _differences(documents[chief]["facts"], **other):
            differing.setdefault(name, {chief: ours})[task] = theirs
    return differing


def exchange(about: str, value: Any, tf_config: TFConfig, *, timeout: float) -> dict[str, Any]:
    """Return the plain value of each training task; empty if there is one only, or no coordination service.

    Raises:
        WaitError: A task did not publish its value in time.
    """
    cluster = tf_config.cluster
    if cluster is None or len(cluster.training_tasks) < 2:
        return {}
    tasks = [str(task) for task in cluster.training_tasks]
    texts = coordination.exchange(about, json.dumps(value), task=str(tf_config.task), tasks=tasks, timeout=timeout)
    return {task: json.loads(text) for task, text in (texts or {}).items()}


def document(settings: Mapping[str, Any], apart: bool) -> dict[str, Any]:
    """Return a task's message about its job to the other tasks, see `compare`."""
    return {"facts": dict(settings), "apart": apart}


def refuse_other(
    status: Mapping[str, Any], settings: Mapping[str, Any] | None, tf_config: TFConfig, *, apart: bool
) -> None:
    """Raise OtherJobError if the chief's status describes a different job than `settings`, if any; see `agree`."""
    chiefs = status.get("job")
    if not chiefs or settings is None:
        return
    differing = {
        name: {str(status.get("chief", "the chief")): ours, str(tf_config.task): theirs}
        for name, ours, theirs in _differences(chiefs, settings, apart=apart)
    }
    judge(differing, None)


def _differences(chiefs: Mapping[str, Any], facts: Mapping[str, Any], *, apart: bool) -> list[tuple[str, Any, Any]]:
    # A shared folder may have several paths; its path is compared only if the folder is not shared.
    return [change for change in identities.differences(chiefs, facts) if apart or change[0] != MODEL_DIR]


def judge(differing: Differences, refused: Sequence[str] | None, **error: str) -> None:
    """Raise OtherJobError, or log a warning.

    Args:
        differing: See `compare`.
        refused: Prefixes of names that must not differ; other differences are warnings. None: nothing may differ.
        **error: Message and hint of the error, if they are not the usual ones.
    """
    wrong = {name: by for name, by in differing.items() if refused is None or name.startswith(tuple(refused))}
    if wrong:
        raise OtherJobError(
            error.get("message", "the tasks of this cluster were started with different jobs"),
            found=_words(wrong),
            hint=error.get("hint", _HINT if refused is None else _PROGRAMS_HINT),
        )
    if differing:
        logger.warning("The tasks of this cluster differ in settings that may differ: %s", _words(differing))


def _words(differing: Differences) -> str:
    """Return a sentence with each difference and its tasks."""
    texts = [
        f"{name}: {', '.join(f'{identities.in_short(value)} on {task}' for task, value in by.items())}"
        for name, by in sorted(differing.items())
    ]
    return few(texts, _MOST, separator="; ")
