"""Tiny models whose every step NumPy can follow, and ways to look at what a run left behind."""

from __future__ import annotations

import glob
import os
from typing import Any

import numpy as np

from estimator_pipeline import compat

tf = compat.install()

X = np.array([[1.0, 0.5], [-0.5, 1.0], [2.0, -1.0], [0.25, 0.75]], np.float32)
Y = np.array([1.0, -2.0, 3.5, 0.5], np.float32)
RATE = 0.1


def input_fn() -> Any:
    """All four examples in each batch, for ever: a step is plain gradient descent."""
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(4).repeat()


def eval_input_fn() -> Any:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(2)


def linear_model_fn(features: Any, labels: Any, mode: Any, params: Any) -> Any:
    """y = x · w from zero, mean squared error, gradient descent.

    `weight_read` is what the step computed with: its update waits for it, so that a hook that fetches it sees the
    value before the step. `params`: "extra" takes a function of the built model to more fields of the EstimatorSpec.
    """
    weight = tf.compat.v1.get_variable("w", [2], initializer=tf.compat.v1.zeros_initializer(), use_resource=True)
    read = tf.identity(weight, name="weight_read")
    answer = tf.linalg.matvec(features["x"], read)
    predictions = {"y": answer}
    extra = (params or {}).get("extra", lambda **_: {})
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions, **extra(mode=mode, answer=answer))
    loss = tf.reduce_mean(tf.square(answer - labels), name="mean_loss")
    metrics = {"mae": tf.compat.v1.metrics.mean_absolute_error(labels, answer)}
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(RATE)
    fields: dict[str, Any] = {
        "loss": loss,
        "predictions": predictions,
        "eval_metric_ops": metrics,
        "train_op": optimizer.minimize(loss, tf.compat.v1.train.get_or_create_global_step()),
    }
    fields |= extra(mode=mode, answer=answer, read=read, loss=loss, train_op=fields["train_op"])
    return tf.estimator.EstimatorSpec(mode, **fields)


def linear(
    model_dir: object, *, extra: Any = None, warm_start_from: Any = None, v1: bool = False, **config: Any
) -> Any:
    """An Estimator of `linear_model_fn` in `model_dir`; `config` goes to its RunConfig."""
    estimator = tf.compat.v1.estimator.Estimator if v1 else tf.estimator.Estimator
    return estimator(
        linear_model_fn,
        model_dir=str(model_dir),
        params={"extra": extra} if extra else {},
        config=tf.estimator.RunConfig(**config),
        warm_start_from=warm_start_from,
    )


def weights_by_step(steps: int, start: Any = (0, 0)) -> list[np.ndarray]:
    """What `linear_model_fn` has for w after 0, 1, … `steps` steps, computed without TensorFlow."""
    x, y = X.astype(np.float64), Y.astype(np.float64)
    found = [np.asarray(start, np.float64)]
    for _ in range(steps):
        error = x @ found[-1] - y
        found.append(found[-1] - RATE * 2 * x.T @ error / len(y))
    return found


def loss_with(weight: Any) -> float:
    return float(np.mean((X @ weight - Y) ** 2))


def scripted_model_fn(features: Any, labels: Any, mode: Any, params: Any) -> Any:
    """A model whose metric "score" at step s is params["score"][s]: so tests choose the course of a training."""
    step = tf.compat.v1.train.get_or_create_global_step()
    script = tf.constant(params["score"], tf.float32)
    now = tf.gather(script, tf.minimum(tf.cast(step, tf.int32), len(params["score"]) - 1))
    weight = tf.compat.v1.get_variable("w", [], initializer=tf.compat.v1.zeros_initializer())
    answer = features["x"][:, 0] * weight
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": answer})
    return tf.estimator.EstimatorSpec(
        mode,
        loss=tf.reduce_sum(tf.square(weight)) + now,
        train_op=tf.group(step.assign_add(1), weight.assign_add(1.0)),
        eval_metric_ops={"score": tf.compat.v1.metrics.mean(now)},
    )


def scripted(model_dir: object, score: Any, **config: Any) -> Any:
    run_config = tf.estimator.RunConfig(**config)
    return tf.estimator.Estimator(
        scripted_model_fn, model_dir=str(model_dir), params={"score": list(score)}, config=run_config
    )


def scalars(folder: object, tag: str) -> dict[int, float]:
    """Step -> value of a scalar in the event files of `folder`, of tf.summary's first and second kind."""
    found = {}
    for path in sorted(glob.glob(os.path.join(str(folder), "*tfevents*"))):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == tag:
                    second = value.WhichOneof("value") == "tensor"
                    found[event.step] = float(tf.make_ndarray(value.tensor)) if second else value.simple_value
    return found


def checkpoint_steps(folder: object) -> list[int]:
    """The steps of the checkpoints that lie in `folder`."""
    return sorted(int(name[:-6].rpartition("-")[2]) for name in os.listdir(str(folder)) if name.endswith(".index"))


def predictions(estimator: Any, input_fn: Any = eval_input_fn, key: str = "y", **options: Any) -> np.ndarray:
    return np.array([row[key] for row in estimator.predict(input_fn, **options)])
