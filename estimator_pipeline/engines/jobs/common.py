"""Data, model, exporters and options of a job file, for all engines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.cluster.peers import start_secs
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.estimator.exporters import make_exporter, with_examples
from estimator_pipeline.engines.jobs.export_once import fingerprint, once, tidy
from estimator_pipeline.engines.jobs.job_identity import identity_of, shared_by_tasks
from estimator_pipeline.engines.jobs.user_inputs import UserInputs
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import FunctionInput, Job
from estimator_pipeline.job.user_code import load_function
from estimator_pipeline.models.feature_mismatch import mismatch, refuse_text
from estimator_pipeline.models.model_fn import build_model_fn, takes_params

__all__ = [
    "eval_spec_of",
    "exporters_of",
    "is_model_fn",
    "job_inputs",
    "job_model_fn",
    "max_steps_of",
    "model_options",
    "model_params",
    "options_of",
    "require_loss",
    "takes_examples",
]


def eval_spec_of(job: Job, data: Any) -> Any:
    """Return the job's `tf.estimator.EvalSpec`, with its exporters."""
    evaluation = job.eval
    return compat.tensorflow().estimator.EvalSpec(
        data.eval_input_fn,
        steps=evaluation.steps,
        name=evaluation.name,
        start_delay_secs=evaluation.start_delay_secs,
        throttle_secs=evaluation.throttle_secs,
        exporters=exporters_of(
            job,
            lambda section: make_exporter(
                section, data.features_spec, single=data.single_feature is not None, examples=takes_examples(job)
            ),
        )
        or None,
    )


def exporters_of(job: Job, make: Callable[[Any], Any]) -> list[Any]:
    """Return the job's exporters; all but `best` export a checkpoint only once, even if the job is run again.

    Args:
        job: The job.
        make: Builds an exporter from its section.
    """
    exporters = []
    for section in job.eval.exporters:
        exporter = tidy(make(section))
        if section.kind != "best":
            digest = fingerprint(*(part.model_dump(mode="json") for part in (section, job.model, job.input)))
            exporter = once(exporter, digest, final=section.kind == "final")
        exporters.append(exporter)
    return exporters


def takes_examples(job: Job) -> bool:
    """Return whether signatures of the job's exports take serialized `tf.Example` records."""
    return not {"classify", "regress"}.isdisjoint(job.model.export.signatures)


def model_options(job: Job) -> dict[str, Any]:
    """Return the job's model options other than the layers, as arguments of `build_model_fn`."""
    model = job.model
    options: dict[str, Any] = {
        "optimizer": model.optimizer.model_dump(),
        "clip_norm": model.clip_norm,
        "clip_value": model.clip_value,
        "label_smoothing": model.label_smoothing,
        "weight_column": job.input.weight_key,
        "class_weights": model.weights_of_classes,
        "label_vocabulary": model.label_vocabulary,
        "mixed_precision": model.mixed_precision,
    }
    if model.outputs:
        options["outputs"] = {
            name: {**output.model_dump(), "metrics": output.metrics or None, "class_weights": output.weights_of_classes}
            for name, output in model.outputs.items()
        }
    optional = {"loss": model.loss, "head": model.head, "metrics": model.metrics}
    return options | {name: value for name, value in optional.items() if value}


def model_params(job: Job, data: Any) -> dict[str, Any]:
    """Return the parameters of a model of `model_fns/`: the job's, completed from its data.

    Args:
        job: The job.
        data: Its data, from `job_inputs`.

    Raises:
        ConfigError: The job's parameters do not match the data.
    """
    import model_fns

    model, spec = job.model, data.features_spec
    shapes = None
    if spec is not None:
        known = {name: getattr(feature, "shape", None) for name, feature in spec.items()}  # None: sparse
        shapes = {
            name: shape.as_list() if shape is not None and shape.rank is not None else None
            for name, shape in known.items()
        }
    dtypes = {name: getattr(getattr(feature, "dtype", None), "name", "") for name, feature in (spec or {}).items()}
    text = [name for name, dtype in dtypes.items() if dtype == "string"]
    classes = len(model.label_vocabulary) or data.num_classes
    return model_fns.for_data(
        model.name or "", model.params, shapes=shapes, classes=classes, loss=model.loss, text=text
    )


def job_model_fn(job: Job, data: Any) -> Callable[..., Any]:
    """Return the job's `model_fn`: a model of `model_fns/`, user-defined layers, or a user-defined `model_fn`.

    Args:
        job: The job.
        data: Its data, from `job_inputs`.
    """
    model_fn = _model_fn_of(job, data)
    return with_examples(model_fn) if takes_examples(job) else model_fn


def _model_fn_of(job: Job, data: Any) -> Callable[..., Any]:
    model = job.model
    options = {**model_options(job), "signatures": model.export.signatures, "histograms": job.run.histograms}
    if model.name is not None:
        import model_fns

        return model_fns.model_fn(model.name, params=model_params(job, data), **options)
    function = load_function(model.function or "", field="model.function")
    if is_model_fn(function):
        if job.run.histograms:
            raise ConfigError(
                f"run.histograms is {job.run.histograms}, and model.function {model.function} is a model_fn",
                code="argument/conflict",
                found="a user-defined model_fn writes its own summaries",
                hint="leave run.histograms out; in the model_fn, call tf.compat.v1.summary.histogram(name, values)",
            )
        if model.params and "params" not in inspect.signature(function).parameters:
            raise ConfigError(
                f"model.params are given, and model.function {model.function} has no parameter `params`",
                code="model/bad-function",
                found=f"{(model.function or '').rpartition(':')[2]}{inspect.signature(function)}",
                hint="add the parameter to it, or leave model.params out",
            )
        return function
    require_loss(job)
    return _explaining_mismatches(function, options)


def _explaining_mismatches(layers: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the `model_fn` of user-defined layers, with a clear error for features that the model does not take."""
    models: list[Any] = []
    with_params = takes_params(layers)

    def build(params: Any) -> Any:
        models[:] = [layers(params) if with_params else layers()]
        return models[0]

    inner = build_model_fn(build, **options)

    def model_fn(features: Any, labels: Any, mode: str, params: Any = None, config: Any = None) -> Any:
        try:
            spec = inner(features, labels, mode, params, config)
            refuse_text(models[0] if models else None, features)
            return spec
        except (ValueError, TypeError, KeyError) as error:
            explained = mismatch(models[0], features) if models else None
            if explained is None:
                raise
            raise explained from error
        finally:
            models.clear()  # it belongs to this graph

    return model_fn


def is_model_fn(function: Callable[..., Any]) -> bool:
    """Return whether a user-defined function is a `model_fn(features, …)`; otherwise it builds layers."""
    return next(iter(inspect.signature(function).parameters), None) == "features"


def _has_own_model_fn(job: Job) -> bool:
    function = job.model.function
    return function is not None and is_model_fn(load_function(function, field="model.function"))


def require_loss(job: Job) -> None:
    """Raise a ConfigError if the job has user-defined layers and no loss."""
    if job.model.loss is None and not job.model.outputs:
        raise ConfigError(
            f"model.function {job.model.function} builds layers, and model.loss is not given",
            code="argument/missing",
            hint="add model.loss, such as sparse_categorical_crossentropy; or name a model_fn(features, labels, mode)",
        )


def job_inputs(job: Job) -> Any:
    """Return the job's data: an object with `train_input_fn`, `eval_input_fn` and, if known, `features_spec`."""
    from estimator_pipeline import inputs

    section = job.input
    if isinstance(section, FunctionInput):
        return UserInputs(job, labelled=lambda: not _has_own_model_fn(job))
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
    if section.memory_limit is not None:
        options["memory_limit"] = section.memory_limit
    if section.source == "tfds":
        return inputs.from_tfds(
            section.name,
            data_dir=section.data_dir,
            train_split=section.train_split,
            eval_split=section.eval_split,
            features_key=section.features_key,
            label_key=section.label_key,
            weight_key=section.weight_key,
            scale=section.scale,
            **options,
        )
    if section.source == "tfrecord":
        return inputs.from_tfrecord(
            train=section.train,
            eval=section.eval,
            features=_feature_spec(section.features),
            label_key=section.label_key,
            weight_key=section.weight_key,
            features_key=section.features_key,
            compression="GZIP" if section.compression == "gzip" else None,
            scale=section.scale,
            **options,
        )
    if section.source == "csv":
        return inputs.from_csv(
            train=section.train,
            eval=section.eval,
            columns=section.types(),
            label_key=section.label_key,
            weight_key=section.weight_key,
            features_key=section.features_key,
            delimiter=section.delimiter,
            header=section.header,
            **options,
        )
    return inputs.from_arrays(
        train=_npz(section.train, section.label_key, section.weight_key),
        eval=_npz(section.eval, section.label_key, section.weight_key),
        **options,
    )


def options_of(
    job: Job, data: Any, tf_config: TFConfig, *, evaluator: bool | None, evaluate_during_training: bool | None
) -> TrainOptions:
    """Return the job's training options.

    Args:
        job: The job.
        data: Its data, from `job_inputs`.
        tf_config: Cluster and task of this process.
        evaluator: See `TrainOptions`.
        evaluate_during_training: See `TrainOptions`.
    """
    max_steps = max_steps_of(job, data)
    return TrainOptions(
        evaluator=evaluator,
        evaluate_during_training=evaluate_during_training,
        identity=identity_of(job, data, tf_config, max_steps=max_steps),
        shared=shared_by_tasks(job, max_steps=max_steps),
        accept_changes=job.run.accept_changes,
        preemption_signals=job.run.preemption_signals,
        startup_timeout=job.run.start_timeout_secs or start_secs(),
        ledger=job.run.ledger_folder,
        steps_per_execution=job.train.steps_per_execution,
    )


def max_steps_of(job: Job, data: Any) -> int | None:
    """Return the global step at which training ends, from `max_steps` or `epochs`; None: at the end of the data."""
    epochs = job.train.epochs
    if epochs is None:
        return job.train.max_steps
    if data.num_train_records is None:
        raise ConfigError(
            f"train.epochs is {epochs:g}, and the number of records of a user-defined input function is unknown",
            code="argument/missing",
            hint="give train.max_steps",
        )
    return max(1, round(epochs * data.num_train_records / job.input.global_batch_size))


def _feature_spec(features: Mapping[str, Any]) -> dict[str, Any]:
    tf = compat.tensorflow()
    spec: dict[str, Any] = {}
    for name, feature in features.items():
        dtype = tf.as_dtype(feature.dtype)
        if feature.kind == "raw":
            spec[name] = f"raw {feature.dtype}[{','.join(map(str, feature.shape))}]"
        elif feature.kind == "varlen":
            spec[name] = tf.io.VarLenFeature(dtype)
        else:
            spec[name] = tf.io.FixedLenFeature(feature.shape, dtype, feature.default)
    return spec


def _npz(path: str, label_key: str | list[str], weight_key: str | None) -> Any:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the file {path} cannot be read: {error}", code="data/unreadable", hint="give an .npz file of plain arrays"
        ) from error
    labels = [label_key] if isinstance(label_key, str) else label_key
    for key in (*labels, weight_key):
        if key is not None and key not in arrays:
            raise ConfigError(
                f"{path} has no array {key!r}", code="data/missing-feature", found=f"arrays: {', '.join(arrays)}"
            )
    label: Any = {name: arrays.pop(name) for name in labels}
    if weight_key is not None:
        label[weight_key] = arrays.pop(weight_key)
    elif isinstance(label_key, str):
        label = label[label_key]
    # A single array beside the label is the model's input itself, not a dictionary.
    return (next(iter(arrays.values())) if len(arrays) == 1 else arrays), label
