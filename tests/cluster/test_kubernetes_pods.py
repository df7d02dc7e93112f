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
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from estimator_pipeline.job import load_job
from estimator_pipeline.launch.kubernetes.manifests import render
from tests.support.kubernetes_pods import Pod, pods_of
from tests.support.launched_jobs import SMALL, STEPS

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
    command = pod.spec["containers"][0]["command"]
    assert command[0] == "estimator-pipeline" and command[-3:] == ["estimator-pipeline", "train", "/job/job.yaml"][-3:]
    here = {"estimator-pipeline": [sys.executable, "-m", "estimator_pipeline"], "/job/job.yaml": [str(job)]}
    inside = f'hostname {pod.environ["HOSTNAME"]} && mount --bind {hosts} /etc/hosts && exec "$@"'
    command = ["ip", "netns", "exec", network, "unshare", "--uts", "--mount", "sh", "-c", inside, "sh",
               *(word for given in command for word in here.get(given, [given]))]  # fmt: skip
    with log.open("wb") as file:
        return subprocess.Popen(
            command, env={**environ, **pod.environ}, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
        )


pytestmark = [
    pytest.mark.nightly,
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"),
        reason="needs root, ip and unshare",
    ),
]


def pods_and_files(tmp_path: Path, kind: str, job_file: str, *settings: str) -> list[Pod]:
    """The pods of a job's manifest; the job file and the Service's names are written to `tmp_path`."""
    changes = [*SMALL, f"run.model_dir={tmp_path}/model", "kubernetes.image=x:1", f"kubernetes.kind={kind}", *settings]
    changes += [f"kubernetes.volumes=[{{mount_path: {tmp_path}, claim: m}}]"]
    manifests = render(load_job(ROOT / "legacy_configs" / job_file, overrides=changes), name="pods")
    (config_map,) = [o for o in manifests.objects if o["kind"] == "ConfigMap"]
    (tmp_path / "job.yaml").write_text(config_map["data"]["job.yaml"])
    pods = pods_of(manifests)
    lines = ["127.0.0.1 localhost", *(f"{ADDRESS.format(i + 1)} {pod.address}" for i, pod in enumerate(pods))]
    (tmp_path / "hosts").write_text("\n".join(lines) + "\n")
    return pods


def ended(running: list[subprocess.Popen[bytes]], *, timeout: float = 250) -> list[int]:
    try:
        return [process.wait(timeout=timeout) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("kind", "job_file", "says"),
    [
        ("job", "digits_cnn_two_workers.yaml", "environment kubernetes_job; job pods, rank "),
        ("jobset", "chief_workers_ps.yaml", "environment jobset; job pods, rank "),
        ("tfjob", "chief_workers.yaml", None),
    ],
)
def test_the_pods_of_a_manifest_train_together(run_environment, tmp_path, kind, job_file, says):
    pods = pods_and_files(tmp_path, kind, job_file)
    logs = [tmp_path / f"{pod.environ['HOSTNAME']}.log" for pod in pods]
    with networks(len(pods)) as names:
        codes = ended([
            start(pod, name, tmp_path / "hosts", tmp_path / "job.yaml", run_environment, log)
            for pod, name, log in zip(pods, names, logs, strict=True)
        ])  # fmt: skip
    said = [log.read_text() for log in logs]
    assert codes == [0] * len(pods), "\n".join(text[-3000:] for text in said)
    for text in said:
        # TF_CONFIG that is there already is followed without a word.
        assert "environment" not in text.partition("\n")[0] if says is None else says in text
    results = {re.findall(r"^step \d+ \(max_steps reached\): .*$", text, re.MULTILINE)[-1] for text in said}
    assert len(results) == 1 and int(results.pop().split()[1]) >= STEPS


def test_a_task_that_hangs_is_ended_and_its_pod_starts_again(run_environment, tmp_path):
    """One of two workers is stopped in the midst of training. Both make no step: the supervisors of both pods end them,
    with a code that Kubernetes starts pods again for; from the checkpoint they come to the end."""
    pods = pods_and_files(
        tmp_path, "job", "digits_cnn_two_workers.yaml", "train.max_steps=2000", "run.save_checkpoints_steps=400",
        "kubernetes.step_timeout=30", "cluster.evaluator=false", "eval.exporters=[]", "model.name=dnn",
    )  # fmt: skip
    with networks(len(pods)) as names:

        def begin(attempt: int) -> list[subprocess.Popen[bytes]]:
            return [
                start(pod, name, tmp_path / "hosts", tmp_path / "job.yaml", run_environment, log_of(pod, attempt))
                for pod, name in zip(pods, names, strict=True)
            ]

        def log_of(pod: Pod, attempt: int) -> Path:
            return tmp_path / f"{pod.environ['HOSTNAME']}-{attempt}.log"

        running = begin(1)
        try:
            deadline = time.monotonic() + 200
            while not list((tmp_path / "model").glob("model.ckpt-400.index")):
                assert time.monotonic() < deadline, log_of(pods[0], 1).read_text()[-3000:]
                assert all(process.poll() is None for process in running), log_of(pods[0], 1).read_text()[-3000:]
                time.sleep(0.05)
            (task,) = [
                process for process in psutil.Process(running[1].pid).children(recursive=True)
                if "train" in process.cmdline() and "supervise" not in process.cmdline()
            ]  # fmt: skip
            task.suspend()
        except BaseException:
            ended(running, timeout=0)
            raise
        assert ended(running) == [1, 1], log_of(pods[1], 1).read_text()[-3000:]
        assert any("made no step for" in log_of(pod, 1).read_text() for pod in pods)
        assert not task.is_running()
        assert ended(begin(2)) == [0, 0], log_of(pods[0], 2).read_text()[-3000:]
        assert "step 2000 (max_steps reached)" in log_of(pods[0], 2).read_text()
