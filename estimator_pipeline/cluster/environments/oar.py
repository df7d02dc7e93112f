"""OAR: one task on each host of the job.

OAR_NODEFILE (also OAR_FILE_NODES, OAR_NODE_FILE) names a file with a line for each core, host by host; OAR_JOB_ID is
the job's number (oarsub(1), https://oar.readthedocs.io). Nothing numbers the processes that `oarsh` starts, so they
are found by their host; `oarsh` hands on no variables, so pass these: oarsh HOST OAR_JOB_ID=... OAR_NODEFILE=...
command.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation, in_file, on_own_host, required

__all__ = ["OAR"]

_NODE_FILES = ("OAR_NODEFILE", "OAR_FILE_NODES", "OAR_NODE_FILE")


class OAR:
    """A process on a host of an OAR job."""

    name = "oar"
    variables = ("OAR_JOB_ID", *_NODE_FILES)

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "OAR_JOB_ID" in environ and any(name in environ for name in _NODE_FILES)

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        job = required(environ, "OAR_JOB_ID", source=self.name)
        variable = next((name for name in _NODE_FILES if name in environ), _NODE_FILES[0])
        lines = in_file(environ, variable, source=self.name)
        return on_own_host(self.name, [line[0] for line in lines], hostname, variable=variable, job_id=job)
