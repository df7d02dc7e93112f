"""The command line: quick and free of TensorFlow until a command is called, and errors as messages."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from estimator_pipeline.cli import main as cli
from estimator_pipeline.errors import ClusterError, TaskFailedError
from estimator_pipeline.job import load_job
from tests.support.command_line import call

_CLI = [sys.executable, "-m", "estimator_pipeline"]

_JOB = """
name: small
model: {name: linear}
input: {source: tfds, name: digits, global_batch_size: 32}
train: {max_steps: 10}
run: {model_dir: runs/small, train_distribute: multi_worker_mirrored}
cluster: {workers: 2, evaluator: true}
"""


def _call(*arguments: object, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_CLI, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environ},
        check=False,
    )


# The frame ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "not_imported"),
    [
        (["--help"], ["tensorflow", "rich", "numpy", "pydantic", "yaml", "estimator_pipeline.cli.launch"]),
        (["launch", "--help"], ["tensorflow", "rich", "numpy", "yaml", "estimator_pipeline.launch"]),
        (["launch", "--dry-run", "--", "true"], ["tensorflow", "rich", "numpy", "yaml"]),
        (["launch", "--", "true"], ["tensorflow", "rich", "numpy", "yaml"]),
    ],
)
def test_what_a_call_does_not_need_is_not_imported(arguments, not_imported):
    program = textwrap.dedent(
        f"""
        import sys
        from estimator_pipeline.cli.main import main
        sys.argv[1:] = {arguments!r}
        try:
            main()
        except SystemExit as end:
            assert end.code in (0, None), end.code
        print("IMPORTED", *sorted(set({not_imported!r}) & set(sys.modules)))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "IMPORTED"


def test_the_help_lists_every_command_in_order():
    done = call("--help")
    assert done.returncode == 0
    listed = done.stdout.partition("Commands:")[2].split("\n")[1:-1]
    assert [line.split(maxsplit=1) for line in listed] == [[entry.name, entry.help] for entry in cli.COMMANDS]


def test_the_version_names_what_is_installed():
    done = call("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("estimator-pipeline ")
    assert f"Python {sys.version.split()[0]}, tensorflow 2." in done.stdout


def test_a_wrong_command_or_option_is_a_usage_error():
    for arguments, message in [
        (["lunch"], "No such command 'lunch'."),
        (["launch", "--workrs", "2"], "No such option: --workrs"),
        (["launch", "--workers", "two", "--", "true"], "Invalid value for '--workers'"),
    ]:
        done = call(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.fixture
def command_module(monkeypatch):
    """A command list with one entry, whose module the test fills."""
    module = types.ModuleType("estimator_pipeline.cli.sample")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "COMMANDS", (cli.CommandEntry("sample", "sample", "A sample."),))
    return module


@pytest.mark.parametrize(
    ("error", "code"),
    [(ClusterError("wrong.", found="this", hint="that."), 2), (TaskFailedError("broken.", hint="look."), 1)],
)
def test_an_error_on_purpose_is_a_message_and_an_exit_code(command_module, error, code):
    def command() -> None:
        raise error

    command_module.command = command
    done = CliRunner().invoke(cli.app, ["sample"])
    assert done.exit_code == code
    assert done.stderr == f"error: {error}\n"
    assert done.stdout == ""


def test_a_defect_keeps_its_traceback(command_module):
    def command() -> None:
        raise KeyError("a defect")

    command_module.command = command
    done = CliRunner().invoke(cli.app, ["sample"])
    assert isinstance(done.exception, KeyError)


def test_a_command_may_take_the_arguments_of_a_program_untouched(command_module):
    got = []

    def command(program: list[str]) -> None:
        got.append(program)

    command_module.command = command
    command_module.SETTINGS = {"context_settings": {"allow_interspersed_args": False}}
    untouched = ["script.py", "--help", "-x", "--", "--flag=1", "", "two words"]
    assert CliRunner().invoke(cli.app, ["sample", *untouched]).exit_code == 0
    assert got == [untouched]


# launch -------------------------------------------------------------------------------------------


def test_the_arguments_of_a_launched_command_are_untouched():
    arguments = ["--help", "--json", "--", "-x", "", "two words"]
    done = call("launch", "--dry-run", "--json", "--workers", 1, "--", "echo", *arguments)
    assert json.loads(done.stdout)["tasks"][0]["command"] == ["echo", *arguments]


def test_a_dry_run_starts_nothing_and_makes_no_folder(tmp_path):
    done = call("launch", "--dry-run", "--log-dir", tmp_path / "logs", "--", "touch", tmp_path / "started")
    assert done.returncode == 0
    assert "worker:1\n  command  touch" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_job_file_shows_what_each_task_runs(tmp_path):
    (tmp_path / "job.yaml").write_text(_JOB)
    done = call(
        *("launch", "job.yaml", "--dry-run", "--json", "--set", "run.train_distribute=parameter_server"),
        *("--workers", 1, "--chief", "--ps", 1, "--no-evaluator"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [task["task"] for task in plan["tasks"]] == ["chief:0", "worker:0", "ps:0"]
    folder = tmp_path / "runs" / "small" / "logs" / plan["run_id"]
    assert plan["log_dir"] == str(folder) and not folder.exists()
    resolved = str(folder / "job.yaml")
    for task in plan["tasks"]:
        assert task["command"] == [sys.executable, "-m", "estimator_pipeline", "train", resolved]
    settings = ["run.train_distribute=parameter_server", "cluster={workers: 1, ps: 1, chief: true, evaluator: false}"]
    (tmp_path / "resolved.yaml").write_text(plan["files"].pop(resolved))
    assert load_job(tmp_path / "resolved.yaml") == load_job(tmp_path / "job.yaml", overrides=settings)
    assert not plan["files"]
    ports = [address for jobs in plan["tasks"][0]["tf_config"]["cluster"].values() for address in jobs]
    assert sorted(ports) == sorted(f"localhost:{port}" for port in plan["ports"])


def test_a_dry_run_prints_the_resolved_job(tmp_path):
    (tmp_path / "job.yaml").write_text(_JOB)
    done = call("launch", "job.yaml", "--dry-run", "--set", "train.max_steps=30", cwd=tmp_path)
    before, _, after = done.stdout.rpartition(f"{tmp_path}/runs/small/logs/")
    assert after.split("\n", 1)[0].endswith("/job.yaml") and "\n  train:\n    max_steps: 30\n" in after
    assert "--set" not in before


def test_a_job_file_in_the_log_folder_is_kept(tmp_path):
    """It may be the user's, or that of an earlier launch with the same --log-dir."""
    (tmp_path / "job.yaml").write_text(_JOB)
    for folder in (".", "new"):
        plan = json.loads(call("launch", "job.yaml", "--dry-run", "--json", "--log-dir", folder, cwd=tmp_path).stdout)
        name = f"job-{plan['run_id']}.yaml" if folder == "." else "job.yaml"
        assert list(plan["files"]) == [str(tmp_path / folder / name)] == [plan["tasks"][0]["command"][-1]]


def test_the_cluster_of_the_job_file_is_taken_where_no_option_says_otherwise(tmp_path):
    (tmp_path / "job.yaml").write_text(_JOB)
    plan = json.loads(call("launch", "job.yaml", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert [task["task"] for task in plan["tasks"]] == ["worker:0", "worker:1", "evaluator:0"]


def test_the_logs_of_a_job_on_remote_storage_stay_on_this_machine(tmp_path):
    (tmp_path / "job.yaml").write_text(_JOB)
    done = call("launch", "job.yaml", "--dry-run", "--json", "--set", "run.model_dir=gs://b/m", cwd=tmp_path)
    assert "gs:" not in json.loads(done.stdout)["log_dir"]


def test_a_document_of_a_real_cluster_is_rehearsed_on_this_machine(tmp_path):
    document = {
        "cluster": {"master": ["m.example:2222"], "worker": ["w.example:2222"], "ps": ["p.example:2222"]},
        "task": {"type": "master", "index": 0},
    }
    (tmp_path / "tf_config.json").write_text(json.dumps(document))
    done = call("launch", "--tf-config", tmp_path / "tf_config.json", "--dry-run", "--json", "--ps", 2, "--", "true")
    plan = json.loads(done.stdout)
    first = plan["tasks"][0]["tf_config"]
    assert {job: len(addresses) for job, addresses in first["cluster"].items()} == {
        "master": 1,
        "worker": 1,
        "ps": 2,  # the option comes before the document
    }
    assert first["task"]["type"] == "master"
    assert "example" not in json.dumps(first)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "launch needs a job file or a command"),
        (["--"], "launch needs a job file or a command"),
        (["job.yaml", "--", "true"], "the job file job.yaml and a command"),
        (["--set", "a=1", "--", "true"], "--set a=1 requires a job file"),
        (["--", "no-such-program"], "The command 'no-such-program' cannot be run."),
        (["--tf-config", "none.json", "--", "true"], "--tf-config none.json cannot be read"),
        (["--tf-config", "bad.json", "--", "true"], "bad.json"),
        (["--workers", "0", "--", "true"], "workers is 0"),
        (["--workers", "-3", "--", "true"], "workers is -3"),
        (["--dialect", "latin", "--", "true"], "latin"),
        (["none.yaml"], "none.yaml"),
        (["bad.yaml"], "bad.yaml"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(tmp_path, arguments, message):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.yaml").write_text("model: [")
    done = call("launch", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        (["model.params.input_shape=[28, 28, 1]"], ["[28, 28, 1] of the model 'linear'", "shape [8, 8, 1]", "leave"]),
        (
            ["input={source: arrays, train: no.npz, eval: no.npz, global_batch_size: 8}", "model.params.colour=red"],
            ["The file of the training data is missing (no.npz)", "has no parameter colour", "check the path"],
        ),
    ],
)
def test_a_launch_without_a_hope_starts_nothing(tmp_path, changes, messages):
    (tmp_path / "job.yaml").write_text(_JOB)
    done = call("launch", "job.yaml", *(f"--set={change}" for change in changes), cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: job.yaml") and "nothing was started" in done.stderr
    assert "Traceback" not in done.stderr
    assert all(message in done.stderr for message in messages), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


_PROGRAM = """
import json, os, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
with open(os.environ["ESTIMATOR_PIPELINE_PROGRESS"], "a") as progress:
    print(json.dumps({"event": "step", "step": 200, "loss": 0.25, "steps_per_sec": 40.0}), file=progress)
    print(json.dumps({"event": "evaluation", "step": 200, "metrics": {"accuracy": 0.97}}), file=progress)
    print(json.dumps({"event": "result", "global_step": 200, "metrics": {"accuracy": 0.97},
                      "exports": ["/m/export/1"], "steps": 100 + task["index"]}), file=progress)
print("[bold]some output[/bold]")
sys.exit(int(sys.argv[1]) if task["index"] == 1 else 0)
"""


@pytest.fixture
def program(tmp_path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM)
    return path


def test_a_launch_in_plain_lines(tmp_path, program):
    done = _call("launch", "--log-dir", tmp_path / "logs", "--", sys.executable, program, 0)
    assert done.returncode == 0, done.stderr
    assert "worker:1 step 200, 40 steps/s, loss 0.25" in done.stdout
    assert "worker:0 evaluated step 200: accuracy 0.97" in done.stdout
    assert "\nresult at step 200: accuracy 0.97\n" in done.stdout
    assert "\nworker:0 trained 100 steps; worker:1 trained 101 steps\n" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_a_failed_launch_shows_the_log_on_standard_error(tmp_path, program):
    done = _call("launch", "--log-dir", tmp_path / "logs", "--", sys.executable, program, 7)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines() == [
        f"worker:1 failed with exit code 7. The last lines of {tmp_path / 'logs' / 'worker-1.log'}:",
        "  worker:1 | [bold]some output[/bold]",
    ]


@pytest.mark.parametrize("code", [0, 7])
def test_json_is_all_that_is_on_standard_output(tmp_path, program, code):
    done = _call("launch", "--json", "--log-dir", tmp_path / "logs", "--", sys.executable, program, code)
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == (1 if code else 0)
    assert document["tasks"][1]["exit_code"] == code
    assert document["tasks"][0]["log"] == str(tmp_path / "logs" / "worker-0.log")
    if not code:  # otherwise worker:0 may have been ended before it told anything
        assert document["result"] == {
            "global_step": 200,
            "metrics": {"accuracy": 0.97},
            "exports": ["/m/export/1"],
            "steps": {"worker:0": 100, "worker:1": 101},
            "source": "result",
        }
    assert (document["failure"] or {}).get("task") == ("worker:1" if code else None)
    assert "worker:1 step 200" in done.stderr


def test_a_launch_on_a_terminal_draws_one_table_and_puts_the_cursor_back(tmp_path, program):
    ours, theirs = pty.openpty()
    launcher = subprocess.Popen(
        [*_CLI, "launch", "--log-dir", str(tmp_path / "logs"), "--", sys.executable, str(program), "0"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            output += os.read(ours, 65536)
        except OSError:  # what Linux says when the other end of a terminal is closed
            break
    os.close(ours)
    text = output.decode()
    assert launcher.wait(timeout=60) == 0, text
    assert "last evaluation" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # cursor hidden, and shown again
    end = text.rpartition("\x1b[?25h")[2]
    assert "result at step 200: accuracy 0.97" in end
