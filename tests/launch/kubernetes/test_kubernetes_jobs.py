"""A job in Kubernetes from `submit` to `cancel`, against a kubectl whose cluster is a folder.

The kubectl is kubernetes/fake_kubectl.py. What the controllers and the kubelets would say, the tests write into that
folder themselves, in the form that the schemas of Kubernetes give it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest

from estimator_pipeline.errors import ConfigError, TaskFailedError, WaitError
from estimator_pipeline.job import load_job
from estimator_pipeline.launch.kubernetes import logs as kubernetes_logs
from estimator_pipeline.launch.kubernetes.jobs import cancel, find_objects, submit
from estimator_pipeline.launch.kubernetes.kubectl import JobName, Kubectl
from estimator_pipeline.launch.kubernetes.manifests import Manifests, render
from estimator_pipeline.launch.kubernetes.status import pod_states
from estimator_pipeline.launch.kubernetes.yaml_text import manifest_text
from estimator_pipeline.launch.scheduler import JobList
from tests.support.command_line import call

HERE = Path(__file__).parent
WORKERS = HERE / "jobs" / "workers.yaml"
NAME = "digits-cnn"
SUBMIT = ["submit", "kubernetes"]


class Cluster:
    """The folder that the fake kubectl takes for a cluster, and the environment in which it is first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._state = folder, folder / "state.json"
        (folder / "bin").mkdir()
        (folder / "logs").mkdir()
        program = folder / "bin" / "kubectl"
        program.write_text(f"#!{sys.executable}\n" + (HERE / "fake_kubectl.py").read_text())
        program.chmod(0o755)
        self.state: dict[str, Any] = {"objects": []}
        self.save()
        self.env = {"PATH": str(folder / "bin"), "FAKE_CLUSTER": str(folder), "KUBECONFIG": "/etc/some/config"}

    def load(self) -> None:
        self.state = json.loads(self._state.read_text())

    def save(self, **changes: Any) -> None:
        self.state |= changes
        self._state.with_name("state.json.test").write_text(json.dumps(self.state))
        self._state.with_name("state.json.test").replace(self._state)

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        done = call(*arguments, env=self.env)
        self.load()
        return done

    def objects(self, kind: str) -> list[dict[str, Any]]:
        self.load()
        return [one for one in self.state["objects"] if one["kind"] == kind]

    def calls(self) -> list[list[str]]:
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [json.loads(line)["arguments"] for line in lines]

    def say(self, pod: str, text: str) -> None:
        (self.folder / "logs" / pod).write_text(text)

    def condition(self, kind: str, name: str, reason: str = "", message: str = "") -> None:
        """A condition of what runs the pods."""
        for one in self.objects(kind):
            when = "2026-11-27T12:00:00Z"
            found = {"type": name, "status": "True", "lastTransitionTime": when, "reason": reason, "message": message}
            one["status"] = {"conditions": [found]}
            if kind == "Job":
                kubernetes_validate.validate(_as_stored(one), "1.37", strict=True)
        self.save()

    def pod(self, host: str, state: dict[str, Any] | None, **more: Any) -> None:
        """Puts a pod there, see `pod_document`."""
        self.load()
        self.state["objects"].append(pod_document(host, state, len(self.state["objects"]), **more))
        self.save()


def pod_document(host: str, state: dict[str, Any] | None, number: int = 0, **more: Any) -> dict[str, Any]:
    """A pod of the job whose container has this state; None for one that has no node yet. What is left is status."""
    labels = {"app.kubernetes.io/name": "estimator-pipeline", "app.kubernetes.io/instance": more.pop("name", NAME)}
    suffix, last, restarts = more.pop("suffix", "abcde"), more.pop("last", {}), more.pop("restarts", 0)
    phase = {None: "Pending", "waiting": "Pending", "running": "Running"}.get(next(iter(state)) if state else None)
    if phase is None:
        phase = "Failed" if state["terminated"]["exitCode"] else "Succeeded"
    status: dict[str, Any] = {"phase": phase} | more
    if state is not None:
        own = {"name": "tensorflow", "image": "x", "imageID": "", "ready": False, "restartCount": restarts}
        status["containerStatuses"] = [{**own, "state": state, **({"lastState": last} if last else {})}]
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{host}-{suffix}" if suffix else host,
            "namespace": "default",
            "labels": labels,
            "creationTimestamp": f"2026-11-27T11:00:{number:02}Z",
        },
        "spec": {
            **({"hostname": host} if suffix else {}),
            "nodeName": "node-1",
            "terminationGracePeriodSeconds": 90,
            "containers": [{"name": "tensorflow", "image": "x"}],
        },
        "status": status,
    }
    kubernetes_validate.validate(made, "1.37", strict=True)
    return made


def _as_stored(job: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if key != "grace"}


RUNNING = {"running": {"startedAt": "2026-11-27T11:00:00Z"}}
DONE = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-27T11:59:00Z"}}


def ended(code: int, at: str, reason: str = "Error", **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": f"2026-11-27T{at}Z", **more}}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    folder = tmp_path / "cluster"
    folder.mkdir()
    return Cluster(folder)


def manifests(*changes: str, name: str | None = None) -> Manifests:
    return render(load_job(WORKERS, overrides=changes), name=name)


# Submitting ------------------------------------------------------------------------------------------------------


def test_submit_makes_the_objects(cluster):
    done = cluster(*SUBMIT, WORKERS, "-n", "ns")
    assert done.returncode == 0, done.stderr
    made = manifests("kubernetes.namespace=ns")
    config = made.objects[0]["metadata"]["name"]
    assert done.stdout.splitlines() == [
        f"configmap/{config} created",
        "service/digits-cnn created",
        "job.batch/digits-cnn created",
        "status: estimator-pipeline status job/digits-cnn -n ns",
        "logs:   estimator-pipeline logs --follow job/digits-cnn -n ns",
        "cancel: estimator-pipeline cancel job/digits-cnn -n ns",
        "delete: kubectl -n ns delete jobs.batch,service,configmap -l "
        "app.kubernetes.io/name=estimator-pipeline,app.kubernetes.io/instance=digits-cnn",
    ]
    assert "note: the job's name in Kubernetes is digits-cnn" in done.stderr
    calls = [json.loads(line) for line in (cluster.folder / "calls.jsonl").read_text().splitlines()]
    assert [one["arguments"][:3] for one in calls] == [
        ["--namespace", "ns", verb] for verb in ("get", "apply", "create")
    ]
    assert all(one["kubeconfig"] == "/etc/some/config" for one in calls)
    # What a person saw with --dry-run is what was made.
    shown = manifest_text(made)
    assert all(text in shown for one in calls for text in one["text"].split("---\n") if not text.startswith("#"))
    kept = [{key: one[key] for key in one if key != "metadata"} for one in cluster.state["objects"]]
    assert kept == [{key: one[key] for key in one if key != "metadata"} for one in made.objects]


@pytest.mark.parametrize(
    ("change", "says"),
    [("input.name=nodigits", "did you mean digits"), ("model.params.hidden_unit=[3]", "has no parameter hidden_unit")],
)
def test_what_cannot_work_in_any_image_is_refused_first(cluster, change, says):
    done = cluster(*SUBMIT, WORKERS, "--set", change)
    assert done.returncode == 2 and says in done.stderr and "nothing is submitted" in done.stderr
    assert not cluster.objects("Job") and cluster(*SUBMIT, WORKERS, "--set", change, "--no-checks").returncode == 0


def test_files_and_functions_are_the_image_s(cluster):
    features = "features: {label: {dtype: int64}, x: {dtype: float32, shape: [2]}}, global_batch_size: 8"
    own = [
        "--set",
        f"input={{source: tfrecord, train: /models/t, eval: /models/e, {features}}}",
        "--set",
        "model={function: /models/own.py:model_fn}",
    ]
    assert cluster(*SUBMIT, WORKERS, *own).returncode == 0


def test_the_json_of_submit(cluster):
    document = json.loads(cluster(*SUBMIT, WORKERS, "--json").stdout)
    assert document["objects"][1:] == ["Service/digits-cnn", "Job/digits-cnn"] and document["submitted"] is True
    assert document["tasks"]["evaluator:0"] == "digits-cnn-2"
    assert document["commands"]["status"] == "estimator-pipeline status job/digits-cnn"
    assert json.loads(cluster(*SUBMIT, WORKERS, "--json").stdout)["submitted"] is False


def test_another_job_file_makes_another_config_map_and_other_pods():
    """Pods that run, and pods that are started again, never see a job file that came later."""

    def config(made: Manifests) -> tuple[str, str]:
        name = made.objects[0]["metadata"]["name"]
        (volume,) = [one for one in made.objects[-1]["spec"]["template"]["spec"]["volumes"] if one["name"] == "job"]
        assert volume["configMap"]["name"] == name and made.objects[0]["immutable"] is True
        return name, made.objects[0]["data"]["job.yaml"]

    one, same, other = config(manifests()), config(manifests()), config(manifests("train.max_steps=801"))
    assert one == same and one[0] != other[0] and one[1] != other[1]
    # What is no part of the job file leaves its ConfigMap alone.
    assert config(manifests("kubernetes.image=other:2")) == one


@pytest.mark.parametrize("kind", ["job", "jobset", "tfjob"])
def test_a_second_submit_of_a_job_that_runs_changes_nothing(cluster, kind):
    assert cluster(*SUBMIT, WORKERS, "--kind", kind).returncode == 0
    before = cluster.state
    done = cluster(*SUBMIT, WORKERS, "--kind", kind)
    assert done.returncode == 0 and cluster.state == before
    assert done.stdout.startswith(f"{kind}/digits-cnn already runs with the same manifests\n")


@pytest.mark.parametrize("kind", ["job", "jobset", "tfjob"])
def test_a_second_submit_of_a_job_that_runs_and_was_changed_is_refused(cluster, kind):
    """The operator of a TFJob would have taken the change over, in the midst of training."""
    assert cluster(*SUBMIT, WORKERS, "--kind", kind).returncode == 0
    before = cluster.state
    done = cluster(*SUBMIT, WORKERS, "--kind", kind, "--set", "train.max_steps=900", "--set", "run.seed=7")
    assert done.returncode == 2 and cluster.state == before and not done.stdout
    assert f"{kind}/digits-cnn is already running, and differs from this job; nothing was submitted" in done.stderr
    assert f"`estimator-pipeline cancel {kind}/digits-cnn`" in done.stderr and "--name digits-cnn-2" in done.stderr


@pytest.mark.parametrize(
    ("kind", "workload", "condition", "words", "changes"),
    [
        ("job", "Job", "Complete", "done", []),
        ("job", "Job", "Failed", "failed", ["--set", "train.max_steps=900"]),
        ("jobset", "JobSet", "Completed", "done", ["--set", "train.max_steps=900"]),
        ("tfjob", "TFJob", "Succeeded", "done", []),
    ],
)
def test_a_second_submit_of_a_job_that_has_ended_is_refused(cluster, kind, workload, condition, words, changes):
    assert cluster(*SUBMIT, WORKERS, "--kind", kind).returncode == 0
    cluster.condition(workload, condition)
    before = cluster.state
    done = cluster(*SUBMIT, WORKERS, "--kind", kind, *changes)
    assert done.returncode == 2 and cluster.state == before and not done.stdout
    assert f"{kind}/digits-cnn was submitted before and has ended ({words}); nothing was submitted" in done.stderr
    resource = {"Job": "jobs.batch", "JobSet": "jobsets.jobset.x-k8s.io", "TFJob": "tfjobs.kubeflow.org"}[workload]
    assert f"`kubectl delete {resource},service,configmap -l app.kubernetes.io/name=" in done.stderr
    assert "--name digits-cnn-2" in done.stderr
    # What it advises works: that command first, or the other name.
    command = done.stderr.partition("`kubectl ")[2].partition("`")[0].split()
    assert cluster(*SUBMIT, WORKERS, "--kind", kind, "--name", "digits-cnn-2").returncode == 0
    subprocess.run([cluster.folder / "bin" / "kubectl", *command], env=cluster.env, check=True, capture_output=True)
    done = cluster(*SUBMIT, WORKERS, "--kind", kind, *changes)
    assert done.returncode == 0 and "created" in done.stdout


def test_a_job_whose_pods_still_stop_is_not_submitted_again(cluster):
    """Two pods would have one host name, and two jobs write to one model directory."""
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    cluster.pod("digits-cnn-0", RUNNING)
    cluster.save(grace=2)
    command = ["delete", "jobs.batch", "-l", "app.kubernetes.io/instance=digits-cnn"]
    subprocess.run([cluster.folder / "bin" / "kubectl", *command], env=cluster.env, check=True, capture_output=True)
    done = cluster(*SUBMIT, WORKERS)
    assert done.returncode == 2 and not cluster.objects("Job")
    assert "a job of the name digits-cnn is still being deleted; nothing was submitted" in done.stderr
    assert "1 pod of it, with 90 s" in done.stderr and "wait --for=delete pod" in done.stderr
    assert [cluster(*SUBMIT, WORKERS).returncode for _ in range(2)] == [2, 0] and cluster.objects("Job")


@pytest.mark.parametrize("first", ["job", "jobset"])
def test_a_job_of_another_kind_and_the_same_name_is_in_the_way(cluster, first):
    assert cluster(*SUBMIT, WORKERS, "--kind", first).returncode == 0
    second = {"job": "jobset", "jobset": "job"}[first]
    if first == "jobset":
        cluster.pod("digits-cnn-worker-0-0", RUNNING)
    before = cluster.state
    done = cluster(*SUBMIT, WORKERS, "--kind", second)
    assert done.returncode == 2 and cluster.state == before
    assert "a job of a different kind has the name digits-cnn; nothing was submitted" in done.stderr
    done = cluster("cancel", f"{second}/digits-cnn")
    assert done.returncode == 2 and cluster.state == before and f"there is no {second}/digits-cnn" in done.stderr


def test_of_two_submits_at_once_one_makes_the_job(cluster, monkeypatch):
    """The second looks before the first has made the job, and comes after it."""
    other = manifests("train.max_steps=900")
    real = Kubectl.run

    def slow(kubectl, *arguments, **more):
        said = real(kubectl, *arguments, **more)
        if arguments[0] == "apply":
            monkeypatch.setattr(Kubectl, "run", real)
            assert submit(other, environ=cluster.env)
        return said

    monkeypatch.setattr(Kubectl, "run", slow)
    with pytest.raises(ConfigError, match=r"is already running, and differs from this job"):
        submit(manifests(), environ=cluster.env)
    (job,) = cluster.objects("Job")
    assert job["metadata"]["annotations"] == other.objects[-1]["metadata"]["annotations"]


def test_without_kubectl():
    done = call(*SUBMIT, WORKERS, env={"PATH": "/nowhere"})
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "[scheduler/unavailable]\n  found: no kubectl on PATH" in done.stderr


@pytest.mark.parametrize(
    ("kind", "state", "said", "hint"),
    [
        ("jobset", {"unknown": ["JobSet"]}, "a resource type \"jobsets\"", "install the JobSet controller"),
        ("tfjob", {"unknown": ["TFJob"]}, "a resource type \"tfjobs\"", "install Kubeflow's training operator"),
        ("job", {"refuses": "The connection was refused"}, "was refused", "kubectl config current-context"),
    ],
)  # fmt: skip
def test_what_kubectl_refuses_is_told(cluster, kind, state, said, hint):
    cluster.save(**state)
    done = cluster(*SUBMIT, WORKERS, "--kind", kind)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert said in done.stderr and hint in done.stderr


def _kubectl(folder: Path, body: str) -> dict[str, str]:
    (folder / "kubectl").write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    (folder / "kubectl").chmod(0o755)
    return {"PATH": str(folder)}


def test_a_kubectl_that_does_not_end_is_ended(tmp_path):
    environ = _kubectl(tmp_path, "open(sys.argv[0] + '.pid', 'w').write(str(os.getpid())); time.sleep(600)")
    with pytest.raises(WaitError, match=r"kubectl get did not end within 0\.5 s"):
        Kubectl(JobName("job", "x"), environ, timeout=0.5).run("get", "pods")
    pid = tmp_path / "kubectl.pid"
    if pid.exists() and pid.read_text():  # it had come so far
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    ("body", "says"),
    [("sys.exit(1)", r"(?s)exit code 1\..*no output"), ("print('[]')", "did not print a JSON list")],
)
def test_an_error_of_kubectl_is_no_bad_input(tmp_path, body, says):
    with pytest.raises(TaskFailedError, match=says):
        submit(manifests(), environ=_kubectl(tmp_path, body))


# Status ----------------------------------------------------------------------------------------------------------

LOSS = "INFO:tensorflow:loss = 0.25, step = 300 (1.5 sec)\nINFO:tensorflow:global_step/sec: 66.5\n"


def test_status_of_a_job_that_runs(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    for host in ("digits-cnn-0", "digits-cnn-1", "digits-cnn-2"):
        cluster.pod(host, RUNNING)
    cluster.say("digits-cnn-0-abcde", LOSS)
    cluster.say("digits-cnn-2-abcde", "INFO:tensorflow:Saving dict for global step 200: accuracy = 0.9, loss = 0.3\n")
    for words in (["job/digits-cnn"], [WORKERS], ["job/digits-cnn", "-n", "default"]):
        done = cluster("status", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "job/digits-cnn: running",
            "  step 300 of 800 (37 %), loss 0.25, 66.5 steps/s, 7 s left, evaluated at step 200: accuracy 0.9 loss 0.3",
            "  worker:0     running (digits-cnn-0-abcde)",
            "  worker:1     running (digits-cnn-1-abcde)",
            "  evaluator:0  running (digits-cnn-2-abcde)",
        ]
    document = json.loads(cluster("status", "job/digits-cnn", "--json").stdout)
    assert document["submission"] == {
        "scheduler": "kubernetes", "kind": "job", "name": "digits-cnn", "namespace": None
    }  # fmt: skip
    (found,) = document["jobs"]
    assert found["state"] == "Running" and found["progress"]["step"] == 300 and len(found["pods"]) == 3


def test_status_looks_again_until_the_job_has_ended(cluster, monkeypatch):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    cluster.pod("digits-cnn-0", RUNNING)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            cluster.condition("Job", "Complete")

    # Of this module alone: a process that is waited for sleeps as well.
    monkeypatch.setattr("estimator_pipeline.cli.submit.status.time", SimpleNamespace(sleep=sleep))
    done = cluster("status", "job/digits-cnn", "--watch", "30")
    first = [line for line in done.stdout.splitlines() if line.startswith("job/")]
    assert done.returncode == 0 and slept == [30.0, 30.0]
    assert first == [*["job/digits-cnn: running: 1 of 3 pods"] * 2, "job/digits-cnn: done"]


WAITING = [
    (
        {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x:1\""}}, {},
        'waiting: its image cannot be pulled (Back-off pulling image "x:1")',
    ),
    (
        {"waiting": {"reason": "CreateContainerConfigError", "message": "runAsNonRoot, and image will run as root"}},
        {}, "waiting: its container cannot be created (runAsNonRoot, and image will run as root); set "
            "kubernetes.run_as_user to a number, or pod_security: none",
    ),
    ({"waiting": {"reason": "ContainerCreating"}}, {}, "starting: its container is being created"),
    (
        None, {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                               "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."}]},
        "waiting: no node for it (0/4 nodes are available: 4 Insufficient nvidia.com/gpu.)",
    ),
    (None, {}, "waiting: to be scheduled to a node"),
    (
        None, {"initContainerStatuses": [{
            "name": "fetch", "image": "x", "imageID": "", "ready": False, "restartCount": 2,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
        }]},
        "init container fetch: waiting: it waits for its restart (back-off 20s)",
    ),
]  # fmt: skip


def test_status_says_why_a_pod_waits():
    tasks = {"worker:0": "digits-cnn-0"}
    for state, more, says in WAITING:
        (found,) = pod_states([pod_document("digits-cnn-0", state, **more)], tasks)
        assert (found.task, found.state, found.text) == ("worker:0", "Pending", says)


def test_status_of_a_job_whose_pods_are_refused(cluster):
    """A namespace that enforces Pod Security, or a quota: the Job is accepted, and has no pod for ever."""
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    message = 'Error creating: pods "digits-cnn-0-x" is forbidden: violates PodSecurity "restricted:latest"'
    for name, text in (("other", "of another job"), ("digits-cnn", message)):
        event = {"kind": "Event", "apiVersion": "v1", "metadata": {"name": f"e-{name}", "namespace": "default"},
                 "involvedObject": {"kind": "Job", "name": name}, "reason": "FailedCreate", "message": text,
                 "type": "Warning", "lastTimestamp": f"2026-11-27T12:00:0{len(name)}Z"}  # fmt: skip
        cluster.state["objects"].append(event)
    cluster.save()
    done = cluster("status", "job/digits-cnn")
    assert done.stdout.splitlines() == ["job/digits-cnn: waiting for its pods", f"  FailedCreate: {message}"]


FAILURES = [
    (ended(137, "11:30:00", "OOMKilled"), {}, "out of memory (OOMKilled, exit code 137)"),
    (ended(2, "11:30:00"), {}, "bad input (exit code 2)"),
    (ended(3, "11:30:00"), {}, "training diverged (exit code 3)"),
    (ended(1, "11:30:00"), {}, "exit code 1"),
    (ended(128, "11:30:00", "StartError", message="exec: not"), {}, "exit code 128: StartError (exec: not)"),
    (
        ended(137, "11:30:00"),
        {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                         "message": "m"}]},
        "killed by SIGKILL (exit code 137), because of a disruption: PreemptionByScheduler (m)",
    ),
]  # fmt: skip


def test_status_says_how_a_pod_failed():
    for state, more, says in FAILURES:
        (found,) = pod_states([pod_document("digits-cnn-0", state, **more)], {})
        assert (found.text, found.failure, found.failed) == (f"failed: {says}", says, "2026-11-27T11:30:00Z")


def test_status_of_a_job_that_failed_names_the_first_failure(cluster):
    """Three tasks fail; the one that did so first is the reason, and its own last words are shown."""
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    cluster.condition("Job", "Failed", "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number")
    said = "INFO:tensorflow:x\nerror: no such column 'price'\n  found: a, b\n2026-11-27 11:00:00.123456: I tensor\n"
    cluster.say("digits-cnn-1-abcde", said)
    cluster.say("digits-cnn-0-abcde", "error: worker:1 is gone\n")
    cluster.pod("digits-cnn-0", ended(1, "11:30:05"))
    cluster.pod("digits-cnn-1", ended(1, "11:30:00"))
    cluster.pod("digits-cnn-2", ended(1, "11:30:09"))
    done = cluster("status", "job/digits-cnn")
    first, second, *_ = done.stdout.splitlines()
    assert done.returncode == 1 and "MaxFailedIndexesExceeded" in second
    assert first == "job/digits-cnn: failed: worker:1: exit code 1: no such column 'price' (pod digits-cnn-1-abcde)"
    done = cluster("status", "job/digits-cnn", "--json")
    failure = json.loads(done.stdout)["jobs"][0]["failure"]
    assert done.returncode == 1 and failure["task"] == "worker:1" and failure["time"] == "2026-11-27T11:30:00Z"


def test_a_job_whose_time_is_up_says_that(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    cluster.condition("Job", "Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    cluster.pod("digits-cnn-0", ended(137, "11:30:00"))
    done = cluster("status", "job/digits-cnn")
    assert done.returncode == 1
    assert done.stdout.startswith("job/digits-cnn: failed: active_deadline_seconds exceeded\n")


def test_a_job_of_which_one_role_has_failed_can_still_be_cancelled(cluster):
    """Each role is a Job of its own here: the evaluator goes on, and would hold its node for ever."""
    words = ["--set", "kubernetes.roles={worker: {gpus: 1}}"]
    assert cluster(*SUBMIT, WORKERS, *words).returncode == 0
    (worker,) = [one for one in cluster.objects("Job") if one["metadata"]["name"] == "digits-cnn-worker"]
    worker["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "MaxFailedIndexesExceeded"}]}
    cluster.save()
    cluster.pod("digits-cnn-worker-0", ended(3, "11:30:00"))
    cluster.pod("digits-cnn-evaluator-0", RUNNING)
    cluster.save(grace=0)
    assert cluster(*SUBMIT, WORKERS, *words).returncode == 2
    assert "failed: worker:0: training diverged (exit code 3)" in cluster("status", "job/digits-cnn").stdout
    done = cluster("cancel", "job/digits-cnn", "--now")
    assert done.returncode == 0 and not cluster.objects("Job"), done.stdout


def test_pods_that_cannot_be_made_are_missed(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    cluster.pod("digits-cnn-0", RUNNING)
    event = {"kind": "Event", "apiVersion": "v1", "metadata": {"name": "e", "namespace": "default"}, "type": "Warning",
             "involvedObject": {"kind": "Job", "name": "digits-cnn"}, "reason": "FailedCreate",
             "message": "exceeded quota", "lastTimestamp": "2026-11-27T12:00:00Z"}  # fmt: skip
    cluster.state["objects"].append(event)
    cluster.save()
    lines = cluster("status", "job/digits-cnn").stdout.splitlines()
    assert lines[:2] == ["job/digits-cnn: running: 1 of 3 pods", "  FailedCreate: exceeded quota"]


def test_a_job_of_an_earlier_version_has_tasks_by_their_hosts(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    del cluster.objects("Job")[0]["metadata"]["annotations"]
    cluster.save()
    cluster.pod("digits-cnn-1", RUNNING)
    assert "  digits-cnn-1  running (digits-cnn-1-abcde)" in cluster("status", "job/digits-cnn").stdout
    assert cluster(*SUBMIT, WORKERS).returncode == 2


def test_within_a_second_the_one_whose_end_says_more_is_first(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    cluster.condition("Job", "Failed", "MaxFailedIndexesExceeded", "m")
    cluster.pod("digits-cnn-0", ended(1, "11:30:00"))
    cluster.pod("digits-cnn-1", ended(137, "11:30:00", "OOMKilled"))
    assert "failed: worker:1: out of memory" in cluster("status", "job/digits-cnn").stdout


def test_the_controller_may_name_the_pod_that_ended_the_job(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    who = "Container tensorflow for pod default/digits-cnn-0-abcde"
    message = f"{who} failed with exit code 2 matching FailJob rule at index 0"
    cluster.condition("Job", "Failed", "PodFailurePolicy", message)
    cluster.pod("digits-cnn-1", ended(1, "11:29:00"))
    cluster.pod("digits-cnn-0", ended(2, "11:30:00"))
    assert "failed: worker:0: bad input (exit code 2)" in cluster("status", "job/digits-cnn").stdout


def test_an_earlier_attempt_is_not_why_a_job_failed(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    cluster.condition("Job", "Failed", "MaxFailedIndexesExceeded", "m")
    for suffix, hour, codes in (("aaaaa", "09", (1, 137)), ("bbbbb", "10", (75, 75)), ("ccccc", "11", (3, 1))):
        for index, code in enumerate(codes):
            cluster.pod(f"digits-cnn-{index}", ended(code, f"{hour}:30:0{index}"), suffix=suffix)
    done = cluster("status", "job/digits-cnn")
    assert done.stdout.startswith(
        "job/digits-cnn: failed: worker:0: training diverged (exit code 3) (pod digits-cnn-0-cc"
    )
    assert ", restarted 2 times\n" in done.stdout


def test_status_of_a_task_that_was_started_again(cluster):
    """A TFJob starts the container again where it is; its pods are called as their hosts."""
    assert cluster(*SUBMIT, WORKERS, "--kind", "tfjob").returncode == 0
    last = ended(137, "11:10:00", "OOMKilled")
    cluster.pod("digits-cnn-worker-0", RUNNING, suffix="")
    cluster.pod("digits-cnn-worker-1", RUNNING, suffix="", last=last, restarts=2)
    done = cluster("status", "tfjob/digits-cnn")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "tfjob/digits-cnn: running: 2 of 3 pods, restarted 2 times",
        "  worker:0  running (digits-cnn-worker-0)",
        "  worker:1  running, restarted 2 times, before that: out of memory (OOMKilled, exit code 137) "
        "(digits-cnn-worker-1)",
    ]


def test_status_of_a_jobset(cluster):
    assert cluster(*SUBMIT, WORKERS, "--kind", "jobset").returncode == 0
    cluster.pod("digits-cnn-worker-0-0", DONE)
    cluster.pod("digits-cnn-worker-0-1", RUNNING)
    (jobset,) = cluster.objects("JobSet")
    jobset["status"] = {"restarts": 3, "conditions": [{"type": "StartupPolicyCompleted", "status": "True"}]}
    cluster.save()
    done = cluster("status", WORKERS, "--set", "kubernetes.kind=jobset")
    assert done.stdout.splitlines()[0] == "jobset/digits-cnn: running: 1 of 3 pods, restarted 3 times"
    jobset["status"]["conditions"] = [{"type": "Completed", "status": "True"}]
    cluster.load()
    cluster.state["objects"] = [jobset if one["kind"] == "JobSet" else one for one in cluster.state["objects"]]
    cluster.say("digits-cnn-worker-0-0-abcde", "step 800 (max_steps reached): accuracy 0.975\n")
    cluster.save()
    done = cluster("status", "jobset/digits-cnn")
    assert done.stdout.splitlines()[:2] == ["jobset/digits-cnn: done, restarted 3 times", "  step 800"]


def test_status_of_what_a_queue_holds_back(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    (job,) = cluster.objects("Job")
    job["spec"]["suspend"] = True
    cluster.save()
    assert "job/digits-cnn: suspended" in cluster("status", "job/digits-cnn").stdout


def test_all_jobs_of_a_namespace(cluster):
    """Those of every kind, one that has failed with its first failure; what others have there is left out."""
    assert call("status", env={"PATH": ""}).stdout == "no jobs\n"
    assert cluster("status", "-n", "training").stdout == "no jobs\n"
    for name, kind in (("one", "job"), ("two", "jobset"), ("three", "job")):
        assert cluster(*SUBMIT, WORKERS, "--name", name, "--kind", kind).returncode == 0
    for number, name in enumerate(("one", "two", "three")):
        made = next(
            one for one in cluster.objects("JobSet" if name == "two" else "Job") if one["metadata"]["name"] == name
        )
        made["metadata"]["creationTimestamp"] = f"2026-11-27T10:0{number}:00Z"
        if name == "three":
            made["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
        cluster.save()
    cluster.state["objects"].append({"kind": "Job", "metadata": {"name": "other", "namespace": "default"}, "spec": {}})
    cluster.save()
    cluster.pod("one-0", RUNNING, name="one")
    cluster.say("one-0-abcde", "INFO:tensorflow:loss = 0.25, step = 300\n")
    cluster.pod("three-1", ended(2, "11:30:00"), name="three")
    cluster.say("three-1-abcde", "error: no such column 'price'\n")
    done = cluster("status")
    header, *rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and header[:3] == ["JOB", "STATE", "STEP"], done
    assert [row[:2] for row in rows] == [["job/three", "Failed"], ["jobset/two", "Waiting"], ["job/one", "Running"]]
    assert "worker:1: bad input (exit code 2): no such column 'price'" in done.stdout and rows[2][2] == "300"
    done = cluster("status", "--json", "-n", "default")
    assert [one["submission"]["name"] for one in json.loads(done.stdout)] == ["three", "two", "one"]
    # A folder is of Slurm's submissions.
    assert cluster("status", "--folder", cluster.folder).stdout == "no jobs\n"
    # Of a kind that the cluster does not know there are no jobs.
    cluster.save(unknown=["JobSet", "TFJob"])
    assert cluster("status").stdout.count("\njob") == 2


@pytest.mark.parametrize("command", ["status", "logs", "cancel"])
def test_a_job_that_is_not_there(cluster, command):
    done = cluster(command, "job/digits-cnn", "-n", "ns")
    assert done.returncode == 2 and "job/digits-cnn" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["job/digits", "--set", "train.max_steps=1"], "requires a job file, and job/digits is not one"),
        (["17", "-n", "ns"], "--namespace ns is for jobs in Kubernetes, and 17 is not one"),
        ([WORKERS, "--set", "kubernetes.image=null", "-n", "ns"], "no image in a section kubernetes"),
    ],
)
def test_names_that_are_none_of_a_job(cluster, words, says):
    done = cluster("status", *words)
    assert done.returncode == 2 and says in done.stderr


def test_a_job_file_with_both_sections_means_slurm_once_it_was_submitted_there(cluster, tmp_path):
    words = [WORKERS, "--set", "slurm.time=10", "--set", f"slurm.dir={tmp_path}/slurm"]
    assert "there is no job/digits-cnn in the cluster" in cluster("status", *words).stderr
    (tmp_path / "slurm").mkdir()
    assert "nothing has been submitted to Slurm here" in cluster("status", *words).stderr
    assert "there is no job/digits-cnn in the cluster" in cluster("status", *words, "-n", "default").stderr


# Logs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(cluster: Cluster) -> Iterator[Cluster]:
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    cluster.pod("digits-cnn-1", ended(1, "11:10:00"), suffix="aaaaa")
    cluster.say("digits-cnn-1-aaaaa", "early\n")
    cluster.pod("digits-cnn-0", RUNNING, suffix="bbbbb")
    cluster.pod("digits-cnn-1", RUNNING, suffix="bbbbb")
    cluster.pod("digits-cnn-2", {"waiting": {"reason": "ContainerCreating"}}, suffix="bbbbb")
    cluster.say("digits-cnn-0-bbbbb", "one\ntwo\nthree\n")
    cluster.say("digits-cnn-1-bbbbb", "uno\ndos\n")
    return cluster


def test_logs_by_task(running):
    done = running("logs", "job/digits-cnn", "--lines", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "worker:0    | two",
        "worker:0    | three",
        "worker:1    | uno",
        "worker:1    | dos",
        "evaluator:0 | (starting: its container is being created)",
    ]
    done = running("logs", WORKERS, "--task", "worker:1", "--lines", "0")
    assert done.stdout.splitlines() == ["early", "uno", "dos"]
    done = running("logs", "job/digits-cnn", "--task", "ps:0")
    assert done.returncode == 2 and "its tasks: worker:0, worker:1, evaluator:0" in done.stderr
    done = running("logs", "job/digits-cnn", "--element", "1")
    assert done.returncode == 2 and "the job is not an array" in done.stderr


def test_what_a_pod_says_does_nothing_to_the_terminal(running):
    running.say("digits-cnn-0-bbbbb", "\x1b]0;mine\x07INFO:tensorflow:loss = 0.5, step = 100\n")
    done = running("logs", "job/digits-cnn", "--task", "worker:0")
    assert done.returncode == 0 and "loss = 0.5" in done.stdout and "\x1b" not in done.stdout
    running.say("digits-cnn-1-aaaaa", "error: \x1b[2Jno such column\n")
    message = "Container tensorflow for pod a/digits-cnn-1-aaaaa failed with exit code 2"
    running.condition("Job", "Failed", "PodFailurePolicy", message)
    done = running("status", "job/digits-cnn")
    assert "no such column" in done.stdout and "\x1b" not in done.stdout


def test_the_log_of_the_task_that_failed_first(running):
    """Of the container before the one that runs now, where it was started again in place; without noise."""
    running.load()
    running.state["objects"] = [one for one in running.state["objects"] if one["kind"] != "Pod"]
    running.save()
    done = running("logs", "job/digits-cnn", "--failed")
    assert done.returncode == 2 and "has no pods and therefore no logs" in done.stderr
    running.pod("digits-cnn-0", RUNNING)
    assert "no task has failed" in running("logs", "job/digits-cnn", "--failed").stderr
    running.pod("digits-cnn-1", RUNNING, last=ended(1, "11:10:00"), restarts=1)
    trace = (
        'Traceback (most recent call last):\n  File "m.py", line 3, in layers\n    f()\nValueError: no such column\n'
    )
    noise = "2026-11-27 11:00:00.123456: I tensorflow/core/x.cc:1] optimized\n"
    running.say("digits-cnn-1-abcde.previous", noise + trace)
    done = running("logs", "job/digits-cnn", "--failed", "--lines", "0")
    assert done.stdout == f"worker:1: exit code 1 (pod digits-cnn-1-abcde)\n{trace}"
    running.condition("Job", "Failed", "MaxFailedIndexesExceeded", "m")
    assert "failed: worker:1: exit code 1: ValueError: no such column" in running("status", "job/digits-cnn").stdout
    done = running("logs", "job/digits-cnn", "--failed", "--task", "worker:1")
    assert done.returncode == 2 and "leave --task and --follow out" in done.stderr


def test_logs_are_followed_over_restarts_to_the_end(running):
    """A line that comes later, a pod that fails and the one in its place are all seen, each line once."""
    seen: list[tuple[str, str]] = []
    kubectl = Kubectl(JobName("job", NAME), running.env)

    def change(pod: str, state: dict[str, Any], phase: str) -> None:
        (one,) = [one for one in running.objects("Pod") if one["metadata"]["name"] == pod]
        one["status"]["containerStatuses"][0]["state"], one["status"]["phase"] = state, phase
        running.save()

    def told() -> list[str]:
        return [line for _, line in seen]

    steps = iter([
        lambda: running.say("digits-cnn-0-bbbbb", "one\ntwo\nthree\nfour\n"),
        lambda: change("digits-cnn-1-bbbbb", ended(1, "11:20:00"), "Failed"),
        lambda: (running.say("digits-cnn-1-ccccc", "again\n"), running.pod("digits-cnn-1", RUNNING, suffix="ccccc")),
        lambda: [change(f"digits-cnn-{name}", DONE, "Succeeded") for name in ("0-bbbbb", "1-ccccc", "2-bbbbb")],
        lambda: running.condition("Job", "Complete"),
    ])  # fmt: skip

    deadline = time.monotonic() + 60

    def pods():
        assert time.monotonic() < deadline, seen
        found = find_objects(kubectl)
        if {"three", "dos"} <= set(told()):
            next(steps, lambda: None)()
        return found.pods, found.status.ended

    kubernetes_logs.follow(kubectl, pods, lines=2, show=lambda *words: seen.append(words), poll=0.05)
    assert [line for task, line in seen if task == "worker:0"] == ["two", "three", "four"]
    assert [line for task, line in seen if task == "worker:1"] == ["uno", "dos", "again"]


def test_a_connection_that_ends_is_made_again_and_no_line_comes_twice(running, monkeypatch):
    """The API server closes it after some hours; the pod runs on."""
    seen: list[str] = []
    kubectl, looks = Kubectl(JobName("job", NAME), running.env), iter(range(10**6))
    deadline = time.monotonic() + 60

    def pods():
        assert time.monotonic() < deadline, seen
        if next(looks) == 0:
            running.say("digits-cnn-0-bbbbb.ends", "")
        found = [one for one in find_objects(kubectl).pods if one.task == "worker:0"]
        if seen and "four" not in seen:
            running.say("digits-cnn-0-bbbbb", "one\ntwo\nthree\nfour\n")
        return found, "four" in seen

    kubernetes_logs.follow(kubectl, pods, lines=2, show=lambda _, line: seen.append(line), poll=0.05)
    assert seen == ["two", "three", "four"]
    assert sum("--follow" in words for words in running.calls()) >= 2


def test_following_ends_with_its_readers(running):
    """Ctrl-C: no kubectl is left."""
    kubectl = Kubectl(JobName("job", NAME), running.env)

    def interrupted():
        if (running.folder / "calls.jsonl").read_text().count('"--follow"') == 2:
            raise KeyboardInterrupt
        found = find_objects(kubectl)
        return found.pods, False

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        kubernetes_logs.follow(kubectl, interrupted, lines=2, show=lambda *_: None, poll=0.05)
    assert threading.active_count() == before


# Cancelling ------------------------------------------------------------------------------------------------------


def test_cancel_waits_for_the_checkpoint_and_takes_everything_away(running):
    running.save(grace=3)
    said: list[str] = []
    cancel(Kubectl(JobName("job", NAME), running.env), report=said.append, poll=0.01)
    assert said == [
        "job/digits-cnn: stopping its pods, which have 90 s for a checkpoint",
        "job/digits-cnn: ended and deleted; submit it again to resume from its last checkpoint",
    ]
    assert [kind for kind in ("Job", "Service", "ConfigMap") if running.objects(kind)] == []
    verbs = [words[:2] for words in running.calls()[-8:]]
    # The Service goes last: by it the tasks find each other while they stop.
    assert verbs[-1] == ["delete", "service,configmap"] and verbs.count(["get", "pods"]) >= 3
    assert running(*SUBMIT, WORKERS).returncode == 0


def test_cancel_now_shortens_the_time_of_the_pods(running):
    running.save(grace=0)
    done = running("cancel", "job/digits-cnn", "--now")
    assert done.returncode == 0, done.stderr
    assert "killing its pods" in done.stdout
    deletions = [words for words in running.calls() if words[0] == "delete"]
    assert [words[1] for words in deletions] == ["jobs.batch", "pods", "service,configmap"]
    assert "--grace-period=1" in deletions[1]


def test_cancel_of_what_has_no_pods(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    done = cluster("cancel", "job/digits-cnn")
    assert done.stdout.splitlines()[0] == "job/digits-cnn: deleted; it had no pods" and not cluster.state["objects"]


def test_cancel_of_what_has_ended_leaves_it_to_be_looked_at(cluster):
    assert cluster(*SUBMIT, WORKERS).returncode == 0
    cluster.condition("Job", "Complete")
    done = cluster("cancel", WORKERS)
    assert done.returncode == 0 and "job/digits-cnn has ended already (done); to delete it" in done.stdout
    assert cluster.objects("Job")


def test_cancel_says_which_pods_do_not_go(running, monkeypatch):
    running.save(grace=10**6)
    monkeypatch.setattr("estimator_pipeline.launch.kubernetes.jobs._SLACK_SECS", -90.0)
    with pytest.raises(WaitError, match=r"job/digits-cnn is deleted, and 3 of its pods still exist"):
        cancel(Kubectl(JobName("job", NAME), running.env), report=print)


def test_now_is_for_kubernetes_alone(cluster):
    done = cluster("cancel", "17", "--now")
    assert done.returncode == 2 and "--now is for jobs in Kubernetes" in done.stderr
    done = cluster("cancel", "job/digits-cnn", "--now", "--checkpoint")
    assert done.returncode == 2 and "contradict each other" in done.stderr


def test_status_with_kubectl_and_without_a_cluster(tmp_path, monkeypatch):
    """One line instead of an error: the list of Slurm's jobs is still right."""
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    log = 'E1129 13:00:00.000000    1234 memcache.go:265] "Unhandled Error" err="API group list: connection refused"'
    refused = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
    kubectl.write_text(f"#!/bin/sh\necho '{log}' >&2\necho '{refused}' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    none = JobList([])
    monkeypatch.setattr("estimator_pipeline.launch.batch.scheduler.BatchScheduler.list_jobs", lambda *_, **__: none)
    done = call("status", cwd=tmp_path, env={"PATH": str(kubectl.parent)})
    assert (done.returncode, done.stdout) == (1, "no jobs\n")
    assert done.stderr == f"jobs in Kubernetes, if any, are unknown: {refused}\n"
    done = call("status", "-n", "team", cwd=tmp_path, env={"PATH": str(kubectl.parent)})
    assert refused in done.stderr and "memcache" not in done.stderr and done.returncode == 1
