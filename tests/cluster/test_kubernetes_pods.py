"""The pods of a manifest as processes: each with a network, a port space and a host name of its own, as a pod has them.

No cluster is needed. Linux's network namespaces take the place of pods, and a hosts file that of the Service's DNS.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_pods import Pod, pods_of
from launched_jobs import SMALL, STEPS

from estimator_pipeline.job import load_job
from estimator_pipeline.launch.kubernetes import render

ROOT = Path(__file__).resolve().parents[2]
# TEST-NET-2 (RFC 5737): nobody's addresses.
ADDRESS = "198.51.100.{}"


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False, timeout=20).returncode == 0


@contextlib.contextmanager
def networks(number: int) -> Iterator[list[str]]:
    """Network namespaces on one bridge, which is in a namespace of its own."""
    names = [f"ep{os.getpid()}-{i}" for i in range(number)]
    hub = f"ep{os.getpid()}-hub"
    try:
        if not all(_ip("netns", "add", name) for name in (hub, *names)):
            pytest.skip("no network namespaces here")
        steps = [["-n", hub, "link", "add", "br0", "type", "bridge"], ["-n", hub, "link", "set", "br0", "up"]]
        for i, name in enumerate(names):
            steps += [
                ["-n", hub, "link", "add", f"v{i}", "type", "veth", "peer", "name", "eth0", "netns", name],
                ["-n", hub, "link", "set", f"v{i}", "master", "br0", "up"],
                ["-n", name, "addr", "add", f"{ADDRESS.format(i + 1)}/24", "dev", "eth0"],
                ["-n", name, "link", "set", "eth0", "up"],
                ["-n", name, "link", "set", "lo", "up"],
            ]
        for step in steps:
            if not _ip(*step):
                pytest.skip(f"no virtual networks here: ip {' '.join(step)}")
        yield names
    finally:
        for name in (*names, hub):
            _ip("netns", "del", name)


def start(
    pod: Pod, network: str, hosts: Path, job: Path, environ: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """The container's own command, with the job file where this machine has it."""
    program, *arguments = pod.spec["containers"][0]["command"]
    assert program == "estimator-pipeline" and arguments == ["train", "/job/job.yaml"]
    inside = f'hostname {pod.environ["HOSTNAME"]} && mount --bind {hosts} /etc/hosts && exec "$@"'
    command = ["ip", "netns", "exec", network, "unshare", "--uts", "--mount", "sh", "-c", inside, "sh"]
    command += [sys.executable, "-m", "estimator_pipeline", "train", str(job)]
    with log.open("wb") as file:
        return subprocess.Popen(
            command, env={**environ, **pod.environ}, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
        )


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"),
    reason="needs root, ip and unshare",
)
@pytest.mark.parametrize(
    ("kind", "job_file", "says"),
    [
        ("job", "digits_cnn_two_workers.yaml", "environment kubernetes_job; job pods, rank "),
        ("jobset", "chief_workers_ps.yaml", "environment jobset; job pods, rank "),
        ("tfjob", "chief_workers.yaml", None),
    ],
)
def test_the_pods_of_a_manifest_train_together(run_environment, tmp_path, kind, job_file, says):
    settings = [*SMALL, f"run.model_dir={tmp_path}/model", "kubernetes.image=x:1", f"kubernetes.kind={kind}"]
    settings += [f"kubernetes.volumes=[{{mount_path: {tmp_path}, claim: m}}]"]
    job = load_job(ROOT / "legacy_configs" / job_file, overrides=settings)
    manifests = render(job, name="pods")
    (config_map,) = [o for o in manifests.objects if o["kind"] == "ConfigMap"]
    (tmp_path / "job.yaml").write_text(config_map["data"]["job.yaml"])
    pods = pods_of(manifests)
    lines = ["127.0.0.1 localhost", *(f"{ADDRESS.format(i + 1)} {pod.address}" for i, pod in enumerate(pods))]
    (tmp_path / "hosts").write_text("\n".join(lines) + "\n")
    logs = [tmp_path / f"{pod.environ['HOSTNAME']}.log" for pod in pods]
    with networks(len(pods)) as names:
        running = [
            start(pod, name, tmp_path / "hosts", tmp_path / "job.yaml", run_environment, log)
            for pod, name, log in zip(pods, names, logs, strict=True)
        ]
        try:
            codes = [process.wait(timeout=250) for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()
    said = [log.read_text() for log in logs]
    assert codes == [0] * len(pods), "\n".join(text[-3000:] for text in said)
    for text in said:
        # TF_CONFIG that is there already is followed without a word.
        assert "environment" not in text.partition("\n")[0] if says is None else says in text
    results = {re.findall(r"^step \d+ \(max_steps reached\): .*$", text, re.MULTILINE)[-1] for text in said}
    assert len(results) == 1 and int(results.pop().split()[1]) >= STEPS
