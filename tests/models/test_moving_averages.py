"""Exponential moving averages of the weights: what is kept, and what is evaluated, predicted and exported by them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers import moving_averages
from estimator_pipeline.models.optimizers.spec import Optimizer
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

WIDTH, BATCH, STEPS, MOMENTUM = 4, 6, 5, 0.7
RANDOM = np.random.default_rng(5)
FEATURES = RANDOM.normal(size=(STEPS * BATCH, WIDTH)).astype(np.float32)
TARGETS = RANDOM.normal(size=(STEPS * BATCH, 1)).astype(np.float32)
AVERAGE = moving_averages.AVERAGE
NAMES = ("dense/kernel", "dense/bias")


def layers():
    return tf.keras.Sequential(
        [tf.keras.layers.InputLayer(input_shape=(WIDTH,)), tf.keras.layers.Dense(1, name="dense")]
    )


def data(batch=BATCH):
    return tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS)).batch(batch)


def mirrored(count):
    devices = [f"CPU:{i}" for i in range(count)]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def averaged(history, momentum=MOMENTUM):
    """By the definition, from the weights at the start and after each change."""
    found = [value.astype(np.float64) for value in history[0]]
    for weights in history[1:]:
        found = [momentum * one + (1 - momentum) * weight for one, weight in zip(found, weights, strict=True)]
    return found


def estimator_of(folder, fields, *, replicas=1, distributed_evaluation=False, warm_start=None, **options):
    model_fn = ep.build_model_fn(layers, loss="mse", optimizer=fields, **options)
    strategy = mirrored(replicas) if replicas > 1 else None
    config = tf.estimator.RunConfig(
        str(folder), train_distribute=strategy, eval_distribute=strategy if distributed_evaluation else None,
        tf_random_seed=1, save_checkpoints_steps=1, keep_checkpoint_max=None,
    )  # fmt: skip
    return tf.estimator.Estimator(model_fn, config=config, warm_start_from=warm_start)


def history_of(estimator, steps, ending=""):
    """Kernel and bias of each checkpoint."""
    readers = [tf.train.load_checkpoint(f"{estimator.model_dir}/model.ckpt-{step}") for step in range(steps + 1)]
    return [[reader.get_tensor(f"{name}{ending}") for name in NAMES] for reader in readers]


def close(found, wanted, told=""):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6, err_msg=told)


def answers(kernel, bias):
    return FEATURES.astype(np.float64) @ kernel + bias


@pytest.mark.gate("keras-1-momentum")
@pytest.mark.parametrize(
    ("api", "replicas", "name"),
    [("v1", 1, "adam"), ("keras", 1, "momentum"), ("v1", 2, "momentum"), ("keras", 2, "adam")],
)
def test_an_estimator_keeps_them_and_answers_by_them(api, replicas, name, tmp_path):
    """Kept after each step, from the first value on; evaluation, predictions and exports have them in the weights'
    places; a run that was stopped goes on with both."""
    fields = {"name": name, "api": api, "learning_rate": 0.1, "ema_momentum": MOMENTUM}
    estimator = estimator_of(tmp_path, fields, replicas=replicas, distributed_evaluation=replicas > 1)
    estimator.train(lambda: data(BATCH // replicas), steps=2)
    estimator.train(lambda: data(BATCH // replicas).skip(2 * replicas), max_steps=STEPS)
    history, kept = history_of(estimator, STEPS), history_of(estimator, STEPS, f"/{AVERAGE}")
    for step in range(STEPS + 1):
        close(kept[step], averaged(history[: step + 1]), f"step {step}")
    kernel, bias = kept[-1]
    assert np.abs(kernel - history[-1][0]).max() > 1e-2, "they are not the weights"

    wanted = answers(kernel, bias)
    result = estimator.evaluate(lambda: data(BATCH // 2))
    assert result["average_loss"] == pytest.approx(np.mean((wanted - TARGETS) ** 2), rel=1e-5)
    early = estimator.evaluate(lambda: data(BATCH // 2), checkpoint_path=f"{tmp_path}/model.ckpt-0")
    assert early["average_loss"] == pytest.approx(np.mean((answers(*history[0]) - TARGETS) ** 2), rel=1e-5)
    predicted = np.array([one["predictions"] for one in estimator.predict(lambda: data())])
    np.testing.assert_allclose(predicted.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)

    def receiver():
        given = tf.compat.v1.placeholder(tf.float32, [None, WIDTH])
        return tf.estimator.export.TensorServingInputReceiver(given, {"x": given})

    exported = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "export"), receiver).decode())
    outputs = exported.signatures["predict"](x=tf.constant(FEATURES))
    np.testing.assert_allclose(outputs["predictions"].numpy().reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.gate("2")
@pytest.mark.parametrize("replicas", [1, 2])
def test_keras_keeps_the_same(replicas, tmp_path):
    fields = {"name": "adam", "learning_rate": 0.1, "ema_momentum": MOMENTUM}
    strategy = mirrored(replicas) if replicas > 1 else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = ep.build_keras_model(layers, loss="mse", optimizer=fields)
    history = [model.get_weights()]
    after = tf.keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: history.append(model.get_weights()))
    batches = data(BATCH // replicas)
    given = batches if strategy is None else strategy.distribute_datasets_from_function(lambda _: batches)
    model.fit(given, steps_per_epoch=STEPS, verbose=0, callbacks=[after])
    wanted = averaged(history)
    close([average.numpy() for _, average in moving_averages.averages(model)], wanted)
    with ep.averaged_weights(model):
        close(model.get_weights(), wanted)
        loss = model.evaluate(data(), return_dict=True, verbose=0)["average_loss"]
        assert loss == pytest.approx(np.mean((answers(*wanted) - TARGETS) ** 2), rel=1e-5)
    for one, other in zip(model.get_weights(), history[-1], strict=True):
        np.testing.assert_array_equal(one, other)

    ep.save_keras_model(model, str(tmp_path / "model.keras"))
    again = ep.load_keras_model(str(tmp_path / "model.keras"))
    for one, other in ((model, again),):
        for (_, kept), (_, loaded) in zip(moving_averages.averages(one), moving_averages.averages(other), strict=True):
            np.testing.assert_array_equal(kept.numpy(), loaded.numpy())


def test_without_them_nothing_is_exchanged():
    model = ep.build_keras_model(layers, loss="mse", optimizer={"name": "adam", "ema_momentum": MOMENTUM})
    before = model.get_weights()
    for one in (model, ep.build_keras_model(layers, loss="mse", optimizer="adam")):
        with ep.averaged_weights(one):
            assert moving_averages.averages(one) == []
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.gate("v1-2")
@pytest.mark.parametrize(("api", "replicas"), [("v1", 2), ("keras", 1)])
def test_they_move_with_each_change_where_gradients_are_added_up(api, replicas, tmp_path):
    every = 2
    fields = {
        "name": "momentum", "api": api, "learning_rate": 0.1, "ema_momentum": MOMENTUM,
        "gradient_accumulation_steps": every,
    }  # fmt: skip
    batch = BATCH // every // replicas
    estimator = estimator_of(tmp_path, fields, replicas=replicas)
    estimator.train(lambda: data(batch), max_steps=every * STEPS)
    history, kept = history_of(estimator, every * STEPS), history_of(estimator, every * STEPS, f"/{AVERAGE}")
    for step in range(every * STEPS + 1):
        close(kept[step], averaged(history[: step + 1 : every]), f"step {step}")

    model = ep.build_keras_model(layers, loss="mse", optimizer=fields)
    weights = [model.get_weights()]
    after = tf.keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: weights.append(model.get_weights()))
    model.fit(data(BATCH // every), verbose=0, callbacks=[after])
    close([average.numpy() for _, average in moving_averages.averages(model)], averaged(weights[::every]))


@pytest.mark.nightly
@pytest.mark.parametrize("replicas", [1, 2])
def test_they_stay_where_float16_leaves_a_step_out(replicas, tmp_path):
    """With these targets the gradients are beyond float16 until the loss scale has come down."""
    fields = {"name": "sgd", "learning_rate": 1e-4, "ema_momentum": MOMENTUM}
    steps = 12

    def batches():
        repeated = tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS * 300)).repeat(4)
        return repeated.batch(BATCH // replicas)

    estimator = estimator_of(tmp_path, fields, replicas=replicas, mixed_precision="mixed_float16")
    estimator.train(batches, max_steps=steps)
    history, kept = history_of(estimator, steps), history_of(estimator, steps, f"/{AVERAGE}")
    left_out = [step for step in range(1, steps + 1) if (history[step][0] == history[step - 1][0]).all()]
    assert 0 < len(left_out) < steps
    for step in left_out:
        for one, other in zip(kept[step], kept[step - 1], strict=True):
            np.testing.assert_array_equal(one, other)
    close(kept[steps], averaged([one for step, one in enumerate(history) if step not in left_out]))


def test_they_begin_with_the_weights_of_another_training(tmp_path):
    first = estimator_of(tmp_path / "first", {"name": "sgd", "learning_rate": 0.1})
    first.train(data, max_steps=STEPS)
    fields = {"name": "sgd", "learning_rate": 0.1, "ema_momentum": MOMENTUM}
    second = estimator_of(tmp_path / "second", fields, warm_start=str(tmp_path / "first"))
    second.train(data, max_steps=1)
    history = history_of(second, 1)
    for one, other in zip(history[0], history_of(first, STEPS)[-1], strict=True):
        np.testing.assert_array_equal(one, other)
    close(history_of(second, 1, f"/{AVERAGE}")[1], averaged(history))


def test_what_layers_update_and_frozen_layers_have_none(tmp_path):
    """Their own values are restored where the averages are."""

    def model():
        frozen = tf.keras.layers.Dense(WIDTH, name="frozen", trainable=False)
        return tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer(input_shape=(WIDTH,)),
                frozen,
                tf.keras.layers.BatchNormalization(momentum=0.5, name="norm"),
                tf.keras.layers.Dense(1, name="dense"),
            ]
        )

    fields = {"name": "momentum", "learning_rate": 0.1, "ema_momentum": MOMENTUM}
    config = tf.estimator.RunConfig(str(tmp_path), tf_random_seed=1)
    estimator = tf.estimator.Estimator(ep.build_model_fn(model, loss="mse", optimizer=fields), config=config)
    estimator.train(data, max_steps=STEPS)
    reader = tf.train.load_checkpoint(estimator.latest_checkpoint())
    have = sorted(name.removesuffix(f"/{AVERAGE}") for name in reader.get_variable_to_shape_map() if AVERAGE in name)
    assert have == ["dense/bias", "dense/kernel", "norm/beta", "norm/gamma"]

    def value(name, average=True):
        return reader.get_tensor(f"{name}/{AVERAGE}" if average and name in have else name).astype(np.float64)

    x = FEATURES @ value("frozen/kernel") + value("frozen/bias")
    x = (x - value("norm/moving_mean")) / np.sqrt(value("norm/moving_variance") + 1e-3)
    wanted = (x * value("norm/gamma") + value("norm/beta")) @ value("dense/kernel") + value("dense/bias")
    found = estimator.evaluate(data)["average_loss"]
    assert found == pytest.approx(np.mean((wanted - TARGETS) ** 2), rel=1e-4)


@pytest.mark.parametrize("value", [0, 1, 1.5, -0.1, True, "0.9", float("nan")])
def test_a_momentum_that_cannot_be(value):
    with pytest.raises(ConfigError, match="ema_momentum is"):
        Optimizer(ema_momentum=value)
