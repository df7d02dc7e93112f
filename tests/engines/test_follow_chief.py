"""Where a worker of a parameter-server job goes on: where the chief does, whatever the worker sees before that."""

from __future__ import annotations

import json
import threading
import types

import pytest

from estimator_pipeline import compat
from estimator_pipeline.engines.core import startup as beginning
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.errors import PreemptedError, TaskFailedError, WaitError
from tests.engines.test_rendezvous import WITH_PS, rendezvous
from tests.support.contexts import task_context

CHIEF, WORKER = ({"cluster": WITH_PS, "task": {"type": task, "index": 0}} for task in ("chief", "worker"))


def checkpoint_at(folder, step):
    (folder / f"model.ckpt-{step}.index").write_text("values")
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
    assert compat.install().train.latest_checkpoint(str(folder)).endswith(f"-{step}")


class Follower(threading.Thread):
    """A worker that starts now."""

    def __init__(self, folder, *, asked=False, timeout=120.0):
        super().__init__(daemon=True)
        self.context = task_context(
            folder,
            environ={"TF_CONFIG": json.dumps(WORKER)},
            options=TrainOptions(startup_timeout=timeout),
            rendezvous=rendezvous(folder, WORKER),
            preemption=types.SimpleNamespace(asked=asked),
        )
        self.step, self.error = None, None
        self.start()

    def run(self):
        try:
            with self.context.rendezvous.attending():
                self.step = beginning.follow_chief(self.context)
        except Exception as error:
            self.error = error

    def came_to(self):
        self.join(120)
        assert not self.is_alive(), "it still waits"
        if self.error is not None:
            raise self.error
        return self.step


def test_a_state_file_that_is_torn_is_waited_for(tmp_path):
    """As found by the fault campaign: the worker saw no checkpoint, and began its data at step 0."""
    checkpoint_at(tmp_path, 40)
    (tmp_path / "checkpoint").write_text("model_chec")
    worker, chief = Follower(tmp_path), rendezvous(tmp_path, CHIEF)
    assert beginning.latest_step(str(tmp_path)) == 0
    with chief.attending():
        checkpoint_at(tmp_path, 40)
        chief.publish_status("running", from_step=40)
        assert worker.came_to() == 40


def test_a_checkpoint_that_the_chief_sets_aside_does_not_count(tmp_path):
    checkpoint_at(tmp_path, 80)
    worker, chief = Follower(tmp_path), rendezvous(tmp_path, CHIEF)
    with chief.attending():
        (tmp_path / "model.ckpt-80.index").unlink()
        checkpoint_at(tmp_path, 40)
        chief.publish_status("running", from_step=40)
        assert worker.came_to() == 40


def test_one_that_comes_late_goes_on_from_the_newest(tmp_path):
    chief = rendezvous(tmp_path, CHIEF)
    with chief.attending():
        chief.publish_status("running", from_step=40)
        checkpoint_at(tmp_path, 120)
        assert Follower(tmp_path).came_to() == 120


def test_a_chief_that_cannot_begin_ends_it(tmp_path):
    worker, chief = Follower(tmp_path), rendezvous(tmp_path, CHIEF)
    with chief.attending():
        chief.publish_failure("no checkpoint is whole", status="failed", echo=False, from_step=0)
        with pytest.raises(TaskFailedError, match="no checkpoint is whole"):
            worker.came_to()


def test_a_chief_that_is_asked_to_end_takes_it_along(tmp_path):
    worker, chief = Follower(tmp_path), rendezvous(tmp_path, CHIEF)
    with chief.attending():
        chief.publish_status("preempted", by="SIGTERM", checkpoint=None, global_step=0, from_step=0)
        with pytest.raises(PreemptedError):
            worker.came_to()


def test_one_that_is_asked_to_end_waits_no_longer(tmp_path):
    checkpoint_at(tmp_path, 40)
    assert Follower(tmp_path, asked=True).came_to() == 40


def test_the_word_of_an_earlier_run_is_none(tmp_path):
    chief = rendezvous(tmp_path, CHIEF)
    with chief.attending():
        chief.publish_status("running", from_step=40)
    with pytest.raises(WaitError, match="the step at which the chief resumes"):
        Follower(tmp_path, timeout=1.0).came_to()
