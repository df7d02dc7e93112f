"""Conversion of a pod template to the sections `kubernetes.pods` and `kubernetes.roles` of a job file."""

from __future__ import annotations

import copy
import re
from typing import Any

from estimator_pipeline.migrate.configs.documents import Item, Path
from estimator_pipeline.migrate.configs.findings import JobDraft, get, put
from estimator_pipeline.migrate.configs.formats.hyperparameters import NO_TPU, need_strategy_of_tpu
from estimator_pipeline.migrate.configs.formats.tables import Table, convert_table, later, taken

__all__ = ["convert_pod", "move_common_fields"]

# Kubeflow requires a container with this name.
CONTAINER = "tensorflow"
ROLE_FIELDS = ("cpu", "memory", "gpus", "node_selector", "tolerations")
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "alpha.kubernetes.io/nvidia-gpu", "gpu.intel.com/i915")
TPU = re.compile(r"(^|[./])(cloud-)?tpus?([./-]|$)|gke-tpu-")
"""Matches names of resources, annotations and node labels, such as cloud-tpus.google.com/v2 and google.com/tpu."""


def convert_pod(draft: JobDraft, role: str, path: Path, *, alone: bool) -> None:
    """Convert each field of a role's template.

    Args:
        draft: The job under construction.
        role: The role in the job file.
        path: The path of the template.
        alone: Whether the job has only this role.
    """
    document = draft.document
    for item in document.items(*path, "metadata"):
        _metadata(draft, str(item.path[-1]), item)
    spec: Path = (*path, "spec")
    number = _container(draft, spec)
    mounts = document.items(*spec, "containers", number, "volumeMounts")
    for item in document.items(*spec):
        name = str(item.path[-1])
        if item.value is None:
            draft.drop(item, "not set")
        elif name == "containers":
            for i in range(len(item.value)):
                container = document.item(*item.path, i)
                if i != number and container is not None:
                    draft.decide(container, "a second container: copy it to kubernetes.pod_patch")
        elif name == "volumes":
            _volumes(draft, document.items(*item.path), mounts)
        elif name == "nodeSelector" and any(TPU.search(str(key)) for key in item.value):
            draft.decide(item, NO_TPU)
        elif name == "nodeSelector":
            draft.take(item, ("kubernetes", "roles", role, "node_selector"))
        elif name == "tolerations":
            _tolerations(draft, item, role)
        else:
            convert_table(draft, _POD, [item])
    volumes = {str(v.value.get("name")) for v in document.items(*spec, "volumes") if isinstance(v.value, dict)}
    for mount in mounts:
        if isinstance(mount.value, dict) and str(mount.value.get("name")) not in volumes:
            draft.decide(mount, "it mounts a volume that does not exist")
    for item in document.items(*spec, "containers", number):
        name = str(item.path[-1])
        if name == "resources" and item.value is not None:
            _resources(draft, item, role)
        elif name in _CONTAINER:
            convert_table(draft, _CONTAINER, [item])
        else:
            draft.decide(item, *_PATCH[:1])
    draft.container_paths[role] = (*spec, "containers", number)


def _container(draft: JobDraft, spec: Path) -> int:
    containers = draft.document.items(*spec, "containers")
    named = [i for i, item in enumerate(containers) if item.value.get("name") == CONTAINER]
    return named[0] if named else 0


def _metadata(draft: JobDraft, name: str, item: Item) -> None:
    if name in ("labels", "annotations"):
        for entry in draft.document.items(*item.path):
            if TPU.search(str(entry.path[-1])):
                draft.decide(entry, NO_TPU)
            else:
                draft.take(entry, ("kubernetes", name, str(entry.path[-1])))
    else:
        draft.drop(item, "the operator names the pods")


def _pull_secrets(draft: JobDraft, item: Item) -> None:
    draft.take(item, ("kubernetes", "image_pull_secrets"), [secret.get("name") for secret in item.value])


def _security(draft: JobDraft, item: Item) -> None:
    names = {"runAsUser": taken("kubernetes.run_as_user"), "fsGroup": taken("kubernetes.fs_group")}
    for inner in draft.document.items(*item.path):
        convert_table(draft, {str(inner.path[-1]): names.get(str(inner.path[-1]), _PATCH)}, [inner])


_PATCH = ("copy it to kubernetes.pod_patch", "")
_POD: Table = {
    **dict.fromkeys(("serviceAccountName", "serviceAccount"), taken("kubernetes.service_account")),
    "priorityClassName": taken("kubernetes.priority_class"),
    "terminationGracePeriodSeconds": taken(
        "kubernetes.termination_grace_seconds", "seconds; 15 of them are for the exit of the process"
    ),
    "imagePullSecrets": _pull_secrets,
    "securityContext": _security,
    "restartPolicy": "submit kubernetes writes it",
    "shareProcessNamespace": "submit kubernetes sets it",
    "subdomain": "the operator creates the Services",
    "hostname": "the operator names the pods",
    **dict.fromkeys(("affinity", "initContainers", "hostNetwork", "dnsPolicy", "hostIPC", "schedulerName"), _PATCH),
}


def _tolerations(draft: JobDraft, item: Item, role: str) -> None:
    tolerations = []
    for toleration in item.value:
        known = {key: toleration[key] for key in ("key", "operator", "value", "effect") if toleration.get(key)}
        # The defaults of Kubernetes for a toleration without an operator.
        tolerations.append({"operator": "Equal" if "value" in known else "Exists", **known})
    seconds = any("tolerationSeconds" in toleration for toleration in item.value)
    why = "without tolerationSeconds, which a patch to the manifests can add" if seconds else ""
    draft.take(item, ("kubernetes", "roles", role, "tolerations"), tolerations, why=why)


# Volumes ---------------------------------------------------------------------------------------------------------


def _volumes(draft: JobDraft, volumes: list[Item], mounts: list[Item]) -> None:
    for item in volumes:
        value = item.value if isinstance(item.value, dict) else {}
        mounted = [m for m in mounts if isinstance(m.value, dict) and m.value.get("name") == value.get("name")]
        if not mounted:
            draft.drop(item, "not mounted")
        for mount in mounted:
            _volume(draft, item, value, mount)


def _volume(draft: JobDraft, item: Item, value: dict[str, Any], mount: Item) -> None:
    path = str(mount.value.get("mountPath", "")).rstrip("/") or "/"
    empty = value.get("emptyDir") if "emptyDir" in value else None
    if path == "/dev/shm" and "emptyDir" in value:
        size = empty.get("sizeLimit") if isinstance(empty, dict) else None
        if size is None:
            draft.decide(item, "it has no sizeLimit", ("kubernetes", "pods", "shared_memory"))
        else:
            draft.take(item, ("kubernetes", "pods", "shared_memory"), size, why="the size of /dev/shm")
        draft.joined.add(mount.path)
        return
    volume: dict[str, Any] = {"mount_path": path}
    known = {
        "persistentVolumeClaim": ("claim", "claimName"),
        "secret": ("secret", "secretName"),
        "configMap": ("config_map", "name"),
    }
    kind = next((name for name in value if name != "name"), None)
    inner = value.get(kind) if kind else None
    if kind in known and isinstance(inner, dict):
        volume[known[kind][0]] = inner.get(known[kind][1])
    elif kind == "nfs" and isinstance(inner, dict):
        volume["nfs"] = f"{inner.get('server')}:{inner.get('path')}"
    else:
        why = f"a volume of kind {kind}: kubernetes.volumes has claim, nfs, secret and config_map"
        draft.decide(item, why, ("kubernetes", "volumes"))
        draft.joined.add(mount.path)
        return
    if mount.value.get("readOnly") or (isinstance(inner, dict) and inner.get("readOnly")):
        volume["read_only"] = True
    if mount.value.get("subPath"):
        volume["sub_path"] = str(mount.value["subPath"])
    volumes = get(draft.job, ("kubernetes", "volumes")) or []
    if volume not in volumes:
        draft.add(item, ("kubernetes", "volumes"), volume, why=f"at {path}")
    else:
        draft.drop(item, "same as a different role")
    draft.joined.add(mount.path)


# Containers ------------------------------------------------------------------------------------------------------


def _variables(draft: JobDraft, item: Item) -> None:
    for variable in draft.document.items(*item.path):
        _variable(draft, variable)


def _variables_from(draft: JobDraft, item: Item) -> None:
    for source in draft.document.items(*item.path):
        reference = source.value.get("secretRef")
        secret = reference.get("name") if isinstance(reference, dict) else None
        if secret:
            draft.add(source, ("kubernetes", "env_from_secrets"), secret)
        else:
            draft.decide(source, "write out the variables of the ConfigMap", ("kubernetes", "env"))


def _image(draft: JobDraft, item: Item) -> None:
    why = "the image must also contain this package: build an image FROM it"
    draft.decide(item, why, ("kubernetes", "image"), once=True)


_CONTAINER: Table = {
    "image": _image,
    "imagePullPolicy": taken("kubernetes.image_pull_policy"),
    "env": _variables,
    "envFrom": _variables_from,
    **dict.fromkeys(("command", "args", "volumeMounts"), later),
    "name": "submit kubernetes names it tensorflow",
    "ports": "every task listens on kubernetes.port (2222)",
    **dict.fromkeys(("terminationMessagePath", "terminationMessagePolicy"), "the default"),
    "workingDir": "estimator-pipeline train reads its job file from /job/job.yaml",
}


def _variable(draft: JobDraft, item: Item) -> None:
    name = str(item.value.get("name"))
    variable = Item(item.path, item.value.get("value", item.value.get("valueFrom")), item.line, f"variable {name}")
    if name == "TF_CONFIG":
        draft.drop(variable, "the operator writes it")
    elif "valueFrom" in item.value:
        why = "valueFrom is not supported: kubernetes.env_from_secrets takes a whole Secret"
        draft.decide(variable, why, ("kubernetes", "env_from_secrets"), once=True)
    else:
        value = item.value.get("value")
        draft.take(variable, ("kubernetes", "env", name), "" if value is None else str(value))


def _resources(draft: JobDraft, item: Item, role: str) -> None:
    requests = {str(i.path[-1]): i for i in draft.document.items(*item.path, "requests")}
    limits = {str(i.path[-1]): i for i in draft.document.items(*item.path, "limits")}
    place = ("kubernetes", "roles", role)
    for name in dict.fromkeys((*requests, *limits)):
        request, limit = requests.get(name), limits.get(name)
        first = request or limit
        if first is None:
            continue
        if name in GPU_RESOURCES:
            draft.take(first, (*place, "gpus"), _whole(first.value))
            if name not in ("nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu"):
                draft.derive(("kubernetes", "pods", "gpu_resource"), name, "the requested resource")
            if request is not None and limit is not None:
                draft.drop(limit, "the same as the request")
        elif name == "cpu":
            draft.take(first, (*place, "cpu"), str(first.value), why="requested cores")
            if request is not None and limit is not None:
                draft.drop(limit, "not set: a CPU limit throttles threads that could run")
        elif name == "memory":
            # A job file's request is also the limit, so the larger of the two is safe.
            chosen = limit or first
            draft.take(chosen, (*place, "memory"), str(chosen.value), why="request and limit")
            if request is not None and limit is not None:
                draft.drop(request, "the request equals the limit")
        else:
            if TPU.search(name):
                draft.decide(first, NO_TPU)
                need_strategy_of_tpu(draft)
            else:
                draft.decide(first, "a resource that a job file does not support: patch the manifests")
            if request is not None and limit is not None:
                draft.joined.add(limit.path)
    for inner in draft.document.items(*item.path):
        if not inner.value:
            draft.drop(inner, "empty")


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def move_common_fields(draft: JobDraft, roles: list[str]) -> None:
    """Move the fields that are equal in all roles to `kubernetes.pods`."""
    sections: dict[str, Any] = draft.job.get("kubernetes", {}).get("roles", {})
    for name in ROLE_FIELDS:
        values = [sections.get(role, {}).get(name) for role in roles]
        if values[0] is None or any(value != values[0] for value in values):
            continue
        for role in roles:
            sections[role].pop(name)
            draft.moved(("kubernetes", "roles", role, name), ("kubernetes", "pods", name))
        put(draft.job, ("kubernetes", "pods", name), copy.deepcopy(values[0]))
    for role in [role for role, fields in sections.items() if not fields]:
        sections.pop(role)
    if not sections:
        draft.job.get("kubernetes", {}).pop("roles", None)
