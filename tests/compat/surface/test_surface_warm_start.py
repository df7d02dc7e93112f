"""Warm start: which values a new model begins with, and which it does not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.surface_models import input_fn, linear, predictions, tf, weights_by_step

v1 = tf.compat.v1
WORDS = {"a": ["apple", "pear", "plum"], "b": ["plum", "fig", "apple", "pear"]}


def features():
    data = {"x": np.ones((2, 3), np.float32), "word": np.array([["apple"], ["plum"]])}
    return tf.data.Dataset.from_tensor_slices((data, np.array([[3.0], [5.0]], np.float32))).batch(2).repeat()


def layers_model_fn(features, labels, mode, params):
    """Two dense layers and an embedding; `names` renames them, `freeze` leaves all values as they begin."""
    names = params.get("names", {"first": "first", "second": "second"})

    def dense(inputs, name, units):
        with v1.variable_scope(names[name]):
            kernel = v1.get_variable("kernel", [inputs.shape[1], units], initializer=v1.constant_initializer(0.5))
            bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
            return tf.matmul(inputs, kernel) + bias

    answer = dense(dense(features["x"], "first", 2), "second", 1)
    loss = tf.reduce_mean(tf.square(answer - labels))
    step = v1.train.get_or_create_global_step()
    train_op = v1.train.MomentumOptimizer(0.01, 0.9).minimize(loss, step)
    if params.get("freeze"):
        train_op = step.assign_add(1)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, predictions={"y": answer})


def layers(model_dir, warm_start_from=None, **params):
    estimator = tf.estimator.Estimator(layers_model_fn, str(model_dir), params=params, warm_start_from=warm_start_from)
    return estimator.train(features, steps=1 if params.get("freeze") else 5)


def values(estimator):
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    estimator = layers(tmp_path_factory.mktemp("trained"))
    found = values(estimator)
    assert not np.allclose(found["first/kernel"], 0.5)
    return estimator, found


def initial(name):
    return 0.5 if name.endswith("kernel") else 0.0


@pytest.mark.gate("first-taken1", "pattern3-taken3")
@pytest.mark.symbols(
    "tf.estimator.WarmStartSettings",
    "tf.compat.v1.estimator.WarmStartSettings",
    "tf.estimator.Estimator",
    "tf.compat.v1.estimator.Estimator",
)
@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        (".*", {"first/kernel", "first/bias", "second/kernel", "second/bias"}),
        ("first", {"first/kernel", "first/bias"}),
        (".*kernel", {"first/kernel", "second/kernel"}),
        (["second/bias"], {"second/bias"}),
        (None, set()),
    ],
)
def test_what_the_expression_matches_is_taken(tmp_path, trained, pattern, taken):
    """The step is not: a warm start begins at zero."""
    model, before = trained
    settings = tf.estimator.WarmStartSettings(model.model_dir, vars_to_warm_start=pattern)
    after = values(layers(tmp_path, settings, freeze=True))
    assert after.pop("global_step") == 1
    for name in ("first/kernel", "first/bias", "second/kernel", "second/bias"):
        value = after[name]
        np.testing.assert_array_equal(value, before[name] if name in taken else np.full_like(value, initial(name)))


@pytest.mark.symbols("tf.estimator.WarmStartSettings", "tf.compat.v1.estimator.WarmStartSettings")
def test_a_list_of_full_names_takes_what_is_not_trained_too(tmp_path, trained):
    model, before = trained
    pattern = ["first/kernel/Momentum"]
    settings = tf.estimator.WarmStartSettings(model.model_dir, vars_to_warm_start=pattern)
    after = values(layers(tmp_path, settings, freeze=True))
    slots = {name for name in after if name.endswith("/Momentum")}
    assert len(slots) == 4
    for name in slots:
        np.testing.assert_array_equal(after[name], before[name] if name in pattern else np.zeros_like(after[name]))
    np.testing.assert_array_equal(after["first/kernel"], np.full((3, 2), 0.5))
    assert np.abs(before["first/kernel/Momentum"]).max() > 0


@pytest.mark.gate("tf.estimator")
@pytest.mark.parametrize("family", ["tf.estimator", "tf.compat.v1.estimator"])
@pytest.mark.symbols("tf.estimator.Estimator", "tf.compat.v1.estimator.Estimator")
def test_a_path_takes_all_that_is_trained(tmp_path, family):
    first = linear(tmp_path / "first").train(input_fn, steps=3)
    second = linear(tmp_path / "second", warm_start_from=first.model_dir, v1=family != "tf.estimator")
    second.train(input_fn, steps=2)
    assert second.get_variable_value("global_step") == 2
    np.testing.assert_allclose(second.get_variable_value("w"), weights_by_step(5)[5], rtol=1e-5)


@pytest.mark.symbols("tf.estimator.Estimator", "tf.compat.v1.estimator.Estimator")
def test_a_checkpoint_of_ones_own_comes_before_a_warm_start(tmp_path):
    other = linear(tmp_path / "other").train(input_fn, steps=9)
    linear(tmp_path / "own").train(input_fn, steps=2)
    resumed = linear(tmp_path / "own", warm_start_from=other.model_dir).train(input_fn, steps=1)
    assert resumed.get_variable_value("global_step") == 3
    np.testing.assert_allclose(resumed.get_variable_value("w"), weights_by_step(3)[3], rtol=1e-5)


@pytest.mark.symbols("tf.estimator.WarmStartSettings", "tf.compat.v1.estimator.WarmStartSettings")
def test_names_of_before(tmp_path, trained):
    """Layers were renamed, and changed places."""
    model, before = trained
    old = {"head/kernel": "second/kernel", "head/bias": "second/bias"}
    settings = tf.estimator.WarmStartSettings(model.model_dir, ".*", var_name_to_prev_var_name=old)
    after = values(layers(tmp_path, settings, freeze=True, names={"first": "first", "second": "head"}))
    assert "second/kernel" not in after
    for name in ("first/kernel", "first/bias", "head/kernel", "head/bias"):
        np.testing.assert_array_equal(after[name], before[old.get(name, name)])


def embedding_model_fn(features, labels, mode, params):
    words = WORDS[params["words"]]
    table = v1.get_variable("words", [len(words), 2], initializer=v1.constant_initializer(-1.0))
    position = tf.argmax(tf.cast(tf.equal(features["word"], tf.constant(words)[None]), tf.int32), axis=1)
    answer = tf.reduce_sum(tf.gather(table, position), axis=1, keepdims=True)
    step = v1.train.get_or_create_global_step()
    train_op = tf.group(step.assign_add(1), table.assign(tf.reshape(tf.range(6.0), [3, 2])) if params["set"] else [])
    return tf.estimator.EstimatorSpec(mode, loss=tf.reduce_sum(answer), train_op=train_op, predictions={"y": answer})


@pytest.mark.gate("1")
@pytest.mark.symbols(
    "tf.estimator.VocabInfo",
    "tf.estimator.WarmStartSettings",
    "tf.compat.v1.estimator.VocabInfo",
    "tf.compat.v1.estimator.WarmStartSettings",
)
@pytest.mark.parametrize("backup", [0, 1])
def test_a_changed_vocabulary_carries_each_word_to_its_new_place(tmp_path, backup):
    for name, words in WORDS.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(words) + "\n")
    old = tf.estimator.Estimator(embedding_model_fn, str(tmp_path / "a"), params={"words": "a", "set": True})
    old.train(features, steps=1)
    change = tf.estimator.VocabInfo(
        new_vocab=str(tmp_path / "b.txt"),
        new_vocab_size=4,
        num_oov_buckets=0,
        old_vocab=str(tmp_path / "a.txt"),
        old_vocab_size=3,
        backup_initializer=v1.ones_initializer() if backup else None,
        axis=0,
    )
    settings = tf.estimator.WarmStartSettings(str(tmp_path / "a"), ".*", var_name_to_vocab_info={"words": change})
    new = tf.estimator.Estimator(
        embedding_model_fn, str(tmp_path / "b"), params={"words": "b", "set": False}, warm_start_from=settings
    )
    new.train(features, steps=1)
    row = {"apple": [0, 1], "pear": [2, 3], "plum": [4, 5], "fig": [backup, backup]}  # zeros where none is told
    np.testing.assert_array_equal(new.get_variable_value("words"), [row[word] for word in WORDS["b"]])


@pytest.mark.nightly
@pytest.mark.symbols("tf.estimator.VocabInfo", "tf.compat.v1.estimator.VocabInfo")
def test_a_canned_model_with_a_longer_vocabulary_predicts_as_before(tmp_path):
    """Embeddings of a DNNRegressor move with their words, the layers above by name."""

    def model(name, warm_start_from=None):
        path = tmp_path / f"{name}.txt"
        path.write_text("\n".join(WORDS[name]) + "\n")
        column = tf.feature_column.categorical_column_with_vocabulary_file("word", str(path), len(WORDS[name]))
        return tf.estimator.DNNRegressor(
            [2],
            activation_fn=tf.nn.tanh,
            feature_columns=[tf.feature_column.embedding_column(column, 2)],
            model_dir=str(tmp_path / name),
            optimizer=tf.keras.optimizers.legacy.SGD(0.05 if warm_start_from is None else 0.0),
            warm_start_from=warm_start_from,
        )

    old = model("a").train(features, steps=5)
    (table,) = [name for name in old.get_variable_names() if name.endswith("embedding_weights")]
    change = tf.estimator.VocabInfo(
        str(tmp_path / "b.txt"), 4, 0, str(tmp_path / "a.txt"), 3, backup_initializer=v1.zeros_initializer()
    )
    (tmp_path / "b.txt").write_text("\n".join(WORDS["b"]) + "\n")
    settings = tf.estimator.WarmStartSettings(old.model_dir, ".*", var_name_to_vocab_info={table: change})
    new = model("b", settings).train(features, steps=1)

    def once():
        return features().take(1)

    before, after = (predictions(e, once, "predictions") for e in (old, new))
    assert before[0] != before[1]
    np.testing.assert_allclose(after, before, rtol=1e-6)
