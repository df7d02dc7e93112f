"""PBS Professional, OpenPBS and Torque: one task on each host of the job.

PBS_NODEFILE names a file with a line for each process slot, host by host; PBS_JOBID is "123.server", or
"123[4].server" for an element of an array; PBS_ENVIRONMENT is PBS_BATCH or PBS_INTERACTIVE (OpenPBS: qsub(1B);
Torque: "Exported batch environment variables", https://docs.adaptivecomputing.com/torque/). `pbsdsh` numbers its
processes differently in OpenPBS and in Torque, and differently again with `-u`, so they are found by their host:
start one task on each, with `pbsdsh -u` (Torque), `pbsdsh` and chunks with `mpiprocs=1` (PBS), or `mpirun`, which
numbers them itself and comes first.

`submit pbs` starts its tasks by a program that numbers them (`launch/pbs/tasks.py`), with a copy of PBS_NODEFILE, since
PBS writes it on the first host only. Several of them may be on one host.

An interactive shell is not a task. A job script that starts a program once looks the same as a task on the first host;
it then waits for the other hosts with a timeout, and logs that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation, in_file, on_own_host, required, whole_number

__all__ = ["RANK_VARIABLE", "PBS"]

RANK_VARIABLE = "ESTIMATOR_PIPELINE_RANK"


class PBS:
    """A process on a host of a PBS or Torque job."""

    name = "pbs"
    variables = ("PBS_JOBID", "PBS_NODEFILE", "PBS_ENVIRONMENT", RANK_VARIABLE)

    def matches(self, environ: Mapping[str, str]) -> bool:
        if environ.get("PBS_ENVIRONMENT") == "PBS_INTERACTIVE":
            return False
        return "PBS_JOBID" in environ and "PBS_NODEFILE" in environ

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        job = required(environ, "PBS_JOBID", source=self.name)
        lines = in_file(environ, "PBS_NODEFILE", source=self.name)
        number = re.match(r"([0-9]+)(?:\[([0-9]+)\])?", job)
        job_id = job if number is None else ".".join(part for part in number.groups() if part)
        hosts = tuple(line[0] for line in lines)
        if RANK_VARIABLE not in environ:
            return on_own_host(self.name, hosts, hostname, variable="PBS_NODEFILE", job_id=job_id)
        rank = whole_number(environ, RANK_VARIABLE, source=self.name)
        return Allocation(
            environment=self.name,
            job_id=job_id,
            rank=rank,
            size=len(hosts),
            hosts=hosts,
            own_host=hosts[rank] if rank < len(hosts) else None,
            # Each attempt of the supervisor starts all tasks again.
            restart=whole_number(environ, "ESTIMATOR_PIPELINE_ATTEMPT", source=self.name, default=1) - 1,
            start_id=environ.get("ESTIMATOR_PIPELINE_SUPERVISOR"),
        )
