"""What a process with Keras 3 does for the tests; they run in one with Keras 2, and TensorFlow has one of the two.

    python tests/support/keras3_process.py jobs      runs job files one after the other, and tells their results
    python tests/support/keras3_process.py steps     makes steps with optimizers, and writes the variable after each
    python tests/support/keras3_process.py precision trains on two devices in each precision, and tells the losses
    python tests/support/keras3_process.py worker F  trains as one task of TF_CONFIG by the engine's loop; F/TASK-*.npz
    python tests/support/keras3_process.py fit       the same by `Model.fit`

What to do comes as JSON on standard input, if at all; the last line of standard output is the answer.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

import estimator_pipeline as ep
from estimator_pipeline.cluster import from_environ
from estimator_pipeline.distribute import strategies
from estimator_pipeline.engines.keras3 import loop as keras3_loop
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.job import load_job
from estimator_pipeline.models.keras3_variables import ModelVariables
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers.spec import Optimizer

tf = ep.compat.use_keras_3()


def jobs(asked: Any) -> Any:
    """[[job file, [setting, ...]], ...] -> a result, or an error's text and exit code, for each.

    With FIRST_VALUES in the environment, what each training begins with is written there (programs/first_values.py).
    """
    from estimator_pipeline.engines.jobs.run import run_job

    if "FIRST_VALUES" in os.environ:
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "programs"))
        import first_values

        fit = keras3_loop.fit
        keras3_loop.fit = lambda *args, callbacks, **given: fit(
            *args, callbacks=[first_values.callback(), *callbacks], **given
        )
    found = []
    for path, settings in asked:
        try:
            found.append(run_job(load_job(path, overrides=settings), environ={}).to_dict())
        except PipelineError as error:
            found.append({"error": str(error), "exit_code": error.exit_code})
    return found


def steps(asked: Any) -> Any:
    """{"gradients": file, "start": file, "optimizers": [fields, ...], "replicas": 1, "file": to write}."""
    with np.load(asked["given"]) as given:
        start, values, rows = given["start"], given["values"], given["rows"]
    found = {}
    for number, (fields, sparse) in enumerate(asked["optimizers"]):
        strategy = None
        if asked["replicas"] > 1:
            devices = [f"CPU:{i}" for i in range(asked["replicas"])]
            strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())
        found[str(number)] = _steps_of(Optimizer(**fields), sparse, strategy, start, values, rows)
    np.savez(asked["file"], **found)
    return sorted(found)


def _steps_of(optimizer: Any, sparse: bool, strategy: Any, start: Any, values: Any, rows: Any) -> Any:
    scope = strategy or tf.distribute.get_strategy()
    with scope.scope():
        variable = tf.keras.Variable(start, name="bias")
        made = keras_optimizers.make(optimizer)
        made = type(made).from_config(made.get_config())  # as a file that is loaded has it
        made.build([variable])

    @tf.function
    def step(value, named):
        def in_replica():
            # Each replica gives its share; `apply` adds them up.
            share = value / scope.num_replicas_in_sync
            if sparse:
                share = tf.IndexedSlices(share[:4], named, tf.constant(start.shape))
            made.apply(keras3_loop.prepared(made, [share], scope.num_replicas_in_sync), [variable])

        scope.run(in_replica)

    after = []
    for value, named in zip(values, rows, strict=True):
        step(tf.constant(value), tf.constant(named))
        after.append(variable.numpy())
    return np.stack(after)


def precision(asked: Any) -> Any:
    """[[mixed precision, norm to clip to], ...] -> the losses of the steps, for each."""
    import model_fns

    data = ep.inputs.from_tfds("digits", data_dir=asked["data_dir"], global_batch_size=64, scale=1 / 16, seed=1)
    found = []
    for policy, clip_norm in asked["cases"]:
        tf.keras.utils.set_random_seed(1)
        strategy = strategies.make("mirrored", num_devices=2, tf_config=from_environ({}))
        with strategy.scope():
            model = ep.build_keras_model(
                model_fns.get("dnn").keras_model, params=model_fns.complete("dnn", {}), mixed_precision=policy,
                loss="sparse_categorical_crossentropy", optimizer={"name": "momentum", "learning_rate": 0.05},
                clip_norm=clip_norm,
            )  # fmt: skip
        losses = _Losses()
        keras3_loop.fit(
            model, strategy.distribute_datasets_from_function(data.train_input_fn), strategy=strategy, epochs=1,
            steps_per_epoch=20, callbacks=[losses], whole_loss=lambda step: True,
        )  # fmt: skip
        found.append(losses.found)
    return found


class _Losses(tf.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.append(float(logs["loss"]))


def worker(folder: str) -> None:
    """Some steps by the loop; what this worker's own replica has then, and what it has when that was averaged."""
    strategy, model, data = _of_this_task()
    with strategy.scope():
        found = ModelVariables(model, strategy=strategy)
    found.spread_seeds()
    keras3_loop.fit(
        model, data, strategy=strategy, epochs=1, steps_per_epoch=6, callbacks=(), whole_loss=lambda step: True,
        local_variables=list(found.per_replica.values()),
    )  # fmt: skip

    def save(when: str) -> None:
        # What a replica of this worker has, not what all of them come to.
        values = {n: strategy.experimental_local_results(v)[0].numpy() for n, v in found.model.items()}
        np.savez(f"{folder}/{from_environ(os.environ).task.index}-{when}.npz", **values)

    save("before")
    told = found.values()
    found.average()
    save("after")
    for name, value in found.values().items():
        assert np.array_equal(value, told[name]), f"{name}: what is recorded is what a checkpoint would hold"


def fit() -> None:
    """`Model.fit` of Keras 3, as its documentation has it."""
    _, model, data = _of_this_task()
    model.fit(data, epochs=1, steps_per_epoch=6, verbose=0)
    print("Model.fit of Keras 3 trained 6 steps")


def _of_this_task() -> Any:
    strategy = strategies.make("multi_worker_mirrored", tf_config=from_environ(os.environ))
    keras = tf.keras
    keras.utils.set_random_seed(1)
    with strategy.scope():
        frozen = keras.layers.Dense(4, name="frozen")
        stack = [keras.Input(shape=(3,)), frozen, keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        model = keras.Sequential([*stack, keras.layers.Dense(1)])
        frozen.trainable = False
        model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")

    def data(context: Any) -> Any:
        features = tf.random.stateless_normal([64, 3], [1, context.input_pipeline_id])
        return (
            tf.data.Dataset.from_tensor_slices((features, tf.reduce_sum(features, 1, keepdims=True))).repeat().batch(8)
        )

    return strategy, model, strategy.distribute_datasets_from_function(data)


if __name__ == "__main__":
    asked_on_stdin = {"jobs": jobs, "steps": steps, "precision": precision}
    called: Any = {**asked_on_stdin, "worker": worker, "fit": fit}[sys.argv[1]]
    if sys.argv[1] in asked_on_stdin:
        strategies.split_cpu(3)
        print(json.dumps(called(json.load(sys.stdin))))
    else:
        called(*sys.argv[2:])
