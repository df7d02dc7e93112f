"""TF_CONFIG itself: by hand, from Kubeflow's TFJob, Ray Train, TonY, SageMaker's parameter servers, and our launcher.

* Kubeflow's training operator sets it in every pod of a TFJob of more than one replica, with `"environment":
  "cloud"`: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/
* Ray Train's TensorflowTrainer sets it on each worker:
  https://docs.ray.io/en/latest/train/distributed-tensorflow-keras.html
* All dialects are those of `estimator_pipeline.cluster.spec`.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation
from estimator_pipeline.cluster.spec import from_environ

__all__ = ["TFConfigVariable"]


class TFConfigVariable:
    """A process with its task in TF_CONFIG."""

    name = "tf_config"
    variables = ("TF_CONFIG",)

    def matches(self, environ: Mapping[str, str]) -> bool:
        return bool(environ.get("TF_CONFIG", "").strip())

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        config = from_environ(environ)
        return Allocation(environment=self.name, job_id="tf_config", tf_config=config)
