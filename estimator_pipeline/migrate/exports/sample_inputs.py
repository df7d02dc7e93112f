"""The inputs for the comparison of two exports: the user's, or random ones that fit the signatures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.migrate.exports.read import EstimatorExport, ExportFeature, Tensor

__all__ = ["records_for"]

_UNKNOWN = 3  # the size for unknown dimensions of a signature


def records_for(
    export: EstimatorExport, *, examples: str | None, inputs: str | None, count: int, seed: int
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Load or draw the inputs of each signature.

    Args:
        export: The old export.
        examples: A TFRecord file of serialized `tf.Example`; its first `count` records are used.
        inputs: An `.npz` file of arrays by input name; their first `count` examples are used.
        count: The number of examples.
        seed: The seed for random examples.

    Returns:
        Signature key -> input -> array, and notes on their origin.

    Raises:
        InputError: A file cannot be read.
        ConfigError: No signature uses a file, or arrays are missing or do not fit.
    """
    records: dict[str, dict[str, Any]] = {}
    drawn: dict[str, Any] = {}
    notes = []
    takes = {"--examples": False, "--inputs": False}
    problems: list[str] = []
    arrays = None if inputs is None else _arrays(inputs, count)
    names = set()
    for key, signature in export.signatures.items():
        records[key] = {}
        size = _batch(signature.inputs, count)
        for name, tensor in signature.inputs.items():
            features = export.parsed.get(tensor.name)
            takes["--inputs" if features is None else "--examples"] = True
            rng = np.random.default_rng([seed, *tensor.name.encode()])
            if features is not None:
                if tensor.name not in drawn:
                    drawn[tensor.name] = (
                        _read(examples, count) if examples is not None else _drawn(features, export, size, rng)
                    )
                records[key][name] = np.array(drawn[tensor.name], object)
            elif arrays is not None:
                names.add(name)
                records[key][name] = _fitting(name, tensor, arrays, problems)
            else:
                records[key][name] = _values(tensor.dtype, _shape(tensor, size), export.words, rng)
    for option, path in (("--examples", examples), ("--inputs", inputs)):
        if path is not None and not takes[option]:
            problems.append(f"{option} {path} is unused: no signature has such inputs")
        if path is None and takes[option]:
            kind = "serialized examples" if option == "--examples" else "tensors"
            notes.append(f"{kind} are random with the seed {seed}; use {option} for real ones")
    problems += [f"{inputs} has {name}, but no signature has this input" for name in arrays or () if name not in names]
    if problems:
        raise ConfigError(
            problems[0],
            code="data/missing-feature",
            found="; ".join(problems[1:]) or None,
            hint="provide the inputs of the signatures",
        )
    return records, notes


def _batch(inputs: Mapping[str, Tensor], count: int) -> int:
    fixed = {tensor.shape[0] for tensor in inputs.values() if tensor.shape and tensor.shape[0] is not None}
    return int(min(fixed)) if fixed else count


def _shape(tensor: Tensor, size: int) -> tuple[int, ...]:
    if not tensor.shape:
        return () if tensor.shape == () else (size,)
    first = size if tensor.shape[0] is None else tensor.shape[0]
    return (first, *(_UNKNOWN if each is None else each for each in tensor.shape[1:]))


def _values(dtype: str, shape: Sequence[int], words: Sequence[bytes], rng: np.random.Generator) -> np.ndarray:
    if dtype == "string":
        known = [*words, b"", b"not in any list"]
        return np.array([known[i] for i in rng.integers(len(known), size=math.prod(shape))], object).reshape(shape)
    if dtype == "bool":
        return rng.integers(2, size=shape).astype(bool)
    numpy_type = compat.tensorflow().as_dtype(dtype).as_numpy_dtype
    if np.issubdtype(numpy_type, np.integer):
        # Larger numbers may be out of range for a table.
        return rng.integers(2, size=shape).astype(numpy_type)
    return rng.normal(size=shape).astype(numpy_type)


def _drawn(
    features: Sequence[ExportFeature], export: EstimatorExport, count: int, rng: np.random.Generator
) -> list[bytes]:
    train = compat.tensorflow().train
    records = []
    for _ in range(count):
        held = {}
        for feature in features:
            size = math.prod(feature.shape)
            if feature.kind != "dense":
                size *= int(rng.integers(4))
            elif feature.default is not None and rng.random() < 0.25:
                continue
            values = _values(feature.dtype, (size,), export.words, rng).tolist()
            if feature.dtype == "string":
                held[feature.name] = train.Feature(bytes_list=train.BytesList(value=values))
            elif feature.dtype == "int64":
                held[feature.name] = train.Feature(int64_list=train.Int64List(value=values))
            else:
                held[feature.name] = train.Feature(float_list=train.FloatList(value=values))
        records.append(train.Example(features=train.Features(feature=held)).SerializeToString())
    return records


def _read(path: str, count: int) -> list[bytes]:
    tf = compat.tensorflow()
    try:
        records = [record.numpy() for record in tf.data.TFRecordDataset(path).take(count)]
    except tf.errors.OpError as error:
        raise InputError(
            f"{path} cannot be read as a TFRecord file", code="data/unreadable", found=error.message[:200]
        ) from error
    if not records:
        raise InputError(f"{path} has no records", code="data/empty")
    return records


def _arrays(path: str, count: int) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name][:count] if file[name].ndim else file[name] for name in file.files}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read as an .npz file of plain arrays", code="data/unreadable", found=str(error)[:200]
        ) from error


def _fitting(name: str, tensor: Tensor, arrays: Mapping[str, np.ndarray], problems: list[str]) -> Any:
    if name not in arrays:
        problems.append(f"the input {name}, {tensor}, is missing")
        return None
    value = arrays[name]
    dtype = "string" if value.dtype.kind in "SU" else value.dtype.name
    shape = tensor.shape
    fits = shape is None or (
        len(shape) == value.ndim and all(a in (None, b) for a, b in zip(shape, value.shape, strict=True))
    )
    if dtype != tensor.dtype or not fits:
        problems.append(f"the input {name} is {tensor}, but the array is {dtype} {list(value.shape)}")
    if value.dtype.kind == "U":
        return np.array([text.encode() for text in value.ravel()], object).reshape(value.shape)
    return value.astype(object) if value.dtype.kind == "S" else value
