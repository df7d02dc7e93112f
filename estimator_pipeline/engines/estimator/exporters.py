"""SavedModels: the inputs of a served model, and the exporters of a job file."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.exporting import (
    better,
    require_features_spec,
    served_features,
    tensors_by_name,
)


class _Received(dict[str, Any]):
    """The tensors that a served model takes by name."""

    # Serialized `tf.Example` records, string [B], from which the tensors are parsed unless they are fed.
    examples: Any = None


def serving_receiver(
    features_spec: Mapping[str, Any],
    *,
    single: bool = False,
    examples: Callable[[Any], dict[str, Any]] | None = None,
    transform: Any = None,
) -> Callable[[], Any]:
    """Return a `serving_input_receiver_fn` that takes the features as tensors by name.

    Args:
        features_spec: Feature name -> `tf.TypeSpec` of one record (no batch axis).
        single: Pass the only feature to the model as a tensor, not as a dictionary.
        examples: Parses serialized `tf.Example` records, which the receiver then also takes, for the signatures of a
            model from `with_examples` (`Inputs.parse_examples`).
        transform: Converts these features to the model's (`estimator_pipeline.models.features`).
    """

    def receiver() -> Any:
        tf = compat.tensorflow()
        tensors = _Received()
        if examples is not None:
            tensors.examples = tf.compat.v1.placeholder(tf.string, [None], name="examples")
            for name, parsed in tensors_by_name(examples(tensors.examples)).items():
                tensors[name] = tf.compat.v1.placeholder_with_default(parsed, parsed.shape, name=name)
        else:
            for name, spec in tensors_by_name(features_spec).items():
                tensors[name] = tf.compat.v1.placeholder(spec.dtype, spec.shape, name=name)
        features = served_features(tensors, features_spec)
        if single:
            return tf.estimator.export.TensorServingInputReceiver(next(iter(features.values())), tensors)
        if transform is not None:
            features = transform.bind(tf).served(features)
            if not isinstance(features, Mapping):
                return tf.estimator.export.TensorServingInputReceiver(features, tensors)
        return tf.estimator.export.ServingInputReceiver(features, tensors)

    return receiver


def with_examples(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `model_fn` whose classification and regression take the serialized examples of `serving_receiver`.

    TensorFlow Serving requires it of these signatures; those for prediction still take tensors by name. A receiver
    has the same tensors for all signatures, and its `receiver_tensors_alternatives` add signatures of other names
    (tensorflow/python/saved_model/model_utils/export_utils.py, `build_all_signature_defs`).
    """

    @functools.wraps(model_fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        tf = compat.tensorflow()
        spec = model_fn(*args, **kwargs)
        for output in (spec.export_outputs or {}).values():
            if isinstance(output, (tf.estimator.export.ClassificationOutput, tf.estimator.export.RegressionOutput)):
                output.as_signature_def = functools.partial(_signature_of_examples, type(output), output)
        return spec

    # Estimator looks up which arguments the function takes.
    wrapped.__signature__ = inspect.signature(model_fn)  # type: ignore[attr-defined]
    return wrapped


def _signature_of_examples(kind: Any, output: Any, received: Mapping[str, Any]) -> Any:
    examples = getattr(received, "examples", None)
    return kind.as_signature_def(output, received if examples is None else {"examples": examples})


def make_exporter(
    section: Any,
    features_spec: Mapping[str, Any] | None,
    *,
    single: bool = False,
    examples: Callable[[Any], dict[str, Any]] | None = None,
    transform: Any = None,
) -> Any:
    """Build the `tf.estimator` exporter of a job file's section; see `serving_receiver` for the other arguments.

    Raises:
        ConfigError: The features are unknown (user-defined input functions).
    """
    tf = compat.tensorflow()
    spec = require_features_spec(f"eval.exporters: {section.folder}", features_spec)
    receiver = serving_receiver(spec, single=single, examples=examples, transform=transform)
    keep = section.exports_to_keep or None
    if section.kind == "final":
        return tf.estimator.FinalExporter(section.folder, receiver)
    if section.kind == "latest":
        return tf.estimator.LatestExporter(section.folder, receiver, exports_to_keep=keep)
    compare = better(section.metric or "loss", section.mode or "min")
    return tf.estimator.BestExporter(section.folder, receiver, compare_fn=compare, exports_to_keep=keep)
