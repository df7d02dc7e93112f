"""Gradients added up over several batches: the steps of one big batch, in an Estimator, in Keras and in job files."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers.spec import NAMES, Optimizer
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

WIDTH, BATCH, EVERY, CHANGES = 5, 12, 3, 4
RATE = 0.1
RANDOM = np.random.default_rng(7)
FEATURES = RANDOM.normal(size=(CHANGES * BATCH, WIDTH)).astype(np.float32)
TARGETS = (RANDOM.normal(size=(CHANGES * BATCH, 2)) * 2).astype(np.float32)
START = RANDOM.normal(size=(WIDTH, 2)).astype(np.float32)


@tf.keras.saving.register_keras_serializable(package="accumulation")
class Start(tf.keras.initializers.Initializer):
    def __call__(self, shape, dtype=None, **kwargs):
        return tf.constant(START, dtype or tf.float32)


def layers():
    dense = tf.keras.layers.Dense(2, kernel_initializer=Start(), name="dense")
    return tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(WIDTH,)), dense])


def data(batch):
    return tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS)).batch(batch)


def mirrored(count):
    devices = [f"CPU:{i}" for i in range(count)]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def of_estimator(folder, optimizer, *, batch, steps, replicas=1, stops=(), **options):
    """Kernel and bias after training; begun anew from its checkpoint after each of the steps `stops`."""
    model_fn = ep.build_model_fn(layers, loss="mse", optimizer=optimizer, **options)
    strategy = mirrored(replicas) if replicas > 1 else None
    # A step's batch is that of its place in the data, wherever training began.
    for first, last in zip((0, *stops), (*stops, steps), strict=True):
        config = tf.estimator.RunConfig(str(folder), train_distribute=strategy, tf_random_seed=1)
        estimator = tf.estimator.Estimator(model_fn, config=config)
        estimator.train(lambda first=first: data(batch // replicas).skip(first * replicas), max_steps=last)
    assert estimator.get_variable_value("global_step") == steps
    return [estimator.get_variable_value(f"dense/{part}") for part in ("kernel", "bias")]


def of_keras(optimizer, *, batch, steps, replicas=1, **options):
    strategy = mirrored(replicas) if replicas > 1 else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = ep.build_keras_model(layers, loss="mse", optimizer=optimizer, **options)
    batches = data(batch // replicas)
    given = batches if strategy is None else strategy.distribute_datasets_from_function(lambda _: batches)
    model.fit(given, steps_per_epoch=steps, verbose=0)
    assert model.optimizer.iterations.numpy() == steps
    return [model.layers[-1].kernel.numpy(), model.layers[-1].bias.numpy()]


def same(found, wanted, told="", atol=2e-6):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=atol, err_msg=told)


@pytest.mark.gate("momentum-v1", "adam-keras")
@pytest.mark.parametrize("api", ["v1", "keras"])
@pytest.mark.parametrize("name", NAMES)
def test_small_batches_make_the_steps_of_a_big_one(name, api, tmp_path):
    """Of every optimizer; weight decay and Adam's correction go by the changes, not by the steps."""
    fields = {"name": name, "api": api, "learning_rate": RATE, "weight_decay": None if name == "ftrl" else 0.1}
    wanted = of_estimator(tmp_path / "big", fields, batch=BATCH, steps=CHANGES)
    assert np.abs(wanted[0] - START).max() > 1e-2, "it was trained"
    small = {**fields, "gradient_accumulation_steps": EVERY}
    steps = {"batch": BATCH // EVERY, "steps": CHANGES * EVERY}
    same(of_estimator(tmp_path / "small", small, **steps), wanted, "Estimator")
    same(of_keras(small, **steps), wanted, "Keras")


@pytest.mark.nightly
@pytest.mark.parametrize("clipping", [{"clip_norm": 0.5}, {"clip_value": 0.2}, {}], ids=["norm", "value", "none"])
@pytest.mark.parametrize("api", ["v1", "keras"])
def test_replicas_and_clipping(api, clipping, tmp_path):
    """The mean of all batches of all replicas is clipped: that of the big batch."""
    fields = {"name": "momentum", "api": api, "learning_rate": RATE}
    wanted = of_estimator(tmp_path / "big", fields, batch=BATCH, steps=CHANGES, **clipping)
    if clipping:
        free = of_keras(fields, batch=BATCH, steps=CHANGES)
        assert np.abs(free[0] - wanted[0]).max() > 1e-2, "it is clipped"
    small = {**fields, "gradient_accumulation_steps": EVERY}
    steps = {"batch": BATCH // EVERY, "steps": CHANGES * EVERY, "replicas": 2, **clipping}
    same(of_estimator(tmp_path / "small", small, **steps), wanted, "Estimator")
    same(of_keras(small, **steps), wanted, "Keras")


@pytest.mark.gate("v1")
@pytest.mark.parametrize("api", ["v1", "keras"])
def test_all_replicas_ask_for_the_step_before_it_is_counted(api, tmp_path):
    """The first replica's optimizer changes the variables of all; another one that looked later would keep its sums."""
    graphs = []

    class Look(tf.estimator.SessionRunHook):
        def begin(self):
            graphs.append(tf.compat.v1.get_default_graph())

    optimizer = {"name": "sgd", "api": api, "gradient_accumulation_steps": EVERY}
    config = tf.estimator.RunConfig(str(tmp_path), train_distribute=mirrored(2))
    estimator = tf.estimator.Estimator(ep.build_model_fn(layers, loss="mse", optimizer=optimizer), config=config)
    estimator.train(lambda: data(2), steps=1, hooks=[Look()])

    def before(operation):
        found, left = set(), [operation]
        while left:
            one = left.pop()
            # A condition that is false waits for itself alone, and not for what the other branch would use.
            data = one.inputs[:1] if one.type in ("If", "StatelessIf") else one.inputs
            inputs = [*(tensor.op for tensor in data), *one.control_inputs]
            left += [other for other in inputs if other not in found]
            found.update(inputs)
        return found

    operations = graphs[0].get_operations()
    rests = [one for one in operations if one.type == "FloorMod"]
    asked = {one for one in rests if any("global_step" in other.name for other in before(one))}
    counted = [one for one in operations if one.type == "AssignAddVariableOp" and "global_step" in one.inputs[0].name]
    assert len(asked) == len(counted) == 2, (asked, counted)
    for one in counted:
        assert asked <= before(one), one.name


@pytest.mark.gate("v1-1")
@pytest.mark.parametrize(("api", "replicas"), [("v1", 1), ("v1", 2), ("keras", 1)])
def test_a_run_that_is_resumed_amid_the_batches_ends_bit_equal(api, replicas, tmp_path):
    fields = {"name": "adam", "api": api, "learning_rate": RATE, "gradient_accumulation_steps": EVERY}
    steps = {"batch": BATCH // EVERY, "steps": CHANGES * EVERY, "replicas": replicas}
    whole = of_estimator(tmp_path / "whole", fields, **steps)
    parts = of_estimator(tmp_path / "parts", fields, stops=(4, 8), **steps)
    for one, other in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.nightly
def test_between_changes_nothing_moves_and_rates_are_those_of_their_steps(tmp_path):
    """The rate of a change is the one of its step, counted in batches; a last incomplete round changes nothing."""
    schedule = {"kind": "piecewise", "boundaries": [EVERY], "values": [0.0, RATE]}
    for api in ("v1", "keras"):
        fields = {"name": "sgd", "api": api, "learning_rate": schedule, "gradient_accumulation_steps": EVERY}
        # Round 1 ends with step 2, whose rate is 0; round 2 with step 5.
        for steps, moved in ((EVERY, False), (2 * EVERY - 1, False), (2 * EVERY, True)):
            found = of_estimator(tmp_path / f"{api}-{steps}", fields, batch=BATCH // EVERY, steps=steps)
            assert (np.abs(found[0] - START).max() > 1e-3) == moved, (api, steps)
            same(of_keras(fields, batch=BATCH // EVERY, steps=steps), found, f"{api}-{steps}")


def test_rows_of_an_embedding(tmp_path):
    """Rows that several batches name are changed once, by their mean."""
    rows = np.array([[0, 1], [1, 2], [0, 0], [3, 1], [2, 2], [5, 0]], np.int64)
    targets = np.linspace(-1, 1, 6, dtype=np.float32)[:, None]

    def table(params):
        return tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer(input_shape=(2,), dtype=tf.int64),
                tf.keras.layers.Embedding(6, 1, embeddings_initializer="ones", name="table"),
                tf.keras.layers.GlobalAveragePooling1D(),
            ]
        )

    found = []
    for every in (1, 3):
        optimizer = {"name": "adagrad", "learning_rate": RATE, "gradient_accumulation_steps": every}
        options = {"loss": "mse", "optimizer": optimizer}

        def batches(every=every):
            return tf.data.Dataset.from_tensor_slices((rows, targets)).batch(6 // every)

        config = tf.estimator.RunConfig(str(tmp_path / str(every)), tf_random_seed=1)
        estimator = tf.estimator.Estimator(ep.build_model_fn(table, **options), config=config)
        estimator.train(batches)
        found.append(estimator.get_variable_value("table/embeddings"))
        model = ep.build_keras_model(table, **options)
        model.fit(batches(), verbose=0)
        found.append(model.layers[0].embeddings.numpy())
    for one in found[1:]:
        np.testing.assert_allclose(one, found[0], rtol=1e-5, atol=1e-6)
    assert found[0][4] == 1.0 != found[0][0], "row 4 is never named"


def test_float16_counts_a_batch_that_is_not_finite_as_zeros(tmp_path):
    """Each change is finite, whatever the loss scale had to learn; the steps go on, in Keras and in an Estimator."""
    big = TARGETS * 1000
    fields = {"name": "sgd", "learning_rate": 1e-3, "gradient_accumulation_steps": 2}
    config = tf.estimator.RunConfig(str(tmp_path), train_distribute=mirrored(2))
    model_fn = ep.build_model_fn(layers, loss="mse", optimizer=fields, mixed_precision="mixed_float16")
    estimator = tf.estimator.Estimator(model_fn, config=config)
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices((FEATURES, big)).batch(4).repeat(3), steps=36)
    kernel = estimator.get_variable_value("dense/kernel")
    assert np.isfinite(kernel).all() and np.abs(kernel - START).max() > 1e-2
    assert estimator.get_variable_value("estimator_pipeline/loss_scale/scale") < 1024
    model = ep.build_keras_model(layers, loss="mse", optimizer=fields, mixed_precision="mixed_float16")
    model.fit(tf.data.Dataset.from_tensor_slices((FEATURES, big)).batch(4).repeat(3), verbose=0)
    kernel = model.layers[0].kernel.numpy()
    assert np.isfinite(kernel).all() and np.abs(kernel - START).max() > 1e-2


@pytest.mark.gate("adamw")
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_keras_file_goes_on_amid_the_batches(name, tmp_path):
    fields = {"name": name, "learning_rate": RATE, "gradient_accumulation_steps": EVERY}
    batches = data(BATCH // EVERY)
    whole = ep.build_keras_model(layers, loss="mse", optimizer=fields)
    whole.fit(batches, verbose=0)
    first = ep.build_keras_model(layers, loss="mse", optimizer=fields)
    first.fit(batches.take(4), verbose=0)
    ep.save_keras_model(first, str(tmp_path / "model.keras"))
    second = ep.load_keras_model(str(tmp_path / "model.keras"))
    second.fit(batches.skip(4), verbose=0)
    for one, other in zip(second.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_parameter_servers_are_refused():
    model_fn = ep.build_model_fn(layers, loss="mse", optimizer={"gradient_accumulation_steps": 2})

    class Config:
        num_ps_replicas, tf_random_seed = 1, 1

    with tf.Graph().as_default(), pytest.raises(ConfigError, match=r"gradient_accumulation_steps is 2.*servers"):
        model_fn(tf.constant(FEATURES), tf.constant(TARGETS), tf.estimator.ModeKeys.TRAIN, config=Config())


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_a_number_that_cannot_be(value):
    with pytest.raises(ConfigError, match="gradient_accumulation_steps is"):
        Optimizer(gradient_accumulation_steps=value)
