"""A check whether data sets can be downloaded; without a network, TFDS would retry for minutes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Mapping
from urllib.parse import urlparse

__all__ = ["PROXIES", "silent_host"]

PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
CONNECT_SECONDS = 5.0


def silent_host(
    urls: Iterable[str], *, environ: Mapping[str, str], timeout: float = CONNECT_SECONDS, port: int = 443
) -> str | None:
    """Return one of the hosts of the files if none accepts a connection; None if one does, or if it is unknown.

    Args:
        urls: The URLs of the files.
        environ: The variables with proxies; through a proxy the result is unknown.
        timeout: Seconds for the whole check, including name lookups.
        port: The port of HTTPS.
    """
    hosts = sorted({urlparse(url).hostname or "" for url in urls} - {""})
    if not hosts or any(map(environ.get, PROXIES)):
        return None
    left, answered = len(hosts), False
    changed = threading.Condition()

    def ask(host: str) -> None:
        nonlocal left, answered
        there = False
        try:
            with socket.create_connection((host, port), timeout=timeout):
                there = True
        except (OSError, UnicodeError):
            pass
        with changed:
            left, answered = left - 1, answered or there
            changed.notify_all()

    for host in hosts:
        # A name lookup has no timeout and cannot be interrupted: its thread is left behind.
        threading.Thread(target=ask, args=(host,), daemon=True, name="estimator_pipeline-downloads").start()
    with changed:
        changed.wait_for(lambda: answered or not left, timeout)
        return None if answered else hosts[0]
