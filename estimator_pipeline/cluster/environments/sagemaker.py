"""SageMaker training jobs.

https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md: SM_HOSTS is a JSON list of the
names of all containers, the same on each, and SM_CURRENT_HOST one of them. There is one task in each container. With
SageMaker's own parameter servers the container also gets a TF_CONFIG, which comes first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation, contradiction, required

__all__ = ["SageMaker"]


class SageMaker:
    """A container of a SageMaker training job."""

    name = "sagemaker"
    variables = ("SM_HOSTS", "SM_CURRENT_HOST", "TRAINING_JOB_NAME")

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "SM_HOSTS" in environ and "SM_CURRENT_HOST" in environ

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        text = required(environ, "SM_HOSTS", source=self.name)
        try:
            hosts = json.loads(text)
        except json.JSONDecodeError:
            hosts = None
        if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
            raise contradiction(
                self.name,
                f"SM_HOSTS={text!r} is not a JSON list of names",
                found=repr(text),
                hint='leave SM_HOSTS as SageMaker sets it, such as ["algo-1","algo-2"].',
            )
        current = required(environ, "SM_CURRENT_HOST", source=self.name)
        if hosts.count(current) != 1:
            raise contradiction(
                self.name,
                f"SM_CURRENT_HOST={current!r} is not one of SM_HOSTS",
                found=f"the hosts {', '.join(hosts)}",
                hint="leave both variables as SageMaker sets them.",
            )
        return Allocation(
            environment=self.name,
            job_id=environ.get("TRAINING_JOB_NAME") or "sagemaker",
            rank=hosts.index(current),
            size=len(hosts),
            hosts=tuple(hosts),
            own_host=current,
        )
