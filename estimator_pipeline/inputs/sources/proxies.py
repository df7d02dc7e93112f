"""Whether a data set can be downloaded here: asked before TFDS is, which tries again for minutes without a network."""

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
    """One of the hosts that files come from, where none of them takes a connection; None: one does, or it can't be
    told.

    Args:
        urls: of the files.
        environ: where proxies are looked up; through one of them nothing can be told.
        timeout: seconds for all of it, looking names up included.
        port: of HTTPS.
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
        # Looking a name up has no time-out of its own, and cannot be broken off: the threads are left behind.
        threading.Thread(target=ask, args=(host,), daemon=True, name="estimator_pipeline-downloads").start()
    with changed:
        changed.wait_for(lambda: answered or not left, timeout)
        return None if answered else hosts[0]
