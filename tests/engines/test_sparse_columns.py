"""Sparse gradients whose number of rows changes from step to step: workers come to what one process comes to."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.processes import tensorflow_with_three_cpus
from tests.support.tasks_by_hand import EXEC, Tasks

tf = tensorflow_with_three_cpus()

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]

# Rows are added up worker by worker; Ftrl and Adagrad divide by roots of sums that begin at 0.1.
ELEMENT = {"rtol": 1e-5, "atol": 1e-6}


def variables(model_dir, step):
    assert tf.train.latest_checkpoint(str(model_dir)).endswith(f"-{step}")
    reader = tf.train.load_checkpoint(str(model_dir))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize(
    ("kind", "workers"),
    [("linear", 2), ("dnn", 3), ("combined", 2), ("combined", 3), ("regressor", 2), ("keras", 2), ("keras", 3)],
)
def test_workers_come_to_what_one_process_comes_to(kind, workers, programs, run_python, tmp_path):
    def alone(folder, steps):
        done = run_python([*EXEC[1:], programs / "sparse_columns.py", kind, tmp_path / folder, steps])
        assert done.returncode == 0, done.stderr[-3000:]

    def together(steps):
        (tmp_path / f"logs{steps}").mkdir()
        command = [*EXEC, programs / "sparse_columns.py", kind, tmp_path / "workers", steps]
        with Tasks({"worker": workers}, command, tmp_path / f"logs{steps}") as running:
            assert set(running.wait().values()) == {0}, running.tails()

    # One initial value for both: what one process begins with.
    alone("one", 1)
    shutil.copytree(tmp_path / "one", tmp_path / "workers")
    alone("one", 80)
    together(31)  # all batches once: its data begin again, as those of the other do
    together(80)  # resumed
    ours, theirs = variables(tmp_path / "workers", 80), variables(tmp_path / "one", 80)
    assert ours.keys() == theirs.keys() and len(ours) > 4
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, err_msg=name, **ELEMENT)
