"""Kubernetes objects of a job file: Indexed Jobs, a JobSet, or Kubeflow's TFJob.

`render` is a pure function from a job to manifests as plain values. `yaml_text.py` formats them, and `jobs.py` submits
them.

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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job, Kubernetes, dump_job
from estimator_pipeline.job.loading import JOB_FILE
from estimator_pipeline.launch import exit_codes
from estimator_pipeline.launch.kubernetes.kubectl import KINDS, JobName
from estimator_pipeline.launch.kubernetes.pods import (
    CONTAINER,
    JobPods,
    explicit,
    job_variables,
    jobset_variables,
    pod_template,
)

__all__ = ["MANIFEST", "MAX_STEPS", "TASKS", "Manifests", "kubernetes_name", "render"]

# The maximum length of a host name (RFC 1123).
_LONGEST_NAME = 63
# The suffix of a JobSet's pod names after the host name: a dash and five random characters.
_JOBSET_SUFFIX = 6
# Hexadecimal digits in a ConfigMap's name: 40 bits are enough for the few job files of one name.
_DIGEST_DIGITS = 10
MANIFEST = "estimator-pipeline/manifest"
"""The annotation with a digest of all objects as they were submitted."""
MAX_STEPS = "estimator-pipeline/max-steps"
"""The annotation with the last step, if the job file sets it."""
TASKS = "estimator-pipeline/tasks"
"""The annotation with a JSON object: task -> its pod's host name, in the order of the ranks."""
# Exit codes that a restart would repeat: bad input, diverged training, a program that cannot be run.
_PERMANENT = (exit_codes.BAD_INPUT, exit_codes.DIVERGED, *exit_codes.NOT_RUNNABLE)


@dataclass(frozen=True)
class Manifests:
    """The manifests of a job.

    Attributes:
        job: The name of the job in Kubernetes.
        objects: The manifests as plain values, in the order of their creation.
        tasks: Task -> its pod's host name, in the order of the ranks.
        notes: Warnings for the user.
    """

    job: JobName
    objects: tuple[dict[str, Any], ...]
    tasks: dict[str, str]
    notes: tuple[str, ...]

    @property
    def workloads(self) -> tuple[dict[str, Any], ...]:
        """The objects that run the pods: one object, or a Job for each role."""
        return tuple(item for item in self.objects if item["kind"] == KINDS[self.job.kind])


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
    valid = kubernetes_name(job.name) if name is None else _checked(name)
    text = dump_job(job.model_copy(update={"kubernetes": Kubernetes()}))
    # A changed job file has a different ConfigMap and different pods: running pods never see a changed job file.
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
    pods = JobPods(job, JobName(section.kind, valid, section.namespace), config=f"{valid}-job-{digest}")
    _check_length(pods)
    config = _object("v1", "ConfigMap", pods.metadata(pods.config), immutable=True, data={JOB_FILE: text})
    build = {"job": _indexed_jobs, "jobset": _jobset, "tfjob": _tfjob}[section.kind]
    tasks = {str(task): host for task, host in pods.hosts.items()}
    renamed = [f"the job's name in Kubernetes is {valid}"] if name is None and valid != job.name else []
    manifests = Manifests(pods.name, (config, *build(pods)), tasks, (*renamed, *_notes(pods)))
    _annotate(manifests, job.train.max_steps)
    return manifests


def _annotate(manifests: Manifests, max_steps: int | None) -> None:
    """Annotate the workloads, so that `status` and the submission of a job of the same name need only the cluster."""
    digest = hashlib.sha256(json.dumps(list(manifests.objects), sort_keys=True).encode()).hexdigest()[:16]
    steps = {} if max_steps is None else {MAX_STEPS: str(max_steps)}
    for workload in manifests.workloads:
        workload["metadata"]["annotations"] = {MANIFEST: digest, TASKS: json.dumps(manifests.tasks), **steps}


# Checks ----------------------------------------------------------------------------------------------------------


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
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise ConfigError(
            f"--name {name!r} is not a valid name of a Kubernetes Service.",
            code="kubernetes/bad-name",
            found=f"{name!r}; allowed: lower-case letters, digits and dashes, a letter first and no dash at the end",
            hint=f"write for example {kubernetes_name(name) if re.search('[a-z0-9]', name.lower()) else 'train-1'}.",
        )
    return name


def _check_length(pods: JobPods) -> None:
    kind, name, _ = pods.name
    longest = max(pods.hosts.values(), key=len)
    allowed = _LONGEST_NAME - (_JOBSET_SUFFIX if kind == "jobset" else 0)
    if len(longest) > allowed:
        raise ConfigError(
            f"the name {name!r} is too long: the pod's host name {longest!r} would have {len(longest)} characters.",
            code="kubernetes/bad-name",
            found=f"allowed: {allowed} for kind {kind}, so {allowed - len(longest) + len(name)} for the name itself",
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


def _object(api: str, kind: str, metadata: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def _indexed_jobs(pods: JobPods) -> list[dict[str, Any]]:
    section, name = pods.section, pods.name.name
    objects = [] if pods.number == 1 else [_service(pods)]
    jobs: list[tuple[str, str, str | None, int]] = [(name, next(iter(pods.counts)), None, pods.number)]
    if pods.by_role:
        jobs = [(f"{name}-{role}", role, role, count) for role, count in pods.counts.items()]
    for job_name, role, variables_of, count in jobs:
        spec = _job_spec(
            count,
            pod_template(pods, role, job_variables(pods, variables_of)),
            action="Ignore",
            # After a lost peer all pods fail, and each index counts its failures.
            restarts={"backoffLimitPerIndex": section.max_restarts, "maxFailedIndexes": 0},
            limits=_limits(section),
        )
        objects.append(_object("batch/v1", "Job", pods.metadata(job_name), spec=spec))
    return objects


def _service(pods: JobPods) -> dict[str, Any]:
    ports = [{"name": "grpc", "port": pods.section.port}] if pods.has_port else None
    spec = explicit(clusterIP="None", publishNotReadyAddresses=True, selector=pods.name.labels, ports=ports)
    return _object("v1", "Service", pods.metadata(), spec=spec)


def _job_spec(
    count: int, template: dict[str, Any], *, action: str, restarts: dict[str, int], limits: dict[str, int]
) -> dict[str, Any]:
    """Return the spec of a Job.

    Args:
        count: The number of its pods.
        template: Their template.
        action: What a disruption and a preempted task cause: "Ignore" or "FailJob".
        restarts: The fields that limit restarts.
        limits: The fields that limit its time.
    """

    def exit_with(*codes: int) -> dict[str, Any]:
        return {"onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": sorted(codes)}}

    # Older schemas require the status.
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    rules = [
        {"action": "FailJob", **exit_with(*_PERMANENT)},
        {"action": action, "onPodConditions": [disrupted]},
        {"action": action, **exit_with(exit_codes.PREEMPTED)},
    ]
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        **restarts,
        "podFailurePolicy": {"rules": rules},
        **limits,
        "template": template,
    }


def _limits(section: Kubernetes) -> dict[str, int]:
    deadline, ttl = section.active_deadline_seconds, section.ttl_seconds_after_finished
    return explicit(activeDeadlineSeconds=deadline, ttlSecondsAfterFinished=ttl)


def _jobset(pods: JobPods) -> list[dict[str, Any]]:
    section = pods.section
    replicated = []
    for role, count in pods.counts.items():
        template = pod_template(pods, role, jobset_variables(pods, role))
        child = _job_spec(count, template, action="FailJob", restarts={"backoffLimit": 0}, limits={})
        replicated.append({"name": role, "replicas": 1, "template": {"spec": child}})
    spec = {
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
        **_limits(section),
        "replicatedJobs": replicated,
    }
    return [_object("jobset.x-k8s.io/v1alpha2", "JobSet", pods.metadata(), spec=spec)]


def _tfjob(pods: JobPods) -> list[dict[str, Any]]:
    section, scheduling = pods.section, pods.section.scheduling_policy
    replicas = {
        pods.replica(role): {"replicas": count, "restartPolicy": "OnFailure", "template": pod_template(pods, role, [])}
        for role, count in pods.counts.items()
    }
    # Restarts of all containers are counted together, and the job fails when the count reaches the limit.
    restarts = section.max_restarts * pods.number
    policy = {"cleanPodPolicy": "Running", "backoffLimit": restarts + 1 if restarts else 0, **_limits(section)}
    if scheduling is not None:
        policy["schedulingPolicy"] = explicit(
            minAvailable=scheduling.min_available,
            queue=scheduling.queue,
            priorityClass=scheduling.priority_class,
            minResources=scheduling.min_resources,
            scheduleTimeoutSeconds=scheduling.schedule_timeout_seconds,
        )
    spec = {"runPolicy": policy, "tfReplicaSpecs": replicas}
    return [_object("kubeflow.org/v1", "TFJob", pods.metadata(), spec=spec)]


# Notes -----------------------------------------------------------------------------------------------------------


def _notes(pods: JobPods) -> Iterator[str]:
    section, number = pods.section, pods.number
    for field, path in _local_paths(pods.job):
        if not any(_is_within(path, volume.mount_path) for volume in section.volumes):
            yield f"{field} {path!r} is in no volume: the image must contain it"
    for volume in section.volumes:
        if volume.claim is not None and volume.writable and number > 1:
            yield f"the claim {volume.claim} is mounted by {number} pods: on several nodes it must be ReadWriteMany"
    for role in section.roles:
        if role not in pods.counts:
            yield f"kubernetes.roles.{role} is unused: the cluster has no task of this role"
    if section.kind == "job" and number > 1 and pods.by_role:
        yield "each role is a separate Job; if one of them fails, the others run until they lose it as a peer"


def _local_paths(job: Job) -> Iterator[tuple[str, str]]:
    """Find the local files that the job reads, as pairs (field, path)."""
    data = job.input.model_dump(exclude_none=True)
    values = {f"input.{field}": data.get(field) for field in ("train", "eval", "data_dir")}
    for field, value in values.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and job.input.source != "function" and "://" not in text:
                yield field, text
    for field, reference in job.functions:
        code = reference.rpartition(":")[0]
        if code.endswith(".py"):  # a function FILE.py:NAME
            yield field, code
