"""Pod templates of a job in Kubernetes: container, variables, volumes, resources."""

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
    "PERMANENT_CODES",
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
"""The container's name, which TFJob requires: https://www.kubeflow.org/docs/components/trainer/legacy-v1/"""
PORT_NAME = "tfjob-port"
"""The port's name, which TFJob requires too."""
JOB_FOLDER = "/job"
"""The folder of the job file in the container."""
JOB_FILE = "job.yaml"
"""The name of the job file in this folder and in the ConfigMap."""
PERMANENT_CODES = (exit_codes.BAD_INPUT, exit_codes.DIVERGED, *exit_codes.NOT_RUNNABLE)
"""Exit codes that a restart would repeat: bad input, diverged training, a program that cannot be run."""
INDEX_VARIABLE = "ESTIMATOR_PIPELINE_INDEX"
# Hexadecimal digits in a ConfigMap's name: 40 bits are enough for the few job files of one name.
_DIGEST_DIGITS = 10


@dataclass(frozen=True)
class PodSettings:
    """Resources and command of the pods of one role.

    They are those of `kubernetes.pods`, overridden by `kubernetes.roles.ROLE`.
    """

    resources: Mapping[str, Any]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    command: tuple[str, ...]
    patch: PodPatch


def role_counts(job: Job) -> dict[str, int]:
    """Return the number of tasks of each role, in the order of the ranks."""
    counts: dict[str, int] = {}
    for task in tasks_of(job.cluster):
        counts[task.type] = counts.get(task.type, 0) + 1
    return counts


def pods_of(section: Kubernetes, role: str) -> PodSettings:
    """Return the settings of a role's pods."""
    override = section.roles.get(role)  # type: ignore[call-overload]

    def value(name: str) -> Any:
        explicit = getattr(override, name) if override is not None else None
        return explicit if explicit is not None else getattr(section.pods, name)

    tolerations = tuple(t.model_dump(exclude_none=True) for t in value("tolerations") or ())
    return PodSettings(
        resources=_resources(section.pods, cpu=value("cpu"), memory=value("memory"), gpus=value("gpus")),
        node_selector=dict(value("node_selector") or {}),
        tolerations=tolerations,
        command=tuple(_command(section, role)),
        patch=override.pod_patch if override is not None else PodPatch(),
    )


def _command(section: Kubernetes, role: str) -> list[str]:
    """Return a container's command, with a supervisor if there is a step timeout.

    The supervisor stops a hung task without restarting it: Kubernetes restarts the pods.
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
        # For GPUs only the limit is set; a request would have to be equal.
        limits[pods.gpu_resource] = gpus
    return {name: values for name, values in (("requests", requests), ("limits", limits)) if values}


def selector_of(name: str) -> dict[str, str]:
    """Return the labels that select a job's objects and pods."""
    return {NAME_LABEL: "estimator-pipeline", INSTANCE_LABEL: name}


def _labels(section: Kubernetes, name: str) -> dict[str, str]:
    """Return the labels of every object and every pod of a job."""
    return {
        **selector_of(name),
        **section.labels,
    }


def config_map(job: Job, name: str, text: str) -> dict[str, Any]:
    """Build the ConfigMap with the job file, which is mounted at `JOB_FOLDER`.

    Its name has a digest of the text, so that a changed job file has a different ConfigMap and different pods: running
    pods never see a changed job file.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job.kubernetes, name, f"{name}-job-{digest}"),
        "immutable": True,
        "data": {JOB_FILE: text},
    }


def metadata(section: Kubernetes, name: str, object_name: str | None = None) -> dict[str, Any]:
    """Return the metadata of an object of the job `name`: name, namespace and labels."""
    fields: dict[str, Any] = {"name": object_name or name}
    if section.namespace is not None:
        fields["namespace"] = section.namespace
    return {**fields, "labels": _labels(section, name)}


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
    """Build the template of a role's pods.

    Args:
        job: The job.
        name: The name of the job in Kubernetes.
        config: The name of the ConfigMap with the job file.
        role: The role of the pods.
        env: The variables of the cluster resolution.
        subdomain: The headless Service, unless the owner of the pods sets it.
        restart_policy: The restart policy; None if the owner of the pods sets it.
        with_port: Whether other tasks connect to these.
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
    common = {"PYTHONUNBUFFERED": "1", SECS_VARIABLE: str(section.preemption_secs), **section.env}
    container["env"] = [*({"name": key, "value": value} for key, value in common.items()), *env]
    if section.env_from_secrets:
        container["envFrom"] = [{"secretRef": {"name": secret}} for secret in section.env_from_secrets]
    if settings.resources:
        container["resources"] = {key: dict(value) for key, value in settings.resources.items()}
    if section.pod_security == "restricted":
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container["volumeMounts"] = _mounts(section)
    return container


def _pod_security(section: Kubernetes) -> dict[str, Any]:
    """Return the security context of a pod.

    With the container's context it satisfies the Pod Security Standard "restricted".
    """
    context: dict[str, Any] = {}
    if section.pod_security == "restricted":
        context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if section.run_as_user is not None:
        context["runAsUser"] = section.run_as_user
    if section.fs_group is not None:
        # Otherwise each start of a pod sets the owner of every file in a volume.
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
    """Return a variable with the completion index that others can reference.

    JOB_COMPLETION_INDEX is appended after all others, so that $(...) cannot reference it.
    """
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return {"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def written_tf_config(job: Job, role: str, hosts: Mapping[Task, str]) -> list[dict[str, Any]]:
    """Return TF_CONFIG of a role's pods; Kubernetes inserts the index of each pod.

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
