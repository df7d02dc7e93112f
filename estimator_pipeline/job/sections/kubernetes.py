"""The section `kubernetes` of a job file: the pods of `estimator-pipeline submit kubernetes`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from estimator_pipeline.job.base import Problem, Section
from estimator_pipeline.job.sections.kubernetes_patch import PatchedMetadata, PodPatch

__all__ = [
    "GRACE_MARGIN_SECS",
    "Kubernetes",
    "PatchedMetadata",
    "PodPatch",
    "Pods",
    "RolePods",
    "SchedulingPolicy",
    "Toleration",
    "Volume",
]

GRACE_MARGIN_SECS = 15
"""Seconds between the latest exit of a task and SIGKILL; the process needs time to shut down."""
SECS_VARIABLE = "ESTIMATOR_PIPELINE_PREEMPTION_SECS"
# Labels that identify a job's objects and pods.
NAME_LABEL, INSTANCE_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
# Variables that the manifest sets, so that the tasks find each other.
MANIFEST_VARIABLES = (
    "TF_CONFIG",
    "JOB_COMPLETION_INDEX",
    "JOBSET_UID",
    "ESTIMATOR_PIPELINE_INDEX",
    "ESTIMATOR_PIPELINE_JOBSET",
    "ESTIMATOR_PIPELINE_PORT_BASE",
    "ESTIMATOR_PIPELINE_RESTART",
    "ESTIMATOR_PIPELINE_ROLE",
    "ESTIMATOR_PIPELINE_RUN_ID",
    "ESTIMATOR_PIPELINE_SERVICE",
)

_Text = Annotated[str, Field(min_length=1)]


def _pattern(regex: str, *, noun: str, allowed: str, hint: str, longest: int = 253) -> Any:
    """Return a validator of a text's format."""

    def check(value: str) -> str:
        if len(value) <= longest and re.fullmatch(regex, value):
            return value
        problem = Problem((), f"this is not {noun}.", f"{value!r}; allowed: {allowed}", hint, code="job/bad-value")
        raise PydanticCustomError("problems", "a wrong value", {"problems": [problem]})

    return AfterValidator(check)


_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
ObjectName = Annotated[
    str,
    _pattern(
        _NAME,
        noun="a Kubernetes name",
        allowed="lower-case letters, digits, - and ., with a letter or digit at both ends",
        hint="write the name as `kubectl get` shows it.",
    ),
]
Label = Annotated[
    str,
    _pattern(
        r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
        noun="a label key",
        allowed="a name such as team, or example.com/team",
        hint="leave other characters out.",
        longest=317,
    ),
]
LabelValue = Annotated[
    str,
    _pattern(
        r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
        noun="a label value",
        allowed="up to 63 letters, digits, -, _ and .",
        hint="shorten it, or make it an annotation.",
        longest=63,
    ),
]
Variable = Annotated[
    str,
    _pattern(
        r"[A-Za-z_][A-Za-z0-9_]*",
        noun="the name of a variable",
        allowed="letters, digits and _",
        hint="leave other characters out.",
    ),
]


def _written(value: Any) -> Any:
    """Accept `cpu: 4` as "4"."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
Quantity = Annotated[
    str,
    BeforeValidator(_written),
    _pattern(
        r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?",
        noun="a quantity",
        allowed="a number, or one with a unit such as 500m, 4Gi or 512Mi",
        hint="write for example cpu: 2 and memory: 4Gi.",
    ),
]
MountPath = Annotated[
    str,
    _pattern(
        r"/[^:]*[^:/]",
        noun="a folder of a container",
        allowed="an absolute path, without :",
        hint="start it with a slash, as in /models.",
        longest=4096,
    ),
]


class Toleration(Section):
    """A toleration of the pods.

    Fields:
        key: Key of the taint. null: with operator Exists, all taints.
        operator: Exists, or Equal to `value`.
        value: Value of the taint.
        effect: Effect of the taint. null: all.
    """

    key: Label | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    def problems(self) -> Iterator[Problem]:
        if (self.operator == "Equal") != (self.value is not None) or (self.operator == "Equal" and self.key is None):
            yield Problem(
                ("operator",),
                "the operator and the value contradict each other.",
                f"key {self.key}, operator {self.operator}, value {self.value}",
                "set key and value with operator: Equal, and no value with operator: Exists.",
                code="job/bad-value",
            )


class _PodFields(Section):
    """What pods of a role, or of all roles, have; see `Pods`.

    Fields:
        cpu: Requested CPUs. No limit is set.
        memory: Requested memory, also the limit.
        gpus: GPUs.
        node_selector: Labels of the nodes.
        tolerations: Tolerations of taints.
    """

    cpu: Quantity | None = None
    memory: Quantity | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    node_selector: dict[Label, LabelValue] | None = None
    tolerations: list[Toleration] | None = None


class RolePods(_PodFields):
    """Overrides for the pods of one role; null keeps the value of all roles.

    Fields:
        pod_patch: Patch of the pods of this role, after `kubernetes.pod_patch`.
    """

    pod_patch: PodPatch = PodPatch()


class Pods(_PodFields):
    """Resources and placement of the pods of all roles.

    Fields:
        gpu_resource: Resource name of GPUs.
        shared_memory: Size of /dev/shm; NCCL may require more. null: 64 MiB of the container runtime.
    """

    gpu_resource: _Text = "nvidia.com/gpu"
    shared_memory: Quantity | None = None


class Volume(Section):
    """A volume of the containers. Set one of `claim`, `nfs`, `secret` and `config_map`.

    Fields:
        mount_path: Mount path in the container.
        claim: A PersistentVolumeClaim; several pods require ReadWriteMany. A volume has one of `claim`, `nfs`,
            `secret`, `config_map`.
        nfs: NFS export, SERVER:/PATH.
        secret: A Secret, such as credentials of a bucket.
        config_map: A ConfigMap, such as source files.
        read_only: Mount read-only.
        sub_path: A directory of the volume to mount.
    """

    mount_path: MountPath
    claim: ObjectName | None = None
    nfs: Annotated[
        str | None,
        _pattern(
            r"[^:/]+:/.*", noun="an NFS export", allowed="SERVER:/PATH", hint="write for example nas1:/export/models."
        ),
    ] = None
    secret: ObjectName | None = None
    config_map: ObjectName | None = None
    read_only: bool = False
    sub_path: _Text | None = None

    @property
    def writable(self) -> bool:
        """Whether pods can write files to it."""
        return not self.read_only and (self.claim is not None or self.nfs is not None)

    def problems(self) -> Iterator[Problem]:
        kinds = ("claim", "nfs", "secret", "config_map")
        sources = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(sources) != 1:
            yield Problem(
                (),
                "a volume needs exactly one source.",
                f"{' and '.join(sources) or 'none'} of {', '.join(kinds)}",
                "set one of them.",
                code="job/bad-value",
            )


def _reserved(patch: PodPatch, where: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the labels and variables of a patch that the manifest reserves."""
    for label in patch.metadata.labels:
        if label in (NAME_LABEL, INSTANCE_LABEL):
            path = (*where, "metadata", "labels", label)
            yield Problem(path, "this label identifies the job's pods.", label, "leave it out.")
    for i, container in enumerate(patch.spec.get("containers") or ()):
        for k, variable in enumerate(container.get("env") or ()):
            if variable["name"] in (*MANIFEST_VARIABLES, SECS_VARIABLE):
                path = (*where, "spec", "containers", str(i), "env", str(k))
                yield Problem(path, "the manifest sets this variable.", variable["name"], "leave it out.")


class SchedulingPolicy(Section):
    """How a gang scheduler (Volcano, scheduler plugins) starts a TFJob's pods: `runPolicy.schedulingPolicy`.

    Fields:
        min_available: Number of pods of a TFJob that a gang scheduler starts together. null: all.
        queue: Queue of the scheduler.
        priority_class: PriorityClass of the pod group.
        min_resources: Resources that must be free before any pod starts.
        schedule_timeout_seconds: Timeout for all pods to be scheduled.
    """

    min_available: Annotated[int, Field(ge=1)] | None = None
    queue: _Text | None = None
    priority_class: ObjectName | None = None
    min_resources: dict[Label, Quantity] = {}
    schedule_timeout_seconds: Annotated[int, Field(ge=0)] | None = None


class Kubernetes(Section):
    """How the job runs in Kubernetes.

    Fields:
        kind: `job` (Indexed Jobs with a headless Service), `jobset` or `tfjob`.
        image: Container image; it contains this package.
        image_pull_policy: Pull policy. null: default of Kubernetes.
        image_pull_secrets: Secrets of the registry.
        namespace: Namespace. null: that of the kubectl context.
        service_account: Service account. null: default of the namespace.
        labels: Labels of all objects and pods.
        annotations: Annotations of all pods.
        env: Environment variables of all containers.
        env_from_secrets: Secrets whose keys become environment variables.
        volumes: Volumes of the containers.
        pods: Resources of all pods.
        roles: Settings of the pods of a role: chief, worker, ps, evaluator. null: as in `kubernetes.pods`.
        port: Port of each task.
        tf_config: `environment`: each task derives TF_CONFIG from its pod's environment. `written`: the manifest
            contains it.
        max_restarts: Maximum failures of a task, or of a JobSet's whole job. Preemptions do not count.
        step_timeout: Seconds without a step (five times as many for the first, at least 1800) after which a training
            task counts as hung and is restarted. A task without a heartbeat for a minute is restarted, too. null: no
            check. See docs/guides/kubernetes.md.
        termination_grace_seconds: Seconds from SIGTERM to SIGKILL, for a checkpoint.
        ttl_seconds_after_finished: Seconds until the finished job is deleted. null: never.
        active_deadline_seconds: Seconds until the running job is stopped. null: never. Not for a JobSet.
        priority_class: PriorityClass of the pods.
        scheduling_policy: Gang scheduling of a TFJob.
        pod_patch: Pod fields that have no field here (`metadata`, `spec`), merged into every pod. See
            docs/guides/kubernetes.md.
        pod_security: `restricted`: set what that Pod Security Standard requires. `none`: set nothing.
        run_as_user: User id. null: the image's, which must be a number other than 0.
        fs_group: Group that owns the files of volumes.
    """

    kind: Literal["job", "jobset", "tfjob"] = "job"
    image: _Text | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: list[ObjectName] = []
    namespace: ObjectName | None = None
    service_account: ObjectName | None = None
    labels: dict[Label, LabelValue] = {}
    annotations: dict[Label, str] = {}
    env: dict[Variable, str] = {}
    env_from_secrets: list[ObjectName] = []
    volumes: list[Volume] = []
    pods: Pods = Pods()
    roles: dict[Literal["chief", "worker", "ps", "evaluator"], RolePods] = {}
    port: Annotated[int, Field(ge=1024, le=65535)] = 2222
    tf_config: Literal["environment", "written"] = "environment"
    max_restarts: Annotated[int, Field(ge=0)] = 3
    step_timeout: Annotated[float, Field(gt=0)] | None = None
    termination_grace_seconds: Annotated[int, Field(ge=2 * GRACE_MARGIN_SECS)] = 90
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    priority_class: ObjectName | None = None
    scheduling_policy: SchedulingPolicy | None = None
    pod_patch: PodPatch = PodPatch()
    pod_security: Literal["restricted", "none"] = "restricted"
    run_as_user: Annotated[int, Field(ge=1)] | None = None
    fs_group: Annotated[int, Field(ge=1)] | None = None

    @property
    def preemption_secs(self) -> int:
        """The time of a task from SIGTERM to its exit, in seconds."""
        return self.termination_grace_seconds - GRACE_MARGIN_SECS

    def problems(self) -> Iterator[Problem]:
        for label in self.labels:
            if label in (NAME_LABEL, INSTANCE_LABEL):
                yield Problem(
                    ("labels", label),
                    "this label identifies the job's pods.",
                    f"{label}",
                    "leave it out, or rename the job with --name.",
                )
        for name in self.env:
            if name in MANIFEST_VARIABLES:
                yield Problem(
                    ("env", name),
                    "the manifest sets this variable.",
                    f"{name}",
                    "leave it out.",
                )
        seconds = self.env.get(SECS_VARIABLE)
        if seconds is not None and not (seconds.isdigit() and int(seconds) <= self.preemption_secs):
            yield Problem(
                ("env", SECS_VARIABLE),
                "a task would be killed before its time for a checkpoint is over.",
                f"{seconds!r} with termination_grace_seconds {self.termination_grace_seconds}",
                f"set at most {self.preemption_secs} seconds, or raise kubernetes.termination_grace_seconds.",
            )
        if self.kind == "jobset" and self.active_deadline_seconds is not None:
            yield Problem(
                ("active_deadline_seconds",),
                "a JobSet has no deadline, and each restart would reset the deadlines of its Jobs.",
                f"active_deadline_seconds {self.active_deadline_seconds} with kind jobset",
                "leave it out, or use kind: job.",
            )
        if self.kind != "tfjob" and self.scheduling_policy is not None:
            yield Problem(
                ("scheduling_policy",),
                "only a TFJob has a scheduling policy.",
                f"scheduling_policy with kind {self.kind}",
                "name the scheduler and the queue by labels, or in pod_patch; or use kind: tfjob.",
            )
        for where, patch in (
            (("pod_patch",), self.pod_patch),
            *((("roles", role, "pod_patch"), pods.pod_patch) for role, pods in self.roles.items()),
        ):
            yield from _reserved(patch, where)
        if self.kind == "tfjob" and self.tf_config == "written":
            yield Problem(
                ("tf_config",),
                "the TFJob operator writes TF_CONFIG.",
                "tf_config written with kind tfjob",
                "leave it out.",
            )
        paths = [volume.mount_path for volume in self.volumes]
        for i, path in enumerate(paths):
            if path in paths[:i] or path == "/job":
                yield Problem(
                    ("volumes", i, "mount_path"),
                    "something else is mounted there." if path == "/job" else "two volumes are mounted there.",
                    f"{path!r}" + (", where the job file is" if path == "/job" else ""),
                    "mount it to a different folder.",
                )
