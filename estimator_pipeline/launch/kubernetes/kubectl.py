"""Calls of `kubectl`, which uses the cluster and the rights of its configuration."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from estimator_pipeline.errors import ConfigError, TaskFailedError, WaitError
from estimator_pipeline.launch.kubernetes.pods import selector_of

__all__ = [
    "COMMAND_SECS",
    "RESOURCES",
    "JobName",
    "KindUnavailableError",
    "checked",
    "create",
    "items",
    "program",
    "run",
]

COMMAND_SECS = 120.0
"""Timeout in seconds of a kubectl command for a few small objects."""
RESOURCES = {"job": "jobs.batch", "jobset": "jobsets.jobset.x-k8s.io", "tfjob": "tfjobs.kubeflow.org"}
"""The API resource that runs the pods, for each `kubernetes.kind`."""
_CONTROLLERS = {"jobset": "the JobSet controller", "tfjob": "Kubeflow's training operator"}
_LOG_LINE = re.compile(r"[IWEF]\d{4} [\d:.]+ ")
# kubectl's messages about a kind that the cluster does not know.
_UNKNOWN_KIND = ("no matches for kind", "the server doesn't have a resource type")


class KindUnavailableError(TaskFailedError):
    """The cluster does not know a kind of object, or this user may not see it."""


class JobName(NamedTuple):
    """A job in a cluster, or all jobs of a kind.

    Attributes:
        kind: "job", "jobset" or "tfjob".
        name: The name of the job; "" for all jobs of the namespace.
        namespace: The namespace; None for that of kubectl's context.
    """

    kind: str
    name: str
    namespace: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.name else ""

    @property
    def selector(self) -> str:
        """The label selector of its objects and pods."""
        return ",".join(f"{key}={value}" for key, value in selector_of(self.name).items() if value)

    @property
    def flags(self) -> str:
        """The namespace option of estimator-pipeline and kubectl, with a blank before it."""
        return f" -n {self.namespace}" if self.namespace else ""

    @property
    def delete(self) -> str:
        """The command that deletes all its objects."""
        return f"kubectl{self.flags} delete {RESOURCES[self.kind]},service,configmap -l {self.selector}"


def program(environ: Mapping[str, str]) -> str:
    """Return the path of kubectl.

    Raises:
        ConfigError: There is no kubectl on PATH.
    """
    path = shutil.which("kubectl", path=environ.get("PATH", ""))
    if path is None:
        raise ConfigError(
            "kubectl cannot be run, and nothing was done.",
            code="scheduler/unavailable",
            found="no kubectl on PATH",
            hint="install and configure it; or write the manifests with `submit kubernetes --dry-run` and apply them "
            "where it is: `kubectl apply -f FILE`.",
        )
    return path


def run(
    arguments: Sequence[str],
    *,
    job: JobName,
    environ: Mapping[str, str],
    text: str | None = None,
    timeout: float = COMMAND_SECS,
) -> subprocess.CompletedProcess[str]:
    """Run kubectl in the job's namespace.

    Args:
        arguments: The verb and its arguments.
        job: The job, for its namespace.
        environ: The environment of kubectl: PATH, KUBECONFIG and so on.
        text: The standard input.
        timeout: The timeout in seconds.

    Raises:
        ConfigError: There is no kubectl.
        WaitError: kubectl did not exit in time.
    """
    command = [program(environ), *(["--namespace", job.namespace] if job.namespace else []), *arguments]
    try:
        return subprocess.run(
            command,
            input=text or "",
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WaitError(
            f"kubectl {arguments[0]} did not end within {timeout:g} s; it may have been partly executed.",
            code="scheduler/unavailable",
            found=_last(error.stderr) or "no output",
            hint=f"check whether the cluster answers (`kubectl get nodes`), and the status of the job: "
            f"`estimator-pipeline status{f' {job}' if job.name else ''}{job.flags}`.",
        ) from None


def checked(
    arguments: Sequence[str],
    *,
    job: JobName,
    environ: Mapping[str, str],
    text: str | None = None,
    timeout: float = COMMAND_SECS,
) -> str:
    """Call `run` and return the standard output.

    Raises:
        TaskFailedError: kubectl failed, or the cluster rejected the request.
    """
    done = run(arguments, job=job, environ=environ, text=text, timeout=timeout)
    if done.returncode != 0:
        raise _error(arguments[0], done, job)
    return done.stdout


def create(text: str, *, job: JobName, environ: Mapping[str, str]) -> str | None:
    """Create objects; return kubectl's output, or None if one exists already.

    Raises:
        TaskFailedError: kubectl failed, or the cluster rejected the request.
    """
    done = run(["create", "-f", "-"], job=job, environ=environ, text=text)
    if done.returncode != 0 and "(AlreadyExists)" in done.stderr:
        return None
    if done.returncode != 0:
        raise _error("create", done, job)
    return done.stdout


def items(resources: str, *, job: JobName, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the job's objects of some resources, in the API's format.

    Raises:
        KindUnavailableError: The cluster has no such resource, or this user may not see it.
        TaskFailedError: kubectl failed, or the cluster rejected the request.
    """
    text = checked(["get", resources, "-l", job.selector, "-o", "json"], job=job, environ=environ)
    try:
        return [item for item in json.loads(text)["items"] if isinstance(item["metadata"], dict)]
    except (ValueError, KeyError, TypeError) as error:
        raise TaskFailedError(
            f"kubectl get {resources} did not print a JSON list.",
            code="scheduler/unavailable",
            found=f"{type(error).__name__}: {error}; it printed {text[:200]!r}",
            hint="check which kubectl is first on PATH: `kubectl version`.",
        ) from None


def _error(verb: str, done: subprocess.CompletedProcess[str], job: JobName) -> TaskFailedError:
    unknown = any(message in done.stderr for message in _UNKNOWN_KIND)
    if unknown and job.kind in _CONTROLLERS:
        hint = f"install {_CONTROLLERS[job.kind]} in the cluster, or use --kind job."
    else:
        hint = (
            "check `kubectl config current-context`, and your rights in the namespace: "
            f"`kubectl{job.flags} auth can-i {verb} {RESOURCES[job.kind]}`."
        )
    kind = KindUnavailableError if unknown or "(Forbidden)" in done.stderr else TaskFailedError
    return kind(
        f"kubectl {verb} failed with exit code {done.returncode}.",
        found=_last(done.stderr) or _last(done.stdout) or "no output",
        hint=hint,
    )


def _last(output: str | bytes | None) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    lines = [line.strip() for line in text.strip().splitlines()]
    # Without a cluster kubectl logs each attempt in detail before its message.
    return "; ".join(([line for line in lines if not _LOG_LINE.match(line)] or lines)[-8:])
