"""Short fault campaigns; the long one is `make faults`."""

from __future__ import annotations

import random
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "faults"))
from blows import FAULTS
from campaign import _least_met, campaign
from fault_jobs import SHAPES, Fault, Shape

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def hit(folder, shape, *, seed, steps=600, **options):
    """The faults of a campaign in which nothing was found."""
    lines: list[str] = []
    small = (f"train.max_steps={steps}", "run.save_checkpoints_steps=60")
    found = campaign(folder, seed=seed, shapes=(shape,), changes=small, tell=lines.append, **options)
    told = "\n".join(lines)
    print(told)
    assert not [fault.problem for fault in found if fault.problem], told
    assert any(fault.landed for fault in found), told
    return found


def test_a_job_that_is_hit_again_and_again_ends_as_if_nothing_had_been(tmp_path):
    """Random faults at random moments: it ends, leaves no process, has read each record once, and has the same bits."""
    hit(tmp_path, SHAPES[0], faults=3, seed=random.SystemRandom().randrange(10**6))


def test_a_killed_job_and_a_torn_checkpoint(tmp_path):
    """The same choices each time, and the shortest job: what every change is held against."""
    (one_process,) = (shape for shape in SHAPES if shape.name == "one process")
    found = hit(tmp_path, one_process, faults=2, seed=7, steps=420, kinds=("kill chief", "torn checkpoint"))
    assert sorted(fault.kind for fault in found) == ["kill chief", "torn checkpoint"]


def test_what_was_met_least_comes_first():
    shape = Shape("any", (), ("kill chief", "kill worker", "kill ps"))
    met = [Fault(n, 1, "any", "kill chief", landed=True) for n in range(3)]
    met += [Fault(4, 1, "any", "kill worker", landed=True), Fault(5, 1, "any", "kill ps", landed=False)]
    for seed in range(5):
        assert _least_met(shape.kinds, shape, met, random.Random(seed)) == ["kill ps", "kill worker", "kill chief"]
    assert {kind for shape in SHAPES for kind in shape.kinds} == set(FAULTS)
