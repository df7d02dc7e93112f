"""Vertex AI custom jobs: CLUSTER_SPEC.

https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training: every replica gets a JSON document
`{"cluster": {"workerpool0": ["host:port"], "workerpool1": [...]}, "environment": "cloud", "task": {"type":
"workerpool0", "index": 0}}`. Worker pool 0 is the primary replica, 1 the workers, 2 the parameter servers, 3 the
evaluator. It sets hosts, ports and roles, so nothing is left to choose. TonY has a variable of the same name with
jobs in it, which is ignored. Pool 2 may also hold reduction servers, which TF_CONFIG cannot distinguish from
parameter servers: set TF_CONFIG manually.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.cluster.environments.base import Allocation, contradiction, required
from estimator_pipeline.cluster.spec import parse_tf_config

__all__ = ["POOLS", "Vertex"]

POOLS = {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps", "workerpool3": "evaluator"}
"""What each worker pool does."""


class Vertex:
    """A replica of a Vertex AI custom job."""

    name = "vertex"
    variables = ("CLUSTER_SPEC",)

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "workerpool0" in environ.get("CLUSTER_SPEC", "")

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        text = required(environ, "CLUSTER_SPEC", source=self.name)
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise contradiction(
                self.name,
                f"CLUSTER_SPEC is not JSON: {error.msg} at column {error.colno}",
                found=repr(text[:120]),
                hint="leave CLUSTER_SPEC as Vertex AI sets it.",
            ) from None
        pools = document.get("cluster") if isinstance(document, dict) else None
        task = document.get("task") if isinstance(document, dict) else None
        if not isinstance(pools, dict) or not isinstance(task, dict) or task.get("type") not in POOLS:
            raise contradiction(
                self.name,
                "CLUSTER_SPEC lacks its cluster or its task",
                found=repr(text[:200]),
                hint="leave CLUSTER_SPEC as Vertex AI sets it.",
            )
        unknown = sorted(set(pools) - set(POOLS))
        if unknown:
            raise contradiction(
                self.name,
                f"CLUSTER_SPEC has the pool {unknown[0]!r}",
                found=f"the pools {', '.join(pools)}; known: {', '.join(POOLS)}",
                hint="set TF_CONFIG by hand.",
            )
        jobs: dict[str, Any] = {POOLS[pool]: addresses for pool, addresses in pools.items() if addresses}
        # A single primary replica is not a cluster: no process listens at its address.
        alone = sum(len(addresses) for addresses in jobs.values()) == 1
        this_task = {"type": POOLS[task["type"]], "index": task.get("index", 0)}
        config = parse_tf_config(
            {"environment": "cloud", "task": this_task, **({} if alone else {"cluster": jobs})},
            source="CLUSTER_SPEC",
        )
        return Allocation(environment=self.name, job_id=str(environ.get("CLOUD_ML_JOB_ID", "vertex")), tf_config=config)
