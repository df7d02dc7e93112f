"""Input functions of one's own in job files: what they give is looked at, and what goes wrong in them is told."""

from __future__ import annotations

import pytest

from estimator_pipeline.engines.jobs.data import job_inputs
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError, InputError, TaskFailedError
from estimator_pipeline.job import make_job
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

OWN = """
import numpy as np
import estimator_pipeline as ep
from estimator_pipeline.errors import InputError

tf = ep.compat.install()
X = np.random.RandomState(0).uniform(size=[64, 4]).astype("float32")
Y = (X.sum(axis=1) > 2).astype("int64")

def good(input_context=None):
    return tf.data.Dataset.from_tensor_slices((X, Y)).repeat(2).batch(16)

def none(input_context=None):
    pass

def raises(input_context=None):
    return {}["no such file list"]

def lost(input_context=None):
    raise ConnectionResetError("the store does not answer")

def gone(input_context=None):
    open("/nowhere/at/all")

def told(input_context=None):
    raise InputError("no data yet")

def tensors(input_context=None):
    return tf.constant(X[:16]), tf.constant(Y[:16])

def read(input_context=None):
    return tf.compat.v1.data.make_one_shot_iterator(good()).get_next()

def features_only(input_context=None):
    return tf.data.Dataset.from_tensor_slices(X).batch(16)

def weighted(input_context=None):
    return tf.data.Dataset.from_tensor_slices((X, Y, X[:, 0])).batch(16)

def a_list(input_context=None):
    return [X, Y]

def named(input_context=None):
    return tf.data.Dataset.from_tensor_slices(({"a": X}, Y)).batch(16)

def text(input_context=None):
    return tf.data.Dataset.from_tensor_slices(({"a": X, "b": tf.strings.as_string(X)}, Y)).batch(16)

def needs(input_context=None, *, split):
    return good()

def no_context():
    return good()

def layers(params):
    return tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(4,), name="x"), tf.keras.layers.Dense(2)])

def columns(params):
    a, b = tf.keras.Input([4], name="a"), tf.keras.Input([4], name="b")
    return tf.keras.Model({"a": a, "b": b}, tf.keras.layers.Dense(2)(a + b))

def bad_shape(params):
    return tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(5,)), tf.keras.layers.Dense(2)])

def model_fn(features, labels, mode):
    v1 = tf.compat.v1
    weights = v1.get_variable("weights", [4, 1])
    loss = tf.reduce_mean(tf.square(features @ weights))
    step = v1.train.get_or_create_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
"""


@pytest.fixture
def run(tmp_path, tmp_path_factory):
    (tmp_path / "own_inputs_job.py").write_text(OWN)

    def run(*settings, engine="estimator", only_data=False):
        own = f"{tmp_path}/own_inputs_job.py:"
        job = {
            "model": {"function": f"{own}layers", "loss": "sparse_categorical_crossentropy"},
            "input": {"source": "function", "train": f"{own}good", "eval": f"{own}good", "global_batch_size": 16},
            "train": {"max_steps": 2},
            "run": {"model_dir": str(tmp_path_factory.mktemp("model")), "seed": 1, "engine": engine},
        }
        made = make_job(job, overrides=[one.replace("OWN:", own) for one in settings])
        return job_inputs(made) if only_data else run_job(made, environ={})

    return run


def refused(run, *settings, kind=ConfigError, **options):
    with pytest.raises(kind) as error:
        run(*settings, **options)
    assert "Traceback" not in str(error.value) and str(error.value).count("\n") <= 2
    return error.value


BOTH = pytest.mark.parametrize("engine", ["estimator", "keras"])


@BOTH
@pytest.mark.parametrize("field", ["train", "eval"])
def test_one_that_returns_nothing(run, engine, field):
    error = refused(run, f"input.{field}=OWN:none", engine=engine)
    assert f"input.{field}: " in error.what and "own_inputs_job.py:none returns nothing" in error.what
    assert error.hint == "return a tf.data.Dataset of (features, labels)" and error.exit_code == 2


@BOTH
@pytest.mark.parametrize("field", ["train", "eval"])
def test_one_that_raises(run, engine, field):
    error = refused(run, f"input.{field}=OWN:raises", engine=engine)
    assert error.what.endswith(":raises fails: KeyError: 'no such file list'") and error.exit_code == 2
    assert 'own_inputs_job.py, line 17: return {}["no such file list"]' in error.found


def test_what_may_go_well_the_next_time_is_no_bad_input(run):
    """A supervisor starts the job again for a lost connection, and not for a file that is not there."""
    error = refused(run, "input.train=OWN:lost", kind=TaskFailedError)
    assert error.exit_code == 1 and "ConnectionResetError: the store does not answer" in error.what
    assert "FileNotFoundError" in refused(run, "input.train=OWN:gone").what
    assert str(refused(run, "input.train=OWN:told", kind=InputError)) == "no data yet"


@BOTH
def test_data_without_labels(run, engine):
    error = refused(run, "input.train=OWN:features_only", engine=engine)
    assert error.what.endswith("features_only gives no labels") and "shape=(None, 4)" in error.found
    error = refused(run, "input.train=OWN:weighted", engine=engine)
    assert error.what.endswith("weighted gives other than two things") and "input.weight_key" in error.hint


def test_a_model_fn_may_do_without_labels_and_without_params(run, logged):
    own = ["input.train=OWN:features_only", "input.eval=OWN:features_only", "model={function: 'OWN:model_fn'}"]
    assert run(*own).global_step == 2 and "Not used" not in logged.text
    assert run(*own, "model.loss=mse", "model.optimizer.name=adam", "train.max_steps=4").global_step == 4
    assert "OWN:model_fn is a model_fn: model.loss, model.optimizer".replace("OWN", "own_inputs_job.py") in logged.text
    error = refused(run, *own, "model.params={depth: 3}")
    assert "has no parameter `params`" in error.what and error.found == "model_fn(features, labels, mode)"


def test_tensors(run):
    error = refused(run, "input.train=OWN:tensors", engine="keras")
    assert error.what.endswith(":tensors returns a tuple, and the engine keras reads a tf.data.Dataset")
    assert error.found == "(float32 (16, 4), int64 (16,))"
    assert refused(run, "input.train=OWN:a_list").what.endswith(":a_list returns a list")
    assert run("input.train=OWN:tensors", "input.eval=OWN:tensors", "eval.steps=1").global_step == 2
    assert run("input.train=OWN:read", "input.eval=OWN:read").global_step == 2


def test_an_evaluation_of_tensors_that_never_end(run):
    """It would never end either."""
    error = refused(run, "input.eval=OWN:tensors")
    assert "gives the same tensors again and again, and an evaluation reads to the end" in error.what
    assert error.hint.endswith("or set eval.steps")


@BOTH
@pytest.mark.parametrize(
    ("settings", "what", "found"),
    [
        (
            ["model.function=OWN:columns"],
            "the model has 2 named inputs, and the data have one tensor",
            "a (None, 4)",
        ),
        (
            ["model.function=OWN:columns", "input.train=OWN:named"],
            "the model has an input named 'b', and the data have no such feature",
            "features: a (None, 4); inputs of the model: a (None, 4), b (None, 4)",
        ),
        (["input.train=OWN:named"], "the model has an input named 'x'", "inputs of the model: x (None, 4)"),
    ],
)
def test_features_that_the_model_does_not_take(run, engine, settings, what, found):
    error = refused(run, *settings, engine=engine)
    assert what in error.what and found in error.found and error.exit_code == 2
    assert error.__cause__ is not None, "what Keras said is kept"


@BOTH
def test_text_for_a_model_that_takes_numbers(run, engine):
    error = refused(run, "model.function=OWN:columns", "input.train=OWN:text", engine=engine)
    assert error.what == "the data have text for 'b', and these inputs of the model take numbers"
    assert error.found == "b of float32" and error.exit_code == 2


@BOTH
def test_what_keras_says_of_other_things_stays(run, engine):
    with pytest.raises(ValueError, match=r"incompatible with the layer|expected axis -1") as error:
        run("model.function=OWN:bad_shape", engine=engine)
    assert not isinstance(error.value, ConfigError)


def test_arguments(run):
    error = refused(run, "input.train=OWN:no_context", only_data=True)
    assert "has no parameter `input_context`" in error.what and error.found == "no_context()"
    error = refused(run, "input.train=OWN:needs", only_data=True)
    assert "cannot be called with input.params: missing a required" in error.what
    assert error.found == "needs(input_context=None, *, split); input.params: none"
    error = refused(run, "input.params={depth: 3}", only_data=True)
    assert "unexpected keyword argument 'depth'" in error.what and "input.params: depth" in error.found
