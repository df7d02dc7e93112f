"""Flux: a task of a Flux job.

The job shell sets FLUX_JOB_ID, FLUX_JOB_SIZE, FLUX_JOB_NNODES, FLUX_TASK_RANK and FLUX_TASK_LOCAL_ID in every task
(flux-environment(7), https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man7/flux-environment.html).
The hosts are not among them. Inside `flux batch` and `flux alloc` the broker removes them again: a shell there is no
task.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation, required, whole_number

__all__ = ["Flux"]


class Flux:
    """A task of a Flux job."""

    name = "flux"
    variables = ("FLUX_JOB_ID", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES")

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "FLUX_TASK_RANK" in environ and "FLUX_JOB_SIZE" in environ

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        job = required(environ, "FLUX_JOB_ID", source=self.name)
        size = whole_number(environ, "FLUX_JOB_SIZE", source=self.name)
        nodes = whole_number(environ, "FLUX_JOB_NNODES", source=self.name)
        return Allocation(
            environment=self.name,
            job_id=job,
            rank=whole_number(environ, "FLUX_TASK_RANK", source=self.name),
            size=size,
            hosts=("localhost",) * size if nodes == 1 else None,
            start_id=f"flux-{job}",
        )
