"""Kubernetes: manifests of a job file, and jobs by `kubectl`.

Manifests are pure functions of the job (`manifests.py`, `pods.py`); only `kubectl.py` and `logs.py` start kubectl.
Modules are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator_pipeline.utils import lazy

if TYPE_CHECKING:
    from estimator_pipeline.launch.kubernetes import jobs, kubectl, logs, manifests, status, yaml_text

__all__ = ["jobs", "kubectl", "logs", "manifests", "status", "yaml_text"]

__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{name}" for name in __all__})
