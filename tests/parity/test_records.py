"""The record of a run: what was written is read, whatever happened to the run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity.step_records import (
    BatchWriter,
    StepReader,
    StepWriter,
    are_joined,
    batch_name,
    batch_of,
    batches_alike,
)  # fmt: skip


def written(folder):
    writer = StepWriter(folder)
    writer.initial({"a/b": np.arange(3, dtype=np.float32), "global_step": np.int64(0)})
    for step in (1, 2, 3):
        kept = {"a/b": np.full(3, step, np.float32), "global_step": np.int64(step)} if step != 2 else None
        writer.step(step, loss=1.0 / step, learning_rate=0.1 if step < 3 else None, variables=kept)
    return writer


def test_what_was_written_is_read(tmp_path):
    written(tmp_path / "run")
    found = StepReader(tmp_path / "run")
    assert found.losses == {1: 1.0, 2: 0.5, 3: 1.0 / 3} and found.learning_rates == {1: 0.1, 2: 0.1}
    assert found.steps == [1, 3]
    assert list(found.initial()) == ["a/b", "global_step"]
    after = found.variables(3)
    assert after["a/b"].tolist() == [3, 3, 3] and after["a/b"].dtype == np.float32
    assert after["global_step"].shape == () and after["global_step"].dtype == np.int64
    assert not list((tmp_path / "run").glob("*.unfinished"))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_losses_that_are_no_numbers(tmp_path, loss):
    StepWriter(tmp_path).step(1, loss=loss)
    found = StepReader(tmp_path).losses[1]
    assert found == loss or (math.isnan(found) and math.isnan(loss))


def test_a_second_run_does_not_mix_with_the_first(tmp_path):
    written(tmp_path)
    with pytest.raises(ConfigError, match="holds the record of an earlier run"):
        StepWriter(tmp_path)


def test_a_run_that_died_in_the_middle_of_a_line(tmp_path):
    written(tmp_path)
    with open(tmp_path / "steps.jsonl", "a") as file:
        file.write('{"step": 4, "lo')
    assert sorted(StepReader(tmp_path).losses) == [1, 2, 3]


def test_damage_is_told_with_its_place(tmp_path):
    written(tmp_path)
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    (tmp_path / "steps.jsonl").write_text("\n".join([lines[0], "{}", lines[2]]) + "\n")
    with pytest.raises(ConfigError, match=r"steps.jsonl, line 2: 'step'"):
        StepReader(tmp_path)
    with pytest.raises(ConfigError, match="holds no record of a run"):
        StepReader(tmp_path / "nothing")
    written(tmp_path / "other")
    (tmp_path / "other" / "initial.npz").write_bytes(b"PK\x03\x04half")
    with pytest.raises(ConfigError, match=r"initial.npz cannot be read"):
        StepReader(tmp_path / "other").initial()


def test_where_it_ran(tmp_path):
    writer = written(tmp_path)
    assert StepReader(tmp_path).environment() == {}, "a record of before, or of a run that died at once"
    facts = {"tensorflow": "2.21.0", "replicas": 2, "variables": {"TF_ENABLE_ONEDNN_OPTS": None}}
    writer.environment(facts)
    assert StepReader(tmp_path).environment() == facts and not list(tmp_path.glob("*.unfinished"))
    (tmp_path / "environment.json").write_text("{")
    with pytest.raises(ConfigError, match=r"environment\.json cannot be read"):
        StepReader(tmp_path).environment()


def without(path, name):
    """The archive, less one of its arrays: whoever reads it is told."""
    with np.load(path) as archive:
        values = dict(archive)
    del values[f"value_{list(values['names']).index(name)}"]
    np.savez(path, **values)


def test_what_stood_still(tmp_path):
    for step, writer in enumerate([StepWriter(tmp_path)] * 3):
        kept = {"still": np.ones(3, np.float32), "moved": np.full(3, step, np.float32), "large": np.zeros(9)}
        writer.initial(kept) if step == 0 else writer.step(step, loss=1.0, variables=kept)
    found = StepReader(tmp_path)
    assert found.unchanged(["moved", "still", "not there"]) == ["still"]
    for name in ("initial.npz", "step-00000002.npz"):
        without(tmp_path / name, "large")
    for read in (found.initial, lambda: found.variables(2), lambda: found.unchanged(["large"])):
        with pytest.raises(ConfigError, match=r"\.npz cannot be read: .*value_2"):
            read()


def test_what_stood_still_is_asked_of_steps_that_were_made(tmp_path):
    StepWriter(tmp_path).initial({"a": np.ones(3)})
    with pytest.raises(ConfigError, match="holds the variables of no step"):
        StepReader(tmp_path).unchanged(["a"])


@pytest.mark.parametrize("task", ["worker-0", "chief-0", "a, batch 7"])
def test_a_batch_is_known_by_its_name(task):
    assert batch_of(batch_name(task, 11)) == (task, 11) and batch_name(task, 0) == f"records of {task}, batch 1"


@pytest.mark.parametrize(("per_step", "joined"), [(1, False), (2, False), ((2, 2), False), ((1, 2), True)])
def test_batches_are_joined_where_the_sides_have_other_replicas(tmp_path, per_step, joined):
    writer = written(tmp_path)
    for batch in range(4):
        BatchWriter(writer.folder, "worker:0").batch([batch])
    reader = StepReader(writer.folder)
    one, other, count = batches_alike(reader, reader, per_step)
    assert are_joined(per_step) == joined == (one != other)
    assert count == (1 if joined else per_step if isinstance(per_step, int) else 2)
    assert other == {"worker-0": [[0, 1], [2, 3]] if joined else [[0], [1], [2], [3]]}
