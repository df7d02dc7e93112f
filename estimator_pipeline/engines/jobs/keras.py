"""A job file on the Keras engine: the same model, data and cluster, through `Model.fit`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig, from_environ
from estimator_pipeline.cluster.peers import start_secs
from estimator_pipeline.distribute import strategies
from estimator_pipeline.distribute.strategies import Communication
from estimator_pipeline.engines.jobs import common
from estimator_pipeline.engines.jobs.job_identity import identity_of, shared_by_tasks
from estimator_pipeline.engines.keras import engine as keras
from estimator_pipeline.engines.keras.backup import Backup
from estimator_pipeline.engines.keras.serving import KerasServing
from estimator_pipeline.engines.lifecycle.result import TrainResult
from estimator_pipeline.engines.lifecycle.settings import TrainOptions
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job
from estimator_pipeline.job.sections.keras import path_fields
from estimator_pipeline.job.user_code import call_function, load_function, require_no_arguments
from estimator_pipeline.models import callbacks
from estimator_pipeline.models.feature_mismatch import mismatch, refuse_text
from estimator_pipeline.models.keras_model import build_keras_model
from estimator_pipeline.models.outputs import Outputs, keras_batches, outputs_of, wanted_metrics
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import nearest

if TYPE_CHECKING:
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder

_CALLBACKS = "keras.callbacks"


def run(
    job: Job,
    *,
    evaluator: bool | None,
    evaluate_during_training: bool | None,
    recording: StepRecorder | None,
    environ: MutableMapping[str, str],
) -> TrainResult:
    """Runs this process's task of a job with Keras; see :func:`estimator_pipeline.engines.jobs.runner.run_job`."""
    tf_config = from_environ(environ)
    tell_of_ignored(job)
    compat.install()
    prepare_runtime(job)
    strategy, eval_strategy = strategies_of(job, tf_config)
    for reference in job.keras.callbacks:
        require_no_arguments(load_function(reference, field=_CALLBACKS), reference=reference, field=_CALLBACKS)
    data = common.job_inputs(job)
    plan = plan_of(job, data, strategy=strategy, eval_strategy=eval_strategy)
    _check_model_checkpoint(
        job,
        validated=bool(evaluate_during_training) or tf_config.is_single_process or tf_config.dialect == "master",
    )
    # What the section `keras` asks for is of this engine, and not of the plan that Keras 3 trains by as well.
    callbacks_of = functools.partial(job_callbacks, job, tf_config, recording=recording)
    plan = dataclasses.replace(plan, callbacks=callbacks_of, backup=_backup(job))
    if recording is not None:
        told = recording.input_fn(plan.train_input_fn, task=str(tf_config.task))
        plan = dataclasses.replace(plan, train_input_fn=told)
    settings = settings_of(job, data, tf_config, evaluator=evaluator, evaluate_during_training=evaluate_during_training)
    plan, telling = telling_of_mismatches(plan)
    with telling:
        return keras.train_and_evaluate(plan, tf_config=tf_config, settings=settings, environ=environ)


def settings_of(
    job: Job, data: Any, tf_config: TFConfig, *, evaluator: bool | None, evaluate_during_training: bool | None
) -> TrainOptions:
    """What a job says of its run beside the plan, the same for Keras 2 and Keras 3.

    Args:
        job: the job.
        data: its data, from :func:`estimator_pipeline.engines.jobs.common.job_inputs`.
        tf_config: which task this is.
        evaluator: see :class:`TrainOptions`.
        evaluate_during_training: the same.
    """
    max_steps = common.max_steps_of(job, data)
    return TrainOptions(
        evaluator=evaluator,
        evaluate_during_training=evaluate_during_training,
        identity=identity_of(job, data, tf_config, max_steps=max_steps),
        shared=shared_by_tasks(job, max_steps=max_steps),
        accept_changes=job.run.accept_changes,
        preemption_signals=job.run.preemption_signals,
        startup_timeout=job.run.start_timeout_secs or start_secs(),
    )


def telling_of_mismatches(plan: keras.KerasPlan) -> tuple[keras.KerasPlan, contextlib.AbstractContextManager[None]]:
    """The plan, and a block to train it in, which tells in our words of features that the model does not take.

    Args:
        plan: of the job.
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
    def told() -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            found = [wrong for spec in specs if models and (wrong := mismatch(models[0], spec)) is not None]
            if not found:
                raise
            raise found[0] from error

    return dataclasses.replace(plan, build_model=build_model, weighted=weighted), told()


def plan_of(
    job: Job,
    data: Any,
    *,
    strategy: Any = None,
    eval_strategy: Any = None,
    made: Callable[[Callable[[], Any]], Callable[[], Any]] = lambda build: build,
    serving: type[KerasServing] = KerasServing,
    eval_spec: Any = None,
) -> keras.KerasPlan:
    """What a job is for Keras.

    Args:
        job: the job.
        data: its data, from :func:`estimator_pipeline.engines.jobs.common.job_inputs`.
        strategy: of training.
        eval_strategy: of an evaluation in one process.
        made: from the function that builds the compiled model, the one that tasks call.
        serving: the class of what the exporters get.
        eval_spec: the job's evaluation; None: a `tf.estimator.EvalSpec`.
    """
    unit, interval = job.run.checkpoint_interval
    compiled = job_keras_model(job, data)
    meant = meant_of(compiled)
    build = made(compiled)
    served = serving(
        build,
        model_dir=job.run.model_dir,
        outputs=meant,
        features_spec=data.features_spec,
        single=data.single_feature is not None,
        signatures=tuple(job.model.export.signatures),
    )
    return keras.KerasPlan(
        build_model=build,
        train_input_fn=data.train_input_fn,
        eval_spec=common.eval_spec_of(job, data) if eval_spec is None else eval_spec,
        serving=served,
        model_dir=job.run.model_dir,
        max_steps=common.max_steps_of(job, data),
        weighted=weighted_of(compiled),
        completed=meant.completed,
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
        ledger=job.run.ledger_folder,
        steps_per_execution=job.train.steps_per_execution,
    )


def _backup(job: Job) -> Backup | None:
    section = job.keras.backup
    if section is None:
        return None
    return Backup(folder=section.dir or os.path.join(job.run.model_dir, "backup"), every=section.every)


def job_callbacks(job: Job, tf_config: TFConfig, *, recording: StepRecorder | None = None) -> list[Any]:
    """The callbacks that a job's section `keras` asks for, but for the backup.

    Args:
        job: the job.
        tf_config: which task this is.
        recording: what each step did is written down as well.
    """
    section = job.keras
    found = [] if recording is None else [recording.callback(chief=tf_config.is_chief)]
    if section.learning_rate_by_epoch is not None:
        found.append(callbacks.learning_rate_by_epoch(**section.learning_rate_by_epoch.model_dump()))
    if section.print_learning_rate:
        found.append(callbacks.print_learning_rate(write=logger.info, tf_config=tf_config))
    if section.model_checkpoint is not None:
        options = section.model_checkpoint.model_dump()
        given = options.pop("path")
        if given is not None and tf_config.is_chief:
            _tell_of_overwriting(given, save_best_only=section.model_checkpoint.save_best_only)
        path = given or os.path.join(job.run.model_dir, "model_checkpoints", "ckpt_{epoch}")
        found.append(callbacks.model_checkpoint(path, **options))
    if section.chief_checkpoint is not None:
        options = section.chief_checkpoint.model_dump()
        path = options.pop("path") or os.path.join(job.run.model_dir, "chief_checkpoints", "ckpt_{step}")
        found.append(callbacks.chief_checkpoint(path, tf_config=tf_config, **options))
    for reference in section.callbacks:
        found += _own_callbacks(reference)
    return found


def _check_model_checkpoint(job: Job, *, validated: bool) -> None:
    """Refuses a `keras.model_checkpoint` that names a value which no epoch has: Keras asks for it at an epoch's end.

    Callbacks of one's own may add values to an epoch; where there are any, what is monitored is looked at then.

    Args:
        job: the job.
        validated: whether checkpoints are evaluated in `fit`.
    """
    section = job.keras.model_checkpoint
    if section is None:
        return
    model = job.model
    options = common.model_options(job)
    if model.name is not None:
        import model_fns

        options = model_fns.with_loss(model.name, options)
    names = logged_names(options)
    known = ["epoch", *(["batch"] if section.every != "epoch" else []), *names]
    if section.every == "epoch":
        known += ["lr"] if job.keras.learning_rate_by_epoch is not None else []
        known += [f"val_{name}" for name in names] if validated else []
    values = [name for name in known if name not in ("epoch", "batch")]
    if section.save_best_only and not job.keras.callbacks and section.monitor not in values:
        close = nearest(section.monitor, values)
        raise ConfigError(
            f"keras.model_checkpoint.monitor is {section.monitor!r}, and no such value is there when it is saved",
            code="argument/unknown-name",
            found=f"values: {', '.join(values)}",
            hint=(f"did you mean {close!r}? " if close else "name one of these; ")
            + "val_ ones are there where checkpoints are evaluated during training",
        )
    if unknown := [name for name in path_fields(section.path or "") if name not in known]:
        raise ConfigError(
            f"keras.model_checkpoint.path names {{{unknown[0]}}}, and no such value is there when it is saved",
            code="argument/unknown-name",
            found=f"path {section.path!r}; values: {', '.join(known)}",
            hint="name some of these; val_ ones are there where checkpoints are evaluated during training",
        )


def logged_names(options: Mapping[str, Any]) -> list[str]:
    """The names of what `fit` tells of each epoch of a job's model.

    Args:
        options: what the job says of its model; see :func:`estimator_pipeline.engines.jobs.common.model_options`.
    """
    kept = ("outputs", "loss", "head", "metrics", "label_vocabulary")
    meant = outputs_of(**{"outputs": None, "loss": None, **{k: v for k, v in options.items() if k in kept}})
    found = ["loss"]
    for name, part in meant.parts.items():
        own = ["average_loss", *wanted_metrics(part.head.kind, part.metrics)]
        found += own if meant.alone else [f"{name}_{one}" for one in ("loss", *own)]
    return found


def _tell_of_overwriting(path: str, *, save_best_only: bool) -> None:
    if not save_best_only and not path_fields(path):
        logger.warning(
            "keras.model_checkpoint.path is %s, without {epoch}: each save replaces the one before, and the newest "
            "alone is kept", path
        )  # fmt: skip


def _own_callbacks(reference: str) -> list[Any]:
    base = compat.tensorflow().keras.callbacks.Callback
    function = load_function(reference, field=_CALLBACKS)
    made = call_function(function, reference=reference, field=_CALLBACKS)
    made = list(made) if isinstance(made, list | tuple) else [made]
    for callback in made:
        if not isinstance(callback, base):
            raise ConfigError(
                f"keras.callbacks: {reference} did not return callbacks",
                code="model/bad-function",
                found=_told_type(callback),
                hint="return a tf.keras.callbacks.Callback, or a list of them",
            )
    return made


def _told_type(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}, and not an object of it"
    return "None" if value is None else f"{type(value).__module__}.{type(value).__name__}"


def job_keras_model(job: Job, data: Any) -> functools.partial[Any]:
    """A function that builds and compiles the job's model.

    Args:
        job: the job.
        data: its data, from :func:`estimator_pipeline.engines.jobs.common.job_inputs`.
    """
    model = job.model
    options = common.model_options(job)
    if model.name is not None:
        import model_fns

        options = model_fns.with_loss(model.name, options)
        layers = model_fns.get(model.name).keras_model
        params = model_fns.complete(model.name, common.model_params(job, data))
    else:
        layers, params = load_function(model.function or "", field="model.function"), dict(model.params)
        if common.is_model_fn(layers):
            raise ConfigError(
                f"model.function {model.function} is a model_fn, and Keras trains layers",
                code="model/bad-function",
                hint="name the function that builds the layers, and give model.loss; or keep the engine estimator",
            )
        common.require_loss(job)
    return functools.partial(build_keras_model, layers, params=params, **options)


def meant_of(compiled: functools.partial[Any]) -> Outputs:
    """What the model's outputs mean.

    Args:
        compiled: from :func:`job_keras_model`.
    """
    names = ("head", "label_vocabulary")
    given = {name: value for name, value in compiled.keywords.items() if name in names}
    return outputs_of(compiled.keywords.get("outputs"), loss=compiled.keywords.get("loss"), **given)


def weighted_of(compiled: functools.partial[Any]) -> Callable[[Any], Any]:
    """From a dataset of a job the one that Keras reads: labels in numbers, weights beside.

    Args:
        compiled: from :func:`job_keras_model`.
    """
    names = ("loss", "outputs", "head", "label_vocabulary", "weight_column", "class_weights")
    return functools.partial(keras_batches, **{k: v for k, v in compiled.keywords.items() if k in names})


def tell_of_ignored(job: Job) -> None:
    given = [name for name in ("session_config", "protocol") if getattr(job.run, name)]
    if given:
        logger.warning("The engine %s has no session: %s of the job file have no meaning there", job.run.engine,
                       ", ".join(given))  # fmt: skip


def prepare_runtime(job: Job) -> None:
    """Settings that TensorFlow takes before its runtime starts, and no later."""
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
