"""The data of a job file: of a source of `estimator_pipeline.inputs`, or of user-defined input functions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError
from estimator_pipeline.job import FunctionInput, Job
from estimator_pipeline.job.user_code import describe_type, load_function, own_code
from estimator_pipeline.utils.fixes import of_job_file

__all__ = ["arrays_of", "common_options", "compression_of", "feature_spec", "is_model_fn", "job_inputs"]

# Fields of the section `input` that are arguments of every factory, those of them that may be None, and those of the
# factory of a source.
_OPTIONS = (
    "global_batch_size", "eval_batch_size", "seed", "shuffle", "shard_policy", "worker_seeds", "drop_remainder",
)  # fmt: skip
_OPTIONAL = ("prefetch", "memory_limit")
_KEYS = ("features_key", "label_key", "weight_key")
_FIELDS = {
    "tfds": (*_KEYS, "data_dir", "train_split", "eval_split", "scale"),
    "tfrecord": (*_KEYS, "train", "eval", "scale"),
    "csv": (*_KEYS, "train", "eval", "eval_fraction", "delimiter", "header", "encoding"),
    "parquet": (*_KEYS, "train", "eval", "eval_fraction"),
    "images": ("train", "eval", "eval_fraction", "size", "channels", "scale"),
}


@of_job_file()
def job_inputs(job: Job) -> Any:
    """Return the job's data: an object with `train_input_fn`, `eval_input_fn` and, if known, `features_spec`."""
    from estimator_pipeline import inputs

    section = job.input
    if isinstance(section, FunctionInput):
        return UserInputs(job)
    common = common_options(section)
    options = common | {name: getattr(section, name) for name in _FIELDS.get(section.source, ())}
    if job.has_features:
        from estimator_pipeline.engines.jobs.table import table_inputs

        return table_inputs(job, common)
    if section.source == "tfds":
        return inputs.from_tfds(section.name, **options)
    if section.source == "tfrecord":
        return inputs.from_tfrecord(
            features=feature_spec(section.features), compression=compression_of(section), **options
        )
    if section.source == "csv":
        options |= {} if section.null_words is None else {"null_words": section.null_words}
        return inputs.from_csv(columns=section.types(), **options)
    if section.source == "parquet":
        return inputs.from_parquet(columns=section.types(), **options)
    if section.source == "images":
        return inputs.from_images(classes=job.model.label_vocabulary or None, **options)
    return inputs.from_arrays(
        train=_npz(section.train, section.label_key, section.weight_key),
        eval=_npz(section.eval, section.label_key, section.weight_key),
        **options,
    )


def common_options(section: Any) -> dict[str, Any]:
    """Return the fields of a section `input` that are options of every factory."""
    options = {name: getattr(section, name) for name in _OPTIONS}
    return options | {name: value for name in _OPTIONAL if (value := getattr(section, name)) is not None}


def compression_of(section: Any) -> str | None:
    """Return the compression of TFRecord files, as `from_tfrecord` takes it."""
    return "GZIP" if section.compression == "gzip" else None


def is_model_fn(function: Callable[..., Any]) -> bool:
    """Return whether a user-defined function is a `model_fn(features, …)`; otherwise it builds layers."""
    return next(iter(inspect.signature(function).parameters), None) == "features"


def feature_spec(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the feature spec of `from_tfrecord` for `input.features`."""
    tf = compat.tensorflow()
    spec: dict[str, Any] = {}
    for name, feature in features.items():
        dtype = tf.as_dtype(feature.dtype)
        if feature.kind in ("raw", "image"):
            spec[name] = f"{feature.kind} {feature.dtype}[{','.join(map(str, feature.shape))}]"
            spec[name] += " resize" if feature.resize else ""
        elif feature.kind == "varlen":
            spec[name] = tf.io.VarLenFeature(dtype)
        else:
            spec[name] = tf.io.FixedLenFeature(feature.shape, dtype, feature.default)
    return spec


def arrays_of(path: str) -> dict[str, Any]:
    """Return the arrays of an .npz file.

    Raises:
        ConfigError: It cannot be read.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the file {path} cannot be read: {error}", code="data/unreadable", hint="give an .npz file of plain arrays"
        ) from error


def _npz(path: str, label_key: str | list[str], weight_key: str | None) -> Any:
    arrays = arrays_of(path)
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


class UserInputs:
    """Training and evaluation data of a job with `source: function`. The number of records is unknown.

    Raises:
        ConfigError: A function does not exist, or cannot be called with the required arguments.
    """

    features_spec = serving_spec = parse_examples = None
    transform = None
    single_feature = None
    num_train_records = None
    num_classes = None
    class_names = ()

    def __init__(self, job: Job) -> None:
        section = job.input
        assert isinstance(section, FunctionInput)
        self._job, self._params = job, dict(section.params)
        self.train_input_fn = self._bound(section.train, field="input.train", to_the_end=False)
        self.eval_input_fn = self._bound(section.eval, field="input.eval", to_the_end=job.eval.steps is None)

    def _bound(self, reference: str, *, field: str, to_the_end: bool) -> Callable[..., Any]:
        function = load_function(reference, field=field)
        signature = inspect.signature(function)
        name = f"{reference.rpartition(':')[2]}{signature}"
        if "input_context" not in signature.parameters:
            raise ConfigError(
                f"{field}: {reference} has no parameter `input_context`",
                code="data/bad-input-fn",
                found=name,
                hint="add `input_context=None` and shard by it: without it every worker reads the same records",
            )
        try:
            signature.bind(input_context=None, **self._params)
        except TypeError as error:
            raise ConfigError(
                f"{field}: {reference} cannot be called with input.params: {error}",
                code="data/bad-input-fn",
                found=f"{name}; input.params: {', '.join(self._params) or 'none'}",
                hint="give input.params the names of its parameters, for training and evaluation alike",
            ) from error

        # TensorFlow passes the context by the parameter's name, and not to a function that has only **kwargs.
        def input_fn(input_context: Any = None) -> Any:
            with own_code(f"{field}: {reference}", kind=_failure, code="data/bad-input-fn"):
                data = function(input_context=input_context, **self._params)
            self._check(data, f"{field}: {reference}", to_the_end=to_the_end)
            return data

        return input_fn

    def _check(self, data: Any, who: str, *, to_the_end: bool) -> None:
        tf, function, engine = compat.tensorflow(), self._job.model.function, self._job.run.engine
        # A user-defined model_fn may need no labels.
        labelled = function is None or not is_model_fn(load_function(function, field="model.function"))
        pair = isinstance(data, tuple) and len(data) == 2
        hint = "return a tf.data.Dataset of (features, labels)"
        if isinstance(data, tf.data.Dataset):
            spec = data.element_spec
            if labelled and not (isinstance(spec, tuple) and len(spec) == 2):
                raise ConfigError(
                    f"{who} gives no labels" if not isinstance(spec, tuple) else f"{who} gives other than two things",
                    code="data/bad-input-fn",
                    found=f"elements {_short(spec)}",
                    hint=f"{hint}; weights of records go into them, see input.weight_key",
                )
            if to_the_end and tf.executing_eagerly() and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
                raise ConfigError(
                    f"{who} gives data without an end, and an evaluation reads to the end",
                    code="data/endless",
                    found="a dataset that is repeated forever, and eval.steps null",
                    hint="leave repeat() out of it, or set eval.steps",
                )
            return
        if engine != "estimator":
            raise ConfigError(
                f"{who} returns {describe_type(data)}, and the engine {engine} reads a tf.data.Dataset",
                code="data/bad-input-fn",
                found=_short(data),
                hint=hint,
            )
        if not (pair if labelled else pair or tf.is_tensor(data) or isinstance(data, Mapping)):
            raise ConfigError(
                f"{who} returns {describe_type(data)}", code="data/bad-input-fn", found=_short(data), hint=hint
            )
        if to_the_end and _never_ends(data):
            raise ConfigError(
                f"{who} gives the same tensors again and again, and an evaluation reads to the end",
                code="data/endless",
                found="constant tensors, and eval.steps null",
                hint=f"{hint}, or set eval.steps",
            )


def _failure(error: Exception) -> type[PipelineError]:
    """Return ConfigError for bad input, TaskFailedError if a retry may succeed, such as after a lost file system."""
    tf = compat.tensorflow()
    lasting = (FileNotFoundError, tf.errors.NotFoundError, tf.errors.InvalidArgumentError)
    passing = (OSError, MemoryError, tf.errors.OpError)
    return TaskFailedError if isinstance(error, passing) and not isinstance(error, lasting) else ConfigError


def _never_ends(data: Any) -> bool:
    """Return whether tensors depend only on constants, so that they never run out of records."""
    tf = compat.tensorflow()
    tensors = [tensor for tensor in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(tensor)]
    if tf.executing_eagerly():
        return True
    seen, waiting = set(), [tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if operation.op_def.is_stateful:
            return False
        if operation not in seen:
            seen.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
    return True


def _short(value: Any) -> str:
    """Return the value in one line; tensors as dtype and shape."""
    tf = compat.tensorflow()
    with contextlib.suppress(TypeError, ValueError):  # a structure without order, such as a dict of mixed keys
        value = tf.nest.map_structure(lambda leaf: _TensorText(leaf) if tf.is_tensor(leaf) else leaf, value)
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


class _TensorText:
    def __init__(self, tensor: Any) -> None:
        self._text = f"{tensor.dtype.name} {tensor.shape}"

    def __repr__(self) -> str:
        return self._text
