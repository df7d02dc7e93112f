"""The repair `embedding-gathers`: sparse gradients go together, to the same bits, with any number of rows."""

from __future__ import annotations

import json
import re

import pytest
from tasks_by_hand import EXEC, Tasks

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.slow]

# What TensorFlow has in a graph for one: the number of rows, then values and indices, filled up or not.
ONE = 5
# Of five sparse gradients of the sum one is of 16 bits, and goes by itself; the mean is of three.
TOGETHER = {"SUM": 2 + ONE, "MEAN": 2}


@pytest.mark.parametrize("repaired", [True, False])
def test_sparse_sums_have_the_same_bits_together(repaired, programs, tmp_path):
    variables = {} if repaired else {"ESTIMATOR_PIPELINE_REPAIRS": "-embedding-gathers"}
    with Tasks({"worker": 3}, [*EXEC, programs / "sparse_sums.py"], tmp_path, env=variables) as running:
        assert set(running.wait().values()) == {0}, running.tails()
        for name in running.processes:
            lines = re.findall(r"^found (\w+) (\d+) (\d+) (.+)$", running.log(name), re.M)
            assert [line[0] for line in lines] == ["SUM", "MEAN"]
            for reduction, together, apart, same in lines:
                equal = json.loads(same)
                assert all(equal.values()) and len(equal) == {"SUM": 6, "MEAN": 4}[reduction], running.tails()
                if repaired:
                    assert int(together) == TOGETHER[reduction]
                assert int(apart) == ONE * (len(equal) - 1)
                assert repaired or together == apart
