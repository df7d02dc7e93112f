"""Tasks of a cluster talk to each other directly, also where the way out goes through a proxy.

gRPC sends every connection to `http_proxy` that `no_proxy` does not exempt, those to 127.0.0.1 as well: tasks then wait
for each other for ever. The names are those of gRPC's documentation (environment variables): a proxy is the first of
grpc_proxy, https_proxy and http_proxy that is set, and exempt are the hosts of no_grpc_proxy, or else of no_proxy.
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
    """The variable that names a proxy for gRPC."""
    return next((name for name in _PROXIES if environ.get(name)), None)


def not_exempt(environ: Mapping[str, str], addresses: Iterable[str]) -> tuple[str, ...]:
    """The hosts of `addresses` ("host:port") to which gRPC would connect through the proxy, each once."""
    if proxy_of(environ) is None:
        return ()
    entries = [part.strip() for part in environ.get(_exempt(environ), "").split(",") if part.strip()]
    hosts = dict.fromkeys(address.rpartition(":")[0].strip("[]") for address in addresses)
    return tuple(host for host in hosts if not any(_is_exempt(host, entry) for entry in entries))


def exempted(environ: Mapping[str, str], addresses: Iterable[str]) -> dict[str, str]:
    """The variable to set so that gRPC connects to `addresses` directly; {}: nothing is to be set."""
    missing, name = not_exempt(environ, addresses), _exempt(environ)
    return {name: ",".join(filter(None, [environ.get(name, "").strip(" ,"), *missing]))} if missing else {}


def _exempt(environ: Mapping[str, str]) -> str:
    # The first of the two that is set counts alone.
    return next((name for name in _EXEMPT if environ.get(name)), _EXEMPT[-1])


def _is_exempt(host: str, entry: str) -> bool:
    if host == entry or host.endswith(entry if entry.startswith(".") else f".{entry}"):
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    return False


def bypass(environ: MutableMapping[str, str]) -> None:
    """Exempts the hosts of TF_CONFIG's cluster in `environ`. A TF_CONFIG that cannot be read is left to its reader."""
    try:
        cluster = from_environ(environ).cluster
    except PipelineError:
        return
    if cluster is not None:
        environ.update(exempted(environ, [cluster.address(task) for task in cluster.tasks]))
