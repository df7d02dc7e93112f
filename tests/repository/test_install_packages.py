"""The set-up installs with uv what pip was told to install from where."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.processes import ROOT

SPEC = importlib.util.spec_from_file_location("install_packages", ROOT / "tools" / "install_packages.py")
install_packages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(install_packages)

LISTED = """\
:env:.cert='/etc/ssl/company.pem'
:env:.default-timeout='180'
download.no-index='true'
global.cert='/etc/ssl/other.pem'
global.constraint='/etc/pip/constraints.txt'
global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'
global.index-url='https://mirror.example/simple'
install.find_links='/wheels'
install.no-index='false'
install.trusted-host='mirror.example'
"""


def test_uv_is_told_what_pip_is_configured_with():
    options, variables = install_packages.uv_options(install_packages.configuration(LISTED))
    pairs = list(zip(options[::2], options[1::2], strict=True))
    assert sorted(pairs) == [
        ("--allow-insecure-host", "mirror.example"),
        ("--constraint", "/etc/pip/constraints.txt"),
        ("--extra-index-url", "https://a.example/simple"),
        ("--extra-index-url", "https://b.example/simple"),
        ("--find-links", "/wheels"),
        ("--index-strategy", "unsafe-best-match"),
        ("--index-url", "https://mirror.example/simple"),
    ]
    assert variables == {"SSL_CERT_FILE": "/etc/ssl/company.pem", "UV_HTTP_TIMEOUT": "180"}


@pytest.mark.parametrize("code", [0, 1], ids=["uv installs", "uv fails"])
def test_pip_where_uv_fails(monkeypatch, tmp_path, code):
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\necho uv $* >>{tmp_path}/calls\nexit {code}\n")
    uv.chmod(0o755)
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/sh\nshift 2\ncase "$*" in *list) exit;; esac\necho pip $* >>{tmp_path}/calls\n')
    pip.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(install_packages, "PIP", [str(pip), "-m", "pip"])
    assert install_packages.main(["--no-deps", "six"]) == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith(f"uv pip install --python {sys.executable} ") and calls[0].endswith(" --no-deps six")
    assert calls[1:] == ([] if code == 0 else ["pip install --upgrade pip>=24,<28", "pip install --no-deps six"])


def test_an_editable_installation_is_seen_by_type_checkers():
    """They read .pth files with folders, and no import hooks."""
    (file,) = Path(sysconfig.get_path("purelib")).glob("*estimator_pipeline*.pth")
    assert file.read_text(encoding="utf-8").split() == [str(ROOT)]
    assert (ROOT / "estimator_pipeline" / "py.typed").is_file()
