"""A short fault campaign; the long one is `make faults`."""

from __future__ import annotations

import random
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "faults"))
from campaign import SHAPES, campaign

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_job_that_is_hit_again_and_again_ends_as_if_nothing_had_been(tmp_path):
    """Random faults at random moments: it ends, leaves no process, has read each record once, and has the same bits."""
    seed = random.SystemRandom().randrange(10**6)
    lines: list[str] = []
    small = ("train.max_steps=600", "run.save_checkpoints_steps=60")
    found = campaign(tmp_path, faults=3, seed=seed, shapes=SHAPES[:1], changes=small, tell=lines.append)
    told = "\n".join(lines)
    print(told)
    assert not [fault.problem for fault in found if fault.problem], told
    assert len(found) >= 1, told
