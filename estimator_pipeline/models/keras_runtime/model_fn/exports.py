"""SavedModels of a model_fn: its PREDICT graph on a serving input function, with the weights of a checkpoint.

They have the same format and signatures as those of an Estimator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.eager_blocks import eagerly
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime import evaluation as keras_evaluation
from estimator_pipeline.models.keras_runtime.model_fn.settings import (
    ClassificationOutput,
    PredictOutput,
    RegressionOutput,
    ServingInputReceiver,
    TensorServingInputReceiver,
)

__all__ = [
    "BestExporter", "FinalExporter", "LatestExporter", "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn", "export_saved_model",
]  # fmt: skip


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a serving input function for serialized `tf.Example`.

    Args:
        feature_spec: The feature spec of `tf.io.parse_example`.
        default_batch_size: The batch size of the input; None: any.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        tf = compat.tensorflow()
        name = "input_example_tensor"
        serialized = tf.compat.v1.placeholder(tf.string, [default_batch_size], name=name)
        features = tf.io.parse_example(serialized, dict(feature_spec))
        return ServingInputReceiver(features, {"examples": serialized})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Any, default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a serving input function for tensors with the shapes and dtypes of `features`.

    Args:
        features: A tensor, placeholder or `tf.TensorSpec`, or a dict of them.
        default_batch_size: The batch size of the input; None: any.
    """

    def receiver(name: str, like: Any) -> Any:
        shape = [default_batch_size, *like.shape.as_list()[1:]] if like.shape.rank else like.shape
        return compat.tensorflow().compat.v1.placeholder(like.dtype, shape, name=name)

    def serving_input_receiver_fn() -> ServingInputReceiver:
        if not isinstance(features, Mapping):
            tensor = receiver("input", features)
            return TensorServingInputReceiver(tensor, {"input": tensor})
        tensors = {name: receiver(name, like) for name, like in features.items()}
        return ServingInputReceiver(dict(tensors), tensors)

    return serving_input_receiver_fn


@eagerly
def export_saved_model(
    model: Any, export_dir_base: str, serving_input_receiver_fn: Callable[[], Any],
    assets_extra: Mapping[str, str] | None = None, as_text: bool = False, checkpoint_path: str | None = None,
) -> bytes:  # fmt: skip
    """Write a SavedModel of the latest checkpoint.

    Args:
        model: A ModelFnModel.
        export_dir_base: The folder in which a new folder, named after the time in seconds, is created for the
            SavedModel.
        serving_input_receiver_fn: Creates the placeholders, and the features from them.
        assets_extra: Path below `assets.extra` -> file to copy there.
        as_text: Whether to write the model in text format.
        checkpoint_path: The checkpoint to export; None: the latest.

    Returns:
        The name of the new folder.

    Raises:
        ConfigError: There is no checkpoint, or no output to export.
    """
    tf = compat.tensorflow()
    v1 = tf.compat.v1
    checkpoint = checkpoint_path or tf.train.latest_checkpoint(model.model_dir)
    if checkpoint is None:
        raise ConfigError(
            f"the model cannot be exported: there is no checkpoint in {model.model_dir}",
            code="file/not-found",
            hint="train the model first",
        )
    tf.io.gfile.makedirs(export_dir_base)
    path = keras_evaluation.new_export_folder(export_dir_base)
    with tf.Graph().as_default() as graph:
        v1.train.get_or_create_global_step()
        receiver = serving_input_receiver_fn()
        spec = model.call_model_fn(_features(receiver), None, "infer")
        signatures = _signatures(spec, receiver)
        main_op = tf.group(v1.tables_initializer(), v1.local_variables_initializer())
        with v1.Session(graph=graph) as session:
            v1.train.Saver(v1.global_variables()).restore(session, checkpoint)
            builder = v1.saved_model.Builder(f"{path}.unfinished")
            builder.add_meta_graph_and_variables(
                session, [tf.saved_model.SERVING], signatures, main_op=main_op, strip_default_attrs=True,
                assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            )  # fmt: skip
            builder.save(as_text)
    for name, source in (assets_extra or {}).items():
        target = os.path.join(f"{path}.unfinished", "assets.extra", name)
        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.copy(source, target)
    tf.io.gfile.rename(f"{path}.unfinished", path)
    return os.fsencode(path)


def _features(receiver: Any) -> Any:
    features = receiver.features
    if isinstance(features, Mapping) and isinstance(receiver, TensorServingInputReceiver) and len(features) == 1:
        return next(iter(features.values()))
    return features


def _signatures(spec: Any, receiver: Any) -> dict[str, Any]:
    """Return the signatures by the names of an Estimator's export."""
    inputs = receiver.receiver_tensors
    inputs = dict(inputs) if isinstance(inputs, Mapping) else {"input": inputs}
    outputs = dict(spec.export_outputs or {})
    if not outputs:
        outputs = {"serving_default": PredictOutput(spec.predictions)}
    if len(outputs) == 1:
        outputs = {"serving_default": next(iter(outputs.values()))} | outputs
    signatures = {}
    for name, output in outputs.items():
        signature = _signature(output, inputs)
        if signature is not None:
            signatures[name] = signature
    if not signatures:
        raise ConfigError("the model_fn has no output that can be exported", code="argument/bad-value")
    return signatures


def _signature(output: Any, inputs: dict[str, Any]) -> Any:
    v1 = compat.tensorflow().compat.v1
    utils = v1.saved_model.signature_def_utils
    tensor = next(iter(inputs.values())) if len(inputs) == 1 else None
    text = tensor is not None and tensor.dtype.base_dtype == compat.tensorflow().string
    # Compared by name: heads of libraries return the classes of tf.estimator.
    kind = type(output).__name__
    if kind == ClassificationOutput.__name__:
        return utils.classification_signature_def(tensor, output.classes, output.scores) if text else None
    if kind == RegressionOutput.__name__:
        return utils.regression_signature_def(tensor, output.value) if text else None
    outputs = output.outputs
    if not isinstance(outputs, Mapping):
        outputs = {"output": outputs}
    return utils.predict_signature_def(inputs, dict(outputs))


# Exporters of Keras evaluations, with the arguments of the Estimator's exporters


def LatestExporter(
    name: str, serving_input_receiver_fn: Callable[[], Any], assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False, exports_to_keep: int | None = 5,
) -> keras_evaluation.LatestExporter:  # fmt: skip
    """Export after each evaluation."""
    export = _exporting(serving_input_receiver_fn, assets_extra, as_text)
    return keras_evaluation.LatestExporter(name, export, exports_to_keep=exports_to_keep)


def FinalExporter(
    name: str, serving_input_receiver_fn: Callable[[], Any], assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
) -> keras_evaluation.FinalExporter:  # fmt: skip
    """Export once, when training ends."""
    return keras_evaluation.FinalExporter(name, _exporting(serving_input_receiver_fn, assets_extra, as_text))


def BestExporter(
    name: str = "best_exporter", serving_input_receiver_fn: Callable[[], Any] | None = None,
    event_file_pattern: str = "eval/*.tfevents.*", compare_fn: Callable[..., bool] | None = None,
    assets_extra: Mapping[str, str] | None = None, as_text: bool = False, exports_to_keep: int | None = 5,
) -> keras_evaluation.BestExporter:  # fmt: skip
    """Export after an evaluation that is better than all before it; `event_file_pattern` is not used."""
    export = _exporting(serving_input_receiver_fn, assets_extra, as_text)
    return keras_evaluation.BestExporter(name, export, compare=compare_fn, exports_to_keep=exports_to_keep)


def _exporting(serving: Any, assets: Mapping[str, str] | None, as_text: bool) -> Callable[[Any, str], bytes]:
    return lambda model, folder: export_saved_model(model, folder, serving, assets, as_text)
