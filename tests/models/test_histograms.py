"""Histograms of weights and gradients in the summaries: their values, by the definition."""

from __future__ import annotations

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.engines.keras_common.callbacks import tensorboard_callback
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()

WIDTH, BATCH, STEPS = 4, 8, 4
RANDOM = np.random.default_rng(5)
FEATURES = RANDOM.normal(size=(STEPS * BATCH, WIDTH)).astype(np.float32)
TARGETS = RANDOM.normal(size=(STEPS * BATCH, 1)).astype(np.float32)
BOTH = ("weights", "gradients")
# What follows the gradient, in the optimizer: none of it is in its histogram.
KINDS = {
    "plain": {},
    "clipped": {"clip_norm": 0.01},
    "added-up": {"optimizer": {"name": "sgd", "learning_rate": 0.1, "gradient_accumulation_steps": 2}},
    "float16": {"mixed_precision": "mixed_float16"},
}


def layers():
    return tf.keras.Sequential(
        [tf.keras.layers.InputLayer(input_shape=(WIDTH,)), tf.keras.layers.Dense(1, name="dense")]
    )


def data(batch=BATCH):
    return tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS)).batch(batch)


def mirrored(count):
    devices = [f"CPU:{i}" for i in range(count)]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def gradient(step, kernel, bias):
    """Of the mean squared error of a step's batch, by the definition."""
    x, y = (values[(step - 1) * BATCH : step * BATCH].astype(np.float64) for values in (FEATURES, TARGETS))
    error = 2 * (x @ kernel + bias - y) / BATCH
    return x.T @ error, error.sum(axis=0)


def entries(folder):
    """(step, tag) -> (count, least, greatest) of each histogram below a folder."""
    found = {}
    for file in folder.rglob("events.out.tfevents.*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.HasField("histo"):
                    found[event.step, value.tag] = (value.histo.num, value.histo.min, value.histo.max)
                elif value.metadata.plugin_data.plugin_name == "histograms":
                    buckets = tf.make_ndarray(value.tensor)
                    found[event.step, value.tag] = (buckets[:, 2].sum(), buckets[:, 0].min(), buckets[:, 1].max())
    return found


def as_defined(found, history, *, tolerance):
    """Compares the entries of a linear model with what its weights were after each step."""
    for step in range(1, len(history)):
        wanted = {"weights": history[step], "gradients": gradient(step, *history[step - 1])}
        for kind, values in wanted.items():
            for name, value in zip(("kernel", "bias"), values, strict=True):
                count, least, greatest = found.pop((step, f"{kind}/dense/{name}"))
                assert count == value.size
                told = f"{kind} of {name} in step {step}"
                np.testing.assert_allclose(
                    [least, greatest], [value.min(), value.max()], rtol=1e-4, atol=tolerance, err_msg=told
                )
    assert not found


@pytest.mark.gate("plain-1", "added-up-2")
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_of_an_estimator(kind, replicas, tmp_path):
    model_fn = ep.build_model_fn(layers, loss="mse", histograms=BOTH, **{"optimizer": "sgd", **KINDS[kind]})
    config = tf.estimator.RunConfig(
        str(tmp_path), train_distribute=mirrored(replicas) if replicas > 1 else None, tf_random_seed=1,
        save_checkpoints_steps=1, keep_checkpoint_max=None, save_summary_steps=1,
    )  # fmt: skip
    tf.estimator.Estimator(model_fn, config=config).train(lambda: data(BATCH // replicas))
    readers = [tf.train.load_checkpoint(f"{tmp_path}/model.ckpt-{step}") for step in range(STEPS + 1)]
    history = [[reader.get_tensor(f"dense/{name}") for name in ("kernel", "bias")] for reader in readers]
    assert (kind == "added-up") == np.array_equal(history[0][0], history[1][0])
    as_defined(entries(tmp_path), history, tolerance=2e-2 if kind == "float16" else 1e-5)


@pytest.mark.gate("added-up-2")
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_of_keras(kind, replicas, tmp_path):
    strategy = mirrored(replicas) if replicas > 1 else tf.distribute.get_strategy()
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = ep.build_keras_model(layers, loss="mse", **{"optimizer": "sgd", **KINDS[kind]})
    history = [model.get_weights()]

    class Recording(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            history.append(model.get_weights())

    callback = tensorboard_callback(str(tmp_path), every_steps=1, shown=BOTH)
    model.fit(data(), callbacks=[Recording(), callback], verbose=0)
    as_defined(entries(tmp_path), history, tolerance=2e-2 if kind == "float16" else 1e-5)
    # The optimizer is as it was: it trains on without summaries, and is saved without a word of them.
    model.fit(data().take(1), verbose=0)
    ep.save_keras_model(model, str(tmp_path / "model.keras"))


def test_what_is_no_finite_number_is_left_out(tmp_path):
    """TensorFlow's histograms would fail on it, and hide what training has to say of it."""

    def exploding():
        model = layers()
        model.add(tf.keras.layers.Lambda(lambda x: tf.math.log(x - x) - tf.math.log(x - x)))
        return model

    model_fn = ep.build_model_fn(exploding, loss="mse", histograms=BOTH)
    config = tf.estimator.RunConfig(str(tmp_path), save_summary_steps=1)
    with pytest.raises(tf.estimator.NanLossDuringTrainingError):
        tf.estimator.Estimator(model_fn, config=config).train(data, max_steps=1)


def test_a_model_fn_of_ones_own_has_its_own(tmp_path):
    (tmp_path / "own.py").write_text("def model_fn(features, labels, mode): ...")
    changes = [f"model={{function: {tmp_path}/own.py:model_fn}}", "run.histograms=[weights]",
               f"run.model_dir={tmp_path}/m"]  # fmt: skip
    job = load_job(ROOT / "legacy_configs" / "single.yaml", overrides=changes)
    with pytest.raises(ConfigError, match=r"run.histograms is \['weights'\], and model.function .* is a model_fn"):
        BuiltJob(job).model_fn  # noqa: B018


@pytest.mark.parametrize("names", ["weights", ["weights", "activations"]])
def test_names_that_are_not_known(names):
    with pytest.raises(ConfigError, match="histograms is") as told:
        ep.build_model_fn(layers, loss="mse", histograms=names)
    assert "allowed: weights, gradients" in str(told.value)
