"""Which tolerance counts for what."""

from __future__ import annotations

import typing

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import parity_section
from estimator_pipeline.parity.compare import BIT_EQUAL, Tolerance
from estimator_pipeline.parity.tolerances import KINDS, NAMED, Tolerances, kind_of

OWN = Tolerance(rtol=0.5, reason="own")


def test_the_names_of_job_files_are_those_of_tolerances():
    assert set(parity_section.TOLERANCE_NAMES) == set(NAMED) == set(typing.get_args(parity_section.ToleranceName))
    assert all(kind in parity_section.ParitySection.__doc__ for kind in KINDS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dense/kernel", "weights"),
        ("block/norm/moving_mean", "statistics"),
        ("norm/moving_variance", "statistics"),
        ("norm/moving_variance @m", "slots"),
        ("global_step", "step"),
    ],
)
def test_kinds(name, kind):
    assert kind_of(name) == kind


def test_by_default_only_the_step_is_bit_equal():
    found = Tolerances.of(None)
    assert found.variable("global_step") is BIT_EQUAL
    assert found.variable("dense/kernel") == found.number("loss") == NAMED["rounding"]
    assert set(found.told()) == set(KINDS)


def test_the_last_that_fits_counts():
    found = Tolerances.of(
        {"weights": "amplified", "dense*": OWN, "dense_2/*": "bit_equal", "loss": {"ulp": 3, "reason": "r"}}
    )
    assert found.variable("conv/kernel") == NAMED["amplified"]
    assert found.variable("dense/kernel") == OWN == found.variable("dense/kernel @m")
    assert found.variable("dense_2/kernel") is BIT_EQUAL
    assert found.number("loss") == Tolerance(ulp=3, reason="r")
    assert found.unused(["conv/kernel", "dense/kernel"]) == ("dense_2/*",)
    assert found.told()["dense_2/*"] == "bit-equal"


def test_one_for_all_leaves_the_learning_rate():
    found = Tolerances.of("amplified")
    assert found.number("metrics") == found.variable("x @m") == NAMED["amplified"]
    assert found.number("learning_rate") == Tolerances.of(None).number("learning_rate")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loss": "roundin"}, "'roundin' is the name of no tolerance(.|\n)*did you mean 'rounding'"),
        ({"loss": {"rtol": 0.1}}, "tolerances.loss: a tolerance other than bit-equal needs its reason"),
        ({"loss": {"rtl": 0.1, "reason": "r"}}, "tolerances.loss: .*rtl"),
        (3, "tolerances.all is a int"),
    ],
)
def test_refusals(given, says):
    with pytest.raises(ConfigError, match=says):
        Tolerances.of(given)
