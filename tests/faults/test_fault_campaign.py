"""Short fault campaigns; the long one is `make faults`."""

from __future__ import annotations

import dataclasses
import random
import sys

import pytest

from tests.support.processes import ROOT

sys.path.insert(0, str(ROOT / "tests" / "faults"))
from blows import ASKED, FAULTS
from campaign import _least_met, campaign
from fault_hands import has_networks
from fault_jobs import NEEDS_DISKS, NEEDS_NETWORKS, SHAPES, Fault, Shape

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


@pytest.mark.nightly
def test_a_job_that_is_hit_again_and_again_ends_as_if_nothing_had_been(tmp_path):
    """Random faults at random moments: it ends, and is what `fault_judging.py` wants."""
    hit(tmp_path, SHAPES[0], faults=3, seed=random.SystemRandom().randrange(10**6))


@pytest.mark.nightly
def test_a_killed_job_and_a_torn_checkpoint(tmp_path):
    """What every change is held against: two workers, a process that is killed at random, and a torn checkpoint."""
    seed = random.SystemRandom().randrange(10**6)
    kill = random.Random(seed).choice(["kill chief", "kill worker", "kill in checkpoint", "kill at start"])
    (workers,) = (shape for shape in SHAPES if shape.name == "two workers, evaluator")
    pair = dataclasses.replace(
        workers, name="two workers", changes=tuple(c for c in workers.changes if "eval" not in c)
    )
    found = hit(tmp_path, pair, faults=2, seed=seed, steps=420, kinds=(kill, "torn checkpoint"))
    assert sorted(fault.kind for fault in found) == [kill, "torn checkpoint"]


@pytest.mark.nightly
def test_data_that_are_spoilt_between_two_attempts(tmp_path):
    """A bit of a record, a file that was replaced: refused by name, and put right the job goes on."""
    (files,) = (shape for shape in SHAPES if shape.files)
    hit(
        tmp_path,
        files,
        faults=2,
        seed=random.SystemRandom().randrange(10**6),
        steps=1200,
        kinds=("crc", "replaced file"),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", [("skew", "missing peer"), ("hung peer",), ("partition",)], ids=" and ".join)
def test_workers_on_several_machines(kinds, tmp_path):
    """Started by hand, in a job that a launcher began, and goes on with."""
    (keras,) = (shape for shape in SHAPES if "Keras" in shape.name)
    if NEEDS_NETWORKS & set(kinds) and not has_networks():
        pytest.skip("no network namespaces here")
    hit(tmp_path, keras, faults=len(kinds), seed=random.SystemRandom().randrange(10**6), steps=2400, kinds=kinds)


@pytest.mark.nightly
def test_exit_code_0_vanished_checkpoints_and_stops_upon_stops(tmp_path):
    kinds = ("zero exit", "vanished folder", "empty state file", "stop while stopping")
    hit(tmp_path, SHAPES[0], faults=4, seed=random.SystemRandom().randrange(10**6), steps=2400, kinds=kinds)


def test_what_was_met_least_comes_first():
    shape = Shape("any", (), ("kill chief", "kill worker", "kill ps"))
    met = [Fault(n, 1, "any", "kill chief", landed=True) for n in range(3)]
    met += [Fault(4, 1, "any", "kill worker", landed=True), Fault(5, 1, "any", "kill ps", landed=False)]
    for seed in range(5):
        assert _least_met(shape.kinds, shape, met, random.Random(seed)) == ["kill ps", "kill worker", "kill chief"]
    assert {kind for shape in SHAPES for kind in shape.kinds} == set(FAULTS)
    assert set(FAULTS) >= ASKED | NEEDS_DISKS | NEEDS_NETWORKS
