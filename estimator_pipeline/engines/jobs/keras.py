"""A job on the engines keras (`Model.fit`) and keras3 (a custom loop): the same model, data and cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.distribute import strategies
from estimator_pipeline.distribute.strategies import Communication
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.jobs.build import BuiltJob, JobTask, explaining_mismatches
from estimator_pipeline.engines.jobs.user_hooks import HOOKS, user_hooks
from estimator_pipeline.engines.keras import backend as keras
from estimator_pipeline.engines.keras3 import backend as keras3
from estimator_pipeline.engines.keras_common.backup import Backup
from estimator_pipeline.engines.keras_common.callbacks import sees_steps
from estimator_pipeline.engines.keras_common.plan import KerasPlan
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job
from estimator_pipeline.job.sections.keras import path_fields
from estimator_pipeline.models import callbacks
from estimator_pipeline.models.feature_mismatch import refuse_text
from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers
from estimator_pipeline.models.optimizers.spec import optimizer_of
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import nearest

if TYPE_CHECKING:
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder

_CALLBACKS = "keras.callbacks"


def run(built: BuiltJob, task: JobTask) -> TrainResult:
    """Run this process's task of a job with Keras; see `estimator_pipeline.engines.jobs.run.run_job`."""
    job, tf_config, recording = built.job, task.tf_config, task.recording
    _warn_of_ignored(job)
    if job.run.engine == "keras3":
        _warn_of_optimizer(job, tf_config)
    else:
        compat.install()
    prepare_runtime(job)
    strategy, eval_strategy = strategies_of(job, tf_config)
    plan = plan_of(built, strategy=strategy, eval_strategy=eval_strategy)
    # The section `keras` does not apply to Keras 3. A backup would contain only the weights, while that engine takes
    # the position in the data and the step from its checkpoints.
    if job.run.engine == "keras3":
        train_and_evaluate = keras3.train_and_evaluate
        hooks = _hooks(job) if tf_config.is_training_task else []
        plan = dataclasses.replace(plan, callbacks=lambda: hooks, watched=any(map(sees_steps, hooks)))
        if recording is not None:
            recorder = functools.partial(recording.callback, chief=tf_config.is_chief, strategy=strategy)
            plan = dataclasses.replace(plan, callbacks=lambda: [recorder(), *hooks], watched=True)
    else:
        train_and_evaluate = keras.train_and_evaluate
        during = bool(task.evaluate_during_training)
        _check_model_checkpoint(built, validated=during or tf_config.is_single_process or tf_config.dialect == "master")
        callbacks_of = functools.partial(_job_callbacks, job, tf_config, recording)
        plan = dataclasses.replace(plan, callbacks=callbacks_of, backup=_backup(job))
    if recording is not None:
        recorded = recording.input_fn(plan.train_input_fn, task=str(tf_config.task))
        plan = dataclasses.replace(plan, train_input_fn=recorded)
    plan, explaining = with_explained_mismatches(plan)
    with explaining:
        return train_and_evaluate(plan, tf_config=tf_config, options=built.options(task), environ=task.environ)


def with_explained_mismatches(plan: KerasPlan) -> tuple[KerasPlan, contextlib.AbstractContextManager[None]]:
    """Return the plan and a context in which features that the model does not take raise a clear error."""
    models: list[Any] = []
    specs: list[Any] = []

    def build_model() -> Any:
        models[:] = [plan.build_model()]
        for spec in specs:
            refuse_text(models[0], spec)
        return models[0]

    def weighted(dataset: Any) -> Any:
        if isinstance(dataset.element_spec, tuple):
            specs.append(dataset.element_spec[0])
            refuse_text(models[0] if models else None, specs[-1])
        return plan.weighted(dataset)

    explained = dataclasses.replace(plan, build_model=build_model, weighted=weighted)
    return explained, explaining_mismatches(models, specs)


def plan_of(built: BuiltJob, *, strategy: Any = None, eval_strategy: Any = None) -> KerasPlan:
    """Return the job's plan for the Keras engines: for Keras 3 if it is the job's engine, otherwise for Keras 2."""
    job, data, serving = built.job, built.data, built.serving
    unit, interval = job.run.checkpoint_interval
    return KerasPlan(
        build_model=built.new_keras_model,
        train_input_fn=data.train_input_fn,
        eval_spec=built.eval_spec(),
        outputs=built.outputs,
        features_spec=serving.specs,
        parse_examples=serving.parse_examples,
        transform=serving.transform,
        takes_tensor=serving.single,
        signatures=tuple(job.model.export.signatures),
        model_dir=job.run.model_dir,
        max_steps=built.max_steps,
        weighted=built.weighted,
        strategy=strategy,
        eval_strategy=eval_strategy,
        epoch_steps=interval if unit == "steps" else None,
        save_checkpoints_secs=interval if unit == "secs" else None,
        keep_checkpoint_max=job.run.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=job.run.keep_checkpoint_every_n_hours,
        summary_steps=job.run.save_summary_steps,
        histograms=tuple(job.run.histograms),
        log_steps=job.run.log_step_count_steps,
        seed=job.run.seed,
    )


def _backup(job: Job) -> Backup | None:
    if (section := job.keras.backup) is None:
        return None
    return Backup(folder=section.dir or os.path.join(job.run.model_dir, "backup"), every=section.every)


def _job_callbacks(job: Job, tf_config: TFConfig, recording: StepRecorder | None) -> list[Any]:
    """Return the callbacks of a job's section `keras`, except the backup."""
    section = job.keras
    chosen = [] if recording is None else [recording.callback(chief=tf_config.is_chief)]
    if section.learning_rate_by_epoch is not None:
        chosen.append(callbacks.learning_rate_by_epoch(**section.learning_rate_by_epoch.model_dump()))
    if section.print_learning_rate:
        chosen.append(callbacks.print_learning_rate(write=logger.info, tf_config=tf_config))
    if section.model_checkpoint is not None:
        options = section.model_checkpoint.model_dump()
        explicit = options.pop("path")
        if explicit is not None and tf_config.is_chief and not (options["save_best_only"] or path_fields(explicit)):
            logger.warning("keras.model_checkpoint.path is %s, without {epoch}: each save overwrites the previous one, "
                           "and only the newest is kept", explicit)  # fmt: skip
        path = explicit or os.path.join(job.run.model_dir, "model_checkpoints", "ckpt_{epoch}")
        chosen.append(callbacks.model_checkpoint(path, **options))
    if section.chief_checkpoint is not None:
        options = section.chief_checkpoint.model_dump()
        path = options.pop("path") or os.path.join(job.run.model_dir, "chief_checkpoints", "ckpt_{step}")
        chosen.append(callbacks.chief_checkpoint(path, tf_config=tf_config, **options))
    return [*chosen, *_callbacks(_CALLBACKS, section.callbacks), *_hooks(job)]


def _check_model_checkpoint(built: BuiltJob, *, validated: bool) -> None:
    """Reject a `keras.model_checkpoint` with a value that no epoch logs; Keras would fail at the end of an epoch.

    User-defined callbacks may add values to the logs. If there are any, the monitored value is not checked here.
    `val_` values exist if checkpoints are evaluated in `fit` (`validated`).
    """
    job, section = built.job, built.job.keras.model_checkpoint
    if section is None:
        return
    names = _logged_names(built)
    known = ["epoch", *(["batch"] if section.every != "epoch" else []), *names]
    if section.every == "epoch":
        known += ["lr"] if job.keras.learning_rate_by_epoch is not None else []
        known += [f"val_{name}" for name in names] if validated else []
    values = [name for name in known if name not in ("epoch", "batch")]
    if section.save_best_only and not (job.keras.callbacks or job.train.hooks) and section.monitor not in values:
        close = nearest(section.monitor, values)
        raise ConfigError(
            f"keras.model_checkpoint.monitor is {section.monitor!r}, and no such value is logged when it is saved",
            code="argument/unknown-name",
            found=f"values: {', '.join(values)}",
            hint=(f"did you mean {close!r}? " if close else "name one of these; ")
            + "val_ values exist only if checkpoints are evaluated during training",
        )
    if unknown := [name for name in path_fields(section.path or "") if name not in known]:
        raise ConfigError(
            f"keras.model_checkpoint.path names {{{unknown[0]}}}, and no such value is logged when it is saved",
            code="argument/unknown-name",
            found=f"path {section.path!r}; values: {', '.join(known)}",
            hint="name some of these; val_ values exist only if checkpoints are evaluated during training",
        )


def _logged_names(built: BuiltJob) -> list[str]:
    """Return the names of the values that `fit` logs for each epoch of a job's model."""
    names = ["loss"]
    for name in built.outputs.parts:
        metrics = ["average_loss", *built.outputs.metric_names(name, built.data.num_classes)]
        names += metrics if built.outputs.is_single else [f"{name}_{metric}" for metric in ("loss", *metrics)]
    return names


def _hooks(job: Job) -> list[Any]:
    return _callbacks(HOOKS, job.train.hooks)


def _callbacks(field: str, references: Sequence[str]) -> list[Any]:
    base = compat.tensorflow().keras.callbacks.Callback
    return user_hooks(references, field=field, base=base, name="tf.keras.callbacks.Callback")


def _warn_of_ignored(job: Job) -> None:
    if ignored := [name for name in ("session_config", "protocol") if getattr(job.run, name)]:
        logger.warning("The engine %s has no session and ignores these fields of the job file: %s", job.run.engine,
                       ", ".join(ignored))  # fmt: skip


def _warn_of_optimizer(job: Job, tf_config: TFConfig) -> None:
    difference = keras3_optimizers.differences(optimizer_of(job.model.optimizer.model_dump()))
    if difference is not None and tf_config.is_chief:
        logger.warning("The optimizer %s differs from that of the engine keras: %s", job.model.optimizer.name,
                       difference)  # fmt: skip


def prepare_runtime(job: Job) -> None:
    """Apply the settings that TensorFlow accepts only before its runtime starts."""
    tf = compat.tensorflow()
    if job.model.mixed_precision and not tf.config.list_physical_devices("GPU"):
        # As in an Estimator's session: bfloat16 convolutions do not survive the graph optimizer's fusion on CPUs.
        tf.config.optimizer.set_experimental_options({"remapping": False})


def strategies_of(job: Job, tf_config: TFConfig) -> tuple[Any, Any]:
    run = job.run
    make: dict[str, Any] = {"tf_config": tf_config, "devices": run.devices, "num_devices": run.num_devices}
    train = eval_ = None
    if tf_config.is_training_task:
        communication = Communication(**run.communication.model_dump())
        train = strategies.make(run.train_distribute, communication=communication, **make)
    if tf_config.is_training_task or tf_config.is_evaluator:
        eval_ = strategies.make(run.eval_distribute, **make)
    return train, eval_
