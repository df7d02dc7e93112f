"""Kubernetes: pods of an Indexed Job, of a JobSet, and of a StatefulSet. Kubeflow's TFJob sets TF_CONFIG.

* Indexed Job: the pods have JOB_COMPLETION_INDEX, and the host names JOB-INDEX. With a headless Service and
  `subdomain` they find each other by name: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
* JobSet: the host names are JOBSET-REPLICATEDJOB-JOBINDEX-PODINDEX, below a subdomain that is the JobSet's name by
  default: https://jobset.sigs.k8s.io/docs/concepts/
* StatefulSet: the host names are NAME-ORDINAL, below the `serviceName`:
  https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#stable-network-id

Kubernetes gives a container neither the number of pods (it is in the job file) nor its subdomain, so the manifest
does, in these variables:

============================== ====================================================================================
ESTIMATOR_PIPELINE_SERVICE     the headless Service (`subdomain` or `serviceName`). Without it an Indexed Job's pods
                               publish their addresses in a shared folder (`ports: agreed`); a StatefulSet
                               is not recognised, since any pod may have a name that ends in a number
ESTIMATOR_PIPELINE_JOBSET      the JobSet's name, and
ESTIMATOR_PIPELINE_ROLE        the replicated job's: chief, worker, ps or evaluator, one Job each with as many pods as
                               in the job file. `fieldRef` takes both from the pod's labels
                               jobset.sigs.k8s.io/jobset-name and jobset.sigs.k8s.io/replicatedjob-name.
                               Without a JobSet: the role of an Indexed Job that is called NAME-ROLE, one for each
                               role, below one Service
ESTIMATOR_PIPELINE_RESTART     the label jobset.sigs.k8s.io/restart-attempt
POD_IP                         `status.podIP`; the address for other pods, if there is no Service
============================== ====================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from estimator_pipeline.cluster.environments.base import Allocation, contradiction, required, whole_number
from estimator_pipeline.cluster.tasks import TASK_TYPES

__all__ = ["IndexedJob", "JobSet", "StatefulSet"]

SERVICE = "ESTIMATOR_PIPELINE_SERVICE"
JOBSET = "ESTIMATOR_PIPELINE_JOBSET"
ROLE = "ESTIMATOR_PIPELINE_ROLE"
RESTART = "ESTIMATOR_PIPELINE_RESTART"


class IndexedJob:
    """A pod of an Indexed Job."""

    name = "kubernetes_job"
    variables = ("JOB_COMPLETION_INDEX", "HOSTNAME", SERVICE, ROLE, "POD_IP")

    def matches(self, environ: Mapping[str, str]) -> bool:
        return "JOB_COMPLETION_INDEX" in environ

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        index = whole_number(environ, "JOB_COMPLETION_INDEX", source=self.name)
        name = environ.get("HOSTNAME") or hostname
        base = _base_of(name, index, source=self.name, variable="JOB_COMPLETION_INDEX")
        service = environ.get(SERVICE, "").strip()
        role = environ.get(ROLE, "").strip() or None
        if role is not None:
            base = _without_role(base, role, source=self.name)
        pattern = f"{base}-{{index}}" if role is None else f"{base}-{{role}}-{{index}}"
        return Allocation(
            environment=self.name,
            job_id=base,
            rank=index,
            role=role,
            host_pattern=f"{pattern}.{service}" if service else None,
            own_host=f"{name}.{service}" if service else environ.get("POD_IP"),
            restart=whole_number(environ, RESTART, source=self.name, default=0),
        )


class StatefulSet:
    """A pod of a StatefulSet whose manifest names its Service."""

    name = "kubernetes_statefulset"
    variables = ("KUBERNETES_SERVICE_HOST", "HOSTNAME", SERVICE)

    def matches(self, environ: Mapping[str, str]) -> bool:
        named = environ.get(SERVICE, "").strip() and "KUBERNETES_SERVICE_HOST" in environ
        return bool(named) and re.search(r"-[0-9]+$", environ.get("HOSTNAME", "")) is not None

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        name = environ.get("HOSTNAME") or hostname
        service = required(environ, SERVICE, source=self.name)
        match = re.fullmatch(r"(.+)-([0-9]+)", name)
        if match is None:
            raise contradiction(
                self.name,
                f"HOSTNAME={name!r} does not end in the pod's ordinal",
                found=repr(name),
                hint="leave HOSTNAME as Kubernetes sets it, such as train-0.",
            )
        return Allocation(
            environment=self.name,
            job_id=match[1],
            rank=int(match[2]),
            host_pattern=f"{match[1]}-{{index}}.{service}",
            own_host=f"{name}.{service}",
        )


class JobSet:
    """A pod of a JobSet whose replicated jobs are named for their roles."""

    name = "jobset"
    variables = (JOBSET, ROLE, "JOB_COMPLETION_INDEX", SERVICE, RESTART)

    def matches(self, environ: Mapping[str, str]) -> bool:
        return bool(environ.get(JOBSET)) and bool(environ.get(ROLE))

    def read(self, environ: Mapping[str, str], *, hostname: str) -> Allocation:
        jobset = required(environ, JOBSET, source=self.name)
        role = required(environ, ROLE, source=self.name)
        _check_role(role, source=self.name, hint="name each replicated job of the JobSet for what its pods do.")
        index = whole_number(environ, "JOB_COMPLETION_INDEX", source=self.name)
        restart = whole_number(environ, RESTART, source=self.name, default=0)
        service = environ.get(SERVICE, "").strip() or jobset
        return Allocation(
            environment=self.name,
            job_id=jobset,
            rank=index,
            role=role,
            host_pattern=f"{jobset}-{{role}}-0-{{index}}.{service}",
            own_host=f"{jobset}-{role}-0-{index}.{service}",
            restart=restart,
        )


def _check_role(role: str, *, source: str, hint: str) -> None:
    if role not in TASK_TYPES:
        raise contradiction(
            source,
            f"{ROLE}={role!r} is not a task type",
            found=f"{role!r}; allowed: {', '.join(TASK_TYPES)}",
            hint=hint,
        )


def _without_role(base: str, role: str, *, source: str) -> str:
    """Return the name that the Jobs of all roles have in common."""
    _check_role(role, source=source, hint="set it to what the Job's pods do.")
    stem = base.removesuffix(f"-{role}")
    if stem == base or not stem:
        raise contradiction(
            source,
            f"the Job is called {base!r}, and {ROLE} is {role!r}",
            found=f"a name that does not end in -{role}",
            hint=f"call the Jobs NAME-chief, NAME-worker, NAME-ps and NAME-evaluator, or leave {ROLE} out.",
        )
    return stem


def _base_of(name: str, index: int, *, source: str, variable: str) -> str:
    """Return the Job's name: the host name without the index at its end."""
    # Kubernetes truncates the host name of a pod whose name is longer than 63 characters, but keeps the index.
    match = re.fullmatch(r"(.+)-([0-9]+)", name.split(".")[0])
    if match is None or int(match[2]) != index:
        raise contradiction(
            source,
            f"HOSTNAME={name!r} does not end in {variable}={index}",
            found=repr(name),
            hint="leave the pod's host name to the Job controller (no `hostname` in the template), "
            "and completionMode: Indexed.",
        )
    return match[1]
