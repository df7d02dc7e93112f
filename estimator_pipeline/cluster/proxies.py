"""Proxy exemptions for direct connections between the tasks of a cluster.

gRPC sends every connection that `no_proxy` does not exempt to `http_proxy`, even those to 127.0.0.1: tasks then wait
for each other forever. According to gRPC's documentation (environment variables), the proxy is the first of
grpc_proxy, https_proxy and http_proxy that is set, and no_grpc_proxy, or else no_proxy, lists the exempt hosts.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Mapping, MutableMapping

from estimator_pipeline.cluster.spec import from_environ
from estimator_pipeline.errors import PipelineError

__all__ = ["bypass", "exempted", "not_exempt", "proxy_of"]

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXEMPT = ("no_grpc_proxy", "no_proxy")


def proxy_of(environ: Mapping[str, str]) -> str | None:
    """Return the variable that sets a proxy for gRPC."""
    return next((name for name in _PROXIES if environ.get(name)), None)


def not_exempt(environ: Mapping[str, str], addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the hosts of `addresses` ("host:port") to which gRPC would connect through the proxy, each once."""
    if proxy_of(environ) is None:
        return ()
    entries = [part.strip() for part in environ.get(_exempt(environ), "").split(",") if part.strip()]
    hosts = dict.fromkeys(address.rpartition(":")[0].strip("[]") for address in addresses)
    return tuple(host for host in hosts if not any(_is_exempt(host, entry) for entry in entries))


def exempted(environ: Mapping[str, str], addresses: Iterable[str]) -> dict[str, str]:
    """Return the variable to set so that gRPC connects to `addresses` directly; {} if none."""
    missing, name = not_exempt(environ, addresses), _exempt(environ)
    return {name: ",".join(filter(None, [environ.get(name, "").strip(" ,"), *missing]))} if missing else {}


def _exempt(environ: Mapping[str, str]) -> str:
    # Only the first of the two that is set counts.
    return next((name for name in _EXEMPT if environ.get(name)), _EXEMPT[-1])


def _is_exempt(host: str, entry: str) -> bool:
    if host == entry or host.endswith(entry if entry.startswith(".") else f".{entry}"):
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    return False


def bypass(environ: MutableMapping[str, str]) -> None:
    """Exempt the hosts of TF_CONFIG's cluster in `environ`; an invalid TF_CONFIG is reported elsewhere."""
    try:
        cluster = from_environ(environ).cluster
    except PipelineError:
        return
    if cluster is not None:
        environ.update(exempted(environ, [cluster.address(task) for task in cluster.tasks]))
