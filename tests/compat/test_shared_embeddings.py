"""Tables of shared embeddings are trained, and checkpoints of trainings that left them are restored."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
columns = tf.feature_column

TABLE = "away_home_shared_embedding"


def shared_columns(**options):
    teams = [columns.categorical_column_with_identity(name, 6) for name in ("home", "away")]
    # Eager code must not call it.
    with tf.Graph().as_default():
        return columns.shared_embeddings(teams, dimension=2, **options)


def estimator(folder, kind=tf.estimator.DNNClassifier, *, trainable=True, train_distribute=None):
    shared = shared_columns(trainable=trainable)
    config = tf.estimator.RunConfig(
        str(folder), tf_random_seed=1, keep_checkpoint_max=None, train_distribute=train_distribute
    )
    # Every weight has a gradient.
    tanh = tf.nn.tanh
    if kind is tf.estimator.DNNLinearCombinedClassifier:
        return kind(dnn_hidden_units=[3], dnn_feature_columns=shared, dnn_activation_fn=tanh, config=config)
    return kind(hidden_units=[3], feature_columns=shared, activation_fn=tanh, config=config)


def input_fn():
    home = np.arange(12) % 6
    features = {"home": home, "away": (home * 5 + 1) % 6}
    return tf.data.Dataset.from_tensors((features, (home % 2).astype(np.int32))).repeat()


def value(estimator, step, name=TABLE):
    return tf.train.load_checkpoint(f"{estimator.model_dir}/model.ckpt-{step}").get_tensor(name)


@pytest.mark.parametrize("kind", [tf.estimator.DNNClassifier, tf.estimator.DNNLinearCombinedClassifier])
def test_a_table_is_trained(tmp_path, kind):
    trained = estimator(tmp_path, kind).train(input_fn, max_steps=2)
    assert (value(trained, 0) != value(trained, 2)).all()


def test_a_table_that_is_not_trainable(tmp_path):
    left = estimator(tmp_path, trainable=False).train(input_fn, max_steps=2)
    np.testing.assert_array_equal(value(left, 0), value(left, 2))


def test_a_layer_has_each_table_once():
    with tf.Graph().as_default():
        layer = tf.keras.layers.DenseFeatures(shared_columns())
        for _ in range(2):
            layer({"home": [1], "away": [2]})
        assert [variable.op.name for variable in layer.trainable_variables] == [TABLE]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_checkpoint_of_a_training_that_left_the_table(tmp_path, monkeypatch, warnings, replicas):
    from tensorflow.python.feature_column.feature_column_v2 import SharedEmbeddingColumn

    strategy = tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(replicas)]) if replicas > 1 else None
    with monkeypatch.context() as without_patch:
        look_up = SharedEmbeddingColumn._get_dense_tensor_internal
        without_patch.setattr(SharedEmbeddingColumn, "_get_dense_tensor_internal", look_up.__wrapped__)
        left = estimator(tmp_path, train_distribute=strategy).train(input_fn, max_steps=2)
    np.testing.assert_array_equal(value(left, 0), value(left, 2))
    assert warnings == []

    resumed = estimator(tmp_path, train_distribute=strategy).train(input_fn, max_steps=3)
    kernel = "training/Adagrad/dnn/hiddenlayer_0/kernel/accumulator"
    state = f"training/Adagrad/{TABLE}/accumulator"
    (warning,) = warnings
    assert f"with new optimizer state: {state}" in warning
    assert (value(resumed, 2) != value(resumed, 3)).all()
    # A step has been added to what the checkpoint has, and to what is new.
    assert (value(resumed, 3, kernel) > value(resumed, 2, kernel)).all()
    assert (value(resumed, 3, state) > 0.1).all() and (value(resumed, 3, state) < 0.2).all()

    resumed.train(input_fn, max_steps=4)
    assert warnings == [warning]
    assert (value(resumed, 4, state) > value(resumed, 3, state)).all()
