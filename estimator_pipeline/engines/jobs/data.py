"""The data of a job file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.jobs.user_inputs import UserInputs
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import FunctionInput, Job
from estimator_pipeline.job.user_code import load_function

__all__ = ["has_model_fn", "is_model_fn", "job_inputs", "max_steps_of"]


def job_inputs(job: Job) -> Any:
    """Return the job's data: an object with `train_input_fn`, `eval_input_fn` and, if known, `features_spec`."""
    from estimator_pipeline import inputs

    section = job.input
    if isinstance(section, FunctionInput):
        return UserInputs(job, labelled=lambda: not has_model_fn(job))
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


def is_model_fn(function: Callable[..., Any]) -> bool:
    """Return whether a user-defined function is a `model_fn(features, …)`; otherwise it builds layers."""
    return next(iter(inspect.signature(function).parameters), None) == "features"


def has_model_fn(job: Job) -> bool:
    """Return whether the job has a user-defined `model_fn`."""
    function = job.model.function
    return function is not None and is_model_fn(load_function(function, field="model.function"))


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
