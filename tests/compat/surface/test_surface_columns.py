"""Feature columns of every kind, through Estimators: what a column feeds the model is written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.surface_data import (
    APIS,
    FLOAT32,
    config,
    exported,
    feed,
    predictions,
    sigmoid,
    softmax,
    tf,
    variables,
)

fc = tf.feature_column
N = 24
STEPS = 10
RNG = np.random.default_rng(8)
COLOURS = ["red", "green", "blue"]
# The indices that tf.strings.to_hash_bucket_fast's documentation gives these words in 3 buckets.
HASHED = {"Hello": 0, "TensorFlow": 2, "2.x": 2}

DATA = {
    "length": RNG.normal(size=(N, 2)).astype(np.float32),
    "age": RNG.uniform(0, 60, (N, 1)).astype(np.float32),
    "colour": RNG.choice([*COLOURS, "grey"], (N, 1)),
    "shape": RNG.choice(["round", "flat"], (N, 2)),  # several values in a record
    "word": RNG.choice(list(HASHED), (N, 1)),
    "digit": RNG.integers(0, 5, (N, 1)),
    "tag": RNG.choice(["a", "b", "c"], (N, 2)),
    "tag_weight": RNG.uniform(0.5, 2, (N, 2)).astype(np.float32),
}
TARGET = (DATA["length"][:, 0] - (DATA["colour"][:, 0] == "red") + 0.1 * DATA["digit"][:, 0]).astype(np.float32)


def one_hot(values, keys):
    """How often each of `keys` is among a record's values: [records, keys]."""
    return np.stack([(values == key).sum(1) for key in keys], axis=1).astype(np.float64)


def columns(folder):
    """Every categorical and dense kind that a linear model takes, with what it is in NumPy."""
    file = folder / "colours.txt"
    file.write_text("round\nflat\n")
    age = fc.numeric_column("age")
    buckets = fc.bucketized_column(age, boundaries=[18, 40])
    bucket = np.digitize(DATA["age"], [18, 40])
    colour = fc.categorical_column_with_vocabulary_list("colour", COLOURS, num_oov_buckets=1)
    digit = fc.categorical_column_with_identity("digit", 4, default_value=3)
    tag = fc.categorical_column_with_vocabulary_list("tag", ["a", "b", "c"])
    weighted = sum(DATA["tag_weight"][:, [i]] * one_hot(DATA["tag"][:, [i]], ["a", "b", "c"]) for i in range(2))
    return {
        "length": (fc.numeric_column("length", shape=[2], normalizer_fn=lambda x: x * 2 - 1), DATA["length"] * 2.0 - 1),
        "age_bucketized": (buckets, one_hot(bucket, range(3))),
        "colour": (colour, one_hot(DATA["colour"], [*COLOURS, "grey"])),
        "shape": (
            fc.categorical_column_with_vocabulary_file("shape", str(file)),
            one_hot(DATA["shape"], ["round", "flat"]),
        ),
        "word": (
            fc.categorical_column_with_hash_bucket("word", 3),
            one_hot(np.vectorize(HASHED.get)(DATA["word"]), range(3)),
        ),
        "digit": (digit, one_hot(np.minimum(DATA["digit"], 3), range(4))),
        "tag_weighted_by_tag_weight": (fc.weighted_categorical_column(tag, "tag_weight"), weighted),
        "age_bucketized_X_word": (fc.crossed_column([buckets, "word"], 5, hash_key=3), None),
    }


# The buckets of (age bucket, word) in the cross; 2.15 prints the same.
CROSSED = {"Hello": (1, 0, 0), "TensorFlow": (3, 2, 2), "2.x": (0, 3, 4)}


def crossed():
    bucket = np.digitize(DATA["age"][:, 0], [18, 40])
    return np.eye(5)[[CROSSED[word][b] for word, b in zip(DATA["word"][:, 0], bucket, strict=True)]]


@pytest.mark.nightly
@pytest.mark.symbols(
    "tf.estimator.LinearRegressor",
    "tf.compat.v1.estimator.LinearClassifier",
)
@pytest.mark.parametrize("api, kind", [("v2", "Regressor"), ("v1", "Classifier")])
def test_linear_model_of_every_column(tmp_path, api, kind):
    """Gradient descent in NumPy on the columns as a matrix gives every column's weights and the predictions."""
    made = columns(tmp_path)
    matrices = {name: crossed() if matrix is None else matrix for name, (_, matrix) in made.items()}
    y = (TARGET > np.median(TARGET)).astype(np.int64) if kind == "Classifier" else TARGET
    rate = 0.02
    sgd = {"v2": tf.keras.optimizers.legacy.SGD, "v1": tf.compat.v1.train.GradientDescentOptimizer}[api]
    estimator = getattr(APIS[api], f"Linear{kind}")(
        [column for column, _ in made.values()],
        optimizer=sgd(rate if api == "v2" else rate / N),  # V1 sums the loss over the batch
        config=config(tmp_path / "model"),
    )
    estimator.train(feed(DATA, y, repeat=True), steps=STEPS)

    weights, bias = {name: np.zeros(matrix.shape[1]) for name, matrix in matrices.items()}, 0.0
    for step in range(STEPS + 1):
        output = bias + sum(matrices[name] @ weights[name] for name in matrices)
        if step == STEPS:
            break
        slope = (sigmoid(output) - y if kind == "Classifier" else 2 * (output - y)) / N
        bias -= rate * slope.sum()
        for name, matrix in matrices.items():
            weights[name] -= rate * matrix.T @ slope
    found = variables(estimator.latest_checkpoint())
    assert found.keys() == {f"linear/linear_model/{n}/weights" for n in weights} | {"linear/linear_model/bias_weights"}
    for name, value in weights.items():
        np.testing.assert_allclose(found[f"linear/linear_model/{name}/weights"][:, 0], value, err_msg=name, **FLOAT32)
    key = "logits" if kind == "Classifier" else "predictions"
    np.testing.assert_allclose(predictions(estimator, feed(DATA))[key][:, 0], output, **FLOAT32)
    served = exported(estimator, [column for column, _ in made.values()], tmp_path / "export")["predict"](DATA)
    np.testing.assert_allclose(served[key][:, 0], output, **FLOAT32)


@pytest.mark.symbols("tf.estimator.LinearRegressor")
def test_mean_of_a_multivalent_column(tmp_path):
    """`sparse_combiner="mean"`: a record with two values gives half of each."""
    shape = fc.categorical_column_with_vocabulary_list("shape", ["round", "flat"])
    estimator = tf.estimator.LinearRegressor(
        [shape], sparse_combiner="mean", optimizer=tf.keras.optimizers.legacy.SGD(0.5), config=config(tmp_path)
    )
    estimator.train(feed(DATA, TARGET, repeat=True), steps=1)
    expected = one_hot(DATA["shape"], ["round", "flat"]).T / 2 @ TARGET / N
    found = variables(estimator.latest_checkpoint())["linear/linear_model/shape/weights"][:, 0]
    np.testing.assert_allclose(found, expected, **FLOAT32)


def dense_columns(folder, api):
    """Every kind that a network takes. `shared`: one table for two features, of the API's own kind."""
    made = {name: column for name, (column, _) in columns(folder).items()}
    tag = fc.categorical_column_with_vocabulary_list("tag", ["a", "b", "c"])
    words = [fc.categorical_column_with_hash_bucket(name, 4) for name in ("colour", "shape")]
    # Shared tables cannot be made while TensorFlow runs eagerly: programs make them in a graph.
    with tf.Graph().as_default():
        if api == "v1":
            shared = tf.compat.v1.feature_column.shared_embedding_columns(
                words, 2, shared_embedding_collection_name="both"
            )
        else:
            shared = fc.shared_embeddings(words, 2, shared_embedding_collection_name="both")
    return [
        made["length"],
        made["age_bucketized"],
        fc.indicator_column(made["colour"]),
        fc.indicator_column(made["age_bucketized_X_word"]),
        fc.embedding_column(made["digit"], 3),
        fc.embedding_column(tag, 2, combiner="sqrtn"),
        fc.embedding_column(made["tag_weighted_by_tag_weight"], 2),
        *shared,
    ]


def dense_matrix(folder, found):
    """What the columns above give, in the order of their names, with the tables of a checkpoint."""
    matrix = {name: crossed() if value is None else value for name, (_, value) in columns(folder).items()}

    def table(name):
        (value,) = [v for n, v in found.items() if name in n.split("/")[-2:]]
        return value

    tag = one_hot(DATA["tag"], ["a", "b", "c"])
    weighted = matrix["tag_weighted_by_tag_weight"]
    buckets = {name: tf.strings.to_hash_bucket_fast(DATA[name], 4).numpy() for name in ("colour", "shape")}
    parts = {
        "length": matrix["length"],
        "age_bucketized": matrix["age_bucketized"],
        "colour_indicator": matrix["colour"],
        "age_bucketized_X_word_indicator": matrix["age_bucketized_X_word"],
        "digit_embedding": matrix["digit"] @ table("digit_embedding"),
        "tag_embedding": tag @ table("tag_embedding") / np.sqrt(2),
        "tag_weighted_by_tag_weight_embedding": weighted
        @ table("tag_weighted_by_tag_weight_embedding")
        / weighted.sum(1, keepdims=True),
        "colour_shared_embedding": one_hot(buckets["colour"], range(4)) @ table("both"),
        "shape_shared_embedding": one_hot(buckets["shape"], range(4)) @ table("both") / 2,
    }
    return np.concatenate([parts[name] for name in sorted(parts)], axis=1)


@pytest.mark.nightly
@pytest.mark.symbols("tf.estimator.DNNRegressor", "tf.compat.v1.estimator.DNNRegressor")
@pytest.mark.parametrize("api", APIS)
def test_network_of_every_column(tmp_path, api):
    """Embeddings are learned, and the network's answer is that of the columns written out, layer by layer.

    But for the table of `tf.feature_column.shared_embeddings` in V2: the Keras layer does not own it, and on 2.15 as
    on later versions nobody trains it. V1's shared table is trained.
    """
    made = dense_columns(tmp_path, api)
    optimizer = tf.compat.v1.train.AdagradOptimizer(0.05) if api == "v1" else tf.keras.optimizers.legacy.Adagrad(0.5)
    estimator = APIS[api].DNNRegressor([8], made, optimizer=optimizer, config=config(tmp_path / "model"))
    estimator.train(feed(DATA, TARGET, repeat=True), steps=150)
    first = variables(str(tmp_path / "model" / "model.ckpt-0"))
    found = {n: v for n, v in variables(estimator.latest_checkpoint()).items() if "Adagrad" not in n}
    for name, value in found.items():
        trained = np.abs(value - first[name]).max() > 1e-3
        assert trained == (name != "both"), name

    hidden = np.maximum(
        dense_matrix(tmp_path, found) @ found["dnn/hiddenlayer_0/kernel"] + found["dnn/hiddenlayer_0/bias"], 0
    )
    output = (hidden @ found["dnn/logits/kernel"] + found["dnn/logits/bias"])[:, 0]
    np.testing.assert_allclose(predictions(estimator, feed(DATA))["predictions"][:, 0], output, **FLOAT32)
    loss = estimator.evaluate(feed(DATA, TARGET))["average_loss"]
    np.testing.assert_allclose(loss, ((output - TARGET) ** 2).mean(), **FLOAT32)
    assert loss < TARGET.var() / 10
    parse = tf.compat.v1.feature_column.make_parse_example_spec if api == "v1" else None
    served = exported(estimator, made, tmp_path / "export", parse=parse)["predict"](DATA)
    np.testing.assert_allclose(served["predictions"][:, 0], output, **FLOAT32)


# Sequences of one to five tokens, 0 after their end; class 1 where token 3 comes at all.
LENGTHS = 1 + np.arange(80) % 5
TOKENS = np.where(np.arange(5) < LENGTHS[:, None], np.random.default_rng(5).integers(1, 5, (80, 5)), 0)
HAS_THREE = (TOKENS == 3).any(1).astype(np.int64)
WORDS = np.array(["", "TensorFlow", "Hello", "b", "c"])


def sequence_feed(labels=None, *, repeat=False):
    """Each record's tokens as numbers, as words and as floats, and the sequence's length as its context."""

    def input_fn():
        where = np.argwhere(TOKENS)
        tokens = TOKENS[TOKENS > 0]
        features = {
            name: tf.SparseTensor(where, values, TOKENS.shape)
            for name, values in {
                "id": tokens.astype(np.int64),
                "word": WORDS[tokens],
                "number": (tokens / 4).astype(np.float32),
            }.items()
        }
        features["length"] = (LENGTHS / 5).astype(np.float32)[:, None]
        data = tf.data.Dataset.from_tensors(features if labels is None else (features, labels))
        return data.repeat() if repeat else data

    return input_fn


CONTEXT = fc.numeric_column("length")


def sequence_columns(folder):
    file = folder / "words.txt"
    file.write_text("\n".join(WORDS[1:]) + "\n")
    hashed = fc.sequence_categorical_column_with_hash_bucket("word", 3)
    listed = fc.sequence_categorical_column_with_vocabulary_list("word", list(WORDS[1:]))
    filed = fc.sequence_categorical_column_with_vocabulary_file("word", str(file))
    return {
        "indices": [
            fc.indicator_column(fc.sequence_categorical_column_with_identity("id", 5)),
            fc.indicator_column(hashed),
        ],
        "words": [fc.indicator_column(listed), fc.embedding_column(filed, 3), fc.sequence_numeric_column("number")],
    }


def sequence_matrix(kind, found):
    """[records, time, values] of the columns above, in the order of their names."""
    if kind == "words":
        (table,) = [v for n, v in found.items() if n.endswith("word_embedding/embedding_weights")]
        embedded = np.concatenate([np.zeros((1, 3)), table])[TOKENS]
        return np.concatenate([TOKENS[..., None] / 4, embedded, np.eye(5)[TOKENS][..., 1:]], axis=2)
    buckets = tf.strings.to_hash_bucket_fast(WORDS, 3).numpy()
    assert buckets[1:3].tolist() == [HASHED["TensorFlow"], HASHED["Hello"]]
    return np.concatenate([np.eye(5)[TOKENS], np.eye(3)[buckets[TOKENS]]], axis=2)


def simple_rnn(inputs, found):
    """The last state of `tanh(x W + h U + b)`, each sequence stopping at its own end."""
    w, u, b = (found[f"rnn_model/rnn/simple_rnn_cell/{n}"] for n in ("kernel", "recurrent_kernel", "bias"))
    state = np.zeros((len(inputs), len(b)))
    for t in range(inputs.shape[1]):
        following = np.tanh(inputs[:, t] @ w + state @ u + b)
        state = np.where((t < LENGTHS)[:, None], following, state)
    return state @ found["rnn_model/logits/kernel"] + found["rnn_model/logits/bias"]


def adam():
    return tf.keras.optimizers.legacy.Adam(0.05)


@pytest.mark.gate("indices")
@pytest.mark.symbols("tf.estimator.experimental.RNNClassifier")
@pytest.mark.parametrize("kind", ["indices", "words"])
def test_sequence_columns(tmp_path, kind):
    """A recurrent classifier learns "does the token come at all"; NumPy walks its sequences to the same answers."""
    made = sequence_columns(tmp_path)[kind]
    context = [CONTEXT] if kind == "indices" else None
    estimator = tf.estimator.experimental.RNNClassifier(
        made, context, units=[6], cell_type="simple_rnn", optimizer=adam(), config=config(tmp_path / "model")
    )
    estimator.train(sequence_feed(HAS_THREE, repeat=True), steps=80)
    found = variables(estimator.latest_checkpoint())
    inputs = sequence_matrix(kind, found)
    if context:  # the same at each time
        inputs = np.concatenate([inputs, np.repeat(LENGTHS[:, None, None] / 5, 5, axis=1)], axis=2)
    answers = predictions(estimator, sequence_feed())
    np.testing.assert_allclose(answers["logits"], simple_rnn(inputs, found), **FLOAT32)
    assert (answers["class_ids"][:, 0] == HAS_THREE).mean() > 0.97


@pytest.mark.nightly
@pytest.mark.symbols("tf.estimator.experimental.RNNClassifier")
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_recurrent_cells(tmp_path, cell):
    made = sequence_columns(tmp_path)["indices"]
    estimator = tf.estimator.experimental.RNNClassifier(
        made, units=[4], cell_type=cell, optimizer=adam(), config=config(tmp_path / "model")
    )
    estimator.train(sequence_feed(HAS_THREE, repeat=True), steps=80)
    answers = predictions(estimator, sequence_feed())
    assert (answers["class_ids"][:, 0] == HAS_THREE).mean() > 0.97


@pytest.mark.nightly
@pytest.mark.symbols("tf.estimator.experimental.RNNEstimator")
def test_recurrent_estimator(tmp_path):
    """A Keras cell of one's own, a head of three classes; evaluated, and exported for Examples."""
    labels = np.minimum((TOKENS == 3).sum(1), 2)
    made = sequence_columns(tmp_path)["indices"]
    estimator = tf.estimator.experimental.RNNEstimator(
        tf.estimator.MultiClassHead(3),
        made,
        rnn_cell_fn=lambda: tf.keras.layers.SimpleRNNCell(8),
        optimizer=adam(),
        config=config(tmp_path / "model"),
    )
    estimator.train(sequence_feed(labels, repeat=True), steps=80)
    found = variables(estimator.latest_checkpoint())
    logits = simple_rnn(sequence_matrix("indices", found), found)
    metrics = estimator.evaluate(sequence_feed(labels))
    np.testing.assert_allclose(metrics["accuracy"], (logits.argmax(1) == labels).mean(), rtol=1e-6)
    assert metrics["accuracy"] > 0.97
    np.testing.assert_allclose(predictions(estimator, sequence_feed())["probabilities"], softmax(logits), **FLOAT32)

    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(fc.make_parse_example_spec(made))
    loaded = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "export"), receiver).decode())
    rows = []
    for row in TOKENS:
        record = tf.train.Example()
        record.features.feature["id"].int64_list.value.extend(row[row > 0])
        record.features.feature["word"].bytes_list.value.extend(WORDS[i].encode() for i in row[row > 0])
        rows.append(record.SerializeToString())
    served = loaded.signatures["predict"](examples=tf.constant(rows))
    np.testing.assert_allclose(served["logits"].numpy(), logits, **FLOAT32)
