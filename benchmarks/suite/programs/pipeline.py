"""Input pipeline without training: records per second, and bytes that one worker reads in a pass over its share.

The files are dropped from the page cache before the pass; the bytes are their pages in the cache afterwards. This
counts reads by `read` and by memory maps, including read-ahead.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.pages import drop, resident
from benchmarks.suite.programs import estimator_engine, plain_data, plain_layers
from estimator_pipeline import compat


def run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Read for some seconds (`spec["pass"]` is false), or one worker's share once from uncached files."""
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
    data = estimator_engine.inputs_of(
        spec,
        work.MODELS["cnn"],
        global_batch_size=work.BATCH * spec["workers"],
        seed=1,
        memory_limit=2**30 if spec["cached"] else 0,
        shard_policy=spec["policy"],
    )
    return data.train_input_fn(context if several else tf.distribute.InputContext())


def _rate(dataset: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the records per second of reading after a warm-up of one pass; the batches are discarded."""
    batches = iter(dataset)
    for _ in range(spec["records"] // work.BATCH):
        next(batches)
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < spec["seconds"]:
        # The clock is not read for every batch.
        for _ in range(8):
            next(batches)
        count += 8
    return {"records_per_sec": count * work.BATCH / (time.monotonic() - begun)}
