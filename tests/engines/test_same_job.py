"""Whether tasks have one job: what is compared, what is refused, and what each is told."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline import compat
from estimator_pipeline.cluster import parse_tf_config
from estimator_pipeline.compat.internals import coordination_service as coordination
from estimator_pipeline.engines.core.rendezvous import same_job
from estimator_pipeline.engines.core.rendezvous.rendezvous import Rendezvous
from estimator_pipeline.engines.jobs.job_identity import shared_by_tasks
from estimator_pipeline.engines.model_dir.run_identity import CONTENT, RunIdentity, differences
from estimator_pipeline.errors import OtherJobError
from estimator_pipeline.job import load_job
from tests.support.launched_jobs import CONFIGS

compat.install()

WORKERS = {"worker": ["a:1", "b:2", "c:3"]}
WITH_PS = {"chief": ["a:1"], "worker": ["b:2"], "ps": ["c:3"]}


def task(cluster, kind="worker", index=0):
    return parse_tf_config({"cluster": cluster, "task": {"type": kind, "index": index}})


def facts(*settings):
    job = load_job(CONFIGS / "digits_cnn_two_workers.yaml", overrides=list(settings))
    return shared_by_tasks(job, max_steps=job.train.max_steps)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("model.optimizer.learning_rate=0.5", "model.optimizer.learning_rate"),
        ("model.params.filters=4", "model.params.filters"),
        ("model.clip_norm=1", "model.clip_norm"),
        ("input.seed=7", "input.seed"),
        ("input.scale=1/8", "input.scale"),
        ("input.global_batch_size=32", "input.global_batch_size"),
        ("train.max_steps=7", "train.max_steps"),
        ("train.steps_per_execution=2", "train.steps_per_execution"),
        ("run.save_checkpoints_steps=7", "run.save_checkpoints_steps"),
        ("run.seed=7", "run.seed"),
        ("run.engine=keras", "run.engine"),
        ("run.ledger=true", "run.ledger"),
    ],
)
def test_a_setting_that_must_be_the_same(setting, name):
    found = [one[0] for one in differences(facts(), facts(setting))]
    assert found == [name]


@pytest.mark.parametrize(
    "setting",
    ["run.threads.intra_op=1", "run.num_devices=2", "cluster.evaluator=false", "run.accept_changes=true",
     "input.cache=true", "input.prefetch=1", "eval.throttle_secs=60", "run.log_step_count_steps=1"],
)  # fmt: skip
def test_a_setting_that_may_differ_by_task(setting):
    assert not differences(facts(), facts(setting))


@pytest.fixture
def told(monkeypatch):
    """`told(facts, ...)`: what each worker says, the first one being the chief; a pair says that its folder is not the
    chief's."""

    def say(*each):
        documents = [one if isinstance(one, tuple) else (one, False) for one in each]
        monkeypatch.setattr(
            coordination,
            "exchange",
            lambda key, value, *, task, tasks, timeout: {
                name: json.dumps(same_job.document(*one)) for name, one in zip(tasks, documents, strict=True)
            },
        )

    return say


def agree(**options):
    same_job.agree({}, task(WORKERS), timeout=1, **options)


def test_the_same_job(told, warnings):
    told({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]})
    agree()
    assert not warnings


def test_each_difference_is_told_with_its_tasks(told):
    told({"a": 1, "b": {"x": 1}}, {"a": 1, "b": {"x": 1}}, {"a": 2, "b": {"x": 1, "y": 2}})
    with pytest.raises(OtherJobError) as raised:
        agree()
    assert raised.value.found == "a: 1 on worker:0, 2 on worker:2; b.y: not given on worker:0, 2 on worker:2"
    assert raised.value.exit_code == 2


def test_many_differences_are_counted(told):
    many = {f"name{i:02}": i for i in range(30)}
    told(many, many, dict.fromkeys(many, 0.5))
    with pytest.raises(OtherJobError, match=r"name07: .*; and 22 more"):
        agree()


def test_workers_that_have_other_files_of_one_name_are_told(told):
    """Digests of two kinds say nothing of each other: one machine may have an index beside its copy."""

    def of(**digests):
        return same_job.of_task(RunIdentity(fixed={"seed": 1, CONTENT: digests}), {})

    told(of(a="1", b="2"), of(a="1", b="2"), of(a="1", b="3"))
    with pytest.raises(OtherJobError, match=r"input\.content b: 2 on worker:0, 3 on worker:2"):
        agree()
    sampled, mixed = of(a="sampled 1", b="sampled 2"), of(a="1", b="sampled 2")
    told(of(a="1", b="2"), sampled, mixed)
    agree()
    many = [{f"part-{n}.tfrecord": f"{kind}{n:016}" for n in range(99)} for kind in ("", "sampled ")]
    told(*(of(**content) for content in (*many, many[0])))
    agree()
    told(*(of(**content) for content in (many[0], many[0], {**many[0], "part-7.tfrecord": "0"})))
    with pytest.raises(OtherJobError, match=r"input\.content: sha256 .* on worker:2"):
        agree()


def test_a_program_may_mean_a_difference(told, warnings):
    told({"seed": 1, "max_steps": 5}, {"seed": 2, "max_steps": 5}, {"seed": 3, "max_steps": 5})
    agree(refused=same_job.OF_PROGRAMS)
    assert "seed: 1 on worker:0, 2 on worker:1, 3 on worker:2" in str(warnings)
    told({"seed": 1, "max_steps": 5}, {"seed": 2, "max_steps": 6}, {"seed": 3, "max_steps": 5})
    with pytest.raises(OtherJobError, match="max_steps: 5 on worker:0, 6 on worker:1\n"):
        agree(refused=same_job.OF_PROGRAMS)


def test_a_folder_may_have_two_names(told):
    """It is another job's where it is another folder, too."""
    one, other = {"run.model_dir": "/mnt/a"}, {"run.model_dir": "/home/b"}
    told(one, other, one)
    agree()
    told(one, (one, True), one)
    agree()
    told(one, (other, True), one)
    with pytest.raises(OtherJobError, match=r"run\.model_dir: /mnt/a on worker:0, /home/b on worker:1"):
        agree()


def rendezvous(path, tf_config, job):
    return Rendezvous(str(path), tf_config=tf_config, environ={}, job=job)


def test_an_evaluator_is_held_against_the_chiefs_word(tmp_path):
    chief, own = task(WORKERS), task(WORKERS, "evaluator")
    told = rendezvous(tmp_path, chief, {"rate": 1, "input.fingerprint": "of data that an evaluator need not have"})
    told.publish_status("running")
    same, other = rendezvous(tmp_path, own, {"rate": 1}), rendezvous(tmp_path, own, {"rate": 2})
    for each in (same, other):
        each.report("here")
        told.attend()
        same.raise_if_other_job(each.training())
    with pytest.raises(OtherJobError, match="rate: 1 on worker:0, 2 on evaluator:0"):
        other.raise_if_other_job(other.training())


def test_a_chief_of_parameter_servers_ends_with_a_worker_of_another_job(tmp_path):
    chief = rendezvous(tmp_path, task(WITH_PS, "chief"), {"rate": 1})
    worker = rendezvous(tmp_path, task(WITH_PS, "worker"), {"rate": 2})
    with chief.attending():
        chief.publish_status("running")
        worker.report("here")
        with pytest.raises(OtherJobError):
            worker.wait("the chief", lambda said: said, timeout=30)
        chief.raise_if_refused()
        worker.report_failed("rate differs", status=same_job.OTHER_JOB, echo=False)
        chief.attend()
        with pytest.raises(OtherJobError, match="worker:0: rate differs"):
            chief.raise_if_refused()


def test_a_job_that_is_known_after_the_start_is_compared(tmp_path):
    """The chief's and a worker's shard policy is that of the checkpoint, which each finds first."""
    chief, worker = (rendezvous(tmp_path, task(WITH_PS, kind), None) for kind in ("chief", "worker"))
    with chief.attending({"rate": 1}):
        chief.publish_status("running")
        worker.report("here")
        status = worker.wait("the chief", lambda status: status, timeout=30)
        worker.raise_if_other_job(status, {"rate": 1})
        with pytest.raises(OtherJobError, match="rate: 1 on chief:0, 2 on worker:0"):
            worker.raise_if_other_job(status, {"rate": 2})


def test_any_other_failure_of_one_worker_does_not_end_asynchronous_training(tmp_path):
    chief = rendezvous(tmp_path, task(WITH_PS, "chief"), None)
    worker = rendezvous(tmp_path, task(WITH_PS, "worker"), None)
    with chief.attending():
        chief.publish_status("running")
        worker.report("here")
        worker.report_failed("disk full", status="failed", echo=False)
        chief.attend()
        assert chief.training()["state"] == "running"
