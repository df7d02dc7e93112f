"""Tiny data, and the arithmetic in NumPy that the tests of the public surface compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
tf.get_logger().setLevel("ERROR")

APIS = {"v2": tf.estimator, "v1": tf.compat.v1.estimator}

# Some tens of float32 steps against the same steps in float64.
FLOAT32 = {"rtol": 1e-4, "atol": 1e-5}


def blobs(classes: int = 3, *, records: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Points around `classes` centres on a circle: float32 `[records, 2]` and int64 labels `[records]`."""
    rng = np.random.default_rng(3)
    labels = np.arange(records) % classes
    angles = 2 * np.pi * labels / classes + 0.5
    centres = 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (centres + rng.normal(scale=0.4, size=(records, 2))).astype(np.float32), labels.astype(np.int64)


def line(*, records: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Points and `2 x0 - 3 x1 + 0.5`, without noise: float32 `[records, 2]` and `[records]`."""
    x = np.random.default_rng(4).uniform(-1, 1, (records, 2)).astype(np.float32)
    return x, (x @ [2, -3] + 0.5).astype(np.float32)


def feed(features: Any, labels: Any = None, *, batch: int | None = None, repeat: bool = False) -> Any:
    """An input_fn that reads the records in order, all in one batch unless `batch` says otherwise."""
    size = batch or len(next(iter(features.values())))

    def input_fn() -> Any:
        data = tf.data.Dataset.from_tensor_slices(features if labels is None else (features, labels))
        return (data.repeat() if repeat else data).batch(size)

    return input_fn


def config(model_dir: Any, *, v1: bool = False, **options: Any) -> Any:
    """A RunConfig that writes no summaries; Keras and TensorFlow draw the same initial values in each run."""
    tf.keras.utils.set_random_seed(11)
    options = {"tf_random_seed": 11, "save_summary_steps": 10**9, "log_step_count_steps": None, **options}
    return (tf.compat.v1.estimator if v1 else tf.estimator).RunConfig(model_dir=str(model_dir), **options)


def variables(checkpoint: str) -> dict[str, np.ndarray]:
    """Every variable of a checkpoint but those of the optimizer and the global step."""
    reader = tf.train.load_checkpoint(checkpoint)
    names = [n for n in reader.get_variable_to_shape_map() if n != "global_step" and not n.startswith("training/")]
    return {name: reader.get_tensor(name) for name in sorted(names)}


def predictions(estimator: Any, input_fn: Any, **options: Any) -> dict[str, np.ndarray]:
    """All predictions, stacked by key."""
    rows = list(estimator.predict(input_fn, **options))
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def examples(features: dict[str, np.ndarray]) -> Any:
    """The records as serialized tf.train.Example."""
    rows = []
    for row in zip(*features.values(), strict=True):
        kinds = {}
        for name, value in zip(features, row, strict=True):
            value = np.atleast_1d(value)
            if value.dtype.kind == "f":
                kinds[name] = tf.train.Feature(float_list=tf.train.FloatList(value=value))
            elif value.dtype.kind == "i":
                kinds[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=value))
            else:
                words = [v if isinstance(v, bytes) else str(v).encode() for v in value]
                kinds[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=words))
        rows.append(tf.train.Example(features=tf.train.Features(feature=kinds)).SerializeToString())
    return tf.constant(rows)


def exported(estimator: Any, columns: Any, folder: Any, *, parse: Any = None) -> Any:
    """Exports with a receiver that parses Examples, and loads it as plain TensorFlow: name -> signature."""
    parse = parse or tf.feature_column.make_parse_example_spec
    spec = parse(columns) if columns else {"x": tf.io.FixedLenFeature([2], tf.float32)}
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    loaded = tf.saved_model.load(estimator.export_saved_model(str(folder), receiver).decode())
    # The signatures hold only weak references to what they need.
    return {name: _Kept(loaded, signature) for name, signature in loaded.signatures.items()}


class _Kept:
    def __init__(self, owner: Any, signature: Any) -> None:
        self.owner, self.signature = owner, signature

    def __call__(self, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        (name,) = self.signature.structured_input_signature[1]
        return {key: value.numpy() for key, value in self.signature(**{name: examples(features)}).items()}


def sigmoid(x: Any) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def softmax(x: Any) -> np.ndarray:
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid_loss(logits: Any, labels: Any) -> np.ndarray:
    """Cross entropy of each element for labels in 0 to 1."""
    p = sigmoid(logits)
    return -(labels * np.log(p) + (1 - labels) * np.log(1 - p))


def softmax_loss(logits: Any, labels: Any) -> np.ndarray:
    """Cross entropy of each record, `[records]`, for class indices `labels`."""
    return -np.log(softmax(np.asarray(logits, np.float64))[np.arange(len(labels)), np.ravel(labels)])


class Reference:
    """The canned models in NumPy: a bias, a linear part and a network of one hidden ReLU layer, logits added.

    Args:
        weights: The variables of a checkpoint under the names that the canned Estimators give them; parts that are
            not among them do not take part.
        kind: "softmax", "sigmoid" or "identity" (squared error): the loss.
        summed: Whether the loss is the sum over the batch (the V1 Estimators' default) or the mean.
    """

    def __init__(self, weights: dict[str, np.ndarray], kind: str, *, summed: bool) -> None:
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.kind, self.summed = kind, summed

    def logits(self, x: np.ndarray) -> np.ndarray:
        w, total = self.weights, 0.0
        for bias in ("baseline/bias", "linear/linear_model/bias_weights"):
            total = total + w.get(bias, 0.0)
        if "linear/linear_model/x/weights" in w:
            total = total + x @ w["linear/linear_model/x/weights"]
        if "dnn/logits/kernel" in w:
            total = total + self._hidden(x) @ w["dnn/logits/kernel"] + w["dnn/logits/bias"]
        return np.broadcast_to(total, (len(x), np.shape(total)[-1]))

    def _hidden(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(x @ self.weights["dnn/hiddenlayer_0/kernel"] + self.weights["dnn/hiddenlayer_0/bias"], 0)

    def losses(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        logits = self.logits(x)
        if self.kind == "softmax":
            return softmax_loss(logits, y)
        if self.kind == "sigmoid":
            return sigmoid_loss(logits[:, 0], y)
        return (logits[:, 0] - y) ** 2

    def step(self, x: np.ndarray, y: np.ndarray, rate: float) -> None:
        """One step of gradient descent on the whole batch."""
        x = x.astype(np.float64)
        logits, w = self.logits(x), self.weights
        if self.kind == "softmax":
            slope = softmax(logits) - np.eye(logits.shape[1])[y]
        elif self.kind == "sigmoid":
            slope = sigmoid(logits) - y[:, None]
        else:
            slope = 2 * (logits - y[:, None])
        slope = slope if self.summed else slope / len(x)
        steps = {}
        for bias in ("baseline/bias", "linear/linear_model/bias_weights", "dnn/logits/bias"):
            if bias in w:
                steps[bias] = slope.sum(0)
        if "linear/linear_model/x/weights" in w:
            steps["linear/linear_model/x/weights"] = x.T @ slope
        if "dnn/logits/kernel" in w:
            hidden = self._hidden(x)
            steps["dnn/logits/kernel"] = hidden.T @ slope
            slope = (slope @ w["dnn/logits/kernel"].T) * (hidden > 0)
            steps["dnn/hiddenlayer_0/bias"] = slope.sum(0)
            steps["dnn/hiddenlayer_0/kernel"] = x.T @ slope
        assert steps.keys() == w.keys(), "a variable that this reference does not know"
        for name, gradient in steps.items():
            w[name] = w[name] - rate * gradient
