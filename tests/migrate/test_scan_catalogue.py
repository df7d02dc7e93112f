"""The catalogue against TensorFlow's real API under compat, both ways, and against itself."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path

import pytest

from estimator_pipeline import compat
from estimator_pipeline.migrate.code import catalogue

ROOT = Path(__file__).resolve().parents[2]
# Rows of what has no name in TensorFlow.
WORDS = {"model_fn", "input_fn", "serving_input_receiver_fn", "minimize", "TF_CONFIG", "tf.contrib", "private import",
         "v1 symbol", "unreadable file", "make_one_shot_iterator", "make_initializable_iterator"}  # fmt: skip
# Public roots of which every name has to have a row.
COMPLETE = ("estimator", "compat.v1.estimator", "feature_column", "compat.v1.feature_column", "compat.v1.layers",
            "compat.v1.losses", "compat.v1.metrics")  # fmt: skip
# Of tf.compat.v1.train, of which the rest has rows as "v1 symbol".
TRAIN = re.compile(r"Optimizer|Hook$|^Session|Scaffold|Saver|_decay|piecewise|global_step|^init_from|^warm_start|Vocab")


@pytest.fixture(scope="module")
def tf():
    return compat.install()


def reach(tf, name: str):
    """The object of a full name; AttributeError where there is none."""
    found = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def public(root, prefix: str) -> list[str]:
    found = []
    for name in dir(root):
        if name.startswith("_"):
            continue
        value = getattr(root, name)
        if isinstance(value, types.ModuleType):
            if value.__name__.startswith(("tensorflow", "tf_keras", "keras")) and name != "keras":
                found += public(value, f"{prefix}.{name}")
        else:
            found.append(f"{prefix}.{name}")
    return found


def is_of_tensorflow(row) -> bool:
    return row.name not in WORDS and not row.name.endswith(" subclass")


@pytest.mark.parametrize("root", COMPLETE)
def test_every_public_name_has_a_row(tf, root):
    names = public(reach(tf, f"tf.{root}"), f"tf.{root}")
    assert len(names) > 10
    missing = [name for name in names if not _has_a_row(name)]
    assert not missing


def test_every_optimizer_hook_and_schedule_of_v1_has_a_row(tf):
    names = [f"tf.compat.v1.train.{name}" for name in dir(tf.compat.v1.train) if TRAIN.search(name)]
    assert len(names) > 40
    # Messages and readers are no constructs of an Estimator program.
    assert [name for name in names if not _has_a_row(name)] == ["tf.compat.v1.train.SaverDef"]


def _has_a_row(name: str) -> bool:
    match = catalogue.find(name.replace("tf.", "tensorflow.", 1))
    return match is not None and match.row.name != "v1 symbol" and match.spelled == name


def test_every_row_is_there_by_each_of_its_names_that_exist(tf):
    """Where the catalogue says that a name exists, TensorFlow has it; where it does not, TensorFlow has not."""
    wrong, checked = [], 0
    for row in catalogue.ROWS:
        if not is_of_tensorflow(row) or not row.runs:
            continue
        for name in row.spellings:
            if name.startswith("tf.contrib") or name.startswith("tf.compat.v1.contrib"):
                continue
            match = catalogue.find(name.replace("tf.", "tensorflow.", 1))
            assert match is not None and match.row is row and match.spelled == name
            try:
                reach(tf, _class_of(name, row))
                there = True
            except AttributeError:
                there = False
            checked += 1
            # tf.compat.v1 has not all of tf's names; nobody spells those so.
            if there != match.exists and not (name.startswith("tf.compat.v1.") and name != row.name):
                wrong.append((name, there, match.exists))
    assert not wrong and checked > 700


def _class_of(name: str, row) -> str:
    """A field's name below its class is no attribute of it."""
    parent = name.rpartition(".")[0]
    for owner in catalogue.ROWS:
        if owner.fields and parent in owner.spellings and name.rpartition(".")[2] in owner.fields:
            return parent
    return name


@pytest.mark.parametrize("name", ["Estimator", "EstimatorSpec", "RunConfig", "TrainSpec", "EvalSpec"])
def test_fields_are_the_parameters_of_the_class_in_their_order(tf, name):
    row = catalogue.row(f"tf.estimator.{name}")
    real = getattr(tf.estimator, name)
    made = real.__new__ if issubclass(real, tuple) else real.__init__
    # Decorators of TensorFlow keep the signature under __wrapped__ or in tf_decorator.
    parameters = list(inspect.signature(getattr(made, "__wrapped__", made)).parameters)[1:]
    assert list(row.fields) == parameters
    for field in row.fields:
        assert catalogue.row(f"{row.name}.{field}").kind == row.kind


def test_v1_names_are_v1_names_alone(tf):
    names = catalogue.v1_names()
    assert len(names) > 900
    wrong = []
    for name, successor in names.items():
        old = reach(tf, f"tf.compat.v1.{name}")
        try:
            reach(tf, f"tf.{name}")
            wrong.append(f"tf.{name} exists")
        except AttributeError:
            pass
        if successor and reach(tf, f"tf.{successor}") is not old:
            wrong.append(f"tf.{successor} is another object than tf.compat.v1.{name}")
    assert not wrong


def test_two_meanings_are_two_objects(tf):
    for name in catalogue.TWO_MEANINGS:
        assert reach(tf, f"tf.compat.v1.{name}") is not reach(tf, f"tf.{name}")
        assert catalogue.find(f"tensorflow.{name}").ambiguous
        assert not catalogue.find(f"tensorflow.compat.v1.{name}").ambiguous


def test_private_modules_are_there(tf):
    """A sample by importing: all of them would take minutes."""
    import importlib

    modules = sorted(catalogue.private_modules())
    assert len(modules) > 1000
    for name in [m for m in modules if not m.rpartition(".")[2].startswith(("gen_", "_")) and ".ops." in m][::12]:
        importlib.import_module(name)
    assert not catalogue.is_there("tensorflow.python.tpu.tpu_embedding")
    assert not catalogue.is_there("tensorflow.python.keras.no_such_module.thing")
    assert catalogue.is_there("tensorflow.python.estimator.canned.head")
    assert catalogue.is_there("tensorflow.python.ops.array_ops.concat")


def test_names_that_compat_finds_elsewhere_are_there():
    """One that moved, one in a module that is another today, such a module; not what has no successor."""
    assert catalogue.is_there("tensorflow.python.util.nest.is_sequence")
    assert catalogue.is_there("tensorflow.python.training.training_ops")
    assert catalogue.is_there("tensorflow.python.training.training_ops.resource_apply_adam")
    assert catalogue.is_there("tensorflow.python.training.tracking.tracking.Asset")
    assert not catalogue.is_there("tensorflow.python.framework.ops.RegisterShape")
    assert not catalogue.is_there("tensorflow.python.eager.execution_callbacks")


# The catalogue itself --------------------------------------------------------------------------------------


def test_names_and_spellings_belong_to_one_row():
    seen: dict[str, str] = {}
    for row in catalogue.ROWS:
        for name in row.spellings:
            assert seen.setdefault(name, row.name) == row.name
    assert len({row.name for row in catalogue.ROWS}) == len(catalogue.ROWS)


def test_every_row_says_what_to_write():
    for row in catalogue.ROWS:
        assert row.kind in catalogue.KINDS and row.successor
        nothing = row.successor.startswith("not needed") or row.name in ("tf.contrib", "unreadable file")
        assert row.write or nothing, row.name


def test_code_of_rows_can_be_parsed():
    """What to write is Python, dots for what the reader fills in."""
    import ast

    prose = []
    for row in catalogue.ROWS:
        try:
            ast.parse(row.write)
        except SyntaxError:
            prose.append(row.name)
    assert not prose


def test_every_anchor_is_a_heading_of_the_document():
    text = (ROOT / "docs" / "reference" / "migrate-constructs.md").read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).strip().replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    missing = {row.anchor.partition("#")[2] for row in catalogue.ROWS} - headings
    assert not missing
