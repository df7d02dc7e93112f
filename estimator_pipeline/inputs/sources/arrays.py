"""Data in NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import FactoryOptions, make_options
from estimator_pipeline.inputs.source import ArraySource, Source
from estimator_pipeline.inputs.subset import open_splits
from estimator_pipeline.utils.text import few

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["from_arrays", "named_arrays"]


def from_arrays(
    train: tuple[Any, Any] | None = None,
    eval: tuple[Any, Any] | None = None,
    *,
    features_key: str = "features",
    label_key: str = "label",
    **options: Unpack[FactoryOptions],
) -> Inputs:
    """Read arrays in memory as an `input_fn`.

    Args:
        train: (features, labels), each an array with the records along its first axis, or a dict of arrays.
        eval: The same for evaluation.
        features_key: The name of the feature if `features` is one array; the model gets it as a tensor.
        label_key: The name of the label if `labels` is one array.
        **options: See `estimator_pipeline.inputs.options.InputOptions`; global_batch_size is required.

    Returns:
        The data, with `train_input_fn` and `eval_input_fn`.

    Raises:
        InputError: Arrays of different lengths, no records, or an option that can't work.
    """
    settings = make_options("from_arrays", options)
    keys: dict[str, tuple[Any, Any]] = {}

    def opened(kind: str, pair: Any) -> Source:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InputError(
                f"The {kind} data must be (features, labels)",
                code="data/bad-feature",
                found=type(pair).__name__,
                hint="give a pair",
            )
        features, single = named_arrays(pair[0], features_key, kind)
        labels, single_label = named_arrays(pair[1], label_key, kind)
        both = sorted(set(features) & set(labels))
        if both:
            raise InputError(
                f"{both[0]!r} names a feature and a label",
                code="argument/conflict",
                found=f"{kind} data",
                hint="rename one of them",
            )
        arrays = {**features, **labels}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(
                f"The arrays of the {kind} data hold different numbers of records",
                code="data/bad-feature",
                found=", ".join(f"{name}: {count}" for name, count in lengths.items()),
                hint="give each the same first axis",
            )
        keys[kind] = (features_key if single else tuple(features), label_key if single_label else tuple(labels))
        return ArraySource(arrays, description=f"{kind} arrays")

    training, evaluation = open_splits("from_arrays", train, eval, opened)
    if len(set(keys.values())) > 1:
        raise InputError(
            "Training and evaluation data have different structures",
            code="data/bad-feature",
            found=f"features and labels {keys['training']} against {keys['evaluation']}",
            hint="give both the same names",
        )
    chosen_features, chosen_labels = next(iter(keys.values()))
    return Inputs(
        train=training,
        evaluation=evaluation,
        options=settings,
        features_key=chosen_features,
        label_key=chosen_labels,
    )


def named_arrays(value: Any, name: str, kind: str) -> tuple[dict[str, np.ndarray], bool]:
    """Return arrays by name, texts as bytes, and whether the value is a single array."""
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        raise InputError(
            f"the {kind} data are a table, a {type(value).__name__}, with the columns {few(value.columns, 8)}",
            code="data/bad-feature",
            hint="use from_dataframe(frame, label=...), or give its columns as a dictionary, dict(frame)",
        )
    single = not isinstance(value, Mapping)
    arrays = {key: np.asarray(array) for key, array in ({name: value} if single else value).items()}
    for key, array in arrays.items():
        if array.ndim == 0 or (array.dtype == object and not all(isinstance(v, (str, bytes)) for v in array.flat)):
            other = next((v for v in array.flat if not isinstance(v, str | bytes)), None) if array.ndim else None
            raise InputError(
                f"The {kind} array {key!r} is not an array of records",
                code="data/bad-feature",
                found=f"{array.dtype} of shape {array.shape}" + (f", with {other!r}" if array.ndim else ""),
                hint=f"use from_dataframe, or fill missing values, in pandas: frame[{key!r}].astype(object).fillna('')"
                if array.ndim and _is_missing(other)
                else "give an array of numbers or text with the records along its first axis",
            )
        if array.dtype.kind in "OSU":  # TensorFlow's strings are bytes.
            text = [item.encode() if isinstance(item, str) else bytes(item) for item in array.ravel().tolist()]
            arrays[key] = np.array([*text, None], dtype=object)[:-1].reshape(array.shape)
    if not arrays:
        raise InputError(
            f"The {kind} data has no arrays", code="data/empty", found="an empty dict", hint="give at least one"
        )
    return arrays, single


def _is_missing(value: Any) -> bool:
    # NaN, and the marks of pandas, which it does not need here.
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")
    )
