"""The state of a training from one engine to another: `estimator-pipeline migrate checkpoint`.

    done = migrate_checkpoint("runs/estimator", to="keras", job="job.yaml", settings=["run.model_dir=runs/keras"])
    print(done)

The steps: what the checkpoint holds (`read`), what the target needs
(`targets`), which is which and what becomes of each
(`plan`), and the target, written as its engine would have written it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.draft import Choices, MigrationPlan
from estimator_pipeline.migrate.checkpoints.result import MigratedCheckpoint

__all__ = ["TARGETS", "migrate_checkpoint"]

TARGETS = ("keras", "keras3", "estimator")

Function = str | Callable[..., Any]


def migrate_checkpoint(
    source: str | os.PathLike[str],
    *,
    to: str,
    job: str | os.PathLike[str] | None = None,
    settings: Sequence[str] = (),
    model: Function | None = None,
    estimator: Function | None = None,
    input_fn: Function | None = None,
    source_model: str | None = None,
    output: str | os.PathLike[str] | None = None,
    mapping: Mapping[str, str] | str | os.PathLike[str] | None = None,
    mapping_out: str | os.PathLike[str] | None = None,
    allow_leftover: Sequence[str] = (),
    initialize: Sequence[str] = (),
    accept: Sequence[str] = (),
    drop_optimizer_state: bool = False,
    use_ema_weights: bool = False,
    learning_rate: float | None = None,
    momentum: str | None = None,
    step: int | None = None,
    overwrite: bool = False,
) -> MigratedCheckpoint:
    """Move the state of a training to another engine: weights, optimizer slots, the step, moving statistics.

    The target is a job file, or functions of a program: `model` for Keras, `estimator` and `input_fn` for an Estimator.
    A target of the other Keras than this process has, and Keras 3 from a process that has neither yet, is made in a
    process of its own; functions are named as text then.

    Args:
        source: a model directory, whose latest checkpoint is meant, or a checkpoint; a `.keras` or `.weights.h5` file.
        to: "keras" (Keras 2), "keras3" or "estimator".
        job: a job file; its model and optimizer are the target's, its model_dir the place to write to.
        settings: changes to it, as `--set` takes them.
        model: a function that returns a compiled, built Keras model, or its name: `file.py:function`.
        estimator: a function that returns an Estimator, or its name.
        input_fn: the training's input function, or its name; the Estimator's graph is built on what it gives.
        source_model: the name of a function that returns the Keras model of a `.weights.h5` source.
        output: a folder: the checkpoint is written there and named its latest. For Keras also a `.keras` or a
            `.weights.h5` file. With a job: another folder than its model_dir.
        mapping: names, or a YAML file of them: Keras weight -> the other side's variable; where both are Keras, the
            target's -> the checkpoint's.
        mapping_out: where the whole mapping is written; beside the output by default.
        allow_leftover: names (or patterns with `*`) of variables of the checkpoint that are left behind.
        initialize: names of variables of the target that begin anew.
        accept: names of variables of the checkpoint that do not fit the step or the target's settings, and are right.
        drop_optimizer_state: the optimizer begins anew.
        use_ema_weights: weights are their moving averages.
        learning_rate: the constant one that was trained with, where a momentum has to be converted.
        momentum: what the checkpoint's momentum sums up, "v1" or "keras", where its names do not say it.
        step: the global step, where the checkpoint does not say it.
        overwrite: whether what is at the output may be replaced.

    Returns:
        What was done with each variable.

    Raises:
        ConfigError: something does not fit; the message names all of it. Nothing has been written then.
    """
    from estimator_pipeline.migrate.checkpoints import pipeline as steps

    asked = steps.CheckpointRequest(
        source=os.fspath(source),
        to=to,
        job=None if job is None else os.fspath(job),
        settings=tuple(settings),
        model=model,
        estimator=estimator,
        input_fn=input_fn,
        source_model=source_model,
        output=None if output is None else os.fspath(output),
        mapping_out=None if mapping_out is None else os.fspath(mapping_out),
        overwrite=overwrite,
    )
    steps.check(asked)
    if mapping is not None and not isinstance(mapping, Mapping):
        from estimator_pipeline.job.name_mapping import read_mapping

        mapping = read_mapping(Path(mapping))
    if momentum not in (None, "v1", "keras"):
        raise ConfigError(f"momentum is {momentum!r}", code="argument/bad-value", found="allowed: v1, keras")
    choices = Choices(
        mapping=mapping or {},
        allow_leftover=tuple(allow_leftover),
        initialize=tuple(initialize),
        accept=tuple(accept),
        drop_optimizer_state=drop_optimizer_state,
        use_ema_weights=use_ema_weights,
        learning_rate=learning_rate,
        momentum=momentum,
        step=step,
    )
    if steps.needs_another_process(to):
        return MigratedCheckpoint.from_dict(steps.in_a_process_of_its_own(asked, choices))
    read, plan, written = steps.migrate(asked, choices)
    return _told(asked.to, read, plan, *written)


def _told(to: str, source: str, plan: MigrationPlan, output: str, mapping_file: str) -> MigratedCheckpoint:
    return MigratedCheckpoint(
        source=source,
        to=to,
        output=output,
        step=plan.step,
        rows=plan.rows,
        mapping=plan.weights,
        mapping_file=mapping_file,
        notes=plan.notes,
    )
