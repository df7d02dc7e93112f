"""Status of a job in Kubernetes, derived from the API's objects.

The fields are described in https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/,
https://kubernetes.io/docs/concepts/workloads/controllers/job/, and the references of JobSet and TFJob.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from estimator_pipeline.launch.exit_codes import PREEMPTED
from estimator_pipeline.launch.job_status import JobStatus, TaskFailure
from estimator_pipeline.launch.kubernetes.manifests import TASKS
from estimator_pipeline.launch.kubernetes.pods import CONTAINER

__all__ = [
    "JobObjects",
    "PodState",
    "annotation",
    "document",
    "failure_of",
    "first_failure",
    "job_objects",
    "newest",
    "pod_states",
]

_CODES = {
    2: "bad input (exit code 2)",
    3: "training diverged (exit code 3)",
    PREEMPTED: f"stopped with a checkpoint (exit code {PREEMPTED})",
    126: "its command cannot be run (exit code 126)",
    127: "its command cannot be found (exit code 127)",
    137: "killed by SIGKILL (exit code 137)",
    143: "ended by SIGTERM (exit code 143)",
}
_WAITING = {
    "ContainerCreating": "its container is being created",
    "PodInitializing": "its init containers are running",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node, and pulling is disabled",
    "InvalidImageName": "its image's name is invalid",
    "CrashLoopBackOff": "it waits for its restart",
    "CreateContainerConfigError": "its container cannot be created",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be started",
}
_UNSCHEDULED = {"Unschedulable": "no node for it", "SchedulingGated": "held back by a scheduling gate"}
# Mostly for an image that is not built for this package.
_RUN_AS_USER = "; set kubernetes.run_as_user to a number, or pod_security: none"
# Reasons that are no errors.
_NO_FAULT = ("ContainerCreating", "PodInitializing")
_DONE = ("Complete", "Completed", "Succeeded")
_PHASES: Mapping[str, Literal["running", "over"]] = {"Running": "running", "Failed": "over"}
_OF_POD = re.compile(r"\bfor pod \S+?/(\S+) failed with exit code")


@dataclass(frozen=True)
class PodState:
    """The status of a pod.

    Attributes:
        task: "worker:1"; the host name if the job has no annotation of its tasks.
        pod: Its name.
        state: The phase in Kubernetes, or "Terminating".
        text: The state as text.
        node: Its node.
        restarts: The number of restarts of its container; in the status of a job, of its task.
        exit_code: The exit code of its container, if that has ended.
        failed: The time of its last failure in the API's format; "" if it has not failed.
        failure: The failure as text, if it has failed.
        previous: Whether the failed container is the one before the current one.
        started: Whether its log is available.
        created: The creation time in the API's format.
    """

    task: str
    pod: str
    state: str
    text: str
    node: str = ""
    restarts: int = 0
    exit_code: int | None = None
    failed: str = ""
    failure: str = ""
    previous: bool = False
    started: bool = False
    created: str = ""


def document(pods: Sequence[PodState], failure: PodState | None, line: str) -> dict[str, Any]:
    """Return the newest pod of each task, and the pod that failed first, for the JSON document of a status."""
    first: dict[str, Any] = {}
    if failure is not None:
        more = {"pod": failure.pod, "text": failure.failure, "time": failure.failed, "line": line}
        first = failure_of(failure, line).document() | more
    return {"pods": [dict(pod.__dict__) for pod in pods], "failure": first}


def failure_of(pod: PodState, line: str = "") -> TaskFailure:
    """Return the failure of a pod, with the line of its log that has the error."""
    text = f"{pod.task}: {pod.failure}: {line}" if line else f"{pod.task}: {pod.failure}"
    return TaskFailure(pod.task, text, exit_code=pod.exit_code, log=f"pod {pod.pod}")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


# Pods ------------------------------------------------------------------------------------------------------------


def pod_states(pods: Iterable[Mapping[str, Any]], tasks: Mapping[str, str]) -> list[PodState]:
    """Return pods in the order of these tasks, with the host names of their pods, and of their creation."""
    of_host = {host: task for task, host in tasks.items()}
    order = {task: rank for rank, task in enumerate(tasks)}
    states = [_pod_state(pod, of_host) for pod in pods]
    return sorted(states, key=lambda pod: (order.get(pod.task, len(order)), pod.task, pod.created, pod.pod))


def newest(pods: Iterable[PodState]) -> list[PodState]:
    """Return the newest pod of each task."""
    return list({pod.task: pod for pod in pods}.values())


def _pod_state(pod: Mapping[str, Any], of_host: Mapping[str, str]) -> PodState:
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    # A TFJob's pod has the name of its host; the name of a Job's pod has a suffix, and its spec the host name.
    host = spec.get("hostname") or meta["name"]
    container = _container(status)
    state, last = container.get("state", {}), container.get("lastState", {})
    ended, before = state.get("terminated"), last.get("terminated")
    phase = "Terminating" if meta.get("deletionTimestamp") else status.get("phase", "Pending")
    failures = [(end, end is before) for end in (ended, before) if end and (end.get("exitCode") or end.get("signal"))]
    failure, previous = failures[0] if failures else (None, False)
    failed, description = "", ""
    if failure is not None:
        failed, description = failure.get("finishedAt") or "", _end_text(failure, status)
    elif status.get("phase") == "Failed":
        # Evicted, or never admitted to its node: no container has ended.
        times = [condition.get("lastTransitionTime") or "" for condition in status.get("conditions", ())]
        failed = max(times, default="") or meta.get("creationTimestamp", "")
        description = _reason(status, {"": "failed"})
    return PodState(
        task=of_host.get(host, host),
        pod=meta["name"],
        state=phase,
        text=_pod_text(phase, status, container, description),
        node=spec.get("nodeName", ""),
        restarts=int(container.get("restartCount") or 0),
        exit_code=None if ended is None else ended.get("exitCode"),
        failed=failed,
        failure=description,
        previous=previous,
        started=bool(ended or before or state.get("running")),
        created=meta.get("creationTimestamp", ""),
    )


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the API's status of the task's container.

    The state is that of an init container while it waits or has failed.
    """
    containers = [*status.get("containerStatuses", ())]
    main = next((item for item in containers if item.get("name") == CONTAINER), containers[0] if containers else {})
    if "running" in main.get("state", {}) or "terminated" in main.get("state", {}):
        return main
    for init in status.get("initContainerStatuses", ()):
        state = init.get("state", {})
        waits = state.get("waiting", {}).get("reason") not in (None, *_NO_FAULT)
        if waits or state.get("terminated", {}).get("exitCode"):
            return {**main, "state": state, "init": init.get("name")}
    return main


def _pod_text(phase: str, status: Mapping[str, Any], container: Mapping[str, Any], failure: str) -> str:
    if phase == "Terminating":
        return "ending"
    if phase == "Succeeded":
        return "done"
    if phase == "Failed":
        return f"failed: {failure}"
    init = f"init container {container['init']}: " if container.get("init") else ""
    waiting = container.get("state", {}).get("waiting")
    if waiting:
        text = _reason(waiting, _WAITING)
        hint = _RUN_AS_USER if "runAsNonRoot" in text else ""
        return f"{init}{'starting' if waiting.get('reason') in _NO_FAULT else 'waiting'}: {text}{hint}"
    if phase == "Running":
        return "running"
    unscheduled = _condition(status, "PodScheduled", value="False")
    return f"waiting: {_reason(unscheduled, _UNSCHEDULED) if unscheduled else 'to be scheduled to a node'}"


def _end_text(ended: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    code = ended.get("exitCode")
    if ended.get("reason") == "OOMKilled":
        return f"out of memory (OOMKilled, exit code {code})"
    text = _CODES.get(code or 0, f"exit code {code}")
    if disruption := _condition(status, "DisruptionTarget"):
        return f"{text}, because of a disruption: {_reason(disruption)}"
    if status.get("reason"):
        return f"{text}: {_reason(status)}"
    # The container runtime's message about a program that could not be started.
    return text if ended.get("reason") in (None, "Error", "Completed") else f"{text}: {_reason(ended)}"


def _reason(item: Mapping[str, Any], texts: Mapping[str, str] = {}) -> str:
    """Format the reason and the message of a state or condition; `texts` has words for reasons."""
    reason, message = item.get("reason") or "", item.get("message")
    text = texts.get(reason, reason)
    return f"{text} ({' '.join(message.split())})" if message else text


def _condition(status: Mapping[str, Any], *types: str, value: str = "True") -> Mapping[str, Any] | None:
    """Return the first condition of these types with this value."""
    conditions = status.get("conditions") or ()
    return next((c for c in conditions if c.get("type") in types and c.get("status") == value), None)


# Jobs ------------------------------------------------------------------------------------------------------------


def annotation(item: Mapping[str, Any], name: str) -> str:
    """Return an annotation of an object; "" if it has none, as that of an earlier version."""
    return (item["metadata"].get("annotations") or {}).get(name) or ""


class JobObjects(NamedTuple):
    """The objects of a job in the cluster.

    Attributes:
        workloads: The objects that run its pods, in the API's format: one object, or a Job for each role.
        others: The names of objects of a different kind that run pods of the same name.
        tasks: Task -> its pod's host name, as annotated; empty for a job of an earlier version.
        status: The job's status.
        newest: The newest pod of each task, with the restarts and the last failure of all its pods.
        pods: All its pods, also those of earlier attempts.
        grace: Seconds that its pods have between SIGTERM and SIGKILL.
    """

    workloads: Sequence[Mapping[str, Any]]
    others: Sequence[str]
    tasks: Mapping[str, str]
    status: JobStatus
    newest: Sequence[PodState]
    pods: Sequence[PodState]
    grace: float


def job_objects(
    job_id: str,
    workloads: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
    others: Sequence[str] = (),
) -> JobObjects:
    """Return the objects of a job, whose id is "job/NAME", with their status without what the logs show."""
    annotated = next(filter(None, (annotation(workload, TASKS) for workload in workloads)), "{}")
    tasks: dict[str, str] = json.loads(annotated)
    every = pod_states(pods, tasks)
    last = [_over_attempts([pod for pod in every if pod.task == state.task]) for state in newest(every)]
    of_jobset = [int(workload.get("status", {}).get("restarts") or 0) for workload in workloads]
    restarts = max([*(pod.restarts for pod in last), *of_jobset], default=0)
    state, text, reason = _state(workloads, last, number=max(len(tasks), len(last)))
    before = max((pod for pod in last if pod.failure), key=lambda pod: pod.failed, default=None)
    failure = None if before is None else dataclasses.replace(failure_of(before), log=None)
    if text.startswith("failed: "):
        failure = TaskFailure("", text.removeprefix("failed: "))
    alive = any(pod.state in ("Pending", "Running", "Terminating") for pod in last)
    status = JobStatus(
        job_id,
        state,
        text,
        reason=reason,
        restarts=restarts,
        failure=failure,
        failed=state == "Failed",
        phase="ended" if state == "Complete" or (state == "Failed" and not alive) else _PHASES.get(state, "waiting"),
        details=(f"restarted {_times(restarts)}",) if restarts else (),
        tasks={pod.task: _task_text(pod) for pod in last},
    )
    grace = max((float(pod["spec"].get("terminationGracePeriodSeconds") or 0) for pod in pods), default=0.0)
    return JobObjects(workloads, others, tasks, status, last, every, grace)


def _task_text(pod: PodState) -> str:
    parts = [pod.text]
    if pod.restarts:
        parts.append(f"restarted {_times(pod.restarts)}")
    if pod.failure and pod.state != "Failed":
        parts.append(f"before that: {pod.failure}")
    return f"{', '.join(parts)} ({pod.pod})"


def _over_attempts(pods: Sequence[PodState]) -> PodState:
    """Return a task's last pod, with the restarts and last failure of all its pods."""
    failure = next((pod.failure for pod in reversed(pods) if pod.failure), "")
    restarts = len(pods) - 1 + sum(pod.restarts for pod in pods)
    return dataclasses.replace(pods[-1], restarts=restarts, failure=failure)


def _state(workloads: Sequence[Mapping[str, Any]], pods: Sequence[PodState], *, number: int) -> tuple[str, str, str]:
    """Return state, text and reason of a job with this number of tasks."""
    if not workloads or any(workload["metadata"].get("deletionTimestamp") for workload in workloads):
        return "Terminating", "ending: it was deleted, and its pods are stopping", ""
    statuses = [workload.get("status", {}) for workload in workloads]
    if failed := next(filter(None, (_condition(status, "Failed") for status in statuses)), None):
        is_late = failed.get("reason") == "DeadlineExceeded"
        return "Failed", "failed: active_deadline_seconds exceeded" if is_late else "failed", _reason(failed)
    if all(_condition(status, *_DONE) for status in statuses):
        return "Complete", "done", ""
    specs = [workload.get("spec", {}) for workload in workloads]
    if any(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend") for spec in specs):
        return "Suspended", "suspended: it continues when it is resumed, mostly by a queue", ""
    running = [pod for pod in pods if pod.state == "Running" and pod.text == "running"]
    if running:
        here = len(running) + sum(1 for pod in pods if pod.state == "Succeeded")
        return "Running", "running" if here == number else f"running: {len(running)} of {number} pods", ""
    return "Waiting", "waiting for its pods", ""


def first_failure(workloads: Iterable[Mapping[str, Any]], pods: Sequence[PodState]) -> PodState | None:
    """Return the pod that failed first and so caused the failure of the others.

    It is the pod that the controller names, else the first by time among each task's last failures: a restarted job
    has earlier failures too.
    """
    for workload in workloads:
        named = _OF_POD.search((_condition(workload.get("status", {}), "Failed") or {}).get("message") or "")
        first = next((pod for pod in pods if named and pod.pod == named[1]), None)
        if first is not None:
            return first
    candidates = [pod for pod in pods if pod.failure]
    # A preempted task is not the cause of the other failures.
    candidates = newest([pod for pod in candidates if pod.exit_code != PREEMPTED] or candidates)
    # Times have seconds only: within the same second, prefer an exit code other than 1, the code of a lost peer.
    return min(candidates, key=lambda pod: (pod.failed, pod.exit_code in (1, None)), default=None)
