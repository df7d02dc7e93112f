"""A pod's template, as the sections `kubernetes.pods` and `kubernetes.roles` of a job file have it."""

from __future__ import annotations

import copy
import re
from typing import Any

from estimator_pipeline.migrate.configs.documents import Item, Path
from estimator_pipeline.migrate.configs.findings import JobDraft, get, put
from estimator_pipeline.migrate.configs.formats.hyperparameters import NO_TPU, need_strategy_of_tpu

__all__ = ["convert_pod", "same_in_all"]

# Kubeflow looks for the container of this name.
CONTAINER = "tensorflow"
ROLE_FIELDS = ("cpu", "memory", "gpus", "node_selector", "tolerations")
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "alpha.kubernetes.io/nvidia-gpu", "gpu.intel.com/i915")
TPU = re.compile(r"(^|[./])(cloud-)?tpus?([./-]|$)|gke-tpu-")
"""In the names of resources, annotations and labels of nodes: cloud-tpus.google.com/v2, google.com/tpu."""
POD_DECIDED = {
    "affinity": ("kubernetes.pod_patch has it, as it stands", None),
    "initContainers": ("kubernetes.pod_patch has it, as it stands", None),
    "hostNetwork": ("kubernetes.pod_patch has it, as it stands", None),
    "dnsPolicy": ("kubernetes.pod_patch has it, as it stands", None),
    "hostIPC": ("kubernetes.pod_patch has it, as it stands", None),
    "schedulerName": ("kubernetes.pod_patch has it, as it stands", None),
}
POD_DROPPED = {
    "restartPolicy": "submit kubernetes writes it",
    "shareProcessNamespace": "submit kubernetes sets it",
    "subdomain": "the operator makes the Services",
    "hostname": "the operator names the pods",
}
CONTAINER_DROPPED = {
    "name": "submit kubernetes names it tensorflow",
    "ports": "every task listens at kubernetes.port (2222)",
    "terminationMessagePath": "the default",
    "terminationMessagePolicy": "the default",
    "workingDir": "estimator-pipeline train finds its job file at /job/job.yaml",
}


def convert_pod(draft: JobDraft, role: str, path: Path, *, alone: bool) -> None:
    """Says of each field of a role's template what becomes of it.

    Args:
        draft: The job so far.
        role: The role of a job file.
        path: Of the template.
        alone: Whether there is no other role.
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
                own = document.item(*item.path, i)
                if i != number and own is not None:
                    draft.decide(own, "a second container: kubernetes.pod_patch has it, as it stands")
        elif name == "volumes":
            _volumes(draft, document.items(*item.path), mounts)
        elif name == "nodeSelector" and any(TPU.search(str(key)) for key in item.value):
            draft.decide(item, NO_TPU)
        elif name == "nodeSelector":
            draft.take(item, ("kubernetes", "roles", role, "node_selector"))
        elif name == "tolerations":
            _tolerations(draft, item, role)
        else:
            _pod_field(draft, name, item)
    volumes = {str(v.value.get("name")) for v in document.items(*spec, "volumes") if isinstance(v.value, dict)}
    for mount in mounts:
        if isinstance(mount.value, dict) and str(mount.value.get("name")) not in volumes:
            draft.decide(mount, "it mounts a volume that is not there")
    for item in document.items(*spec, "containers", number):
        _container_field(draft, str(item.path[-1]), item, role)
    draft.container_paths[role] = (*spec, "containers", number)


def _container(draft: JobDraft, spec: Path) -> int:
    containers = draft.document.items(*spec, "containers")
    named = [i for i, item in enumerate(containers) if item.value.get("name") == CONTAINER]
    return named[0] if named else 0


def _metadata(draft: JobDraft, name: str, item: Item) -> None:
    if name in ("labels", "annotations"):
        for own in draft.document.items(*item.path):
            if TPU.search(str(own.path[-1])):
                draft.decide(own, NO_TPU)
            else:
                draft.take(own, ("kubernetes", name, str(own.path[-1])))
    else:
        draft.drop(item, "the operator names the pods")


def _pod_field(draft: JobDraft, name: str, item: Item) -> None:
    if name in ("serviceAccountName", "serviceAccount"):
        draft.take(item, ("kubernetes", "service_account"))
    elif name == "priorityClassName":
        draft.take(item, ("kubernetes", "priority_class"))
    elif name == "terminationGracePeriodSeconds":
        draft.take(item, ("kubernetes", "termination_grace_seconds"), why="seconds, 15 of them for the process's end")
    elif name == "imagePullSecrets":
        draft.take(item, ("kubernetes", "image_pull_secrets"), [secret.get("name") for secret in item.value])
    elif name == "securityContext":
        fields = {"runAsUser": "run_as_user", "fsGroup": "fs_group"}
        for inner in draft.document.items(*item.path):
            if inner.path[-1] in fields:
                draft.take(inner, ("kubernetes", fields[str(inner.path[-1])]))
            else:
                draft.decide(inner, "kubernetes.pod_patch has it, as it stands")
    elif name in POD_DROPPED:
        draft.drop(item, POD_DROPPED[name])
    elif name in POD_DECIDED:
        why, to = POD_DECIDED[name]
        draft.decide(item, why, to)


def _tolerations(draft: JobDraft, item: Item, role: str) -> None:
    made = []
    for toleration in item.value:
        known = {key: toleration[key] for key in ("key", "operator", "value", "effect") if toleration.get(key)}
        # What Kubernetes takes for a toleration without an operator.
        made.append({"operator": "Equal" if "value" in known else "Exists", **known})
    seconds = any("tolerationSeconds" in toleration for toleration in item.value)
    why = "but for tolerationSeconds, which a patch to the manifests can add" if seconds else ""
    draft.take(item, ("kubernetes", "roles", role, "tolerations"), made, why=why)


# Volumes ---------------------------------------------------------------------------------------------------------


def _volumes(draft: JobDraft, volumes: list[Item], mounts: list[Item]) -> None:
    for item in volumes:
        value = item.value if isinstance(item.value, dict) else {}
        own = [m for m in mounts if isinstance(m.value, dict) and m.value.get("name") == value.get("name")]
        if not own:
            draft.drop(item, "mounted nowhere")
        for mount in own:
            _volume(draft, item, value, mount)


def _volume(draft: JobDraft, item: Item, value: dict[str, Any], mount: Item) -> None:
    path = str(mount.value.get("mountPath", "")).rstrip("/") or "/"
    empty = value.get("emptyDir") if "emptyDir" in value else None
    if path == "/dev/shm" and "emptyDir" in value:
        size = empty.get("sizeLimit") if isinstance(empty, dict) else None
        if size is None:
            draft.decide(item, "its size is not said", ("kubernetes", "pods", "shared_memory"))
        else:
            draft.take(item, ("kubernetes", "pods", "shared_memory"), size, why="of /dev/shm")
        draft.joined.add(mount.path)
        return
    made: dict[str, Any] = {"mount_path": path}
    known = {
        "persistentVolumeClaim": ("claim", "claimName"),
        "secret": ("secret", "secretName"),
        "configMap": ("config_map", "name"),
    }
    kind = next((name for name in value if name != "name"), None)
    inner = value.get(kind) if kind else None
    if kind in known and isinstance(inner, dict):
        made[known[kind][0]] = inner.get(known[kind][1])
    elif kind == "nfs" and isinstance(inner, dict):
        made["nfs"] = f"{inner.get('server')}:{inner.get('path')}"
    else:
        why = f"a volume of kind {kind}: kubernetes.volumes has claim, nfs, secret and config_map"
        draft.decide(item, why, ("kubernetes", "volumes"))
        draft.joined.add(mount.path)
        return
    if mount.value.get("readOnly") or (isinstance(inner, dict) and inner.get("readOnly")):
        made["read_only"] = True
    if mount.value.get("subPath"):
        made["sub_path"] = str(mount.value["subPath"])
    volumes = get(draft.job, ("kubernetes", "volumes")) or []
    if made not in volumes:
        draft.add(item, ("kubernetes", "volumes"), made, why=f"at {path}")
    else:
        draft.drop(item, "as of another role")
    draft.joined.add(mount.path)


# Containers ------------------------------------------------------------------------------------------------------


def _container_field(draft: JobDraft, name: str, item: Item, role: str) -> None:
    document = draft.document
    if item.value is None:
        draft.drop(item, "not set")
    elif name == "image":
        why = "the image must hold this package as well: build one FROM it"
        draft.decide(item, why, ("kubernetes", "image"), once=True)
    elif name == "imagePullPolicy":
        draft.take(item, ("kubernetes", "image_pull_policy"))
    elif name == "env":
        for own in document.items(*item.path):
            _variable(draft, own)
    elif name == "envFrom":
        for own in document.items(*item.path):
            secret = (
                own.value.get("secretRef", {}).get("name") if isinstance(own.value.get("secretRef"), dict) else None
            )
            if secret:
                draft.add(own, ("kubernetes", "env_from_secrets"), secret)
            else:
                draft.decide(own, "variables of a ConfigMap are written out", ("kubernetes", "env"))
    elif name == "resources":
        _resources(draft, item, role)
    elif name in CONTAINER_DROPPED:
        draft.drop(item, CONTAINER_DROPPED[name])
    elif name not in ("command", "args", "volumeMounts"):
        draft.decide(item, "kubernetes.pod_patch has it, as it stands")


def _variable(draft: JobDraft, item: Item) -> None:
    name = str(item.value.get("name"))
    own = Item(item.path, item.value.get("value", item.value.get("valueFrom")), item.line, f"variable {name}")
    if name == "TF_CONFIG":
        draft.drop(own, "the operator writes it")
    elif "valueFrom" in item.value:
        why = "a value from elsewhere: kubernetes.env_from_secrets takes a whole Secret"
        draft.decide(own, why, ("kubernetes", "env_from_secrets"), once=True)
    else:
        value = item.value.get("value")
        draft.take(own, ("kubernetes", "env", name), "" if value is None else str(value))


def _resources(draft: JobDraft, item: Item, role: str) -> None:
    requests = {str(i.path[-1]): i for i in draft.document.items(*item.path, "requests")}
    limits = {str(i.path[-1]): i for i in draft.document.items(*item.path, "limits")}
    place = ("kubernetes", "roles", role)
    for name in dict.fromkeys((*requests, *limits)):
        asked, most = requests.get(name), limits.get(name)
        first = asked or most
        if first is None:
            continue
        if name in GPU_RESOURCES:
            draft.take(first, (*place, "gpus"), _whole(first.value))
            if name not in ("nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu"):
                draft.derive(("kubernetes", "pods", "gpu_resource"), name, "the resource that was asked for")
            if asked is not None and most is not None:
                draft.drop(most, "the same as the request")
        elif name == "cpu":
            draft.take(first, (*place, "cpu"), str(first.value), why="cores asked for")
            if asked is not None and most is not None:
                draft.drop(most, "there is no limit: it stops threads that could run")
        elif name == "memory":
            # What is asked for is the limit as well: the larger of the two is safe.
            chosen = most or first
            draft.take(chosen, (*place, "memory"), str(chosen.value), why="asked for, and the limit")
            if asked is not None and most is not None:
                draft.drop(asked, "what is asked for is the limit as well")
        else:
            if TPU.search(name):
                draft.decide(first, NO_TPU)
                need_strategy_of_tpu(draft)
            else:
                draft.decide(first, "a resource that a job file does not ask for: a patch to the manifests")
            if asked is not None and most is not None:
                draft.joined.add(most.path)
    for inner in draft.document.items(*item.path):
        if not inner.value:
            draft.drop(inner, "empty")


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def same_in_all(draft: JobDraft, roles: list[str]) -> None:
    """What all roles have goes to `kubernetes.pods`, once."""
    own: dict[str, Any] = draft.job.get("kubernetes", {}).get("roles", {})
    for name in ROLE_FIELDS:
        values = [own.get(role, {}).get(name) for role in roles]
        if values[0] is None or any(value != values[0] for value in values):
            continue
        for role in roles:
            own[role].pop(name)
            draft.moved(("kubernetes", "roles", role, name), ("kubernetes", "pods", name))
        put(draft.job, ("kubernetes", "pods", name), copy.deepcopy(values[0]))
    for role in [role for role, fields in own.items() if not fields]:
        own.pop(role)
    if not own:
        draft.job.get("kubernetes", {}).pop("roles", None)
