"""The model_fn builder: each mode, each replica count, each optimizer family."""

from __future__ import annotations

import numpy as np
import pytest

import estimator_pipeline as ep
import model_fns
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.optimizers.spec import NAMES as OPTIMIZERS
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
ModeKeys = tf.estimator.ModeKeys
RNG = np.random.default_rng(5)
IMAGES = RNG.random((48, 8, 8, 1), dtype=np.float32)
LABELS = RNG.integers(0, 10, 48).astype(np.int64)


def mirrored(replicas: int):
    if replicas == 1:
        return None
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def train(fn, tmp_path, *, replicas=1, steps=3, batch=12, features=IMAGES, labels=LABELS):
    """Trains on whole batches in a fixed order and returns the estimator."""
    config = tf.estimator.RunConfig(
        model_dir=str(tmp_path), train_distribute=mirrored(replicas), tf_random_seed=7, save_checkpoints_steps=100
    )
    estimator = tf.estimator.Estimator(fn, config=config)

    def input_fn(input_context=None):
        size = batch if input_context is None else input_context.get_per_replica_batch_size(batch)
        return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(size, drop_remainder=True)

    tf.keras.utils.set_random_seed(7)
    return estimator.train(input_fn, steps=steps)


def weights(estimator):
    return {n: estimator.get_variable_value(n) for n in estimator.get_variable_names() if n != "global_step"}


def kernel(values):
    (found,) = [v for n, v in values.items() if n.endswith("dense/kernel")]
    return found


@pytest.mark.gate("sgd-v1", "sgd-keras")
@pytest.mark.parametrize("api", ["v1", "keras"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_e4_step_of_replicas_equals_one_big_batch(tmp_path, name, api):
    """Loss scaling: 1, 2 and 3 replicas take the same step; the sum's order differs, so a few ULP are allowed."""
    optimizer = {"name": name, "learning_rate": 0.01, "api": api}
    runs = {
        r: weights(train(model_fns.model_fn("dnn", optimizer=optimizer), tmp_path / str(r), replicas=r))
        for r in ((1, 2, 3) if name == "adam" else (1, 3))
    }
    for replicas in runs.keys() - {1}:
        assert runs[replicas].keys() == runs[1].keys()
        for variable, value in runs[1].items():
            # Adaptive optimizers divide by the root of tiny second moments: an error of one ULP in a gradient near
            # zero is magnified there to the size of a step (learning rate 0.01).
            np.testing.assert_allclose(runs[replicas][variable], value, rtol=2e-4, atol=2e-5, err_msg=variable)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", [2.0, 0.5])
def test_e4_wrong_loss_scaling_would_be_seen(tmp_path, fault):
    """The comparison above is not blind: a loss scaled wrongly by a factor of two fails it."""
    options = {"optimizer": "sgd", "loss": lambda y, z: fault * _cross_entropy(y, z), "head": "multi_class"}
    right = weights(train(model_fns.model_fn("dnn", optimizer="sgd"), tmp_path / "right"))
    wrong = weights(train(model_fns.model_fn("dnn", metrics=["accuracy"], **options), tmp_path / "wrong"))
    worst = max(np.abs(right[n] - wrong[n]).max() for n in right)
    assert worst > 1e-4


def _cross_entropy(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


@pytest.mark.gate("clip0-2")
@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("clip", [{"clip_norm": 0.05}, {"clip_value": 0.002}])
def test_clipping_is_of_the_global_gradient(tmp_path, replicas, clip):
    fn = model_fns.model_fn("dnn", optimizer={"name": "sgd", "learning_rate": 1.0}, **clip)
    start = weights(train(fn, tmp_path / "start", steps=1, replicas=1))
    step = weights(train(fn, tmp_path / "step", steps=1, replicas=replicas))
    for name, value in start.items():
        np.testing.assert_allclose(step[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def test_clip_norm_bounds_the_step(tmp_path):
    fn = model_fns.model_fn("dnn", optimizer={"name": "sgd", "learning_rate": 1.0}, clip_norm=0.05)
    before = weights(train(fn, tmp_path, steps=1))
    after = weights(train(fn, tmp_path, steps=1))
    moved = np.sqrt(sum(np.sum((after[n] - before[n]) ** 2) for n in before))
    assert moved == pytest.approx(0.05, rel=1e-3)


@pytest.mark.gate("2")
@pytest.mark.parametrize("replicas", [1, 2])
def test_batchnorm_statistics_move_with_training(tmp_path, replicas):
    fn = model_fns.model_fn("resnet", params={"filters": (4,), "momentum": 0.5})
    values = weights(train(fn, tmp_path, replicas=replicas, steps=5))
    means = [v for n, v in values.items() if n.endswith("moving_mean")]
    assert len(means) >= 3
    assert all(np.abs(mean).max() > 1e-4 for mean in means)
    assert not any("/replica_" in n for n in values)


def test_batchnorm_and_dropout_are_off_outside_training(tmp_path):
    """EVAL twice gives the same numbers, and those of the plain Keras model with training=False."""
    params = {"dropout": 0.5}
    estimator = train(model_fns.model_fn("cnn", params=params), tmp_path, steps=2)
    predictions = [p["logits"] for p in estimator.predict(lambda: tf_data(20))]
    again = [p["logits"] for p in estimator.predict(lambda: tf_data(20))]
    np.testing.assert_array_equal(predictions, again)
    model = model_fns.keras_model("cnn", **params)
    names = ["conv2d/kernel", "conv2d/bias", "dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
    model.set_weights([estimator.get_variable_value(n) for n in names])
    np.testing.assert_allclose(predictions, model(IMAGES, training=False).numpy(), rtol=1e-5, atol=1e-6)


def tf_data(batch):
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(batch)


def test_dropout_is_on_in_training(tmp_path):
    """The same start and data with and without dropout end elsewhere."""
    runs = [
        weights(train(model_fns.model_fn("dnn", params={"dropout": rate}), tmp_path / str(rate), steps=2))
        for rate in (0.0, 0.5)
    ]
    assert max(np.abs(runs[0][n] - runs[1][n]).max() for n in runs[0]) > 1e-5


@pytest.mark.gate("2")
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_regularisation_counts_once(tmp_path, replicas):
    """With a zero data gradient the weights shrink by learning rate * d(l2 * w^2), on any number of replicas."""
    zero = np.zeros_like(IMAGES)
    fn = ep.build_model_fn(
        lambda: tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(10, use_bias=False, kernel_regularizer=tf.keras.regularizers.l2(0.1)),
            ]
        ),
        loss="sparse_categorical_crossentropy",
        optimizer={"name": "sgd", "learning_rate": 0.5},
    )
    first = weights(train(fn, tmp_path, steps=1, replicas=replicas, features=zero))
    second = weights(train(fn, tmp_path, steps=1, replicas=replicas, features=zero))
    np.testing.assert_allclose(kernel(second), kernel(first) * (1 - 0.5 * 0.2), rtol=1e-5)


def test_average_loss_is_exact_with_a_short_last_batch(tmp_path):
    estimator = train(model_fns.model_fn("dnn"), tmp_path, steps=2)
    metrics = {b: estimator.evaluate(lambda b=b: tf_data(b)) for b in (48, 7)}
    assert metrics[7]["average_loss"] == pytest.approx(metrics[48]["average_loss"], rel=1e-6)
    assert metrics[7]["accuracy"] == metrics[48]["accuracy"]


WARMED_UP = {
    "learning_rate": {"kind": "piecewise", "boundaries": [2], "values": [0.08, 0.04]},
    "warmup_steps": 2,
    "warmup_from": 0.02,
}


@pytest.mark.gate("v1-<lambda>-value3", "keras-kind1-value1", "keras-kind4-value4")
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"kind": "constant", "learning_rate": 0.1}, [0.1, 0.1, 0.1]),
        ({"kind": "piecewise", "boundaries": [1], "values": [0.1, 0.01]}, [0.1, 0.1, 0.01]),
        (
            {"kind": "exponential", "initial_learning_rate": 0.1, "decay_steps": 1, "decay_rate": 0.5},
            [0.1, 0.05, 0.025],
        ),
        (lambda step: 0.1 / (1.0 + tf.cast(step, tf.float32)), [0.1, 0.05, 0.1 / 3]),
        (WARMED_UP, [0.02, 0.05, 0.08, 0.04]),
        ({**WARMED_UP, "learning_rate": 0.1, "warmup_from": 0.0}, [0.0, 0.05, 0.1, 0.1]),
        (
            {**WARMED_UP, "learning_rate": lambda step: 0.1 / (1.0 + tf.cast(step, tf.float32)), "warmup_steps": 1},
            [0.02, 0.05, 0.1 / 3],
        ),
    ],
)
@pytest.mark.parametrize("api", ["v1", "keras"])
def test_learning_rate_follows_the_global_step(tmp_path, kind, value, api):
    """A gradient of one for each weight: the step's length is the learning rate itself."""
    fields = kind if isinstance(kind, dict) and "warmup_steps" in kind else {"learning_rate": kind}
    fn = ep.build_model_fn(
        lambda: tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]),
        loss=lambda labels, logits: logits[:, 0],
        head="regression",
        metrics={},
        optimizer={"name": "sgd", "api": api, **fields},
    )
    ones, labels = np.ones((4, 1), np.float32), np.zeros(4, np.float32)
    seen, last = [], 0.0
    for _ in value:
        estimator = train(fn, tmp_path, steps=1, batch=4, features=ones, labels=labels)
        now = float(kernel(weights(estimator))[0, 0])
        seen.append(last - now)
        last = now
    assert seen == pytest.approx(value, rel=1e-5)


def test_the_rate_that_is_told_is_read_before_the_step_is_counted():
    """Else it would be, at times, the rate of the next step."""
    rate = {"kind": "piecewise", "boundaries": [1], "values": [0.1, 0.01]}
    fn = model_fns.model_fn("linear", optimizer={"name": "momentum", "api": "keras", "learning_rate": rate})
    with tf.Graph().as_default() as graph:
        fn(features=tf.constant(IMAGES), labels=tf.constant(LABELS), mode=ModeKeys.TRAIN)
        (told,) = tf.compat.v1.get_collection("estimator_pipeline/learning_rate")
        step = tf.compat.v1.train.get_global_step().handle.op
        counts = [op for op in graph.get_operations() if op.type == "AssignAddVariableOp" and op.inputs[0].op is step]
        assert len(counts) == 1
        before, todo = set(), list(counts)
        while todo:
            op = todo.pop()
            if op not in before:
                before.add(op)
                todo += [*op.control_inputs, *(one.op for one in op.inputs)]
        assert told.op in before


@pytest.mark.gate("linear", "cnn")
@pytest.mark.parametrize("name", ["linear", "cnn", "resnet"])
def test_every_image_model_has_a_plain_keras_twin(tmp_path, name):
    """model_fns the other way round: the plain Keras model has the same variables and gives the same logits."""
    estimator = train(model_fns.model_fn(name), tmp_path, steps=1)
    model = model_fns.keras_model(name)
    assert model(IMAGES[:2]).shape == (2, 10)
    stored = weights(estimator)
    plain = {w.name.split(":")[0]: w for w in model.weights}
    # Keras counts the layers of a process; only the order of the counts is the model's own.
    stored_shapes = sorted(v.shape for n, v in stored.items())
    assert sorted(tuple(w.shape) for w in plain.values()) == stored_shapes


def test_wide_deep_trains_and_exports(tmp_path):
    features = {"age": RNG.random(48, dtype=np.float32), "job": RNG.integers(0, 5, 48)}
    labels = (features["age"] > 0.5).astype(np.int64)
    params = {"numeric": ["age"], "categorical": {"job": 5}, "hidden_units": [8]}
    fn = model_fns.model_fn("wide_deep", params=params, optimizer={"name": "adam", "learning_rate": 0.05})
    estimator = train(fn, tmp_path, steps=60, features=features, labels=labels)
    metrics = estimator.evaluate(lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(16))
    assert metrics["accuracy"] > 0.9 and metrics["auc"] > 0.9
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        {"age": tf.io.FixedLenFeature([1], tf.float32), "job": tf.io.FixedLenFeature([1], tf.int64)}
    )
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    loaded = tf.saved_model.load(path.decode())
    assert sorted(loaded.signatures) == ["classification", "predict", "regression", "serving_default"]
    example = tf.train.Example()
    example.features.feature["age"].float_list.value.append(0.9)
    example.features.feature["job"].int64_list.value.append(1)
    answer = loaded.signatures["classification"](tf.constant([example.SerializeToString()]))
    assert answer["scores"].shape == (1, 2)
    assert answer["classes"].numpy().tolist() == [[b"0", b"1"]]
    np.testing.assert_allclose(answer["scores"].numpy().sum(), 1.0, rtol=1e-5)


def test_a_multi_label_head_is_the_canned_one(tmp_path):
    """Loss, predictions and metrics of tf.estimator's own head on the same logits; and it is served."""
    labels = (RNG.random((48, 3)) < 0.4).astype(np.int64)

    def layers():
        image = tf.keras.Input([8, 8, 1])
        return tf.keras.Model({"image": image}, tf.keras.layers.Dense(3)(tf.keras.layers.Flatten()(image)))

    fn = ep.build_model_fn(
        layers,
        loss="binary_crossentropy",
        head="multi_label",
        metrics=["accuracy", "precision", "recall", "auc"],
    )
    features = {"image": IMAGES}
    estimator = train(fn, tmp_path, features=features, labels=labels)
    metrics = estimator.evaluate(lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(20))
    predicted = list(estimator.predict(lambda: tf.data.Dataset.from_tensor_slices(features).batch(20)))
    logits = tf.constant([one["logits"] for one in predicted])
    canned = tf.estimator.MultiLabelHead(3, thresholds=[0.5])
    theirs = canned.predictions(logits)
    np.testing.assert_allclose([one["probabilities"] for one in predicted], theirs["probabilities"], rtol=1e-6)
    assert [one["classes"].tolist() for one in predicted] == theirs["classes"].numpy().tolist()
    found = canned.metrics()
    found = canned.update_metrics(found, {}, logits, labels)
    names = {"average_loss": "average_loss", "accuracy": "accuracy/positive_threshold_0.5",
             "precision": "precision/positive_threshold_0.5",
             "recall": "recall/positive_threshold_0.5", "auc": "auc"}  # fmt: skip
    for ours, name in names.items():
        # The areas are summed up otherwise.
        assert metrics[ours] == pytest.approx(float(found[name].result()), rel=0.02 if ours == "auc" else 1e-5), ours
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        {"image": tf.io.FixedLenFeature([8, 8, 1], tf.float32)}
    )
    loaded = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "export"), receiver).decode())
    assert sorted(loaded.signatures) == ["classification", "predict", "serving_default"]
    example = tf.train.Example()
    example.features.feature["image"].float_list.value.extend(IMAGES[0].ravel())
    answer = loaded.signatures["classification"](tf.constant([example.SerializeToString()]))
    np.testing.assert_allclose(answer["scores"], [predicted[0]["probabilities"]], rtol=1e-5)
    assert answer["classes"].numpy().tolist() == [[b"0", b"1", b"2"]]


def test_class_numbers_are_no_labels_of_several_classes(tmp_path):
    fn = ep.build_model_fn(
        lambda: tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)]),
        loss="binary_crossentropy",
        head="multi_label",
    )
    with pytest.raises(ConfigError, match=r"labels \(.*, 1\) and logits \(.*, 3\) do not fit"):
        train(fn, tmp_path, labels=np.zeros(48, np.int64))


@pytest.mark.gate("mixed_float16-1")
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("policy", [True, "mixed_bfloat16", "mixed_float16"])
def test_e9_lower_precision(tmp_path, policy, replicas):
    """Layers compute in 16 bits, variables and the loss stay float32, and the model still learns."""
    labels = (IMAGES.mean(axis=(1, 2, 3)) > 0.5).astype(np.int64)
    fn = model_fns.model_fn("dnn", mixed_precision=policy, optimizer={"name": "adam", "learning_rate": 0.01})
    estimator = train(fn, tmp_path, replicas=replicas, steps=40, labels=labels)
    assert {v.dtype for n, v in weights(estimator).items() if "loss_scale" not in n} == {np.dtype(np.float32)}
    metrics = estimator.evaluate(lambda: tf.data.Dataset.from_tensor_slices((IMAGES, labels)).batch(48))
    assert metrics["accuracy"] > 0.8
    assert tf.keras.mixed_precision.global_policy().name == "float32"


@pytest.mark.gate("1-momentum-keras")
@pytest.mark.parametrize("api", ["v1", "keras"])
@pytest.mark.parametrize("name", ["sgd", "adam", "momentum"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_float16_with_large_targets(tmp_path, name, api, replicas):
    """Gradients that float16 cannot hold at the first scale: such steps change nothing; then it trains as in 32."""

    def large(batch):
        labels = (IMAGES.mean(axis=(1, 2, 3)) * 6000).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((IMAGES, labels)).repeat().batch(batch // replicas)

    def layers():
        return tf.keras.Sequential(
            [tf.keras.layers.Flatten(input_shape=(8, 8, 1)), tf.keras.layers.Dense(1, kernel_initializer="zeros")]
        )

    optimizer = {"name": name, "api": api, "learning_rate": 1e-3, "weight_decay": 0.01}
    found = {}
    for precision in (False, "mixed_float16"):
        fn = ep.build_model_fn(layers, loss="mse", optimizer=optimizer, mixed_precision=precision)
        strategy = mirrored(replicas) if replicas > 1 else None
        config = tf.estimator.RunConfig(str(tmp_path / str(precision)), tf_random_seed=1, train_distribute=strategy)
        estimator = tf.estimator.Estimator(fn, config=config)
        estimator.train(lambda: large(48), steps=1)
        if precision:
            before = weights(estimator)
            assert not any(np.abs(value).max() for key, value in before.items() if "dense/" in key), "nothing changed"
            assert (
                estimator.get_variable_value("global_step") == 1
                and before["estimator_pipeline/loss_scale/scale"] == 2.0**9
            )
            powers = {key: value for key, value in before.items() if "beta" in key}
            assert all(value in (np.float32(0.9), np.float32(0.999)) for value in powers.values()), "as at the start"
        estimator.train(lambda: large(48), steps=20)
        found[precision] = weights(estimator)
    half, full = found["mixed_float16"], found[False]
    scale = half["estimator_pipeline/loss_scale/scale"]
    left_out = 21 - half["estimator_pipeline/loss_scale/finite_steps"]
    assert 1 <= left_out <= 9 and scale == 2.0 ** (10 - left_out)
    assert np.isfinite(half["dense/kernel"]).all() and np.abs(half["dense/kernel"]).max() > 1e-3
    if (name, api) == ("adam", "keras"):
        return  # Its correction of the bias counts all steps.
    # So many steps fewer, from the same start.
    fn = ep.build_model_fn(layers, loss="mse", optimizer=optimizer)
    estimator = tf.estimator.Estimator(fn, config=tf.estimator.RunConfig(str(tmp_path / "fewer"), tf_random_seed=1))
    estimator.train(lambda: tf.data.Dataset.from_tensors((IMAGES, IMAGES.mean(axis=(1, 2, 3)) * 6000)).repeat(),
                    steps=int(21 - left_out))  # fmt: skip
    np.testing.assert_allclose(half["dense/kernel"], weights(estimator)["dense/kernel"], rtol=0.02, atol=1e-3)
    assert np.abs(full["dense/kernel"] - half["dense/kernel"]).max() > 1e-4


BAD = [
    ({"loss": "crossentropy"}, ["'crossentropy' is not known", "sparse_categorical_crossentropy"]),
    ({"optimizer": "sdg"}, ["the optimizer 'sdg' is not known", "allowed: sgd, momentum"]),
    ({"optimizer": {"nam": "sgd"}}, ["cannot be read", "name, learning_rate, api, options"]),
    ({"metrics": ["f2"]}, ["f2 are not known for the head 'multi_class'", "accuracy, top_5_accuracy"]),
    ({"clip_norm": -1.0}, ["clip_norm is -1.0", "above 0"]),
    ({"clip_norm": 1.0, "clip_value": 1.0}, ["both set", "one of the two"]),
    ({"mixed_precision": "float8"}, ["'float8'", "mixed_bfloat16"]),
    ({"signatures": ["serve"]}, ["serve are not known", "predict, classify, regress"]),
    ({"head": "binary"}, ["belongs to the head 'multi_class'", "not to 'binary'"]),
    ({"loss": "binary_crossentropy", "head": "one_hot"}, ["belongs to the head 'binary' or 'multi_label'"]),
    ({"optimizer": object()}, ["is a object object", "a function of the global step"]),
]


@pytest.mark.parametrize(("options", "fragments"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_options(options, fragments):
    with pytest.raises(ConfigError) as error:
        ep.build_model_fn(lambda: None, **{"loss": "sparse_categorical_crossentropy", **options})
    for fragment in fragments:
        assert fragment in str(error.value)


@pytest.fixture(scope="module")
def trained_by_name(tmp_path_factory):
    fn = model_fns.model_fn("linear", optimizer={"name": "sgd", "learning_rate": 0.01})
    return weights(train(fn, tmp_path_factory.mktemp("named")))


@pytest.mark.gate("v1", "keras_schedule")
@pytest.mark.parametrize(
    "make",
    [
        lambda step: tf.compat.v1.train.GradientDescentOptimizer(0.01),
        lambda step: tf.keras.optimizers.legacy.SGD(0.01),
        lambda step: tf.keras.optimizers.legacy.SGD(
            tf.keras.optimizers.schedules.PiecewiseConstantDecay([100], [0.01, 1.0])
        ),
    ],
    ids=["v1", "keras", "keras_schedule"],
)
def test_an_optimizer_from_a_function(tmp_path, trained_by_name, make):
    """The same steps as by name; a Keras optimizer counts with the global step."""
    made = train(model_fns.model_fn("linear", optimizer=make), tmp_path / "made")
    assert made.get_variable_value("global_step") == 3
    rates = {"SGD/learning_rate", "SGD/decay", "SGD/momentum"}  # a Keras optimizer keeps them as variables
    assert weights(made).keys() - rates == trained_by_name.keys(), "no counter besides the global step"
    np.testing.assert_array_equal(kernel(weights(made)), kernel(trained_by_name))


def test_an_optimizer_that_needs_eager_execution_is_refused(tmp_path):
    fn = model_fns.model_fn("linear", optimizer=lambda step: tf.keras.optimizers.experimental.SGD(0.01))
    with pytest.raises(ConfigError, match=r"returned a SGD, which cannot train[^\0]*tf.keras.optimizers.legacy"):
        train(fn, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": lambda: None}, r"cannot be called with the global step[^\0]*lambda step:"),
        (
            {"metrics": {"f1": tf.keras.metrics.AUC}},
            r"'f1' is the Keras metric AUC[^\0]*def f1\(labels, predictions\):",
        ),
    ],
)
def test_arguments_that_a_graph_cannot_use_are_refused_at_once(options, message):
    with pytest.raises(ConfigError, match=message):
        ep.build_model_fn(lambda: None, loss="mse", **options)


@pytest.mark.parametrize(
    ("loss", "units", "message"),
    [
        ("binary_crossentropy", 3, r"\(.*, 3\) do not fit the head 'binary'[^\0]*one logit for each example"),
        ("sparse_categorical_crossentropy", 1, r"\(.*, 1\) do not fit the head 'multi_class'[^\0]*K of 2 or more"),
        ("mse", None, r"do not fit the head 'regression'[^\0]*without squeeze"),
    ],
)
def test_logits_that_a_head_would_misread_are_refused(tmp_path, loss, units, message):
    def layers():
        x = tf.keras.Input([8, 8, 1])
        y = tf.keras.layers.Dense(units or 1)(tf.keras.layers.Flatten()(x))
        return tf.keras.Model(x, y if units else tf.keras.layers.Reshape([])(y))

    fn = ep.build_model_fn(layers, loss=loss)
    with pytest.raises(ConfigError, match=message):
        train(fn, tmp_path)
    with pytest.raises(ConfigError, match=message):
        next(iter(tf.estimator.Estimator(fn, str(tmp_path)).predict(lambda: tf_data(4), checkpoint_path=None)))


def test_a_class_makes_the_model_as_a_function_does(tmp_path):
    class Linear(tf.keras.Model):
        def __init__(self, params):
            super().__init__()
            self.dense = tf.keras.layers.Dense(params["classes"])

        def call(self, x, training=False):
            return self.dense(tf.reshape(x, [-1, 64]))

    fn = ep.build_model_fn(Linear, loss="sparse_categorical_crossentropy", params={"classes": 10})
    assert kernel(weights(train(fn, tmp_path))).shape == (64, 10)


@pytest.mark.parametrize("rate", [{"kind": "constant"}, {"kind": "constant", "learning_rate": "x"},
                                  {"kind": "constant", "learning_rate": 1, "decay_steps": 2}])  # fmt: skip
def test_a_constant_rate_without_its_value(tmp_path, rate):
    fn = model_fns.model_fn("linear", optimizer={"name": "sgd", "learning_rate": rate})
    with pytest.raises(ConfigError, match="constant takes: learning_rate"):
        train(fn, tmp_path)


def test_a_model_object_is_refused():
    model = model_fns.keras_model("linear")
    with pytest.raises(ConfigError, match="belongs to the graph it was built in"):
        ep.build_model_fn(model, loss="mse")


@pytest.mark.parametrize(
    ("returned", "hint"), [([1, 2], "tf.keras.Sequential"), (None, "a Keras model"), (print, "a Keras model")]
)
def test_layers_that_return_no_model(returned, hint):
    """The Keras path asks the same."""
    model_fn = ep.build_model_fn(lambda: returned, loss="mean_squared_error", optimizer="sgd")
    with pytest.raises(ConfigError, match=f"returned a {type(returned).__name__}(.|\n)*{hint}"):
        model_fn({}, None, tf.estimator.ModeKeys.PREDICT)
    with pytest.raises(ConfigError, match=f"returned a {type(returned).__name__}"):
        ep.build_keras_model(lambda: returned, loss="mean_squared_error", optimizer="sgd")


def test_a_reduced_loss_is_refused(tmp_path):
    fn = ep.build_model_fn(
        lambda: model_fns.keras_model("linear"), loss=lambda y, z: tf.reduce_mean(z), head="multi_class"
    )
    with pytest.raises(ConfigError, match="one number for the batch"):
        train(fn, tmp_path)


def test_an_unconnected_variable_is_named(tmp_path):
    def layers():
        used, unused = tf.keras.layers.Dense(10), tf.keras.layers.Dense(3, name="forgotten")

        class Model(tf.keras.Model):
            def __init__(self):
                super().__init__()
                self.a, self.b = used, unused

            def call(self, x, training=False):
                x = tf.reshape(x, [-1, 64])
                self.b(x)
                return self.a(x)

        return Model()

    fn = ep.build_model_fn(layers, loss="sparse_categorical_crossentropy")
    with pytest.raises(ConfigError, match=r"does not depend on the variables .*forgotten/kernel"):
        train(fn, tmp_path)
