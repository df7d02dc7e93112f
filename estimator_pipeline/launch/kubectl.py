"""The ordinary client of Kubernetes: manifests applied, and what a person types afterwards."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from estimator_pipeline.errors import ConfigError, TaskFailedError, WaitError
from estimator_pipeline.launch.kubernetes import Manifests
from estimator_pipeline.launch.kubernetes_text import manifest_text

__all__ = ["APPLY_SECS", "advice", "apply"]

APPLY_SECS = 120.0
"""How long kubectl may take for a few small objects."""
_RESOURCES = {"job": "job,service", "jobset": "jobset", "tfjob": "tfjob"}


@dataclass(frozen=True)
class Advice:
    """Command lines for a job that was submitted.

    Attributes:
        status: What became of it.
        logs: What the tasks say.
        cancel: Ends it, with a checkpoint, and takes everything away.
    """

    status: str
    logs: str
    cancel: str


def advice(manifests: Manifests) -> Advice:
    """How to watch, read and end the job."""
    kubectl = "kubectl" + (f" -n {manifests.namespace}" if manifests.namespace else "")
    mine = f"-l app.kubernetes.io/instance={manifests.name}"
    return Advice(
        status=f"{kubectl} get {_RESOURCES[manifests.kind]},pods {mine}",
        logs=f"{kubectl} logs -f --prefix --max-log-requests {max(len(manifests.tasks), 5)} {mine}",
        cancel=f"{kubectl} delete {_RESOURCES[manifests.kind]},configmap {mine}",
    )


def apply(manifests: Manifests, *, environ: Mapping[str, str], timeout: float = APPLY_SECS) -> str:
    """Hands the manifests to `kubectl apply`, which takes cluster and rights from its own configuration.

    Args:
        manifests: What to make.
        environ: Of kubectl: PATH, KUBECONFIG and so on.
        timeout: Seconds that it may take.

    Returns:
        What kubectl said: a line for each object.

    Raises:
        ConfigError: There is no kubectl.
        TaskFailedError: kubectl or the cluster refused.
        WaitError: It did not end in time.
    """
    program = shutil.which("kubectl", path=environ.get("PATH", ""))
    if program is None:
        raise ConfigError(
            "kubectl cannot be run, and nothing was submitted.",
            found="no kubectl on PATH",
            mend="install and configure it; or write the manifests with --dry-run and apply them where it is: "
            "`kubectl apply -f FILE`.",
        )
    try:
        done = subprocess.run(
            [program, "apply", "-f", "-"],
            input=manifest_text(manifests),
            capture_output=True,
            text=True,
            env=dict(environ),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WaitError(
            f"kubectl apply did not end within {timeout:g} s; some objects may have been made.",
            found=_last(error.stderr) or "no word of it",
            mend=f"see whether the cluster answers (`kubectl get nodes`), and what is there: "
            f"{advice(manifests).status}",
        ) from None
    if done.returncode != 0:
        raise TaskFailedError(
            f"kubectl apply failed with exit code {done.returncode}.",
            found=_last(done.stderr) or _last(done.stdout) or "no word of it",
            mend=_mend(done.stderr, manifests),
        )
    return done.stdout


def _mend(said: str, manifests: Manifests) -> str:
    if "immutable" in said:
        return (
            f"a job {manifests.name} was submitted before and cannot be changed: delete it "
            f"({advice(manifests).cancel}), or give this one another name with --name."
        )
    if "no matches for kind" in said:
        what = {"jobset": "the JobSet controller", "tfjob": "Kubeflow's training operator"}.get(manifests.kind)
        return f"install {what} in the cluster, or use --kind job." if what else "see which API the cluster has."
    return "see `kubectl config current-context`, and your rights in the namespace: `kubectl auth can-i create jobs`."


def _last(said: str | bytes | None) -> str:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
    return "; ".join(line.strip() for line in text.strip().splitlines()[-8:])
