"""How a job in Kubernetes stands, by what the API says of what runs its pods, and of the pods: pure functions.

What the words mean: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/,
https://kubernetes.io/docs/concepts/workloads/controllers/job/, and the references of JobSet and TFJob.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimator_pipeline.launch.exit_codes import PREEMPTED
from estimator_pipeline.launch.job_table import JobRow
from estimator_pipeline.launch.kubernetes.manifests import MANIFEST, MAX_STEPS, TASKS
from estimator_pipeline.launch.kubernetes.pods import CONTAINER
from estimator_pipeline.launch.slurm.logs import progress_text

__all__ = [
    "KubernetesStatus",
    "PodState",
    "first_failure",
    "manifests_of",
    "max_steps_of",
    "newest",
    "pod_states",
    "status_of",
    "tasks_of_workloads",
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
    "ContainerCreating": "its container is made",
    "PodInitializing": "its init containers run",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node, and is not to be pulled",
    "InvalidImageName": "its image's name is invalid",
    "CrashLoopBackOff": "it waits to be started again",
    "CreateContainerConfigError": "its container cannot be made",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
}
_UNSCHEDULED = {"Unschedulable": "no node for it", "SchedulingGated": "held back by a scheduling gate"}
# An image that was not made for it, mostly.
_RUN_AS_USER = "; set kubernetes.run_as_user to a number, or pod_security: none"
# Of which the reason says all.
_NO_FAULT = ("ContainerCreating", "PodInitializing")
_DONE, _FAILED = ("Complete", "Completed", "Succeeded"), ("Failed",)
_OF_POD = re.compile(r"\bfor pod \S+?/(\S+) failed with exit code")


@dataclass(frozen=True)
class PodState:
    """How a pod stands.

    Attributes:
        task: "worker:1"; the host name where the job does not say which tasks it has.
        pod: Its name.
        state: Kubernetes's phase, or "Terminating".
        text: The state in words.
        node: Where it is.
        restarts: How often its container was started again; in :class:`KubernetesStatus`, how often its task was.
        exit_code: Of its container's last end, if it has ended.
        failed: When it failed last, as the API writes it; "" if it has not.
        failure: In words, if it has failed.
        previous: Whether what failed is the container before the one that is there now.
        started: Whether there is anything in its log.
        created: As the API writes it.
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


@dataclass(frozen=True)
class KubernetesStatus:
    """How a job stands.

    Attributes:
        job_id: "job/NAME".
        state: "Waiting", "Suspended", "Running", "Terminating", "Complete" or "Failed".
        text: The state in words.
        reason: Why it waits, or what the API gives as the reason of its end.
        restarts: How often tasks, or in a JobSet the whole job, were started again.
        pods: The newest of each task.
        failure: The first task that failed: task, pod, exit_code, text, time, line (of its log).
        progress: step, loss, steps_per_sec, checkpoint, evaluation, as far as the first task's log tells it.
    """

    job_id: str
    state: str
    text: str
    reason: str = ""
    restarts: int = 0
    pods: tuple[PodState, ...] = ()
    failure: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether it is done or has failed: it will not start again."""
        return self.state in ("Complete", "Failed")

    @property
    def ended(self) -> bool:
        """Whether it is done, or has failed and no pod runs: of Jobs of several roles, one may fail by itself."""
        alive = any(pod.state in ("Pending", "Running", "Terminating") for pod in self.pods)
        return self.state == "Complete" or (self.state == "Failed" and not alive)

    @property
    def failed(self) -> bool:
        """Whether it has ended without being done, unasked."""
        return self.state == "Failed"

    def row(self) -> JobRow:
        """For the table of all jobs."""
        before = max((pod for pod in self.pods if pod.failure), key=lambda pod: pod.failed, default=None)
        failure = "" if before is None else f"{before.task}: {before.failure}"
        return JobRow(
            job=self.job_id,
            name="",
            state=self.state,
            running=self.state == "Running",
            progress=self.progress,
            restarts=self.restarts,
            failure=self.text.removeprefix("failed: ") if self.text.startswith("failed: ") else failure,
        )

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        return {**self.__dict__, "pods": [dict(pod.__dict__) for pod in self.pods]}

    def lines(self) -> list[str]:
        """For people."""
        words = [f"{self.job_id}: {self.text}"]
        if self.restarts:
            words.append(f"started again {_times(self.restarts)}")
        lines = [", ".join(words)]
        if self.reason:
            lines.append(f"  {self.reason}")
        if self.progress:
            lines.append("  " + progress_text(self.progress, ended=self.over))
        wide = max((len(pod.task) for pod in self.pods), default=0)
        for pod in self.pods:
            words = [pod.text]
            if pod.restarts:
                words.append(f"started again {_times(pod.restarts)}")
            if pod.failure and pod.state != "Failed":
                words.append(f"before that: {pod.failure}")
            lines.append(f"  {pod.task:{wide}}  {', '.join(words)} ({pod.pod})")
        return lines


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


# Pods ------------------------------------------------------------------------------------------------------------


def pod_states(pods: Iterable[Mapping[str, Any]], tasks: Mapping[str, str]) -> list[PodState]:
    """The pods in the order of the tasks, and of each task in the order in which they were made.

    Args:
        pods: As the API gives them.
        tasks: Task -> its pod's host name, as the manifest says it.
    """
    of_host = {host: task for task, host in tasks.items()}
    order = {task: rank for rank, task in enumerate(tasks)}
    found = [_pod_state(pod, of_host) for pod in pods]
    return sorted(found, key=lambda pod: (order.get(pod.task, len(order)), pod.task, pod.created, pod.pod))


def newest(pods: Iterable[PodState]) -> list[PodState]:
    """The last of each task."""
    return list({pod.task: pod for pod in pods}.values())


def _pod_state(pod: Mapping[str, Any], of_host: Mapping[str, str]) -> PodState:
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    # A TFJob's pod is called as its host; those of a Job have a suffix besides, and their host name in the spec.
    host = spec.get("hostname") or meta["name"]
    own = _container(status)
    state, last = own.get("state", {}), own.get("lastState", {})
    ended, before = state.get("terminated"), last.get("terminated")
    phase = "Terminating" if meta.get("deletionTimestamp") else status.get("phase", "Pending")
    failures = [(one, one is before) for one in (ended, before) if one and (one.get("exitCode") or one.get("signal"))]
    failure, previous = failures[0] if failures else (None, False)
    failed, words = "", ""
    if failure is not None:
        failed, words = failure.get("finishedAt") or "", _end_text(failure, status)
    elif status.get("phase") == "Failed":
        # Evicted, or never admitted to its node: no container has ended.
        failed = _when(status) or meta.get("creationTimestamp", "")
        words = _joined(status.get("reason") or "failed", status.get("message"))
    return PodState(
        task=of_host.get(host, host),
        pod=meta["name"],
        state=phase,
        text=_pod_text(phase, status, own, words),
        node=spec.get("nodeName", ""),
        restarts=int(own.get("restartCount") or 0),
        exit_code=None if ended is None else ended.get("exitCode"),
        failed=failed,
        failure=words,
        previous=previous,
        started=bool(ended or before or state.get("running")),
        created=meta.get("creationTimestamp", ""),
    )


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the container that trains, what the API says; of an init container, while that is not done."""
    own = [*status.get("containerStatuses", ())]
    found = next((one for one in own if one.get("name") == CONTAINER), own[0] if own else {})
    if "running" in found.get("state", {}) or "terminated" in found.get("state", {}):
        return found
    for one in status.get("initContainerStatuses", ()):
        state = one.get("state", {})
        waits = state.get("waiting", {}).get("reason") not in (None, *_NO_FAULT)
        if waits or state.get("terminated", {}).get("exitCode"):
            return {**found, "state": state, "init": one.get("name")}
    return found


def _pod_text(phase: str, status: Mapping[str, Any], own: Mapping[str, Any], failure: str) -> str:
    if phase == "Terminating":
        return "ending"
    if phase == "Succeeded":
        return "done"
    if phase == "Failed":
        return f"failed: {failure}"
    init = f"init container {own['init']}: " if own.get("init") else ""
    waiting = own.get("state", {}).get("waiting")
    if waiting:
        reason = waiting.get("reason", "")
        words = _joined(_WAITING.get(reason, reason), waiting.get("message"))
        hint = _RUN_AS_USER if "runAsNonRoot" in words else ""
        return f"{init}{'starting' if reason in _NO_FAULT else 'waiting'}: {words}{hint}"
    if phase == "Running":
        return "running"
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason = condition.get("reason", "")
            return "waiting: " + _joined(_UNSCHEDULED.get(reason, reason), condition.get("message"))
    return "waiting: to be given a node"


def _end_text(ended: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    code = ended.get("exitCode")
    disruption = next((one for one in status.get("conditions", ()) if one.get("type") == "DisruptionTarget"), None)
    if ended.get("reason") == "OOMKilled":
        return f"memory ran out (OOMKilled, exit code {code})"
    text = _CODES.get(code or 0, f"exit code {code}")
    if disruption is not None and disruption.get("status") == "True":
        return f"{text}, because of a disruption: {_joined(disruption.get('reason', ''), disruption.get('message'))}"
    if status.get("reason"):
        return f"{text}: {_joined(status['reason'], status.get('message'))}"
    # What the container's runtime says where the program was not even started.
    if ended.get("reason") not in (None, "Error", "Completed"):
        return f"{text}: {_joined(ended['reason'], ended.get('message'))}"
    return text


def _when(status: Mapping[str, Any]) -> str:
    return max((one.get("lastTransitionTime") or "" for one in status.get("conditions", ())), default="")


def _joined(words: str, message: str | None) -> str:
    return f"{words} ({' '.join(message.split())})" if message else words


# Jobs ------------------------------------------------------------------------------------------------------------


def tasks_of_workloads(workloads: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Task -> host name, as they were submitted; empty where an earlier version did."""
    for one in workloads:
        text = (one["metadata"].get("annotations") or {}).get(TASKS)
        if text:
            return {str(task): str(host) for task, host in json.loads(text).items()}
    return {}


def max_steps_of(workloads: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The last step, as a part of the progress; empty where it was not said."""
    texts = [(one["metadata"].get("annotations") or {}).get(MAX_STEPS, "") for one in workloads]
    return {"max_steps": int(texts[0])} if texts and texts[0].isdigit() else {}


def manifests_of(workloads: Iterable[Mapping[str, Any]]) -> set[str]:
    """The digests of the manifests with which they were submitted."""
    return {(one["metadata"].get("annotations") or {}).get(MANIFEST, "") for one in workloads}


def status_of(
    job_id: str, workloads: Sequence[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]
) -> tuple[KubernetesStatus, list[PodState]]:
    """How a job stands, without what only logs say, and all its pods.

    Args:
        job_id: "job/NAME".
        workloads: What runs the pods: one object, or a Job for each role.
        pods: As the API gives them.
    """
    tasks = tasks_of_workloads(workloads)
    every = pod_states(pods, tasks)
    last = [_over_attempts([pod for pod in every if pod.task == one.task]) for one in newest(every)]
    of_jobset = [int(one.get("status", {}).get("restarts") or 0) for one in workloads]
    restarts = max([*(pod.restarts for pod in last), *of_jobset], default=0)
    state, text, reason = _state(workloads, last, number=max(len(tasks), len(last)))
    status = KubernetesStatus(job_id, state, text, reason=reason, restarts=restarts, pods=tuple(last))
    return status, every


def _over_attempts(pods: Sequence[PodState]) -> PodState:
    """The last of a task's pods, with what those before it came to."""
    failure = next((pod.failure for pod in reversed(pods) if pod.failure), "")
    restarts = len(pods) - 1 + sum(pod.restarts for pod in pods)
    return dataclasses.replace(pods[-1], restarts=restarts, failure=failure)


def _state(workloads: Sequence[Mapping[str, Any]], pods: Sequence[PodState], *, number: int) -> tuple[str, str, str]:
    if not workloads or any(one["metadata"].get("deletionTimestamp") for one in workloads):
        return "Terminating", "ending: it was deleted, and its pods have their time to stop", ""
    failed = [found for one in workloads if (found := _condition(one, _FAILED))]
    if failed:
        why = failed[0]
        text = {"DeadlineExceeded": "failed: its active_deadline_seconds are over"}.get(why.get("reason", ""), "failed")
        return "Failed", text, _joined(why.get("reason", ""), why.get("message"))
    if all(_condition(one, _DONE) for one in workloads):
        return "Complete", "done", ""
    if any(_suspended(one) for one in workloads):
        return "Suspended", "suspended: whoever has done that (a queue, mostly) lets it go on", ""
    running = [pod for pod in pods if pod.state == "Running" and pod.text == "running"]
    if running:
        here = len(running) + sum(1 for pod in pods if pod.state == "Succeeded")
        return "Running", "running" if here == number else f"running: {len(running)} of {number} pods", ""
    return "Waiting", "waiting for its pods", ""


def _condition(workload: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any] | None:
    for one in workload.get("status", {}).get("conditions") or ():
        if one.get("type") in names and one.get("status") == "True":
            found: Mapping[str, Any] = one
            return found
    return None


def _suspended(workload: Mapping[str, Any]) -> bool:
    spec = workload.get("spec", {})
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def first_failure(workloads: Iterable[Mapping[str, Any]], pods: Sequence[PodState]) -> PodState | None:
    """The pod that failed first, and so was the reason that others did.

    Where the controller itself names the pod that ended the job, that one. Else the first by time: of those that failed
    last of each task, for a job that was started again had earlier failures too.
    """
    for one in workloads:
        named = _OF_POD.search((_condition(one, _FAILED) or {}).get("message") or "")
        found = next((pod for pod in pods if named and pod.pod == named[1]), None)
        if found is not None:
            return found
    candidates = [pod for pod in pods if pod.failure]
    # A task that stopped as it was asked to is not why the others failed.
    candidates = newest([pod for pod in candidates if pod.exit_code != PREEMPTED] or candidates)
    # To the second: of several within one, the one whose end says more than 1, which is that of a lost peer as well.
    return min(candidates, key=lambda pod: (pod.failed, pod.exit_code in (1, None)), default=None)
