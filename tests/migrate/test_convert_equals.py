"""What a conversion of names writes is the same thing: object by object, argument by argument, and when it is run."""

from __future__ import annotations

import inspect
import json
import re

import libcst as cst
import pytest

from estimator_pipeline import compat
from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.renames.tf1_names import ONE_BY_ARGUMENTS
from tests.migrate.test_convert import GOLDEN, HERE, of_tensorflow_1


@pytest.fixture(scope="module")
def tf():
    return compat.install()


def reach(tf, name: str):
    found = tf
    for part in name.split("."):
        found = getattr(found, part)
    return found


class _Chains(cst.CSTVisitor):
    """Every whole chain of attributes that begins with `tf`, in the order of the text."""

    def __init__(self) -> None:
        self.found: list[tuple[str, cst.Call | None]] = []
        self.calls: dict[cst.CSTNode, cst.Call] = {}

    def visit_Call(self, node: cst.Call) -> None:
        self.calls[node.func] = node

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        name = dotted_of(node)
        if name and name.startswith("tf."):
            self.found.append((name.removeprefix("tf."), self.calls.get(node)))
        return name is None


def chains(text: str) -> list[tuple[str, cst.Call | None]]:
    visitor = _Chains()
    cst.parse_module(text).visit(visitor)
    return [one for one in visitor.found if not one[0].endswith("disable_v2_behavior")]


@pytest.mark.parametrize("name", GOLDEN)
def test_every_name_of_a_program_is_the_object_that_it_was(tf, name):
    """What `tf.X` was in TensorFlow 1 is `tf.compat.v1.X` today; what was written for it is that very object."""
    old = chains(of_tensorflow_1(name))
    new = chains((HERE / "conversions" / f"{name}.py").read_text(encoding="utf-8"))
    assert len(old) == len(new) > 30
    other = []
    for (before, _), (after, call) in zip(old, new, strict=True):
        was, becomes = reach(tf.compat.v1, before), reach(tf, after)
        if before.startswith("flags.FLAGS."):
            continue
        if was is not becomes:
            other.append(after)
            assert call is not None and (after in ONE_BY_ARGUMENTS or _is_alike(was, becomes)), (before, after)
    assert len(other) < 12


def _is_alike(one, other) -> bool:
    """Functions that differ by decorators alone."""
    return not inspect.isclass(one) and (inspect.signature(one), one.__doc__) == (
        inspect.signature(other), other.__doc__)  # fmt: skip


def test_shared_names_are_two_things(tf):
    names = catalogue.shared_names()
    assert len(names) > 400
    wrong = []
    for name in names:
        if name.endswith("."):
            assert inspect.ismodule(reach(tf.compat.v1, name.removesuffix(".")))
            continue
        old, new = reach(tf.compat.v1, name), reach(tf, name)
        if old is new or (callable(old) and _is_alike(old, new)):
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize("name", sorted(ONE_BY_ARGUMENTS))
def test_one_by_arguments(tf, name):
    """The arguments by which a shared name is left have one place, one name and one default in both functions."""
    assert name in catalogue.shared_names()
    most, keywords = ONE_BY_ARGUMENTS[name]
    old, new = (inspect.signature(reach(root, name)).parameters for root in (tf.compat.v1, tf))
    # The first one may have another name: by position it is the same.
    assert list(old)[1:most] == list(new)[1:most]
    for keyword in keywords:
        was, now = old[keyword].default, new[keyword].default
        # Without a default it has to be given, and was given.
        assert now is inspect.Parameter.empty or was == now or {was, now} == {None, False}, keyword


_CONTRIB = """
import importlib.util, json, os
os.environ["ESTIMATOR_PIPELINE_CONTRIB"] = os.devnull
from estimator_pipeline import compat
compat.install(tf1=True)
import sys
from estimator_pipeline.compat import contrib as package
from estimator_pipeline.compat.tf1 import contrib
from estimator_pipeline.migrate.code import catalogue

def reach(value, path):
    for part in path.split("."):
        value = getattr(value, part)
    return value

def module(name):
    return importlib.import_module(name) if importlib.util.find_spec(name) else None

roots = {"tf": sys.modules["tensorflow"], "tf_slim": module("tf_slim"), "tensorflow_gan": None}
wrong, alike, count = [], [], 0
for name, home in catalogue.contrib_names().homes.items():
    count += 1
    slim = home.startswith("tf_slim")
    if slim and roots["tf_slim"] is None:
        continue
    was = reach(contrib.module("tensorflow.contrib"), name)
    root, _, below = home.partition(".")
    now = reach(package, name) if root == "contrib" else reach(roots[root], below)
    if was is not now and was != now:
        (alike if getattr(was, "__module__", "").startswith("estimator_pipeline") else wrong).append(name)
    if below and root == "tf" and not below.startswith("compat") and was != reach(roots["tf"].compat.v1, below):
        (alike if name in alike else wrong).append(name)
print(json.dumps({"wrong": wrong, "alike": sorted(set(alike)), "count": count}))
"""


@pytest.mark.nightly
def test_names_of_contrib_are_what_exec_gives(run_python):
    """Each name of the table is the object that `exec --tf1` has for it, but for a few with the same arguments."""
    done = run_python(["-c", _CONTRIB])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "wrong": [],
        "alike": ["data.map_and_batch", "data.unbatch", "tpu.TPUEstimator"],
        "count": len(catalogue.contrib_names().homes),
    }
    assert len(catalogue.contrib_names().homes) > 700


def test_a_regularizer_of_contrib(tf):
    """tf.contrib.layers.l2_regularizer(scale)(w) was scale * tf.nn.l2_loss(w) (TensorFlow 1.15, regularizers.py)."""
    import numpy as np

    weights = tf.constant(np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32))
    written = tf.keras.regularizers.l2(0.5 * 0.3)(weights)
    np.testing.assert_allclose(written, 0.3 * tf.nn.l2_loss(weights), rtol=1e-6)
    written = tf.keras.regularizers.l1(0.3)(weights)
    np.testing.assert_allclose(written, 0.3 * tf.reduce_sum(tf.abs(weights)), rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.slow
def test_converted_programs_run(tmp_path, run_python):
    """Programs of TensorFlow 1 learn under exec, once they are converted; as they were, none of them starts."""
    asked, sets = [], {"mnist_tf1": "digits", "demand_rnn": "demand"}
    done = run_python([HERE / "corpus_data.py", tmp_path / "data", *sets.values()])
    assert done.returncode == 0, done.stderr[-4000:]
    arguments = {
        "mnist_tf1": [f"--data_dir={tmp_path}/data/digits", f"--model_dir={tmp_path}/mnist",
                      "--hparams=train_steps=100"],
        "demand_rnn": [f"--data_path={tmp_path}/data/demand/demand.npz", f"--save_path={tmp_path}/rnn",
                       "--max_steps=100"],
    }  # fmt: skip
    for name in sets:
        (tmp_path / f"old_{name}.py").write_text(of_tensorflow_1(name))
        for program in (HERE / "conversions" / f"{name}.py", tmp_path / f"old_{name}.py"):
            asked.append({"arguments": [str(program), *arguments[name]], "folder": str(tmp_path),
                          "output": f"{tmp_path}/{len(asked)}.log", "timeout": 100})  # fmt: skip
    environ = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_python([HERE / "corpus_process.py", 1], environ, timeout=300, stdin=json.dumps(asked))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    codes = json.loads(done.stdout.splitlines()[-1])
    logs = [(tmp_path / f"{number}.log").read_text() for number in range(4)]
    assert [bool(code) for code in codes] == [False, True, False, True], "\n".join(log[-2000:] for log in logs)
    assert "has no attribute 'flags'" in logs[1] and "has no attribute 'flags'" in logs[3]
    assert float(re.findall(r"'accuracy': (?:np\.float32\()?([\d.]+)", logs[0])[-1]) > 0.5
    rmse, spread = map(float, re.findall(r"rmse=([\d.]+) of ([\d.]+)", logs[2])[-1])
    assert rmse < spread
