"""Legacy programs in clusters, unchanged under `exec`: what tf.estimator does wrong there, and the patches mend.

Each of these fails on 2.15 and 2.21 alike with ESTIMATOR_PIPELINE_PATCHES=none in the environment.
"""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PEER_SECS = {"ESTIMATOR_PIPELINE_PEER_SECS": "6"}


@pytest.fixture
def tasks(programs, tmp_path):
    """`tasks(jobs, *arguments)`: legacy_cluster.py as each task of a cluster."""

    def start(jobs, *arguments, **options):
        command = [*EXEC, programs / "legacy_cluster.py", tmp_path / "model", *arguments]
        return Tasks(jobs, command, tmp_path, **options)

    return start


def results(running):
    """What train_and_evaluate returned on each task, as the program printed it."""
    return {
        name: [json.loads(text) for text in re.findall(r"^result (.+)$", running.log(name), re.M)]
        for name in running.processes
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("jobs", "strategy", "inside"),
    [
        ({"worker": 2, "evaluator": 1}, "mwm", False),
        ({"chief": 1, "worker": 1, "evaluator": 1}, "mwm", True),
        ({"worker": 2}, "mwm", False),
        ({"chief": 1, "worker": 1, "ps": 2, "evaluator": 1}, "classic", False),
        ({"master": 1, "worker": 1, "ps": 1}, "classic", False),
        ({"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}, "ps", False),
    ],
    ids=["mwm", "mwm-evaluator-inside", "mwm-no-evaluator", "ps-no-strategy", "master", "ps-strategy"],
)
def test_every_task_ends_with_the_final_evaluation(jobs, strategy, inside, tasks):
    """The evaluator that makes the strategy as well, parameter servers that never ended, a result that was None."""
    with tasks(jobs, "--strategy", strategy, evaluator_inside=inside) as running:
        ended = running.wait()
        assert ended == dict.fromkeys(running.processes, 0), running.tails()
        found = results(running)
        (first,), *_ = found.values()
        # Asynchronous workers may each finish a step that they have begun.
        assert first["global_step"] == 40 or (strategy != "mwm" and 40 <= first["global_step"] <= 44)
        assert first["mae"] < 0.2 and first["loss"] > 0
        assert found == {name: [first] for name in running.processes}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["same", "mirrored"])
@pytest.mark.parametrize("evaluator", [0, 1])
def test_an_evaluation_with_a_strategy(tasks, kind, evaluator):
    """RunConfig(eval_distribute=): a worker's evaluation looked for the devices of the cluster, and a MirroredStrategy
    made on a worker ended the process with a segmentation fault."""
    jobs = {"worker": 2, "evaluator": 1} if evaluator else {"worker": 2}
    with tasks(jobs, "--eval_strategy", kind) as running:
        ended = running.wait()
        assert ended == dict.fromkeys(running.processes, 0), running.tails()
        found = results(running)
        (first,), *_ = found.values()
        assert first["global_step"] == 40 and first["mae"] < 0.2 and first["loss"] > 0
        assert found == {name: [first] for name in running.processes}


def told_of_saves(running):
    return {name: re.findall(r"^(before|after) save (\d+)$", running.log(name), re.M) for name in running.processes}


@pytest.mark.nightly
@pytest.mark.parametrize("patched", [True, False])
def test_a_saving_listener_on_the_chief_stops_every_worker(tasks, patched):
    """Estimator refuses listeners under MultiWorkerMirroredStrategy; the end that one asks for is everybody's."""
    env = {"ESTIMATOR_PIPELINE_PATCHES": "all" if patched else "-train-and-evaluate"}
    with tasks({"chief": 1, "worker": 2}, "--listener_stops_at", "20", env=env) as running:
        ended = running.wait()
        assert ended == dict.fromkeys(running.processes, 0), running.tails()
        saves = [(when, step) for step in ("0", "20") for when in ("before", "after")]
        assert told_of_saves(running) == {"chief0": saves, "worker0": [], "worker1": []}
        if patched:
            assert {name: one["global_step"] for name, (one,) in results(running).items()} == dict.fromkeys(ended, 20)


@pytest.mark.nightly
def test_a_saving_listener_that_fails_ends_every_worker(tasks):
    options = ["--listener_stops_at", "100", "--case", "listener fails:chief0"]
    with tasks({"chief": 1, "worker": 1}, *options, env=PEER_SECS) as running:
        ended = running.wait(timeout=100)
        assert all(ended.values()), running.tails()
        assert "ArithmeticError: planted failure" in running.log("chief0")


@pytest.mark.nightly
def test_synchronous_training_with_parameter_servers_ends_with_its_last_step(tasks):
    """The chief waited two minutes for the thread that hands out tokens, and all others for the chief's result."""
    jobs = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
    with tasks(jobs, "--strategy", "classic", "--sync", "3") as running:
        ended = running.wait()
        assert ended == dict.fromkeys(running.processes, 0), running.tails()
        assert not [name for name in running.processes if "threads still running" in running.log(name)]
        found = results(running)
        (first,), *_ = found.values()
        assert first["global_step"] == 40 and first["mae"] < 0.2
        assert found == {name: [first] for name in running.processes}


def test_a_worker_that_is_killed_ends_the_others(tasks):
    """Synchronous training: its peer waited for ever at "Running local_init_op"."""
    options = ["--case", "kill:worker1", "--max_steps", "100000"]
    with tasks({"worker": 2, "evaluator": 1}, *options, env=PEER_SECS) as running:
        ended = running.wait(timeout=100)
        assert ended == {"worker0": 1, "worker1": -signal.SIGKILL, "evaluator0": 1}, running.tails()
        gone = f"worker:1 at {running.cluster['worker'][1]} is gone"
        assert re.search(f"{re.escape(gone)}.*\n  hint: see the log of worker:1", running.log("worker0"))
        assert "training failed on worker:0" in running.log("evaluator0")


@pytest.mark.nightly
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_worker_that_stands_still_ends_the_other(tasks, stopped):
    """Its port answers, for the kernel takes connections for a stopped process: the other waited for ever."""
    with tasks({"worker": 2}, "--max_steps", "1000000", env=PEER_SECS) as running:
        running.wait_for(lambda: "ten steps" in running.log("worker1"), "training to begin")
        running.processes[f"worker{stopped}"].send_signal(signal.SIGSTOP)
        other = f"worker{1 - stopped}"
        assert running.wait(timeout=100, names=[other])[other] == 1, running.tails()
        address = running.cluster["worker"][stopped]
        assert re.search(f"worker:{stopped} at {address} (hangs|is gone)", running.log(other)), running.tails()
        # It ends by itself once it goes on, for the other is gone.
        running.processes[f"worker{stopped}"].send_signal(signal.SIGCONT)
        assert running.wait(timeout=100)[f"worker{stopped}"] == 1, running.tails()


@pytest.mark.nightly
def test_a_parameter_server_that_stands_still_ends_the_others(tasks):
    options = ["--strategy", "classic", "--max_steps", "1000000"]
    with tasks({"chief": 1, "worker": 1, "ps": 1}, *options, env=PEER_SECS) as running:
        running.wait_for(lambda: "ten steps" in running.log("worker0"), "training to begin")
        running.processes["ps0"].send_signal(signal.SIGSTOP)
        ended = running.wait(timeout=100, names=["chief0", "worker0"])
        assert (ended["chief0"], ended["worker0"]) == (1, 1), running.tails()
        assert any("ps:0 at" in line and "hangs: " in line for line in running.tails().splitlines())


@pytest.mark.nightly
def test_a_parameter_server_that_is_killed_ends_the_others(tasks):
    options = ["--strategy", "classic", "--max_steps", "1000000"]
    with tasks({"chief": 1, "worker": 1, "ps": 1}, *options, env=PEER_SECS) as running:
        running.wait_for(lambda: "ten steps" in running.log("worker0"), "training to begin")
        running.processes["ps0"].kill()
        ended = running.wait(timeout=100)
        assert ended == {"chief0": 1, "worker0": 1, "ps0": -signal.SIGKILL}, running.tails()
        # Each tries the ports at its own times: the second to notice may find the first one gone as well.
        gone = {name: re.findall(r"(\S+) at \S+ is gone", running.log(name)) for name in ("chief0", "worker0")}
        assert all(set(lost) <= {"ps:0", "chief:0", "worker:0"} for lost in gone.values()), gone
        assert any("ps:0" in lost for lost in gone.values()) and all(gone.values()), gone


@pytest.mark.nightly
def test_sigterm_ends_a_worker(tasks):
    """TensorFlow's coordination service noted the signal and trained on; now all stop with the same checkpoint."""
    with tasks({"worker": 2}, "--max_steps", "1000000", env=PEER_SECS) as running:
        running.wait_for(lambda: all("ten steps" in running.log(name) for name in running.processes), "training")
        running.processes["worker1"].terminate()
        ended = running.wait(timeout=100)
        assert ended == {"worker0": 75, "worker1": 75}, running.tails()
        stops = [re.findall(r"training is saved after step (\d+)", running.log(name)) for name in running.processes]
        assert stops[0] == stops[1] and len(stops[0]) == 1, running.tails()


@pytest.mark.nightly
@pytest.mark.parametrize("patched", [True, False])
def test_sigterm_where_train_and_evaluate_is_tensorflows_own(tasks, patched):
    """Nobody writes a checkpoint first, but the signal ends the process; without the patch it trains on."""
    patches = "-train-and-evaluate" if patched else "-train-and-evaluate,-sigterm"
    env = {**PEER_SECS, "ESTIMATOR_PIPELINE_PATCHES": patches}
    with tasks({"worker": 2}, "--max_steps", "1000000", "--step_secs", "0.02", env=env) as running:

        def losses(name):
            return running.log(name).count("INFO:tensorflow:loss = ")

        running.wait_for(lambda: all("ten steps" in running.log(name) for name in running.processes), "training")
        running.processes["worker1"].terminate()
        if patched:
            ended = running.wait(timeout=100)
            assert ended["worker1"] == -signal.SIGTERM and ended["worker0"], running.tails()
        else:
            before = losses("worker1")
            running.wait_for(lambda: losses("worker1") > before + 5, "fifty steps after the signal")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("jobs", "options"),
    [
        ({"worker": 2, "evaluator": 1}, ["--stop_every_steps", "10"]),
        ({"worker": 2, "evaluator": 1}, ["--stop_every_secs", "0.5"]),
        ({"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}, ["--stop_every_secs", "0.5", "--strategy", "classic"]),
    ],
    ids=["mwm-steps", "mwm-seconds", "parameter-server"],
)
def test_early_stopping_stops_every_task(jobs, options, tasks):
    """At the same step where training is synchronous; the evaluator ends too, with the final checkpoint evaluated."""
    with tasks(jobs, *options, "--max_steps", "1000000", "--step_secs", "0.02") as running:
        ended = running.wait(timeout=150)
        assert ended == dict.fromkeys(running.processes, 0), running.tails()
        steps = {
            name: re.findall(r"Early stopping at global step (\d+)", running.log(name))
            for name in running.processes
            if name not in ("ps0", "evaluator0")
        }
        assert all(len(found) == 1 for found in steps.values()), steps
        found = results(running)
        (first,), *_ = found.values()
        assert found == {name: [first] for name in running.processes}
        if "ps" not in jobs:
            assert {int(step) for (step,) in steps.values()} == {int(first["global_step"])}


@pytest.mark.nightly
def test_mirrored_over_logical_cpus_trains_and_evaluates(run_python, programs, tmp_path):
    """Made in eager mode it chose ring collectives, which wait for each other for ever in an Estimator's session."""
    command = ["-m", "estimator_pipeline", "exec", programs / "legacy_cluster.py", tmp_path / "model"]
    done = run_python([*command, "--strategy", "mirrored", "--case", "train alone"], timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"evaluated .*'global_step': (np.int64\()?40\b", done.stdout)
