"""Variables of one name in a Keras model: a name for each, as a graph would call them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from estimator_pipeline.errors import TaskFailedError
from estimator_pipeline.migrate import migrate_checkpoint
from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.parity import compare_models
from estimator_pipeline.parity.optimizer_slots import kept_by_keras
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1, keras = tf.compat.v1, tf.keras
legacy = keras.optimizers.legacy


class Block(keras.layers.Layer):
    """Two layers that it makes and builds in its own build(), and two variables without names."""

    def build(self, shape):
        # Weights of its own stand before those of its layers, whichever were made first.
        self.second = keras.layers.Dense(3, name="b")
        self.first = keras.layers.Dense(3, name="a")
        self.first.build(shape)
        self.second.build((None, 3))
        self.scale = tf.Variable(np.ones(3, "float32"))
        self.shift = tf.Variable(np.zeros(3, "float32"))
        self.kernel_1 = self.add_weight(name="kernel_2", shape=(), initializer="ones")
        self.count = tf.Variable(np.zeros(3, "float32"), trainable=False)
        super().build(shape)

    def call(self, given):
        return self.second(tf.nn.tanh(self.first(given))) * self.scale * self.kernel_1 + self.shift


def network(given):
    return keras.layers.Dense(1, name="end")(Block(name="block")(given))


def model(optimizer, scope=None):
    keras.utils.set_random_seed(4)
    with scope or contextlib.nullcontext():
        inputs = keras.Input((4,))
        made = keras.Model(inputs, network(inputs))
        made.compile(optimizer(), "mse")
        keras_optimizers.create_slots(made)
    return made


NAMES = [
    "block/Variable", "block/Variable_1", "block/Variable_2", "block/bias", "block/bias_1", "block/kernel",
    "block/kernel_1", "block/kernel_2", "end/bias", "end/kernel",
]  # fmt: skip


def test_they_are_those_of_a_graph():
    made = model(legacy.SGD)
    block = made.get_layer("block")
    names = keras_names.names_of(made.weights)
    assert sorted(names.values()) == NAMES
    with tf.Graph().as_default():
        built = keras.Model(inputs := keras.Input((4,)), network(inputs)).get_layer("block")
        for part in ("first", "second"):
            for ours, theirs in zip(getattr(block, part).weights, getattr(built, part).weights, strict=True):
                assert f"{names[id(ours)]}:0" == theirs.name
        for own in ("scale", "shift", "count", "kernel_1"):
            assert f"{names[id(getattr(block, own))]}:0" == getattr(built, own).name


def two_replicas():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    "optimizer",
    [
        legacy.Adam,
        keras.optimizers.Adam,
        lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam()),
        lambda: keras.mixed_precision.LossScaleOptimizer(legacy.Adam()),
    ],
    ids=["legacy", "newer", "scaled", "scaled legacy"],
)
def test_slots_are_called_after_their_weights(optimizer, replicas):
    made = model(optimizer, two_replicas() if replicas == 2 else None)
    named = keras_names.named(made)
    found = dict(named)
    assert len(found) == len(named)
    weights = keras_names.names_of(made.trainable_variables)
    # Slots are known by their place in a training's own order here, whatever they are called.
    inner = getattr(made.optimizer, "inner_optimizer", made.optimizer)
    for place, weight in enumerate(made.trainable_variables):
        name = keras_names.names_of(made.weights)[id(weight)]
        slots = [one for known, one in found.items() if known.endswith((f"{name}/m", f"m/{name}"))]
        expected = inner.get_slot(weight, "m") if keras_optimizers.is_legacy(inner) else inner._momentums[place]
        assert len(slots) == 1 and slots[0] is expected, (name, slots)
    assert len(weights) == 9
    kept = kept_by_keras(made).names
    assert {f"{name} @m" for name in weights.values()} <= set(kept.values())


def test_a_name_that_a_weight_has_by_itself_is_not_given_again():
    variables = [tf.Variable(0.0, name=name) for name in ("w", "w_1", "w", "w", "x")]
    names = keras_names.names_of([*variables, variables[0]])
    assert [names[id(one)] for one in variables] == ["w", "w_1", "w_2", "w_3", "x"]


# What goes by names ---------------------------------------------------------------------------------------------------

X = np.random.RandomState(2).uniform(-1, 1, (16, 4)).astype("float32")
Y = X.sum(1, keepdims=True) ** 2


def input_fn():
    return tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(8)


def model_fn(features, labels, mode, params):
    block = Block(name="block")
    found = keras.layers.Dense(1, name="end")(block(features))
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=found)
    loss = tf.reduce_mean(tf.square(found - labels))
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss)
    trained = v1.trainable_variables()
    if params["frozen"]:
        trained = [one for one in trained if one is not block.second.kernel]
    optimizer = v1.train.AdamOptimizer(0.01)
    train_op = optimizer.minimize(loss, v1.train.get_or_create_global_step(), var_list=trained)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.gate("False-newer")
@pytest.mark.parametrize("optimizer", [legacy.Adam, keras.optimizers.Adam], ids=["legacy", "newer"])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_same_layers_in_both_need_no_mapping(tmp_path, optimizer, frozen):
    estimator = tf.estimator.Estimator(model_fn, params={"frozen": frozen})
    ours = model(lambda: optimizer(0.01, epsilon=1e-8))
    found = compare_models(estimator, ours, input_fn=input_fn, steps=3, folder=tmp_path)
    assert {"block/kernel", "block/kernel_1", "block/Variable_1"} <= set(found.arrays["keras"])
    # V1 makes no slot of what it does not train: then slots are not compared.
    assert ("block/kernel_1 @m" in found.initial.names) is not frozen
    assert found.equal is not frozen
    if frozen:
        assert "step 1, weight block/kernel_1" in str(found.findings[0])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint of an Estimator, and its values."""
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path_factory.mktemp("old")), params={"frozen": False})
    estimator.train(input_fn, steps=2)
    return estimator.latest_checkpoint(), {name: estimator.get_variable_value(name) for name in NAMES}


@pytest.mark.parametrize("optimizer", [legacy.Adam, keras.optimizers.Adam], ids=["legacy", "newer"])
def test_a_checkpoint_that_is_taken_over(checkpoint, tmp_path, optimizer):
    path, values = checkpoint
    done = migrate_checkpoint(path, to="keras", model=lambda: model(optimizer), output=tmp_path / "new")
    made = model(optimizer)
    tf.train.Checkpoint(model=made, optimizer=made.optimizer).restore(done.output).expect_partial()
    found = {keras_names.names_of(made.weights)[id(weight)]: weight.numpy() for weight in made.weights}
    reader = tf.train.load_checkpoint(path)
    slots = dict(keras_names.named(made))
    for name in NAMES:
        np.testing.assert_array_equal(found[name], values[name])
        if name != "block/Variable_2":
            (slot,) = [one for known, one in slots.items() if known.endswith((f"{name}/m", f"m/{name}"))]
            np.testing.assert_array_equal(slot, reader.get_tensor(f"{name}/Adam"))


@pytest.mark.parametrize("there", [1, 2, 3])
def test_a_file_has_a_value_for_each_of_two_that_are_called_alike(monkeypatch, there):
    """Zeros fit each other: as many as are wanted have to be there."""
    from estimator_pipeline.migrate.checkpoints import pipeline as checkpoint_steps
    from estimator_pipeline.migrate.checkpoints import read as checkpoint_reading
    from estimator_pipeline.migrate.checkpoints.draft import MigrationPlan
    from estimator_pipeline.migrate.checkpoints.state import StateEntry, TrainingState

    zeros = np.zeros(3, "float32")

    def state(names):
        none = {"slots": {}, "settings": {}, "averages": {}, "steps": {"global_step": 4}}
        return TrainingState(
            source="it", kind="keras", weights={name: StateEntry(name, zeros) for name in names}, **none
        )

    names = frozenset({"n/kernel", "n/kernel_1"})
    done = MigrationPlan(step=4, values=dict.fromkeys(names, zeros), rows=(), weights={}, notes=())
    monkeypatch.setattr(checkpoint_reading, "read_state", lambda path: state([f"place_{n}" for n in range(there)]))
    lacks = pytest.raises(TaskFailedError, match="does not contain") if there < 2 else contextlib.nullcontext()
    with lacks:
        checkpoint_steps._verify("ckpt", state(sorted(names)), done, names)
