"""Check of a built-in model against the data, from file metadata and without TensorFlow."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, of_error, ok
from estimator_pipeline.doctor.job.data_files import array_shapes, data_set_folder, files_of, table_plan_of
from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.inputs.sources import digits
from estimator_pipeline.inputs.sources.images import find_images
from estimator_pipeline.job import ArraysInput, ImagesInput, TableInput, TfdsInput, TFRecordInput
from estimator_pipeline.models.heads import Head, head_of
from estimator_pipeline.models.sample_weights import weighting_of

__all__ = ["check_model"]


@dataclass(frozen=True)
class _Records:
    """The model's input from each record.

    Attributes:
        shapes: Shapes of the features; None where unknown.
        classes: Number of classes of the label; None if unknown.
        text: Names of the string features.
    """

    shapes: Mapping[str, Sequence[int | None] | None]
    classes: int | None = None
    text: Sequence[str] = ()


def check_model(context: Context) -> Iterator[DoctorFinding]:
    """Check that a model of `model_fns/` accepts the job's data."""
    job = context.needed_job()
    name = job.model.name
    if name is None:
        raise CheckSkipped("a custom model function")
    import model_fns

    try:
        records = _records(context)
        shapes = None if records is None else records.shapes
        classes = len(job.model.label_vocabulary) or (None if records is None else records.classes)
        loss = job.model.loss or model_fns.get(name).LOSS
        kind = head_of(loss, job.model.head)
        Head(kind, loss, job.model.label_smoothing, job.model.label_vocabulary)
        weighting = weighting_of(kind, weight_column=job.input.weight_key, class_weights=job.model.weights_of_classes)
        explicit = {**_columns_of_features(context), **job.model.params}
        model_fns.complete(name, explicit)
        params = model_fns.for_data(
            name,
            explicit,
            shapes=shapes,
            classes=classes,
            loss=job.model.loss,
            text=() if records is None else records.text,
        )
        if weighting is not None:
            weighting.check_units({**model_fns.complete(name, params)}.get("classes"))
    except ConfigError as problem:
        yield of_error(problem, "every task fails with this error")
        return
    labels = {"input_shape": "inputs of shape", "classes": "classes:"}
    fits = [f"{label} {_text(params[key])}" for key, label in labels.items() if key in params]
    columns = getattr(model_fns.get(name), "columns", lambda params: ())(model_fns.complete(name, params))
    if columns:
        fits.insert(0, f"columns {', '.join(columns)}")
    values: list[DoctorFinding] = []
    if isinstance(job.input, TableInput) and not context.other_files:
        with contextlib.suppress(InputError):  # reported by the check of the data
            values += [finding for files in files_of(context) for finding in files.values]
    yield from values or [ok(f"{name}: {', '.join(fits)}" if fits else f"{name}: all parameters are known")]


def _columns_of_features(context: Context) -> dict[str, Any]:
    """Return the columns of a model whose features are found in a table; their kinds are not known yet."""
    job = context.needed_job()
    if not job.has_features:
        return {}
    try:
        return {"numeric": list(context.once(table_plan_of)[0].raw)}
    except InputError:
        return {"numeric": ["unknown"]}  # reported by the check of the data


def _records(context: Context) -> _Records | None:
    """Return the model's input; None if the metadata does not contain it."""
    section = context.needed_job().input
    if isinstance(section, TfdsInput):
        return _of_data_set(context, section)
    if isinstance(section, TFRecordInput):
        features = {
            name: feature.shape if feature.kind != "varlen" else None for name, feature in section.features.items()
        }
        types: dict[str, str] = {name: feature.dtype for name, feature in section.features.items()}
        return _chosen(features, section.features_key, section, types)
    if isinstance(section, TableInput):
        if context.needed_job().has_features:
            return None
        types = {name: dtype for name, (dtype, _) in section.types().items()}
        return _chosen(dict.fromkeys(section.columns or (), ()), section.features_key, section, types)
    if isinstance(section, ImagesInput):
        try:
            images = find_images(section.train, use="training")
        except InputError:
            return None  # reported by the check of the data
        return _Records({"image": (*section.size, section.channels)}, len(images.classes))
    if isinstance(section, ArraysInput):
        try:
            shapes = array_shapes("training", section.train)
        except InputError:
            return None  # reported by the check of the data
        return _chosen({name: shape[1:] for name, shape in shapes.items()}, None, section)
    return None


def _chosen(
    shapes: Mapping[str, Sequence[int] | None],
    features_key: Any,
    section: TFRecordInput | TableInput | ArraysInput,
    types: Mapping[str, str] | None = None,
) -> _Records:
    names = [features_key] if isinstance(features_key, str) else features_key
    others = (*section.labels, section.weight_key)
    features = {name: shape for name, shape in shapes.items() if name not in others and (not names or name in names)}
    return _Records(features, text=[name for name in features if (types or {}).get(name) == "string"])


def _of_data_set(context: Context, section: TfdsInput) -> _Records | None:
    folder = data_set_folder(context, section)
    if folder is None:
        plain = section.features_key in (None, "image") and section.label_key in (None, "label")
        return _Records({"image": digits.SHAPE}, digits.CLASSES) if section.name == "digits" and plain else None
    try:
        info, features = (_document(folder, name) for name in ("dataset_info.json", "features.json"))
        features = features["featuresDict"]["features"]
        supervised = [item["featureKey"] for item in info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])]
        keys = [section.features_key or supervised[0], *(section.labels or supervised[1:])][:2]
        image, label = (features[key] for key in keys)
        shape = (image.get("image") or image.get("tensor"))["shape"]["dimensions"]
        # TFDS writes an axis of unknown length as -1.
        sizes = [int(size) if int(size) >= 0 else None for size in shape]
        classes = label.get("classLabel", {}).get("numClasses")
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None  # A different kind of description: the job reads it with TFDS.
    return _Records({keys[0]: sizes}, None if classes is None else int(classes))


def _document(folder: str, name: str) -> Any:
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple | list) else str(value)
