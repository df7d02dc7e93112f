"""Grid Engine (Sun, Univa, Altair, Son of, Open): one task on each host of a parallel environment.

PE_HOSTFILE names a file with a line "host slots queue processors" for each host (sge_pe(5)); JOB_ID, SGE_TASK_ID
("undefined" outside of an array) and RESTARTED are set for every job (qsub(1)). Nothing numbers the processes that
`qrsh -inherit` starts, so they are found by their host. PE_HOSTFILE must reach them (`qrsh -inherit -V`) and be
readable there. Only QRSH_PORT shows that a shell is interactive; a job without a parallel environment has no
PE_HOSTFILE.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation, in_file, on_own_host, required

__all__ = ["GridEngine"]


class GridEngine:
    """A process on a host of a Grid Engine job."""

    name = "grid_engine"
    variables = ("JOB_ID", "PE_HOSTFILE", "SGE_TASK_ID", "RESTARTED")

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "JOB_ID" in environ and "PE_HOSTFILE" in environ

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        job = required(environ, "JOB_ID", source=self.name)
        element = environ.get("SGE_TASK_ID", "undefined")
        lines = in_file(environ, "PE_HOSTFILE", source=self.name)
        return on_own_host(
            self.name,
            [line[0] for line in lines],
            hostname,
            variable="PE_HOSTFILE",
            job_id=job if element == "undefined" else f"{job}.{element}",
            restart=int(environ.get("RESTARTED") == "1"),
        )
