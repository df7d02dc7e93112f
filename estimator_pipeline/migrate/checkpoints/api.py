"""Migration of training state between engines: `estimator-pipeline migrate checkpoint`.

    done = migrate_checkpoint("runs/estimator", to="keras", job="job.yaml", settings=["run.model_dir=runs/keras"])
    print(done)

The steps: read the checkpoint (`read`), build the target (`targets`), match the variables and plan their values
(`plan`), and write the target in the format of its engine.
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
    """Migrate the state of a training to a different engine.

    The state consists of weights, optimizer slots, the step and moving statistics.

    The target is a job file, or functions of a program: `model` for Keras, `estimator` and `input_fn` for an Estimator.
    If this process has loaded the other Keras, or no Keras and the target is Keras 3, a subprocess does the migration.
    In this case, name functions as text.

    Args:
        source: A checkpoint, a model directory (its latest checkpoint is used), or a `.keras` or `.weights.h5` file.
        to: "keras" (Keras 2), "keras3" or "estimator".
        job: A job file with the target's model, optimizer, and model_dir as the output.
        settings: Overrides of job fields, as in `--set`.
        model: A function that returns a compiled, built Keras model, or its name: `file.py:function`.
        estimator: A function that returns an Estimator, or its name.
        input_fn: The input function of the training, or its name. The graph of the Estimator is built on its data.
        source_model: The name of a function that returns the Keras model of a `.weights.h5` source.
        output: A folder, in which the checkpoint becomes the latest one. For Keras also a `.keras` or `.weights.h5`
            file. With a job, it replaces the job's model_dir.
        mapping: Names, or a YAML file of names: Keras weight -> variable of the other side. If both sides are Keras:
            weight of the target -> weight of the checkpoint.
        allow_leftover: Names (or patterns with `*`) of variables of the checkpoint that are not migrated.
        initialize: Names of variables of the target that keep their initial values.
        accept: Names of variables of the checkpoint that are correct although they do not match the step or the
            target's settings.
        drop_optimizer_state: Whether the optimizer starts with its initial state.
        use_ema_weights: Whether the moving averages replace the weights.
        learning_rate: The constant learning rate of the training, needed to convert momentum.
        momentum: The convention of the checkpoint's momentum, "v1" or "keras", if its names are ambiguous.
        step: The global step, if the checkpoint has none.
        overwrite: Whether to replace an existing output.

    Returns:
        The result for each variable.

    Raises:
        ConfigError: The checkpoint does not fit the target. The message lists all problems, and nothing is written.
    """
    from estimator_pipeline.migrate.checkpoints import pipeline as steps

    request = steps.CheckpointRequest(
        source=os.fspath(source),
        to=to,
        job=None if job is None else os.fspath(job),
        settings=tuple(settings),
        model=model,
        estimator=estimator,
        input_fn=input_fn,
        source_model=source_model,
        output=None if output is None else os.fspath(output),
        overwrite=overwrite,
    )
    steps.check(request)
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
    if steps.needs_subprocess(to):
        return MigratedCheckpoint.from_dict(steps.migrate_in_subprocess(request, choices))
    read, plan, written = steps.migrate(request, choices)
    return _result(request.to, read, plan, *written)


def _result(to: str, source: str, plan: MigrationPlan, output: str, mapping_file: str) -> MigratedCheckpoint:
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
