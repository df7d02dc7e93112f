"""The patch `embedding-gathers`: sparse gradients go together, to the same bits, with any number of rows."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.slow]

# What TensorFlow has in a graph for one: the number of rows, then values and indices, filled up or not.
ONE = 5
# By reduction and number of sparse gradients. Of the five one is of 16 bits, and goes by itself.
OWN_WAY = {("SUM", 5): 5 * ONE, ("MEAN", 3): 3 * ONE, ("SUM", 1): ONE}
TOGETHER = {("SUM", 5): 2 + ONE, ("MEAN", 3): 2, ("SUM", 1): 2}


def test_sparse_sums_have_the_same_bits_together(programs, tmp_path):
    own_way = _sums(programs, tmp_path / "own way", {"ESTIMATOR_PIPELINE_PATCHES": "-embedding-gathers"})
    together = _sums(programs, tmp_path / "together", {})
    for found, expected in ((own_way, OWN_WAY), (together, TOGETHER)):
        assert len(found) == 3
        for task in found.values():
            assert {sums: gathers for sums, (gathers, _) in task.items()} == expected
    for task, sums in together.items():
        assert {name: bits for name, (_, bits) in sums.items()} == {
            name: bits for name, (_, bits) in own_way[task].items()
        }


def _sums(programs, folder, variables):
    """Of each task: the number of collectives and the bits of the result, by reduction and number of gradients."""
    folder.mkdir()
    with Tasks({"worker": 3}, [*EXEC, programs / "sparse_sums.py"], folder, env=variables) as running:
        assert set(running.wait().values()) == {0}, running.tails()
        return {
            name: {
                (reduction, int(sparse)): (int(gathers), json.loads(bits))
                for reduction, sparse, gathers, bits in re.findall(
                    r"^found (\w+) (\d+) (\d+) (.+)$", running.log(name), re.M
                )
            }
            for name in running.processes
        }
