"""`check_model_fn`: checks that a `model_fn` trains, evaluates, exports and runs on several replicas correctly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.testing import calling
from estimator_pipeline.testing.comparisons import difference, is_random, step
from estimator_pipeline.testing.model_subject import ModelCheckOptions, ModelSubject, same, worst
from estimator_pipeline.testing.report import (
    ComplianceCheck,
    ComplianceFinding,
    ComplianceReport,
    Definition,
    Skip,
    Suite,
    define,
    format_exception,
    run_checks,
)

__all__ = ["MODEL_CHECKS", "check_model_fn", "model_fn_checks"]

_CHECKS: list[Definition] = []


@define(_CHECKS)
def parameters_are_known(subject: ModelSubject) -> str | None:
    """Estimator passes every parameter (features, labels, mode, params, config); none is misspelt or hidden."""
    subject.check_parameters()
    return None


@define(_CHECKS)
def sample_is_readable(subject: ModelSubject) -> str | None:
    """The sample batch can be read."""
    return f"{subject.sample().rows} rows"


@define(_CHECKS)
def train_spec_is_complete(subject: ModelSubject) -> str | None:
    """TRAIN returns a spec of this mode with a scalar loss and a train_op."""
    spec, _ = subject.train_spec()
    _check_loss(spec, "TRAIN")
    return None


@define(_CHECKS)
def eval_spec_is_complete(subject: ModelSubject) -> str | None:
    """EVAL returns a spec of this mode with a scalar loss and the requested metrics."""
    spec, _ = subject.eval_spec()
    _check_loss(spec, "EVAL")
    names = sorted(spec.eval_metric_ops or {})
    missing = [name for name in subject.options.metrics if name not in names]
    if missing:
        raise ComplianceFinding(
            f"EVAL returns the metrics {', '.join(names) or 'loss only'}; missing: {', '.join(missing)}",
            hint="return them as eval_metric_ops in mode EVAL",
        )
    return f"metrics: {', '.join(['loss', *names])}"


def _check_loss(spec: Any, mode: str) -> None:
    if not spec.loss.dtype.is_floating:
        raise ComplianceFinding(f"the loss in {mode} is {spec.loss.dtype.name}", hint="use a floating-point loss")


@define(_CHECKS)
def predict_spec_is_complete(subject: ModelSubject) -> str | None:
    """PREDICT returns a spec of this mode with predictions that have one row per example."""
    spec, _ = subject.predict_spec()
    predictions = spec.predictions if isinstance(spec.predictions, Mapping) else {"predictions": spec.predictions}
    flat = [name for name, value in predictions.items() if value.shape.rank == 0]
    if flat:
        raise ComplianceFinding(
            f"the predictions {', '.join(flat)} have no batch dimension", hint="return one row per example"
        )
    return f"predictions: {', '.join(predictions)}"


@define(_CHECKS)
def predicts_without_labels(subject: ModelSubject) -> str | None:
    """PREDICT works with labels=None, which Estimator passes in this mode."""
    subject.predict_spec()
    return None


@define(_CHECKS)
def can_be_called_again(subject: ModelSubject) -> str | None:
    """It can be called again in a new graph, as train() and evaluate() do."""
    subject.called_again()
    return None


@define(_CHECKS)
def training_runs(subject: ModelSubject) -> str | None:
    """A few training steps run on the sample batch."""
    losses = subject.training().losses
    return f"losses: {', '.join(f'{loss:.6g}' for loss in losses)}"


@define(_CHECKS)
def loss_is_finite(subject: ModelSubject) -> str | None:
    """The loss is a finite number, in training and in evaluation."""
    finding = subject.not_finite()
    if finding is not None:
        raise finding
    loss = subject.evaluation(0).losses[0]
    if not np.all(np.isfinite(loss)):
        raise ComplianceFinding(f"the loss in evaluation is {loss}", hint="look for log(0) and divisions by zero")
    return None


@define(_CHECKS)
def global_step_advances_by_one(subject: ModelSubject) -> str | None:
    """Each step of training advances the global step by exactly one."""
    moved = [(before, after) for before, after in subject.training().steps if after != before + 1]
    if moved:
        before, after = moved[0]
        hint = "advance it once for each train_op"
        if after == before:
            hint = (
                "give it to the optimizer: minimize(loss, global_step=tf.compat.v1.train.get_or_create_global_step()), "
                "or optimizer.iterations = global_step for a Keras one; otherwise max_steps is never reached"
            )
        raise ComplianceFinding(f"one step of training took the global step from {before} to {after}", hint=hint)
    return None


@define(_CHECKS)
def variables_train(subject: ModelSubject) -> str | None:
    """Every trainable variable changes in training, unless its gradient is zero on the sample."""
    run = subject.training()
    if not run.trainable:
        raise ComplianceFinding("there is no trainable variable", hint="build layers with trainable weights")
    if not np.all(np.isfinite(run.losses)):
        subject.trained_checkpoint()
    # The check checkpoint_restores reports local variables.
    checked = [name for name in run.trainable if name in run.before and not subject.is_frozen(name)]
    still = [name for name in checked if np.array_equal(run.before[name], run.after[name])]
    if not still:
        return f"{len(checked)} variables"
    unconnected, zero = _gradients(subject, still)
    if unconnected:
        raise ComplianceFinding(
            f"no gradient reaches {', '.join(unconnected)}",
            hint="connect them to the loss (look for stop_gradient, argmax, casts to int, unused layers), or set "
            "trainable=False, or list them in frozen=",
        )
    lazy = [name for name in still if name not in zero]
    if lazy:
        raise ComplianceFinding(
            f"{', '.join(lazy)}: there is a gradient, but {len(run.steps)} steps change nothing",
            hint="pass them to the optimizer (var_list), check that the learning rate is not 0, or list them "
            "in frozen=",
        )
    return f"the gradient on the sample is zero, so these could not be checked: {', '.join(zero)}"


def _gradients(subject: ModelSubject, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the named variables without a gradient, and those with a zero gradient."""
    tf = subject.tf
    spec, graph = subject.train_spec()
    with graph.as_default():
        variables = [v for v in tf.compat.v1.trainable_variables() if v.name.partition(":")[0] in names]
        gradients = tf.gradients(spec.loss, variables)
        unconnected = [v.name.partition(":")[0] for v, g in zip(variables, gradients, strict=True) if g is None]
    if unconnected:
        return unconnected, []
    return [], [name for name in names if _is_zero(subject, name)]


def _is_zero(subject: ModelSubject, name: str) -> bool:
    gradient = subject.training().gradients.get(name)
    return gradient is not None and not np.any(gradient)


@define(_CHECKS)
def statistics_move_in_training(subject: ModelSubject) -> str | None:
    """Moving statistics, such as BatchNorm's, are updated with each training step."""
    run = subject.training()
    names = [name for name in subject.statistics_of(list(run.before)) if not subject.is_frozen(name)]
    if not names:
        raise Skip("the model has no moving statistics")
    if not np.all(np.isfinite(run.losses)):
        subject.trained_checkpoint()
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition("/")[0], []).append(name)
    still = [
        name
        for group in groups.values()
        if all(np.array_equal(run.before[name], run.after[name]) for name in group)
        for name in group
    ]
    if still:
        raise ComplianceFinding(
            f"{', '.join(still)}: unchanged after {len(run.steps)} steps of training, so evaluation will use their "
            "initial values",
            hint="call the layers with training=True in TRAIN, and group their updates with the train_op: "
            "tf.group(train_op, *model.updates), or control dependencies on the collection UPDATE_OPS",
        )
    return ", ".join(names)


@define(_CHECKS)
def evaluation_runs(subject: ModelSubject) -> str | None:
    """Evaluation of one batch runs from the checkpoint of training."""
    metrics = subject.evaluation(0).metrics
    return ", ".join(f"{name} = {value:.6g}" for name, value in sorted(metrics.items()) if np.ndim(value) == 0)


@define(_CHECKS)
def evaluation_changes_nothing(subject: ModelSubject) -> str | None:
    """Evaluation changes no variable of the model: no statistics, no weights, no global step."""
    run = subject.evaluation(0)
    moved = [name for name, value in run.before.items() if not same(value, run.after[name], 0.0)]
    if moved:
        raise ComplianceFinding(
            f"evaluation changed {', '.join(moved)}",
            hint="call layers with training=(mode == TRAIN), and run updates and optimizers only in TRAIN",
        )
    return None


@define(_CHECKS)
def evaluation_is_not_random(subject: ModelSubject) -> str | None:
    """Evaluating a batch twice gives the same loss: dropout and noise are off outside training."""
    subject.steady_evaluation()
    return None


@define(_CHECKS)
def prediction_runs(subject: ModelSubject) -> str | None:
    """Prediction of the sample batch runs from the checkpoint of training."""
    subject.predictions()
    return None


@define(_CHECKS)
def prediction_is_not_random(subject: ModelSubject) -> str | None:
    """Predicting a batch twice gives the same result: dropout and noise are off outside training."""
    subject.steady_predictions()
    return None


@define(_CHECKS)
def checkpoint_restores(subject: ModelSubject) -> str | None:
    """A checkpoint has the complete model: evaluations in two new graphs are equal."""
    first, other = subject.steady_evaluation(), subject.evaluation(1)
    lost = [name for name in first.trainable if name not in first.before]
    if lost:
        raise ComplianceFinding(
            f"the checkpoint does not contain {', '.join(lost)}",
            hint="keep them in the collection GLOBAL_VARIABLES (local ones are not saved) and in the scaffold's saver",
        )
    for name, value in first.metrics.items():
        if not same(value, other.metrics[name], 1e-5):
            raise ComplianceFinding(
                f"{name} is {value} in one evaluation of the checkpoint and {other.metrics[name]} in the next",
                hint="look for values that are random in each graph and not saved: local variables, numpy.random in "
                "the model_fn, tables that are built in a random order",
            )
    return None


@define(_CHECKS)
def replicas_equal_one_batch(subject: ModelSubject) -> str | None:
    """The combined gradients of two replicas equal those of one replica with both batches."""
    rows = subject.sample().rows
    if rows < 2:
        raise Skip("the sample batch has one row; two are needed")
    if not np.all(np.isfinite(subject.training().losses)):
        subject.trained_checkpoint()
    normalised = subject.statistics_of(list(subject.training().before))
    even = rows // 2 * 2
    if normalised:
        halves = None
    else:
        halves = difference(subject, step(subject, 1, even), step(subject, 2, even // 2))
        if halves is None:
            return None
    # With equal batches on both replicas, batch statistics are equal too.
    pair = step(subject, 2, rows, 2)
    big = difference(subject, step(subject, 1, 2 * rows, 2), pair)
    if big is None and halves is None:
        return "checked with equal batches, because BatchNorm uses the statistics of each replica's batch"
    alone = None if big is None else difference(subject, step(subject, 1, rows, 2), pair)
    if big is not None and alone is None:
        return "the loss grows with the batch (a sum, or a constant batch size): the step is the mean of the replicas'"
    if is_random(subject, even):
        raise Skip(
            "the training step is random (dropout?), so steps cannot be compared; repeat this check without "
            "dropout, for example with params={'dropout': 0.0}, only=['replicas_equal_one_batch']"
        )
    if big is None:
        raise ComplianceFinding(
            f"two replicas make a correct step with equal batches, but not with different ones: {halves}",
            hint="look for nonlinear operations per replica: clipping before the gradients are summed, weights or a "
            "mask that are normalized within the replica's batch",
        )
    raise ComplianceFinding(
        f"the step of two replicas differs from that of one replica with both batches: {big}",
        hint="scale the loss by 1 / tf.distribute.get_replica_context().num_replicas_in_sync for a Keras optimizer, "
        "whose gradients are summed; a tf.compat.v1.train optimizer does it automatically; update variables only by "
        "the optimizer",
    )


@define(_CHECKS)
def export_answers_as_predict(subject: ModelSubject) -> str | None:
    """A SavedModel loads in plain TensorFlow in a new graph, and gives the same outputs as predict()."""
    expected, folder, sample = subject.steady_predictions(), subject.exported(), subject.sample()
    tf = subject.tf
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signatures = dict(tf.compat.v1.saved_model.load(session, ["serve"], folder).signature_def)
        compared = set()
        for name, signature in sorted(signatures.items()):
            outputs = {key: info.name for key, info in signature.outputs.items()}
            renamed = {"output": "predictions"} if len(expected) == len(outputs) == 1 else {}
            outputs = {renamed.get(key, key) if key not in expected else key: at for key, at in outputs.items()}
            outputs = {key: at for key, at in outputs.items() if key in expected}
            feeds = {signature.inputs[key].name: value for key, value in (sample.simple_features or {}).items()
                     if key in signature.inputs}  # fmt: skip
            try:
                answers = session.run(outputs, feeds)
            except tf.errors.OpError as error:
                raise ComplianceFinding(
                    f"the signature {name} of the export fails on the sample: {format_exception(error)}",
                    hint="use nothing but the features in PREDICT",
                    error=error,
                )
            for key, value in answers.items():
                compared.add(key)
                if not same(expected[key], value, 1e-4):
                    raise ComplianceFinding(
                        f"{key} from predict() and from the signature {name} is "
                        f"{worst(np.asarray(expected[key]), value)}",
                        hint="use the same tensors in export_outputs and in predictions",
                    )
    if not compared:
        raise ComplianceFinding(
            f"no signature returns a prediction; signatures: {', '.join(sorted(signatures)) or 'none'}, predictions: "
            f"{', '.join(expected)}",
            hint="in PREDICT return export_outputs={'serving_default': tf.estimator.export.PredictOutput(predictions)}",
        )
    return f"compared: {', '.join(sorted(compared))}"


MODEL_CHECKS: tuple[Definition, ...] = tuple(_CHECKS)


# For users -----------------------------------------------------------------------------------------------------


def model_fn_checks(
    model_fn: Any,
    data: Any,
    *,
    params: Any = None,
    config: Any = None,
    steps: int = 3,
    metrics: Sequence[str] = (),
    frozen: Sequence[str] = (),
    tolerance: float = 1e-3,
    skip: Iterable[str] = (),
    only: Iterable[str] | None = None,
) -> tuple[ComplianceCheck, ...]:
    """Return the checks of a `model_fn`, as callables for pytest.

    The first check that runs imports TensorFlow; all checks share the results of the runs.

    Args:
        model_fn: Any function that an Estimator accepts, with parameters features, labels, mode, params, config; or an
            Estimator (also a canned one), whose model_fn, params and config are used. The Estimator is not trained.
        data: An input_fn, whose first training batch is used; or a batch: (features, labels), arrays [B, ...]; labels
            may be None.
        params: The Estimator's `params`.
        config: A RunConfig; its model_dir and strategies are not used. Its seed, or 1, is the graph seed.
        steps: Number of training steps.
        metrics: Names of the metrics that EVAL must return besides the loss.
        frozen: Regular expressions of variables that training is not expected to change.
        tolerance: Allowed difference between the gradients of two replicas and of one, relative to their norm: float32
            sums depend on the order.
        skip: Names of checks to skip.
        only: Names of the checks to run; None: all.

    Raises:
        ConfigError: An argument is invalid.
    """
    is_estimator = hasattr(model_fn, "model_fn") and hasattr(model_fn, "export_saved_model")
    if not callable(model_fn) and not is_estimator:
        raise ConfigError(
            f"the model_fn is a {type(model_fn).__name__}",
            code="argument/bad-value",
            hint="pass a model_fn, or a tf.estimator.Estimator",
        )
    if not callable(data) and not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise ConfigError(
            f"the data is a {type(data).__name__}",
            code="argument/bad-value",
            hint="pass an input_fn, or the pair (features, labels) of arrays",
        )
    if steps < 1:
        raise ConfigError(f"steps is {steps}", code="argument/bad-value", hint="use a number of 1 or more")
    seed = getattr(config, "tf_random_seed", None)

    def make() -> ModelSubject:
        options = ModelCheckOptions(
            params=params,
            config=config,
            steps=steps,
            metrics=tuple(metrics),
            frozen=tuple(frozen),
            tolerance=tolerance,
            seed=1 if seed is None else seed,  # Findings should be reproducible.
            replicas=replicas_equal_one_batch.__name__ in suite.running,
        )
        return ModelSubject(model_fn, data, options)

    title = type(model_fn).__name__ if is_estimator else calling.describe(model_fn)
    suite = Suite(title, MODEL_CHECKS, make, skip=skip, only=only, known=MODEL_CHECKS)
    return suite.checks()


def check_model_fn(model_fn: Any, data: Any, *, raise_on_failure: bool = True, **options: Any) -> ComplianceReport:
    """Check that a `model_fn` works in each mode, and on two replicas like on one.

    The model is trained for a few steps on one batch, evaluated, used for prediction and exported, in new graphs and
    temporary folders. For the check with two replicas the CPU is split into two logical devices, which must happen
    before TensorFlow first runs in this process (see `prepare`).

    Args:
        model_fn: Any function that an Estimator accepts, or an Estimator.
        data: An input_fn, or a batch.
        raise_on_failure: Whether to raise an error if a check fails.
        **options: Options of `model_fn_checks`.

    Returns:
        The report.

    Raises:
        ComplianceError: Checks failed; the error has the report.
        ConfigError: An argument is invalid.
    """
    return run_checks(model_fn_checks(model_fn, data, **options), raise_on_failure=raise_on_failure)
