"""Comparison of a program with its conversion for tools/public_programs.py: all that both train, evaluate and predict.

Both run as a user runs them, to their end. The original program records the values from which an Estimator starts to
train, the loss of each step, the trained variables, the metrics of each evaluation, and predictions. The Keras models
of the converted program start from the same values and record the same. Data is not shuffled in both. Stubs replace
dropout, where the program applies it, since its random numbers differ.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["compare", "watch_estimators", "watch_models"]

ESTIMATOR, KERAS = "estimator", "keras"
ROWS = 256  # of the predictions
TOLERANCE = 1e-5  # of the largest value of an array
# Rounding moves a variable, by up to the learning rate where an optimizer divides by the gradient.
TOLERANCE_OF_VARIABLES = 1e-3


class _Recorder:
    """The events of a program, in a file that is complete after each of them."""

    def __init__(self, folder: str, engine: str) -> None:
        self.path = Path(folder) / f"{engine}.recorded"
        self.events: list[dict[str, Any]] = []

    def write(self, kind: str, **values: Any) -> None:
        self.events.append({"kind": kind, **values})
        self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(pickle.dumps(self.events))

    def predicted(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Record the first predictions now, and yield all."""
        first = list(itertools.islice(rows, ROWS))
        self.write("predict", rows=first)
        return itertools.chain(first, rows)


def watch_estimators(folder: str) -> None:
    """Record what the Estimators of a program train, evaluate and predict."""
    import tensorflow as tf
    from tensorflow_estimator.python.estimator import estimator as module
    from tensorflow_estimator.python.estimator.inputs.queues import feeding_functions

    recorder = _Recorder(folder, ESTIMATOR)
    _keep_order()
    enqueue = feeding_functions._enqueue_data
    feeding_functions._enqueue_data = lambda *args, **options: enqueue(*args, **{**options, "shuffle": False})

    class Watch(tf.compat.v1.train.SessionRunHook):
        def __init__(self, loss: Any) -> None:
            self.loss, self.variables = loss, tf.compat.v1.trainable_variables()
            self.losses: list[float] = []
            self.initial: list[np.ndarray] | None = None
            recorder.write("train")  # before the evaluations of train_and_evaluate
            self.event = recorder.events[-1]

        def after_create_session(self, session: Any, coord: Any) -> None:
            if session.run(tf.compat.v1.train.get_global_step()) == 0:
                self.initial = session.run(self.variables)

        def before_run(self, run_context: Any) -> Any:
            return tf.compat.v1.train.SessionRunArgs(self.loss)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.losses.append(float(run_values.results))

        def end(self, session: Any) -> None:
            self.event.update(losses=self.losses, names=[_name(variable) for variable in self.variables],
                              initial=self.initial, variables=session.run(self.variables))  # fmt: skip
            recorder.save()

    def train(estimator: Any, spec: Any, worker_hooks: Any, *args: Any) -> Any:
        return methods["_train_with_estimator_spec"](estimator, spec, [*worker_hooks, Watch(spec.loss)], *args)

    def evaluated(output_dir: str, dictionary: Mapping[str, Any], current_global_step: int) -> None:
        recorder.write("evaluate", metrics=dict(dictionary))
        write(output_dir, dictionary, current_global_step)

    def predict(estimator: Any, *args: Any, **options: Any) -> Any:
        return recorder.predicted(methods["predict"](estimator, *args, **options))

    methods = _replace(module.Estimator, _train_with_estimator_spec=train, predict=predict)
    # What `evaluate` and `train_and_evaluate` call with the metrics of an evaluation.
    write, module._write_dict_to_summary = module._write_dict_to_summary, evaluated


def watch_models(folder: str) -> Callable[..., Any]:
    """Record what the models of the converted program train, evaluate and predict.

    Returns:
        A decorator for the function `predict` of the program.
    """
    import tensorflow as tf

    recorder = _Recorder(folder, KERAS)
    _keep_order()
    events = pickle.loads((Path(folder) / f"{ESTIMATOR}.recorded").read_bytes())
    starts = [event for event in events if event["kind"] == "train" and event["initial"] is not None]
    begun: list[dict[str, Any]] = []

    class Watch(tf.keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.losses: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.reset_metrics()  # the loss of this step alone

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.losses.append(float(logs["loss"]))

    def fit(model: Any, *args: Any, callbacks: Sequence[Any] = (), **options: Any) -> Any:
        if int(model.optimizer.iterations) == 0:
            begun.append(starts.pop(0))
        variables = _ordered(model.trainable_weights, begun[-1])
        if int(model.optimizer.iterations) == 0:
            for variable, value in zip(variables, begun[-1]["initial"], strict=True):
                variable.assign(value)
        watch = Watch()
        recorder.write("train")  # before the evaluations of validation_data
        event = recorder.events[-1]
        history = methods["fit"](model, *args, callbacks=[watch, *callbacks], **options)
        event.update(losses=watch.losses, variables=[variable.numpy() for variable in variables])
        recorder.save()
        return history

    def evaluate(model: Any, *args: Any, **options: Any) -> Any:
        metrics = methods["evaluate"](model, *args, **options)
        recorder.write("evaluate", metrics=dict(metrics))
        return metrics

    methods = _replace(tf.keras.Model, fit=fit, evaluate=evaluate)
    return lambda function: lambda *args, **options: recorder.predicted(function(*args, **options))


def compare(folder: Path) -> tuple[bool, str]:
    """Return whether both did the same, and the largest relative differences."""
    theirs, ours = (pickle.loads((folder / f"{engine}.recorded").read_bytes()) for engine in (ESTIMATOR, KERAS))
    kinds = [[event["kind"] for event in events] for events in (theirs, ours)]
    if kinds[0] != kinds[1]:
        return False, f"not equal: {', '.join(kinds[0])}; in Keras {', '.join(kinds[1])}"
    differences: dict[str, float] = {}
    for event, other in zip(theirs, ours, strict=True):
        for quantity, values, others in _values(event, other):
            differences[quantity] = max(differences.get(quantity, 0.0), _difference(values, others))
    steps = sum(len(event["losses"]) for event in theirs if event["kind"] == "train")
    limits = {quantity: TOLERANCE_OF_VARIABLES if quantity == "variables" else TOLERANCE for quantity in differences}
    equal = all(size <= limits[quantity] for quantity, size in differences.items())
    sizes = ", ".join(f"{quantity} {size:.1e}" for quantity, size in differences.items())
    return equal, f"{'equal' if equal else 'not equal'}: {steps} steps, {sizes}"


def _values(event: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what two events have in common: its name in the summary, and both values."""
    if event["kind"] == "train":
        if len(event["losses"]) != len(other["losses"]):
            yield "loss", event["losses"], other["losses"]
        for loss, another in zip(event["losses"], other["losses"], strict=False):
            yield "loss", loss, another
        yield from (("variables", *pair) for pair in _variables(event, other))
    elif event["kind"] == "evaluate":
        for name in event["metrics"].keys() & other["metrics"].keys():
            yield "metrics", event["metrics"][name], other["metrics"][name]
    else:
        columns, others = (_columns(each["rows"]) for each in (event, other))
        for name in columns.keys() | others.keys():
            yield "predictions", columns.get(name, []), others.get(name, [])


def _variables(event: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the variables in pairs; those that start with equal values, as biases do, have no order but their sums."""
    starts = event["initial"] or event["names"]
    groups: dict[Any, list[tuple[Any, Any]]] = {}
    for start, *pair in zip(starts, event["variables"], other["variables"], strict=True):
        key = start if isinstance(start, str) else (start.shape, start.tobytes())
        groups.setdefault(key, []).append(tuple(pair))
    for group in groups.values():
        yield from zip(*(sorted(side, key=np.sum) for side in zip(*group, strict=True)), strict=True)


def _columns(rows: Sequence[Any]) -> dict[str, list[Any]]:
    if not rows or not isinstance(rows[0], Mapping):
        return {"": list(rows)}
    return {name: [row[name] for row in rows] for name in rows[0]}


def _difference(values: Any, others: Any) -> float:
    """Return the largest difference of two arrays, relative to the largest value of the first."""
    first, second = np.asarray(values), np.asarray(others)
    if first.shape != second.shape:
        return float("inf")
    if first.dtype.kind in "SUO":
        return 0.0 if (first == second).all() else float("inf")
    first, second = first.astype(np.float64), second.astype(np.float64)
    if not np.isfinite(first).all() or not np.isfinite(second).all():
        return float("inf")
    return float(np.abs(first - second).max(initial=0.0) / max(np.abs(first).max(initial=0.0), 1e-9))


def _ordered(variables: Sequence[Any], start: Mapping[str, Any]) -> list[Any]:
    """Return Keras variables in the order of an Estimator's: by name, else the next of the same shape."""
    left = list(variables)
    ordered: list[Any] = []
    names = {_name(variable): variable for variable in left}
    shapes = [value.shape for value in start["initial"]]
    by_name = all(name in names and tuple(names[name].shape) == shape
                  for name, shape in zip(start["names"], shapes, strict=True))  # fmt: skip
    for name, shape in zip(start["names"], shapes, strict=True):
        same = [variable for variable in left if tuple(variable.shape) == shape]
        if not same:
            raise ValueError(f"Keras has no variable for {name} {shape}: {sorted(names)}")
        ordered.append(names[name] if by_name else same[0])
        left = [variable for variable in left if variable is not ordered[-1]]
    if left:
        raise ValueError(f"Keras has more variables: {[_name(variable) for variable in left]}")
    return ordered


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name)).removesuffix(":0")


def _replace(kind: type, **new: Any) -> dict[str, Any]:
    """Set methods of a class, and return those that it had."""
    old = {name: getattr(kind, name) for name in new}
    for name, method in new.items():
        setattr(kind, name, method)
    return old


def _keep_order() -> None:
    """Let datasets not shuffle."""
    from tensorflow.python.data.ops import dataset_ops

    for kind in (dataset_ops.DatasetV1, dataset_ops.DatasetV2):
        kind.shuffle = lambda data, *_, **__: data
