"""Which patches are applied: by default all, by name fewer; told by status(). What they mend is tested in clusters."""

from __future__ import annotations

import json
import runpy
import sys
import types

import pytest

from estimator_pipeline import compat
from estimator_pipeline.cluster import peers
from estimator_pipeline.compat import patches
from estimator_pipeline.compat.patches import replacing
from estimator_pipeline.errors import CompatError, ConfigError
from estimator_pipeline.utils.process_state import STATE
from tests.support.processes import ROOT

ALL = frozenset(patches.NAMES)


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (None, ALL),
        ("", ALL),
        ("all", ALL),
        ("none", frozenset()),
        ([], frozenset()),
        ("sigterm", {"sigterm"}),
        ("sigterm, lost-peers", {"sigterm", "lost-peers"}),
        (["best-exporter"], {"best-exporter"}),
        ("-sigterm,-early-stopping", ALL - {"sigterm", "early-stopping"}),
    ],
)
def test_chosen(asked, chosen):
    assert patches.chosen(asked, {}) == chosen
    if isinstance(asked, str):
        assert patches.chosen(None, {"ESTIMATOR_PIPELINE_PATCHES": asked}) == chosen


@pytest.mark.parametrize(("old", "new"), patches.OLD_NAMES.items())
def test_old_names_are_understood(old, new):
    assert new in ALL and old not in ALL
    assert patches.chosen(old) == patches.chosen([old]) == {new}
    assert patches.chosen(f"-{old}") == patches.chosen([f"-{old}"]) == ALL - {new}
    for variable in (patches.VARIABLE, patches.OLD_VARIABLE):
        assert patches.chosen(None, {variable: f"-{old},-sigterm"}) == ALL - {new, "sigterm"}


def test_both_variables_are_read():
    """Submitted scripts hold the old one; the new one wins where both are set."""
    old, new = "ESTIMATOR_PIPELINE_REPAIRS", "ESTIMATOR_PIPELINE_PATCHES"
    assert patches.chosen(None, {old: "none"}) == patches.chosen(None, {new: "", old: "none"}) == frozenset()
    assert patches.chosen(None, {new: "sigterm", old: "none"}) == {"sigterm"}
    assert patches.chosen(None, {new: "all", old: "none"}) == ALL
    with pytest.raises(CompatError, match="^" + old + " names sigter"):
        patches.chosen(None, {old: "sigter"})
    with pytest.raises(CompatError, match="^" + new + " names sigter"):
        patches.chosen(None, {new: "sigter", old: "also wrong"})


@pytest.mark.parametrize("asked", ["none", "all", "sigterm,lost-peers", "-sigterm", []])
def test_child_processes_get_the_same_answer(asked, monkeypatch):
    monkeypatch.setenv(patches.VARIABLE, "")
    monkeypatch.setenv(patches.OLD_VARIABLE, "init-fn")
    for name in ("_native", "_restore"):
        monkeypatch.setattr(compat, name, lambda version: None)
    monkeypatch.setattr(patches, "apply", lambda names: None)
    monkeypatch.setattr(STATE, "is_installed", False)
    monkeypatch.setattr(STATE, "patches", frozenset())
    compat.install(asked)
    assert patches.chosen(None) == patches.chosen(asked)


def test_refused():
    with pytest.raises(CompatError, match="ESTIMATOR_PIPELINE_PATCHES names sigter") as error:
        patches.chosen(None, {"ESTIMATOR_PIPELINE_PATCHES": "sigter"})
    assert "the patches are train-and-evaluate, every-checkpoint" in str(error.value)
    with pytest.raises(CompatError, match="mixes names to apply and names to disable"):
        patches.chosen("sigterm,-lost-peers")


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "inf"])
def test_seconds_of_silence(given):
    assert peers.grace_secs({}) == 60
    assert peers.grace_secs({"ESTIMATOR_PIPELINE_PEER_SECS": "2.5"}) == 2.5
    with pytest.raises(ConfigError, match="is not a number of seconds above 0"):
        peers.grace_secs({"ESTIMATOR_PIPELINE_PEER_SECS": given})


# What each patch puts its hand on, as a program could see it.
_LOOK = """
import json, multiprocessing.spawn, os, sys
from estimator_pipeline import compat
from estimator_pipeline.errors import CompatError
{before}
tf = compat.install({argument})
from tensorflow.python.distribute import collective_all_reduce_strategy as mwm
from tensorflow_estimator.python.estimator import early_stopping, estimator, exporter, training

def ours(function):
    return "estimator_pipeline" in function.__code__.co_filename.split(os.sep)

print(json.dumps({{
    "on": [patch.name for patch in compat.status().patches if patch.on],
    "off": [patch.name for patch in compat.status().patches if not patch.on],
    "text": str(compat.status()),
    "environ": os.environ.get("ESTIMATOR_PIPELINE_PATCHES"),
    "patched": {{
        "train-and-evaluate": ours(tf.estimator.train_and_evaluate) and ours(training.train_and_evaluate)
            and ours(tf.compat.v1.estimator.train_and_evaluate),
        "evaluator-strategy": ours(mwm.CollectiveAllReduceExtended._initialize_strategy),
        "early-stopping": ours(tf.estimator.experimental.make_early_stopping_hook),
        "short-waits": training._DELAY_SECS_PER_WORKER == 0,
        "spawned-children": ours(multiprocessing.spawn.get_command_line),
        "around": ours(estimator.Estimator._train_model),
    }},
}}))
{after}
"""


def look(run_python, argument="", before="", after="", env=None):
    done = run_python(["-c", _LOOK.format(argument=argument, before=before, after=after)], env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_all_by_default_and_listed(run_python):
    seen = look(run_python, before="assert not any(patch.on for patch in compat.status().patches)")
    assert seen["on"] == list(patches.NAMES) and seen["off"] == []
    assert all(seen["patched"].values()), seen["patched"]
    assert "patch lost-peers (on): a training task whose peer has died exits" in seen["text"]


@pytest.mark.nightly
def test_none(run_python):
    """tf.estimator as it was; and a later call cannot change that."""
    after = """
try:
    compat.install("all")
except CompatError as error:
    assert "found: applied: none" in str(error), error
else:
    raise AssertionError
assert compat.install() is compat.install("none") is tf
"""
    seen = look(run_python, argument="'none'", after=after)
    assert seen["on"] == [] and seen["off"] == list(patches.NAMES)
    assert not any(seen["patched"].values()), seen["patched"]
    assert seen["environ"] == "none"


@pytest.mark.nightly
def test_all_but_one_by_the_environment(run_python):
    seen = look(run_python, env={"ESTIMATOR_PIPELINE_PATCHES": "-early-stopping"})
    assert seen["off"] == ["early-stopping"]
    assert [name for name, patched in seen["patched"].items() if not patched] == ["early-stopping"]


_SPAWN = """
import multiprocessing, sys

def with_tensorflow(answers):
    import tensorflow as tf
    import tensorflow.estimator
    answers.put([issubclass(tf.estimator.DNNClassifier, tf.estimator.Estimator), "tf_keras" in tf.keras.__name__])

def without(answers):
    answers.put("tensorflow" in sys.modules)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    for target in (with_tensorflow, without):
        child = context.Process(target=target, args=(answers,))
        child.start()
        print(answers.get(timeout=100))
        child.join(60)
        assert child.exitcode == 0, child.exitcode
"""


@pytest.mark.nightly
def test_a_spawned_child_has_tf_estimator(run_python, tmp_path, native):
    """And one that needs no TensorFlow imports none."""
    program = tmp_path / "program.py"
    program.write_text(_SPAWN)
    done = run_python(["-m", "estimator_pipeline", "exec", program])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"[True, {not native}]", "False"]


def test_what_only_says_it_were_a_module_is_passed_by(monkeypatch):
    """As cffi's libraries do, which `cryptography` puts into sys.modules."""

    class Library:
        __slots__ = ()

        @property
        def __class__(self):
            return types.ModuleType

    def old():
        return 1

    def new():
        return 2

    monkeypatch.setitem(sys.modules, "a_library.lib", Library())
    monkeypatch.setitem(sys.modules, "a_library", module := types.ModuleType("a_library"))
    module.old = old
    replacing.everywhere(old, new)
    assert module.old is new


def test_each_patch_has_a_test_that_fails_without_it():
    """tools/patches_proved.py and docs/reference/known-faults.md name one for each patch."""
    program = runpy.run_path(str(ROOT / "tools" / "patches_proved.py"))
    assert {*program["TESTS"], *program["BOTH_WAYS"]} == ALL
    text = (ROOT / "docs" / "reference" / "known-faults.md").read_text()
    for name, test in {**program["TESTS"], **program["BOTH_WAYS"]}.items():
        assert f"| `{name}` | `{test}` |" in text or name in program["BOTH_WAYS"]
        path, _, function = test.partition("::")
        assert not function or f"def {function.partition('[')[0]}(" in (ROOT / path).read_text()
