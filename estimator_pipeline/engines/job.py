"""From a job file to a running task: the model, the data, the run configuration and the specs, then the engine."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.estimator import train_and_evaluate
from estimator_pipeline.engines.exporting import make_exporter
from estimator_pipeline.engines.result import TrainResult
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import FunctionInput, Job
from estimator_pipeline.model_fn import build_model_fn
from estimator_pipeline.run_config import build_run_config

# A job file's `cache`: keep the records in memory whatever their size, never, or (null) below the inputs' own limit.
_ALWAYS_IN_MEMORY = 2**62


def run_job(job: Job, *, environ: MutableMapping[str, str] | None = None) -> TrainResult:
    """Runs this process's task of a job.

    Args:
        job: from :func:`estimator_pipeline.load_job`.
        environ: where TF_CONFIG is read; `os.environ` by default.

    Returns:
        The job's result, the same on every task.

    Raises:
        PipelineError: see :func:`~estimator_pipeline.engines.estimator.train_and_evaluate`, and what building the
            model, the data and the configuration raises.
    """
    environ = os.environ if environ is None else environ
    tf = compat.install()
    config = _run_config(job, environ)
    data = job_inputs(job)
    estimator = tf.estimator.Estimator(model_fn=job_model_fn(job), config=config, params=dict(job.model.params))
    train_spec = tf.estimator.TrainSpec(data.train_input_fn, max_steps=_max_steps(job, data))
    evaluation = job.eval
    eval_spec = tf.estimator.EvalSpec(
        data.eval_input_fn,
        steps=evaluation.steps,
        name=evaluation.name,
        start_delay_secs=evaluation.start_delay_secs,
        throttle_secs=evaluation.throttle_secs,
        exporters=[
            make_exporter(
                exporter,
                data.features_spec,
                single=data.single_feature is not None,
                examples=not {"classify", "regress"}.isdisjoint(job.model.export.signatures),
            )
            for exporter in evaluation.exporters
        ]
        or None,
    )
    has_evaluator = job.cluster.evaluator or None
    return train_and_evaluate(
        estimator,
        train_spec,
        eval_spec,
        evaluator=has_evaluator,
        evaluate_during_training=True if evaluation.during_training and not has_evaluator else None,
        environ=environ,
    )


def _run_config(job: Job, environ: MutableMapping[str, str]) -> Any:
    run = job.run
    unit, interval = run.checkpoint_interval
    return build_run_config(
        run.model_dir,
        train_distribute=run.train_distribute,
        eval_distribute=run.eval_distribute,
        devices=run.devices,
        num_devices=run.num_devices,
        communication=run.communication.model_dump(),
        intra_op_threads=run.threads.intra_op,
        inter_op_threads=run.threads.inter_op,
        seed=run.seed,
        session_config=_session_config(job) or None,
        environ=environ,
        save_checkpoints_steps=interval if unit == "steps" else None,
        save_checkpoints_secs=interval if unit == "secs" else None,
        save_summary_steps=run.save_summary_steps,
        keep_checkpoint_max=run.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=run.keep_checkpoint_every_n_hours,
        log_step_count_steps=run.log_step_count_steps,
        checkpoint_save_graph_def=run.checkpoint_save_graph_def,
        session_creation_timeout_secs=run.session_creation_timeout_secs,
        experimental_max_worker_delay_secs=run.max_worker_delay_secs,
        protocol=run.protocol,
    )


def _session_config(job: Job) -> dict[str, Any]:
    session = copy.deepcopy(dict(job.run.session_config))
    if job.model.mixed_precision and not compat.install().config.list_physical_devices("GPU"):
        # On CPUs TensorFlow's graph optimizer fuses bfloat16 convolutions into an operation that exists for other
        # types alone, and the session fails.
        rewrite = session.setdefault("graph_options", {}).setdefault("rewrite_options", {})
        rewrite.setdefault("remapping", "OFF")
    return session


def job_model_fn(job: Job) -> Callable[..., Any]:
    """The job's `model_fn`: a model of `model_fns/` by name, an own layers function, or an own `model_fn`."""
    model = job.model
    options: dict[str, Any] = {
        "optimizer": model.optimizer.model_dump(),
        "clip_norm": model.clip_norm,
        "clip_value": model.clip_value,
        "mixed_precision": model.mixed_precision,
        "signatures": model.export.signatures,
    }
    if model.loss is not None:
        options["loss"] = model.loss
    if model.metrics:
        options["metrics"] = model.metrics
    if model.name is not None:
        import model_fns

        return model_fns.model_fn(model.name, params=model.params, **options)
    own = load_function(model.function or "", field="model.function")
    first = next(iter(inspect.signature(own).parameters), None)
    if first == "features":
        return own
    if model.loss is None:
        raise ConfigError(
            f"model.function {model.function} builds layers, and model.loss is not given",
            mend="add model.loss, such as sparse_categorical_crossentropy; or name a model_fn(features, labels, mode)",
        )
    return build_model_fn(own, **options)


def job_inputs(job: Job) -> Any:
    """The job's data: an object with `train_input_fn`, `eval_input_fn` and, where it is known, `features_spec`."""
    from estimator_pipeline import inputs

    section = job.input
    if isinstance(section, FunctionInput):
        return _OwnInputs(section)
    options: dict[str, Any] = {
        "global_batch_size": section.global_batch_size,
        "eval_batch_size": section.eval_batch_size,
        "seed": section.seed,
        "shuffle": section.shuffle,
        "shard_policy": section.shard_policy,
        "worker_seeds": section.worker_seeds,
        "drop_remainder": section.drop_remainder,
    }
    if section.prefetch is not None:
        options["prefetch"] = section.prefetch
    if section.cache is not None:
        options["memory_limit"] = _ALWAYS_IN_MEMORY if section.cache else 0
    if section.source == "tfds":
        return inputs.from_tfds(
            section.name,
            data_dir=section.data_dir,
            train_split=section.train_split,
            eval_split=section.eval_split,
            features_key=section.features_key,
            label_key=section.label_key,
            scale=section.scale,
            **options,
        )
    if section.source == "tfrecord":
        return inputs.from_tfrecord(
            train=section.train,
            eval=section.eval,
            features=_feature_spec(section.features),
            label_key=section.label_key,
            features_key=section.features_key,
            compression="GZIP" if section.compression == "gzip" else None,
            **options,
        )
    if section.source == "csv":
        return inputs.from_csv(
            train=section.train,
            eval=section.eval,
            columns=dict(section.columns),
            label_key=section.label_key,
            features_key=section.features_key,
            delimiter=section.delimiter,
            header=section.header,
            **options,
        )
    return inputs.from_arrays(
        train=_npz(section.train, section.label_key),
        eval=_npz(section.eval, section.label_key),
        **options,
    )


class _OwnInputs:
    """Own input functions of a job file. How many records they have is not known."""

    features_spec = None
    single_feature = None
    num_train_records = None

    def __init__(self, section: FunctionInput) -> None:
        self.train_input_fn = _bound(section.train, section.params, field="input.train")
        self.eval_input_fn = _bound(section.eval, section.params, field="input.eval")


def _bound(reference: str, params: Mapping[str, Any], *, field: str) -> Callable[..., Any]:
    function = load_function(reference, field=field)
    parameters = inspect.signature(function).parameters
    if "input_context" not in parameters:
        raise ConfigError(
            f"{field}: {reference} has no parameter `input_context`",
            found=f"{reference.rpartition(':')[2]}{inspect.signature(function)}",
            mend="add `input_context=None` and shard by it: without it every worker reads the same records",
        )

    # TensorFlow gives the context by the parameter's name, and to no function that hides it behind **kwargs.
    def input_fn(input_context: Any = None) -> Any:
        return function(input_context=input_context, **params)

    return input_fn


def _max_steps(job: Job, data: Any) -> int | None:
    epochs = job.train.epochs
    if epochs is None:
        return job.train.max_steps
    if data.num_train_records is None:
        raise ConfigError(
            f"train.epochs is {epochs:g}, and how many records an own input function has is not known",
            mend="give train.max_steps",
        )
    return max(1, round(epochs * data.num_train_records / job.input.global_batch_size))


def _feature_spec(features: Mapping[str, Any]) -> dict[str, Any]:
    tf = compat.install()
    spec: dict[str, Any] = {}
    for name, feature in features.items():
        dtype = tf.as_dtype(feature.dtype)
        if feature.kind == "varlen":
            spec[name] = tf.io.VarLenFeature(dtype)
        else:
            spec[name] = tf.io.FixedLenFeature(feature.shape, dtype, feature.default)
    return spec


def _npz(path: str, label_key: str) -> Any:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the file {path} cannot be read: {error}", mend="give an .npz file of plain arrays"
        ) from error
    if label_key not in arrays:
        raise ConfigError(f"{path} has no array {label_key!r}", found=f"arrays: {', '.join(arrays)}")
    label = arrays.pop(label_key)
    # One array beside the label is the model's input itself, not a dictionary of one.
    return (next(iter(arrays.values())) if len(arrays) == 1 else arrays), label


def load_function(reference: str, *, field: str) -> Callable[..., Any]:
    """The function behind "package.module:function" or "path/to/file.py:function".

    Raises:
        ConfigError: no such module, file or function. An error inside the module is raised as it is.
    """
    where, _, name = reference.rpartition(":")
    if where.endswith(".py"):
        if not os.path.exists(where):
            raise ConfigError(f"{field}: the file {where!r} does not exist", found=f"working directory {os.getcwd()}")
        module_name = os.path.splitext(os.path.basename(where))[0]
        spec = importlib.util.spec_from_file_location(module_name, where)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(module_name, module)
        spec.loader.exec_module(module)
    else:
        # As `python` itself would find it: programs lie where the job is started.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not (where == error.name or where.startswith(error.name + ".")):
                raise
            raise ConfigError(
                f"{field}: the module {where!r} cannot be found",
                found=f"working directory {os.getcwd()}",
                mend="install it, or start the job where it lies, or write path/to/file.py:function",
            ) from error
    function = getattr(module, name, None)
    if not callable(function):
        public = [n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_")]
        raise ConfigError(
            f"{field}: {where} has no function {name!r}", found=f"functions: {', '.join(public) or 'none'}"
        )
    return function
