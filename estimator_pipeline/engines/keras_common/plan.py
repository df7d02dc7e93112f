"""What the Keras engines need of a job, and its datasets under a strategy."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.keras_common.backup import Backup
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.outputs import Outputs

__all__ = ["KerasPlan", "distributed", "evaluation_data", "scope", "steps_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasPlan:
    """What the Keras engines need of a job.

    Attributes:
        build_model: Builds the compiled model; called in the scope of the strategy that trains or evaluates.
        train_input_fn: `train_input_fn(input_context)` -> a `tf.data.Dataset` of one worker's batches, each of the
            batch size of one replica.
        eval_spec: A `tf.estimator.EvalSpec`: input, steps, delays, exporters.
        outputs: The heads of the model's outputs, which are logits.
        features_spec: Feature name -> `tf.TypeSpec` of one record (no batch axis), for exports; None: unknown.
        parse_examples: Returns these features of serialized `tf.Example` records; None: unknown.
        transform: Converts these features to the model's (`estimator_pipeline.models.features`); None: they are.
        takes_tensor: Whether the model takes its only feature as a tensor, not as a dictionary.
        signatures: Signatures of exports: some of "predict", "classify", "regress".
        model_dir: The model directory, shared by all tasks.
        max_steps: The global step to stop at; None: at the end of the data.
        strategy: The training strategy of a training task.
        eval_strategy: The strategy of an evaluation in this process.
        epoch_steps: Steps between two checkpoints, which is Keras's epoch; None: a single epoch.
        save_checkpoints_secs: Seconds between two checkpoints instead, for a single-process job.
        keep_checkpoint_max: Number of checkpoints to keep; None or 0: all.
        keep_checkpoint_every_n_hours: Additionally keep one checkpoint per this number of hours.
        summary_steps: Steps between the chief's TensorBoard summaries; None: no summaries.
        histograms: Histograms in the summaries, see `estimator_pipeline.models.histograms`.
        log_steps: Steps between two lines of the chief's log.
        weighted: Converts a dataset of (features, labels), of training or evaluation, to the one that Keras reads:
            labels as numbers, with example weights if there are any.
        callbacks: Builds further callbacks for `Model.fit`, for a training task.
        backup: Backups between two checkpoints; needs `epoch_steps`.
        watched: Whether the callbacks read the loss of every step over all workers.
        seed: Seed of Keras, NumPy, Python and TensorFlow.
    """

    build_model: Callable[[], Any]
    train_input_fn: Callable[..., Any]
    eval_spec: Any
    outputs: Outputs
    features_spec: Mapping[str, Any] | None
    parse_examples: Callable[[Any], dict[str, Any]] | None
    takes_tensor: bool
    signatures: tuple[str, ...]
    model_dir: str
    max_steps: int | None
    strategy: Any = None
    eval_strategy: Any = None
    epoch_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = None
    summary_steps: int | None = 100
    histograms: tuple[str, ...] = ()
    log_steps: int | None = 100
    weighted: Callable[[Any], Any] = lambda dataset: dataset
    callbacks: Callable[[], Sequence[Any]] = tuple
    backup: Backup | None = None
    watched: bool = False
    seed: int | None = None
    transform: Any = None


def scope(strategy: Any) -> Any:
    """Return the scope of a strategy; for None, an empty context."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def distributed(
    strategy: Any, input_fn: Callable[..., Any], convert: Callable[[Any], Any] = lambda dataset: dataset
) -> Any:
    """Return an input function's dataset, converted; under a strategy one per worker, created with its InputContext.

    With the shard policy "hint" it is one dataset for all workers, which the strategy shards.
    """
    rebatched = getattr(input_fn, "rebatched", False)
    if strategy is None:
        return convert(input_fn(compat.tensorflow().distribute.InputContext()) if rebatched else input_fn())
    if rebatched:
        return strategy.experimental_distribute_dataset(convert(input_fn()))
    return strategy.distribute_datasets_from_function(lambda context: convert(input_fn(context)))


def evaluation_data(plan: KerasPlan, strategy: Any) -> tuple[Any, int | None]:
    """Return the job's evaluation data for a strategy, and the number of its steps; see `steps_of`."""
    spec = plan.eval_spec
    data = distributed(strategy, spec.input_fn, plan.weighted)
    return data, spec.steps or steps_of(strategy, spec.input_fn, hint="give eval.steps")


def steps_of(strategy: Any, input_fn: Callable[..., Any], *, hint: str) -> int | None:
    """Return the number of steps in which all workers read their datasets; None without a strategy.

    Without a strategy, Keras detects the end of the data.

    Raises:
        ConfigError: The number of batches is unknown.
    """
    if strategy is None:
        return None
    tf = compat.tensorflow()
    # Each replica of a worker takes one of its batches per step.
    local, replicas = len(strategy.extended.worker_devices), strategy.num_replicas_in_sync
    pipelines = replicas // local
    contexts = [tf.distribute.InputContext(pipelines, pipeline, replicas) for pipeline in range(pipelines)]
    sizes = [int(input_fn(context).cardinality()) for context in contexts]
    if min(sizes) < 0:
        raise ConfigError(
            f"the number of batches of the input function {getattr(input_fn, '__name__', input_fn)} is unknown, and "
            "under a strategy Keras needs the number of steps",
            code="argument/missing",
            found="a dataset without an end" if tf.data.INFINITE_CARDINALITY in sizes else "an unknown cardinality",
            hint=hint,
        )
    return -(-max(sizes) // local)
