"""Checks of a pod against the Pod Security Standard "restricted".

https://kubernetes.io/docs/concepts/security/pod-security-standards/. A namespace with the label
`pod-security.kubernetes.io/enforce: restricted` rejects pods that violate it; the Job is accepted and has no pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["not_restricted"]

_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
_PROFILES = ("RuntimeDefault", "Localhost")


def not_restricted(spec: Mapping[str, Any]) -> Iterator[str]:
    """Describe each violation of the standard in a pod's spec."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"{name} is true"
    for volume in spec.get("volumes", ()):
        kinds = set(volume) - {"name"}
        if not kinds <= _VOLUMES:
            yield f"the volume {volume['name']} is of the kind {', '.join(sorted(kinds - _VOLUMES))}"
    pod_context = spec.get("securityContext") or {}
    yield from _common(pod_context, "the pod")
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        context = container.get("securityContext") or {}
        who = f"the container {container['name']}"
        yield from _common(context, who)
        if context.get("runAsNonRoot", pod_context.get("runAsNonRoot")) is not True:
            yield f"{who} may run as root (runAsNonRoot)"
        if (context.get("seccompProfile") or pod_context.get("seccompProfile") or {}).get("type") not in _PROFILES:
            yield f"{who} has no seccompProfile"
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{who} allows privilege escalation"
        capabilities = context.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or ()) or set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
            yield f"{who} keeps capabilities"
        if any(port.get("hostPort") for port in container.get("ports", ())):
            yield f"{who} has a hostPort"


def _common(context: Mapping[str, Any], who: str) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield f"{who} runs as user 0"
    for name in ("privileged", "hostProcess"):
        if context.get(name) or (context.get("windowsOptions") or {}).get(name):
            yield f"{who} has {name}"
    if context.get("procMount", "Default") != "Default":
        yield f"{who} has a procMount"
    if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
        yield f"{who} has an unconfined seccompProfile"
