"""LSF: tasks started by `blaunch` or by `jsrun`.

Variables: https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-set-job-execution. `blaunch`
without host names starts one task for each slot
(https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-blaunch) and numbers them from 1 in LSF_PM_TASKID, in
the order of LSB_MCPU_HOSTS ("host slots host slots ..."). `jsrun` (the Job Step Manager) numbers them in
JSM_NAMESPACE_RANK, and does not set their hosts. A job script has neither: it is not a task.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation, contradiction, own_place, required, whole_number
from estimator_pipeline.errors import ClusterError

__all__ = ["LSF"]


class LSF:
    """A task of an LSF job."""

    name = "lsf"
    variables = (
        "LSB_JOBID",
        "LSB_JOBINDEX",
        "LSB_MCPU_HOSTS",
        "LSF_PM_TASKID",
        "LSB_RESTART",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        "JSM_NAMESPACE_LOCAL_SIZE",
    )

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "LSB_JOBID" in environ and ("JSM_NAMESPACE_RANK" in environ or "LSF_PM_TASKID" in environ)

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        job = required(environ, "LSB_JOBID", source=self.name)
        element = environ.get("LSB_JOBINDEX", "0")
        job_id = job if element == "0" else f"{job}.{element}"
        restart = int(environ.get("LSB_RESTART", "").upper() == "Y")
        if "JSM_NAMESPACE_RANK" in environ:
            return Allocation(
                environment=self.name,
                job_id=job_id,
                rank=whole_number(environ, "JSM_NAMESPACE_RANK", source=self.name),
                size=whole_number(environ, "JSM_NAMESPACE_SIZE", source=self.name),
                restart=restart,
            )
        hosts = self._slots(environ)
        rank = whole_number(environ, "LSF_PM_TASKID", source=self.name) - 1
        self._check_own(environ, hosts, rank, hostname)
        return Allocation(
            environment=self.name,
            job_id=job_id,
            rank=rank,
            size=len(hosts),
            hosts=tuple(hosts),
            own_host=hosts[rank],
            restart=restart,
        )

    def _slots(self, environ: Mapping[str, str]) -> list[str]:
        text = required(environ, "LSB_MCPU_HOSTS", source=self.name)
        words = text.split()
        pairs = list(zip(words[::2], words[1::2], strict=False))
        if len(words) % 2 or not all(count.isdigit() and int(count) for _, count in pairs):
            raise contradiction(
                self.name,
                f"LSB_MCPU_HOSTS={text!r} is not made of hosts and numbers of slots",
                found=repr(text),
                hint='leave LSB_MCPU_HOSTS as LSF sets it, such as "hostA 2 hostB 2".',
            )
        return [host for host, count in pairs for _ in range(int(count))]

    def _check_own(self, environ: Mapping[str, str], hosts: list[str], rank: int, hostname: str) -> None:
        hint = 'call blaunch without host names (it starts one task for each slot), and ask for slots by "-n N -R '
        hint += 'span[ptile=1]" for one on each host.'
        if not 0 <= rank < len(hosts):
            raise contradiction(
                self.name,
                f"LSF_PM_TASKID={environ['LSF_PM_TASKID']} is not the number of a slot",
                found=f"the slots 1 to {len(hosts)} of LSB_MCPU_HOSTS={environ['LSB_MCPU_HOSTS']!r}",
                hint=hint,
            )
        try:
            own_place([hosts[rank]], hostname, source=self.name, variable="LSB_MCPU_HOSTS")
        except ClusterError:
            raise contradiction(
                self.name,
                f"LSF_PM_TASKID={environ['LSF_PM_TASKID']} is a slot of {hosts[rank]!r}, and this host is {hostname!r}",
                found=f"LSB_MCPU_HOSTS={environ['LSB_MCPU_HOSTS']!r}",
                hint=hint,
            ) from None
