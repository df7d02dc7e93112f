"""AWS Batch: a node of a multi-node parallel job.

https://docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html: AWS_BATCH_JOB_NODE_INDEX, _NUM_NODES and
_MAIN_NODE_INDEX; only the main node's address is set, and only on the others, so the nodes publish their addresses
in a shared folder. AWS_BATCH_JOB_ID of a node ends in "#" and its index; AWS_BATCH_JOB_ATTEMPT counts from 1. The
main node has rank 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation, contradiction, required, whole_number

__all__ = ["AWSBatch"]


class AWSBatch:
    """A node of a multi-node parallel job."""

    name = "aws_batch"
    variables = (
        "AWS_BATCH_JOB_ID",
        "AWS_BATCH_JOB_NODE_INDEX",
        "AWS_BATCH_JOB_NUM_NODES",
        "AWS_BATCH_JOB_MAIN_NODE_INDEX",
        "AWS_BATCH_JOB_ATTEMPT",
    )

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "AWS_BATCH_JOB_NODE_INDEX" in environ

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        job = required(environ, "AWS_BATCH_JOB_ID", source=self.name).partition("#")[0]
        size = whole_number(environ, "AWS_BATCH_JOB_NUM_NODES", source=self.name)
        index = whole_number(environ, "AWS_BATCH_JOB_NODE_INDEX", source=self.name)
        main = whole_number(environ, "AWS_BATCH_JOB_MAIN_NODE_INDEX", source=self.name, default=0)
        if main >= size:
            raise contradiction(
                self.name,
                f"AWS_BATCH_JOB_MAIN_NODE_INDEX={main} is not one of AWS_BATCH_JOB_NUM_NODES={size}",
                found=f"the nodes 0 to {size - 1}",
                hint="leave both variables as AWS Batch sets them.",
            )
        attempt = whole_number(environ, "AWS_BATCH_JOB_ATTEMPT", source=self.name, default=1)
        # The main node ends the job when it ends, as the chief does.
        rank = 0 if index == main else index + 1 if index < main else index
        return Allocation(
            environment=self.name,
            job_id=job,
            rank=rank,
            size=size,
            restart=max(attempt - 1, 0),
            start_id=f"aws_batch-{job}-{attempt}",
        )
