"""`submit kubernetes`: the manifests, held against the schemas of Kubernetes and against what their pods would find.

The pods that a manifest would make are worked out as the controllers do it (`kubernetes_pods.py`), and their variables
are given to the detection that `train` uses: every task must find its own part, and each address must be the host name
of the pod that has this part. `cluster/test_kubernetes_pods.py` starts them, as processes.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml as yaml_1_1
from dockerfile_parse import DockerfileParser
from ruamel.yaml import YAML

from estimator_pipeline.cluster import Task, TFConfig, parse_tf_config, resolve
from estimator_pipeline.cluster import resolution as resolving
from estimator_pipeline.cluster.roles import tasks_of
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job, load_job
from estimator_pipeline.launch.kubernetes.manifests import Manifests, kubernetes_name, render
from estimator_pipeline.launch.kubernetes.yaml_text import manifest_json, manifest_text
from tests.support.command_line import call
from tests.support.kubernetes_pods import Pod, pods_of

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
KINDS = ("job", "jobset", "tfjob")
JOBS = ("workers", "parameter_servers")
# The oldest is the first with `backoffLimitPerIndex` switched on; the newest that the package of schemas has.
VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")


@pytest.fixture(autouse=True)
def ports_of_pods(monkeypatch):
    """The ports are those of pods; whether they are free on this machine is another matter."""
    monkeypatch.setattr(resolving, "require_free", lambda address, task, environ: None)


def job_of(name: str, *changes: str) -> Job:
    return load_job(HERE / "jobs" / f"{name}.yaml", overrides=changes)


def rendered(name: str, *changes: str, as_name: str | None = None) -> Manifests:
    return render(job_of(name, *changes), name=as_name)


# Golden text -----------------------------------------------------------------------------------------------------

GOLDEN = [
    *((f"{job}-{kind}", job, (f"kubernetes.kind={kind}",)) for job in JOBS for kind in KINDS),
    ("workers-job-written", "workers", ("kubernetes.tf_config=written",)),
    ("workers-jobset-written", "workers", ("kubernetes.kind=jobset", "kubernetes.tf_config=written")),
    ("single-job", "workers", ("cluster={}", "run.train_distribute=none")),
]


@pytest.mark.parametrize(("golden", "job", "changes"), GOLDEN, ids=[name for name, *_ in GOLDEN])
def test_manifests_are_as_recorded(golden, job, changes):
    text = manifest_text(rendered(job, *changes))
    path = HERE / "golden" / f"{golden}.yaml"
    if os.environ.get("ACCEPT_GOLDEN"):
        path.write_text(text)
    recorded = path.read_text()
    diff = "".join(difflib.unified_diff(recorded.splitlines(True), text.splitlines(True), str(path), "rendered"))
    assert text == recorded, f"ACCEPT_GOLDEN=1 accepts this:\n{diff}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_the_objects_in_either_yaml(kind):
    """kubectl reads YAML 1.1, where "on" and 12:30 are no text."""
    values = {
        f"V{i}": text for i, text in enumerate(["on", "12:30", "1_000", "0o7", "1e3", "~", "a: b", "'\"", "", "y"])
    }
    made = rendered("parameter_servers", f"kubernetes.kind={kind}", f"kubernetes.env={json.dumps(values)}")
    text = manifest_text(made)
    assert list(yaml_1_1.safe_load_all(text)) == list(made.objects)
    assert list(YAML(typ="safe", pure=True).load_all(text)) == list(made.objects)
    assert json.loads(manifest_json(made))["items"] == list(made.objects)


def test_the_job_in_the_manifest_is_the_job():
    job = job_of("parameter_servers", "train.max_steps=7")
    (config_map,) = [o for o in render(job).objects if o["kind"] == "ConfigMap"]
    data = YAML(typ="safe").load(config_map["data"]["job.yaml"])
    from estimator_pipeline.job import Kubernetes, make_job

    assert make_job(data) == job.model_copy(update={"kubernetes": Kubernetes()})


# Schemas ---------------------------------------------------------------------------------------------------------


def validate(document: dict[str, Any], version: str) -> None:
    """Strictly: an unknown field is an error at any depth, in custom resources too."""
    kind = document["kind"]
    if kind not in ("JobSet", "TFJob"):
        kubernetes_validate.validate(document, version, strict=True)
        return
    schema = json.loads((HERE / "schemas" / f"{kind.lower()}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    for template in document["spec"].get("replicatedJobs", ()):
        inner = {"apiVersion": "batch/v1", "kind": "Job", **template["template"]}
        kubernetes_validate.validate(inner, version, strict=True)
    for replica in document["spec"].get("tfReplicaSpecs", {}).values():
        # The replica's own policy takes this place.
        pod = json.loads(json.dumps(replica["template"]))
        assert "restartPolicy" not in pod["spec"]
        inner = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": pod}
        kubernetes_validate.validate(inner, version, strict=True)


@pytest.mark.parametrize(
    "version",
    [pytest.param(one, marks=() if one in (VERSIONS[0], VERSIONS[-1]) else pytest.mark.nightly) for one in VERSIONS],
)
@pytest.mark.parametrize(("job", "changes"), [(job, changes) for _, job, changes in GOLDEN])
def test_manifests_are_valid_strictly(job, changes, version):
    for document in rendered(job, *changes).objects:
        validate(document, version)


def _break(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    broken = json.loads(json.dumps(document))
    *above, last = path.split(".")
    at = broken
    for key in above:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[last] = value
    return broken


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("job", "spec.backoffLimitPerindex", 3),
        ("job", "spec.completions", "two"),
        ("job", "spec.template.spec.containers.0.comand", []),
        ("jobset", "spec.network.enableDnsHostnames", True),
        ("jobset", "spec.failurePolicy.rules.0.action", "Fail"),
        ("jobset", "spec.replicatedJobs.0.template.spec.paralellism", 1),
        ("jobset", "spec.replicatedJobs.0.template.spec.template.spec.volumes.0.configmap", {}),
        ("tfjob", "spec.runPolicy.cleanPodPolicy", "Some"),
        ("tfjob", "spec.tfReplicaSpecs.Workers", {"template": {}}),
        ("tfjob", "spec.tfReplicaSpecs.Worker.template.spec.termination", 3),
    ],
)
def test_the_validation_finds_what_is_wrong(kind, path, value):
    document = rendered("workers", f"kubernetes.kind={kind}").objects[-1]
    with pytest.raises(jsonschema.ValidationError):
        validate(_break(document, path, value), "1.37")


# The pods and what they find -------------------------------------------------------------------------------------


def found_by(pod: Pod, job: Job) -> tuple[TFConfig, dict[str, str]]:
    """What `train` would work out in this pod, and what it sets besides."""
    resolved = resolve(pod.environ, job.cluster, ports=job.cluster.ports, directory=job.run.model_dir, hostname="x")
    assert resolved is not None
    changes = {**pod.environ, **resolved.changes}
    if "TF_CONFIG" in changes:
        # What is written is what a program of any kind reads.
        assert parse_tf_config(changes["TF_CONFIG"], source="the pod").task == resolved.tf_config.task
    return resolved.tf_config, changes


SHAPES = {
    "two workers": ("workers", ("cluster={workers: 2}",)),
    "workers and an evaluator": ("workers", ()),
    "a dozen workers": ("workers", ("cluster={workers: 12, evaluator: true}", "input.global_batch_size=60")),
    "chief, workers, ps, evaluator": ("parameter_servers", ()),
    "alike, in one Job": ("parameter_servers", ("kubernetes.roles={}",)),
    "chief and ps": ("parameter_servers", ("cluster={workers: 0, chief: true, ps: 1}", "kubernetes.roles={}")),
    "master": (
        "parameter_servers",
        ("cluster={workers: 1, chief: true, ps: 1, dialect: master}", "eval.during_training=true"),
    ),
}


@pytest.mark.parametrize("written", [False, True], ids=["environment", "written"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_pod_finds_its_task(shape, kind, written):
    name, changes = SHAPES[shape]
    way = [f"kubernetes.kind={kind}"]
    if written and kind == "tfjob":
        pytest.skip("the operator writes it anyway")
    if written:
        way.append("kubernetes.tf_config=written")
    job = job_of(name, *changes, *way)
    manifests = render(job)
    pods = pods_of(manifests)
    tasks = tasks_of(job.cluster)
    port = job.kubernetes.port
    found: dict[Task, Pod] = {}
    clusters = set()
    for pod in pods:
        config, _ = found_by(pod, job)
        assert config.task not in found
        found[config.task] = pod
        clusters.add(json.dumps(config.cluster.as_dict(with_evaluator=False)))
        # Each address of the cluster is the pod that has this part.
        (container,) = pod.spec["containers"]
        assert [p["containerPort"] for p in container["ports"]] == [port]
        assert ("TF_CONFIG" in pod.environ) == (written or kind == "tfjob")
    assert set(found) == set(tasks) and len(pods) == len(tasks)
    (text,) = clusters
    cluster = json.loads(text)
    for task in tasks:
        if task.type != "evaluator":
            assert cluster[task.type][task.index] == f"{found[task].address}:{port}"
    assert [f"{task}" for task in tasks] == list(manifests.tasks)
    assert [found[task].environ["HOSTNAME"] for task in tasks] == list(manifests.tasks.values())


def test_the_service_is_that_of_the_pods():
    for changes in ((), ("kubernetes.tf_config=written",)):
        manifests = rendered("workers", *changes)
        (service,) = [o for o in manifests.objects if o["kind"] == "Service"]
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
        pods = pods_of(manifests)
        for pod in pods:
            assert service["spec"]["selector"].items() <= pod.labels.items()
            assert pod.address.partition(".")[2] == service["metadata"]["name"]
        # Another job's pods are not in it.
        other = pods_of(rendered("workers", *changes, as_name="other"))
        assert not any(service["spec"]["selector"].items() <= pod.labels.items() for pod in other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_process_has_no_cluster(kind):
    job = job_of("workers", "cluster={}", "run.train_distribute=none", f"kubernetes.kind={kind}")
    manifests = render(job)
    (pod,) = pods_of(manifests)
    assert not [o for o in manifests.objects if o["kind"] == "Service"]
    resolved = resolve(pod.environ, job.cluster, hostname="x")
    assert resolved is None or resolved.tf_config.is_single_process


def test_each_attempt_of_a_jobset_has_an_id_of_its_own():
    job = job_of("workers", "kubernetes.kind=jobset")
    ids = []
    for restart in (0, 1):
        of_pods = {found_by(pod, job)[1]["ESTIMATOR_PIPELINE_RUN_ID"] for pod in pods_of(render(job), restart=restart)}
        assert len(of_pods) == 1
        ids += of_pods
    assert ids == ["digits-cnn-4b1e-uid-0", "digits-cnn-4b1e-uid-1"]


def test_pods_of_a_job_have_no_id_of_the_start():
    """They are started again one by one, so an id that they have in common would be that of an earlier start too."""
    for pod in pods_of(rendered("workers")):
        assert "ESTIMATOR_PIPELINE_RUN_ID" not in found_by(pod, job_of("workers"))[1]


def test_agreed_ports_are_not_told_beforehand(tmp_path):
    job = job_of("workers", "cluster={workers: 2, ports: agreed}")
    for pod in pods_of(render(job)):
        assert "ESTIMATOR_PIPELINE_PORT_BASE" not in pod.environ
        assert "ports" not in pod.spec["containers"][0]


# Restarts and preemption -----------------------------------------------------------------------------------------


def _rules(spec: dict[str, Any]) -> dict[int | str, str]:
    found: dict[int | str, str] = {}
    for rule in spec["podFailurePolicy"]["rules"]:
        for code in rule.get("onExitCodes", {}).get("values", ()):
            found[code] = rule["action"]
        for condition in rule.get("onPodConditions", ()):
            found[condition["type"]] = rule["action"]
    return found


def test_a_job_ignores_preemption_and_fails_for_what_comes_again():
    spec = rendered("workers").objects[-1]["spec"]
    end = {2: "FailJob", 3: "FailJob", 126: "FailJob", 127: "FailJob"}
    assert _rules(spec) == {**end, 75: "Ignore", "DisruptionTarget": "Ignore"}
    assert spec["backoffLimitPerIndex"] == 3 and spec["maxFailedIndexes"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # or there is no podFailurePolicy


def test_a_jobset_starts_all_anew_and_tells_preemption_from_failure():
    spec = rendered("workers", "kubernetes.kind=jobset").objects[-1]["spec"]
    for replicated in spec["replicatedJobs"]:
        job = replicated["template"]["spec"]
        assert job["backoffLimit"] == 0
        assert set(_rules(job)) == {2, 3, 126, 127, 75, "DisruptionTarget"}
        assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2, 3, 126, 127]
    again, preempted = spec["failurePolicy"]["rules"]
    # The message of the Job controller, as it stands in its source and in the documents of JobSet.
    message = (
        "Container tensorflow for pod ns/x-worker-0-1-abcde failed with exit code 2 matching FailJob rule at index 0"
    )
    (pattern,) = again["onJobFailureMessagePatterns"]
    assert again["action"] == "FailJobSet" and re.search(pattern, message)
    for index in (1, 2, 10):
        assert not re.search(pattern, message.replace("index 0", f"index {index}"))
    assert preempted["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert preempted["onJobFailureReasons"] == ["PodFailurePolicy"] and "onJobFailureMessagePatterns" not in preempted
    assert spec["failurePolicy"]["restartStrategy"] == "BlockingRecreate"


@pytest.mark.parametrize(("restarts", "limit"), [(3, 3 * 6 + 1), (0, 0)])
def test_a_tfjob_counts_the_restarts_of_all_pods(restarts, limit):
    made = rendered("parameter_servers", "kubernetes.kind=tfjob", f"kubernetes.max_restarts={restarts}")
    spec = made.objects[-1]["spec"]
    assert spec["runPolicy"]["backoffLimit"] == limit
    assert {replica["restartPolicy"] for replica in spec["tfReplicaSpecs"].values()} == {"OnFailure"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_has_its_time(kind):
    from estimator_pipeline.engines.core.stopping.preemption import SECS_VARIABLE

    for grace in (30, 600):
        made = rendered("workers", f"kubernetes.kind={kind}", f"kubernetes.termination_grace_seconds={grace}")
        for pod in pods_of(made):
            assert pod.spec["terminationGracePeriodSeconds"] == grace
            assert int(pod.environ[SECS_VARIABLE]) == grace - 15
            assert pod.spec["containers"][0]["command"][0] == "estimator-pipeline"  # no shell before the task


@pytest.mark.parametrize("kind", KINDS)
def test_a_deadline_puts_a_supervisor_into_each_pod(kind):
    """Who waits for others by nature has none for steps."""
    # Without `roles` their pods are alike, but for this.
    job = job_of("parameter_servers", f"kubernetes.kind={kind}", "kubernetes.step_timeout=900", "kubernetes.roles={}")
    roles = {found_by(pod, job)[0].task.type: pod for pod in pods_of(render(job))}
    assert set(roles) == {"chief", "worker", "ps", "evaluator"}
    for role, pod in roles.items():
        command = pod.spec["containers"][0]["command"]
        supervise, task = command[: command.index("--")], command[command.index("--") + 1 :]
        assert task == ["estimator-pipeline", "train", "/job/job.yaml"]
        assert supervise[:4] == ["estimator-pipeline", "supervise", "--max-restarts", "0"]
        assert ("--step-timeout" in supervise) == (role in ("chief", "worker"))
        assert supervise[supervise.index("--heartbeat-timeout") + 1] == "60"


# Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["kubernetes.imag=x"], "did you mean 'image'?"),
        (["kubernetes.kind=pod"], "allowed: job, jobset, tfjob"),
        (["kubernetes.pods.memory=4Gb"], "'4Gb'; allowed: a number, or one with a unit such as 500m, 4Gi or 512Mi"),
        (["kubernetes.roles.master.cpu=1"], "master"),
        (["kubernetes.env.TF_CONFIG=x"], "the manifest sets this variable"),
        (["kubernetes.env.ESTIMATOR_PIPELINE_PREEMPTION_SECS='80'"], "set at most 75 seconds, or raise"),
        (["kubernetes.termination_grace_seconds=10"], "10"),
        (["kubernetes.volumes=[{mount_path: models, claim: x}]"], "start it with a slash"),
        (["kubernetes.volumes=[{mount_path: /models}]"], "none of claim, nfs, secret, config_map"),
        (["kubernetes.volumes=[{mount_path: /m, claim: x, secret: y}]"], "claim and secret of claim, nfs"),
        (["kubernetes.volumes=[{mount_path: /m, claim: x}, {mount_path: /m, claim: y}]"], "two volumes are mounted"),
        (["kubernetes.volumes=[{mount_path: /job, claim: x}]"], "where the job file is"),
        (["kubernetes.volumes=[{mount_path: /m, claim: My_Claim}]"], "this is not a Kubernetes name"),
        (["kubernetes.labels={team: a b}"], "this is not a label value"),
        (["kubernetes.labels={app.kubernetes.io/instance: a}"], "this label identifies the job's pods"),
        (["kubernetes.pods.tolerations=[{key: a, operator: Equal}]"], "the operator and the value contradict"),
        (["kubernetes.kind=tfjob", "kubernetes.tf_config=written"], "the TFJob operator writes TF_CONFIG"),
        (["kubernetes.kind=jobset", "kubernetes.active_deadline_seconds=9"], "a JobSet has no deadline"),
    ],
)
def test_mistakes_in_the_section(changes, says):
    with pytest.raises(ConfigError) as caught:
        job_of("workers", *changes)
    assert says in str(caught.value)


def test_without_an_image():
    with pytest.raises(ConfigError, match=r"(?s)does not name the image.*--set kubernetes\.image=IMAGE"):
        rendered("workers", "kubernetes.image=null")


@pytest.mark.parametrize(
    ("model_dir", "volumes"),
    [
        ("runs/x", "[]"),
        ("/models/x", "[]"),
        ("/models", "[{mount_path: /model, claim: m}]"),
        ("/models/x", "[{mount_path: /models, claim: m, read_only: true}]"),
        ("/models/x", "[{mount_path: /models, secret: m}]"),
        ("/models/../x", "[{mount_path: /models, claim: m}]"),
    ],
)
def test_a_model_directory_that_pods_do_not_share(model_dir, volumes):
    with pytest.raises(ConfigError, match=r"run\.model_dir '.*' is in no volume"):
        rendered("workers", f"run.model_dir={model_dir}", f"kubernetes.volumes={volumes}")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("digits", "digits"),
        ("Digits_CNN v2", "digits-cnn-v2"),
        ("2nd", "job-2nd"),
        ("__a--b__", "a-b"),
        ("größe", "gr-e"),
    ],
)
def test_names(text, name):
    assert kubernetes_name(text) == name


def test_names_that_cannot_be():
    with pytest.raises(ConfigError, match="has no character that is valid in Kubernetes"):
        kubernetes_name("模型")
    for name in ("Digits", "1a", "a_b", "a-", ""):
        with pytest.raises(ConfigError, match=r"--name '.*' is not a valid name of a Kubernetes Service"):
            rendered("workers", as_name=name)


@pytest.mark.parametrize(("kind", "longest"), [("job", 61), ("jobset", 43), ("tfjob", 51)])
def test_a_name_may_be_as_long_as_its_host_names(kind, longest):
    made = rendered("workers", f"kubernetes.kind={kind}", as_name="a" * longest)
    assert max(map(len, made.tasks.values())) + (6 if kind == "jobset" else 0) == 63
    with pytest.raises(ConfigError, match=f"so {longest} for the name itself"):
        rendered("workers", f"kubernetes.kind={kind}", as_name="a" * (longest + 1))


def test_notes_say_what_the_image_must_hold():
    changes = [
        "input={source: csv, train: data/a.csv, eval: gs://b/c.csv, columns: {x: float32, label: int64}, "
        "global_batch_size: 64}",
        "model={function: 'code/m.py:layers', loss: mean_squared_error}",
        "kubernetes.volumes=[{mount_path: /models, claim: m}]",
        "kubernetes.roles={ps: {cpu: 1}}",
    ]
    notes = rendered("workers", *changes).notes
    assert notes == (
        "the job's name in Kubernetes is digits-cnn",
        "input.train 'data/a.csv' is in no volume: the image must contain it",
        "model.function 'code/m.py' is in no volume: the image must contain it",
        "the claim m is mounted by 3 pods: on several nodes it must be ReadWriteMany",
        "kubernetes.roles.ps is unused: the cluster has no task of this role",
    )
    assert all(f"# note: {note}\n" in manifest_text(rendered("workers", *changes)) for note in notes)


# The command -----------------------------------------------------------------------------------------------------


SUBMIT = ["submit", "kubernetes"]


def test_dry_run_prints_the_manifests():
    job = HERE / "jobs" / "workers.yaml"
    done = call(*SUBMIT, job, "--dry-run", env={"PATH": ""})
    assert done.returncode == 0 and done.stdout == (HERE / "golden" / "workers-job.yaml").read_text()
    changes = ["--kind", "jobset", "--name", "mine", "-n", "ns", "--image", "other:1", "--set", "train.max_steps=5"]
    done = call(*SUBMIT, job, "--dry-run", "--json", "--engine", "keras", *changes, env={"PATH": ""})
    assert done.returncode == 0, done.stderr
    items = json.loads(done.stdout)["items"]
    assert [(o["kind"], o["metadata"]["name"], o["metadata"]["namespace"]) for o in items] == [
        ("ConfigMap", items[0]["metadata"]["name"], "ns"),
        ("JobSet", "mine", "ns"),
    ]
    assert "max_steps: 5" in items[0]["data"]["job.yaml"] and "engine: keras" in items[0]["data"]["job.yaml"]
    assert '"other:1"' in json.dumps(items[1])


# The image -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dockerfile() -> list[dict[str, Any]]:
    """The instructions of the Dockerfile, as a parser of Dockerfiles reads them."""
    return DockerfileParser(path=str(ROOT / "Dockerfile")).structure


def _of(dockerfile: list[dict[str, Any]], instruction: str) -> list[str]:
    return [part["value"] for part in dockerfile if part["instruction"] == instruction]


def test_the_dockerfile_runs_the_command_as_nobody_special(dockerfile):
    assert {"COPY", "RUN", "FROM"} < {part["instruction"] for part in dockerfile}
    assert [json.loads(text) for text in _of(dockerfile, "ENTRYPOINT")] == [["estimator-pipeline"]]
    (user,) = _of(dockerfile, "USER")
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", user), "Kubernetes' runAsNonRoot wants a number"
    assert any(f"--uid {user.split(':')[0]} " in text for text in _of(dockerfile, "RUN"))
    # The user's name comes after everything that only root may do.
    order = [part["instruction"] for part in dockerfile]
    assert order.index("USER") > max(i for i, name in enumerate(order) if name in ("RUN", "COPY"))


@pytest.mark.parametrize("tf", ["2.15", "2.16", "2.17", "2.18", "2.19", "2.20", "2.21"])
def test_the_image_installs_a_supported_tensorflow(dockerfile, tf, tmp_path):
    """The line that installs is run by a shell, with a `python` that writes down what it was asked for."""
    (line,) = [text for text in _of(dockerfile, "RUN") if "pip install" in text]
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "estimator_pipeline-0.1.0-py3-none-any.whl").touch()
    for name in ("python", "estimator-pipeline"):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/asked\n')
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TF": tf, "PACKAGES": "one two"}
    script = line.replace("/wheels", str(wheels))
    subprocess.run(["/bin/sh", "-euc", script], env=environ, check=True, timeout=60)
    asked = (tmp_path / "asked").read_text().splitlines()
    extra = f"tf{tf.replace('.', '-')}"
    assert asked[4:7] == [f"{wheels}/estimator_pipeline-0.1.0-py3-none-any.whl[{extra}]", "one", "two"]
    assert asked[-1] == "--version" and not wheels.exists()
    assert f"2.{tf.partition('.')[2]}" in (ROOT / "Makefile").read_text()
    setup = (ROOT / "setup.py").read_text()
    assert 'f"tf2-{minor}"' in setup and "range(15, 22)" in setup


@pytest.mark.nightly
def test_what_is_copied_makes_a_whole_wheel(dockerfile, run_python, tmp_path):
    """The build's first stage, from nothing but the files that are copied into it and not ignored."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    source = tmp_path / "src"
    source.mkdir()
    for text in _of(dockerfile, "COPY"):
        if "--from=" in text:
            continue
        *names, target = text.split()
        for name in names:
            assert name in allowed, f".dockerignore keeps {name} back"
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source / target)
    (line,) = [text for text in _of(dockerfile, "RUN") if "pip wheel" in text]
    words = line.replace("/wheels", str(tmp_path / "wheels")).split()
    assert words[:4] == ["python", "-m", "pip", "wheel"]
    done = run_python([*words[1:], "--no-build-isolation", "--disable-pip-version-check"], cwd=source, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        held = set(archive.namelist())
    for package in ("estimator_pipeline", "model_fns"):
        files = [p for p in (ROOT / package).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        assert {p.relative_to(ROOT).as_posix() for p in files} <= held
    assert any(name.endswith("entry_points.txt") for name in held)
    # What is in it runs, and finds its own files.
    done = run_python(
        ["-m", "estimator_pipeline", *SUBMIT, HERE / "jobs" / "workers.yaml", "--dry-run"],
        env={"PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (HERE / "golden" / "workers-job.yaml").read_text()
