"""Pod templates of a job in Kubernetes: container, variables, volumes, resources."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from estimator_pipeline.cluster.environments import kubernetes as variables
from estimator_pipeline.cluster.resolution import RUN_ID_VARIABLE
from estimator_pipeline.cluster.roles import PORT_BASE_VARIABLE, tasks_of
from estimator_pipeline.cluster.tasks import ClusterSpec, Task, TFConfig
from estimator_pipeline.job import Job, Kubernetes, Pods
from estimator_pipeline.job.loading import JOB_FILE
from estimator_pipeline.job.sections.kubernetes import SECS_VARIABLE
from estimator_pipeline.job.sections.kubernetes_patch import merged
from estimator_pipeline.launch.kubernetes.kubectl import JobName
from estimator_pipeline.launch.local.cores import TRAINING_JOBS
from estimator_pipeline.launch.local.timeouts import HEARTBEAT_TIMEOUT

__all__ = ["CONTAINER", "JOB_FOLDER", "JobPods", "command_of", "explicit", "pod_template"]

CONTAINER = "tensorflow"
"""The container's name, which TFJob requires: https://www.kubeflow.org/docs/components/trainer/legacy-v1/"""
_PORT_NAME = "tfjob-port"  # TFJob requires this name, too.
JOB_FOLDER = "/job"
"""The folder of the job file in the container."""
_INDEX = "ESTIMATOR_PIPELINE_INDEX"
_REPLICAS = {"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}


def explicit(**fields: Any) -> dict[str, Any]:
    """Return the fields that are set: neither None nor empty."""
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}


@dataclass(frozen=True)
class JobPods:
    """A job whose tasks are pods.

    Attributes:
        job: The job.
        name: Its name in Kubernetes.
        config: The name of the ConfigMap with the job file.
    """

    job: Job
    name: JobName
    config: str

    @property
    def section(self) -> Kubernetes:
        """The section `kubernetes` of the job file."""
        return self.job.kubernetes

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of tasks of each role, in the order of the ranks."""
        return dict(Counter(task.type for task in tasks_of(self.job.cluster)))

    @property
    def number(self) -> int:
        """The number of pods. A single one has no peers."""
        return sum(self.counts.values())

    @property
    def writes_tf_config(self) -> bool:
        """Whether the manifest contains TF_CONFIG."""
        return self.section.tf_config == "written" and self.number > 1

    @property
    def has_port(self) -> bool:
        """Whether the port is fixed; tasks that agree on ports bind free ones."""
        return self.section.tf_config == "written" or self.job.cluster.ports != "agreed"

    @cached_property
    def by_role(self) -> bool:
        """Whether each role has a separate Job, since pods or TF_CONFIG differ."""
        first, *others = (pod_template(self, role, []) for role in self.counts)
        return self.writes_tf_config or any(template != first for template in others)

    @cached_property
    def hosts(self) -> dict[Task, str]:
        """Each task's host name, in the order of the ranks."""
        return {task: self._host(task, rank) for rank, task in enumerate(tasks_of(self.job.cluster))}

    def _host(self, task: Task, rank: int) -> str:
        name = self.name.name
        if self.name.kind == "jobset":
            return f"{name}-{task.type}-0-{task.index}"
        if self.name.kind == "tfjob":
            return f"{name}-{self.replica(task.type).lower()}-{task.index}"
        return f"{name}-{task.type}-{task.index}" if self.by_role else f"{name}-{rank}"

    def replica(self, role: str) -> str:
        """Return TFJob's name of a role."""
        return "Master" if role == "chief" and self.job.cluster.dialect == "master" else _REPLICAS[role]

    def metadata(self, name: str | None = None) -> dict[str, Any]:
        """Return the metadata of an object: name, by default the job's, namespace and labels."""
        return explicit(name=name or self.name.name, namespace=self.name.namespace, labels=self.labels)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every object and every pod."""
        return {**self.name.labels, **self.section.labels}


# Templates -------------------------------------------------------------------------------------------------------


def pod_template(pods: JobPods, role: str, env: list[dict[str, Any]]) -> dict[str, Any]:
    """Build the template of a role's pods, with these variables of the cluster resolution."""
    section, override = pods.section, pods.section.roles.get(role)  # type: ignore[call-overload]
    changes = {name: value for name, value in override or () if name in Pods.model_fields and value is not None}
    settings = section.pods.model_copy(update=changes)
    volumes, mounts = _volumes(section, pods.config)
    is_job, is_tfjob = section.kind == "job", section.kind == "tfjob"
    restricted = section.pod_security == "restricted"
    common = {"PYTHONUNBUFFERED": "1", SECS_VARIABLE: str(section.preemption_secs), **section.env}
    has_port = is_tfjob or (pods.number > 1 and pods.has_port)
    unprivileged = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = explicit(
        name=CONTAINER,
        image=section.image,
        imagePullPolicy=section.image_pull_policy,
        command=command_of(section, role),
        ports=[{"name": _PORT_NAME, "containerPort": section.port}] if has_port else None,
        env=[*(variable(name, value) for name, value in common.items()), *env],
        envFrom=[{"secretRef": {"name": secret}} for secret in section.env_from_secrets],
        resources=_resources(settings),
        securityContext=unprivileged if restricted else None,
        volumeMounts=mounts,
    )
    spec = explicit(
        # The owner of a TFJob's pods sets the policy, and that of a JobSet's or a TFJob's pods the Service.
        restartPolicy=None if is_tfjob else "Never",
        subdomain=pods.name.name if is_job and pods.number > 1 else None,
        terminationGracePeriodSeconds=section.termination_grace_seconds,
        # The task is then not process 1, and SIGTERM ends it during its start, too.
        shareProcessNamespace=True,
        serviceAccountName=section.service_account,
        priorityClassName=section.priority_class,
        imagePullSecrets=[{"name": secret} for secret in section.image_pull_secrets],
        nodeSelector=settings.node_selector,
        tolerations=[toleration.model_dump(exclude_none=True) for toleration in settings.tolerations or ()],
        # With the container's context it satisfies the Pod Security Standard "restricted".
        securityContext=explicit(
            runAsNonRoot=True if restricted else None,
            seccompProfile={"type": "RuntimeDefault"} if restricted else None,
            runAsUser=section.run_as_user,
            fsGroup=section.fs_group,
            # Otherwise each start of a pod sets the owner of every file in a volume.
            fsGroupChangePolicy=None if section.fs_group is None else "OnRootMismatch",
        ),
        containers=[container],
        volumes=volumes,
    )
    metadata = explicit(labels=pods.labels, annotations=section.annotations)
    template = merged({"metadata": metadata, "spec": spec}, section.pod_patch, field="kubernetes.pod_patch")
    if override is None:
        return template
    return merged(template, override.pod_patch, field=f"kubernetes.roles.{role}.pod_patch")


def command_of(section: Kubernetes, role: str) -> list[str]:
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


def _resources(pods: Pods) -> dict[str, Any]:
    # For GPUs only the limit is set; a request would have to be equal.
    limits = explicit(**{"memory": pods.memory, pods.gpu_resource: pods.gpus or None})
    return explicit(requests=explicit(cpu=pods.cpu, memory=pods.memory), limits=limits)


def _volumes(section: Kubernetes, config: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod, and where its container mounts them."""
    volumes: list[dict[str, Any]] = [{"name": "job", "configMap": {"name": config}}]
    mounts: list[dict[str, Any]] = [{"name": "job", "mountPath": JOB_FOLDER, "readOnly": True}]
    for number, volume in enumerate(section.volumes, start=1):
        name = f"volume-{number}"
        server, _, path = (volume.nfs or "").partition(":")
        source = explicit(
            persistentVolumeClaim=explicit(claimName=volume.claim),
            nfs={"server": server, "path": path} if volume.nfs else None,
            secret=explicit(secretName=volume.secret),
            configMap=explicit(name=volume.config_map),
        )
        volumes.append({"name": name, **source})
        read_only = None if volume.writable else True
        mounts.append(explicit(name=name, mountPath=volume.mount_path, subPath=volume.sub_path, readOnly=read_only))
    if section.pods.shared_memory is not None:
        memory = {"medium": "Memory", "sizeLimit": section.pods.shared_memory}
        volumes.append({"name": "shared-memory", "emptyDir": memory})
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
    return volumes, mounts


# Variables -------------------------------------------------------------------------------------------------------


def variable(name: str, value: str) -> dict[str, Any]:
    """Return a variable of a container."""
    return {"name": name, "value": value}


def _field_variable(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{path}"}}}


def job_variables(pods: JobPods, role: str | None) -> list[dict[str, Any]]:
    """Return the variables from which a pod of an Indexed Job derives its task; None for a Job of all roles."""
    if pods.number == 1:
        return []
    if role is not None and pods.writes_tf_config:
        return _written_tf_config(pods, role)
    env = [variable(variables.SERVICE, pods.name.name), *_port_base(pods)]
    return env if role is None else [*env, variable(variables.ROLE, role)]


def jobset_variables(pods: JobPods, role: str) -> list[dict[str, Any]]:
    """Return the variables from which a pod of a JobSet derives its task and its run."""

    def of_label(name: str, label: str) -> dict[str, Any]:
        return _field_variable(name, f"labels['jobset.sigs.k8s.io/{label}']")

    restart = [
        of_label("JOBSET_UID", "jobset-uid"),
        of_label(variables.RESTART, "restart-attempt"),
        # All pods of one attempt have the same id, and different ones from other attempts.
        variable(RUN_ID_VARIABLE, f"{pods.name.name}-$(JOBSET_UID)-$({variables.RESTART})"),
    ]
    if pods.number == 1:
        return restart
    if pods.writes_tf_config:
        return [*restart, *_written_tf_config(pods, role)]
    roles = [of_label(variables.JOBSET, "jobset-name"), of_label(variables.ROLE, "replicatedjob-name")]
    return [*roles, *restart, *_port_base(pods)]


def _port_base(pods: JobPods) -> list[dict[str, Any]]:
    return [variable(PORT_BASE_VARIABLE, str(pods.section.port))] if pods.has_port else []


def _written_tf_config(pods: JobPods, role: str) -> list[dict[str, Any]]:
    """Return TF_CONFIG of a role's pods; Kubernetes inserts the index of each pod."""
    jobs: dict[str, list[str]] = {}
    for task, host in pods.hosts.items():
        jobs.setdefault(task.type, []).append(f"{host}.{pods.name.name}:{pods.section.port}")
    evaluator = jobs.pop("evaluator", [None])[0]
    config = TFConfig(
        cluster=ClusterSpec({name: tuple(addresses) for name, addresses in jobs.items()}, evaluator),
        task=Task(role, 0),
        dialect="chief" if "chief" in jobs else "workers",
    )
    document = config.to_dict(pods.job.cluster.dialect)
    if pods.counts[role] == 1:
        return [{"name": "TF_CONFIG", "value": json.dumps(document)}]
    document["task"]["index"] = "INDEX"
    text = json.dumps(document).replace('"INDEX"', f"$({_INDEX})")
    # JOB_COMPLETION_INDEX is appended after all others, so that $(...) cannot reference it.
    index = _field_variable(_INDEX, "annotations['batch.kubernetes.io/job-completion-index']")
    return [index, {"name": "TF_CONFIG", "value": text}]
