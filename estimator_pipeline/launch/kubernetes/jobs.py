"""Jobs in Kubernetes that this package has submitted: sent off once, looked at and ended, by kubectl.

There is no record but the cluster's: the objects bear the job's name as a label, and the tasks and a digest of the
manifests as annotations (:mod:`~estimator_pipeline.launch.kubernetes.manifests`).
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ruamel.yaml import YAML, YAMLError

from estimator_pipeline.errors import ConfigError, PipelineError, WaitError
from estimator_pipeline.job.sections.kubernetes import INSTANCE_LABEL
from estimator_pipeline.launch.kubernetes import kubectl
from estimator_pipeline.launch.kubernetes.kubectl import RESOURCES, JobName
from estimator_pipeline.launch.kubernetes.logs import last_words, progress_of
from estimator_pipeline.launch.kubernetes.manifests import KINDS, Manifests
from estimator_pipeline.launch.kubernetes.pods import JOB_FILE
from estimator_pipeline.launch.kubernetes.status import (
    KubernetesStatus,
    PodState,
    first_failure,
    manifests_of,
    max_steps_of,
    status_of,
    tasks_of_workloads,
)
from estimator_pipeline.launch.kubernetes.yaml_text import manifest_text

__all__ = ["cancel", "job_name", "job_status", "list_jobs", "look", "submit"]

POLL_SECS = 1.0
# Beside the grace of the pods: until the kubelet has said that they are gone.
_SLACK_SECS = 60.0
# Of the list of jobs: so many are asked for their logs at once.
_AT_ONCE = 8
# Of a job that differs from the one that is there: so many fields are named.
_SHOWN = 5


class JobObjects(NamedTuple):
    """What is there of a job.

    Attributes:
        workloads: What runs its pods, as the API gives it.
        others: What runs pods of the same name, and is of another kind.
        status: How it stands.
        pods: All of them, those of earlier attempts too.
        grace: Seconds that its pods have between SIGTERM and SIGKILL.
    """

    workloads: Sequence[Mapping[str, Any]]
    others: Sequence[str]
    status: KubernetesStatus
    pods: Sequence[PodState]
    grace: float


def job_name(manifests: Manifests) -> JobName:
    """The job that manifests make."""
    return JobName(manifests.kind, manifests.name, manifests.namespace)


def look(job: JobName, *, environ: Mapping[str, str]) -> JobObjects | None:
    """What is there of a job; None where nothing runs, and nothing is left.

    Raises:
        ConfigError: There is no kubectl.
        TaskFailedError: kubectl or the cluster refused.
    """
    # Jobs are known to every cluster, and one of this name may be there where a JobSet or a TFJob is meant.
    resources = dict.fromkeys((RESOURCES["job"], RESOURCES[job.kind], "pods"))
    found = kubectl.items(",".join(resources), job=job, environ=environ)
    workloads = [one for one in found if one.get("kind") == KINDS[job.kind]]
    pods = [one for one in found if one.get("kind") == "Pod"]
    others = [
        f"{one['kind']}/{one['metadata']['name']}" for one in found if one["kind"] not in (KINDS[job.kind], "Pod")
    ]
    if not workloads:
        # What has ended by itself and belongs to nobody is in nobody's way.
        pods = [one for one in pods if one.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
        # Pods that nobody has asked to end are run by something.
        others += [f"pod/{one['metadata']['name']}" for one in pods if not one["metadata"].get("deletionTimestamp")]
    if not workloads and not pods and not others:
        return None
    return _looked(job, workloads, others, pods)


def _looked(
    job: JobName,
    workloads: Sequence[Mapping[str, Any]],
    others: Sequence[str],
    pods: Sequence[Mapping[str, Any]],
) -> JobObjects:
    status, every = status_of(str(job), workloads, pods)
    grace = max((float(one["spec"].get("terminationGracePeriodSeconds") or 0) for one in pods), default=0.0)
    return JobObjects(workloads, others, status, every, grace)


# Submitting ------------------------------------------------------------------------------------------------------


def submit(manifests: Manifests, *, environ: Mapping[str, str]) -> str | None:
    """Makes a job's objects, unless a job of its name is there.

    Returns:
        What kubectl said, a line for each object; None where this very job runs, and nothing was done.

    Raises:
        ConfigError: A job of this name has ended, is another one, or is being deleted; or there is no kubectl.
        TaskFailedError: kubectl or the cluster refused.
        WaitError: It did not end in time.
    """
    job = job_name(manifests)
    if (there := look(job, environ=environ)) is not None:
        _check_same(manifests, there, environ)
        return None
    kinds = (KINDS[job.kind],)
    around, own = _split(manifests, lambda made: made["kind"] in kinds)
    said = kubectl.checked(["apply", "-f", "-"], job=job, environ=environ, text=manifest_text(around))
    # Not `apply`, which would change a job that somebody else has submitted since.
    made = kubectl.created(manifest_text(own), job=job, environ=environ)
    if made is None:
        there = look(job, environ=environ)
        if there is None:
            raise ConfigError(
                f"{job} was there a moment ago, and is gone.", code="jobs/not-found", hint="submit it again."
            )
        _check_same(manifests, there, environ)
        return None
    return said + made


def _split(manifests: Manifests, chosen: Callable[[dict[str, Any]], bool]) -> tuple[Manifests, Manifests]:
    rest = tuple(made for made in manifests.objects if not chosen(made))
    own = tuple(made for made in manifests.objects if chosen(made))
    return dataclasses.replace(manifests, objects=rest), dataclasses.replace(manifests, objects=own)


def _check_same(manifests: Manifests, there: JobObjects, environ: Mapping[str, str]) -> None:
    """Whether the job that is there is the one of the manifests, and runs."""
    job = job_name(manifests)
    other = f"give this one another name: --name {_next_name(job.name)}"
    status = there.status
    if there.others:
        raise ConfigError(
            f"there is another kind of job of the name {job.name}, and nothing was submitted.",
            code="jobs/exists",
            found=", ".join(there.others[:_SHOWN]),
            hint=f"end that one, or {other}.",
        )
    if status.state == "Terminating":
        left = len([pod for pod in there.pods if pod.state == "Terminating"]) or len(there.pods)
        raise ConfigError(
            f"a job of the name {job.name} is still ending, and nothing was submitted.",
            code="jobs/exists",
            found=f"{left} pod{'s'[: left != 1]} of it, which have {there.grace:.0f} s to stop with a checkpoint",
            hint=f"wait for them (`kubectl{job.flags} wait --for=delete pod -l {job.selector} --timeout=10m`), "
            f"or {other}.",
        )
    if status.over:
        raise ConfigError(
            f"{job} was submitted before and has ended ({status.text}); nothing was submitted.",
            code="jobs/exists",
            found="Kubernetes keeps a job that has ended, and starts it no second time",
            hint=f"delete it, with its logs: `{job.delete}`; or {other}. "
            "Either goes on from the checkpoint in run.model_dir.",
        )
    if manifests_of(there.workloads) != manifests_of(one for one in manifests.objects if one["kind"] in KINDS.values()):
        raise ConfigError(
            f"{job} runs already, and is another job than this; nothing was submitted.",
            code="jobs/exists",
            found="; ".join(_differences(manifests, there, environ)),
            hint=f"end it with a checkpoint (`estimator-pipeline cancel {job}{job.flags}`) and submit again, "
            f"or {other} and another run.model_dir.",
        )


def _next_name(name: str) -> str:
    """digits -> digits-2, digits-2 -> digits-3."""
    match = re.fullmatch(r"(.*)-(\d{1,4})", name)
    return f"{match[1]}-{int(match[2]) + 1}" if match else f"{name}-2"


def _differences(manifests: Manifests, there: JobObjects, environ: Mapping[str, str]) -> Iterator[str]:
    """Which fields of the job file are others than those of the job that runs."""
    new = next(made["data"][JOB_FILE] for made in manifests.objects if made["kind"] == "ConfigMap")
    try:
        old = _running_job_file(job_name(manifests), there.workloads, environ)
        before, after = (dict(_fields(YAML(typ="safe", pure=True).load(text))) for text in (old, new))
    except (PipelineError, YAMLError, KeyError, TypeError, ValueError, StopIteration):
        yield "what was submitted then cannot be read"
        return
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in names[:_SHOWN]:
        yield f"{name}: {before.get(name, 'none')!r} there, {after.get(name, 'none')!r} here"
    if names[_SHOWN:]:
        yield f"and {len(names) - _SHOWN} more"
    if not names:
        yield "the same but for the pods: the section kubernetes, or the version of estimator-pipeline"


def _running_job_file(job: JobName, workloads: Sequence[Mapping[str, Any]], environ: Mapping[str, str]) -> str:
    (name, *_) = re.findall(r'"configMap": \{[^}]*"name": "([^"]+)"', json.dumps(workloads[0]["spec"]))
    config = json.loads(kubectl.checked(["get", "configmap", name, "-o", "json"], job=job, environ=environ))
    return str(config["data"][JOB_FILE])


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _fields(item, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


# Looking ---------------------------------------------------------------------------------------------------------


def job_status(job: JobName, *, environ: Mapping[str, str]) -> KubernetesStatus:
    """How a job stands, with what its logs say of its progress and of its end.

    Raises:
        ConfigError: There is no such job.
        TaskFailedError: kubectl or the cluster refused.
    """
    return _with_logs(_there(job, environ), job, environ)


def list_jobs(namespace: str | None, *, environ: Mapping[str, str]) -> list[tuple[JobName, KubernetesStatus]]:
    """All jobs of a namespace that this package has submitted, the newest first.

    Kinds that the cluster does not know, or that this user may not see, have no jobs here.

    Args:
        namespace: None: that of kubectl's context.
        environ: For kubectl.

    Raises:
        ConfigError: There is no kubectl.
        TaskFailedError: kubectl or the cluster refused.
    """
    everything = JobName("job", "", namespace)
    pods = kubectl.items("pods", job=everything, environ=environ)
    found: list[tuple[str, JobName, JobObjects]] = []
    for kind, resource in RESOURCES.items():
        try:
            workloads = kubectl.items(resource, job=everything._replace(kind=kind), environ=environ)
        except kubectl.KindUnavailableError:
            if kind == "job":
                raise
            continue
        for name in dict.fromkeys(_instance(one) for one in workloads):
            own = [one for one in workloads if _instance(one) == name]
            job = JobName(kind, name, namespace)
            there = _looked(job, own, (), [pod for pod in pods if _instance(pod) == name])
            found.append((max(one["metadata"].get("creationTimestamp") or "" for one in own), job, there))
    found.sort(key=lambda one: one[0], reverse=True)
    # Each waits for logs, most of the time.
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(lambda one: (one[1], _with_logs(one[2], one[1], environ)), found))


def _instance(made: Mapping[str, Any]) -> str:
    return str((made["metadata"].get("labels") or {}).get(INSTANCE_LABEL, ""))


def _with_logs(there: JobObjects, job: JobName, environ: Mapping[str, str]) -> KubernetesStatus:
    """How a job stands, with what its logs say."""
    status = there.status
    changes: dict[str, Any] = {}
    if status.pods:
        told = progress_of(status.pods, job=job, environ=environ)
        changes["progress"] = told | max_steps_of(there.workloads) if told else told
    if len(status.pods) < len(tasks_of_workloads(there.workloads)) and status.state in ("Waiting", "Running"):
        changes["reason"] = _warning(job, environ)
    failure = first_failure(there.workloads, there.pods) if status.state == "Failed" else None
    if failure is not None:
        line = last_words(failure, job=job, environ=environ)
        found = {"task": failure.task, "pod": failure.pod, "exit_code": failure.exit_code, "text": failure.failure}
        changes["failure"] = {**found, "time": failure.failed, "line": line}
        said = f": {line}" if line else ""
    if failure is not None and status.text == "failed":
        changes["text"] = f"failed: {failure.task}: {failure.failure}{said} (pod {failure.pod})"
    return dataclasses.replace(status, **changes)


def _there(job: JobName, environ: Mapping[str, str]) -> JobObjects:
    there = look(job, environ=environ)
    if there is None or (there.others and not there.workloads):
        where = f"the namespace {job.namespace}" if job.namespace else "the namespace of kubectl's context"
        raise ConfigError(
            f"there is no {job} in the cluster.",
            code="jobs/not-found",
            found=f"nothing with its labels in {where}: not submitted, or deleted since",
            hint="name the job file that was submitted (with the same --set), or KIND/NAME, as job/digits; -n names "
            "the namespace.",
        )
    return there


def _warning(job: JobName, environ: Mapping[str, str]) -> str:
    """The last warning of the controller of a job without pods: a quota, or an admission that refuses them."""
    names = re.compile(rf"{re.escape(job.name)}(-[-a-z0-9]+)?")
    try:
        text = kubectl.checked(
            ["get", "events", "--field-selector", "type=Warning", "-o", "json"], job=job, environ=environ
        )
        found = [
            (one.get("lastTimestamp") or one.get("eventTime") or "", one)
            for one in json.loads(text)["items"]
            if names.fullmatch(one["involvedObject"].get("name") or "")
            and one["involvedObject"].get("kind") in ("Job", *KINDS.values())
        ]
    except (PipelineError, ValueError, KeyError, TypeError):
        return ""
    if not found:
        return ""
    last = max(found, key=lambda pair: pair[0])[1]
    return f"{last.get('reason', '')}: {' '.join(str(last.get('message', '')).split())}"


# Ending ----------------------------------------------------------------------------------------------------------


def cancel(
    job: JobName,
    *,
    now: bool = False,
    environ: Mapping[str, str],
    say: Callable[[str], None] = lambda text: None,
    poll: float = POLL_SECS,
) -> None:
    """Deletes a job that has not ended, waits until its pods are gone, and deletes what belongs to it.

    Its pods get SIGTERM, and have kubernetes.termination_grace_seconds to stop with a checkpoint.

    Args:
        job: Which.
        now: Whether they have a second for it and no more.
        environ: For kubectl.
        say: Told what happens.
        poll: Seconds between two looks at the pods.

    Raises:
        ConfigError: There is no such job.
        TaskFailedError: kubectl or the cluster refused.
        WaitError: Pods are still there when their time is up.
    """
    there = _there(job, environ)
    if there.status.ended:
        say(f"{job} has ended already ({there.status.text}); to delete it, with its logs: {job.delete}")
        return
    if there.workloads:
        kubectl.checked(["delete", RESOURCES[job.kind], "-l", job.selector, "--wait=false"], job=job, environ=environ)
    if not there.pods:
        say(f"{job}: deleted; it had no pods")
    elif now:
        kubectl.checked(
            ["delete", "pods", "-l", job.selector, "--grace-period=1", "--wait=false"], job=job, environ=environ
        )
        say(f"{job}: its pods are killed")
    else:
        say(f"{job}: its pods are asked to stop, and have {there.grace:.0f} s for a checkpoint")
    deadline = time.monotonic() + _SLACK_SECS + (0 if now else there.grace)
    while left := [one for one in kubectl.items("pods", job=job, environ=environ) if _is_alive(one)]:
        if time.monotonic() > deadline:
            raise WaitError(
                f"{job} is deleted, and {len(left)} of its pods are still there.",
                code="scheduler/refused",
                found=", ".join(sorted(one["metadata"]["name"] for one in left)),
                hint="see whether their nodes answer: `kubectl get nodes`; "
                f"`estimator-pipeline cancel --now {job}{job.flags}` asks again.",
            )
        time.sleep(poll)
    # Last of all: by the Service the tasks find each other, while they stop as well.
    kubectl.checked(["delete", "service,configmap", "-l", job.selector], job=job, environ=environ)
    say(f"{job}: ended and deleted; submitted again it goes on from its last checkpoint")


def _is_alive(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
