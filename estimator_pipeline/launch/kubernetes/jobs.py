"""Kubernetes jobs of this package: submit, status, list and cancel, by kubectl.

All state is in the cluster: the objects have the job's name as a label, and the tasks and a digest of the manifests as
annotations (`estimator_pipeline.launch.kubernetes.manifests`).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError, WaitError
from estimator_pipeline.job.sections.kubernetes import INSTANCE_LABEL
from estimator_pipeline.launch.job_status import JobStatus
from estimator_pipeline.launch.kubernetes.kubectl import KINDS, RESOURCES, JobName, KindUnavailableError, Kubectl
from estimator_pipeline.launch.kubernetes.logs import failure_line, progress_of
from estimator_pipeline.launch.kubernetes.manifests import MANIFEST, MAX_STEPS, Manifests
from estimator_pipeline.launch.kubernetes.status import (
    JobObjects,
    annotation,
    document,
    failure_of,
    first_failure,
    job_objects,
)
from estimator_pipeline.launch.kubernetes.yaml_text import objects_text
from estimator_pipeline.utils.deadline import Deadline

__all__ = ["cancel", "find_objects", "job_status", "list_jobs", "submit"]

POLL_SECS = 1.0
# Seconds after the pods' grace period until the kubelet has reported that they are gone.
_SLACK_SECS = 60.0
# The number of jobs in a list whose logs are read at the same time.
_AT_ONCE = 8
# The number of other objects that a message names.
_SHOWN = 5


def find_objects(kubectl: Kubectl) -> JobObjects | None:
    """Return the objects of a job, None if it has none; raise the errors of `Kubectl.run`."""
    kind = KINDS[kubectl.job.kind]
    # A Job of this name may exist where a JobSet or a TFJob is meant.
    resources = dict.fromkeys((RESOURCES["job"], RESOURCES[kubectl.job.kind], "pods"))
    objects = kubectl.items(",".join(resources))
    workloads = [item for item in objects if item.get("kind") == kind]
    pods = [item for item in objects if item.get("kind") == "Pod"]
    others = [f"{item['kind']}/{item['metadata']['name']}" for item in objects if item["kind"] not in (kind, "Pod")]
    if not workloads:
        # Finished pods without an owner do not conflict with a new job.
        pods = [pod for pod in pods if _is_alive(pod)]
        # Pods that are not being deleted have an owner.
        others += [f"pod/{pod['metadata']['name']}" for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    return job_objects(str(kubectl.job), workloads, pods, others) if workloads or pods or others else None


def _is_alive(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


# Submitting ------------------------------------------------------------------------------------------------------


def submit(manifests: Manifests, *, environ: Mapping[str, str]) -> str | None:
    """Create a job's objects, unless a job of its name exists.

    Returns:
        kubectl's output, a line for each object; None if this job is already running, and nothing was done.

    Raises:
        ConfigError: A job of this name has ended, differs, or is being deleted; or there is no kubectl.
        TaskFailedError: kubectl failed, or the cluster rejected the request.
        WaitError: kubectl did not exit in time.
    """
    kubectl = Kubectl(manifests.job, environ)
    there = find_objects(kubectl)
    if there is None:
        rest = [item for item in manifests.objects if item not in manifests.workloads]
        applied = kubectl.run("apply", "-f", "-", text=objects_text(rest))
        try:
            # Not `apply`, which would change a job that was submitted in the meantime.
            text = objects_text(manifests.workloads)
            return applied + kubectl.run("create", "-f", "-", text=text)
        except TaskFailedError as error:
            if "(AlreadyExists)" not in (error.found or ""):
                raise
        there = find_objects(kubectl)
        if there is None:
            raise ConfigError(
                f"{manifests.job} existed a moment ago, and was deleted.",
                code="jobs/not-found",
                hint="submit it again.",
            )
    _check_same(manifests, there)
    return None


def _check_same(manifests: Manifests, there: JobObjects) -> None:
    """Check that the existing job is running and has the same manifests."""
    job, status = manifests.job, there.status
    numbered = re.fullmatch(r"(.*)-(\d{1,4})", job.name)
    free = f"{numbered[1]}-{int(numbered[2]) + 1}" if numbered else f"{job.name}-2"
    rename = f"give this job a different name: --name {free}"
    if there.others:
        raise ConfigError(
            f"a job of a different kind has the name {job.name}; nothing was submitted.",
            code="jobs/exists",
            found=", ".join(there.others[:_SHOWN]),
            hint=f"cancel that job, or {rename}.",
        )
    if status.state == "Terminating":
        left = len([pod for pod in there.pods if pod.state == "Terminating"]) or len(there.pods)
        raise ConfigError(
            f"a job of the name {job.name} is still being deleted; nothing was submitted.",
            code="jobs/exists",
            found=f"{left} pod{'s'[: left != 1]} of it, with {there.grace:.0f} s to stop with a checkpoint",
            hint=f"wait for them (`kubectl{job.flags} wait --for=delete pod -l {job.selector} --timeout=10m`), "
            f"or {rename}.",
        )
    if status.over:
        raise ConfigError(
            f"{job} was submitted before and has ended ({status.text}); nothing was submitted.",
            code="jobs/exists",
            found="Kubernetes keeps a job that has ended, and does not restart it",
            hint=f"delete it, with its logs: `{job.delete}`; or {rename}. "
            "Either way training resumes from the checkpoint in run.model_dir.",
        )
    old, new = ({annotation(item, MANIFEST) for item in items} for items in (there.workloads, manifests.workloads))
    if old != new:
        raise ConfigError(
            f"{job} is already running, and differs from this job; nothing was submitted.",
            code="jobs/exists",
            found="the job file, the section kubernetes, or the version of estimator-pipeline differs",
            hint=f"stop it with a checkpoint (`estimator-pipeline cancel {job}{job.flags}`) and submit again, "
            f"or {rename} and a different run.model_dir.",
        )


# Status ----------------------------------------------------------------------------------------------------------


def job_status(kubectl: Kubectl) -> JobStatus:
    """Return the status of a job, with the progress and the error from its logs.

    Raises:
        ConfigError: There is no such job.
        TaskFailedError: kubectl failed, or the cluster rejected the request.
    """
    return _with_logs(kubectl, _there(kubectl))


def list_jobs(namespace: str | None, *, environ: Mapping[str, str]) -> list[tuple[JobName, JobStatus]]:
    """List this package's jobs in a namespace, or in that of kubectl's context, the newest first.

    Kinds that the cluster does not know, or that this user may not see, are skipped.

    Raises:
        ConfigError: There is no kubectl.
        TaskFailedError: kubectl failed, or the cluster rejected the request.
    """
    pods = Kubectl(JobName("job", "", namespace), environ).items("pods")
    jobs: list[tuple[str, Kubectl, JobObjects]] = []
    for kind, resource in RESOURCES.items():
        try:
            workloads = Kubectl(JobName(kind, "", namespace), environ).items(resource)
        except KindUnavailableError:
            if kind == "job":
                raise
            continue
        for name in dict.fromkeys(_instance(workload) for workload in workloads):
            same = [workload for workload in workloads if _instance(workload) == name]
            job = JobName(kind, name, namespace)
            there = job_objects(str(job), same, [pod for pod in pods if _instance(pod) == name])
            created = max(workload["metadata"].get("creationTimestamp") or "" for workload in same)
            jobs.append((created, Kubectl(job, environ), there))
    jobs.sort(key=lambda entry: entry[0], reverse=True)
    # Most of the time is spent waiting for logs.
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(lambda entry: (entry[1].job, _with_logs(*entry[1:])), jobs))


def _instance(item: Mapping[str, Any]) -> str:
    return str((item["metadata"].get("labels") or {}).get(INSTANCE_LABEL, ""))


def _with_logs(kubectl: Kubectl, there: JobObjects) -> JobStatus:
    """Return the status of a job, completed from its logs."""
    status, line = there.status, ""
    changes: dict[str, Any] = {}
    if there.newest:
        progress = progress_of(kubectl, there.newest)
        last = annotation(there.workloads[0], MAX_STEPS) if progress and there.workloads else ""
        changes["progress"] = progress | ({"max_steps": int(last)} if last.isdigit() else {})
    if len(there.newest) < len(there.tasks) and status.state in ("Waiting", "Running"):
        changes["reason"] = _warning(kubectl)
    failed = first_failure(there.workloads, there.pods) if status.state == "Failed" else None
    if failed is not None:
        line = failure_line(kubectl, failed)
    if failed is not None and status.text == "failed":
        failure = failure_of(failed, line)
        changes |= {"failure": failure, "text": f"failed: {failure.text()}"}
    return dataclasses.replace(status, more=document(there.newest, failed, line), **changes)


def _there(kubectl: Kubectl) -> JobObjects:
    there, namespace = find_objects(kubectl), kubectl.job.namespace
    if there is None or (there.others and not there.workloads):
        where = f"the namespace {namespace}" if namespace else "the namespace of kubectl's context"
        raise ConfigError(
            f"there is no {kubectl.job} in the cluster.",
            code="jobs/not-found",
            found=f"no object with its labels in {where}: not submitted, or deleted since",
            hint="name the job file that was submitted (with the same --set), or KIND/NAME, such as job/digits; "
            "-n sets the namespace.",
        )
    return there


def _warning(kubectl: Kubectl) -> str:
    """Return the last warning event of a job, such as an exceeded quota."""
    names = re.compile(rf"{re.escape(kubectl.job.name)}(-[-a-z0-9]+)?")
    try:
        text = kubectl.run("get", "events", "--field-selector", "type=Warning", "-o", "json")
        warnings = [
            event
            for event in json.loads(text)["items"]
            if names.fullmatch(event["involvedObject"].get("name") or "")
            and event["involvedObject"].get("kind") in KINDS.values()
        ]
    except (PipelineError, ValueError, KeyError, TypeError):
        return ""
    if not warnings:
        return ""
    last = max(warnings, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    return f"{last.get('reason', '')}: {' '.join(str(last.get('message', '')).split())}"


# Cancel ----------------------------------------------------------------------------------------------------------


def cancel(kubectl: Kubectl, *, report: Callable[[str], None], now: bool = False, poll: float = POLL_SECS) -> None:
    """Delete a job, wait until its pods have ended, and delete its Service and ConfigMap.

    Its pods get SIGTERM, and have kubernetes.termination_grace_seconds to stop with a checkpoint.

    Args:
        kubectl: kubectl for the job.
        report: Called with messages about the progress.
        now: Whether to give the pods only one second.
        poll: Seconds between two checks of the pods.

    Raises:
        ConfigError: There is no such job.
        TaskFailedError: kubectl failed, or the cluster rejected the request.
        WaitError: Pods still exist after their time is up.
    """
    job, there = kubectl.job, _there(kubectl)
    if there.status.ended:
        report(f"{job} has ended already ({there.status.text}); to delete it, with its logs: {job.delete}")
        return
    if there.workloads:
        kubectl.run("delete", RESOURCES[job.kind], "-l", job.selector, "--wait=false")
    if not there.pods:
        report(f"{job}: deleted; it had no pods")
    elif now:
        kubectl.run("delete", "pods", "-l", job.selector, "--grace-period=1", "--wait=false")
        report(f"{job}: killing its pods")
    else:
        report(f"{job}: stopping its pods, which have {there.grace:.0f} s for a checkpoint")
    for _ in Deadline(_SLACK_SECS + (0 if now else there.grace)).polls(poll):
        left = [pod for pod in kubectl.items("pods") if _is_alive(pod)]
        if not left:
            break
    else:
        raise WaitError(
            f"{job} is deleted, and {len(left)} of its pods still exist.",
            code="scheduler/refused",
            found=", ".join(sorted(pod["metadata"]["name"] for pod in left)),
            hint="check whether their nodes answer: `kubectl get nodes`; "
            f"`estimator-pipeline cancel --now {job}{job.flags}` tries again.",
        )
    # The Service is deleted last, since the tasks need it while they stop.
    kubectl.run("delete", "service,configmap", "-l", job.selector)
    report(f"{job}: ended and deleted; submit it again to resume from its last checkpoint")
