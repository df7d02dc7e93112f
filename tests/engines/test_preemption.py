"""Being asked to end: signals, the step that several tasks agree upon, and training that goes on bit-equal."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import estimator_pipeline as ep
import model_fns
from estimator_pipeline import inputs
from estimator_pipeline.cluster import parse_tf_config
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous, raise_if_over
from estimator_pipeline.engines.core.stopping import synchronized_stop as stopping
from estimator_pipeline.engines.core.stopping.preemption import (
    PREEMPTION_SECS,
    Preemption,
    Reactions,
    seconds_of,
)
from estimator_pipeline.engines.core.stopping.synchronized_stop import (
    RendezvousChannel,
    StopChannel,
    SynchronizedStop,
)
from estimator_pipeline.errors import ConfigError, PreemptedError, WaitError
from estimator_pipeline.progress.preemption_signals import signals_of
from estimator_pipeline.progress.progress_file import (
    HEARTBEAT_FOLDER_VARIABLE,
    HEARTBEAT_VARIABLE,
    PREEMPTED_FILE_VARIABLE,
    PROGRESS_VARIABLE,
)
from estimator_pipeline.utils.process_state import STATE
from tests.support.processes import ROOT, environment, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
RNG = np.random.default_rng(3)
FEATURES = RNG.random((60, 8, 8, 1), dtype=np.float32)
LABELS = (FEATURES.mean(axis=(1, 2, 3)) * 10).astype(np.int64)


# -- what is asked for ------------------------------------------------------------------------------------------------


def test_signals():
    assert signals_of(None, {}) == (signal.SIGTERM,)
    assert signals_of(None, {"ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS": "SIGTERM, usr1,"}) == (
        signal.SIGTERM,
        signal.SIGUSR1,
    )
    assert signals_of([], {"ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS": "SIGUSR1"}) == ()
    with pytest.raises(ConfigError, match="ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS names the signal 'SIGINT'") as error:
        signals_of(None, {"ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS": "SIGINT"})
    assert "allowed: SIGTERM, SIGUSR1" in str(error.value)


@pytest.mark.parametrize("given", ["soon", "0", "-1", "inf", "nan"])
def test_seconds(given):
    assert seconds_of({}) == PREEMPTION_SECS
    assert seconds_of({"ESTIMATOR_PIPELINE_PREEMPTION_SECS": "90"}) == 90
    with pytest.raises(ConfigError, match="is not a number of seconds above 0"):
        seconds_of({"ESTIMATOR_PIPELINE_PREEMPTION_SECS": given})


# -- signals ----------------------------------------------------------------------------------------------------------


def until(condition, *, timeout=20.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_asks_once_and_is_left_as_it_was():
    heard = []
    preemption = Preemption(
        "worker:0", signals=[signal.SIGTERM, signal.SIGUSR1], reactions=Reactions(asked=heard.append)
    )
    with preemption.listening():
        assert not preemption.asked
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: heard)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.1)
    assert heard == ["SIGUSR1"] and preemption.by == "SIGUSR1"
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
    assert not [thread for thread in threading.enumerate() if thread.name == "estimator_pipeline-preemption"]


def test_a_task_that_has_failed_is_not_asked_any_more():
    """Whoever has started the others ends them all when one has failed, which stays a failure."""
    heard = []
    preemption = Preemption("worker:1", signals=[signal.SIGTERM], reactions=Reactions(asked=heard.append))
    with preemption.listening():
        preemption.refuse()
        os.kill(os.getpid(), signal.SIGTERM)
        assert not preemption.asked, "it waits for the thread that listens"
    assert not heard


def test_it_stops_after_the_step_that_the_signal_came_in_however_late_threads_are(monkeypatch):
    ask = Preemption.ask

    def late(self, by):
        time.sleep(0.3)
        ask(self, by)

    monkeypatch.setattr(Preemption, "ask", late)
    heard = []
    preemption = Preemption("worker:0", signals=[signal.SIGTERM], reactions=Reactions(asked=heard.append))
    alone = stopping.SingleProcessStop(preemption)
    with preemption.listening():
        assert not alone.after_step()
        os.kill(os.getpid(), signal.SIGTERM)
        assert alone.after_step() and heard == ["SIGTERM"]


def test_a_signal_is_heard_where_the_program_has_a_wakeup_descriptor_of_its_own():
    """As asyncio has: the listening thread is not woken."""
    heard = []
    preemption = Preemption("worker:0", signals=[signal.SIGTERM], reactions=Reactions(asked=heard.append))
    with preemption.listening():
        signal.set_wakeup_fd(-1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.SingleProcessStop(preemption).after_step() and heard == ["SIGTERM"]
        assert preemption.asked and preemption.by == "SIGTERM"


def test_a_command_that_was_asked_ends_with_its_own_code_whoever_asks_again(monkeypatch):
    """Slurm ends a step by SIGTERM, and the script of the job passes on its early signal right after."""
    monkeypatch.setattr(STATE, "is_command", True)
    preemption = Preemption("worker:0", signals=[signal.SIGTERM, signal.SIGUSR1])
    try:
        with preemption.listening():
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: preemption.asked)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_a_handler_of_the_program_is_left_to_it():
    heard = []
    signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        preemption = Preemption("worker:0", signals=[signal.SIGUSR2])
        with preemption.listening():
            os.kill(os.getpid(), signal.SIGUSR2)
            until(lambda: heard)
            time.sleep(0.1)
        assert heard == [signal.SIGUSR2] and not preemption.asked
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_where_there_is_nothing_to_save_the_task_ends_at_once():
    preemption = Preemption("evaluator:0", signals=[signal.SIGTERM])
    with preemption.listening():
        with (
            pytest.raises(PreemptedError, match=r"evaluator:0 was asked to stop \(SIGTERM\): all is well"),
            preemption.interruptible("all is well"),
        ):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
        until(lambda: preemption.asked)
        with pytest.raises(PreemptedError), preemption.interruptible("again"):
            pytest.fail("it had been asked before")


def test_what_was_made_of_it_on_its_way_out_is_still_the_wish_to_end():
    """As TensorFlow's C++ does: a list's item that could not be made is a SystemError, whatever had been raised."""
    preemption = Preemption("evaluator:0", signals=[signal.SIGTERM])
    with preemption.listening():
        with pytest.raises(PreemptedError, match="all is well") as error, preemption.interruptible("all is well"):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(20)
            except PreemptedError:
                raise SystemError("bad argument to internal function") from None
        assert isinstance(error.value.__cause__, SystemError)


def test_an_error_of_the_block_itself_stays_what_it_is():
    preemption = Preemption("evaluator:0", signals=[signal.SIGTERM])
    with preemption.listening(), pytest.raises(SystemError), preemption.interruptible("all is well"):
        raise SystemError("nobody asked")


def test_a_peers_word_reaches_a_main_thread_that_sleeps():
    preemption = Preemption("worker:1", signals=[signal.SIGTERM])
    with preemption.listening():
        threading.Timer(0.2, preemption.ask, ["worker:0"]).start()
        with pytest.raises(PreemptedError) as error, preemption.interruptible("it waited"):
            time.sleep(20)
    assert (error.value.caused_by, error.value.exit_code) == ("worker:0", 75)


def test_a_forked_child_is_no_task():
    """multiprocessing ends its children with SIGTERM: they die of it, and the parent does not hear of it."""
    preemption = Preemption("worker:0", signals=[signal.SIGTERM])
    with preemption.listening():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, b"here")  # Python has seen to the fork: until then the signal is the parent's
            time.sleep(20)
            os._exit(0)
        os.read(reader, 4)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
        time.sleep(0.2)
        assert not preemption.asked


def test_a_forked_child_that_lives_on_does_not_hold_the_end():
    preemption = Preemption("worker:0", signals=[signal.SIGTERM])
    with preemption.listening():
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "it outlived the block"


STUCK = """
import ctypes, signal, sys, threading
from estimator_pipeline.engines.core.stopping import preemption as preemption_module
from estimator_pipeline.engines.core.stopping.preemption import Preemption, Reactions

signal.signal(signal.SIGINT, signal.default_int_handler)
seconds, preemption_module._INTERRUPT_SECS, joins = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
preemption_module._START_END_SECS = 0.2
preemption = Preemption(
    "worker:1",
    signals=[signal.SIGTERM],
    seconds=seconds,
    reactions=Reactions(last_word=lambda error: print("last word")),
)
with preemption.listening():
    if joins:
        preemption.joins(lambda: joins == ["over"])
    mutex = ctypes.create_string_buffer(64)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    threading.Timer(0.2, lambda: print("ready", flush=True)).start()
    libc.pthread_mutex_lock(mutex)
"""


def stuck(*arguments, signals):
    """How a process ends whose main thread is in a call that does not return: exit code, output and errors."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, *arguments], env=environment(), cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "ready\n"
            for number in signals:
                process.send_signal(number)
                time.sleep(0.1)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("joins", [[], ["over"]])
def test_a_main_thread_that_never_comes_back_is_ended_in_time(joins):
    """A step that waits for a dead peer, inside TensorFlow: no handler of Python's runs there."""
    code, out, err = stuck("1.0", "500", *joins, signals=[signal.SIGTERM])
    assert (code, out) == (75, "last word\n")
    assert "worker:1 was asked to stop (SIGTERM): it did not stop within 1 s" in err


def test_one_that_waits_for_the_others_to_join_has_nothing_to_save():
    code, out, err = stuck("500", "500", "joins", signals=[signal.SIGTERM])
    assert (code, out) == (75, "last word\n")
    assert "worker:1 was asked to stop (SIGTERM): it waited for the other tasks, and had not started to train" in err


@pytest.mark.parametrize(("seconds", "times"), [("0.3", 1), ("500", 2)])
def test_ctrl_c_ends_one_that_never_comes_back(seconds, times):
    """After some seconds, or when it comes again."""
    code, out, err = stuck("500", seconds, signals=[signal.SIGINT] * times)
    assert (code, out) == (130, "")
    assert "worker:1 was interrupted" in err and "Traceback" not in err


GONE = """
import os, pathlib, threading, time
from estimator_pipeline.engines.core.stopping import preemption as preemption_module
from estimator_pipeline.engines.core.stopping.preemption import Preemption, Reactions
from estimator_pipeline.progress import progress_file as progress

preemption_module._LAST_WORD_SECS = 0.5

progress_file = pathlib.Path(os.environ[progress.PROGRESS_VARIABLE])
asks = threading.Event()
def gone(*given, **named):
    asks.set()
    time.sleep(600)

pathlib.Path.mkdir = pathlib.Path.touch = gone
assert progress.start_heartbeat(os.environ)
asks.wait(600)
preemption = Preemption("worker:1", signals=[], reactions=Reactions(last_word=lambda error: progress_file.touch()))
preemption.ask("worker:0")
preemption.give_up("its files do not answer")
"""


def test_where_the_file_system_no_longer_answers_the_task_ends_all_the_same(tmp_path):
    """The thread of the heartbeats waits inside the file system, and holds the lock that their end takes."""
    variables = {
        PROGRESS_VARIABLE: str(tmp_path / "p.progress.jsonl"),
        HEARTBEAT_VARIABLE: "1",
        HEARTBEAT_FOLDER_VARIABLE: str(tmp_path / "hearts"),
        PREEMPTED_FILE_VARIABLE: str(tmp_path / "preempted"),
    }
    done = subprocess.run(
        [sys.executable, "-c", GONE], env=environment() | variables, cwd=ROOT, text=True, capture_output=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 75, done.stderr
    assert "worker:1 was asked to stop (worker:0): its files do not answer" in done.stderr


# -- the agreement ----------------------------------------------------------------------------------------------------


class Letters:
    """What has been said in one training, for all its tasks."""

    def __init__(self):
        self.said, self.changed = {}, threading.Condition()


class MemoryChannel(StopChannel):
    """Messages between threads, each late by a moment."""

    def __init__(self, letters, rng):
        self.letters, self.rng = letters, rng

    def post(self, name, value):
        time.sleep(self.rng.random() * 0.004)
        with self.letters.changed:
            self.letters.said.setdefault(name, value)
            self.letters.changed.notify_all()

    def wait(self, name, seconds):
        with self.letters.changed:
            self.letters.changed.wait_for(lambda: name in self.letters.said, timeout=seconds)
            found = self.letters.said.get(name)
        time.sleep(self.rng.random() * 0.004)
        return None if found == "over" else found

    def wake(self, name):
        self.post(name, "over")


class Steps:
    """Synchronous training: a step is finished when all have begun it, and the last `ahead` steps of all may be
    queued, as on a GPU."""

    def __init__(self, tasks, *, ahead=0):
        self.begun, self.changed, self.ahead = dict.fromkeys(tasks, 0), threading.Condition(), ahead

    def run(self, task):
        with self.changed:
            self.begun[task] += 1
            wanted = self.begun[task] - self.ahead
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: min(self.begun.values()) >= wanted, timeout=20):
                raise TimeoutError(f"{task} waits in step {self.begun[task]}: {self.begun}")


class Task(threading.Thread):
    """One training task; `asks_at`: the step in which it is asked to end."""

    def __init__(self, name, steps, letters, *, addresses, rng, max_steps, asks_at=None, calls=(1,)):
        super().__init__(name=name, daemon=True)
        self.preemption = Preemption(
            name, signals=[], seconds=600, reactions=Reactions(asked=lambda by: self.stopping.ask())
        )
        self.stopping = SynchronizedStop(
            self.preemption,
            task=name,
            chief="worker:0",
            addresses=addresses,
            channel=MemoryChannel(letters, rng),
            synchronous=True,
        )
        self.steps, self.rng, self.max_steps, self.asks_at = steps, rng, max_steps, asks_at
        self.calls, self.finished, self.error = itertools.cycle(calls), 0, None

    def run(self):
        try:
            with self.preemption.listening():
                self.stopping.begin()
                stop, coming = False, 1
                while not stop and self.finished < self.max_steps:
                    for _ in range(made := coming):
                        if self.finished + 1 == self.asks_at:
                            threading.Thread(target=self.preemption.ask, args=["SIGTERM"]).start()
                        self.steps.run(self.name)
                        time.sleep(self.rng.random() * 0.003)
                        self.finished += 1
                    coming = min(next(self.calls), self.max_steps - self.finished) or 1
                    stop = self.stopping.after_step(made, coming)
                self.stopping.close()
        except Exception as error:
            self.error = error


@pytest.fixture
def patience(monkeypatch):
    """Giving up ends the process: here the tests' own, where the machine stood still for some seconds."""
    monkeypatch.setattr(stopping, "ANSWER_SECS", 200.0)


def run_all(tasks):
    """Runs them at the same time, to their ends, which are without an error."""
    for task in tasks:
        task.start()
    for task in tasks:
        task.join(timeout=60)
    assert not any(task.is_alive() for task in tasks), {task.name: task.finished for task in tasks}
    assert [task.error for task in tasks] == [None] * len(tasks)


@pytest.fixture
def peer():
    """An address that answers: all tasks are there."""
    with socket.create_server(("localhost", 0)) as server:
        yield f"localhost:{server.getsockname()[1]}"


@pytest.mark.parametrize("calls", [(1,), (7, 1, 4)], ids=["single", "several"])
@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(4, 12))])
def test_all_stop_at_the_same_step(peer, patience, seed, ahead, calls):
    """Whoever is asked, one or several, early or at the last step: nobody waits for ever, and all made as many. Calls
    of several steps are not left in their middle."""
    rng = random.Random(seed)
    names = [f"worker:{i}" for i in range(rng.choice([2, 3, 5]))]
    max_steps = rng.choice([12, 60])
    asked = rng.sample(names, rng.randint(1, len(names)))
    steps, letters = Steps(names, ahead=ahead), Letters()
    first = rng.randint(1, max_steps)
    tasks = [
        Task(
            name, steps, letters, addresses=dict.fromkeys(names, peer), rng=random.Random(seed), max_steps=max_steps,
            asks_at=min(max_steps, first + rng.randint(0, 2)) if name in asked else None, calls=calls,
        )
        for name in names
    ]  # fmt: skip
    run_all(tasks)
    assert len({task.finished for task in tasks}) == 1
    # Seen at once, save where training had come to its end by itself.
    assert first <= tasks[0].finished <= max_steps


def test_a_request_that_comes_after_a_long_time(peer, patience, monkeypatch):
    """A task that has waited for one as long as a single wait lasts waits again."""
    monkeypatch.setattr(stopping, "_REQUEST_SECS", 0.001)
    names = ["worker:0", "worker:1"]
    steps, letters = Steps(names), Letters()
    tasks = [
        Task(
            name, steps, letters, addresses=dict.fromkeys(names, peer), rng=random.Random(1), max_steps=1000,
            asks_at=40 if name == "worker:1" else None,
        )
        for name in names
    ]  # fmt: skip
    run_all(tasks)
    assert 40 <= tasks[0].finished == tasks[1].finished < 1000


def test_nobody_is_asked_and_nothing_is_said(peer, patience):
    names = ["worker:0", "worker:1"]
    steps, letters = Steps(names), Letters()
    tasks = [
        Task(name, steps, letters, addresses=dict.fromkeys(names, peer), rng=random.Random(1), max_steps=30)
        for name in names
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join(timeout=30)
    assert [task.finished for task in tasks] == [30, 30]
    assert not any(task.preemption.asked for task in tasks)
    # At the end each wakes its own thread, and answers lest anybody wait for it.
    assert {name for name, value in letters.said.items() if value != "over"} == {"answer/worker:0", "answer/worker:1"}


def test_a_task_that_is_gone_ends_the_others_where_the_last_checkpoint_is(monkeypatch):
    """No answer from worker:1, whose port is closed: there is no step that all could stop at."""
    with socket.create_server(("localhost", 0)) as server:
        gone = f"localhost:{server.getsockname()[1]}"
    given_up = threading.Event()
    said = []

    class Impatient(MemoryChannel):
        def wait(self, name, seconds):
            return super().wait(name, seconds if name == "ask" else min(seconds, 0.2))

    monkeypatch.setattr(Preemption, "give_up", lambda self, what: (said.append(what), given_up.set()))
    preemption = Preemption("worker:0", signals=[])
    alone = SynchronizedStop(
        preemption,
        task="worker:0",
        chief="worker:0",
        addresses={"worker:0": "localhost:1", "worker:1": gone},
        channel=Impatient(Letters(), random.Random(1)),
        synchronous=True,
    )
    with preemption.listening():
        alone.begin()
        alone.ask()
        assert given_up.wait(30)
        alone.close()
    assert said == ["worker:1 does not answer, so there is no step that all can stop at"]


def test_a_rendezvous_channel_passes_over_what_an_earlier_training_left(tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "_POLL_SECS", 0.02)
    document = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    environ = {"ESTIMATOR_PIPELINE_RUN_ID": "requeued"}
    earlier, rendezvous = (
        Rendezvous(str(tmp_path), tf_config=parse_tf_config(document), environ=environ) for _ in range(2)
    )
    RendezvousChannel(earlier).post("decision", "7")
    channel = RendezvousChannel(rendezvous)
    assert channel.wait("decision", 0.1) is None
    threading.Timer(0.1, RendezvousChannel(rendezvous).post, ["decision", "12"]).start()
    assert channel.wait("decision", 20) == "12"
    threading.Timer(0.1, channel.wake, ["ask"]).start()
    assert channel.wait("ask", 20) is None


def test_a_task_may_ask_before_it_has_read_the_chiefs_answer(tmp_path, monkeypatch):
    """As a parameter server does that is asked while the chief starts; one of an earlier run is not heard."""
    monkeypatch.setattr(stopping, "_POLL_SECS", 0.02)

    def rendezvous(index):
        document = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": index}}
        return Rendezvous(str(tmp_path), tf_config=parse_tf_config(document), environ={})

    earlier, chief, here = rendezvous(1), rendezvous(0), rendezvous(1)
    earlier.report("here")
    RendezvousChannel(earlier).post("ask", "worker:1")
    with chief.attending():
        chief.publish_status("running")
        channel = RendezvousChannel(chief)
        assert channel.wait("ask", 0.1) is None
        here.report("here")
        assert channel.wait("ask", 0.1) is None
        RendezvousChannel(here).post("ask", "worker:1")
        assert channel.wait("ask", 20) == "worker:1"


def test_who_starts_after_a_preemption_starts_to_go_on_from_there(tmp_path):
    def rendezvous(index):
        document = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": index}}
        return Rendezvous(str(tmp_path), tf_config=parse_tf_config(document), environ={})

    chief, here = rendezvous(0), rendezvous(1)
    here.report("here")
    chief.publish_status("preempted", by="SIGTERM", global_step=7)
    with pytest.raises(PreemptedError, match=r"training was asked to stop \(SIGTERM\).*after step 7"):
        raise_if_over(here.training(), here.tf_config.task)
    late = rendezvous(1)
    late.report("here")
    raise_if_over(late.training(), late.tf_config.task)
    assert late.training() is None


# -- training ---------------------------------------------------------------------------------------------------------


class SendsSignal(tf.estimator.SessionRunHook):
    def __init__(self, step):
        self.step, self.steps = step, 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        if self.steps == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


class ExportsAndSends(tf.estimator.Exporter):
    """An exporter that is there to see when an evaluation is cut short."""

    name = "sends"

    def __init__(self, step):
        self.step, self.steps = step, []

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        step = int(eval_result["global_step"])
        if step == self.step:
            self.step = None
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
        self.steps.append(step)


def run(model_dir, *, max_steps=40, hooks=(), exporter=None, **options):
    data = inputs.from_arrays(train=(FEATURES, LABELS), eval=(FEATURES[:25], LABELS[:25]), global_batch_size=12, seed=4)
    config = ep.build_run_config(model_dir, environ={}, save_checkpoints_steps=15, seed=1)
    optimizer = {"name": "momentum", "learning_rate": 0.05, "options": {"momentum": 0.9}}
    return ep.train_and_evaluate(
        tf.estimator.Estimator(model_fns.model_fn("cnn", optimizer=optimizer), config=config),
        tf.estimator.TrainSpec(data.train_input_fn, max_steps=max_steps, hooks=list(hooks)),
        tf.estimator.EvalSpec(data.eval_input_fn, steps=None, exporters=exporter),
        environ={},
        **options,
    )


def variables(model_dir):
    reader = tf.train.load_checkpoint(str(model_dir))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_an_estimator_goes_on_bit_equal(tmp_path):
    seed = random.randrange(10**6)
    step = random.Random(seed).randint(2, 30)
    print(f"random.seed({seed}): SIGTERM in step {step}")
    with pytest.raises(PreemptedError) as error:
        run(tmp_path / "ours", hooks=[SendsSignal(step)])
    found = re.search(r"training is saved after step (\d+), in (\S+)", str(error.value))
    assert step <= int(found[1]) <= step + 1 and found[2] == str(tmp_path / "ours" / f"model.ckpt-{found[1]}")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    outcome = run(tmp_path / "ours")
    assert outcome.global_step == 40 and outcome.tasks["worker:0"].steps == 40 - int(found[1])
    run(tmp_path / "undisturbed")
    ours, theirs = variables(tmp_path / "ours"), variables(tmp_path / "undisturbed")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


class LosesAPeer(SendsSignal):
    """As a task does that another one leaves while both stop."""

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        if self.steps == self.step:
            raise WaitError("worker:1 is gone")


def test_what_fails_by_another_task_while_it_stops_ends_as_asked(tmp_path):
    """And says what is lost."""
    with pytest.raises(PreemptedError) as error:
        run(tmp_path, hooks=[LosesAPeer(25)])
    place = f"training is saved after step 15, in {tmp_path}/model.ckpt-15"
    assert f"worker:1 is gone, while it stopped; {place}; 10 later steps are lost" in str(error.value)
    assert run(tmp_path).global_step == 40


def test_an_evaluation_during_training_is_cut_short(tmp_path):
    exporter = ExportsAndSends(15)
    with pytest.raises(PreemptedError) as error:
        run(tmp_path, exporter=exporter, steps_per_execution=1)
    step = int(re.search(r"after step (\d+)", str(error.value))[1])
    assert 15 < step <= 18 and exporter.steps == []


def test_a_final_evaluation_is_cut_short_and_made_again(tmp_path):
    exporter = ExportsAndSends(40)
    with pytest.raises(PreemptedError, match="training had ended"):
        run(tmp_path, exporter=exporter)
    outcome = run(tmp_path, exporter=exporter)
    assert outcome.global_step == 40 and exporter.steps[-1] == 40
    assert outcome.tasks["worker:0"].steps == 0


PROGRAM = """
import os, signal, sys
import numpy as np
import tensorflow as tf

class Signal(tf.estimator.SessionRunHook):
    def after_run(self, run_context, run_values):
        os.kill(os.getpid(), signal.SIGTERM)

def input_fn():
    return tf.data.Dataset.from_tensors(({"x": [[1.0], [2.0]]}, [[2.0], [4.0]])).repeat()

estimator = tf.estimator.LinearRegressor([tf.feature_column.numeric_column("x")], model_dir=sys.argv[1])
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(input_fn, max_steps=1000, hooks=[Signal()]),
    tf.estimator.EvalSpec(input_fn, steps=1),
)
"""


def test_a_legacy_program_ends_with_the_same_code(run_python, tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    done = run_python(["-m", "estimator_pipeline", "exec", tmp_path / "program.py", tmp_path / "model"])
    assert done.returncode == 75, done.stderr[-3000:]
    assert "worker:0 was asked to stop (SIGTERM): training is saved after step " in done.stderr
    assert "Traceback" not in done.stderr


JOB = [
    "-m", "estimator_pipeline", "train", "legacy_configs/single.yaml", "--json", "--quiet",
    "--set", "run.save_checkpoints_steps=50", "--set", "run.preemption_signals=[SIGTERM, SIGUSR1]",
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["keras", pytest.param("keras3", marks=pytest.mark.keras_3)])
def test_keras_goes_on_bit_equal(run_python, tmp_path, engine):
    """SIGUSR1, as a scheduler's early signal, between two checkpoints; the next command ends the job."""

    def command(model_dir, max_steps):
        sets = [f"run.model_dir={tmp_path / model_dir}", f"train.max_steps={max_steps}"]
        return [*JOB, "--engine", engine, *(x for s in sets for x in ("--set", s))]

    process = subprocess.Popen(
        [sys.executable, *command("ours", 1_000_000)], env=environment(), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: process.poll() is not None or list((tmp_path / "ours").glob("*-50.index")), timeout=100)
        seed = random.randrange(10**6)
        print(f"random.seed({seed})")
        time.sleep(random.Random(seed).uniform(0.0, 0.5))
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 75, err[-3000:]
    stop = int(re.search(r"training is saved after step (\d+)", err)[1])
    assert "asked to stop (SIGUSR1)" in err
    for model_dir in ("ours", "undisturbed"):
        done = run_python(command(model_dir, stop + 20))
        assert done.returncode == 0, done.stderr[-3000:]
    ours, theirs = variables(tmp_path / "ours"), variables(tmp_path / "undisturbed")
    assert ours.keys() == theirs.keys() and len(theirs) > 4
    for name, value in theirs.items():
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH" and "save_counter" not in name:
            np.testing.assert_array_equal(ours[name], value, err_msg=name)
