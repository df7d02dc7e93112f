"""How many steps a call makes, as arithmetic."""

from __future__ import annotations

import random

import pytest

from estimator_pipeline.engines.core import multi_step as run_lengths
from estimator_pipeline.engines.core.multi_step import (
    MOST,
    CallLengthTuner,
    CallSchedule,
    StepInterval,
    most_steps,
    trial_steps,
)
from estimator_pipeline.job.sections.training import check_steps


def calls(schedule, start, end):
    """The steps with which calls end; the first call is of one step."""
    step, found = start, []
    length = 1
    while step < end:
        step += length
        found.append(step)
        length = schedule.length(step)
    return found


@pytest.mark.parametrize(
    ("every", "step", "after"),
    [
        (StepInterval(10, 0), 0, 10),
        (StepInterval(10, 0), 9, 10),
        (StepInterval(10, 0), 10, 20),
        (StepInterval(10, 1), 0, 1),
        (StepInterval(10, 1), 1, 11),
        (StepInterval(10, 205), 3, 205),
        (StepInterval(1, 0), 7, 8),
        (StepInterval(0, 40), 39, 40),
        (StepInterval(0, 40), 40, float("inf")),
    ],
)
def test_the_next_step_that_is_wanted(every, step, after):
    assert every.after(step) == after


def test_calls_end_with_every_step_that_is_wanted():
    schedule = CallSchedule((StepInterval(10, 1), StepInterval(15, 0), StepInterval(0, 37)), most=8)
    assert calls(schedule, 0, 37) == [1, 9, 11, 15, 21, 29, 30, 31, 37]


@pytest.mark.parametrize("seed", range(50))
def test_no_wanted_step_is_in_the_middle_of_a_call(seed):
    rng = random.Random(seed)
    start, end = rng.randint(0, 500), 1500
    ends = tuple(StepInterval(rng.randint(0, 90), start + rng.randint(0, 100)) for _ in range(rng.randint(0, 4)))
    schedule = CallSchedule((*ends, StepInterval(0, end)), most=rng.choice([1, 2, 7, 64, 10**6]))
    found = calls(schedule, start, end)
    assert found[-1] == end and all(0 < b - a <= schedule.most for a, b in zip([start, *found], found, strict=False))
    for every in ends:
        steps = range(every.origin, end, every.period) if every.period else [every.origin]
        wanted = {step for step in steps if start < step <= end}
        assert wanted <= set(found)


def test_all_workers_come_to_the_same_schedule():
    """The chief has summaries to write, another worker an own hook with a border of its own."""
    chief = CallSchedule((StepInterval(100, 0), StepInterval(100, 1)), most=32)
    other = CallSchedule((StepInterval(100, 0), StepInterval(7, 3)), most=32)
    agreed = CallSchedule.of_all([chief.to_json(), other.to_json()])
    assert agreed == CallSchedule((StepInterval(7, 3), StepInterval(100, 0), StepInterval(100, 1)), most=32)
    single = CallSchedule.of_all(
        [chief.to_json(), CallSchedule(reason="the hook X may want to see every step").to_json()]
    )
    assert single.reason == "the hook X may want to see every step"
    assert [single.length(step) for step in range(5)] == [1] * 5


def fed(finder, *, per_call, per_step, count=40):
    """The steps of its calls, by a clock that is told."""
    made = []
    for _ in range(count):
        made.append(finder.most)
        finder.call_ended(finder.most, per_call + per_step * finder.most)
    return made


@pytest.mark.parametrize(
    ("per_call", "per_step", "tried", "most"),
    [
        (0.001, 0.0002, 16, 256),  # a softmax regression
        (0.001, 0.0015, 16, 32),  # a small network
        (0.003, 0.02, 4, 4),  # an eighth of a call is not the step
        (0.001, 0.2, 1, 1),  # a call of one step is long as it is
    ],
)
def test_as_long_as_it_is_worth_it(per_call, per_step, tried, most):
    finder = CallLengthTuner()
    made = fed(finder, per_call=per_call, per_step=per_step)
    assert finder.done and finder.most == most
    assert made[:12] == [1] * 12 and made[12] == tried and set(made[16:]) == {most}


def test_calls_of_their_own_where_several_are_no_faster():
    finder = CallLengthTuner()
    made = fed(finder, per_call=0.0001, per_step=0.02, count=700)
    assert finder.done and finder.most == 1
    # Tried three times.
    assert [made.index(4), made.index(4, 50), made.index(4, 200)] == [12, 74, 586] and made.count(4) == 3 * 4


def test_a_machine_that_was_busy_while_it_was_tried():
    finder = CallLengthTuner()
    for _ in range(12):
        finder.call_ended(1, 0.002)
    for _ in range(4):
        finder.call_ended(finder.most, 0.1)
    assert finder.most == 1 and not finder.done
    made = fed(finder, per_call=0.001, per_step=0.001, count=80)
    assert finder.done and finder.most == 64 and set(made[70:]) == {64}


def test_what_the_chief_measures_stands_for_all():
    """A slow worker decides nothing, and asks after the same calls."""
    words = {}
    chief = CallLengthTuner(lambda name, own: words.setdefault(name, own))
    asked = []

    def told(name, own):
        asked.append((name, own))
        return words[name]

    other = CallLengthTuner(told)
    first, second = fed(chief, per_call=0.001, per_step=0.0015), fed(other, per_call=0.1, per_step=0.1)
    assert first == second and other.most == 32
    assert [name for name, _ in asked] == ["trial", "most"] and asked[0][1] == 1


def test_borders_at_every_step_leave_nothing_to_try():
    finder = CallLengthTuner()
    for _ in range(16):
        finder.call_ended(1, 0.002)
    assert finder.done and finder.most == 16


def test_choices_stay_in_bounds():
    rng = random.Random(3)
    for _ in range(1000):
        single, step = rng.uniform(0, 0.2), rng.uniform(0, 0.2)
        tried = trial_steps(single)
        assert 1 <= tried <= run_lengths._TRIAL_STEPS
        assert 1 <= most_steps(single, [step], tried) <= MOST


@pytest.mark.parametrize(("value", "good"), [("auto", True), (1, True), (64, True), (0, False), (-1, False),
                                             (True, False), (2.0, False), ("8", False), (None, False)])  # fmt: skip
def test_values(value, good):
    assert check_steps(value) is good
