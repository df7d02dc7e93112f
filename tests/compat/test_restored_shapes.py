"""A checkpoint whose variables have other shapes than the model's is refused by everything that restores it."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.errors import CompatError
from tests.support import one_weight

tf = compat.install()
v1 = tf.compat.v1


def model(folder, units, *, partitioner=None, use_resource=True, **config):
    def model_fn(features, labels, mode):
        with v1.variable_scope("net", partitioner=partitioner, use_resource=use_resource):
            kernel = v1.get_variable("kernel", [3, units])
            bias = v1.get_variable("bias", [units])
        output = tf.reduce_sum(features @ tf.convert_to_tensor(kernel) + tf.convert_to_tensor(bias), 1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions=output)
        loss = tf.reduce_mean(tf.square(output - labels))
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=one_weight.train_op(tf, loss))

    return tf.estimator.Estimator(model_fn, config=tf.estimator.RunConfig(str(folder), **config))


def batches():
    return one_weight.input_fn(tf, (4, 3))


WAYS = {
    "train": lambda estimator: estimator.train(batches(), steps=1),
    "evaluate": lambda estimator: estimator.evaluate(batches(), steps=1),
    "predict": lambda estimator: next(estimator.predict(batches())),
    "export": lambda estimator: estimator.export_saved_model(
        estimator.model_dir + "/export",
        lambda: tf.estimator.export.TensorServingInputReceiver(*[v1.placeholder(tf.float32, [None, 3])] * 2),
    ),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    model(folder, 2).train(batches(), steps=1)
    return folder


@pytest.mark.parametrize("way", list(WAYS))
def test_refused(trained, way):
    with pytest.raises(CompatError) as error:
        WAYS[way](model(trained, 5))
    assert str(error.value).startswith(f"the checkpoint {trained}/model.ckpt-1 is of a different model")
    assert "found: net/bias is [2] there and [5] here; net/kernel is [3, 2] there and [3, 5] here" in str(error.value)
    assert isinstance(error.value, tf.errors.InvalidArgumentError)
    # The checkpoint is as it was.
    assert WAYS["evaluate"](model(trained, 2))["global_step"] == 1


def test_an_export_of_a_keras_model_for_other_features(tmp_path, logged):
    """The test of the estimator package: features of one value for a model of three; 2.15 exports it."""
    keras_model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,), name="dense")])
    keras_model.compile("sgd", "mse")
    weights = keras_model.get_weights()
    estimator = tf.keras.estimator.model_to_estimator(keras_model, model_dir=str(tmp_path), checkpoint_format="saver")
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        {"dense_input": tf.io.FixedLenFeature([1], tf.float32)}
    )
    exported = estimator.export_saved_model(str(tmp_path / "export"), receiver).decode()
    kernel = tf.train.load_variable(f"{exported}/variables/variables", "dense/kernel")
    np.testing.assert_array_equal(kernel, weights[0])
    assert "dense/kernel is [3, 2] there and [1, 2] here" in logged.text
    # Only an export.
    estimator.train(lambda: tf.data.Dataset.from_tensors((np.ones([4, 3], np.float32), np.ones([4, 2], np.float32))))
    with pytest.raises(CompatError, match="of a different model"):
        next(estimator.predict(lambda: tf.data.Dataset.from_tensors({"dense_input": [[1.0]]})))


@pytest.mark.parametrize(
    "kind",
    [
        {"partitioner": v1.fixed_size_partitioner(2)},
        {"use_resource": False},
        {"train_distribute": tf.distribute.OneDeviceStrategy("CPU:0")},
    ],
    ids=["partitioned", "reference", "strategy"],
)
def test_variables_of_each_kind(tmp_path, kind):
    model(tmp_path, 2, **kind).train(batches(), steps=1)
    with pytest.raises(CompatError, match=r"net/kernel is \[3, 2\] there and \[3, 4\] here"):
        model(tmp_path, 4, **kind).train(batches(), steps=1)
    model(tmp_path, 2, **kind).train(batches(), steps=1)


def test_one_that_was_cut_otherwise_is_the_same(tmp_path):
    model(tmp_path, 2, partitioner=v1.fixed_size_partitioner(2)).train(batches(), steps=1)
    model(tmp_path, 2).train(batches(), steps=1)
    assert model(tmp_path, 2).evaluate(batches(), steps=1)["global_step"] == 2


def test_many_differences_are_summed_up(tmp_path):
    def saver(units, **options):
        variables = {f"v{index}": v1.get_variable(f"v{index}", [units, 2]) for index in range(9)}
        return v1.train.Saver(variables, **options)

    with tf.Graph().as_default(), v1.Session() as session:
        made = saver(3)
        session.run(v1.global_variables_initializer())
        path = made.save(session, str(tmp_path / "model"))
    more = r"v4 is \[3, 2\] there and \[6, 2\] here; and 4 more\n"
    with tf.Graph().as_default(), v1.Session() as session, pytest.raises(CompatError, match=more):
        saver(6).restore(session, path)
    # A saver that is to reshape compares the number of values.
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("v0", [2, 3])
        v1.train.Saver({"v0": variable}, reshape=True).restore(session, path)
        assert session.run(variable).shape == (2, 3)


@pytest.mark.parametrize(
    "made",
    [
        lambda value: v1.get_variable("open", initializer=tf.constant(value), validate_shape=False, use_resource=False),
        lambda value: tf.Variable(value, shape=[None], name="open"),
    ],
    ids=["reference", "resource"],
)
def test_a_shape_that_is_left_open_fits(tmp_path, made):
    with tf.Graph().as_default(), v1.Session() as session:
        made([1.0, 2.0])
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), v1.Session() as session:
        restored = made([0.0])
        v1.train.Saver().restore(session, path)
        assert session.run(restored).tolist() == [1.0, 2.0]
