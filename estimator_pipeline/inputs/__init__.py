"""Data for Estimators: each factory gives `train_input_fn` and `eval_input_fn`.

    from estimator_pipeline import inputs

    data = inputs.from_tfds("digits", global_batch_size=64, scale=1 / 16)

=================== ==============================================================
`from_tfds`         a TensorFlow Datasets data set by name; `digits` needs no network
`from_tfrecord`     TFRecord files with a feature spec
`from_csv`          CSV files
`from_arrays`       NumPy arrays
`partition`         a data set written as TFRecord files, one part for each worker
`from_partition`    what it wrote
`Inputs`            what they return
`InputOptions`      the options that all of them share
=================== ==============================================================

Names are imported when they are first used; TensorFlow when a factory is first called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "InputFn": "input_fn",
    "InputOptions": "options",
    "Inputs": "input_fn",
    "Order": "order",
    "Partition": "parts",
    "Replicas": "plan",
    "from_arrays": "arrays",
    "from_csv": "csv_files",
    "from_partition": "parts",
    "from_tfds": "tfds_source",
    "from_tfrecord": "tfrecord",
    "partition": "parts",
}

__all__ = [
    "InputFn",
    "InputOptions",
    "Inputs",
    "Order",
    "Partition",
    "Replicas",
    "from_arrays",
    "from_csv",
    "from_partition",
    "from_tfds",
    "from_tfrecord",
    "partition",
]

if TYPE_CHECKING:
    from estimator_pipeline.inputs.input_fn import InputFn, Inputs
    from estimator_pipeline.inputs.options import InputOptions
    from estimator_pipeline.inputs.partition_files import Partition, from_partition, partition
    from estimator_pipeline.inputs.sampler import Order
    from estimator_pipeline.inputs.sharding import Replicas
    from estimator_pipeline.inputs.sources.arrays import from_arrays
    from estimator_pipeline.inputs.sources.csv import from_csv
    from estimator_pipeline.inputs.sources.tfds import from_tfds
    from estimator_pipeline.inputs.sources.tfrecord import from_tfrecord


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
