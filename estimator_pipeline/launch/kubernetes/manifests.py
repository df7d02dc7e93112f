"""Kubernetes objects of a job file: Indexed Jobs, a JobSet, or Kubeflow's TFJob.

`render` is a pure function from a job to manifests as plain values. `manifest_text` formats them as YAML, and
`kubectl.py` applies them.

**Restarts.** Synchronous training stops as a whole when a task dies, and restarts as a whole from the checkpoint:

======== ===============================================================================================================
job      The Job restarts the pod of a failed index. The tasks of the other pods lose a peer, fail, and are restarted
         too; each index has its own count. No field restarts all pods, so a task that is done is not restarted: a job
         that fails in its last seconds may wait for such a task.
jobset   Any failure ends all pods of all roles, and then restarts all of them (BlockingRecreate).
tfjob    The kubelet restarts the container of a failed task in its pod; the others follow as for `job`. No rule by exit
         code fits: for `ExitCode` everything below 128 is permanent, also a lost peer (1) and preemption (75). So bad
         input is retried too, until `backoffLimit`.
======== ===============================================================================================================

Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/,
https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/ (0.10 for `onJobFailureMessagePatterns`),
https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from estimator_pipeline.cluster.environments import kubernetes as variables
from estimator_pipeline.cluster.resolution import RUN_ID_VARIABLE
from estimator_pipeline.cluster.roles import PORT_BASE_VARIABLE, tasks_of
from estimator_pipeline.cluster.tasks import Task
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job, Kubernetes, SchedulingPolicy, dump_job
from estimator_pipeline.launch.exit_codes import PREEMPTED
from estimator_pipeline.launch.kubernetes.pod_security import not_restricted
from estimator_pipeline.launch.kubernetes.pods import (
    CONTAINER,
    PERMANENT_CODES,
    config_map,
    metadata,
    pod_template,
    pods_of,
    role_counts,
    selector_of,
    written_tf_config,
)

__all__ = ["KINDS", "LONGEST_NAME", "MANIFEST", "MAX_STEPS", "TASKS", "Manifests", "kubernetes_name", "render"]

LONGEST_NAME = 63
"""The maximum length of a host name (RFC 1123)."""
_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
# The suffix of a JobSet's pod names after the host name: a dash and five random characters.
_JOBSET_SUFFIX = 6
_JOBSET_KEY = "jobset.sigs.k8s.io"
KINDS = {"job": "Job", "jobset": "JobSet", "tfjob": "TFJob"}
"""The object that runs the pods, for each `kubernetes.kind`."""
MANIFEST = "estimator-pipeline/manifest"
"""The annotation with a digest of all objects as they were submitted."""
MAX_STEPS = "estimator-pipeline/max-steps"
"""The annotation with the last step, if the job file sets it."""
TASKS = "estimator-pipeline/tasks"
"""The annotation with a JSON object: task -> its pod's host name, in the order of the ranks."""
_Template = Callable[..., dict[str, Any]]
_REPLICAS = {"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}


@dataclass(frozen=True)
class Manifests:
    """The manifests of a job.

    Attributes:
        name: The name of the job in Kubernetes; part of every object's name.
        kind: "job", "jobset" or "tfjob".
        namespace: The namespace; None for that of kubectl's context.
        objects: The manifests as plain values, in the order of their creation.
        tasks: Task -> its pod's host name, in the order of the ranks.
        notes: Warnings for the user.
    """

    name: str
    kind: str
    namespace: str | None
    objects: tuple[dict[str, Any], ...]
    tasks: dict[str, str]
    notes: tuple[str, ...] = ()


def render(job: Job, *, name: str | None = None) -> Manifests:
    """Build the manifests of a job.

    Args:
        job: The job, with its section `kubernetes`.
        name: The name of the job in Kubernetes; by default derived from the job's name.

    Raises:
        ConfigError: There is no image, the name is not valid in Kubernetes, or the pods cannot share the model
            directory.
    """
    section = job.kubernetes
    if section.image is None:
        raise ConfigError(
            "the job file does not name the image of the pods.",
            code="job/missing-field",
            found="no kubernetes.image",
            hint="build one from the Dockerfile, push it to a registry, and name it: --set kubernetes.image=IMAGE.",
        )
    _check_model_dir(job)
    valid = _checked(name) if name is not None else kubernetes_name(job.name)
    _check_length(valid, job)
    text = dump_job(job.model_copy(update={"kubernetes": Kubernetes()}))
    config = config_map(job, valid, text)
    template = partial(pod_template, job, valid, config=config["metadata"]["name"])
    build = {"job": _indexed_jobs, "jobset": _jobset, "tfjob": _tfjob}[section.kind]
    objects = (config, *build(job, valid, template))
    by_role = _by_role(job)
    tasks = {
        str(task): _host(job, valid, task, rank, by_role=by_role) for rank, task in enumerate(tasks_of(job.cluster))
    }
    _annotate(objects, tasks, job.train.max_steps)
    return Manifests(
        name=valid,
        kind=section.kind,
        namespace=section.namespace,
        objects=objects,
        tasks=tasks,
        notes=tuple(_notes(job, valid if name is None else None, objects)),
    )


def _annotate(objects: Sequence[dict[str, Any]], tasks: Mapping[str, str], max_steps: int | None) -> None:
    """Annotate workloads with the tasks, the last step and a digest of all objects.

    So `status`, and the submission of a job of the same name, need only the cluster.
    """
    digest = hashlib.sha256(json.dumps(list(objects), sort_keys=True).encode()).hexdigest()[:16]
    for item in objects:
        if item["kind"] in KINDS.values():
            steps = {} if max_steps is None else {MAX_STEPS: str(max_steps)}
            item["metadata"]["annotations"] = {MANIFEST: digest, TASKS: json.dumps(tasks), **steps}


# Names -----------------------------------------------------------------------------------------------------------


def kubernetes_name(text: str) -> str:
    """Convert a job's name to a valid name of a Kubernetes Service.

    Raises:
        ConfigError: The name has no valid character.
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name:
        raise ConfigError(
            f"the job's name {text!r} has no character that is valid in Kubernetes.",
            code="kubernetes/bad-name",
            found="allowed: letters of the Latin alphabet, digits and dashes",
            hint="give the job a different name: --name NAME.",
        )
    return name if name[0].isalpha() else f"job-{name}"


def _checked(name: str) -> str:
    if not re.fullmatch(_LABEL, name):
        raise ConfigError(
            f"--name {name!r} is not a valid name of a Kubernetes Service.",
            code="kubernetes/bad-name",
            found=f"{name!r}; allowed: lower-case letters, digits and dashes, a letter first and no dash at the end",
            hint=f"write for example {kubernetes_name(name) if re.search('[a-z0-9]', name.lower()) else 'train-1'}.",
        )
    return name


def _host(job: Job, name: str, task: Task, rank: int, *, by_role: bool = True) -> str:
    """Return the host name of a task's pod."""
    kind = job.kubernetes.kind
    if kind == "jobset":
        return f"{name}-{task.type}-0-{task.index}"
    if kind == "tfjob":
        return f"{name}-{_replica(job, task.type).lower()}-{task.index}"
    return f"{name}-{task.type}-{task.index}" if by_role else f"{name}-{rank}"


def _replica(job: Job, role: str) -> str:
    """Return TFJob's name of a role."""
    return "Master" if role == "chief" and job.cluster.dialect == "master" else _REPLICAS[role]


def _check_length(name: str, job: Job) -> None:
    by_role = _by_role(job)
    hosts = [_host(job, name, task, rank, by_role=by_role) for rank, task in enumerate(tasks_of(job.cluster))]
    longest = max(hosts, key=len)
    allowed = LONGEST_NAME - (_JOBSET_SUFFIX if job.kubernetes.kind == "jobset" else 0)
    if len(longest) > allowed:
        raise ConfigError(
            f"the name {name!r} is too long: the pod's host name {longest!r} would have {len(longest)} characters.",
            code="kubernetes/bad-name",
            found=f"allowed: {allowed} for kind {job.kubernetes.kind}, so {allowed - len(longest) + len(name)} for the "
            "name itself",
            hint="give a shorter one: --name NAME.",
        )


def _check_model_dir(job: Job) -> None:
    folder = job.run.model_dir
    if "://" in folder:
        return
    writable = [volume.mount_path for volume in job.kubernetes.volumes if volume.writable]
    if any(_is_within(folder, path) for path in writable):
        return
    raise ConfigError(
        f"run.model_dir {folder!r} is in no volume: checkpoints would be lost with their pod.",
        code="kubernetes/no-volume",
        found=f"writable volumes at {', '.join(writable)}" if writable else "no writable volume",
        hint="name a claim that all pods can mount (ReadWriteMany) in kubernetes.volumes, and a folder in it: --set "
        f"run.model_dir={writable[0] if writable else '/models'}/NAME; or a bucket, as gs://BUCKET/NAME.",
    )


def _is_within(path: str, folder: str) -> bool:
    return posixpath.normpath(path).startswith(posixpath.normpath(folder).rstrip("/") + "/")


# Kinds -----------------------------------------------------------------------------------------------------------


def _by_role(job: Job) -> bool:
    """Return whether each role has a separate Job, since pods or TF_CONFIG differ."""
    section, counts = job.kubernetes, role_counts(job)
    if len(counts) == 1:
        return section.tf_config == "written" and sum(counts.values()) > 1
    first = next(iter(counts))
    alike = all(pods_of(section, role) == pods_of(section, first) for role in counts)
    return section.tf_config == "written" or not alike


def _indexed_jobs(job: Job, name: str, template: _Template) -> list[dict[str, Any]]:
    counts = role_counts(job)
    single = sum(counts.values()) == 1
    subdomain = None if single else name
    # A single pod has no peers.
    objects = [] if single else [_service(job, name)]
    if not _by_role(job):
        env = _environment(job, name, role=None)
        with_port = not single and _has_port(job)
        pod = template(role=next(iter(counts)), env=env, subdomain=subdomain, with_port=with_port)
        return [*objects, _indexed_job(job, name, name, pods=sum(counts.values()), template=pod)]
    for role, count in counts.items():
        env = _environment(job, name, role=role)
        pod = template(role=role, env=env, subdomain=subdomain, with_port=_has_port(job))
        objects.append(_indexed_job(job, name, f"{name}-{role}", pods=count, template=pod))
    return objects


def _has_port(job: Job) -> bool:
    """Return whether the port is fixed; tasks that agree on ports bind free ones."""
    return job.kubernetes.tf_config == "written" or job.cluster.ports != "agreed"


def _environment(job: Job, name: str, *, role: str | None) -> list[dict[str, Any]]:
    """Return the variables from which a pod of an Indexed Job derives its task."""
    if sum(role_counts(job).values()) == 1:
        return []
    if job.kubernetes.tf_config == "written":
        assert role is not None
        return written_tf_config(job, role, _hosts(job, name))
    env = [_variable(variables.SERVICE, name), *_port_base(job)]
    return env if role is None else [*env, _variable(variables.ROLE, role)]


def _hosts(job: Job, name: str) -> dict[Task, str]:
    return {task: f"{_host(job, name, task, rank)}.{name}" for rank, task in enumerate(tasks_of(job.cluster))}


def _port_base(job: Job) -> list[dict[str, Any]]:
    return [_variable(PORT_BASE_VARIABLE, str(job.kubernetes.port))] if _has_port(job) else []


def _variable(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _label_variable(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_JOBSET_KEY}/{label}']"}}}


def _service(job: Job, name: str) -> dict[str, Any]:
    section = job.kubernetes
    spec: dict[str, Any] = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector_of(name),
    }
    if _has_port(job):
        spec["ports"] = [{"name": "grpc", "port": section.port}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(section, name), "spec": spec}


def _indexed_job(job: Job, name: str, job_name: str, *, pods: int, template: dict[str, Any]) -> dict[str, Any]:
    section = job.kubernetes
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimitPerIndex": section.max_restarts,
        "maxFailedIndexes": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": _exit_codes(*PERMANENT_CODES)},
                {"action": "Ignore", "onPodConditions": [_DISRUPTED]},
                {"action": "Ignore", "onExitCodes": _exit_codes(PREEMPTED)},
            ]
        },
        **_limits(section),
        "template": template,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(section, name, job_name), "spec": spec}


# Older schemas require the status.
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


def _exit_codes(*codes: int) -> dict[str, Any]:
    return {"containerName": CONTAINER, "operator": "In", "values": sorted(codes)}


def _limits(section: Kubernetes) -> dict[str, Any]:
    limits = {
        "activeDeadlineSeconds": section.active_deadline_seconds,
        "ttlSecondsAfterFinished": section.ttl_seconds_after_finished,
    }
    return {key: value for key, value in limits.items() if value is not None}


def _jobset(job: Job, name: str, template: _Template) -> list[dict[str, Any]]:
    section, counts = job.kubernetes, role_counts(job)
    single = sum(counts.values()) == 1
    replicated = []
    for role, count in counts.items():
        env = _jobset_environment(job, name, role)
        pod = template(role=role, env=env, with_port=not single and _has_port(job))
        replicated.append({"name": role, "replicas": 1, "template": {"spec": _child_job(count, pod)}})
    spec: dict[str, Any] = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "failurePolicy": {
            "maxRestarts": section.max_restarts,
            "restartStrategy": "BlockingRecreate",
            "rules": [
                {
                    "name": "comesAgain",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                    "onJobFailureMessagePatterns": ["matching FailJob rule at index 0$"],
                },
                {
                    "name": "preempted",
                    "action": "RestartJobSetAndIgnoreMaxRestarts",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                },
            ],
        },
    }
    if section.ttl_seconds_after_finished is not None:
        spec["ttlSecondsAfterFinished"] = section.ttl_seconds_after_finished
    spec["replicatedJobs"] = replicated
    meta = metadata(section, name)
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec}]


def _child_job(pods: int, template: dict[str, Any]) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": _exit_codes(*PERMANENT_CODES)},
                {"action": "FailJob", "onPodConditions": [_DISRUPTED]},
                {"action": "FailJob", "onExitCodes": _exit_codes(PREEMPTED)},
            ]
        },
        "template": template,
    }


def _jobset_environment(job: Job, name: str, role: str) -> list[dict[str, Any]]:
    restart = [
        _label_variable("JOBSET_UID", "jobset-uid"),
        _label_variable(variables.RESTART, "restart-attempt"),
        # All pods of one attempt have the same id, and different ones from other attempts.
        _variable(RUN_ID_VARIABLE, f"{name}-$(JOBSET_UID)-$({variables.RESTART})"),
    ]
    if sum(role_counts(job).values()) == 1:
        return restart
    if job.kubernetes.tf_config == "written":
        return [*restart, *written_tf_config(job, role, _hosts(job, name))]
    return [
        _label_variable(variables.JOBSET, "jobset-name"),
        _label_variable(variables.ROLE, "replicatedjob-name"),
        *restart,
        *_port_base(job),
    ]


def _tfjob(job: Job, name: str, template: _Template) -> list[dict[str, Any]]:
    section, counts = job.kubernetes, role_counts(job)
    replicas: dict[str, Any] = {}
    for role, count in counts.items():
        pod = template(role=role, env=[], restart_policy=None)
        replicas[_replica(job, role)] = {"replicas": count, "restartPolicy": "OnFailure", "template": pod}
    # Restarts of all containers are counted together, and the job fails when the count reaches the limit.
    restarts = section.max_restarts * sum(counts.values())
    policy: dict[str, Any] = {
        "cleanPodPolicy": "Running",
        "backoffLimit": restarts + 1 if restarts else 0,
        **_limits(section),
    }
    if section.scheduling_policy is not None:
        policy["schedulingPolicy"] = _scheduling(section.scheduling_policy)
    spec = {"runPolicy": policy, "tfReplicaSpecs": replicas}
    return [{"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": metadata(section, name), "spec": spec}]


def _scheduling(policy: SchedulingPolicy) -> dict[str, Any]:
    fields = {
        "minAvailable": policy.min_available,
        "queue": policy.queue,
        "priorityClass": policy.priority_class,
        "minResources": dict(policy.min_resources) or None,
        "scheduleTimeoutSeconds": policy.schedule_timeout_seconds,
    }
    return {key: value for key, value in fields.items() if value is not None}


# Notes -----------------------------------------------------------------------------------------------------------


def _notes(job: Job, name: str | None, objects: Sequence[dict[str, Any]]) -> Iterator[str]:
    section, counts = job.kubernetes, role_counts(job)
    pods = sum(counts.values())
    if name is not None and name != job.name:
        yield f"the job's name in Kubernetes is {name}"
    for field, path in _local_paths(job):
        if not any(_is_within(path, volume.mount_path) for volume in section.volumes):
            yield f"{field} {path!r} is in no volume: the image must contain it"
    for volume in section.volumes:
        if volume.claim is not None and volume.writable and pods > 1:
            yield f"the claim {volume.claim} is mounted by {pods} pods: on several nodes it must be ReadWriteMany"
    for role in section.roles:
        if role not in counts:
            yield f"kubernetes.roles.{role} is unused: the cluster has no task of this role"
    if section.kind == "job" and pods > 1 and _by_role(job):
        yield "each role is a separate Job; if one of them fails, the others run until they lose it as a peer"
    if section.pod_security == "restricted":
        # A violation of several roles is reported once.
        for fault in dict.fromkeys(fault for spec in _pod_specs(objects) for fault in not_restricted(spec)):
            yield f'a namespace that enforces Pod Security "restricted" rejects the pods: {fault}'


def _pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Find the pods' specs in the objects."""
    if isinstance(value, dict) and "containers" in value:
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _pod_specs(item)


def _local_paths(job: Job) -> Iterator[tuple[str, str]]:
    """Find the local files that the job reads, as pairs (field, path)."""
    data = job.input.model_dump(exclude_none=True)
    for field in ("train", "eval", "data_dir"):
        paths = data.get(field)
        for value in paths if isinstance(paths, list) else [paths]:
            if code := _code(value):
                yield f"input.{field}", code
            elif isinstance(value, str) and "://" not in value and job.input.source != "function":
                yield f"input.{field}", value
    functions = [("model.function", job.model.function), *(("keras.callbacks", f) for f in job.keras.callbacks)]
    for field, function in functions:
        if code := _code(function):
            yield field, code


def _code(value: Any) -> str:
    """Return the file of a function "FILE.py:NAME"; else ""."""
    file = value.rpartition(":")[0] if isinstance(value, str) else ""
    return file if file.endswith(".py") else ""
