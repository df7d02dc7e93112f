"""What converted programs bring of variables, averages, heads: kept in checkpoints, refused where it is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.keras_runtime import heads as keras_heads
from estimator_pipeline.models.keras_runtime import moving_averages as keras_averages
from estimator_pipeline.models.keras_runtime import variables as keras_variables

tf = compat.install()


def small():
    """A model of one layer and one variable, each with its optimizer."""
    features = tf.keras.Input([3])
    with keras_variables.of(features):
        net = keras_variables.shared(tf.keras.layers.Dense(2, name="hidden"))(features)
        assert keras_variables.shared(tf.keras.layers.Dense(2, name="hidden")).name == "hidden"
        weights = keras_variables.variable("scope/w", [2, 1])
        assert keras_variables.variable("scope/w", [2, 1]) is weights
    model = tf.keras.Model(features, tf.matmul(net, weights))
    own = keras_variables.variable_of(weights)
    rest = [one for one in model.trainable_variables if one is not own]
    assert keras_variables.name_of(own) == "scope/w" and len(rest) == 2
    parts = [(tf.keras.optimizers.Ftrl(0.1), [own]), (tf.keras.optimizers.legacy.Adam(0.1), rest)]
    model.compile(keras_variables.by_variables(parts, counts=1), "mse")
    return model


X, Y = np.ones([8, 3], np.float32), np.ones([8, 1], np.float32)


def test_a_checkpoint_has_what_each_optimizer_keeps(tmp_path):
    """Training that is restored goes on to the same values."""
    tf.keras.utils.set_random_seed(1)
    model = small()
    model.fit(X, Y, epochs=3, verbose=0)
    tf.train.Checkpoint(model=model).save(str(tmp_path / "a"))
    other = small()
    status = tf.train.Checkpoint(model=other).restore(tf.train.latest_checkpoint(tmp_path))
    for one in (model, other):
        one.fit(X, Y, epochs=2, verbose=0)
    status.assert_existing_objects_matched()
    assert int(other.optimizer.iterations) == 5
    assert len(other.optimizer.weights) == len(model.optimizer.weights) >= 7
    for one, same in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize(
    "optimizers", [tf.keras.optimizers, pytest.param(tf.keras.optimizers.legacy, marks=pytest.mark.nightly)]
)
def test_one_of_two_optimizers_steps_by_a_condition(optimizers, tmp_path):
    """Each by its own loss, by gradients of before both steps; what neither has is not trained."""

    class Two(tf.keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                found = self(x, training=True)
                one, other = tf.reduce_mean(found - y), tf.reduce_mean(tf.square(found))
            even = tf.equal(self.optimizer.iterations % 2, 0)
            self.optimizer.minimize_each([one, other], tape, when=[True, even])
            return {"one": one}

    def made():
        features = tf.keras.Input([3])
        with keras_variables.of(features):
            net = keras_variables.shared(tf.keras.layers.Dense(2, name="a/hidden"))(features)
            net = tf.matmul(net, keras_variables.variable("b/w", [2, 1]))
            net = net * keras_variables.variable("c/w", [1], initializer="ones")
        model = Two(features, net)
        parts = [(optimizers.SGD(0.1), keras_variables.in_scope(model, "b")),
                 (optimizers.Adam(0.1), keras_variables.in_scope(model, "a"))]  # fmt: skip
        model.compile(keras_variables.by_variables(parts, counts=0))
        return model

    model = made()
    kept = [variable.numpy() for variable in model.trainable_variables]
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    hidden = next(one for one in kept if one.shape == (3, 2))
    for variable, before in zip(model.trainable_variables, kept, strict=True):
        name = keras_variables.name_of(variable)
        if name == "b/w":  # by the hidden layer as it was
            np.testing.assert_allclose(variable, before - 0.1 * (X[:1] @ hidden).T, rtol=1e-5)
        assert (variable.numpy() == before).all() == (name == "c/w")
    model.fit(X, Y, batch_size=8, epochs=4, verbose=0)
    assert [int(one.iterations) for one in model.optimizer.parts] == [5, 3]
    tf.train.Checkpoint(model=model).save(str(tmp_path / "a"))
    other = made()
    tf.train.Checkpoint(model=other).restore(tf.train.latest_checkpoint(tmp_path))
    for one in (model, other):
        one.fit(X, Y, batch_size=8, epochs=2, verbose=0)
        assert [int(each.iterations) for each in one.optimizer.parts] == [7, 4]
    for one, same in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(one, same)


def test_another_network_of_a_models_layers():
    model = small()
    features = tf.keras.Input([3])
    with keras_variables.of(features, model):
        net = keras_variables.shared(tf.keras.layers.Dense(2, name="hidden"))(2 * features)
        net = tf.matmul(net, keras_variables.variable("scope/w", [2, 1]))
    other = keras_variables.sharing(model, features, net)
    np.testing.assert_allclose(other(X), model(2 * X), rtol=1e-6)
    with keras_variables.of(features, model):
        net = keras_variables.shared(tf.keras.layers.Dense(2, name="other"))(features)
    with pytest.raises(ConfigError, match=r"second network of .* has weights that the model does not have") as raised:
        keras_variables.sharing(model, features, net)
    assert raised.value.found == "other/kernel, other/bias"


def test_averages_are_in_the_checkpoint(tmp_path):
    variable = tf.Variable([1.0, 3.0], name="v")
    averages = keras_averages.Averages([variable], 0.9)
    variable.assign([2.0, 5.0])
    keras_averages.update(averages, 1)
    np.testing.assert_allclose(averages.kept[0], [1.1, 3.2], rtol=1e-6)
    tf.train.Checkpoint(averages=averages).save(str(tmp_path / "a"))
    other = keras_averages.Averages([variable], 0.9)
    tf.train.Checkpoint(averages=other).restore(tf.train.latest_checkpoint(tmp_path)).assert_consumed()
    with keras_averages.in_place(other):
        np.testing.assert_allclose(variable, [1.1, 3.2], rtol=1e-6)
    np.testing.assert_array_equal(variable, [2.0, 5.0])
    keras_averages.update(None, 1)
    with keras_averages.in_place(None):
        pass


def test_what_is_refused():
    with pytest.raises(ConfigError, match=r"the variable 'w' is created outside of a model"):
        keras_variables.variable("w", [1])
    variable = tf.Variable(1.0, name="v")
    parts = [(tf.keras.optimizers.SGD(), [variable]), (tf.keras.optimizers.SGD(), [variable])]
    with pytest.raises(ConfigError, match=r"the variable v:0 has two optimizers"):
        keras_variables.by_variables(parts)
    named = [keras_heads.RegressionHead(name="a"), keras_heads.RegressionHead(name="a")]
    with pytest.raises(ConfigError, match="the heads of a MultiHead need distinct names"):
        keras_heads.MultiHead(named)
    with pytest.raises(ConfigError, match="2 weights for 1 heads"):
        keras_heads.MultiHead(named[:1], [1.0, 2.0])
    with pytest.raises(ConfigError, match="loss_reduction 'none'"):
        keras_heads.RegressionHead(loss_reduction="none")


def test_the_logits_of_several_heads_may_be_one_tensor():
    heads = [keras_heads.MultiClassHead(3, name="a"), keras_heads.RegressionHead(name="b")]
    logits = tf.constant([[1.0, 0.0, 0.0, 5.0]])
    found = keras_heads.MultiHead(heads).predictions(logits)
    assert int(found["a", "class_ids"][0, 0]) == 0 and float(found["b", "predictions"][0, 0]) == 5.0
    labels = {"a": [0], "b": [[4.0]]}
    total = keras_heads.MultiHead(heads, [1.0, 2.0]).loss(labels, logits)
    one, other = heads[0].loss([0], logits[:, :3]), heads[1].loss([[4.0]], logits[:, 3:])
    np.testing.assert_allclose(total, one + 2 * other, rtol=1e-6)
