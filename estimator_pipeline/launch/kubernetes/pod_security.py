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


def not_restricted(spec: Mapping[str, Any]) -> Iterator[str]:
    """Describe each violation of the standard in a pod's spec."""
    yield from (f"{name} is true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes", ()):
        if kinds := set(volume) - {"name"} - _VOLUMES:
            yield f"the volume {volume['name']} is of the kind {', '.join(sorted(kinds))}"
    of_pod = spec.get("securityContext") or {}
    yield from (f"the pod {fault}" for fault, exists in _common(of_pod).items() if exists)
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        context = container.get("securityContext") or {}
        profile = context.get("seccompProfile") or of_pod.get("seccompProfile") or {}
        capabilities = context.get("capabilities") or {}
        dropped, added = (capabilities.get(name) or () for name in ("drop", "add"))
        faults = {
            **_common(context),
            "may run as root (runAsNonRoot)": context.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True,
            "has no seccompProfile": profile.get("type") not in ("RuntimeDefault", "Localhost"),
            "allows privilege escalation": context.get("allowPrivilegeEscalation") is not False,
            "keeps capabilities": "ALL" not in dropped or set(added) - {"NET_BIND_SERVICE"},
            "has a hostPort": any(port.get("hostPort") for port in container.get("ports", ())),
        }
        yield from (f"the container {container['name']} {fault}" for fault, exists in faults.items() if exists)


def _common(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return violations that the context of a pod or of a container can have -> whether it has them."""
    return {
        "runs as user 0": context.get("runAsUser") == 0,
        "has privileged": context.get("privileged"),
        "has hostProcess": (context.get("windowsOptions") or {}).get("hostProcess"),
        "has a procMount": context.get("procMount", "Default") != "Default",
        "has an unconfined seccompProfile": (context.get("seccompProfile") or {}).get("type") == "Unconfined",
    }
