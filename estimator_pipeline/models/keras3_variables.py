"""The variables of a compiled Keras 3 model and its optimizer: their names, their checkpoint, and what replicas own.

**Names** are those that Keras 2 gives the same things, so that both engines' records and checkpoints can be read
alike: `dense/kernel`, `dense/kernel/momentum`, `iter`. A checkpoint holds the variables under these names, those of
the model and those of the optimizer apart, and not the object graph of Keras 3: that has places that change with
Keras's version, and leaves the seeds of Dropout out. The learning rate is no part of it; the job says it.

**What replicas own.** Keras 3 lets each replica go its own way with what layers update while they train (the moving
statistics of BatchNormalization), and writes the first replica's. Keras 2 writes their mean. Here they are set to
their mean, on all replicas, before a checkpoint is written: it does not depend on who writes it, and a run that goes
on from it ends with the same bits as one that was never stopped.

**Dropout.** Keras 3 starts all replicas with the same seed, and all would drop the same units. Here each has a seed of
its own; the first replica's is what a checkpoint holds.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.bootstrap.keras3 import fresh_names
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers

_SEED = "seed_generator_state"
# Far apart: a seed counts up by one each time it is used.
_SEED_STRIDE = 1_000_003


class ModelVariables:
    """The variables of one model; its optimizer's are made here, if they are not yet.

    Args:
        model: compiled and built, in the scope of `strategy`.
        strategy: under which it trains.

    Attributes:
        model: name -> `tf.Variable`, seeds among them.
        optimizer: name -> `tf.Variable`: `iter`, and the slots.
        own: of several replicas, what each has of its own: name -> `tf.Variable`.
    """

    def __init__(self, model: Any, *, strategy: Any = None) -> None:
        keras_optimizers.create_slots(model)
        self.model: dict[str, Any] = _unique((_name(model, variable), variable.value) for variable in model.variables)
        self.optimizer: dict[str, Any] = _unique(_optimizer_variables(model))
        self._strategy = strategy
        several = strategy is not None and strategy.num_replicas_in_sync > 1
        rest = model.non_trainable_variables if several else ()
        self.own: dict[str, Any] = {_name(model, v): v.value for v in rest if v.value.dtype.is_floating}
        self._seeds = [v.value for v in rest if v.name == _SEED]
        self._means: Callable[[], list[Any]] | None = None

    def checkpoint(self, *, without: Collection[str] = ()) -> Any:
        """Return the `tf.train.Checkpoint` of the model and its optimizer.

        Args:
            without: names of the optimizer's variables that are left out.
        """
        optimizer = {name: variable for name, variable in self.optimizer.items() if name not in without}
        return compat.tensorflow().train.Checkpoint(model=self.model, optimizer=optimizer)

    def checkpoint_of_model(self) -> Any:
        """Return the part of it that evaluation needs."""
        return compat.tensorflow().train.Checkpoint(model=self.model)

    def values(self) -> dict[str, Any]:
        """Name -> value, as a checkpoint of this moment would hold it. All workers must call it; seeds are left out."""
        names = [name for name in self.model if not name.endswith(_SEED)]
        found = {name: self.model[name].numpy() for name in names}
        found.update(zip(self.own, (mean.numpy() for mean in self._mean_values()), strict=True))
        return {**found, **{name: variable.numpy() for name, variable in self.optimizer.items()}}

    def average(self) -> None:
        """Set what each replica has of its own to the mean of all. All workers must call it."""
        # Assigned outside of the replicas' code, a value is that of all of them.
        for variable, mean in zip(self.own.values(), self._mean_values(), strict=True):
            variable.assign(mean)

    def spread_seeds(self) -> None:
        """Give each replica seeds of its own, after those of the first replica were made or restored."""
        if not self._seeds:
            return
        tf = compat.tensorflow()

        def in_replica() -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for seed in self._seeds:
                seed.assign(seed + tf.cast(tf.stack([replica * _SEED_STRIDE, 0]), seed.dtype))

        tf.function(lambda: self._strategy.run(in_replica))()

    def _mean_values(self) -> list[Any]:
        if not self.own:
            return []
        if self._means is None:
            self._means = self._make_means()
        return self._means()

    def _make_means(self) -> Callable[[], list[Any]]:
        tf = compat.tensorflow()
        strategy, own = self._strategy, list(self.own.values())
        replicas = strategy.num_replicas_in_sync

        def in_replica() -> list[Any]:
            # In 64 bits the mean of equal numbers is that number: frozen weights stay as they are.
            values = [tf.cast(variable, tf.float64) for variable in own]
            totals = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
            return [tf.cast(total / replicas, v.dtype) for total, v in zip(totals, own, strict=True)]

        run = tf.function(lambda: strategy.run(in_replica))
        return lambda: [strategy.experimental_local_results(mean)[0] for mean in run()]


def optimizer_in(path: str) -> set[str]:
    """Return the names of the optimizer's variables in a checkpoint.

    Args:
        path: of the checkpoint.
    """
    parts = (name.split("/") for name, _ in compat.tensorflow().train.list_variables(path))
    # TensorFlow writes a slash within a name as ".S", and a dot as two.
    escaped = {".S": "/", "..": "."}
    return {re.sub(r"\.[.S]", lambda found: escaped[found[0]], one[1]) for one in parts if one[0] == "optimizer"}


def built(model: Any, input_fn: Callable[..., Any]) -> Any:
    """Return the model with its variables, where its layers did not say what they take in: seen from the data.

    Args:
        model: a compiled Keras 3 model.
        input_fn: its dataset gives (features, labels), or features alone.
    """
    if not model.built:
        tf = compat.tensorflow()
        spec = input_fn().element_spec
        features = spec[0] if isinstance(spec, tuple) else spec
        one = tf.nest.map_structure(lambda s: tf.zeros([1, *(size or 1 for size in s.shape[1:])], s.dtype), features)
        model(one, training=False)
    return model


def built_as_in_a_new_process(build: Callable[[], Any], input_fn: Callable[..., Any]) -> Any:
    """Return a model that a job builds, with its variables; the same names each time, with either Keras.

    Args:
        build: makes the compiled model.
        input_fn: see `built`.
    """
    # Keras 2 numbers the layers of a job's model by itself.
    with fresh_names() if compat.keras_generation() == 3 else contextlib.nullcontext():
        return built(build(), input_fn)


def _name(model: Any, variable: Any) -> str:
    path: str = variable.path
    return path.removeprefix(f"{model.name}/")


def _optimizer_variables(model: Any) -> Iterable[tuple[str, Any]]:
    optimizer = model.optimizer
    # Keras 3 calls a slot by its variable's path, with underscores, and the slot's own name.
    weights = {variable.path.replace("/", "_"): _name(model, variable) for variable in model.trainable_variables}
    kinds = [kind.__name__ for kind in type(optimizer).__mro__]
    renamed = next((keras3_optimizers.SLOTS[kind] for kind in kinds if kind in keras3_optimizers.SLOTS), {})
    for variable in optimizer.variables:
        if variable is optimizer.iterations:
            yield "iter", variable.value
        elif variable.name != "learning_rate":
            found = [name for name in weights if variable.name.startswith(f"{name}_")]
            longest = max(found, key=len, default="")
            slot = variable.name[len(longest) + 1 :] if longest else variable.name
            yield f"{weights.get(longest, 'optimizer')}/{renamed.get(slot, slot)}", variable.value


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a second variable of the same name, which layers named alike may have, gets a number."""
    found: dict[str, Any] = {}
    for name, variable in pairs:
        free, number = name, 1
        while free in found:
            number += 1
            free = f"{name}#{number}"
        found[free] = variable
    return found
