"""The options of `train_and_evaluate`, for all engines."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline.cluster.peers import start_secs
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.sections.run import WarmStartSection
from estimator_pipeline.job.sections.training import EarlyStoppingSection, check_steps
from estimator_pipeline.utils.text import nearest

__all__ = ["TrainOptions", "options_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `train_and_evaluate`.

    Attributes:
        evaluator: Whether the job has an evaluator task. None: as set by the launcher or TF_CONFIG; if neither does, an
            evaluator that has connected by the end of training is used.
        evaluate_during_training: Whether the chief evaluates each checkpoint during training. None: a single process
            and a `master` do, a chief does not.
        result_timeout: Seconds that a task waits for the result after the end of training.
        checkpoint_timeout: Seconds without a new checkpoint after which the evaluator gives up.
        startup_timeout: Seconds that a task waits for the other tasks to start. By default the environment variable
            ESTIMATOR_PIPELINE_START_SECS, or 1800.
        keep_evaluation: Whether evaluations share one graph and one session (docs/guides/evaluation.md).
        literal_delays: Whether EvalSpec's defaults `throttle_secs=600` and `start_delay_secs=120` apply literally.
            Otherwise they count as "not set".
        needs_evaluation_data: Whether an evaluation without any batch is an error. All its metrics are 0.0, and a loss
            of 0.0 counts as the best. False: a warning, and training continues as in tf.estimator.
        seed_keras: Whether `RunConfig.tf_random_seed` also seeds Keras, NumPy and Python. Without it the seed
            applies to graphs and, with the patch `graph-seed`, to their Keras initializers.
        identity: Returns the run identity with a training input function, see
            `estimator_pipeline.engines.model_dir.run_identity`; None: the seed and the description of that function.
        shared: Settings that all tasks must share, from a job file, see
            `estimator_pipeline.engines.core.rendezvous.same_job`. None: tasks may differ as far as the result can
            still be right.
        accept_changes: Whether the run may resume from a checkpoint of a run with a different identity.
        preemption_signals: Names of signals that stop a task with a checkpoint (docs/guides/preemption.md). None:
            the environment variable ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS, or SIGTERM.
        ledger: A folder, the same for all tasks, to which each writes the records that it consumes
            (docs/guides/ledger.md).
        steps_per_execution: Maximum train steps per session call, or per call of the compiled function; or "auto".
            Results do not depend on it (docs/guides/performance.md).
        before_training: Called by the task that holds the model directory, with the step from which training starts.
        warm_start_from: The checkpoint for the initial values of a run that does not resume; see `core/warm_start.py`.
        early_stopping: When training stops because evaluations do not improve; see `core/early_stopping.py`.

    Raises:
        ConfigError: `steps_per_execution` is neither "auto" nor a number of 1 or more.
    """

    evaluator: bool | None = None
    evaluate_during_training: bool | None = None
    result_timeout: float = 1800.0
    checkpoint_timeout: float = 7200.0
    startup_timeout: float = dataclasses.field(default_factory=start_secs)
    keep_evaluation: bool = True
    literal_delays: bool = False
    needs_evaluation_data: bool = True
    seed_keras: bool = True
    identity: Callable[[Any], RunIdentity] | None = None
    shared: Mapping[str, Any] | None = None
    accept_changes: bool = False
    preemption_signals: Sequence[str] | None = None
    ledger: str | os.PathLike[str] | None = None
    steps_per_execution: int | str = "auto"
    before_training: Callable[[int], None] | None = None
    warm_start_from: WarmStartSection | None = None
    early_stopping: EarlyStoppingSection | None = None

    def __post_init__(self) -> None:
        if not check_steps(self.steps_per_execution):
            raise ConfigError(
                f"steps_per_execution is {self.steps_per_execution!r}",
                code="argument/bad-value",
                found="allowed: auto, or a number of steps from 1 on",
            )


def options_of(
    options: TrainOptions | None, keywords: Mapping[str, Any], *, environ: Mapping[str, str]
) -> TrainOptions:
    """Return the options of a call of `train_and_evaluate`.

    Args:
        options: The options, if they were passed as an object.
        keywords: Options that were passed as keywords; they replace those of `options`.
        environ: Environment with the default of `startup_timeout`.

    Raises:
        TypeError: A keyword is not an option.
        ConfigError: See `TrainOptions`.
    """
    names = [field.name for field in dataclasses.fields(TrainOptions)]
    if unknown := [name for name in keywords if name not in names]:
        close = nearest(unknown[0], names)
        hint = f"; did you mean {close!r}?" if close else ""
        raise TypeError(f"train_and_evaluate() got an unexpected keyword argument {unknown[0]!r}{hint}")
    values = dict(keywords)
    if values.get("startup_timeout", 0.0) is None or (options is None and "startup_timeout" not in values):
        values["startup_timeout"] = start_secs(environ)
    return TrainOptions(**values) if options is None else dataclasses.replace(options, **values)
