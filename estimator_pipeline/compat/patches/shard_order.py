"""A warning where automatic sharding takes records from a dataset whose order differs between the workers.

`Model.fit` on several workers lets TensorFlow shard the dataset: each of n workers keeps every n-th record. After a
shuffle without a seed, each has shuffled in a different way: in an epoch some records are read by several workers, and
some by none. The documentation of `AutoShardPolicy` asks for a deterministic order, but nothing checks it
(tensorflow#53693).

Private use: `input_ops.auto_shard_dataset`.
"""

from __future__ import annotations

from typing import Any

NAME = "shard-order"
WHAT = "automatic sharding warns of a shuffle without a seed, after which workers read records twice or never"


def apply() -> None:
    from tensorflow.python.distribute import input_ops

    from estimator_pipeline.compat.internals import dataset_order
    from estimator_pipeline.utils.logger import logger

    shard = input_ops.auto_shard_dataset

    def auto_shard_dataset(dataset: Any, num_shards: int, index: int, *args: Any, **kwargs: Any) -> Any:
        sharded = shard(dataset, num_shards, index, *args, **kwargs)
        if num_shards > 1 and sharded is not dataset:
            policy = dataset.options().experimental_distribute.auto_shard_policy
            operation = dataset_order.differing_order(dataset, of_files=policy.name not in ("AUTO", "FILE"))
            if operation is not None:
                logger.warning(
                    "Automatic sharding keeps every n-th record of the dataset on each worker, but its order differs "
                    "between the workers (%s): in an epoch records are read twice or never. Pass a seed, or shard by "
                    "hand before this operation",
                    operation,
                )
        return sharded

    input_ops.auto_shard_dataset = auto_shard_dataset
