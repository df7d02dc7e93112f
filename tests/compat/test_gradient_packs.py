"""The patch `gradient-packs`: all gradients of an Estimator's step go together, to the same bits on two workers."""

from __future__ import annotations

import re

import pytest

from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.slow]


def trained(folder, programs, left_out=""):
    """(reductions, gathers) in the graph of a step, and a digest of the trained weights and slots.

    Without `common-end`, whose workers tell one another by two reductions whether they have data.
    """
    folder.mkdir()
    command = [*EXEC, programs / "gradients_on_no_device.py", folder / "model"]
    with Tasks({"worker": 2}, command, folder, env={"ESTIMATOR_PIPELINE_PATCHES": f"-common-end{left_out}"}) as running:
        assert set(running.wait().values()) == {0}, running.tails()
        (found,) = re.findall(r"^found (\d+) (\d+) (\d+) (\w+)$", running.log("worker0"), re.M)
    assert int(found[2]) == 13, "six weights, their slots, and the step"
    return (int(found[0]), int(found[1])), found[3]


def test_the_gradients_of_an_estimator_travel_together(programs, tmp_path):
    together, weights = trained(tmp_path / "together", programs)
    # Of the weights, and of the loss that is logged; of the tables the numbers of rows, and the rows.
    assert together == (2, 2)
    apart, same = trained(tmp_path / "apart", programs, ",-gradient-packs")
    assert apart[0] == 4 and apart[1] >= 2 * 3  # of each of the three tables
    assert weights == same
