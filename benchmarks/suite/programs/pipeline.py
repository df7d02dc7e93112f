"""The input pipeline alone: records a second, and the bytes of files that one worker's pass over its share reads.

Bytes are counted as the pages of the data's files that the kernel holds afterwards, the files having been dropped from
its cache before: whoever reads, by `read` or by a memory map, read-ahead included.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.pages import drop, resident
from benchmarks.suite.programs import own_estimator, plain_data, plain_layers
from estimator_pipeline import compat


def run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Read for some seconds (`spec["pass"]` false), or one worker's share once, from files that nobody has read."""
    tf = plain_layers.import_tensorflow() if spec["contender"] == "plain" else compat.install()
    files = work.files_of(Path(spec["data"]), "images")
    if spec["pass"]:
        drop(files)
    context = tf.distribute.InputContext(spec["workers"], 0, spec["workers"])
    dataset = _dataset(spec, context)
    if not spec["pass"]:
        return _rate(dataset, spec)
    records = 0
    steps = spec["records"] // spec["workers"] // work.BATCH
    for features, _ in dataset.take(steps):
        records += int(features.shape[0])
    total = sum(Path(path).stat().st_size for path in files)
    return {"records": records, "bytes": resident(files), "share": total / spec["workers"], "total": total}


def _dataset(spec: Mapping[str, Any], context: Any) -> Any:
    import tensorflow as tf

    several = spec["workers"] > 1
    if spec["contender"] == "plain":
        shard = (context.num_input_pipelines, context.input_pipeline_id) if several else None
        return plain_data.dataset(spec["data"], "images", work.BATCH, shard=shard, cache=spec["cached"])
    data = own_estimator.inputs_of(
        spec,
        work.MODELS["cnn"],
        global_batch_size=work.BATCH * spec["workers"],
        seed=1,
        memory_limit=2**30 if spec["cached"] else 0,
        shard_policy=spec["policy"],
    )
    return data.train_input_fn(context if several else tf.distribute.InputContext())


def _rate(dataset: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
    """One pass over the data warms up; then the time that reading takes, and nothing is done with what is read."""
    batches = iter(dataset)
    for _ in range(spec["records"] // work.BATCH):
        next(batches)
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < spec["seconds"]:
        # The clock is looked at now and then.
        for _ in range(8):
            next(batches)
        count += 8
    return {"records_per_sec": count * work.BATCH / (time.monotonic() - begun)}
