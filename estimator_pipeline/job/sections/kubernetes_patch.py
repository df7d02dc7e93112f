"""`kubernetes.pod_patch`: pod fields without a field in the job file, merged like `kubectl patch`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.base import Problem, Section
from estimator_pipeline.utils.text import nearest

__all__ = ["POD_FIELDS", "PatchedMetadata", "PodPatch", "merged"]

POD_FIELDS = frozenset((
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy",
    "enableServiceLinks", "ephemeralContainers", "evictionResponders", "hostAliases", "hostIPC", "hostNetwork",
    "hostPID", "hostUsers", "hostname", "hostnameOverride", "imagePullSecrets", "initContainers", "nodeName",
    "nodeSelector", "os", "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates",
    "resourceClaims", "resources", "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates",
    "schedulingGroup", "securityContext", "serviceAccount", "serviceAccountName", "setHostnameAsFQDN",
    "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds", "tolerations",
    "topologySpreadConstraints", "volumes",
))  # fmt: skip
"""The fields of a pod's spec, as of the newest supported Kubernetes."""
KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
"""Lists with a patch merge key: the field that identifies an element."""
# Elements of these lists have one of several types, so that a patch replaces the whole element.
_WHOLE = ("volumes", "env", "schedulingGates")
# Fields that the controllers of the pods and the tasks rely on.
_NOT: Mapping[str, str] = {
    "restartPolicy": "set kubernetes.max_restarts, or a different kubernetes.kind.",
    "subdomain": "leave it out: the tasks find each other by it.",
    "hostname": "leave it out: the tasks find each other by it.",
    "hostnameOverride": "leave it out: the tasks find each other by it.",
    "setHostnameAsFQDN": "leave it out: the tasks find each other by the short host name.",
    "terminationGracePeriodSeconds": "set kubernetes.termination_grace_seconds, which also limits the tasks.",
    "ephemeralContainers": "leave it out: pod templates cannot have them; see `kubectl debug`.",
}


class PatchedMetadata(Section):
    """Labels and annotations of the pods; null removes an entry.

    Fields:
        labels: Values by name.
        annotations: Values by name.
    """

    labels: dict[str, str | None] = {}
    annotations: dict[str, str | None] = {}


class PodPatch(Section):
    """A part of a pod, in Kubernetes's fields, that is merged into the generated pod.

    Mappings are merged, and null removes a field. In lists with a merge key (containers, volumes, env and so on:
    `KEYS`) elements with the same key are merged and others are added. Every other list is replaced.

    Fields:
        metadata: See `PatchedMetadata`.
        spec: As `spec.template.spec` of a Job.
    """

    metadata: PatchedMetadata = PatchedMetadata()
    spec: dict[str, Any] = {}

    def problems(self) -> Iterator[Problem]:
        for name in self.spec:
            if name in _NOT:
                text = "the manifest sets this field."
                yield Problem(("spec", name), text, f"{name}: {self.spec[name]!r}", _NOT[name])
            elif name not in POD_FIELDS:
                close = nearest(name, POD_FIELDS)
                hint = f"did you mean {close!r}?" if close else "see `kubectl explain pod.spec`."
                yield Problem(
                    ("spec", name), "a pod's spec has no such field.", repr(name), hint, code="job/unknown-field"
                )
        yield from _unnamed(self.spec, ("spec",))
        for i, volume in enumerate(self.spec.get("volumes") or ()):
            if isinstance(volume, dict) and volume.get("name") == "job":
                text = "the volume job holds the job file."
                yield Problem(("spec", "volumes", i), text, repr(volume), "rename it.")


def _unnamed(value: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Yield elements without their merge key, and directives, which are not supported."""
    if isinstance(value, dict):
        for name, item in value.items():
            here = (*path, name)
            if not isinstance(name, str) or name.startswith("$"):
                text = "directives are not supported." if isinstance(name, str) else "the name of a field must be text."
                yield Problem(here, text, repr(name), "leave it out; null removes a field.")
            elif name in KEYS and item is not None:
                yield from _of_list(item, here, KEYS[name])
            else:
                yield from _unnamed(item, here)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _unnamed(item, (*path, i))


def _of_list(value: Any, path: tuple[str | int, ...], key: str) -> Iterator[Problem]:
    if not isinstance(value, list):
        yield Problem(
            path,
            "this is a list in Kubernetes.",
            repr(value),
            f"write a list of mappings, each with {key}.",
            code="job/wrong-type",
        )
        return
    for i, item in enumerate(value):
        if not isinstance(item, dict) or item.get(key) is None:
            text = f"elements of this list need the field {key}."
            yield Problem((*path, i), text, repr(item), f"write a mapping with {key}.", code="job/wrong-type")
        else:
            yield from _unnamed(item, (*path, i))


def merged(template: Mapping[str, Any], patch: PodPatch, *, field: str) -> dict[str, Any]:
    """Return a pod template merged with a patch.

    Args:
        template: The template, with metadata and spec.
        patch: The patch.
        field: The field of the patch in the job file, for messages.

    Raises:
        ConfigError: The types of a field differ: mapping, list or single value.
    """
    return _merged(template, patch.model_dump(exclude_unset=True), field)


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    result = dict(base)
    for name, value in patch.items():
        here, old = f"{path}.{name}", base.get(name)
        if value is None:
            result.pop(name, None)
            continue
        if old is not None and (isinstance(old, dict), isinstance(old, list)) != (
            isinstance(value, dict),
            isinstance(value, list),
        ):
            raise ConfigError(
                f"{here} must be a {_kind(old)}, as in the pod.",
                code="job/wrong-type",
                found=f"{value!r}; in the pod: {old!r}",
                hint=f"write a {_kind(old)}, or null to remove the field.",
            )
        if isinstance(value, dict):
            result[name] = _merged(old or {}, value, here)
        elif name in KEYS:
            result[name] = _merged_list(old or [], value, here, key=KEYS[name], whole=name in _WHOLE)
        else:
            result[name] = copy.deepcopy(value)
    return result


def _merged_list(base: list[Any], patch: list[Any], path: str, *, key: str, whole: bool) -> list[Any]:
    result = list(base)
    for item in patch:
        at = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if at is None:
            result.append(_merged({}, item, f"{path}.{item[key]}"))
        else:
            result[at] = _merged({} if whole else result[at], item, f"{path}.{item[key]}")
    return result


def _kind(value: Any) -> str:
    return "mapping" if isinstance(value, dict) else "list" if isinstance(value, list) else "single value"
