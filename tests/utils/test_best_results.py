"""Which of two evaluations is the better one, where metrics are NaN."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.engines.estimator.exporters import better
from estimator_pipeline.utils.best_results import is_better, is_number, nan_metrics

NAN = float("nan")


def higher(best_eval_result, current_eval_result):
    return current_eval_result["auc"] > best_eval_result["auc"]


def not_lower(best_eval_result, current_eval_result):
    return not current_eval_result["auc"] < best_eval_result["auc"]


def then_loss(best_eval_result, current_eval_result):
    best, current = best_eval_result, current_eval_result
    return (current["auc"], -current["loss"]) > (best["auc"], -best["loss"])


def as_numbers(best_eval_result, current_eval_result):
    return np.nan_to_num(current_eval_result["auc"]) > np.nan_to_num(best_eval_result["auc"])


def of_all(best_eval_result, current_eval_result):
    return sum(current_eval_result.values()) > sum(best_eval_result.values())


@pytest.mark.parametrize("compare", [higher, not_lower, then_loss, of_all, better("auc", "max")])
def test_nan_is_no_best_whatever_the_function(compare):
    number, none = {"auc": np.float32(0.5), "loss": 1.0}, {"auc": np.float32(NAN), "loss": 1.0}
    assert is_number(compare, number) and not is_number(compare, none)
    assert is_better(compare, none, number)
    assert not is_better(compare, number, none) and not is_better(compare, none, none)
    assert is_better(compare, number, {**number, "auc": np.float32(0.6)})


@pytest.mark.parametrize("mode", ["min", "max"])
def test_of_a_job_file(mode):
    compare = better("loss", mode)
    assert compare({"loss": NAN}, {"loss": 3.0}) and not compare({"loss": 3.0}, {"loss": NAN})
    assert not compare({"loss": NAN}, {"loss": NAN})
    assert compare({"loss": 3.0}, {"loss": 2.0}) == (mode == "min")


def test_a_nan_that_the_function_does_not_look_at_changes_nothing():
    first, second = {"auc": 0.5, "precision": NAN}, {"auc": 0.6, "precision": NAN}
    assert is_number(higher, first)
    assert is_better(higher, first, second) and not is_better(higher, second, first)
    assert not is_better(higher, first, first)
    assert nan_metrics({**first, "curve": np.array([1, NAN]), "image": b"x", "step": 3}) == ["curve", "precision"]


def test_the_first_of_what_is_compared_decides_before_the_nan_behind_it():
    low, high = {"auc": 0.5, "loss": NAN}, {"auc": 0.6, "loss": NAN}
    assert is_better(then_loss, low, high) and not is_better(then_loss, high, low)


def test_a_function_that_knows_nan_is_left_to_itself():
    number, none = {"auc": 0.5}, {"auc": NAN}
    assert is_better(as_numbers, none, number) and not is_better(as_numbers, number, none)
    below = {"auc": -0.5}
    assert is_better(as_numbers, below, none), "it takes NaN for 0, which is more"


def test_a_function_that_cannot_take_infinities():
    def bounded(best_eval_result, current_eval_result):
        for result in (best_eval_result, current_eval_result):
            assert not result["auc"] > 1 and not result["auc"] < 0
        return current_eval_result["auc"] > best_eval_result["auc"]

    assert is_number(bounded, {"auc": NAN})
    with pytest.raises(KeyError):
        is_better(bounded, {"auc": 0.5}, {"loss": NAN})
