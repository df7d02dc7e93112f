"""The ordinary client of Kubernetes, with the cluster and the rights of its own configuration."""

from __future__ import annotations

import json
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
    "created",
    "items",
    "program",
    "run",
]

COMMAND_SECS = 120.0
"""How long kubectl may take for a few small objects."""
RESOURCES = {"job": "jobs.batch", "jobset": "jobsets.jobset.x-k8s.io", "tfjob": "tfjobs.kubeflow.org"}
"""What the API calls what runs the pods, for each `kubernetes.kind`."""
_CONTROLLERS = {"jobset": "the JobSet controller", "tfjob": "Kubeflow's training operator"}
# What kubectl says of a kind that the cluster does not know.
_UNKNOWN_KIND = ("no matches for kind", "the server doesn't have a resource type")


class KindUnavailableError(TaskFailedError):
    """The cluster does not know a kind of object, or this user may not see it."""


class JobName(NamedTuple):
    """A job in a cluster, or all jobs of a kind.

    Attributes:
        kind: "job", "jobset" or "tfjob".
        name: Of the whole job; "": all jobs of the namespace are meant.
        namespace: None: that of kubectl's context.
    """

    kind: str
    name: str
    namespace: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.name else ""

    @property
    def selector(self) -> str:
        """By which labels its objects and pods are found."""
        return ",".join(f"{key}={value}" for key, value in selector_of(self.name).items() if value)

    @property
    def flags(self) -> str:
        """Options of our own commands and of kubectl's, with a blank before them."""
        return f" -n {self.namespace}" if self.namespace else ""

    @property
    def delete(self) -> str:
        """A command line that takes everything of it away."""
        return f"kubectl{self.flags} delete {RESOURCES[self.kind]},service,configmap -l {self.selector}"


def program(environ: Mapping[str, str]) -> str:
    """The path of kubectl.

    Raises:
        ConfigError: There is none.
    """
    found = shutil.which("kubectl", path=environ.get("PATH", ""))
    if found is None:
        raise ConfigError(
            "kubectl cannot be run, and nothing was done.",
            code="scheduler/unavailable",
            found="no kubectl on PATH",
            hint="install and configure it; or write the manifests with `submit kubernetes --dry-run` and apply them "
            "where it is: `kubectl apply -f FILE`.",
        )
    return found


def run(
    arguments: Sequence[str],
    *,
    job: JobName,
    environ: Mapping[str, str],
    text: str | None = None,
    timeout: float = COMMAND_SECS,
) -> subprocess.CompletedProcess[str]:
    """Runs kubectl in the job's namespace.

    Args:
        arguments: The verb and what follows.
        job: Whose namespace is meant.
        environ: Of kubectl: PATH, KUBECONFIG and so on.
        text: Its standard input.
        timeout: Seconds that it may take.

    Raises:
        ConfigError: There is no kubectl.
        WaitError: It did not end in time.
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
            f"kubectl {arguments[0]} did not end within {timeout:g} s; it may have done a part of it.",
            code="scheduler/unavailable",
            found=_last(error.stderr) or "no word of it",
            hint=f"see whether the cluster answers (`kubectl get nodes`), and how the job stands: "
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
    """As :func:`run`: what it printed.

    Raises:
        TaskFailedError: kubectl or the cluster refused.
    """
    done = run(arguments, job=job, environ=environ, text=text, timeout=timeout)
    if done.returncode != 0:
        raise _refusal(arguments[0], done, job)
    return done.stdout


def created(text: str, *, job: JobName, environ: Mapping[str, str]) -> str | None:
    """Makes what is not there yet: what kubectl printed, or None where an object of this name is there.

    Raises:
        TaskFailedError: kubectl or the cluster refused.
    """
    done = run(["create", "-f", "-"], job=job, environ=environ, text=text)
    if done.returncode != 0 and "(AlreadyExists)" in done.stderr:
        return None
    if done.returncode != 0:
        raise _refusal("create", done, job)
    return done.stdout


def items(resources: str, *, job: JobName, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """All objects of some resources that belong to the job, as the API gives them.

    Raises:
        KindUnavailableError: The cluster has no such resource, or this user may not see it.
        TaskFailedError: kubectl or the cluster refused.
    """
    text = checked(["get", resources, "-l", job.selector, "-o", "json"], job=job, environ=environ)
    try:
        found = json.loads(text)["items"]
        return [item for item in found if isinstance(item["metadata"], dict)]
    except (ValueError, KeyError, TypeError) as error:
        raise TaskFailedError(
            f"kubectl get {resources} printed something else than a list in JSON.",
            code="scheduler/unavailable",
            found=f"{type(error).__name__}: {error}; it printed {text[:200]!r}",
            hint="see which kubectl is first on PATH: `kubectl version`.",
        ) from None


def _refusal(verb: str, done: subprocess.CompletedProcess[str], job: JobName) -> TaskFailedError:
    unknown = any(words in done.stderr for words in _UNKNOWN_KIND)
    if unknown and job.kind in _CONTROLLERS:
        hint = f"install {_CONTROLLERS[job.kind]} in the cluster, or use --kind job."
    else:
        hint = (
            "see `kubectl config current-context`, and your rights in the namespace: "
            f"`kubectl{job.flags} auth can-i {verb} {RESOURCES[job.kind]}`."
        )
    kind = KindUnavailableError if unknown or "(Forbidden)" in done.stderr else TaskFailedError
    return kind(
        f"kubectl {verb} failed with exit code {done.returncode}.",
        found=_last(done.stderr) or _last(done.stdout) or "no word of it",
        hint=hint,
    )


def _last(said: str | bytes | None) -> str:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
    return "; ".join(line.strip() for line in text.strip().splitlines()[-8:])
