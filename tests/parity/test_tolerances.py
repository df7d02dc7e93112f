"""Which tolerance counts for what."""

from __future__ import annotations

import typing

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import dump_job, load_job, make_job
from estimator_pipeline.job.sections import parity as parity_section
from estimator_pipeline.job.tolerances import KINDS, NAMED, Tolerances, kind_of
from estimator_pipeline.parity.jobs import default_tolerances as defaults
from estimator_pipeline.utils.arrays import BIT_EQUAL, Tolerance
from tests.support.processes import ROOT

OWN = Tolerance(rtol=0.5, reason="own")
JOB = ROOT / "legacy_configs" / "single.yaml"


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


def test_of_programs_only_the_step_is_bit_equal_by_default():
    found = Tolerances.of(None)
    assert found.variable("global_step") is BIT_EQUAL
    assert found.variable("dense/kernel") == found.number("loss") == NAMED["rounding"]
    assert set(found.described()) == set(KINDS)


def test_the_last_that_fits_counts():
    found = Tolerances.of(
        {"weights": "amplified", "dense*": OWN, "dense_2/*": "bit_equal", "loss": {"ulp": 3, "reason": "r"}}
    )
    assert found.variable("conv/kernel") == NAMED["amplified"]
    assert found.variable("dense/kernel") == OWN == found.variable("dense/kernel @m")
    assert found.variable("dense_2/kernel") is BIT_EQUAL
    assert found.number("loss") == Tolerance(ulp=3, reason="r")
    assert found.unused(["conv/kernel", "dense/kernel"]) == ("dense_2/*",)
    assert found.described()["dense_2/*"] == "bit-equal"


def test_one_for_all_leaves_the_learning_rate():
    found = Tolerances.of("amplified")
    assert found.number("metrics") == found.variable("x @m") == NAMED["amplified"]
    assert found.number("learning_rate") == Tolerances.of(None).number("learning_rate")


ENGINES, PLAIN, MOVING = ("estimator", "keras"), ["dense/kernel", "dense/kernel @m"], ["norm/moving_mean"]


def job_defaults(*settings, engines=ENGINES, variables=PLAIN, devices=("CPU",)):
    job = load_job(ROOT / "legacy_configs" / "single.yaml", overrides=list(settings))
    found = defaults.of_job(job, engines=engines, variables=variables, devices=devices)
    return Tolerances.of({"dense_9/*": OWN}, defaults=found)


def test_jobs_owe_the_same_bits():
    found = job_defaults()
    assert found.variable("dense/kernel") is found.variable("dense/kernel @m") is BIT_EQUAL
    assert found.number("update_norm") is found.number("predictions") is BIT_EQUAL
    # Each that is not has its reason, and no more room than that asks for.
    assert found.number("loss").ulp == 4 and "replicas'" in found.number("loss").reason
    assert found.number("metrics").rtol <= 1e-6 and "different order" in found.number("metrics").reason
    assert found.variable("dense_9/kernel") is OWN, "what the job says counts first"


def test_moving_statistics_are_made_otherwise():
    found = job_defaults(variables=[*PLAIN, *MOVING])
    assert found.variable("dense/kernel") is BIT_EQUAL
    assert found.variable("norm/moving_mean").rtol == 1e-5
    assert "fused kernel" in found.variable("norm/moving_mean").reason
    assert "moving statistics" in found.number("predictions").reason


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"engines": ("keras", "keras3")}, "Keras 3 has different kernels"),
        ({"settings": ["model.mixed_precision=true"]}, "in 16 bits"),
        (
            {
                "settings": [
                    "model.name=null",
                    "model.function=own.py:layers",
                    "model.params={}",
                    "model.loss=sparse_categorical_crossentropy",
                ]
            },
            "a session and a tf.function may fuse",
        ),
        ({"devices": ["CPU", "NVIDIA H100"]}, "NVIDIA H100 sums in no fixed order"),
        ({"settings": ["run.session_config={inter_op_parallelism_threads: 1}"]}, "run.session_config"),
    ],
)
def test_where_the_kernels_are_others_it_is_rounding_with_its_reason(options, why):
    found = job_defaults(*options.pop("settings", []), **options)
    for one in (found.variable("dense/kernel"), found.number("loss"), found.number("predictions")):
        assert (one.rtol, one.rtol_of_max) == (1e-4, 1e-4) and one.reason.startswith(why)
    assert found.number("learning_rate") == Tolerances.of(None).number("learning_rate")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loss": "roundin"}, "'roundin' is not the name of a tolerance(.|\n)*did you mean 'rounding'"),
        ({"loss": {"rtol": 0.1}}, "tolerances.loss: a tolerance other than bit-equal needs its reason"),
        ({"loss": {"rtl": 0.1, "reason": "r"}}, "tolerances.loss: a tolerance has no field 'rtl'(.|\n)*mean 'rtol'"),
        ({"loss": {1: 0.1, "reason": "r"}}, "has no field 1(.|\n)*the fields: ulp, rtol, rtol_of_max, atol, reason\n"),
        ({"loss": {"atol": 1, "atol_share": 0.1, "reason": "r"}}, "has no field 'atol_share'"),
        (3, "tolerances.all is a int"),
    ],
)
def test_refusals(given, says):
    with pytest.raises(ConfigError, match=says):
        Tolerances.of(given)


@pytest.mark.parametrize("name", ["bogus", "roundin"])
def test_a_job_file_is_told_the_same(name, tmp_path):
    """Not the words of a union of types; and the mistakes in limits are those of limits alone."""
    with pytest.raises(ConfigError) as here:
        Tolerances.of({"weights": name})
    with pytest.raises(ConfigError) as there:
        load_job(JOB, overrides=[f"parity.tolerances={{weights: {name}}}"])
    assert here.value.what.removeprefix("tolerances.weights: ") in there.value.what
    assert there.value.found == here.value.found and there.value.hint.rstrip(".") == here.value.hint


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("3", ["parity.tolerances.weights: this is not a tolerance", "the names: bit_equal"]),
        ("[1]", ["this is not a tolerance"]),
        ("{rtl: 1, reason: x}", ["weights.rtl: unknown field", "allowed: ulp, rtol", "did you mean 'rtol'"]),
        ("{rtol: 0.1}", ["weights.reason: the field is missing", "add reason"]),
        ("{rtol: -1, reason: x}", ["weights.rtol: this value", "-1; allowed: 0"]),
        ("{reason: x}", ["a tolerance allows nothing"]),
    ],
)
def test_limits_in_a_job_file(value, says):
    with pytest.raises(ConfigError) as error:
        load_job(JOB, overrides=[f"parity.tolerances={{weights: {value}}}"])
    assert all(one in str(error.value) for one in says)
    assert "Literal" not in str(error.value) and "mistakes" not in str(error.value)


def test_a_limit_by_its_old_name_is_read():
    job = load_job(JOB, overrides=["parity.tolerances={loss: {of_largest: 0.1, reason: x}}"])
    assert job.parity.tolerances["loss"].rtol_of_max == 0.1 and "of_largest" not in dump_job(job)


def test_tolerances_of_a_job_file_are_kept():
    job = load_job(JOB, overrides=["parity.tolerances={weights: rounding, loss: {rtol: 0.1, reason: x}}"])
    assert job.parity.tolerances["weights"] == "rounding" and job.parity.tolerances["loss"].rtol == 0.1
    assert make_job(job.model_dump()).parity == job.parity
