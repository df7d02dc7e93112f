"""A job on the Keras engine: the same model, data and cluster, trained with `Model.fit`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.distribute import strategies
from estimator_pipeline.distribute.strategies import Communication
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.engines.keras import backend as keras
from estimator_pipeline.engines.keras_common.backup import Backup
from estimator_pipeline.engines.keras_common.plan import KerasPlan
from estimator_pipeline.engines.keras_common.serving import KerasServing
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job
from estimator_pipeline.job.sections.keras import path_fields
from estimator_pipeline.job.user_code import call_function, load_function, require_no_arguments
from estimator_pipeline.models import callbacks
from estimator_pipeline.models.feature_mismatch import mismatch, refuse_text
from estimator_pipeline.models.outputs import outputs_of, wanted_metrics
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import nearest

if TYPE_CHECKING:
    from estimator_pipeline.engines.jobs.run import JobTask
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder

_CALLBACKS = "keras.callbacks"


def run(built: BuiltJob, task: JobTask) -> TrainResult:
    """Run this process's task of a job with Keras; see `estimator_pipeline.engines.jobs.run.run_job`."""
    job, tf_config, recording = built.job, task.tf_config, task.recording
    warn_of_ignored(job)
    compat.install()
    prepare_runtime(job)
    strategy, eval_strategy = strategies_of(job, tf_config)
    for reference in job.keras.callbacks:
        require_no_arguments(load_function(reference, field=_CALLBACKS), reference=reference, field=_CALLBACKS)
    plan = plan_of(built, strategy=strategy, eval_strategy=eval_strategy)
    during = bool(task.evaluate_during_training)
    _check_model_checkpoint(built, validated=during or tf_config.is_single_process or tf_config.dialect == "master")
    # The section `keras` applies only to this engine, and not to the plan, which Keras 3 uses too.
    callbacks_of = functools.partial(job_callbacks, job, tf_config, recording=recording)
    plan = dataclasses.replace(plan, callbacks=callbacks_of, backup=_backup(job))
    if recording is not None:
        recorded = recording.input_fn(plan.train_input_fn, task=str(tf_config.task))
        plan = dataclasses.replace(plan, train_input_fn=recorded)
    plan, explaining = explaining_mismatches(plan)
    with explaining:
        return keras.train_and_evaluate(plan, tf_config=tf_config, options=task.options_of(built), environ=task.environ)


def explaining_mismatches(plan: KerasPlan) -> tuple[KerasPlan, contextlib.AbstractContextManager[None]]:
    """Return the plan and a context in which features that the model does not take raise a clear error.

    Args:
        plan: The job's plan.
    """
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

    @contextlib.contextmanager
    def explaining() -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            mismatches = [wrong for spec in specs if models and (wrong := mismatch(models[0], spec)) is not None]
            if not mismatches:
                raise
            raise mismatches[0] from error

    return dataclasses.replace(plan, build_model=build_model, weighted=weighted), explaining()


def plan_of(
    built: BuiltJob,
    *,
    strategy: Any = None,
    eval_strategy: Any = None,
    wrap: Callable[[Callable[[], Any]], Callable[[], Any]] | None = None,
    restore: Callable[[Any, str], None] = keras.restored,
    eval_spec: Any = None,
) -> KerasPlan:
    """Return the job's plan for the Keras engines.

    Args:
        built: The job.
        strategy: Strategy of training.
        eval_strategy: Strategy of an evaluation in one process.
        wrap: Wraps the function that builds the compiled model; None: as Keras 2 needs it.
        restore: `restore(model, path)` restores the compiled model from a checkpoint, for exports.
        eval_spec: The job's evaluation; None: a `tf.estimator.EvalSpec`.
    """
    job, data, weighted = built.job, built.data, built.weighted
    unit, interval = job.run.checkpoint_interval
    build: Callable[[], Any] = functools.partial(
        _with_variables, built.keras_model, lambda: weighted(data.train_input_fn())
    )
    if wrap is not None:
        build = wrap(built.keras_model)
    serving = KerasServing(
        build,
        restore=restore,
        model_dir=job.run.model_dir,
        outputs=built.outputs,
        features_spec=data.features_spec,
        single=data.single_feature is not None,
        signatures=tuple(job.model.export.signatures),
    )
    return KerasPlan(
        build_model=build,
        train_input_fn=data.train_input_fn,
        eval_spec=built.eval_spec() if eval_spec is None else eval_spec,
        serving=serving,
        model_dir=job.run.model_dir,
        max_steps=built.max_steps,
        weighted=weighted,
        completed=built.outputs.completed,
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


def _with_variables(build: Callable[[], Any], input_fn: Callable[[], Any]) -> Any:
    """Return a job's compiled model with its variables, also if its layers do not declare their input.

    Args:
        build: Builds the compiled model.
        input_fn: Returns the dataset whose features it takes.
    """
    model = build()
    if not model.built:
        tf = compat.tensorflow()
        spec = input_fn().element_spec
        features = spec[0] if isinstance(spec, tuple) else spec

        def symbolic(spec: Any) -> Any:
            kinds = {"sparse": isinstance(spec, tf.SparseTensorSpec), "ragged": isinstance(spec, tf.RaggedTensorSpec)}
            return tf.keras.Input(spec.shape[1:], dtype=spec.dtype, **kinds)

        # A symbolic call leaves the batch size open, which a call of a batch would fix.
        model(tf.nest.map_structure(symbolic, features))
    return model


def _backup(job: Job) -> Backup | None:
    section = job.keras.backup
    if section is None:
        return None
    return Backup(folder=section.dir or os.path.join(job.run.model_dir, "backup"), every=section.every)


def job_callbacks(job: Job, tf_config: TFConfig, *, recording: StepRecorder | None = None) -> list[Any]:
    """Return the callbacks of a job's section `keras`, except the backup.

    Args:
        job: The job.
        tf_config: Cluster and task of this process.
        recording: Records each step, if not None.
    """
    section = job.keras
    chosen = [] if recording is None else [recording.callback(chief=tf_config.is_chief)]
    if section.learning_rate_by_epoch is not None:
        chosen.append(callbacks.learning_rate_by_epoch(**section.learning_rate_by_epoch.model_dump()))
    if section.print_learning_rate:
        chosen.append(callbacks.print_learning_rate(write=logger.info, tf_config=tf_config))
    if section.model_checkpoint is not None:
        options = section.model_checkpoint.model_dump()
        explicit = options.pop("path")
        if explicit is not None and tf_config.is_chief:
            _warn_of_overwriting(explicit, save_best_only=section.model_checkpoint.save_best_only)
        path = explicit or os.path.join(job.run.model_dir, "model_checkpoints", "ckpt_{epoch}")
        chosen.append(callbacks.model_checkpoint(path, **options))
    if section.chief_checkpoint is not None:
        options = section.chief_checkpoint.model_dump()
        path = options.pop("path") or os.path.join(job.run.model_dir, "chief_checkpoints", "ckpt_{step}")
        chosen.append(callbacks.chief_checkpoint(path, tf_config=tf_config, **options))
    for reference in section.callbacks:
        chosen += _user_callbacks(reference)
    return chosen


def _check_model_checkpoint(built: BuiltJob, *, validated: bool) -> None:
    """Reject a `keras.model_checkpoint` with a value that no epoch logs; Keras would fail at the end of an epoch.

    User-defined callbacks may add values to the logs. If there are any, the monitored value is not checked here.

    Args:
        built: The job.
        validated: Whether checkpoints are evaluated in `fit`.
    """
    job, section = built.job, built.job.keras.model_checkpoint
    if section is None:
        return
    names = logged_names(built.keras_options)
    known = ["epoch", *(["batch"] if section.every != "epoch" else []), *names]
    if section.every == "epoch":
        known += ["lr"] if job.keras.learning_rate_by_epoch is not None else []
        known += [f"val_{name}" for name in names] if validated else []
    values = [name for name in known if name not in ("epoch", "batch")]
    if section.save_best_only and not job.keras.callbacks and section.monitor not in values:
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


def logged_names(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the values that `fit` logs for each epoch of a job's model.

    Args:
        options: Model options, see `BuiltJob.keras_options`.
    """
    used = ("outputs", "loss", "head", "metrics", "label_vocabulary")
    outputs = outputs_of(**{"outputs": None, "loss": None, **{k: v for k, v in options.items() if k in used}})
    names = ["loss"]
    for name, part in outputs.parts.items():
        metrics = ["average_loss", *wanted_metrics(part.head.kind, part.metrics)]
        names += metrics if outputs.is_single else [f"{name}_{metric}" for metric in ("loss", *metrics)]
    return names


def _warn_of_overwriting(path: str, *, save_best_only: bool) -> None:
    if not save_best_only and not path_fields(path):
        logger.warning(
            "keras.model_checkpoint.path is %s, without {epoch}: each save overwrites the previous one, and only the "
            "newest is kept", path
        )  # fmt: skip


def _user_callbacks(reference: str) -> list[Any]:
    base = compat.tensorflow().keras.callbacks.Callback
    function = load_function(reference, field=_CALLBACKS)
    result = call_function(function, reference=reference, field=_CALLBACKS)
    user_callbacks = list(result) if isinstance(result, list | tuple) else [result]
    for callback in user_callbacks:
        if not isinstance(callback, base):
            raise ConfigError(
                f"keras.callbacks: {reference} did not return callbacks",
                code="model/bad-function",
                found=_type_name(callback),
                hint="return a tf.keras.callbacks.Callback, or a list of them",
            )
    return user_callbacks


def _type_name(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}, and not an object of it"
    return "None" if value is None else f"{type(value).__module__}.{type(value).__name__}"


def warn_of_ignored(job: Job) -> None:
    """Warn of fields of the job file that an engine without sessions ignores."""
    ignored = [name for name in ("session_config", "protocol") if getattr(job.run, name)]
    if ignored:
        logger.warning("The engine %s has no session and ignores these fields of the job file: %s", job.run.engine,
                       ", ".join(ignored))  # fmt: skip


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
