"""`doctor`: each check by a good case and by a planted fault; several processes that meet; the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gzip
import importlib.util
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline import doctor
from estimator_pipeline.doctor import machine, packages, storage
from estimator_pipeline.doctor import resources as room
from estimator_pipeline.doctor.cluster import cross_task as together
from estimator_pipeline.doctor.cluster import network
from estimator_pipeline.doctor.cluster import rendezvous as meeting
from estimator_pipeline.doctor.cluster import tf_config as clusters
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, DoctorReport, merged
from estimator_pipeline.doctor.gpus import visible_gpus
from estimator_pipeline.doctor.job import batch, data, functions, opened_data
from estimator_pipeline.doctor.job import model_input as fit
from estimator_pipeline.engines.jobs import job_identity
from estimator_pipeline.errors import ClusterError, ConfigError, WaitError
from estimator_pipeline.job import dump_job, make_job
from estimator_pipeline.job.sections.slurm import seconds_of
from tests.support.command_line import call
from tests.support.processes import ROOT, environment, free_ports

SMALL = {
    "model": {"name": "linear"},
    "input": {"source": "function", "train": "data.py:train", "eval": "data.py:train", "global_batch_size": 8},
    "run": {"model_dir": "model"},
}
FUNCTIONS = "def train(input_context=None):\n    raise AssertionError('a doctor runs nobody’s code')\n"


def job(tmp_path, **sections):
    """A small job in a folder of its own."""
    merged_sections = {**SMALL, "run": {"model_dir": str(tmp_path / "model"), **sections.pop("run", {})}, **sections}
    return make_job(merged_sections)


def document(task="worker", index=0, **jobs):
    return json.dumps({"cluster": jobs, "task": {"type": task, "index": index}})


def told(check, context, **options):
    """Return (severity, message + why + hint) of each finding of a check."""
    found = list(check(context, **options))
    assert all(one.message and (one.severity in ("ok", "info") or (one.why and one.hint)) for one in found), found
    return [(one.severity, f"{one.message} | {one.why} | {one.hint}") for one in found]


def has(found, severity, *texts):
    return any(kind == severity and all(text in line for text in texts) for kind, line in found)


def fine(found):
    return all(kind in ("ok", "info") for kind, _ in found)


@pytest.fixture
def free_port():
    return free_ports(1)[0]


def test_values_that_a_built_in_model_does_not_take(tmp_path):
    """Ids are an error, numbers that are not scaled a warning, which `launch` prints, too."""
    (tmp_path / "t.csv").write_text("income,device,label\n20000,3,1\n40000,9,0\n")
    path = str(tmp_path / "t.csv")
    types = {"income": "float32", "device": "int64", "label": "int64"}
    section = {"source": "csv", "train": path, "eval": path, "columns": types, "global_batch_size": 2}

    def sections(ids):
        return {
            "model": {"name": "wide_deep", "params": {"numeric": ["income"], "categorical": {"device": ids}}},
            "input": section,
        }

    lines = told(fit.check_model, doctor.Context(environ={}, job=job(tmp_path, **sections(8))))
    assert has(lines, "error", "t.csv, line 3; 1 training record", "{categorical: {device: 10}}"), lines
    assert has(lines, "error", "t.csv, line 3; 1 evaluation record")
    good = job(tmp_path, **sections(10))
    lines = told(fit.check_model, doctor.Context(environ={}, job=good))
    assert [kind for kind, _ in lines] == ["warning"]
    assert has(lines, "warning", "'income' (20,000 to 40,000)", "{features: {income: numeric, device: categorical}}")
    (tmp_path / "job.yaml").write_text(dump_job(job(tmp_path, **sections(8))))
    done = call("launch", tmp_path / "job.yaml", cwd=tmp_path)
    assert done.returncode == 2 and "data/unknown-id" in done.stderr and "warning: numbers are inputs" in done.stderr
    assert len(done.stderr.splitlines()) <= 10, done.stderr


# Memory, processes, files --------------------------------------------------------------------------------------


def test_memory_against_what_the_tasks_take(tmp_path):
    path = tmp_path / "meminfo"

    def found(total, available, limit=2**60, **options):
        path.write_text(f"MemTotal: {total * 1024} kB\nMemFree: 1 kB\nMemAvailable: {available * 1024} kB\n")
        return told(room.check_memory, doctor.Context(**options), meminfo=str(path), limit=limit)

    assert has(found(8000, 4000), "ok", "1 task(s) of some 300 MiB", "4 GiB free of 8 GiB")
    assert has(found(8000, 500), "warning", "500 MiB free")
    assert has(found(8000, 4000, limit=200 * 2**20), "error", "200 MiB for this control group", "fewer tasks on a host")
    assert has(found(8000, 4000, limit=600 * 2**20), "warning", "600 MiB for this control group")
    two = {"environ": slurm(tasks=3), "job": three(tmp_path)}
    assert has(found(8000, 4000, **two), "ok", "3 task(s)") and has(found(800, 700, **two), "error", "3 task(s)")
    held = arrays(tmp_path, npz(tmp_path / "a.npz", x=2**20, y=2**20)).job
    assert has(found(8000, 4000, job=held), "ok", "data 32 MiB")
    assert has(found(8000, 660, job=held), "warning", "data 32 MiB") and fine(found(8000, 660))


def test_memory_of_control_groups(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("1048576\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert room.memory_limit(str(tmp_path), str(tmp_path / "own")) == 2**20
    (tmp_path / "memory" / "x").mkdir(parents=True)
    (tmp_path / "memory" / "x" / "memory.limit_in_bytes").write_text("4096\n")
    (tmp_path / "own").write_text("4:memory:/x\n0::/\n")
    assert room.memory_limit(str(tmp_path), str(tmp_path / "own")) == 4096
    assert room.memory_limit(str(tmp_path / "none"), str(tmp_path / "none")) == 2**60


def test_open_files_and_threads(tmp_path, monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    context = doctor.Context(job=three(tmp_path))
    assert has(told(room.check_limits, context), "ok", "open files; a task needs 80")
    resource.setrlimit(resource.RLIMIT_NOFILE, (75, before[1]))
    try:
        found = told(room.check_limits, context)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert has(found, "error", "a task may have 75 open files (ulimit -n), and needs up to 80", "ulimit -n 4096")
    monkeypatch.setattr(room.system_limits, "_of_threads", lambda: {1: "one"})
    monkeypatch.setattr(room.system_limits, "_startable", lambda count: 1)
    assert has(told(room.check_limits, context), "error", "threads could be started here", "ulimit -u")


# Packages -----------------------------------------------------------------------------------------------------

GOOD = {
    "tensorflow": "2.21.0", "tf-keras": "2.21.0", "tensorflow-estimator": "2.15.0", "tensorboard": "2.21.0",
    "tensorflow-datasets": "4.9.10", "numpy": "2.4.6", "protobuf": "7.36.2", "keras": "3.15.1", "setuptools": "65.5",
}  # fmt: skip


def judged(engine="estimator", **changes):
    found = packages.judge_packages(GOOD | changes, engine=engine, python="3.11.7")
    return [(one.severity, f"{one.message} | {one.why} | {one.hint}") for one in found]


def test_packages_that_fit():
    ((severity, line),) = judged()
    assert severity == "ok" and "Python 3.11.7" in line and "tf-keras 2.21.0" in line


@pytest.mark.parametrize(
    ("changes", "severity", "texts"),
    [
        ({"tensorflow": None}, "error", ["not installed in this Python 3.11.7", "estimator-pipeline[tf2-21]"]),
        ({"tf-keras": None}, "error", ["tf-keras is not installed, with TensorFlow 2.21.0", "'tf-keras==2.21.*'"]),
        ({"tf-keras": "2.20.1"}, "error", ["tf-keras 2.20.1 is installed", "'tf-keras==2.21.*'"]),
        ({"tensorflow-estimator": None}, "error", ["tensorflow-estimator is not installed", ">=2.15,<2.16"]),
        ({"tensorboard": None}, "warning", ["tensorboard is not installed", "TBNotInstalledError"]),
        ({"setuptools": "82.0"}, "warning", ["setuptools 82.0", "pkg_resources"]),
        ({"tensorflow": "2.20.0", "tf-keras": "2.20.1"}, "error", ["protobuf 7.36.2", "'protobuf<7'"]),
        ({"tensorflow": "2.15.1", "tf-keras": "2.15.1", "tensorflow-metadata": "1.21.0"}, "error", ["<1.18"]),
        ({"tensorflow": "2.19.1", "tf-keras": "2.19.0", "tensorflow-metadata": "1.21.0"}, "error", ["<1.18"]),
        ({"tensorflow": "2.14.0", "tf-keras": None}, "error", ["TensorFlow 2.14.0 is older", "2.15 to 2.21"]),
        ({"tensorflow": "2.22.0"}, "warning", ["TensorFlow 2.22.0 is newer than the tested versions"]),
    ],
)  # fmt: skip
def test_packages_that_do_not_fit(changes, severity, texts):
    assert has(judged(**changes), severity, *texts), judged(**changes)


def test_tensorflow_2_15_needs_no_tf_keras():
    assert judged(**{"tensorflow": "2.15.1", "tf-keras": None, "numpy": "1.26.4"})[0][0] == "ok"


def test_the_engine_keras3_needs_keras_3():
    assert has(judged("keras3", keras="2.15.0"), "error", "keras 2.15.0 is installed", "'keras>=3,<4'")
    assert has(judged("keras3", tensorflow="2.15.1"), "error", "TensorFlow 2.15.1 has Keras 2")
    assert judged("keras3", **{"tf-keras": None})[0][0] == "ok"


def test_the_rules_are_those_of_setup_py(monkeypatch):
    """A version that is raised in one place must be raised in the other."""
    said = {}
    monkeypatch.setattr("setuptools.setup", lambda **arguments: said.update(arguments))
    spec = importlib.util.spec_from_file_location("setup_of_the_package", ROOT / "setup.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    from packaging.requirements import Requirement

    everywhere = {r.name: r.specifier for r in map(Requirement, said["install_requires"])}
    for rule in packages.RULES:
        if rule.tensorflow == ">=2.15":
            assert everywhere[rule.package] == packages.SpecifierSet(rule.wanted), rule
    for minor in range(15, 22):
        extra = {r.name: r.specifier for r in map(Requirement, said["extras_require"][f"tf2-{minor}"])}
        del extra["tensorflow"]
        rules = {
            rule.package: packages.SpecifierSet(rule.wanted)
            for rule in packages.RULES
            if rule.tensorflow != ">=2.15" and f"2.{minor}.0" in packages.SpecifierSet(rule.tensorflow)
        }
        assert extra == rules, minor


def test_this_environment_is_looked_at():
    found = told(packages.check_packages, doctor.Context())
    assert any("tensorflow" in line for _, line in found)
    assert not has(found, "error", "tensorflow-estimator")


# Variables ----------------------------------------------------------------------------------------------------


def variables(environ, **options):
    return told(packages.check_variables, doctor.Context(environ=environ, **options))


def test_variables_that_harm_nobody():
    assert variables({"TF_CPP_MIN_LOG_LEVEL": "2"}) == [("ok", "no variable that would break the job |  | ")]


def test_variables_that_break_a_job(monkeypatch):
    assert has(variables({"TF_CONFIG": " \n"}), "warning", "TF_CONFIG is set but empty", "JSONDecodeError")
    assert has(variables({"TF_USE_LEGACY_KERAS": "yes"}), "warning", "'yes' is neither true nor false")
    versions = {"tensorflow": "2.15.1"}
    monkeypatch.setattr(packages.versions, "installed", versions.get)
    assert has(variables({"TF_USE_LEGACY_KERAS": "1"}), "error", "tf-keras is not installed", "unset")
    versions["tensorflow"] = "2.21.0"
    assert has(variables({"TF_USE_LEGACY_KERAS": "0"}), "info", "gets Keras 3")


@pytest.mark.parametrize(
    ("environ", "through"),
    [
        ({"http_proxy": "p:3128"}, "10.0.0.1, n1.cluster"),
        ({"grpc_proxy": "p:3128", "no_proxy": "localhost"}, "10.0.0.1, n1.cluster"),
        ({"https_proxy": "p:3128", "no_proxy": "10.0.0.0/8"}, "n1.cluster"),
        ({"http_proxy": "p:3128", "no_proxy": "10.0.0.0/8, .cluster"}, None),
        ({"http_proxy": "p:3128", "no_proxy": "10.0.0.0/8,cluster", "no_grpc_proxy": "n1.cluster"}, "10.0.0.1"),
        ({"HTTP_PROXY": "p:3128"}, None),
    ],
)
def test_a_proxy_between_the_tasks(environ, through):
    cluster = document(worker=["n1.cluster:2222", "10.0.0.1:2222"])
    found = variables({**environ, "TF_CONFIG": cluster})
    assert (
        fine(found)
        if through is None
        else has(found, "info", f"does not exclude {through} |", "train, launch and exec")
    )


# TF_CONFIG ----------------------------------------------------------------------------------------------------


def lint(text, **options):
    return told(clusters.check_tf_config, doctor.Context(document=text, document_source="c.json", **options))


@pytest.mark.parametrize(
    ("text", "severity", "texts"),
    [
        ('{"cluster": {"worker": ["a:1"],}}', "error", ["not JSON", "line 1, column 32"]),
        ("'{\"cluster\": {}}'", "error", ["remove the quotes around the whole document"]),
        (document(index=2, worker=["a:2222", "b:2222"]), "error", ["index 2 is out of range", "0 to 1"]),
        (document(worker=["a:2222", "A:2222"]), "error", ["worker:0 and worker:1 have the same address"]),
        ('{"sparse_cluster": {"worker": {"1": "a:1"}}}', "error", ["sparse cluster", "enableDynamicWorker"]),
        (document(task="chief", worker=["a:2222"]), "error", ["'chief' is not a job of the cluster"]),
        (document(ps=["a:2222"]), "error", ["no task that trains"]),
        (document(worker=["localhost:2222", "b:2222"]), "error", ["worker:0 at localhost:2222, and worker:1 at b:22"]),
        (document(worker=["b:02222", "b:2222"]), "error", ["worker:0 and worker:1 have the same address 'b:2222'"]),
        (document(worker=["b:0", "b:2222"]), "error", ["whose port '0' cannot be one"]),
        (document(worker=["0.0.0.0:2222", "b:2222"]), "error", ["other tasks cannot connect to this address"]),
        (document(worker=["a:2222", "b:2222"], ps=["c:2222"]), "warning", ["parameter servers and no chief"]),
        (document(task="master", master=["a:2222"], worker=["b:2222"]), "warning", ["master, as before TensorFlow"]),
        (document(worker=["a:2222", "b:2222"], evaluator=["c:2222"]), "warning", ["inside the cluster"]),
        ('{"clustr_info": 1}', "info", ["unknown keys: clustr_info"]),
    ],
)  # fmt: skip
def test_tf_config_faults(text, severity, texts):
    assert has(lint(text), severity, *texts), lint(text)


@pytest.mark.parametrize("path", sorted((ROOT / "legacy_configs" / "tf_config").glob("*.json")), ids=lambda p: p.stem)
def test_the_recorded_documents_have_no_error(path):
    """Each dialect that is read is no error; with a job file a dialect of old times is no warning either."""
    found = lint(path.read_text())
    assert found[0][0] == "ok" and not has(found, "error")
    with_job = lint(path.read_text(), job=make_job(SMALL))
    assert not any("master, as before" in line or "inside" in line for kind, line in with_job if kind == "warning")


def test_parameter_servers_without_a_chief(tmp_path):
    """Recorded: RunConfig takes it with the strategy parameter_server, and raises ValueError without one."""
    text = document(worker=["a:2222"], ps=["c:2222"])
    assert has(lint(text, job=job(tmp_path)), "error", "parameter servers and no chief", "ValueError")
    settings = job(tmp_path, run={"train_distribute": "parameter_server"}, cluster={"workers": 1, "ps": 1})
    assert fine(lint(text, job=settings))


def test_two_workers_are_fine():
    assert fine(lint(document(worker=["a:2222", "b:2222"])))
    assert lint(document(worker=["a:2222", "b:2222"])) == [
        ("ok", "c.json: this task is worker:0 of worker:0 to worker:1; worker:0 is the chief |  | ")
    ]


def test_no_tf_config_is_nothing_to_look_at():
    with pytest.raises(CheckSkipped, match="no TF_CONFIG"):
        told(clusters.check_tf_config, doctor.Context())


# Environments -------------------------------------------------------------------------------------------------


def slurm(rank=0, tasks=3, **more):
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(tasks),
        **more,
    }


def three(tmp_path, **run):
    return job(tmp_path, cluster={"workers": 2, "evaluator": True},
               run={"train_distribute": "multi_worker_mirrored", **run})  # fmt: skip


def env(environ, **options):
    return told(clusters.check_environment, doctor.Context(environ=environ, **options))


def test_what_slurm_says(tmp_path):
    ((kind, line),) = env(slurm(rank=1), job=three(tmp_path))
    assert kind == "ok"
    assert line.startswith("slurm; job 4711.0, rank 1 of 3; this task is worker:1; at localhost:25377 (ports derived)")


def test_a_scheduler_that_does_not_fit_the_job(tmp_path):
    assert has(env(slurm(tasks=2), job=three(tmp_path)), "error", "2 tasks started, but the job has 3 tasks")
    assert has(env({**slurm(), "SLURM_STEP_NUM_TASKS": "x"}), "error", "SLURM_STEP_NUM_TASKS='x'")
    assert has(env({}, job=three(tmp_path), environment="slurm"), "error", "SLURM_JOB_ID is not set")


def test_a_tf_config_that_a_job_script_exports():
    found = env({**slurm(tasks=8), "TF_CONFIG": document(worker=["a:2222", "b:2222"])})
    assert has(found, "warning", "TF_CONFIG has 2 task(s), and slurm has started 8", "the same worker")
    found = env({**slurm(tasks=2), "TF_CONFIG": document(worker=["a:2222", "b:2222"])})
    assert fine(found) and has(found, "info", "TF_CONFIG is used; slurm also matches")


def test_a_process_that_nobody_has_started(tmp_path):
    assert has(env({}, job=three(tmp_path)), "info", "no scheduler started", "the job has 2 training tasks")
    assert has(env({}), "ok", "a single process")
    assert has(env({"SLURM_JOB_ID": "1"}), "ok", "variables of slurm are set, but not those of a task")
    found = env({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "3"}, job=three(tmp_path))
    assert has(found, "error", "the cluster has 3 tasks, and this process was not started by srun", "SLURM_JOB_ID=1")
    assert has(env({"SLURM_JOB_ID": "1"}, job=three(tmp_path), environment="none"), "info", "2 training tasks")


def test_agreed_ports_are_told(tmp_path):
    settings = job(
        tmp_path,
        input={**SMALL["input"], "global_batch_size": 9},
        cluster={"workers": 3, "ports": "agreed"},
        run={"train_distribute": "multi_worker_mirrored"},
    )
    found = env(slurm(), job=settings)
    assert has(found, "info", "agree on ports when the job starts", str(tmp_path))


# Strategy -----------------------------------------------------------------------------------------------------

TWO = ("a:2222", "b:2222")


def strategy(settings, text, **environ):
    return told(clusters.check_strategy, doctor.Context(job=settings, document=text, environ=environ))


def test_a_strategy_that_fits(tmp_path):
    found = strategy(three(tmp_path), document(worker=TWO))
    assert found == [("ok", "multi_worker_mirrored over 2 training task(s), engine estimator |  | ")]


def test_strategies_that_do_not_fit(tmp_path):
    ps = document(task="chief", chief=["a:2222"], worker=["b:2222"], ps=["c:2222"])
    assert has(strategy(three(tmp_path), ps), "error", "multi_worker_mirrored, and the cluster has 1 parameter server")
    assert has(strategy(three(tmp_path, engine="keras"), ps), "error", "the engine is keras")
    assert has(strategy(job(tmp_path), document(worker=TWO)), "error", "train_distribute is none, and 2 tasks train")
    assert has(
        strategy(job(tmp_path, run={"train_distribute": "mirrored"}), ps), "error", "mirrored, and 2 tasks train"
    )
    assert fine(strategy(job(tmp_path), ps)), "Estimator's own way with parameter servers"
    settings = job(tmp_path, run={"train_distribute": "parameter_server"}, cluster={"chief": True, "ps": 1})
    assert has(strategy(settings, document(worker=TWO)), "error", "parameter_server, and the cluster has no")
    found = strategy(three(tmp_path), document(worker=[*TWO, "c:2222"]))
    assert has(found, "error", "a global batch of 8 records over 3 replicas", "set input.global_batch_size to 6 or 9")
    assert has(found, "info", "the job file's cluster is workers 2, and --tf-config has workers 3")


# Addresses and ports ------------------------------------------------------------------------------------------


def test_names_that_cannot_be_resolved(monkeypatch):
    def look_up(host, *args, **kwargs):
        if host == "slow":
            time.sleep(2)
        if host == "good":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 0))]
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    environ = {"TF_CONFIG": document(worker=["good:2222", "bad:2222", "slow:2222"])}
    found = told(network.check_addresses, doctor.Context(environ=environ, timeout=0.5))
    assert has(found, "error", "bad cannot be resolved here: Name or service not known (worker:1)")
    assert has(found, "error", "slow cannot be resolved here: no answer within 0.5 s (worker:2)")
    assert has(found, "ok", "1 of 3 host name(s) resolved: good = 10.0.0.7")
    # A document from elsewhere may name hosts that are not known here.
    given = doctor.Context(document=document(worker=["good:2222", "bad:2222"]), timeout=0.5)
    assert has(told(network.check_addresses, given), "warning", "bad cannot be resolved here")


def test_two_names_of_one_place(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(2, 1, 6, "", ("10.0.0.7", 0))])
    environ = {"TF_CONFIG": document(worker=["one:2222", "other:2222", "third:2223"])}
    found = told(network.check_addresses, doctor.Context(environ=environ))
    evaluator = {"TF_CONFIG": document(worker=["one:2222"], evaluator=["other:2222"])}
    assert fine(told(network.check_addresses, doctor.Context(environ=evaluator))), "an evaluator has no server"
    assert has(
        found, "error", "worker:0 at one:2222 and worker:1 at other:2222 have the same address: 10.0.0.7, port 2222"
    )
    assert sum(kind == "error" for kind, _ in found) == 1


def test_a_name_that_means_this_machine_alone(monkeypatch):
    ips = {"node1": "127.0.1.1", "node2": "10.0.0.2"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: [(2, 1, 6, "", (ips[host], 0))])
    environ = {"TF_CONFIG": document(worker=["node1:2222", "node2:2222"])}
    found = told(network.check_addresses, doctor.Context(environ=environ))
    assert has(found, "warning", "node1 resolves to 127.0.1.1 here", "/etc/hosts")


def test_the_own_port(free_port):
    cluster = document(worker=[f"localhost:{free_port}"])
    context = doctor.Context(environ={"TF_CONFIG": cluster})
    assert has(told(network.check_ports, context), "ok", f"worker:0 can listen at localhost:{free_port}")
    with socket.create_server(("", free_port)):
        found = told(network.check_ports, context)
        assert has(found, "error", f"the port {free_port} is not free", "in use")


def test_a_task_on_another_host():
    environ = {"TF_CONFIG": document(worker=["198.51.100.7:12345", "198.51.100.8:12346"])}
    found = told(network.check_ports, doctor.Context(environ=environ))
    assert has(found, "warning", "198.51.100.7:12345, which is not an address of this host")
    assert has(found, "info", "were not checked")


def test_the_ports_of_the_others(free_port):
    with socket.create_server(("127.0.0.1", 0)) as listens:
        there = listens.getsockname()[1]
        addresses = ["localhost:1", f"127.0.0.1:{there}", f"127.0.0.1:{free_port}"]
        environ = {"TF_CONFIG": document(task="evaluator", worker=addresses)}
        found = told(network.check_ports, doctor.Context(environ=environ, connect=True, timeout=2))
    assert has(found, "ok", "1 of 3 other task(s) answer: worker:1")
    assert has(found, "warning", "2 of 3 other task(s) cannot be reached: Connection refused (worker:0, worker:2 at")


# Threads and devices ------------------------------------------------------------------------------------------


def threads(context, **options):
    return told(machine.check_threads, context, **options)


def test_threads_that_fit(tmp_path):
    settings = job(tmp_path, run={"threads": {"intra_op": 1}})
    found = threads(doctor.Context(job=settings), cores=1, quota=1.0)
    assert has(found, "ok", "1 thread(s) (run.threads.intra_op) on 1 of", "limited to 1 by the control group")


def test_too_many_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    settings = job(tmp_path, run={"threads": {"intra_op": 16}})
    found = threads(doctor.Context(job=settings), cores=4, quota=8.0)
    assert has(found, "warning", "16 intra-op thread(s) (run.threads.intra_op)", "4 of 8 CPUs", "intra_op: 4")
    found = threads(doctor.Context(), cores=8, quota=2.0)
    assert has(
        found, "warning", "8 intra-op thread(s)", "TensorFlow's default", "limited to 2 by", "paused for part of"
    )
    found = threads(doctor.Context(environ={"TF_NUM_INTRAOP_THREADS": "9"}), cores=8, quota=8.0)
    assert has(found, "warning", "9 intra-op thread(s) (TF_NUM_INTRAOP_THREADS)")
    settings = job(tmp_path, run={"session_config": {"intra_op_parallelism_threads": 9}})
    assert has(threads(doctor.Context(job=settings), cores=8, quota=8.0), "warning", "run.session_config")


def test_tasks_that_share_a_host(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    environ = {"TF_CONFIG": document(worker=["a:1111", "a:2222", "b:1111"], ps=["a:3333"], chief=["c:1"])}
    context = doctor.Context(environ=environ)
    assert machine.tasks_on_this_host(context) == 3
    assert has(threads(context, cores=8, quota=8.0), "warning", "3 tasks on this host with 8 thread(s)", "intra_op: 2")
    assert fine(threads(context, cores=2, quota=8.0)), "bound to CPUs of its own"


def test_slurm_binds_or_does_not():
    environ = slurm(tasks=1, SLURM_CPUS_PER_TASK="2", SLURM_CPUS_ON_NODE="8")
    assert has(threads(doctor.Context(environ=environ), cores=8, quota=8.0), "warning", "Slurm does not bind it")
    assert fine(threads(doctor.Context(environ=environ), cores=2, quota=8.0))
    del environ["SLURM_CPUS_PER_TASK"]
    found = threads(doctor.Context(environ=environ), cores=1, quota=8.0)
    assert has(found, "warning", "may use one CPU, and the job has 8", "SRUN_CPUS_PER_TASK")


def test_limits_of_control_groups(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/user/job\n")
    (tmp_path / "user" / "job").mkdir(parents=True)
    assert machine.cpu_quota(str(tmp_path), str(own)) is None
    (tmp_path / "user" / "job" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "user" / "cpu.max").write_text("250000 100000\n")
    assert machine.cpu_quota(str(tmp_path), str(own)) == 2.5
    own.write_text("4:cpu,cpuacct:/job\n")
    (tmp_path / "cpu,cpuacct" / "job").mkdir(parents=True)
    (tmp_path / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu,cpuacct" / "job" / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.cpu_quota(str(tmp_path), str(own)) == 1.5
    (tmp_path / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us").write_text("-1\n")
    assert machine.cpu_quota(str(tmp_path), str(own)) is None


@pytest.mark.parametrize(
    ("text", "gpus", "seen"),
    [(None, 2, "01"), ("", 2, ""), ("-1", 2, ""), ("1", 2, "1"), ("0,7,1", 2, "0"), ("0,1", 0, "")],
)
def test_visible_gpus(tmp_path, text, gpus, seen):
    for i in range(gpus):
        (tmp_path / f"nvidia{i}").touch()
    (tmp_path / "nvidiactl").touch()
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert visible_gpus(environ, pattern=f"{tmp_path}/nvidia[0-9]*") == tuple(seen)


def test_devices_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda environ: ("0",))
    mirrored = {"train_distribute": "mirrored"}
    context = doctor.Context(job=job(tmp_path, run={**mirrored, "num_devices": 2}))
    assert has(told(machine.check_devices, context), "error", "run.num_devices is 2, and 1 GPU(s) are visible")
    context = doctor.Context(job=job(tmp_path, run={**mirrored, "devices": ["GPU:0", "GPU:3"]}))
    assert has(told(machine.check_devices, context), "error", "run.devices names GPU:3, and 1 GPU(s)")
    monkeypatch.setattr(machine, "visible_gpus", lambda environ: ())
    context = doctor.Context(job=job(tmp_path, run={"communication": {"implementation": "nccl"}}))
    assert has(told(machine.check_devices, context), "error", "nccl, and no GPU is visible")
    found = told(machine.check_devices, doctor.Context(environ={"CUDA_VISIBLE_DEVICES": "3"}))
    assert has(found, "warning", "CUDA_VISIBLE_DEVICES='3'", "runs on the CPU")
    assert fine(told(machine.check_devices, doctor.Context(environ={"CUDA_VISIBLE_DEVICES": "-1"})))


# The model directory ------------------------------------------------------------------------------------------


def at(folder, **options):
    return doctor.Context(model_dir=str(folder), **options)


def test_a_model_dir_that_works(tmp_path):
    found = told(storage.check_model_dir, at(tmp_path))
    assert has(found, "ok", f"{tmp_path} exists; files can be written, renamed and locked")
    found = told(storage.check_model_dir, at(tmp_path / "not" / "yet"))
    assert has(found, "ok", f"can be created in {tmp_path}")
    assert not list(tmp_path.iterdir())


def test_a_model_dir_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert has(told(storage.check_model_dir, at(tmp_path / "file")), "error", "is a file")

    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage.tempfile, "mkdtemp", refuse)
    found = told(storage.check_model_dir, at(tmp_path))
    assert has(found, "error", "cannot be written: Permission denied", "give this user write access")


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    assert has(told(storage.check_model_dir, at(tmp_path)), "error", "cannot be written: No space left on device")
    assert not list(tmp_path.iterdir())


def test_file_systems_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *a: None)
    assert has(told(storage.check_model_dir, at(tmp_path)), "warning", "accepts file locks but does not enforce them")

    def none(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    assert has(told(storage.check_model_dir, at(tmp_path)), "warning", "does not support file locks", "90 seconds")


def checkpoint(folder, size=1000, name="model.ckpt-200"):
    folder.mkdir(exist_ok=True)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n')
    (folder / f"{name}.index").write_bytes(b"")
    (folder / f"{name}.data-00000-of-00001").write_bytes(b"x" * size)


@pytest.mark.parametrize(("free", "severity"), [(10**9, "ok"), (4500, "warning"), (1500, "error")])
def test_room_for_checkpoints(tmp_path, monkeypatch, free, severity):
    checkpoint(tmp_path)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: type("U", (), {"free": free, "total": 10**10}))
    # Five are kept; one is there; the new one is written before the oldest goes.
    assert [kind for kind, _ in told(storage.check_space, at(tmp_path))] == [severity]
    assert has(told(storage.check_space, at(tmp_path)), severity, "model.ckpt-200 has 1000 bytes")


def test_room_without_a_checkpoint(tmp_path, monkeypatch):
    assert has(told(storage.check_space, at(tmp_path)), "ok", "no checkpoint yet")
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: type("U", (), {"free": 2**20, "total": 2**40}))
    assert has(told(storage.check_space, at(tmp_path)), "warning", "1 MiB free of 1.0 TiB")


def test_who_trains_there(tmp_path):
    from estimator_pipeline.engines.model_dir import lock

    checkpoint(tmp_path / "m")
    with lock.hold(str(tmp_path / "m"), owner="chief:0", run_id="r"):
        found = told(storage.check_lock, at(tmp_path / "m"))
        assert has(found, "error", "is training in", f"chief:0, process {os.getpid()} on {socket.gethostname()}")
    found = told(storage.check_lock, at(tmp_path / "m"))
    assert has(found, "ok", "no job trains") and has(found, "info", "resumes from model.ckpt-200")
    # Looking has not taken it.
    with lock.hold(str(tmp_path / "m"), owner="chief:0", run_id="r", wait=0):
        pass


def test_checkpoints_of_another_engine(tmp_path):
    checkpoint(tmp_path / "model", name="ckpt-7")
    found = told(storage.check_lock, doctor.Context(job=job(tmp_path)))
    assert has(found, "error", "checkpoints of the engine keras (ckpt-7), and the job's engine is estimator")


# Data ---------------------------------------------------------------------------------------------------------


def npz(path, **arrays):
    np.savez(path, **{name: np.zeros((length, 2)) for name, length in arrays.items()})
    return str(path)


def arrays(tmp_path, train, **options):
    section = {"source": "arrays", "train": train, "eval": train, "label_key": "y", "global_batch_size": 8, **options}
    return doctor.Context(job=job(tmp_path, input=section))


def test_arrays(tmp_path):
    context = arrays(tmp_path, npz(tmp_path / "a.npz", x=20, y=20))
    assert has(told(data.check_data, context), "ok", "training:", "20 records")
    assert has(told(data.check_shards, context), "ok", "20 records for 1 input pipeline(s), policy data")
    assert has(told(data.check_data, arrays(tmp_path, str(tmp_path / "no.npz"))), "error", "is missing")
    (tmp_path / "torn.npz").write_bytes(Path(tmp_path / "a.npz").read_bytes()[:-40])
    assert has(told(data.check_data, arrays(tmp_path, str(tmp_path / "torn.npz"))), "error", "cannot be read")
    context = arrays(tmp_path, npz(tmp_path / "b.npz", x=20, y=19))
    assert has(told(data.check_data, context), "error", "have different lengths", "x 20, y 19")
    context = arrays(tmp_path, npz(tmp_path / "c.npz", x=5, y=5))
    assert has(told(data.check_shards, context), "error", "5 training records, and a global batch of 8")
    context = arrays(tmp_path, npz(tmp_path / "a.npz", x=20, y=20), shard_policy="file")
    assert has(told(data.check_shards, context), "error", "needs data in files")


def test_images(tmp_path):
    for name in ("cat/1.jpg", "cat/2.PNG", "dog/deep/1.jpeg", "dog/notes.txt"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_text("not decoded")
    section = {"source": "images", "train": f"{tmp_path}/images", "size": [8, 9], "global_batch_size": 2}

    def context(**options):
        return doctor.Context(job=job(tmp_path, input={**section, **options}, model={"name": "cnn"}))

    findings = told(data.check_data, context(eval=f"{tmp_path}/images"))
    assert has(findings, "ok", "training: ", "2 classes (cat, dog), 3 records")
    assert has(findings, "ok", "evaluation: ", "3 records")
    findings = told(fit.check_model, context(eval_fraction=0.5))
    assert has(findings, "ok", "inputs of shape [8, 9, 3], classes: 2")
    findings = told(data.check_shards, context(eval_fraction=0.5, shard_policy="file"))
    assert has(findings, "error", "needs data in files")
    (tmp_path / "images" / "bird").mkdir()
    assert has(told(data.check_data, context(eval_fraction=0.5)), "error", "has no images", "bird")


def tfrecords(tmp_path, *counts):
    """TFRecord files of so many records, written without TensorFlow."""
    import struct

    from estimator_pipeline.inputs.sources import tfrecord_index as records

    def masked(content):
        crc = 0xFFFFFFFF
        for byte in content:
            crc = (crc >> 8) ^ int(records._crc_table()[(crc ^ byte) & 0xFF])
        crc ^= 0xFFFFFFFF
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    header = struct.pack("<Q", 3)
    record = header + masked(header) + b"abc" + masked(b"abc")
    for number, count in enumerate(counts):
        (tmp_path / f"part-{number}.tfrecord").write_bytes(record * count)
    pattern = str(tmp_path / "part-*.tfrecord")
    features = {"x": {"dtype": "float32"}, "label": {"dtype": "int64"}}
    return {"source": "tfrecord", "train": pattern, "eval": pattern, "features": features, "global_batch_size": 8}


def test_records_are_held_against_their_checksums(tmp_path):
    section = tfrecords(tmp_path, 4, 3)
    context = doctor.Context(job=job(tmp_path, input=section))
    assert has(told(opened_data.whole, context), "ok", "7 records of 2 of 2 TFRecord file(s) match")
    path = tmp_path / "part-1.tfrecord"
    spoilt = bytearray(path.read_bytes())
    spoilt[-5] ^= 1
    path.write_bytes(spoilt)
    found = told(opened_data.whole, doctor.Context(job=job(tmp_path, input=section)))
    assert has(found, "error", "part-1.tfrecord, record 2, at byte 38: the data of the record do not match")
    assert has(found, "ok", "4 records of 1 of 2 TFRecord file(s) match")


def test_compressed_records_are_read_as_in_training(tmp_path):
    """By the name of the files; `input.compression` need not be set."""
    section = tfrecords(tmp_path, 4, 3)
    for path in tmp_path.glob("part-*.tfrecord"):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
    section |= dict.fromkeys(("train", "eval"), str(tmp_path / "part-*.tfrecord.gz"))
    context = doctor.Context(job=job(tmp_path, input=section))
    assert has(told(data.check_data, context), "ok", "training: 2 TFRecord file(s)", "7 records")
    assert has(told(opened_data.whole, context), "ok", "7 records of 2 of 2 TFRecord file(s) match")
    (tmp_path / "part-1.tfrecord.gz").write_bytes(Path(tmp_path / "part-1.tfrecord").read_bytes())
    findings = told(data.check_data, doctor.Context(job=job(tmp_path, input=section)))
    assert has(findings, "error", "A compressed TFRecord file cannot be read")
    section["train"] = str(tmp_path / "part-*")
    assert has(told(data.check_data, doctor.Context(job=job(tmp_path, input=section))), "error", "and some are not")


def shards(tmp_path, section, workers):
    settings = job(
        tmp_path, input=section, cluster={"workers": workers}, run={"train_distribute": "multi_worker_mirrored"}
    )
    return told(data.check_shards, doctor.Context(job=settings))


def test_even_and_uneven_shards(tmp_path):
    section = tfrecords(tmp_path, 10, 10, 10, 10) | {"shard_policy": "file"}
    assert has(shards(tmp_path, section, 2), "ok", "20 records per worker of 40 in 4 file(s)")
    section = tfrecords(tmp_path, 30, 4, 3, 3) | {"shard_policy": "file"}
    assert has(shards(tmp_path, section, 2), "warning", "10 to 30 records per worker", "3.00 times as often")
    section = tfrecords(tmp_path, 30, 0, 5, 5) | {"shard_policy": "file"}
    assert has(shards(tmp_path, section, 4), "error", "0 to 30 records per worker", "fails at its first step")
    assert has(shards(tmp_path, section, 8), "error", "4 files cannot be shared by 8 input pipelines")
    section = tfrecords(tmp_path, 30, 4, 3, 3)
    assert has(shards(tmp_path, section, 2), "ok", "policy data: any record can be read by its number")


def test_files_that_are_not_there(tmp_path):
    section = tfrecords(tmp_path, 5) | {"eval": str(tmp_path / "none-*.tfrecord")}
    context = doctor.Context(job=job(tmp_path, input=section))
    assert has(told(data.check_data, context), "error", "A pattern for evaluation files matches none")
    (tmp_path / "part-9.tfrecord").write_bytes(b"no record at all, but a text")
    context = doctor.Context(job=job(tmp_path, input=tfrecords(tmp_path, 5)))
    assert has(told(data.check_data, context), "error")
    (tmp_path / "part-9.tfrecord").write_bytes(b"")
    assert has(told(data.check_data, context), "error"), "a context is of one moment: all checks see the same files"
    context = doctor.Context(job=job(tmp_path, input=tfrecords(tmp_path, 5)))
    assert has(told(data.check_data, context), "warning", "part-9.tfrecord is empty")


def tfds(tmp_path, name="mine", files=2, **section):
    folder = tmp_path / "tfds" / "mine" / "1.0.0"
    folder.mkdir(parents=True, exist_ok=True)
    info = {"splits": [{"name": n, "shardLengths": ["5", "6"]} for n in ("train", "test")]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    for split in ("train", "test"):
        for i in range(files):
            (folder / f"mine-{split}.tfrecord-{i:05d}-of-00002").write_bytes(b"x")
    section = {"source": "tfds", "name": name, "data_dir": str(tmp_path / "tfds"), "global_batch_size": 8, **section}
    return doctor.Context(job=job(tmp_path, input=section))


def test_prepared_data_sets(tmp_path):
    found = told(data.check_data, tfds(tmp_path))
    assert has(found, "ok", "training: mine train", "11 records") and fine(found)
    assert has(told(data.check_shards, tfds(tmp_path)), "ok", "11 records of 2 file(s)")
    found = told(data.check_data, tfds(tmp_path, train_split="train[:50%]"))
    assert fine(found)
    found = told(data.check_data, tfds(tmp_path, eval_split="validation"))
    assert has(found, "error", "has no split 'validation'", "train, test")
    found = told(data.check_data, tfds(tmp_path, name="mnist"))
    assert has(found, "warning", "mnist is not prepared in", "compute nodes often have no network", "tfds build")
    (tmp_path / "tfds" / "mine" / "1.0.0" / "mine-train.tfrecord-00001-of-00002").unlink()
    assert has(told(data.check_data, tfds(tmp_path, files=1)), "error", "1 of 2 files of the split train")


def test_a_data_set_that_cannot_be_downloaded(tmp_path, monkeypatch):
    """By TFDS's own list of where its files come from; a proxy, or a host that answers, leaves it open."""
    asked = set()

    def connect(address, timeout):
        asked.add(address)
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", connect)
    section = {"source": "tfds", "name": "mnist", "data_dir": str(tmp_path), "global_batch_size": 8}
    settings = job(tmp_path, input=section)
    found = told(data.check_data, doctor.Context(job=settings, connect=True))
    assert has(found, "error", "mnist is not prepared", "storage.googleapis.com does not answer", "tfds build mnist")
    assert asked == {("storage.googleapis.com", 443)}
    for context in (
        doctor.Context(job=settings),
        doctor.Context(job=settings, connect=True, environ={"https_proxy": "http://proxy:80"}),
    ):
        assert has(told(data.check_data, context), "warning", "mnist is not prepared")
    monkeypatch.setattr("socket.create_connection", lambda address, timeout: contextlib.nullcontext())
    assert has(told(data.check_data, doctor.Context(job=settings, connect=True)), "warning", "mnist is not prepared")


def described(tmp_path, sizes, classes=None):
    """A prepared data set with a description of its features."""
    tfds(tmp_path)
    folder = tmp_path / "tfds" / "mine" / "1.0.0"
    items = [{"featureKey": "image"}, {"featureKey": "label"}]
    info = json.loads((folder / "dataset_info.json").read_text()) | {"supervisedKeys": {"tuple": {"items": items}}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    image = {"image": {"shape": {"dimensions": [str(size) for size in sizes]}}}
    label = {"classLabel": {"numClasses": str(classes)}} if classes else {"tensor": {"shape": {}}}
    document = {"featuresDict": {"features": {"image": image, "label": label}}}
    (folder / "features.json").write_text(json.dumps(document))
    return {"source": "tfds", "name": "mine", "data_dir": str(tmp_path / "tfds"), "global_batch_size": 8}


def test_the_model_fits_the_data(tmp_path):
    def found(section, **model):
        return told(fit.check_model, doctor.Context(job=job(tmp_path, input=section, model={"name": "cnn", **model})))

    mine = described(tmp_path, (28, 28, 1), 62)
    assert has(found(mine), "ok", "cnn: inputs of shape [28, 28, 1], classes: 62")
    assert has(found(mine, params={"classes": 10}), "error", "has 10 classes", "labels from 0 to 61")
    assert has(found(mine, params={"input_shape": [8, 8, 1]}), "error", "[8, 8, 1]", "[28, 28, 1]", "leave")
    assert has(found(mine, params={"inputs": 3}), "error", "has no parameter inputs")
    assert has(found(described(tmp_path, (-1, -1, 3))), "error", "needs inputs of one shape", "[?, ?, 3]")
    digits = {"source": "tfds", "name": "digits", "data_dir": str(tmp_path / "none"), "global_batch_size": 8}
    assert has(found(digits, params={"input_shape": [28, 28, 1]}), "error", "[28, 28, 1]", "[8, 8, 1]")
    assert has(found(tfrecords(tmp_path, 3), params={"input_shape": [3]}), "error", "records of the shape []")
    rows = npz(tmp_path / "rows.npz", x=20, y=20, z=20)
    rows = {"source": "arrays", "train": rows, "eval": rows, "label_key": "y", "global_batch_size": 8}
    assert has(found(rows), "error", "takes one tensor", "x, z")
    named = tfrecords(tmp_path, 3) | {"features_key": "z"}
    assert has(found(named), "ok"), "a name that no feature has is not this check's"
    assert has(found({**rows, "train": "none.npz"}), "ok"), "the check of the data tells of it"
    said = found(digits, loss="mse", head="multi_label")
    assert has(said, "error", "belongs to the head 'regression', not to 'multi_label'")
    assert has(found(digits, loss="binary_crossentropy", head="multi_label"), "ok")
    weighted = npz(tmp_path / "weighted.npz", x=20, y=20, w=20)
    weighted = {**rows, "train": weighted, "eval": weighted, "weight_key": "w"}
    assert has(found(weighted, params={"classes": 3}), "ok", "inputs of shape [2]"), "the weight is no feature"
    assert has(found(digits, class_weights=[1.0] * 9), "error", "weights for 9 classes, and the model has 10 classes")
    assert has(found(digits, class_weights={"3": 4.0}), "ok")
    assert has(found(digits, class_weights={"3": 4.0}, loss="mse"), "error", "does not have exactly one class")
    assert has(found(mine, name="wide_deep"), "error", "wide_deep needs columns")
    images = found(mine, name="wide_deep", params={"numeric": ["x"], "classes": 62})
    assert has(images, "error", "columns that the data do not have: x", "features of the data: image")
    pairs = found(rows, name="wide_deep", params={"numeric": ["x"], "categorical": {"z": 5}})
    assert has(pairs, "error", "one value per record from the column 'x'", "records of the shape [2]")
    table = found(tfrecords(tmp_path, 3), name="wide_deep", params={"numeric": ["x"]})
    assert has(table, "ok", "wide_deep: columns x")


def test_cells_of_csv_files_are_read_before_anything_starts(tmp_path):
    (tmp_path / "t.csv").write_text("x,age,city,label\n" + "1,2,a,0\n" * 20 + ",old,b,1\n")
    source = {
        "source": "csv",
        "train": str(tmp_path / "t.csv"),
        "eval": str(tmp_path / "t.csv"),
        "global_batch_size": 4,
    }

    def found(check, columns, numeric=("x",)):
        model = {"name": "wide_deep", "params": {"numeric": list(numeric)}}
        columns = {"label": "int64", "city": "string", **columns}
        return told(check, doctor.Context(job=job(tmp_path, model=model, input={**source, "columns": columns})))

    empty = found(data.check_data, {"x": "float32"})
    assert has(empty, "error", "'x' has no value", "t.csv, line 22")
    for filled in ({"dtype": "float32", "default": 40}, ["float32", 40]):
        assert has(found(data.check_data, {"x": filled}), "ok", "21 records")
        text = found(data.check_data, {"x": filled, "age": "int64"})
        assert has(text, "error", "'age' is not of type int64", "line 22: 'old'")
        assert has(found(fit.check_model, {"x": filled}), "ok")
        of_text = found(fit.check_model, {"x": filled}, numeric=("x", "city"))
        assert has(of_text, "error", "'wide_deep' takes numbers, but the data have text: city")


def test_own_functions_are_looked_for_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = doctor.Context(job=job(tmp_path))
    assert has(told(data.check_data, context), "error", "input.train: the file data.py does not exist")
    (tmp_path / "data.py").write_text(FUNCTIONS)
    assert fine(told(data.check_data, context))
    (tmp_path / "data.py").write_text("def train(context):\n    pass\n")
    assert has(told(data.check_data, context), "error", "has no parameter `input_context`, only (context)")
    (tmp_path / "data.py").write_text("def train(:\n")
    assert has(told(data.check_data, context), "error", "data.py, line 1, is not valid Python")
    section = {**SMALL["input"], "train": "no_such_module_anywhere:train"}
    context = doctor.Context(job=job(tmp_path, input=section))
    assert has(told(data.check_data, context), "error", "the module no_such_module_anywhere cannot be found")
    assert not has(told(data.check_data, dataclasses.replace(context, other_python=True)), "error", "no_such_module")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def modelfn(): pass\n", "mine_here/f.py has no function 'f' (functions: modelfn)"),
        ("import os\nimport no_such_package.x as np\ndef f(): pass\n", "line 2, imports no_such_package, which is not"),
        ("try:\n    import no_such_package\nexcept ImportError:\n    pass\ndef f(): pass\n", None),
        ("if True:\n    f = print\n", None),
        ("from os.path import *\n", None),
        ("from beside import f\n", None),
        ("globals()['f'] = print\n", None),
        ("def make():\n    global f\n    f = print\nmake()\n", None),
        ("for f in (print,):\n    pass\n", None),
        (
            "class A:\n    def f(): pass\ndef g():\n    def f(): pass\n",
            "mine_here/f.py has no function 'f' (functions: g)",
        ),
    ],
)
def test_a_function_and_what_its_file_imports_are_looked_for(text, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_here").mkdir()
    (tmp_path / "mine_here" / "f.py").write_text(text)
    (tmp_path / "mine_here" / "beside.py").write_text("")
    for reference in ("mine_here/f.py:f", "mine_here.f:f"):
        found = told(functions.check, doctor.Context(job=job(tmp_path, model={"function": reference})))
        assert fine(found[:1]) if says is None else has(found, "error", says), found
    if says is not None and "imports" in says:
        loads = job(tmp_path, model={"function": "mine_here/f.py:f"}, slurm={"setup": ["module load x"]})
        assert has(told(functions.check, doctor.Context(job=loads)), "warning", says)
    found = told(functions.check, doctor.Context(job=job(tmp_path, model={"function": "mine_here.g:f"})))
    assert has(found, "error", "model.function: the module mine_here.g cannot be found")


def test_modules_that_are_no_files_are_not_missed(tmp_path):
    for reference in ("os.path:join", "json:dumps", "tensorflow.keras:Model", "numpy.linalg:norm"):
        assert fine(told(functions.check, doctor.Context(job=job(tmp_path, model={"function": reference})))[:1])


def test_a_data_set_that_nobody_knows(tmp_path):
    found = told(data.check_data, tfds(tmp_path, name="mnits"))
    assert has(found, "error", "There is no TensorFlow Datasets data set 'mnits'", "did you mean mnist")
    assert not has(told(data.check_data, tfds(tmp_path, name="mine")), "error", "There is no")


# The run before ---------------------------------------------------------------------------------------------------


def test_the_job_is_held_against_the_run_whose_checkpoints_are_there(tmp_path):
    """In the words of `train`, by the same code."""
    section = {**tfds(tmp_path).job.input.model_dump(exclude_defaults=True), "source": "tfds"}
    before = job(tmp_path, input=section)
    folder = tmp_path / "model" / "estimator_pipeline"
    context = doctor.Context(job=before)
    with pytest.raises(CheckSkipped, match="no checkpoint"):
        list(storage.check_identity(context))
    folder.mkdir(parents=True)
    (folder.parent / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"\n')
    (folder.parent / "model.ckpt-20.index").write_text("")
    with pytest.raises(CheckSkipped, match="has no stored run identity"):
        list(storage.check_identity(context))
    made = job_identity.of_job_file(before)
    (folder / "identity.json").write_text(json.dumps({"fixed": dict(made.fixed), "told": dict(made.described)}))

    def found(**sections):
        return told(storage.check_identity, doctor.Context(job=job(tmp_path, **{"input": section, **sections})))

    assert has(found(), "ok", "the job matches the run that trained to step 20")
    text = "this run is not the one that trained to step 20 in"
    assert has(found(input={**section, "global_batch_size": 4}), "error", text, "global_batch_size was 8 and is 4")
    assert has(found(model={"name": "dnn"}), "error", text, "model.name was linear and is dnn", "--accept-changes")
    meant = found(model={"name": "dnn"}, run={"accept_changes": True})
    assert has(meant, "info", "resumes at step 20 with changed settings: model.name was linear and is dnn")
    slower = {"name": "linear", "optimizer": {"name": "sgd", "learning_rate": 0.5}}
    assert has(found(model=slower), "info", "model.optimizer.learning_rate was 0.01 and is 0.5")


# What is asked of Slurm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "severity", "says"),
    [
        ({"time": 2, "signal_seconds": 120}, "error", "slurm.time is 120 s, and slurm.signal_seconds 120: the tasks"),
        ({"time": "00:01:30"}, "error", "slurm.time is 90 s"),
        ({"time": 3}, "warning", "Slurm may send the signal a minute earlier"),
        ({"time": "1-00"}, "ok", "time 1-00, signal 120 s before"),
        ({"time": "0"}, "ok", "time 0"),
        ({"mem": "200M"}, "error", "slurm.mem 200M for 1 task(s) on a node (worker)"),
        # A task, and what all tasks on a node share.
        ({"mem": 600}, "error", "slurm.mem 600 for 1 task(s) on a node (worker)"),
        ({"mem": 650}, "ok", "time of the partition"),
        ({"mem": 700, "tasks_per_node": 2}, "warning", "slurm.mem to 950M or more"),
        ({"mem": 600, "tasks_per_node": 2}, "error", "slurm.mem to 950M or more"),
        ({"mem_per_cpu": "100M", "cpus_per_task": 2}, "error", "slurm.mem_per_cpu to 325M or more"),
        ({"mem_per_cpu": "200M", "tasks_per_node": 1}, "error", "slurm.mem_per_cpu to 650M or more"),
        # Both may be on one node.
        ({"mem_per_cpu": "400M"}, "warning", "slurm.mem_per_cpu to 650M or more"),
        ({"mem_per_cpu": "400M", "tasks_per_node": 2}, "warning", "slurm.mem_per_cpu to 475M or more"),
        ({"mem_per_cpu": "475M", "tasks_per_node": 2}, "ok", "time of the partition"),
        ({"mem": "0"}, "ok", "time of the partition"),
        ({"setup": ["module load 'x"]}, "error", "slurm.setup is not a valid shell script"),
        ({"teardown": ["rm -rf x", ")"]}, "error", "slurm.teardown is not a valid shell script"),
    ],
)
def test_what_is_asked_of_slurm(section, severity, says, tmp_path):
    workers = {"cluster": {"workers": 2}, "run": {"train_distribute": "multi_worker_mirrored"}}
    (found,) = told(batch.check_slurm, doctor.Context(job=job(tmp_path, slurm=section, **workers)))
    assert found[0] == severity and says in found[1]


def test_time_limits_of_slurm_in_seconds():
    known = {"5": 300, "1:30": 90, "2:00:00": 7200, "1-2": 93600, "1-2:30": 95400, "1-0:0:1": 86401, "0": None}
    assert {text: seconds_of(text) for text in known} == known and seconds_of(7) == 420


# Together -----------------------------------------------------------------------------------------------------


def met(folder, tasks, timeout=20.0, facts=None):
    """`tasks` tasks meet in threads of this process; their meetings or errors by rank."""
    found = {}

    def run(rank):
        seat = meeting.Participant(rank, tasks, f"worker:{rank}")
        try:
            found[rank] = meeting.join(
                folder, seat, (facts or {}).get(rank, {}), timeout=timeout, connect_timeout=2,
                environ={"ESTIMATOR_PIPELINE_HOST": "127.0.0.1"},
            )  # fmt: skip
        except (ClusterError, WaitError) as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_tasks_meet_and_leave_nothing(tmp_path):
    found = met(tmp_path / "a" / "model" / ".doctor-x", 4, facts={2: {"said": "here"}})
    assert [m.facts[2]["said"] for m in found.values()] == ["here"] * 4
    assert all(one["silent"] == {} and one["lock"] == "kept" for m in found.values() for one in m.results.values())

    assert not list(tmp_path.iterdir())


def test_a_task_that_does_not_come(tmp_path):
    folder = tmp_path / ".doctor-x"
    with pytest.raises(WaitError, match=r"worker:1 waited 0 s for the other tasks to .*, and 1 of 3 did") as caught:
        meeting.join(folder, meeting.Participant(1, 3, "worker:1"), {}, timeout=0.3)
    assert (
        caught.value.found == f"missing: ranks 0, 2; the folder is {folder}"
        and "do not share this folder" in caught.value.hint
    )
    assert not list(tmp_path.iterdir())


def test_what_a_dead_task_has_left_is_no_news(tmp_path):
    """Files of an earlier start, that of a task with the rank of one that comes late among them."""
    folder = tmp_path / ".doctor-x"
    folder.mkdir()
    old = {"word": "old", "size": 2, "name": "worker:1", "address": "127.0.0.1:1", "made": 0}
    (folder / "1.json").write_text(json.dumps(old))
    (folder / "1.seen.json").write_text(json.dumps(old))
    (folder / "1.results.json").write_text(json.dumps({**old, "words": {"0": "older", "1": "old"}}))
    found = {}
    first = threading.Thread(
        target=lambda: found.update({0: meeting.join(folder, meeting.Participant(0, 2, "a"), {}, timeout=20)})
    )
    first.start()
    deadline = time.monotonic() + 20
    while not (folder / "0.seen.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    found[1] = meeting.join(folder, meeting.Participant(1, 2, "b"), {}, timeout=20)
    first.join(30)
    assert found[0].facts[1]["name"] == found[1].facts[1]["name"] == "b"
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_two_tasks_of_one_rank(tmp_path):
    folder, found = tmp_path / ".doctor-x", []

    def run():
        try:
            meeting.join(folder, meeting.Participant(0, 2, "worker:0"), {}, timeout=3)
        except (ClusterError, WaitError) as error:
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert any("two processes have the rank 0." in error.message for error in found)


FACTS = {
    "task": "worker:0", "trains": True, "cluster": "c", "versions": {"tensorflow": "2.21.0"}, "job": {"run": "1"},
    "gpus": [], "environ": {}, "data": "d", "host": "h0", "address": "h0:1", "name": "worker:0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "severity", "texts"),
    [
        ({"cluster": "other"}, "error", ["different clusters: c on worker:0; other on worker:1"]),
        ({"versions": {"tensorflow": "2.20.0"}}, "error", ["tensorflow is 2.21.0 on worker:0; 2.20.0 on worker:1"]),
        ({"versions": {"tensorflow": "2.21.0", "numpy": "2.0"}}, "warning", ["numpy is none on worker:0; 2.0 on"]),
        ({"job": {"run": "2"}}, "error", ["different job files: run of (worker:0) and (worker:1)"]),
        ({"gpus": ["0"]}, "error", ["0 GPU(s) on worker:0; 1 GPU(s) on worker:1"]),
        ({"environ": {"TF_DETERMINISTIC_OPS": "1"}}, "warning", ["TF_DETERMINISTIC_OPS (not set on worker:0; 1 on"]),
        ({"data": "e"}, "error", ["do not see the same data files: d on worker:0; e on worker:1"]),
    ],
)  # fmt: skip
def test_tasks_that_differ(change, severity, texts):
    quiet = {"silent": {}, "lock": "kept"}
    other = {**FACTS, "name": "worker:1", **change}
    found = meeting.RendezvousResult(0, {0: FACTS, 1: other}, {0: quiet, 1: quiet})
    told = [(f.severity, f.message) for f in together.compare(found, Path("m/.doctor"))]
    assert has(told, severity, *texts), told
    same = meeting.RendezvousResult(0, {0: FACTS, 1: {**FACTS, "name": "worker:1"}}, {0: quiet, 1: quiet})
    assert fine([(f.severity, f.message) for f in together.compare(same, Path("m/.doctor"))])


def test_ports_locks_and_shared_gpus():
    facts = {0: {**FACTS, "gpus": ["0"]}, 1: {**FACTS, "name": "worker:1", "gpus": ["0"], "address": "h1:9"}}
    told = {
        0: {"silent": {"1": "Connection refused"}, "lock": "kept"},
        1: {"silent": {}, "lock": "not kept"},
    }
    found = [
        (f.severity, f.message) for f in together.compare(meeting.RendezvousResult(0, facts, told), Path("m/.doctor"))
    ]
    assert has(found, "error", "worker:1 at h1:9 (on h0) cannot be reached from worker:0: Connection refused")
    assert has(found, "warning", "a file lock that worker:0 holds is not seen by worker:1")
    assert has(found, "warning", "worker:0 and worker:1 both see GPU 0 of h0")


def test_places_in_the_meeting(tmp_path):
    context = doctor.Context(environ={"TF_CONFIG": document(index=1, worker=TWO)}, job=three(tmp_path))
    assert together.participant_of(context) == meeting.Participant(1, 3, "worker:1", "b:2222")
    context = doctor.Context(environ={"TF_CONFIG": document(task="evaluator", worker=TWO)}, job=three(tmp_path))
    assert together.participant_of(context) == meeting.Participant(2, 3, "evaluator:0", None)
    assert together.participant_of(doctor.Context(environ=slurm(rank=2))) == meeting.Participant(2, 3, "rank 2")
    for alone in ({}, slurm(tasks=1)):
        with pytest.raises(CheckSkipped, match="only one process"):
            together.participant_of(doctor.Context(environ=alone))


def test_findings_of_several_tasks_are_one_list():
    both, one = DoctorFinding("ok", "all is well", check="a"), DoctorFinding("error", "bad", "why", "hint", check="b")
    found = merged([("w:0", [both, one]), ("w:1", [both]), ("w:2", [both])])
    assert [(f.message, f.tasks) for f in found] == [("all is well", ()), ("bad", ("w:0",))]
    own = [(f"w:{i}", [DoctorFinding("ok", f"port {i}", check="a")]) for i in range(3)]
    assert [f.message for f in merged(own)] == ["port 0; also ok on 2 other tasks"]


# The report and the command -----------------------------------------------------------------------------------


def test_the_report():
    report = DoctorReport(
        (DoctorFinding("ok", "x", check="a"), DoctorFinding("warning", "w", "y", "m", check="b")), {"c": "no job file"}
    )
    assert report.exit_code() == 0 and report.exit_code(strict=True) == 1
    assert str(report).splitlines() == [
        "ok       a            x",
        "warning  b            w",
        "                        why: y",
        "                        hint: m",
        "skipped: c (no job file)",
        "1 warning",
    ]
    assert DoctorReport((DoctorFinding("error", "e", "y", "m"),)).exit_code() == 1
    assert str(DoctorReport()) == "no problems found"


def test_only_and_skip(tmp_path):
    report = doctor.examine(doctor.Context(), only=["variables", "packages"], skip=["packages"])
    assert {finding.check for finding in report.findings} == {"variables"} and not report.not_looked_at
    with pytest.raises(ConfigError, match="there is no such check") as caught:
        doctor.examine(doctor.Context(), only=["adresses"])
    assert caught.value.hint == "did you mean 'addresses'?"


@pytest.fixture
def run(tmp_path):
    return lambda *arguments, env=None: call("doctor", *arguments, cwd=tmp_path, env=env)


JOB = """
model: {name: linear}
input: {source: arrays, train: a.npz, eval: a.npz, label_key: y, global_batch_size: 8}
run: {model_dir: model, train_distribute: multi_worker_mirrored}
cluster: {workers: 2}
"""
# Not of the job: whether this machine has what a good job needs.
HERE = ["--skip", "packages", "--skip", "threads"]


def test_the_command(run, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    npz(tmp_path / "a.npz", x=20, y=20)
    before = sorted(tmp_path.iterdir())
    done = run("job.yaml", *HERE)
    assert done.returncode == 0 and done.stderr == "" and "no problems found" in done.stdout
    assert done.stdout.startswith("doctor: job.yaml, on ")
    done = run("job.yaml", "--json", "--set", "input.train=b.npz", *HERE)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    (wrong,) = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert wrong["check"] == "data" and "b.npz" in wrong["what"] and wrong["why"] and wrong["hint"]
    assert report["counts"]["error"] == 1 and report["not_looked_at"]["tasks"] == "needs --shared, on every task"
    assert sorted(tmp_path.iterdir()) == before


def test_a_job_file_with_a_mistake_does_not_stop_the_rest(run, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB.replace("workers: 2", "wrokers: 2"))
    done = run("job.yaml", *HERE)
    assert done.returncode == 1 and "error    job_file" in done.stdout and "did you mean 'workers'?" in done.stdout
    assert "ok       variables" in done.stdout
    again = run("job.yaml", "--shared", *HERE)
    assert again.returncode == 1 and "did you mean 'workers'?" in again.stdout


def test_each_mistake_of_a_job_file_is_a_finding_of_its_own(run, tmp_path):
    text = JOB.replace("workers: 2", "worker: 2").replace("global_batch_size: 8", "global_batch_size: eight")
    (tmp_path / "job.yaml").write_text(text + "slurm: {time: 4h, env: {A: [1]}}\n")
    report = json.loads(run("job.yaml", "--json", "--only", "variables").stdout)
    found = [(one["what"].split(": ")[1], one["hint"]) for one in report["findings"] if one["check"] == "job_file"]
    assert [name for name, _ in found] == ["input.global_batch_size", "cluster.worker", "slurm.time", "slurm.env.A"]
    assert found[1][1] == "did you mean 'workers'?"


def test_a_warning_is_an_error_if_strict(run):
    arguments = ["--only", "variables"]
    assert run(*arguments, env={"TF_CONFIG": " "}).returncode == 0
    assert run(*arguments, "--strict", env={"TF_CONFIG": " "}).returncode == 1


def test_the_list_of_checks(run):
    done = run("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [*(check.name for check in doctor.CHECKS), "tasks"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.yaml"], "the job file 'nothing.yaml' cannot be read"),
        (["--set", "train.max_steps=3"], "requires a job file"),
        (["--only", "port"], "did you mean 'ports'?"),
        (["--environment", "slrum", "--only", "threads"], "did you mean 'slurm'?"),
        (["--tf-config", "nothing.json"], "--tf-config nothing.json cannot be read"),
        (["--shared"], "--shared needs a folder that all tasks share"),
    ],
)
def test_bad_usage(run, arguments, says):
    done = run(*arguments)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_no_tensorflow_without_deep(run_python, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    npz(tmp_path / "a.npz", x=20, y=20)
    code = (
        "import sys\nfrom estimator_pipeline.cli import main\n"
        "try:\n    main.app(['doctor', 'job.yaml', '--connect', '--json'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'tensorflow', 'keras', 'tf_keras'} & set(sys.modules)), file=sys.stderr)\n"
    )
    env = {"PYTHONPATH": str(ROOT), "TF_CONFIG": document(worker=["localhost:20001", "localhost:20002"])}
    done = run_python(["-c", code], cwd=tmp_path, env=env)
    assert done.stderr == "[]\n" and json.loads(done.stdout)["findings"]


def processes(tmp_path, environs, *arguments):
    """The command in several processes at once; (exit code, standard output) of each."""
    command = [sys.executable, "-m", "estimator_pipeline", "doctor", *arguments]
    started = []
    try:
        for environ in environs:
            env = environment({"PYTHONPATH": str(ROOT), "ESTIMATOR_PIPELINE_HOST": "127.0.0.1", **environ})
            started.append(subprocess.Popen(
                command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            ))  # fmt: skip
        return [(process.communicate(timeout=90)[0], process.returncode) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()


def test_processes_meet_in_the_model_dir(tmp_path):
    """One report for all tasks, by rank 0; a fault of one task is everybody's."""
    (tmp_path / "job.yaml").write_text(JOB.replace("workers: 2", "workers: 3"))
    npz(tmp_path / "a.npz", x=20, y=20)
    before = sorted(tmp_path.iterdir())
    arguments = ["job.yaml", "--set", "input.global_batch_size=9", "--shared", "--wait", "60", "--json", *HERE]
    environs = [slurm(rank=r, TF_USE_LEGACY_KERAS="1" if r < 2 else "maybe") for r in range(3)]
    (first, *others) = processes(tmp_path, environs, *arguments, "--strict")
    report = json.loads(first[0])
    assert first[1] == 1 and others == [("", 1), ("", 1)], report
    assert report["not_looked_at"].keys() == {"identity", "slurm", "pbs"}
    (met_,) = [f["what"] for f in report["findings"] if "met in" in f["what"]]
    assert "3 tasks on 1 host(s)" in met_ and "worker:2 on" in met_
    assert any(f["what"] == "each task can connect to every other task" for f in report["findings"])
    wrong = [f for f in report["findings"] if f["severity"] in ("warning", "error")]
    assert [(f["check"], f["severity"], f["tasks"]) for f in wrong] == [
        ("variables", "warning", ["worker:2"]),
        ("tasks", "warning", []),
    ]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.nightly
def test_processes_that_do_not_share_the_model_dir(tmp_path):
    """Each has a folder of its own under the same name: what a local disk on each host is."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-m", "estimator_pipeline", "doctor", "--model-dir", "model", "--shared", "--wait", "3"]
    started = [
        subprocess.Popen(
            [*command, "--only", "tasks"], cwd=tmp_path / name, stdout=subprocess.PIPE, text=True,
            env=environment({"PYTHONPATH": str(ROOT), **slurm(rank=rank, tasks=2)}),
        )
        for rank, name in enumerate(("one", "two"))
    ]  # fmt: skip
    for rank, process in enumerate(started):
        out, _ = process.communicate(timeout=90)
        assert (
            process.returncode == 1
            and f"missing: rank {1 - rank}" in out
            and "do not share this folder" in " ".join(out.split())
        )
    assert not list((tmp_path / "one").iterdir()) and not list((tmp_path / "two").iterdir())


# With TensorFlow ----------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.slow
def test_deep(run, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    npz(tmp_path / "a.npz", x=20, y=20)
    done = run("job.yaml", "--deep", "--json", *HERE)
    found = [(f["check"], f["severity"], f["what"]) for f in json.loads(done.stdout)["findings"]]
    assert done.returncode == 0, found
    assert any(check == "data" and "20 records" in what for check, _, what in found)
