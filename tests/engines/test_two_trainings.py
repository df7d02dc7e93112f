"""Two trainings in one process, one after the other and at the same time: what one knows is not the other's."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from estimator_pipeline.compat.patches import missing_peers
from estimator_pipeline.engines.model_dir import lock
from estimator_pipeline.errors import ConfigError
from tests.engines.test_trusted_checkpoints import data, run, same, tf, variables


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The variables of each training where it is the only one: seed -> name -> value."""
    folder = tmp_path_factory.mktemp("alone")
    return {seed: variables(run(folder / str(seed), seed=seed).checkpoint) for seed in (1, 2)}


def test_one_after_the_other(tmp_path, alone):
    """The second neither goes on from the first, nor with its data, options, handlers or exports."""
    before = signal.getsignal(signal.SIGTERM)
    source = data()
    first = run(tmp_path / "first", seed=1, source=source, ledger=str(tmp_path / "ledger"), steps_per_execution=4)
    second = run(tmp_path / "second", seed=2, source=source)
    same(variables(first.checkpoint), alone[1])
    same(variables(second.checkpoint), alone[2])
    assert [e.global_step for e in second.evaluations] == [5, 10]
    assert second.tasks["worker:0"].records == 120
    assert {path.name for path in (tmp_path / "ledger").iterdir()} == {"worker-0.1.ledger"}, "the first's alone"
    assert signal.getsignal(signal.SIGTERM) == before
    # The input function is as it was: a third training of the same data begins with the first record.
    assert source.train_input_fn.start_step == 0
    again = run(tmp_path / "second", seed=2, source=source, max_steps=15)
    assert again.tasks["worker:0"].steps == 5


def test_a_failure_of_the_first_is_not_the_seconds(tmp_path, alone):
    class Fails(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            raise ArithmeticError("planted")

    with pytest.raises(ArithmeticError):
        run(tmp_path / "first", hooks=[Fails()])
    same(variables(run(tmp_path / "second").checkpoint), alone[1])
    same(variables(run(tmp_path / "first").checkpoint), alone[1])


def test_at_the_same_time(tmp_path, alone):
    """Each in a thread, both in the middle of their steps at once."""
    both = threading.Barrier(2)

    class Meet(tf.estimator.SessionRunHook):
        steps = 0

        def after_run(self, run_context, run_values):
            self.steps += 1
            if self.steps in (3, 8):
                both.wait(300)

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(run, tmp_path / str(seed), seed=seed, hooks=[Meet()]) for seed in (1, 2)]
        for seed, result in zip((1, 2), results, strict=True):
            outcome = result.result(300)
            same(variables(outcome.checkpoint), alone[seed])
            assert outcome.model_dir == str(tmp_path / str(seed))
            assert [e.global_step for e in outcome.evaluations] == [5, 10]


def test_settings_of_jobs_in_two_threads_end_with_their_jobs():
    first, second = threading.Event(), threading.Event()

    def first_job():
        with missing_peers.job_settings(seconds=1.0, signals=None):
            first.set()
            assert second.wait(60)
        return missing_peers._settings()

    def second_job():
        assert first.wait(60)
        with missing_peers.job_settings(seconds=2.0, signals=["SIGUSR1"]):
            second.set()
            left.wait(60)
            return missing_peers._settings()

    left = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        jobs = pool.submit(first_job), pool.submit(second_job)
        assert jobs[0].result(60).seconds is None
        left.set()
        assert jobs[1].result(60).seconds == 2.0
    assert not missing_peers._settings().is_job


def test_two_that_train_in_one_model_directory(tmp_path, monkeypatch):
    """The lock is the process's as well: no two write the same checkpoints."""
    monkeypatch.setattr(lock, "WAIT_SECS", 0.1)
    entered, go = threading.Event(), threading.Event()

    class Waits(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            entered.set()
            go.wait(300)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, tmp_path / "model", hooks=[Waits()])
        assert entered.wait(300)
        try:
            with pytest.raises(ConfigError, match="another job trains in"):
                run(tmp_path / "model")
        finally:
            go.set()
        assert first.result(300).global_step == 10
