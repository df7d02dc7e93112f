"""Predictions by a SavedModel: an export of a job, of `tf.estimator`, or of any program."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.engines.jobs.loaded import Predictions, range_of
from estimator_pipeline.engines.jobs.served_files import is_tfrecord, open_served
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.options import InputOptions
from estimator_pipeline.inputs.sources.paths import find_files
from estimator_pipeline.inputs.sources.tfrecord import from_tfrecord

__all__ = ["is_export", "predict_with_export"]

_BATCH = 256


def is_export(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the folder of a SavedModel."""
    return os.path.isfile(os.path.join(path, "saved_model.pb"))


def predict_with_export(
    folder: str,
    files: Sequence[str],
    *,
    signature: str = "serving_default",
    keep: Sequence[str] = (),
    batch_size: int | None = None,
    share: tuple[int, int] = (0, 1),
) -> Predictions:
    """Predict the records of files with a SavedModel.

    Args:
        folder: The SavedModel.
        files: See `open_served`. A signature with one input of text gets the records of TFRecord files as they are.
        signature: The key of the signature.
        keep: Columns of table files to return beside the predictions.
        batch_size: Records per batch; 256 by default.
        share: See `LoadedJob.predict`.

    Raises:
        ConfigError: There is no such signature, or its inputs cannot be read from these files.
        InputError: A file is missing or damaged, or lacks a column.
    """
    tf = compat.tensorflow()
    paths = find_files(files, kind="prediction")
    model = tf.saved_model.load(folder)
    if signature not in model.signatures:
        raise ConfigError(
            f"the export has no signature {signature!r}",
            code="argument/unknown-name",
            found=f"{folder}: {', '.join(model.signatures) or 'none'}",
            hint="name one of these with --signature",
        )
    function = model.signatures[signature]
    batched = dict(function.structured_input_signature[1])
    specs = {name: tf.TensorSpec(spec.shape[1:], spec.dtype) for name, spec in batched.items()}
    index, count = share
    options = InputOptions(global_batch_size=count, eval_batch_size=(batch_size or _BATCH) * count)
    serialized = is_tfrecord(paths[0]) and [spec.dtype for spec in specs.values()] == [tf.string]
    if serialized and not keep:
        # The index counts the records; none is parsed here.
        parsed = {"any": tf.io.FixedLenFeature([], tf.string, "")}
        inputs = from_tfrecord(
            eval=paths, features=parsed, label_key=(), global_batch_size=1, eval_batch_size=options.eval_batch_size
        )
        kept = None
    else:
        inputs, kept = open_served(specs, paths, options, single=False, keep=keep)
    shards = inputs.eval_shards(range_of(share))
    start, stop = shards.start, shards.start + shards.records

    def batches() -> Iterator[Mapping[str, np.ndarray]]:
        values: Any
        if serialized:
            source, name = inputs.eval_input_fn.source, next(iter(specs))
            records = (source.raw(shards.ids(number))[0] for number in range(shards.num_batches))
            values = ({name: tf.constant(each, tf.string)} for each in records)
        else:
            values = (features for features, _ in inputs.eval_input_fn(tf.distribute.InputContext(count, index, count)))
        for features in values:
            if len(next(iter(features.values()))):
                yield {name: value.numpy() for name, value in function(**features).items()}

    rows = iter(()) if kept is None else kept.rows(keep, start, stop)
    return Predictions(folder, start, stop, batches(), rows)
