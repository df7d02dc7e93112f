"""A job's pods in Kubernetes, whichever object starts them: container, variables, volumes, resources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.cluster.tasks import ClusterSpec, Task, TFConfig
from estimator_pipeline.job import Job, Kubernetes, PodPatch, Pods, Volume
from estimator_pipeline.job.sections.kubernetes import INSTANCE_LABEL, NAME_LABEL, SECS_VARIABLE
from estimator_pipeline.job.sections.kubernetes_patch import merged
from estimator_pipeline.launch import exit_codes
from estimator_pipeline.launch.local.cores import TRAINING_JOBS
from estimator_pipeline.launch.local.timeouts import HEARTBEAT_TIMEOUT

__all__ = [
    "CONTAINER",
    "JOB_FILE",
    "JOB_FOLDER",
    "NOT_AGAIN",
    "PORT_NAME",
    "config_map",
    "metadata",
    "pod_template",
    "pods_of",
    "role_counts",
    "selector_of",
    "written_tf_config",
]

CONTAINER = "tensorflow"
"""The container's name. TFJob looks for this one: https://www.kubeflow.org/docs/components/trainer/legacy-v1/"""
PORT_NAME = "tfjob-port"
"""The port's name; TFJob looks for it too."""
JOB_FOLDER = "/job"
"""Where the job file is in the container."""
JOB_FILE = "job.yaml"
"""What it is called there, and in the ConfigMap."""
NOT_AGAIN = (exit_codes.BAD_INPUT, exit_codes.DIVERGED, *exit_codes.NOT_RUNNABLE)
"""Exit codes that would come again: bad input, diverged training, a program that cannot be run."""
INDEX_VARIABLE = "ESTIMATOR_PIPELINE_INDEX"
# Of a ConfigMap's name: 40 bits, for the few job files that one name is ever submitted with.
_DIGEST_DIGITS = 10


@dataclass(frozen=True)
class PodSettings:
    """What the pods of one role ask for (`kubernetes.pods`, and over it `kubernetes.roles.ROLE`), and what they run."""

    resources: Mapping[str, Any]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    command: tuple[str, ...]
    patch: PodPatch


def role_counts(job: Job) -> dict[str, int]:
    """Role -> how many tasks, in the order of the ranks."""
    counts: dict[str, int] = {}
    for task in tasks_of(job.cluster):
        counts[task.type] = counts.get(task.type, 0) + 1
    return counts


def pods_of(section: Kubernetes, role: str) -> PodSettings:
    """What the pods of a role have."""
    own = section.roles.get(role)  # type: ignore[call-overload]

    def value(name: str) -> Any:
        given = getattr(own, name) if own is not None else None
        return given if given is not None else getattr(section.pods, name)

    tolerations = tuple(t.model_dump(exclude_none=True) for t in value("tolerations") or ())
    return PodSettings(
        resources=_resources(section.pods, cpu=value("cpu"), memory=value("memory"), gpus=value("gpus")),
        node_selector=dict(value("node_selector") or {}),
        tolerations=tolerations,
        command=tuple(_command(section, role)),
        patch=own.pod_patch if own is not None else PodPatch(),
    )


def _command(section: Kubernetes, role: str) -> list[str]:
    """What a container runs: its task, and above it a supervisor where a deadline is asked for.

    The supervisor ends a task that hangs, and starts none: that is for who starts the pods.
    """
    task = ["estimator-pipeline", "train", f"{JOB_FOLDER}/{JOB_FILE}"]
    if section.step_timeout is None:
        return task
    supervise = ["estimator-pipeline", "supervise", "--max-restarts", "0"]
    supervise += ["--heartbeat-timeout", f"{HEARTBEAT_TIMEOUT:g}"]
    if role in TRAINING_JOBS:
        # An evaluator waits for checkpoints, and a parameter server for workers.
        supervise += ["--step-timeout", f"{section.step_timeout:g}"]
    return [*supervise, "--", *task]


def _resources(pods: Pods, *, cpu: str | None, memory: str | None, gpus: int | None) -> dict[str, Any]:
    requests = {name: text for name, text in (("cpu", cpu), ("memory", memory)) if text is not None}
    limits: dict[str, Any] = {"memory": memory} if memory is not None else {}
    if gpus:
        # Asked for by the limit alone; a request would have to be the same.
        limits[pods.gpu_resource] = gpus
    return {name: values for name, values in (("requests", requests), ("limits", limits)) if values}


def selector_of(name: str) -> dict[str, str]:
    """The labels that tell a job's pods from all others."""
    return {NAME_LABEL: "estimator-pipeline", INSTANCE_LABEL: name}


def _labels(section: Kubernetes, name: str) -> dict[str, str]:
    """Of every object and every pod of a job."""
    return {
        **selector_of(name),
        **section.labels,
    }


def config_map(job: Job, name: str, text: str) -> dict[str, Any]:
    """The job file, as the pods find it in :data:`JOB_FOLDER`.

    A digest of the text is in its name, so that another job file makes another ConfigMap, and other pods: those that
    run never see a job file that is not theirs.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job.kubernetes, name, f"{name}-job-{digest}"),
        "immutable": True,
        "data": {JOB_FILE: text},
    }


def metadata(section: Kubernetes, name: str, own: str | None = None) -> dict[str, Any]:
    """An object's name, namespace and labels."""
    found: dict[str, Any] = {"name": own or name}
    if section.namespace is not None:
        found["namespace"] = section.namespace
    return {**found, "labels": _labels(section, name)}


def pod_template(
    job: Job,
    name: str,
    *,
    config: str,
    role: str,
    env: list[dict[str, Any]],
    subdomain: str | None = None,
    restart_policy: str | None = "Never",
    with_port: bool = True,
) -> dict[str, Any]:
    """The template of a role's pods.

    Args:
        job: The job.
        name: Of the whole job in Kubernetes.
        config: The name of the ConfigMap with the job file.
        role: Which role's resources the pods have.
        env: Variables by which tasks find each other.
        subdomain: The headless Service, where the object that starts the pods does not set it itself.
        restart_policy: None where the object that starts the pods sets it.
        with_port: Whether other tasks call this one.
    """
    section = job.kubernetes
    settings = pods_of(section, role)
    spec: dict[str, Any] = {}
    if restart_policy is not None:
        spec["restartPolicy"] = restart_policy
    if subdomain is not None:
        spec["subdomain"] = subdomain
    spec["terminationGracePeriodSeconds"] = section.termination_grace_seconds
    spec["shareProcessNamespace"] = True
    for field, value in (
        ("serviceAccountName", section.service_account),
        ("priorityClassName", section.priority_class),
        ("imagePullSecrets", [{"name": secret} for secret in section.image_pull_secrets]),
        ("nodeSelector", dict(settings.node_selector)),
        ("tolerations", [dict(toleration) for toleration in settings.tolerations]),
        ("securityContext", _pod_security(section)),
    ):
        if value:
            spec[field] = value
    spec["containers"] = [_container(job, settings, role=role, env=env, with_port=with_port)]
    spec["volumes"] = _volumes(section, config)
    meta: dict[str, Any] = {"labels": _labels(section, name)}
    if section.annotations:
        meta["annotations"] = dict(section.annotations)
    template = merged({"metadata": meta, "spec": spec}, section.pod_patch, field="kubernetes.pod_patch")
    return merged(template, settings.patch, field=f"kubernetes.roles.{role}.pod_patch")


def _container(
    job: Job, settings: PodSettings, *, role: str, env: list[dict[str, Any]], with_port: bool
) -> dict[str, Any]:
    section = job.kubernetes
    container: dict[str, Any] = {"name": CONTAINER, "image": section.image}
    if section.image_pull_policy is not None:
        container["imagePullPolicy"] = section.image_pull_policy
    container["command"] = list(settings.command)
    if with_port:
        container["ports"] = [{"name": PORT_NAME, "containerPort": section.port}]
    own = {"PYTHONUNBUFFERED": "1", SECS_VARIABLE: str(section.preemption_secs), **section.env}
    container["env"] = [*({"name": key, "value": value} for key, value in own.items()), *env]
    if section.env_from_secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in section.env_from_secrets]
    if settings.resources:
        container["resources"] = {key: dict(value) for key, value in settings.resources.items()}
    if section.pod_security == "restricted":
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container["volumeMounts"] = _mounts(section)
    return container


def _pod_security(section: Kubernetes) -> dict[str, Any]:
    """With what the container's own context says, all that the Pod Security Standard "restricted" asks of it."""
    context: dict[str, Any] = {}
    if section.pod_security == "restricted":
        context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if section.run_as_user is not None:
        context["runAsUser"] = section.run_as_user
    if section.fs_group is not None:
        # Otherwise the owner of every file of a volume is set each time that a pod starts.
        context |= {"fsGroup": section.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def _mounts(section: Kubernetes) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"name": "job", "mountPath": JOB_FOLDER, "readOnly": True}]
    for number, volume in enumerate(section.volumes, start=1):
        mount: dict[str, Any] = {"name": f"volume-{number}", "mountPath": volume.mount_path}
        if volume.sub_path is not None:
            mount["subPath"] = volume.sub_path
        if not volume.writable:
            mount["readOnly"] = True
        mounts.append(mount)
    if section.pods.shared_memory is not None:
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
    return mounts


def _volumes(section: Kubernetes, config: str) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "job", "configMap": {"name": config}}]
    for number, volume in enumerate(section.volumes, start=1):
        volumes.append({"name": f"volume-{number}", **_source(volume)})
    if section.pods.shared_memory is not None:
        volumes.append(
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": section.pods.shared_memory}}
        )
    return volumes


def _source(volume: Volume) -> dict[str, Any]:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.nfs is not None:
        server, _, path = volume.nfs.partition(":")
        return {"nfs": {"server": server, "path": path}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    return {"configMap": {"name": volume.config_map}}


def _index_variable() -> dict[str, Any]:
    """The pod's completion index, as a variable that others may contain.

    JOB_COMPLETION_INDEX itself is put behind all others, where $(...) does not reach it.
    """
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return {"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def written_tf_config(job: Job, role: str, hosts: Mapping[Task, str]) -> list[dict[str, Any]]:
    """TF_CONFIG of a role's pods, written out; each pod's index is put in by Kubernetes.

    Args:
        job: The job.
        role: The pods' role.
        hosts: The host name of each task.
    """
    jobs: dict[str, list[str]] = {}
    for task, host in hosts.items():
        jobs.setdefault(task.type, []).append(f"{host}:{job.kubernetes.port}")
    evaluator = jobs.pop("evaluator", [None])[0]
    config = TFConfig(
        cluster=ClusterSpec({name: tuple(addresses) for name, addresses in jobs.items()}, evaluator),
        task=Task(role, 0),
        dialect="chief" if "chief" in jobs else "workers",
    )
    document = config.to_dict(job.cluster.dialect)
    if role_counts(job)[role] == 1:
        return [{"name": "TF_CONFIG", "value": json.dumps(document)}]
    document["task"]["index"] = "INDEX"
    text = json.dumps(document).replace('"INDEX"', f"$({INDEX_VARIABLE})")
    return [_index_variable(), {"name": "TF_CONFIG", "value": text}]
