"""Names of jobs in Kubernetes, and calls of `kubectl`, which uses the cluster and the rights of its configuration."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from estimator_pipeline.errors import ConfigError, TaskFailedError, WaitError
from estimator_pipeline.job.sections.kubernetes import INSTANCE_LABEL, NAME_LABEL

__all__ = ["KINDS", "RESOURCES", "JobName", "KindUnavailableError", "Kubectl"]

KINDS = {"job": "Job", "jobset": "JobSet", "tfjob": "TFJob"}
"""The object that runs the pods, for each `kubernetes.kind`."""
RESOURCES = {"job": "jobs.batch", "jobset": "jobsets.jobset.x-k8s.io", "tfjob": "tfjobs.kubeflow.org"}
"""The API resource of this object."""
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
        name: The name of the job, which is part of every object's name; "" for all jobs of the namespace.
        namespace: The namespace; None for that of kubectl's context.
    """

    kind: str
    name: str
    namespace: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.name else ""

    @property
    def labels(self) -> dict[str, str]:
        """The labels that select its objects and pods."""
        return {NAME_LABEL: "estimator-pipeline", INSTANCE_LABEL: self.name}

    @property
    def selector(self) -> str:
        """The same as an option of kubectl."""
        return ",".join(f"{key}={value}" for key, value in self.labels.items() if value)

    @property
    def flags(self) -> str:
        """The namespace option of estimator-pipeline and kubectl, with a blank before it."""
        return f" -n {self.namespace}" if self.namespace else ""

    @property
    def delete(self) -> str:
        """The command that deletes all its objects."""
        return f"kubectl{self.flags} delete {RESOURCES[self.kind]},service,configmap -l {self.selector}"


@dataclass(frozen=True)
class Kubectl:
    """kubectl in the namespace of a job.

    Attributes:
        job: The job, or all jobs of a kind.
        environ: The environment of kubectl: PATH, KUBECONFIG and so on.
        timeout: The timeout of a command in seconds.
    """

    job: JobName
    environ: Mapping[str, str]
    timeout: float = 120.0

    def command(self, *arguments: str) -> list[str]:
        """Return the command line; raise a `ConfigError` if there is no kubectl on PATH."""
        path = shutil.which("kubectl", path=self.environ.get("PATH", ""))
        if path is None:
            raise ConfigError(
                "kubectl cannot be run, and nothing was done.",
                code="scheduler/unavailable",
                found="no kubectl on PATH",
                hint="install and configure it; or write the manifests with `submit kubernetes --dry-run` and apply "
                "them where it is: `kubectl apply -f FILE`.",
            )
        return [path, *(["--namespace", self.job.namespace] if self.job.namespace else []), *arguments]

    def run(self, *arguments: str, text: str = "") -> str:
        """Run kubectl with this standard input, and return its standard output.

        Raises:
            ConfigError: There is no kubectl.
            KindUnavailableError: The cluster has no such kind of object, or this user may not see it.
            TaskFailedError: kubectl failed, or the cluster rejected the request.
            WaitError: kubectl did not exit in time.
        """
        job = self.job
        try:
            done = subprocess.run(
                self.command(*arguments),
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                env=dict(self.environ),
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise WaitError(
                f"kubectl {arguments[0]} did not end within {self.timeout:g} s; it may have been partly executed.",
                code="scheduler/unavailable",
                found=_last(error.stderr) or "no output",
                hint=f"check whether the cluster answers (`kubectl get nodes`), and the status of the job: "
                f"`estimator-pipeline status{f' {job}' if job.name else ''}{job.flags}`.",
            ) from None
        if done.returncode == 0:
            return done.stdout
        unknown = any(message in done.stderr for message in _UNKNOWN_KIND)
        hint = (
            "check `kubectl config current-context`, and your rights in the namespace: "
            f"`kubectl{job.flags} auth can-i {arguments[0]} {RESOURCES[job.kind]}`."
        )
        if unknown and job.kind in _CONTROLLERS:
            hint = f"install {_CONTROLLERS[job.kind]} in the cluster, or use --kind job."
        kind = KindUnavailableError if unknown or "(Forbidden)" in done.stderr else TaskFailedError
        raise kind(
            f"kubectl {arguments[0]} failed with exit code {done.returncode}.",
            found=_last(done.stderr) or _last(done.stdout) or "no output",
            hint=hint,
        )

    def items(self, resources: str) -> list[dict[str, Any]]:
        """Return the job's objects of some resources, in the API's format; raise the errors of `run`."""
        text = self.run("get", resources, "-l", self.job.selector, "-o", "json")
        try:
            return [item for item in json.loads(text)["items"] if isinstance(item["metadata"], dict)]
        except (ValueError, KeyError, TypeError) as error:
            raise TaskFailedError(
                f"kubectl get {resources} did not print a JSON list.",
                code="scheduler/unavailable",
                found=f"{type(error).__name__}: {error}; it printed {text[:200]!r}",
                hint="check which kubectl is first on PATH: `kubectl version`.",
            ) from None


def _last(output: str | bytes | None) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    lines = [line.strip() for line in text.strip().splitlines()]
    # Without a cluster kubectl logs each attempt in detail before its message.
    return "; ".join(([line for line in lines if not _LOG_LINE.match(line)] or lines)[-8:])
