"""Agreed ports: real processes that find each other through a folder, and what happens when one does not come."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from estimator_pipeline.cluster import port_agreement as agreement
from estimator_pipeline.cluster import resolve
from estimator_pipeline.cluster.port_agreement import agree, folder_for, own_address, wait_secs
from estimator_pipeline.errors import ClusterError, ConfigError, WaitError
from estimator_pipeline.launch import LaunchShape

# Each process agrees, then serves at its own port as TensorFlow's server would (sharing it), until it is told to end.
TASK = """
    import json, os, socket, sys
    from estimator_pipeline.cluster import resolve
    from estimator_pipeline.errors import PipelineError
    from estimator_pipeline.launch import LaunchShape
    try:
        resolved = resolve(os.environ, LaunchShape(workers=int(sys.argv[1])), directory=sys.argv[2])
    except PipelineError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
    config = json.loads(resolved.changes["TF_CONFIG"])
    own = config["cluster"]["worker"][config["task"]["index"]]
    server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("::", int(own.rpartition(":")[2])))
    server.listen()
    changes = {k: v for k, v in resolved.changes.items() if k != "TF_CONFIG"}
    print(json.dumps({"config": config, "changes": changes, "text": resolved.text}), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def start(run_environment):
    processes = []

    def start_task(rank, size, folder, **more):
        environ = {
            **run_environment,
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
            "SLURM_JOB_ID": "12",
            "ESTIMATOR_PIPELINE_HOST": "127.0.0.1",
            "ESTIMATOR_PIPELINE_AGREEMENT_SECS": "60",
            **more,
        }
        command = [sys.executable, "-c", textwrap.dedent(TASK), str(size), str(folder)]
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        processes.append(process)
        return process

    yield start_task
    for process in processes:
        process.kill()
        process.communicate()


def told(process):
    line = process.stdout.readline()
    return json.loads(line)


def end(process):
    process.communicate("\n", timeout=30)
    return process.returncode


def test_processes_agree_on_ports_that_nobody_else_has(start, tmp_path):
    tasks = [start(rank, 4, tmp_path) for rank in (2, 0, 3, 1)]
    found = [told(task) for task in tasks]
    clusters = {json.dumps(one["config"]["cluster"]) for one in found}
    assert len(clusters) == 1
    addresses = found[0]["config"]["cluster"]["worker"]
    assert len(set(addresses)) == 4 and all(address.startswith("127.0.0.1:") for address in addresses)
    assert [one["config"]["task"]["index"] for one in found] == [2, 0, 3, 1]
    # One name for this start on all of them, and the word by which TensorFlow's server shares the port.
    assert len({json.dumps(one["changes"], sort_keys=True) for one in found}) == 1
    assert found[0]["changes"]["TF_GRPC_REUSE_PORT"] == "1" and found[0]["changes"]["ESTIMATOR_PIPELINE_RUN_ID"]
    assert found[1]["text"] == "environment open_mpi; job 12, rank 0 of 4; worker:0 of 4 that train; ports agreed"
    for address in addresses:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=10):
            pass
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("", int(port)))
    assert [end(task) for task in tasks] == [0] * 4


def test_what_an_earlier_start_left_is_not_taken_for_news(start, tmp_path):
    """The same job starts again in the same folder, one task after the other: nobody goes on with an old address."""
    first = [start(rank, 2, tmp_path) for rank in (0, 1)]
    old = told(first[0])
    told(first[1])
    assert [end(task) for task in first] == [0, 0]
    (folder,) = (tmp_path / ".cluster").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["0.json", "0.seen.json", "1.json", "1.seen.json"]
    # All four files of the first start are there. The second start's rank 1 comes late.
    early = start(0, 2, tmp_path)
    old_word = json.loads((folder / "0.json").read_text())["word"]
    while json.loads((folder / "0.json").read_text())["word"] == old_word:
        assert early.poll() is None
        time.sleep(0.05)
    late = start(1, 2, tmp_path)
    new, also = told(early), told(late)
    assert new["config"]["cluster"] == also["config"]["cluster"]
    assert new["changes"]["ESTIMATOR_PIPELINE_RUN_ID"] == also["changes"]["ESTIMATOR_PIPELINE_RUN_ID"]
    assert new["changes"]["ESTIMATOR_PIPELINE_RUN_ID"] != old["changes"]["ESTIMATOR_PIPELINE_RUN_ID"]


def test_old_files_alone_agree_with_nobody(tmp_path, monkeypatch):
    """The planted fault: a whole folder of an earlier start. Its files must not end the wait."""
    for rank in range(2):
        (tmp_path / f"{rank}.json").write_text(json.dumps({"address": f"old:{rank}", "word": f"w{rank}", "size": 2}))
        (tmp_path / f"{rank}.seen.json").write_text(json.dumps({"words": {"0": "w0", "1": "w1"}}))
    with pytest.raises(WaitError) as caught:
        agree(tmp_path, rank=0, size=2, host="h", timeout=0.5)
    assert "missing: rank 1;" in caught.value.found


@pytest.mark.nightly
def test_tasks_that_do_not_come_are_named(start, tmp_path):
    tasks = [start(rank, 6, tmp_path, ESTIMATOR_PIPELINE_AGREEMENT_SECS="12") for rank in (0, 2)]
    for rank, task in zip((0, 2), tasks, strict=True):
        out, _ = task.communicate(timeout=60)
        assert task.returncode == 1
        assert f"rank {rank} waited 12 s for the other tasks to publish their ports, and" in out
        assert "missing: ranks 1, 3 to 5; the folder is" in out
        assert "raise ESTIMATOR_PIPELINE_AGREEMENT_SECS if they need longer" in out


def test_a_program_started_once_in_a_job_script_is_told_so(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn2\nn3\n")
    environ = {"PBS_JOBID": "5.s", "PBS_NODEFILE": str(nodes), "ESTIMATOR_PIPELINE_AGREEMENT_SECS": "0.3"}
    with pytest.raises(WaitError) as caught:
        resolve(environ, LaunchShape(workers=3), directory=str(tmp_path), hostname="n1")
    assert "missing: ranks 1 to 2" in caught.value.found
    assert caught.value.hint.startswith("pbs does not number its processes, and this may be the only process")


def test_two_processes_of_one_rank(start, tmp_path):
    tasks = [start(0, 2, tmp_path, ESTIMATOR_PIPELINE_AGREEMENT_SECS="20") for _ in range(2)]
    first = next(task for task in _ended(tasks))
    out, _ = first.communicate(timeout=60)
    assert first.returncode == 2 and "two processes have the rank 0." in out


def _ended(tasks):
    while True:
        yield from (task for task in tasks if task.poll() is not None)
        time.sleep(0.05)


def test_tasks_with_another_job_file(tmp_path):
    document = {"address": "h:1", "word": "w", "size": 3}
    (tmp_path / "1.json").write_text(json.dumps(document))

    class Answering:
        """Rank 1, which says it has seen what rank 0 told."""

        def __init__(self):
            self.seen = tmp_path / "0.seen.json"

        def __call__(self, seconds):
            if self.seen.exists():
                (tmp_path / "1.seen.json").write_text(self.seen.read_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("estimator_pipeline.utils.deadline.time.sleep", Answering())
        with pytest.raises(ClusterError) as caught:
            agree(tmp_path, rank=0, size=2, host="h", timeout=10)
    assert caught.value.what == "rank 0 is one of 2 tasks, but rank 1 of 3."


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match="the tasks cannot agree on ports in"):
        agree(tmp_path / "file" / "x", rank=0, size=2, host="h", timeout=1)
    with pytest.raises(ConfigError, match="'gs://bucket/model', which is not a mounted folder"):
        folder_for("gs://bucket/model", "1", 0)
    environ = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}
    with pytest.raises(ConfigError, match="no shared folder to agree on ports"):
        resolve(environ, LaunchShape(workers=2), hostname="x")
    # The variable comes before the model's folder.
    environ |= {"ESTIMATOR_PIPELINE_SHARED_DIR": str(tmp_path / "shared"), "ESTIMATOR_PIPELINE_AGREEMENT_SECS": "0.2"}
    with pytest.raises(WaitError, match="rank 0 waited"):
        resolve(environ, LaunchShape(workers=2), directory="gs://bucket/model", hostname="x")
    assert (tmp_path / "shared" / ".cluster" / "hydra-0" / "0.json").exists()


def test_who_is_missing_is_said_while_it_is_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(agreement, "_LINE_SECS", 0.05)
    with pytest.raises(WaitError):
        agree(tmp_path, rank=0, size=3, host="h", timeout=0.2)
    said = capsys.readouterr().err.splitlines()[0]
    assert "for the ports of ranks 1 to 2 in " in said and "not started yet, or in a different folder" in said


def test_the_port_is_let_go_when_the_others_do_not_come(tmp_path):
    with pytest.raises(WaitError):
        agree(tmp_path, rank=0, size=2, host="127.0.0.1", timeout=0.2)
    port = int(json.loads((tmp_path / "0.json").read_text())["address"].rpartition(":")[2])
    with socket.socket() as free:
        free.bind(("", port))


def test_the_name_of_a_folder_is_one_name(tmp_path):
    assert folder_for(tmp_path, "a/b:c ƒ", 2) == tmp_path / ".cluster" / "a_b_c__-2"


def test_the_host_that_others_are_told():
    assert own_address({"ESTIMATOR_PIPELINE_HOST": "ib0.n1"}, known="n1", hostname="x") == "ib0.n1"
    assert own_address({}, known="n1", hostname="x") == "n1"
    assert own_address({}, known=None, hostname="x")


@pytest.mark.parametrize("text", ["no", "0", "-1", "inf", "nan"])
def test_seconds_that_cannot_be(text):
    with pytest.raises(ConfigError, match="is not a number of seconds above 0"):
        wait_secs({"ESTIMATOR_PIPELINE_AGREEMENT_SECS": text})
