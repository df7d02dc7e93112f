"""Data for Estimators: each factory returns `train_input_fn` and `eval_input_fn`.

    from estimator_pipeline import inputs

    data = inputs.from_tfds("digits", global_batch_size=64, scale=1 / 16)

=================== ==============================================================
`from_tfds`         a TensorFlow Datasets data set by name; `digits` needs no network
`from_tfrecord`     TFRecord files with a feature spec
`from_csv`          CSV files
`from_parquet`      Parquet files
`from_dataframe`    data frames of pandas or Polars, Arrow tables
`from_arrays`       NumPy arrays
`from_images`       image files in a folder for each class
`partition`         writes a data set as TFRecord files, one per worker
`from_partition`    reads the files of `partition`
`Inputs`            the result of the factories
`InputOptions`      the options of all factories
=================== ==============================================================

Names are imported on first use, TensorFlow when a factory is first called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator_pipeline.utils import lazy

__all__ = [
    "IndexSampler",
    "InputFn",
    "InputOptions",
    "Inputs",
    "Partition",
    "ShardOptions",
    "from_arrays",
    "from_csv",
    "from_dataframe",
    "from_images",
    "from_parquet",
    "from_partition",
    "from_tfds",
    "from_tfrecord",
    "partition",
]

if TYPE_CHECKING:
    from estimator_pipeline.inputs.input_fn import InputFn, Inputs
    from estimator_pipeline.inputs.options import InputOptions
    from estimator_pipeline.inputs.partition_files import Partition, from_partition, partition
    from estimator_pipeline.inputs.sampler import IndexSampler
    from estimator_pipeline.inputs.sharding import ShardOptions
    from estimator_pipeline.inputs.sources.arrays import from_arrays
    from estimator_pipeline.inputs.sources.csv import from_csv
    from estimator_pipeline.inputs.sources.dataframe import from_dataframe
    from estimator_pipeline.inputs.sources.images import from_images
    from estimator_pipeline.inputs.sources.parquet import from_parquet
    from estimator_pipeline.inputs.sources.tfds import from_tfds
    from estimator_pipeline.inputs.sources.tfrecord import from_tfrecord

_PUBLIC = {
    "InputFn": "estimator_pipeline.inputs.input_fn:InputFn",
    "InputOptions": "estimator_pipeline.inputs.options:InputOptions",
    "Inputs": "estimator_pipeline.inputs.input_fn:Inputs",
    "IndexSampler": "estimator_pipeline.inputs.sampler:IndexSampler",
    "Partition": "estimator_pipeline.inputs.partition_files:Partition",
    "ShardOptions": "estimator_pipeline.inputs.sharding:ShardOptions",
    "from_arrays": "estimator_pipeline.inputs.sources.arrays:from_arrays",
    "from_csv": "estimator_pipeline.inputs.sources.csv:from_csv",
    "from_dataframe": "estimator_pipeline.inputs.sources.dataframe:from_dataframe",
    "from_images": "estimator_pipeline.inputs.sources.images:from_images",
    "from_parquet": "estimator_pipeline.inputs.sources.parquet:from_parquet",
    "from_partition": "estimator_pipeline.inputs.partition_files:from_partition",
    "from_tfds": "estimator_pipeline.inputs.sources.tfds:from_tfds",
    "from_tfrecord": "estimator_pipeline.inputs.sources.tfrecord:from_tfrecord",
    "partition": "estimator_pipeline.inputs.partition_files:partition",
}

__getattr__, __dir__ = lazy.attach(__name__, _PUBLIC)
