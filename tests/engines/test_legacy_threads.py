"""Tasks of a cluster that share one process, each on a thread of its own, as tests of clusters have them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.engines.estimator import legacy
from tests.support import one_weight

tf = compat.install()


@pytest.mark.parametrize("clustered", [True, False])
def test_a_task_on_a_thread_is_left_to_tf_estimator(monkeypatch, tmp_path, clustered):
    """Each took the TF_CONFIG of the process for its own, and they waited for each other for ever."""
    if clustered:
        cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    estimator = tf.estimator.Estimator(one_weight.model_fn(tf), str(tmp_path))
    specs = tf.estimator.TrainSpec(one_weight.input_fn(tf), 1), tf.estimator.EvalSpec(one_weight.input_fn(tf))
    assert isinstance(legacy._cluster_of(estimator, *specs), TFConfig)
    with ThreadPoolExecutor(1) as pool:
        cluster_or_reason = pool.submit(legacy._cluster_of, estimator, *specs).result(60)
    assert ("on a thread" in cluster_or_reason) if clustered else isinstance(cluster_or_reason, TFConfig)
