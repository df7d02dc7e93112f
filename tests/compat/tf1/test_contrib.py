"""What of tf.contrib is written anew: its numbers, against plain NumPy or TensorFlow's own."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import struct
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.tf1 import contrib
from estimator_pipeline.errors import CompatError

tf = compat.install()
v1 = tf.compat.v1


@pytest.fixture
def run():
    """`run(build)`: the values of what `build()` makes in a graph, with its variables and tables initialized."""

    def values(build, steps=1):
        with tf.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(1)
            made = build()
            session.run([v1.global_variables_initializer(), v1.tables_initializer()])
            for _ in range(steps):
                found = session.run(made)
            return found

    return values


# Conditional random fields ----------------------------------------------------------------------------------------


def _scores(inputs, transitions, length):
    """Every sequence of tags -> its score."""
    tags = range(inputs.shape[1])
    return {
        path: sum(inputs[at, tag] for at, tag in enumerate(path))
        + sum(transitions[a, b] for a, b in itertools.pairwise(path))
        for path in itertools.product(tags, repeat=length)
    }


@pytest.fixture
def field():
    random = np.random.RandomState(0)
    inputs, transitions = random.normal(size=(5, 4, 3)).astype("f"), random.normal(size=(3, 3)).astype("f")
    return inputs, random.randint(0, 3, (5, 4)), np.array([4, 2, 1, 3, 0], "int32"), transitions


def test_crf_against_every_sequence(run, field):
    from estimator_pipeline.compat.tf1.contrib import crf

    inputs, tags, lengths, transitions = field

    def build():
        given = [tf.constant(each) for each in (inputs, tags, lengths, transitions)]
        likelihood, _ = crf.crf_log_likelihood(*given)
        every = crf.crf_multitag_sequence_score(given[0], tf.ones_like(given[0], tf.bool), given[2], given[3])
        return likelihood, *crf.crf_decode(given[0], given[3], given[2]), every, crf.crf_log_norm(given[0], *given[2:])

    likelihood, decoded, best, every, norm = run(build)
    np.testing.assert_allclose(every, norm)
    for row, length in enumerate(lengths[:-1]):
        scores = _scores(inputs[row], transitions, length)
        total = np.log(sum(map(np.exp, scores.values())))
        assert likelihood[row] == pytest.approx(scores[tuple(tags[row][:length])] - total, abs=1e-5)
        winner = max(scores, key=scores.get)
        assert tuple(decoded[row][:length]) == winner and best[row] == pytest.approx(scores[winner], abs=1e-5)
        assert not decoded[row][length:].any()
        found, score = crf.viterbi_decode(inputs[row][:length], transitions)
        assert tuple(found) == winner and score == pytest.approx(scores[winner], abs=1e-5)
    assert (likelihood[-1], norm[-1]) == (0, 0)


def test_crf_has_gradients_and_takes_one_place(run, field):
    from estimator_pipeline.compat.tf1.contrib import crf

    inputs, tags, _, transitions = field

    def build():
        scores = tf.constant(transitions)
        likelihood, _ = crf.crf_log_likelihood(tf.constant(inputs), tf.constant(tags), tf.fill([5], 4), scores)
        one, variable = crf.crf_log_likelihood(tf.constant(inputs[:, :1]), tf.constant(tags[:, :1]), tf.fill([5], 1))
        assert variable.name == "transitions:0"
        decoded, _ = crf.crf_decode(tf.constant(inputs[:, :1]), scores, tf.fill([5], 1))
        return v1.gradients(likelihood, scores)[0], one, decoded

    gradient, one, decoded = run(build)
    # What is expected of all transitions, taken from what there is: 15 each.
    assert gradient.sum() == pytest.approx(0, abs=1e-4) and np.abs(gradient).max() > 0.1
    first = inputs[:, 0]
    chosen = first[np.arange(5), tags[:, 0]] - np.log(np.exp(first).sum(axis=1))
    np.testing.assert_allclose(one, chosen, rtol=1e-5)
    np.testing.assert_array_equal(decoded[:, 0], first.argmax(axis=1))


# Sequences ----------------------------------------------------------------------------------------------------------


def test_gather_tree(run):
    from estimator_pipeline.compat.tf1.contrib.seq2seq import gather_tree

    # [time, batch of one, three beams]; the example of the operation's documentation.
    steps = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [-1, -1, -1]], "int32")[:, np.newaxis]
    parents = np.array([[0, 0, 0], [0, 1, 1], [2, 1, 2], [-1, -1, -1]], "int32")[:, np.newaxis]
    found = run(lambda: gather_tree(tf.constant(steps), tf.constant(parents), tf.constant([3]), tf.constant(10)))
    np.testing.assert_array_equal(found[:, 0], [[2, 2, 2], [6, 5, 6], [7, 8, 9], [10, 10, 10]])
    # Behind an end nothing stands but the end.
    found = run(lambda: gather_tree(tf.constant(steps), tf.constant(parents), tf.constant([3]), tf.constant(6)))
    np.testing.assert_array_equal(found[:, 0], [[2, 2, 2], [6, 5, 6], [6, 8, 6], [6, 6, 6]])


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, ()),
        ({"average_across_timesteps": False}, (3,)),
        ({"average_across_batch": False}, (2,)),
        ({"average_across_timesteps": False, "average_across_batch": False}, (2, 3)),
        (
            dict.fromkeys(("average_across_timesteps", "average_across_batch"), False)
            | dict.fromkeys(("sum_over_timesteps", "sum_over_batch"), True),
            (),
        ),
    ],
)
def test_sequence_loss(options, shape, run):
    from estimator_pipeline.compat.tf1.contrib.seq2seq import sequence_loss

    logits = np.random.RandomState(0).normal(size=(2, 3, 4)).astype("f")
    targets, weights = np.array([[0, 1, 2], [3, 0, 1]]), np.array([[1, 0.5, 0], [2, 1, 0]], "f")
    loss = -np.take_along_axis(logits, targets[..., None], 2)[..., 0] + np.log(np.exp(logits).sum(axis=2))
    loss = loss * weights
    by = (
        weights
        if options.get("average_across_batch", True) or options.get("average_across_timesteps", True)
        else weights > 0
    )
    axis = {(): None, (3,): 0, (2,): 1}.get(shape)
    expected = loss if shape == (2, 3) else loss.sum(axis) / np.maximum(by.sum(axis), 1e-9)
    found = run(lambda: sequence_loss(tf.constant(logits), tf.constant(targets), tf.constant(weights), **options))
    np.testing.assert_allclose(found, np.where(np.isfinite(expected), expected, 0), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed")
def test_fused_lstm_is_the_cell(run):
    """LSTMBlockFusedCell against BasicLSTMCell with the same kernel, sequences of several lengths, both directions."""
    from estimator_pipeline.compat.tf1.contrib import rnn

    values = np.random.RandomState(0).normal(size=(5, 3, 2)).astype("f")
    lengths = np.array([5, 2, 3])

    def build():
        inputs = tf.constant(values)
        with v1.variable_scope("one", initializer=v1.random_normal_initializer(seed=1)):
            fused, state = rnn.LSTMBlockFusedCell(4)(inputs, dtype=tf.float32, sequence_length=tf.constant(lengths))
        with v1.variable_scope("two", initializer=v1.random_normal_initializer(seed=1)):
            cell = v1.nn.rnn_cell.BasicLSTMCell(4)
            plain, after = v1.nn.dynamic_rnn(cell, inputs, lengths, dtype=tf.float32, time_major=True)
        back = rnn.TimeReversedFusedRNN(lambda x, s, **options: (x, s))(inputs, sequence_length=tf.constant(lengths))
        names = [each.op.name for each in v1.trainable_variables() if each.op.name.startswith("one")]
        copied = v1.assign(v1.trainable_variables()[2], v1.trainable_variables()[0])
        with tf.control_dependencies([copied]):
            return copied, fused, state, plain, after, back[0], tf.constant(names)

    _, fused, state, plain, after, back, names = run(build, steps=2)
    np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state, after, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(back, values)
    assert list(names) == [b"one/lstm_fused_cell/kernel", b"one/lstm_fused_cell/bias"]


def test_layer_norm_cell_and_stacked_networks(run):
    from estimator_pipeline.compat.tf1.contrib import rnn

    def build():
        inputs = tf.random.normal([3, 5, 4], seed=1)
        cells = [[rnn.LayerNormBasicLSTMCell(6) for _ in range(2)] for _ in range(2)]
        outputs, forward, backward = rnn.stack_bidirectional_dynamic_rnn(*cells, inputs, dtype=tf.float32)
        names = sorted({each.op.name for each in v1.trainable_variables()})
        return outputs, forward[-1].h, backward[-1].h, tf.constant(names)

    outputs, forward, backward, names = run(build)
    assert outputs.shape == (3, 5, 12)
    np.testing.assert_allclose(outputs[:, -1, :6], forward)
    np.testing.assert_allclose(outputs[:, 0, 6:], backward)
    scope = b"stack_bidirectional_rnn/cell_1/bidirectional_rnn/fw/layer_norm_basic_lstm_cell/"
    assert {scope + name for name in (b"kernel", b"forget/gamma", b"state/beta")} <= set(names)
    assert not any(name.endswith(b"bias") for name in names)


# Optimizers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(run):
    """`trained(optimizer, steps, rows=None, resource=True, **minimize)`: a variable of ones after some steps."""

    def value(optimizer, steps, *, rows=None, resource=True, **options):
        with tf.Graph().as_default(), v1.Session() as session:
            variable = v1.get_variable("w", initializer=tf.ones([3, 2]), use_resource=resource)
            other = v1.get_variable("other", initializer=tf.ones([2]), use_resource=resource)
            read = variable if rows is None else tf.gather(variable, rows)
            decay = {name: [other] for name in options}
            train = optimizer().minimize(tf.reduce_sum(read * read) + tf.reduce_sum(other), **decay)
            session.run(v1.global_variables_initializer())
            for _ in range(steps):
                session.run(train)
            return session.run(variable)

    return value


@pytest.mark.parametrize("resource", [True, False])
def test_decoupled_weight_decay(trained, resource):
    from estimator_pipeline.compat.tf1.contrib import opt

    found = trained(lambda: opt.MomentumWOptimizer(0.1, 0.01, 0.0), 3, resource=resource)
    expected = 1.0
    for _ in range(3):
        # The gradient is that of before the decay.
        expected = expected - 0.1 * expected - 0.01 * 2 * expected
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    plain = trained(lambda: v1.train.MomentumOptimizer(0.01, 0.0), 3, resource=resource)
    left_out = trained(lambda: opt.MomentumWOptimizer(0.1, 0.01, 0.0), 3, resource=resource, decay_var_list=True)
    np.testing.assert_allclose(left_out, plain)
    made = opt.extend_with_decoupled_weight_decay(v1.train.MomentumOptimizer)
    np.testing.assert_allclose(trained(lambda: made(0.1, 0.01, 0.0), 3, resource=resource), found)


@pytest.mark.parametrize("resource", [True, False])
def test_adam_and_its_like(trained, resource):
    from estimator_pipeline.compat.tf1.contrib import opt

    adam = trained(lambda: v1.train.AdamOptimizer(0.1), 4, resource=resource)
    np.testing.assert_allclose(trained(lambda: opt.AdamWOptimizer(0.0, 0.1), 4, resource=resource), adam)
    # With a gradient for each row in each step lazy Adam is Adam.
    lazy = trained(lambda: opt.LazyAdamOptimizer(0.1), 4, rows=[0, 1, 2], resource=resource)
    np.testing.assert_allclose(lazy, adam, rtol=1e-5)
    lazy = trained(lambda: opt.LazyAdamOptimizer(0.1), 4, rows=[1], resource=resource)
    np.testing.assert_array_equal(lazy[[0, 2]], 1)
    np.testing.assert_allclose(lazy[1], adam[1], rtol=1e-5)
    nadam = trained(lambda: opt.NadamOptimizer(0.1), 4, resource=resource)
    of_rows = trained(lambda: opt.NadamOptimizer(0.1), 4, rows=[0, 1, 2], resource=resource)
    np.testing.assert_allclose(nadam, of_rows, rtol=1e-5)
    assert (nadam < adam).all()


def test_lars(trained):
    from estimator_pipeline.compat.tf1.contrib import opt

    found = trained(lambda: opt.LARSOptimizer(1.0, momentum=0.5, weight_decay=0.1, eeta=0.01), 2)
    value, step = np.ones((3, 2)), 0.0
    for _ in range(2):
        gradient = 2 * value
        of_value, of_gradient = np.linalg.norm(value), np.linalg.norm(gradient)
        rate = 0.01 * of_value / (of_gradient + 0.1 * of_value)
        step = 0.5 * step + rate * (gradient + 0.1 * value)
        value = value - step
    np.testing.assert_allclose(found, value, rtol=1e-5)
    plain = trained(lambda: v1.train.MomentumOptimizer(0.1, 0.5), 3)
    np.testing.assert_allclose(trained(lambda: opt.LARSOptimizer(0.1, 0.5, skip_list=["w"]), 3), plain, rtol=1e-5)


# Hyperparameters ---------------------------------------------------------------------------------------------------


def test_hparams():
    from estimator_pipeline.compat.tf1.contrib.training import HParams

    params = HParams(rate=0.1, units=[8, 4], name="a", deep=True, limit=None)
    assert params.parse("rate=1,units=[16,8],name=b_1.x,deep=false").values() == {
        "rate": 1.0, "units": [16, 8], "name": "b_1.x", "deep": False, "limit": None,
    }  # fmt: skip
    params.parse("units[1]=32")
    assert params.units == [16, 32] and "units" in params and "unit" not in params
    params.set_hparam("rate", 2)
    assert type(params.rate) is float and params.get("rate") == 2 and params.get("none", 3) == 3
    assert HParams(**params.values()).parse_json(params.to_json()).values() == params.values()
    params.del_hparam("name")
    assert not hasattr(params, "name")
    params.add_hparam("name", "c")
    assert str(HParams(b=1, a="x")) == "[('a', 'x'), ('b', 1)]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rate=fast", "Could not parse hparam 'rate'"),
        ("speed=1", "Unknown hyperparameter type for speed"),
        ("rate=1,rate=2", "Multiple assignments to variable 'rate'"),
        ("units[0]=1,units[0]=2", r"Multiple assignments to variable 'units\[0\]'"),
        ("units[0]=[1]", "Assignment of a list to a list index"),
        ("units=3", "Must pass a list"),
        ("rate=[1]", "Must not pass a list"),
        ("=1", "Malformed hyperparameter value"),
    ],
)
def test_wrong_hparams(text, says):
    from estimator_pipeline.compat.tf1.contrib.training import HParams

    with pytest.raises(ValueError, match=says):
        HParams(rate=0.1, units=[8, 4]).parse(text)


def test_hparams_keep_their_types():
    from estimator_pipeline.compat.tf1.contrib.training import HParams

    params = HParams(units=1, name="a", deep=True)
    for name, value in (("units", 1.5), ("units", True), ("name", 1), ("deep", 1), ("units", "1")):
        with pytest.raises(ValueError, match="Could not cast hparam"):
            params.set_hparam(name, value)
    for wrong in ({"units": []}, {"parse": 1}):
        with pytest.raises(ValueError):
            HParams(**wrong)


# Data ---------------------------------------------------------------------------------------------------------------


def test_data_and_tables(run):
    from estimator_pipeline.compat.tf1.contrib import data, lookup

    def build():
        ds = tf.data.Dataset.range(7).apply(data.map_and_batch(lambda x: x * 2, 3, num_parallel_batches=2))
        dropped = tf.data.Dataset.range(7).apply(data.batch_and_drop_remainder(3))
        padded = dropped.apply(data.padded_batch_and_drop_remainder(2, [4]))
        rows = [v1.data.make_one_shot_iterator(each).get_next() for each in (ds, padded)]
        table = lookup.index_table_from_tensor(["a", "b"], num_oov_buckets=1)
        word = lookup.index_to_string(tf.constant([1, 5], tf.int64), tf.constant(["x", "y"]), default_value="no")
        sum_of = tf.data.experimental.Reducer(
            lambda _: tf.constant(0, tf.int64), lambda total, value: total + value, lambda total: total
        )
        total = data.reduce_dataset(tf.data.Dataset.range(5), sum_of)
        return *rows, table.lookup(tf.constant(["b", "q"])), word, total

    batch, padded, ids, words, total = run(build)
    assert batch.tolist() == [0, 2, 4] and padded.tolist() == [[0, 1, 2, 0], [3, 4, 5, 0]]
    assert ids.tolist() == [1, 2] and words.tolist() == [b"y", b"no"] and total == 10
    with pytest.raises(ValueError, match="mutually exclusive"):
        data.map_and_batch(abs, 2, num_parallel_batches=1, num_parallel_calls=1)


@pytest.mark.parametrize("options", [{"window_shift": 2}, {"stride": 2}, {"window_shift": 2, "window_stride": 2}])
def test_sliding_windows(options):
    from estimator_pipeline.compat.tf1.contrib import data

    numbers = tf.data.Dataset.range(7)
    pairs = tf.data.Dataset.zip((numbers, {"x": numbers}))
    step = options.get("window_stride", 1)
    wanted = [[at, at + step, at + 2 * step] for at in range(0, 7, 2) if at + 2 * step < 7]
    found = [one.tolist() for one in numbers.apply(data.sliding_window_batch(3, **options)).as_numpy_iterator()]
    assert found == wanted
    both = list(pairs.apply(data.sliding_window_batch(3, **options)).as_numpy_iterator())
    assert [one[0].tolist() for one in both] == [one[1]["x"].tolist() for one in both] == wanted
    with pytest.raises(ValueError, match="Cannot specify both"):
        data.sliding_window_batch(3, stride=1, window_shift=1)


def test_columns(run):
    """Those of tf.contrib.layers, for what makes numbers of columns today."""
    columns = contrib.module("layers")
    word = columns.sparse_column_with_keys("word", ["a", "b"])
    kind = columns.sparse_column_with_integerized_feature("kind", 3)
    size = columns.real_valued_column("size", normalizer=lambda one: one * 2)
    features = {"size": [[2.0]], "kind": [[1]], "word": [["b"]]}
    dense = [size, columns.one_hot_column(kind), columns.bucketized_column(size, [5.0, 1.0])]
    dense.append(columns.embedding_column(word, 2, initializer=v1.ones_initializer()))
    hashed = columns.sparse_column_with_hash_bucket("word", 5)
    wide = [hashed, columns.crossed_column({word, kind}, 7)]

    def build():
        made = v1.feature_column.input_layer(features, dense)
        return made, v1.feature_column.linear_model(features, wide)

    found, linear = run(build)
    # In the order of names: kind, size, size by ranges, word.
    assert found.tolist() == [[0.0, 1.0, 0.0, 4.0, 0.0, 1.0, 0.0, 1.0, 1.0]] and linear.tolist() == [[0.0]]
    assert set(columns.create_feature_spec_for_parsing({size, word})) == {"size", "word"}
    with pytest.raises(ValueError, match="dimension=None"):
        columns.real_valued_column("size", None)


def test_mnist_of_its_files(tmp_path):
    from estimator_pipeline.compat.tf1.contrib.learn import datasets

    images = np.arange(12 * 4, dtype="uint8").reshape(12, 2, 2)
    for part, count in (("train", 12), ("t10k", 4)):
        head = struct.pack(">4I", 2051, count, 2, 2)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images[:count].tobytes()))
        head = struct.pack(">2I", 2049, count) + bytes(range(count))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head))
    found = datasets.read_data_sets(str(tmp_path), validation_size=2)
    assert (found.train.num_examples, found.validation.num_examples, found.test.num_examples) == (10, 2, 4)
    assert found.train.images.shape == (10, 4) and found.test.images.max() == pytest.approx(15 / 255)
    seen = np.concatenate([found.train.next_batch(4)[1] for _ in range(5)])
    assert sorted(seen[:10]) == list(range(2, 12)) == sorted(seen[10:]) and found.train.epochs_completed == 1
    with pytest.raises(ValueError, match="Validation size"):
        datasets.read_data_sets(str(tmp_path), validation_size=20)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(struct.pack(">2I", 1, 0)))
    with pytest.raises(ValueError, match="Invalid magic number 1"):
        datasets.read_data_sets(str(tmp_path), validation_size=2)


def test_mnist_that_is_not_there(tmp_path):
    """Fetched from where TensorFlow had it; where that cannot be, the error says which file to put where."""
    from estimator_pipeline.compat.tf1.contrib.learn import datasets

    (tmp_path / "there").mkdir()
    (tmp_path / "there/a.gz").write_bytes(b"content")
    path = datasets.maybe_download("a.gz", str(tmp_path / "data"), (tmp_path / "there/a.gz").as_uri())
    assert path == str(tmp_path / "data/a.gz") and (tmp_path / "data/a.gz").read_bytes() == b"content"
    with pytest.raises(CompatError) as error:
        datasets.maybe_download("b.gz", str(tmp_path / "data"), (tmp_path / "there/b.gz").as_uri())
    assert error.value.code == "file/not-found" and error.value.hint == f"copy b.gz to {tmp_path / 'data'}"
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["a.gz"]


def test_images(run):
    from estimator_pipeline.compat.tf1.contrib import image

    picture = np.arange(25, dtype="f").reshape(5, 5)

    def build():
        images = tf.constant(np.stack([picture] * 2)[..., np.newaxis])
        turned = image.rotate(images, tf.constant([np.pi / 2, np.pi], tf.float32))
        one = image.angles_to_projective_transforms(0.3, 5, 5)
        back = image.compose_transforms(one, image.angles_to_projective_transforms(-0.3, 5, 5))
        return turned, image.translate(tf.constant(picture), [1, 0]), back

    turned, moved, back = run(build)
    np.testing.assert_array_equal(turned[0, ..., 0], np.rot90(picture))
    np.testing.assert_array_equal(turned[1, ..., 0], np.rot90(picture, 2))
    np.testing.assert_array_equal(moved, np.pad(picture, ((0, 0), (1, 0)))[:, :5])
    np.testing.assert_allclose(back[0], [1, 0, 0, 0, 1, 0, 0, 0], atol=1e-5)


# TPUs and strategies --------------------------------------------------------------------------------------------------


def test_no_tpu(monkeypatch):
    from estimator_pipeline.compat.tf1.contrib import tpu

    monkeypatch.delenv("TPU_NAME", raising=False)
    resolver = tpu.TPUClusterResolver("", zone="z", project="p")
    assert resolver.master() == "" == resolver.get_master() and not resolver.cluster_spec().as_dict()
    config = v1.estimator.tpu.RunConfig(cluster=tpu.TPUClusterResolver())
    assert config.master == "" and config.num_worker_replicas == 1
    for use in (
        lambda: tpu.TPUClusterResolver("my-tpu"),
        lambda: tpu.TPUEstimator(lambda: None, config=config, train_batch_size=8),
        lambda: tpu.keras_to_tpu_model(None),
        lambda: tpu.TPUDistributionStrategy(resolver),
    ):
        with pytest.raises(CompatError) as error:
            use()
        assert error.value.code == "argument/not-applicable" and "use_tpu=False" in error.value.hint


def test_strategies():
    from estimator_pipeline.compat.tf1.contrib import distribute

    strategy = distribute.MirroredStrategy(num_gpus=0)
    assert isinstance(strategy, v1.distribute.MirroredStrategy) and isinstance(strategy, distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 1
    assert distribute.OneDeviceStrategy("/cpu:0").num_replicas_in_sync == 1
    with pytest.raises(CompatError) as error:
        distribute.MirroredStrategy(num_gpus=99)
    assert error.value.code == "argument/not-applicable" and "99 GPUs" in str(error.value)
    with pytest.raises(CompatError):
        distribute.CollectiveAllReduceStrategy(num_gpus_per_worker=99)
    assert distribute.list_devices()[0] == "/job:localhost/replica:0/task:0/device:CPU:0"


# Estimators of tf.contrib.learn ---------------------------------------------------------------------------------------


def test_contrib_learn_estimator(tmp_path):
    """A model_fn that returns ModelFnOps; arrays; a MetricSpec; feature_engineering_fn."""
    from estimator_pipeline.compat.tf1.contrib import learn

    seen = []

    def model_fn(features, targets, mode, params):
        seen.append((mode, params["rate"]))
        weight = v1.get_variable("w", [2, 1], initializer=v1.zeros_initializer())
        predictions = tf.matmul(features, weight)[:, 0]
        if mode == learn.ModeKeys.INFER:
            return learn.ModelFnOps(mode, {"y": predictions})
        loss = tf.reduce_mean(tf.square(predictions - targets))
        train = v1.train.GradientDescentOptimizer(params["rate"]).minimize(loss, v1.train.get_global_step())
        return learn.ModelFnOps(mode, {"y": predictions}, loss, train)

    x = np.random.RandomState(0).normal(size=(200, 2)).astype("f")
    y = x @ np.array([2, -1], "f")
    estimator = learn.Estimator(
        model_fn, str(tmp_path), params={"rate": 0.2}, feature_engineering_fn=lambda x, y: (x * 2, y)
    )
    estimator.fit(x, y, steps=100, batch_size=50)
    error = learn.MetricSpec(v1.metrics.mean_absolute_error, prediction_key="y")
    found = estimator.evaluate(x, y, batch_size=100, metrics={"error": error})
    assert found["loss"] < 1e-4 and found["error"] < 1e-2 and found["global_step"] == 100
    np.testing.assert_allclose(estimator.predict(x[:5], as_iterable=False)["y"], y[:5], atol=1e-2)
    assert [mode for mode, _ in seen] == ["train", "eval", "infer"] and seen[0][1] == 0.2
    assert estimator.get_variable_value("w").ravel() == pytest.approx([1, -0.5], abs=1e-2)
    assert list(next(estimator.predict(x[:5], outputs=["y"]))) == ["y"]
    with pytest.raises(ValueError, match=r"at least one output from .*'y'.*, provided \['z'\]"):
        next(estimator.predict(x[:5], outputs=["z"]))


def test_run_config(monkeypatch):
    from estimator_pipeline.compat.tf1.contrib import learn

    tf_config = {
        "cluster": {"master": ["a:1"], "worker": ["b:2"], "ps": ["c:3"]},
        "task": {"type": "worker", "index": 0},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps({**tf_config, "environment": "cloud"}))
    config = learn.RunConfig(num_cores=2, gpu_memory_fraction=0.5, save_checkpoints_secs=None, model_dir="m")
    assert (config.task_type, config.environment, config.is_chief) == ("worker", "cloud", False)
    assert config.session_config.intra_op_parallelism_threads == 2 and config.tf_config is config.session_config
    assert config.save_checkpoints_secs is None and learn.RunConfig().save_checkpoints_secs == 600
    assert learn.RunConfig(save_checkpoints_steps=5).save_checkpoints_secs is None
    assert config.uid() != learn.RunConfig(num_cores=1).uid() and config.uid() == config.replace(model_dir="n").uid()


def test_learn_runner_refuses():
    from estimator_pipeline.compat.tf1.contrib import learn

    config = learn.RunConfig(model_dir="m")
    estimator = v1.estimator.Estimator(lambda features, labels, mode: None, config=config)
    experiment = learn.Experiment(estimator, lambda: None, lambda: None)
    for arguments, kind, says in (
        ({}, ValueError, "Must set value"),
        ({"output_dir": "a", "run_config": config}, ValueError, "Must set value"),
        ({"run_config": learn.RunConfig()}, ValueError, "model directory"),
        ({"output_dir": "a", "hparams": 1}, ValueError, "hparams"),
        ({"run_config": config, "schedule": "fly"}, ValueError, "non-existent task fly"),
        ({"run_config": config, "schedule": "estimator"}, TypeError, "non-callable"),
    ):
        with pytest.raises(kind, match=says):
            learn.learn_runner_run(lambda *given: experiment, **arguments)
    with pytest.raises(TypeError, match="did not return an Experiment"):
        learn.learn_runner_run(lambda config, hparams: None, run_config=config)
    with pytest.raises(ValueError, match="eval_metrics"):
        learn.Experiment(estimator, lambda: None, lambda: None, eval_metrics={"a": 1})


def test_heads_and_clipping(run):
    from estimator_pipeline.compat.tf1.contrib import estimator as module

    assert module.multi_class_head(3).logits_dimension == 3
    assert module.regression_head(label_dimension=2).logits_dimension == 2
    assert module.binary_classification_head().logits_dimension == 1

    def build():
        weight = v1.get_variable("w", initializer=[3.0, 4.0])
        clipped = module.clip_gradients_by_norm(v1.train.GradientDescentOptimizer(1.0), 1.0)
        with tf.control_dependencies([clipped.minimize(tf.reduce_sum(weight * weight) / 2)]):
            return weight.read_value()

    np.testing.assert_allclose(run(build), [2.4, 3.2], rtol=1e-6)

    def towers():
        weight = v1.get_variable("w", initializer=[3.0, 4.0])
        optimizer = module.TowerOptimizer(lambda: v1.train.MomentumOptimizer(0.5, 0.9))
        with tf.control_dependencies([optimizer.minimize(tf.reduce_sum(weight * weight) / 2)]):
            return weight.read_value(), optimizer.get_slot(weight, "momentum").read_value()

    value, momentum = run(towers)
    np.testing.assert_allclose(value, [1.5, 2.0])
    np.testing.assert_allclose(momentum, [3.0, 4.0])


def test_replicated_model_fns(logged):
    from estimator_pipeline.compat.tf1.contrib import estimator as module

    assert module.replicate_model_fn(max) is max and "one device" not in logged.text
    assert module.replicate_model_fn(max, devices=["/gpu:0", "/gpu:1"]) is max
    assert "RunConfig(train_distribute=tf.distribute.MirroredStrategy()) uses all GPUs" in logged.text


# The table ----------------------------------------------------------------------------------------------------------


def test_the_package_that_any_code_imports(monkeypatch):
    """The same under `--tf1`, whose finder is there first, and where `tensorflow.contrib` has the moved names alone."""
    contrib.install()
    monkeypatch.setitem(sys.modules, contrib.ROOT, types.ModuleType(contrib.ROOT))
    package = importlib.import_module(contrib.PACKAGE)
    assert Path(package.__file__).name == "contrib.py"
    assert importlib.import_module(f"{contrib.PACKAGE}.training").HParams is package.training.HParams
    with pytest.raises(AttributeError, match=r"tf\.contrib never had nothing"):
        package.nothing.f()


def test_rows_are_sorted_and_named_once():
    rows = [line for line in contrib._FILE.read_text().splitlines() if not line.startswith("#")]
    assert rows == sorted(rows)
    whole = [line.split(" ")[0] for line in rows if " = " in line]
    assert len(whole) == len(set(whole))


def test_the_page_is_of_the_table():
    """docs/reference/contrib.md: `python tools/contrib_names.py` writes it."""
    path = Path(__file__).resolve().parents[3] / "tools/contrib_names.py"
    spec = importlib.util.spec_from_file_location("contrib_names", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.DOCUMENT.read_text(encoding="utf-8") == tool.page()
