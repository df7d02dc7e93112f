"""Variables of a compiled Keras 3 model and its optimizer: names, checkpoints, and per-replica values.

**Names** are those of Keras 2, so the step records and checkpoints of both engines match: `dense/kernel`,
`dense/kernel/momentum`, `iter`. A checkpoint stores the variables under these names, separately for the model and the
optimizer. It does not use the object graph of Keras 3, whose paths change between Keras versions and which lacks the
seeds of Dropout. The learning rate is not stored; the job defines it.

**Per-replica values.** In Keras 3, each replica updates the moving statistics of BatchNormalization independently, and
Keras writes those of the first replica. Keras 2 writes their mean. Here they are set to their mean on all replicas
before a checkpoint is written. So the checkpoint does not depend on the worker that writes it, and a resumed run ends
with the same bits as an uninterrupted one.

**Dropout.** Keras 3 starts all replicas with the same seed, so all would drop the same units. Here each replica has a
different seed; the checkpoint stores that of the first replica.
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
# A large distance between seeds: each use increases a seed by one.
_SEED_STRIDE = 1_000_003


class ModelVariables:
    """The variables of one model; creates the optimizer's variables if they do not exist yet.

    Args:
        model: A compiled and built model, in the scope of `strategy`.
        strategy: The strategy of the training.

    Attributes:
        model: Name -> `tf.Variable`, including seeds.
        optimizer: Name -> `tf.Variable`: `iter`, and the slots.
        per_replica: Name -> `tf.Variable` whose value differs between replicas; empty for one replica.
    """

    def __init__(self, model: Any, *, strategy: Any = None) -> None:
        keras_optimizers.create_slots(model)
        self.model: dict[str, Any] = _unique((_name(model, variable), variable.value) for variable in model.variables)
        self.optimizer: dict[str, Any] = _unique(_optimizer_variables(model))
        self._strategy = strategy
        several = strategy is not None and strategy.num_replicas_in_sync > 1
        rest = model.non_trainable_variables if several else ()
        self.per_replica: dict[str, Any] = {_name(model, v): v.value for v in rest if v.value.dtype.is_floating}
        self._seeds = [v.value for v in rest if v.name == _SEED]
        self._means: Callable[[], list[Any]] | None = None

    def checkpoint(self, *, without: Collection[str] = ()) -> Any:
        """Return the `tf.train.Checkpoint` of the model and its optimizer.

        Args:
            without: Names of the optimizer's variables to leave out.
        """
        optimizer = {name: variable for name, variable in self.optimizer.items() if name not in without}
        return compat.tensorflow().train.Checkpoint(model=self.model, optimizer=optimizer)

    def checkpoint_of_model(self) -> Any:
        """Return the `tf.train.Checkpoint` of the model without its optimizer, for evaluation."""
        return compat.tensorflow().train.Checkpoint(model=self.model)

    def without_seeds(self) -> dict[str, Any]:
        """Return the model's variables, name -> `tf.Variable`, without the seeds of its layers."""
        return {name: variable for name, variable in self.model.items() if not name.endswith(_SEED)}

    def values(self) -> dict[str, Any]:
        """Return the current values by name as in a checkpoint, without seeds. All workers must call it."""
        values = {name: variable.numpy() for name, variable in self.without_seeds().items()}
        values.update(zip(self.per_replica, (mean.numpy() for mean in self._mean_values()), strict=True))
        return {**values, **{name: variable.numpy() for name, variable in self.optimizer.items()}}

    def average(self) -> None:
        """Set the per-replica variables to their mean over all replicas. All workers must call it."""
        # An assignment outside of the replica function sets the value on all replicas.
        for variable, mean in zip(self.per_replica.values(), self._mean_values(), strict=True):
            variable.assign(mean)

    def spread_seeds(self) -> None:
        """Give each replica different seeds, derived from those of the first replica.

        Call it after the seeds were created or restored.
        """
        if not self._seeds:
            return
        tf = compat.tensorflow()

        def in_replica() -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for seed in self._seeds:
                seed.assign(seed + tf.cast(tf.stack([replica * _SEED_STRIDE, 0]), seed.dtype))

        tf.function(lambda: self._strategy.run(in_replica))()

    def _mean_values(self) -> list[Any]:
        if not self.per_replica:
            return []
        if self._means is None:
            self._means = self._make_means()
        return self._means()

    def _make_means(self) -> Callable[[], list[Any]]:
        tf = compat.tensorflow()
        strategy, per_replica = self._strategy, list(self.per_replica.values())
        replicas = strategy.num_replicas_in_sync

        def in_replica() -> list[Any]:
            # In float64 the mean of equal numbers is exactly that number, so frozen weights do not change.
            values = [tf.cast(variable, tf.float64) for variable in per_replica]
            totals = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
            return [tf.cast(total / replicas, v.dtype) for total, v in zip(totals, per_replica, strict=True)]

        run = tf.function(lambda: strategy.run(in_replica))
        return lambda: [strategy.experimental_local_results(mean)[0] for mean in run()]


def names_in(path: str, part: str) -> dict[str, str]:
    """Return the variables of a part of a checkpoint: name -> key in the file.

    Args:
        path: The path of the checkpoint.
        part: "model" or "optimizer".
    """
    keys = [key for key, _ in compat.tensorflow().train.list_variables(path) if key.startswith(f"{part}/")]
    # TensorFlow writes a slash within a name as ".S", and a dot as two.
    escaped = {".S": "/", "..": "."}
    return {re.sub(r"\.[.S]", lambda match: escaped[match[0]], key.split("/")[1]): key for key in keys}


def built_as_in_a_new_process(build: Callable[[], Any], input_fn: Callable[[], Any]) -> Any:
    """Build a job's model with its variables, also if its layers do not declare their input.

    Layers and variables have the names that they have in a new process, with Keras 2 and Keras 3.

    Args:
        build: Returns the compiled model.
        input_fn: Returns a dataset of (features, labels), or only features.
    """
    # In Keras 2 the layer names of a job's model are the same each time.
    with fresh_names() if compat.keras_generation() == 3 else contextlib.nullcontext():
        model = build()
        if not model.built:
            tf = compat.tensorflow()
            spec = input_fn().element_spec
            features = spec[0] if isinstance(spec, tuple) else spec
            # A symbolic call leaves the batch size open, which a call of a batch would fix in Keras 2.
            model(tf.nest.map_structure(_symbolic, features))
        return model


def _symbolic(spec: Any) -> Any:
    tf = compat.tensorflow()
    kinds = {"sparse": tf.SparseTensorSpec, "ragged": tf.RaggedTensorSpec}
    # Keras 3 does not have `ragged` in all versions.
    options: dict[str, Any] = {name: True for name, kind in kinds.items() if isinstance(spec, kind)}
    if compat.keras_generation() == 3:
        options["batch_size"] = spec.shape[0]  # as in training, which may need it
    return tf.keras.Input(spec.shape[1:], dtype=spec.dtype, **options)


def _name(model: Any, variable: Any) -> str:
    path: str = variable.path
    return path.removeprefix(f"{model.name}/")


def _optimizer_variables(model: Any) -> Iterable[tuple[str, Any]]:
    optimizer = model.optimizer
    # Keras 3 names a slot by its variable's path, with underscores, and the slot's name.
    weights = {variable.path.replace("/", "_"): _name(model, variable) for variable in model.trainable_variables}
    kinds = [kind.__name__ for kind in type(optimizer).__mro__]
    renamed = next((keras3_optimizers.SLOTS[kind] for kind in kinds if kind in keras3_optimizers.SLOTS), {})
    for variable in optimizer.variables:
        if variable is optimizer.iterations:
            yield "iter", variable.value
        elif variable.name != "learning_rate":
            matches = [name for name in weights if variable.name.startswith(f"{name}_")]
            longest = max(matches, key=len, default="")
            slot = variable.name[len(longest) + 1 :] if longest else variable.name
            yield f"{weights.get(longest, 'optimizer')}/{renamed.get(slot, slot)}", variable.value


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the variables by name; a repeated name, from layers of the same name, gets a number."""
    by_name: dict[str, Any] = {}
    for name, variable in pairs:
        free, number = name, 1
        while free in by_name:
            number += 1
            free = f"{name}#{number}"
        by_name[free] = variable
    return by_name
