"""How tools/public_programs.py compares a program with its conversion: by the first training that each asks for.

Both run as a user runs them. In the process of the one an Estimator that is told to train trains on batches that are
written down, in a folder of the comparison's own, and records each step; in that of the other the Keras model trains on
the same batches, from the same values. Then the process ends. Dropout of both keeps all, for they draw other numbers.
Of a model by layers the optimizer's slots are not compared.
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
    """In the process of a program with Estimators: its first training is recorded, and the process ends."""
    from estimator_pipeline import compat

    tf: Any = compat.tensorflow()
    base = Path(folder)
    _drop_nothing()

    def train(estimator: Any, input_fn: Any, *_: Any, **__: Any) -> None:
        from estimator_pipeline.parity.models.model_fn import record_estimator

        for kind, own in owns.items():
            kind.train = own
        _write(base / "batches", _read_batches(tf, estimator, input_fn))

        def recorded() -> Any:
            try:
                return record_estimator(estimator, base, _data(base), STEPS)
            except Exception:  # as of a program that never predicts, and that needs labels
                shutil.rmtree(base / "estimator")
                return record_estimator(estimator, base, _data(base), STEPS, predict=False)

        _end(base / "estimator.recorded", recorded)

    kinds = {one for kind in (tf.estimator.Estimator, tf.compat.v1.estimator.Estimator) for one in kind.__mro__}
    owns = {kind: vars(kind)["train"] for kind in kinds if "train" in vars(kind)}
    for kind in owns:
        kind.train = train


def watch_models(folder: str) -> None:
    """In the process of the converted program: its first training is recorded, and the process ends."""
    base = Path(folder)
    _drop_nothing()

    def fit(model: Any, *_: Any, **__: Any) -> None:
        from estimator_pipeline.parity.models.layers import record_layers
        from estimator_pipeline.parity.models.model_fn import Recorded, calls_model_fn, record_model

        for kind, own in owns.items():
            kind.fit = own
        theirs = _read(base / "estimator.recorded")

        def recorded() -> Any:
            if calls_model_fn(model):
                return record_model(model, base, _data(base), STEPS, theirs.names, predict=bool(theirs.answers))
            return Recorded({}, record_layers(model, base, _data(base), STEPS, {}, predict=bool(theirs.answers)), {})

        _end(base / "keras.recorded", recorded)

    owns = {kind: kind.fit for kind in _models()}
    for kind in owns:
        kind.fit = fit


def _models() -> list[Any]:
    """Return the classes whose method `fit` trains, of Keras 2 and 3."""
    import keras
    import tensorflow as tf

    from estimator_pipeline.models.keras_runtime.model_fn import model as module

    return [module._model_class(), tf.keras.Model, keras.Model]


def compare(folder: Path) -> tuple[bool, str]:
    """Whether both recorded the same, and what is to be told of it."""
    from estimator_pipeline.parity import text
    from estimator_pipeline.parity.comparison import compare_records
    from estimator_pipeline.parity.result import ENGINES

    theirs, ours = (_read(folder / f"{engine}.recorded") for engine in ENGINES)
    asked = [name for name in theirs.answers if name in ours.answers]
    answers = [{name: one.answers[name] for name in asked} for one in (theirs, ours)]
    for name in asked:  # keras.ops.argmax gives int32
        if theirs.answers[name].dtype.kind + ours.answers[name].dtype.kind == "ii":
            answers[1][name] = ours.answers[name].astype(theirs.answers[name].dtype)
    found = compare_records(
        folder, metrics={engine: {} for engine in ENGINES}, steps=STEPS, slots=bool(ours.names),
        answers=(answers[0], answers[1]) if asked else None,
    )  # fmt: skip
    return found.equal, text.summary(found)


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
    """Dropout keeps all."""
    from tensorflow.python.ops import array_ops, nn_ops

    nn_ops._dropout = lambda x, *_, **__: array_ops.identity(x)


def _read_batches(tf: Any, estimator: Any, input_fn: Any) -> tuple[Any, list[list[Any]]]:
    """Return the first batches of an input function: their structure, and the arrays of each."""
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(estimator.config.tf_random_seed)
        found = estimator._call_input_fn(input_fn, tf.estimator.ModeKeys.TRAIN, None)
        if isinstance(found, tf.data.Dataset | tf.compat.v1.data.Dataset):
            spec, iterator = found.element_spec, tf.compat.v1.data.make_initializable_iterator(found)
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            found = iterator.get_next()
        else:
            if isinstance(found, list | tuple) and len(found) == 2 and found[1] is None:
                found = found[0]
            found = tuple(found) if isinstance(found, list) else found
            spec = tf.nest.map_structure(tf.type_spec_from_value, found)
        flat = tf.nest.flatten(found, expand_composites=True)
        batches: list[list[Any]] = []
        with tf.compat.v1.train.SingularMonitoredSession() as session:
            while len(batches) < STEPS and not session.should_stop():
                batches.append(session.run(flat))
    return spec, batches


def _data(base: Path) -> Any:
    """Return the batches as the data of both, again and again."""
    from estimator_pipeline import compat
    from estimator_pipeline.parity.models.arguments import InputFns

    tf: Any = compat.tensorflow()
    spec, batches = _read(base / "batches")
    parts = tf.nest.flatten(spec, expand_composites=True)
    if not batches:
        raise ValueError("the input function gives no batch")

    def told() -> Iterator[tuple[Any, ...]]:
        return map(tuple, itertools.cycle(batches))

    def input_fn() -> Any:
        read = tf.data.Dataset.from_generator(told, output_signature=tuple(parts))
        return read.map(lambda *one: tf.nest.pack_sequence_as(spec, list(one), expand_composites=True))

    config = types.SimpleNamespace(train_distribute=None, tf_random_seed=1)
    return InputFns.of(types.SimpleNamespace(params={}, config=config), input_fn, None, None, None)
