"""tf.compat.v1.estimator.tpu on machines without a TPU, where TPUEstimator is an Estimator with batch sizes."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.errors import CompatError
from tests.support.surface_models import RATE, X, Y, loss_with, tf, weights_by_step

v1 = tf.compat.v1
tpu = v1.estimator.tpu
SIZES = {"train_batch_size": 4, "eval_batch_size": 2, "predict_batch_size": 1}


def model_fn(features, labels, mode, params):
    assert params["batch_size"] in SIZES.values()
    weight = v1.get_variable("w", [2], initializer=v1.zeros_initializer(), use_resource=True)
    answer = tf.linalg.matvec(features["x"], weight)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"y": answer})
    loss = tf.reduce_mean(tf.square(answer - labels))
    optimizer = v1.train.GradientDescentOptimizer(RATE)  # a CrossShardOptimizer on a TPU alone
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, v1.train.get_global_step()),
        eval_metrics=(lambda y, z: {"mae": v1.metrics.mean_absolute_error(y, z)}, [labels, answer]),
    )


def input_fn(params):
    """The size of a batch comes from the TPUEstimator."""
    sizes.append(params["batch_size"])
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(params["batch_size"], drop_remainder=True).repeat()


sizes: list[int] = []


def predict_fn(params):
    sizes.append(params["batch_size"])
    return tf.data.Dataset.from_tensor_slices({"x": X}).batch(params["batch_size"], drop_remainder=True)


def run_config(model_dir, **options):
    settings = tpu.TPUConfig(iterations_per_loop=2, **options)
    return tpu.RunConfig(model_dir=str(model_dir), save_checkpoints_steps=3, tpu_config=settings)


@pytest.mark.symbols(
    "tf.compat.v1.estimator.tpu.RunConfig",
    "tf.compat.v1.estimator.tpu.TPUConfig",
    "tf.compat.v1.estimator.tpu.TPUEstimator",
    "tf.compat.v1.estimator.tpu.TPUEstimatorSpec",
)
def test_tpu_estimator_without_a_tpu(tmp_path):
    """It trains, evaluates and predicts on the CPU, each with its own size of a batch."""
    sizes.clear()
    estimator = tpu.TPUEstimator(model_fn, config=run_config(tmp_path), use_tpu=False, **SIZES)
    estimator.train(input_fn, steps=5)
    result = estimator.evaluate(input_fn, steps=2)
    answers = [row["y"] for row in estimator.predict(predict_fn)]
    weight = weights_by_step(5)[5]
    np.testing.assert_allclose(estimator.get_variable_value("w"), weight, rtol=1e-5)
    np.testing.assert_allclose(answers, X @ weight, rtol=1e-5, atol=1e-6)
    assert result["global_step"] == 5
    assert result["loss"] == pytest.approx(loss_with(weight), rel=1e-5)
    assert result["mae"] == pytest.approx(np.mean(np.abs(X @ weight - Y)), rel=1e-5)
    assert sizes == [4, 2, 1]


@pytest.mark.symbols("tf.compat.v1.estimator.tpu.TPUEstimatorSpec")
def test_tpu_estimator_spec_becomes_an_estimator_spec():
    with tf.Graph().as_default():
        value = tf.constant([1.0, 2.0])
        fields = {"loss": tf.reduce_sum(value), "predictions": {"y": value}}
        metrics = (lambda y: {"mean": v1.metrics.mean(y)}, {"y": value})
        plain = tpu.TPUEstimatorSpec(tf.estimator.ModeKeys.EVAL, eval_metrics=metrics, **fields).as_estimator_spec()
        assert isinstance(plain, tf.estimator.EstimatorSpec)
        assert (plain.loss, plain.predictions) == (fields["loss"], fields["predictions"])
        assert list(plain.eval_metric_ops) == ["mean"]
        with pytest.raises(ValueError, match="eval_metrics"):
            tpu.TPUEstimatorSpec(tf.estimator.ModeKeys.EVAL, eval_metrics=lambda y: y, **fields)


@pytest.mark.symbols(
    "tf.compat.v1.estimator.tpu.RunConfig",
    "tf.compat.v1.estimator.tpu.TPUConfig",
    "tf.compat.v1.estimator.tpu.InputPipelineConfig",
)
def test_configurations(tmp_path):
    config = run_config(tmp_path, per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2)
    assert isinstance(config, tf.estimator.RunConfig)
    assert config.tpu_config.iterations_per_loop == 2
    assert config.tpu_config.per_host_input_for_training is tpu.InputPipelineConfig.PER_HOST_V2
    changed = config.replace(save_checkpoints_steps=9)
    assert isinstance(changed, tpu.RunConfig)
    assert (changed.save_checkpoints_steps, changed.tpu_config) == (9, config.tpu_config)
    members = {name: getattr(tpu.InputPipelineConfig, name) for name in ("PER_SHARD_V1", "PER_HOST_V1", "PER_HOST_V2")}
    assert members == {"PER_SHARD_V1": 1, "PER_HOST_V1": 2, "PER_HOST_V2": 3}
    # True and False are older names for two of them.
    older = [tpu.TPUConfig(per_host_input_for_training=value).per_host_input_for_training for value in (True, False)]
    assert older == [tpu.InputPipelineConfig.PER_HOST_V1, tpu.InputPipelineConfig.PER_SHARD_V1]
    with pytest.raises(ValueError, match="iterations_per_loop"):
        tpu.TPUConfig(iterations_per_loop=0)


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"tpu_config\.RunConfig"):
        tpu.TPUEstimator(model_fn, config=tf.estimator.RunConfig(str(tmp_path)), use_tpu=False)
    with pytest.raises(ValueError, match="train_batch_size"):
        tpu.TPUEstimator(model_fn, config=run_config(tmp_path), use_tpu=True)
    with pytest.raises(ValueError, match="reserved"):
        tpu.TPUEstimator(model_fn, config=run_config(tmp_path), use_tpu=False, params={"batch_size": 1}, **SIZES)


@pytest.mark.symbols("tf.compat.v1.estimator.tpu.experimental.EmbeddingConfigSpec")
def test_tpu_embeddings_are_there_or_say_that_they_are_gone(tmp_path, native, record_property):
    """On 2.15 a specification can be made, and is left alone without a TPU; later its parts say what to do."""
    spec, parts = tpu.experimental.EmbeddingConfigSpec, v1.tpu.experimental
    column = tf.feature_column.categorical_column_with_identity("i", 4)
    if native:
        made = spec([parts.embedding_column(column, 2)], parts.AdagradParameters(0.1))
        assert made.optimization_parameters.learning_rate == 0.1
        options = {"use_tpu": False, "embedding_config_spec": made, **SIZES}
        estimator = tpu.TPUEstimator(model_fn, config=run_config(tmp_path), **options).train(input_fn, steps=1)
        assert estimator.get_variable_value("global_step") == 1
        return
    record_property("raises", "CompatError")
    for name in ("AdagradParameters", "AdamParameters", "FtrlParameters", "StochasticGradientDescentParameters"):
        with pytest.raises(CompatError, match=f"{name} was used, and TensorFlow no longer has it") as caught:
            spec([parts.embedding_column(column, 2)], getattr(parts, name)(0.1))
        assert "run this program on TensorFlow 2.15" in str(caught.value)
