"""What a RunConfig says about its task, for every task of every dialect and every way to name a strategy.

The record is what TensorFlow 2.15 says, without this package:
`python tests/programs/run_config_fields.py > tests/records/run_config_fields.json`.
"""

from __future__ import annotations

import json

import pytest

# Their errors are raised by the part that was written anew, in its own words.
_OWN_WORDS = ("train twice", "eval twice", "experimental remote")


def _expanded(outcomes):
    """Each case with what came out, where the file may name an earlier case with the same outcome."""
    return {case: outcomes[value] if isinstance(value, str) else value for case, value in outcomes.items()}


def _comparable(case, outcome):
    if case.split(" | ")[0] in _OWN_WORDS:
        return {name: value for name, value in outcome.items() if name != "message"}
    return outcome


@pytest.fixture(scope="module")
def recorded(records):
    return _expanded(json.loads((records / "run_config_fields.json").read_text()))


@pytest.fixture(scope="module")
def found(run_warm, programs):
    done = run_warm(["-m", "estimator_pipeline", "exec", programs / "run_config_fields.py"])
    assert done.returncode == 0, done.stderr
    return _expanded(json.loads(done.stdout))


def test_same_cases(found, recorded):
    assert list(found) == list(recorded)
    assert len(recorded) > 500


def test_fields_are_those_of_tensorflow_2_15(found, recorded):
    different = {
        case: {
            name: (recorded[case].get(name), found[case].get(name))
            for name in sorted({*recorded[case], *found[case]})
            if recorded[case].get(name) != found[case].get(name)
        }
        for case in recorded
        if _comparable(case, recorded[case]) != _comparable(case, found[case])
    }
    assert not different, f"case -> field -> (2.15, here):\n{json.dumps(different, indent=1)}"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # With a training strategy the coordinator says at run time what the task is; until then the config
        # stands for a process by itself, with the cluster beside it.
        (
            "train multi_worker | two workers, second",
            {"_task_type": "worker", "_task_id": 0, "_is_chief": True, "_master": "", "_num_worker_replicas": 1}
            | {"_distribute_coordinator_mode": "independent_worker", "cluster_spec": {"worker": ["a:1", "b:2"]}},
        ),
        # Without one, TF_CONFIG says it: and it refuses a cluster without a chief.
        ("none | two workers, second", {"error": "ValueError"}),
        (
            "none | chief, worker",
            {"_task_id": 1, "_is_chief": False, "_master": "grpc://b:2", "_num_worker_replicas": 3}
            | {"_global_id_in_cluster": 2},
        ),
        # The `master` dialect never goes through the coordinator.
        (
            "train multi_worker | master",
            {"_distribute_coordinator_mode": None, "_task_type": "master", "_num_ps_replicas": 1},
        ),
        ("eval mirrored | chief, worker", {"_distribute_coordinator_mode": None, "_task_id": 1}),
        (
            "experimental remote | none",
            {"_distribute_coordinator_mode": "standalone_client"}
            | {"cluster_spec": {"chief": ["r:1"], "worker": ["r:2", "r:3"]}},
        ),
        ("experimental remote | chief", {"error": "ValueError"}),
        ("train twice | none", {"error": "ValueError"}),
    ],
)
def test_record_is_not_empty_of_meaning(found, case, expected):
    """A few cases spelled out, so that a record made with a mistake in the program does not pass for the truth."""
    assert {name: found[case].get(name) for name in expected} == expected


@pytest.mark.since_2_16
def test_own_errors_say_what_to_do(found):
    assert "unset TF_CONFIG" in found["experimental remote | chief"]["message"]
    assert "Set only one of them" in found["train twice | none"]["message"]
