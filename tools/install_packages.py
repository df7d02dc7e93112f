"""Installer of packages into the environment of the Python that runs it: uv, with pip as the fallback.

    python tools/install_packages.py ARGUMENTS OF pip install

uv installs the same packages in an eighth of the time. It is taken from the PATH, or else installed into this
environment with pip. uv does not read pip's configuration, so the tool passes on its package sources: a company's
index, certificates, constraints. The tool uses only the standard library, because it runs before any installation.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

UV = "uv>=0.5,<1"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]

# Options of pip -> the same options of uv. Those of the first table take several values.
_LISTS = {
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
    "no-binary": "--no-binary",
    "only-binary": "--only-binary",
}
_FLAGS = {"no-index": ["--no-index"], "pre": ["--prerelease", "allow"]}
_VARIABLES = {
    "cert": ["SSL_CERT_FILE"],
    "client-cert": ["SSL_CLIENT_CERT"],
    "timeout": ["UV_HTTP_TIMEOUT"],
    "default-timeout": ["UV_HTTP_TIMEOUT"],
    "proxy": ["HTTP_PROXY", "HTTPS_PROXY"],
}


def configuration(listed: str) -> dict[str, str]:
    """Parse the output of `pip config list`: the environment overrides `[install]`, which overrides `[global]`."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        name, separator, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if separator and section in sections:
            sections[section][option.replace("_", "-")] = ast.literal_eval(value)
    return {**sections["global"], **sections["install"], **sections[":env:"]}


def uv_options(configured: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return (options of `uv pip install`, environment variables) equivalent to pip's configuration."""
    # pip takes the best version of all indexes; uv's default is the first index that has the package.
    options = ["--index-strategy", "unsafe-best-match"]
    variables: dict[str, str] = {}
    for option, value in configured.items():
        if option == "index-url":
            options += ["--index-url", value]
        elif option in _LISTS:
            for each in value.split():
                options += [_LISTS[option], each]
        elif option in _FLAGS and value.lower() in ("1", "true", "yes", "on"):
            options += _FLAGS[option]
        elif option in _VARIABLES:
            variables.update(dict.fromkeys(_VARIABLES[option], value))
    return options, variables


def find_uv() -> str | None:
    """Return the path of uv on the PATH or in this environment, where pip installs it if it can."""
    local = Path(sys.executable).with_name("uv")
    if installed := shutil.which("uv") or shutil.which(local):
        return installed
    subprocess.run([*PIP, "install", "--quiet", UV], check=False, stderr=subprocess.STDOUT)
    return shutil.which(local)


def main(arguments: list[str]) -> int:
    uv = find_uv()
    if uv is not None:
        listed = subprocess.run([*PIP, "config", "list"], check=False, stdout=subprocess.PIPE, text=True).stdout
        options, variables = uv_options(configuration(listed))
        command = [uv, "pip", "install", "--python", sys.executable, *options, *arguments]
        if subprocess.run(command, check=False, env={**os.environ, **variables}).returncode == 0:
            return 0
    print("uv could not install the packages; falling back to pip.", flush=True)
    # The pip of an older Python can take many times longer to resolve versions.
    subprocess.run([*PIP, "install", "--upgrade", "pip>=24,<28"], check=False)
    return subprocess.run([*PIP, "install", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
