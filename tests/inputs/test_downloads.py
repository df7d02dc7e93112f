"""Whether the hosts that a data set comes from take connections."""

from __future__ import annotations

import socket
import threading

import pytest

from estimator_pipeline.inputs.sources import proxies as downloads
from tests.support.processes import free_ports


def silent(urls, port, environ=None):
    return downloads.silent_host(urls, environ=environ or {}, timeout=60, port=port)


def test_one_host_that_answers_is_enough():
    with socket.create_server(("127.0.0.1", 0)) as server:
        urls = ["https://no-such-host.invalid/a", "https://127.0.0.1/b"]
        assert silent(urls, server.getsockname()[1]) is None


def test_hosts_that_do_not_answer_are_told_without_a_wait():
    (port,) = free_ports(1)
    assert silent(["https://127.0.0.1/a", "https://127.0.0.1/b"], port) == "127.0.0.1"


@pytest.mark.parametrize(
    ("urls", "environ"),
    [([], {}), (["a/file"], {}), (["https://127.0.0.1/a"], {"https_proxy": "http://proxy:3128"})],
    ids=["none", "no host", "a proxy"],
)
def test_what_cannot_be_told(urls, environ):
    assert silent(urls, free_ports(1)[0], environ) is None


def test_a_name_that_is_looked_up_for_ever_has_a_deadline(monkeypatch):
    end = threading.Event()

    def connect(*arguments, **options):
        end.wait()
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    try:
        assert downloads.silent_host(["https://a.example/a"], environ={}, timeout=0.1) == "a.example"
    finally:
        end.set()
