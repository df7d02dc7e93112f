"""Comparison of a program with its conversion for tools/public_programs.py, by the first training of each.

Both run as a user runs them. In the original program the first `Estimator.train` writes its batches to a folder, trains
on them and records each step. In the converted program the first `fit` trains the Keras model on the same batches, from
the same initial values. Then the process exits. Dropout is disabled in both, since their random numbers differ.
Optimizer slots are not compared.
"""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["compare", "watch_estimators", "watch_models"]

STEPS = 5


def watch_estimators(folder: str) -> None:
    """Record the first training of a program with Estimators, and exit its process."""
    from estimator_pipeline import compat

    tf: Any = compat.tensorflow()
    base = Path(folder)
    _drop_nothing()

    def train(estimator: Any, input_fn: Any, *_: Any, **__: Any) -> None:
        from estimator_pipeline.parity.models.layers import record_estimator

        for kind, method in methods.items():
            kind.train = method
        _write(base / "batches", _read_batches(tf, estimator, input_fn))

        def recorded() -> Any:
            try:
                return record_estimator(estimator, base, _data(base), STEPS)
            except Exception:  # for example of a program that never predicts and requires labels
                shutil.rmtree(base / "estimator")
                return record_estimator(estimator, base, _data(base), STEPS, predict=False)

        _end(base / "estimator.recorded", recorded)

    kinds = {base for kind in (tf.estimator.Estimator, tf.compat.v1.estimator.Estimator) for base in kind.__mro__}
    methods = {kind: vars(kind)["train"] for kind in kinds if "train" in vars(kind)}
    for kind in methods:
        kind.train = train


def watch_models(folder: str) -> None:
    """Record the first training of the converted program, and exit its process."""
    base = Path(folder)
    _drop_nothing()

    def fit(model: Any, *_: Any, **__: Any) -> None:
        from estimator_pipeline.parity.models.layers import record_layers

        for kind, method in methods.items():
            kind.fit = method
        theirs = _read(base / "estimator.recorded")

        _end(
            base / "keras.recorded",
            lambda: record_layers(model, base, _data(base), STEPS, {}, predict=bool(theirs.answers)),
        )

    methods = {kind: kind.fit for kind in _models()}
    for kind in methods:
        kind.fit = fit


def _models() -> list[Any]:
    """Return the classes of Keras 2 and 3 whose `fit` trains."""
    import keras
    import tensorflow as tf

    return [tf.keras.Model, keras.Model]


def compare(folder: Path) -> tuple[bool, str]:
    """Return whether both recorded the same training, and the summary of the comparison."""
    from estimator_pipeline.parity import text
    from estimator_pipeline.parity.comparison import compare_records
    from estimator_pipeline.parity.result import ENGINES

    theirs, ours = (_read(folder / f"{engine}.recorded") for engine in ENGINES)
    asked = [name for name in theirs.answers if name in ours]
    answers = [{name: record[name] for name in asked} for record in (theirs.answers, ours)]
    for name in asked:  # keras.ops.argmax gives int32
        if theirs.answers[name].dtype.kind + ours[name].dtype.kind == "ii":
            answers[1][name] = ours[name].astype(theirs.answers[name].dtype)
    comparison = compare_records(
        folder, metrics={engine: {} for engine in ENGINES}, steps=STEPS, slots=False,
        answers=(answers[0], answers[1]) if asked else None,
    )  # fmt: skip
    return comparison.equal, text.summary(comparison)


def _end(path: Path, recorded: Callable[[], Any]) -> None:
    _write(path, recorded())
    sys.stdout.flush()
    os._exit(0)


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value))


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def _drop_nothing() -> None:
    """Disable dropout."""
    from tensorflow.python.ops import array_ops, nn_ops

    nn_ops._dropout = lambda x, *_, **__: array_ops.identity(x)


def _read_batches(tf: Any, estimator: Any, input_fn: Any) -> tuple[Any, list[list[Any]]]:
    """Return the structure of the first batches of an input function, and their arrays."""
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(estimator.config.tf_random_seed)
        batch = estimator._call_input_fn(input_fn, tf.estimator.ModeKeys.TRAIN, None)
        if isinstance(batch, tf.data.Dataset | tf.compat.v1.data.Dataset):
            spec, iterator = batch.element_spec, tf.compat.v1.data.make_initializable_iterator(batch)
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            batch = iterator.get_next()
        else:
            if isinstance(batch, list | tuple) and len(batch) == 2 and batch[1] is None:
                batch = batch[0]
            batch = tuple(batch) if isinstance(batch, list) else batch
            spec = tf.nest.map_structure(tf.type_spec_from_value, batch)
        flat = tf.nest.flatten(batch, expand_composites=True)
        batches: list[list[Any]] = []
        with tf.compat.v1.train.SingularMonitoredSession() as session:
            while len(batches) < STEPS and not session.should_stop():
                batches.append(session.run(flat))
    return spec, batches


def _data(base: Path) -> Any:
    """Return the batches, repeated, as the data of both programs."""
    from estimator_pipeline import compat
    from estimator_pipeline.parity.models.arguments import InputFns

    tf: Any = compat.tensorflow()
    spec, batches = _read(base / "batches")
    parts = tf.nest.flatten(spec, expand_composites=True)
    if not batches:
        raise ValueError("the input function gives no batch")

    def arrays() -> Iterator[tuple[Any, ...]]:
        return map(tuple, itertools.cycle(batches))

    def input_fn() -> Any:
        read = tf.data.Dataset.from_generator(arrays, output_signature=tuple(parts))
        return read.map(lambda *values: tf.nest.pack_sequence_as(spec, list(values), expand_composites=True))

    config = types.SimpleNamespace(train_distribute=None, tf_random_seed=1)
    return InputFns.of(types.SimpleNamespace(params={}, config=config), input_fn, None, None, None)
