"""In place of `estimator-pipeline` on the nodes: says which task it would train as, by its own environment."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path

from estimator_pipeline.cluster import resolve
from estimator_pipeline.job import load_job

job = load_job(sys.argv[2])
# Each task tries for a moment whether it could listen at its port. With a task on each node all have the same port,
# and the tests' nodes are one host: one after the other, or a task may meet another's try.
with open(Path(job.run.model_dir) / "one-at-a-time", "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    resolved = resolve(os.environ, job.cluster, ports=job.cluster.ports)
assert resolved is not None
document = {"task": str(resolved.tf_config.task), "node": os.environ["SLURMD_NODENAME"]}
print(json.dumps({**document, "TF_CONFIG": json.loads(resolved.changes["TF_CONFIG"])}))
