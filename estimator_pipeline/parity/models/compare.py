"""Comparison of a program's Estimator with a Keras model, in one process.

    result = compare_models(estimator, model, input_fn=train_input_fn, steps=20,
                            mapping={"dense/kernel": "fc1/weights", "dense/bias": "fc1/biases"})

Both train from the Keras model's values on the same records, and each step is compared, see
`estimator_pipeline.parity.result`. Neither is changed: the Estimator trains in a folder of the comparison.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.distribute import replica_sync as replica_means
from estimator_pipeline.engines.estimator.evaluation import in_even_batches
from estimator_pipeline.engines.recording import step_recorder as recording
from estimator_pipeline.errors import ConfigError, DivergedError, TaskFailedError
from estimator_pipeline.job.tolerances import Tolerances, kind_of
from estimator_pipeline.models import keras_variable_names as keras_names
from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
from estimator_pipeline.parity import folders, graph_facts, known_differences
from estimator_pipeline.parity.comparison import compare_records
from estimator_pipeline.parity.diagnosis.diagnose import FIRST_DIFFERENCE, Facts
from estimator_pipeline.parity.diagnosis.optimizers import format_options, other_options
from estimator_pipeline.parity.export_answers import ExportEvaluation, evaluation_of, loss_of_batch_means, predicted
from estimator_pipeline.parity.findings import format_names
from estimator_pipeline.parity.jobs import metadata as about
from estimator_pipeline.parity.models import inspection, matching
from estimator_pipeline.parity.models.arguments import InputFns, check_arguments
from estimator_pipeline.parity.models.failures import at_work, check_divergence, divergence_of
from estimator_pipeline.parity.models.input_fns import dataset_for_fit, features_of
from estimator_pipeline.parity.models.record_formats import RecordFormats, common_formats
from estimator_pipeline.parity.optimizer_slots import kept_by_keras, kept_in_graph
from estimator_pipeline.parity.result import ENGINES, Parity
from estimator_pipeline.parity.step_records import BatchWriter, StepReader, StepWriter, initial_of
from estimator_pipeline.utils.text import counted
from estimator_pipeline.utils.variable_names import GLOBAL_STEP, canonical

__all__ = ["compare_models"]

# Kinds in which differently rounded sums show first.
_OF_ROUNDING = ("weight", "slot", "moving statistic", "update norm")


def compare_models(
    estimator: Any,
    model: Any,
    *,
    input_fn: Callable[..., Any],
    eval_input_fn: Callable[..., Any] | None = None,
    keras_input_fn: Callable[..., Any] | None = None,
    keras_eval_input_fn: Callable[..., Any] | None = None,
    steps: int = 20,
    eval_steps: int | None = None,
    mapping: Mapping[str, str] | None = None,
    metric_names: Mapping[str, str] | None = None,
    predictions: str | Mapping[str, str] | None = None,
    tolerances: Any = None,
    slots: bool | None = None,
    folder: Any = None,
) -> Parity:
    """Train an Estimator and a Keras model from the same values on the same records; compare each step.

    Args:
        estimator: a `tf.estimator.Estimator`, or a canned one. Its `model_fn`, `params` and `config` are used, strategy
            included; its `model_dir` is neither read nor written.
        model: a compiled `tf.keras.Model` of Keras 2, built in its strategy's scope.
        input_fn: returns the training data, a `tf.data.Dataset` of (features, labels), in the same order each time. Its
            parameters `params`, `config`, `mode` and `input_context` are filled as an Estimator fills them. It may
            return tensors, as programs of TensorFlow 1 do: then the records that were read are not compared.
        eval_input_fn: returns the evaluation data; None: nothing is evaluated.
        keras_input_fn: training data for the Keras model, if it takes features in a different format. Records are
            identified by the parts that both have in common: equal names, and equal numbers of values or strings per
            record.
        keras_eval_input_fn: evaluation data for the Keras model.
        steps: number of training steps.
        eval_steps: number of batches in each evaluation, needed for endless data; None: all.
        mapping: a Keras weight -> the Estimator's variable, both without ":0", where the names differ.
        metric_names: a metric of the Keras model -> the Estimator's name, where they differ. A metric of only one side
            is not compared, and a note names it.
        predictions: an output of the Keras model -> its key in the Estimator's predictions; only the key, if the model
            has one output. The outputs for the first batch of the evaluation (or of the training, if nothing is
            evaluated) are compared. None: they are not, and a note is added.
        tolerances: allowed differences, see `Tolerances.of`.
        slots: whether optimizer slots are compared; None: if both have the same slots under the same names.
        folder: folder of the runs and their records; a new temporary one by default.

    Returns:
        The comparison. If `equal` is False, `findings` has the cause, or the first difference.

    Raises:
        ConfigError: names that do not match (of variables, metrics, predictions), which is checked before anything is
            trained or written; a model that is not compiled; an input function without data.
        DivergedError: the loss of either is not finite.
        TaskFailedError: training or evaluation of either failed because a function of the program raised.
    """
    check_arguments(estimator, model, steps, eval_steps)
    input_fns = InputFns.of(estimator, input_fn, eval_input_fn, keras_input_fn, keras_eval_input_fn, eval_steps)
    allowed = Tolerances.of(tolerances)
    weights = matching.names_of(mapping, "mapping", '{"dense/kernel": "fc1/weights"}')
    named = matching.names_of(metric_names, "metric_names", '{"acc": "accuracy"}')
    if named and input_fns.evaluation is None:
        raise ConfigError(
            "metric_names names metrics, and nothing is evaluated",
            code="argument/not-applicable",
            found=", ".join(list(named)[:12]),
            hint="pass eval_input_fn (--eval-input-fn), or leave out metric_names",
        )
    theirs = inspection.look_at_estimator(
        estimator, training=input_fns.training, evaluation=input_fns.evaluation, asked=predictions is not None
    )
    ours = inspection.look_at_keras(model, training=input_fns.keras_training, evaluation=input_fns.keras_evaluation)
    weights = matching.counterparts(theirs.variables, ours.variables, weights)
    left = matching.check_variables(
        theirs.variables, ours.variables, weights, untrained=theirs.untrained, untrained_ours=ours.untrained
    )
    if input_fns.evaluation is not None:
        matching.check_metrics(theirs.metrics, ours.metrics, named)
    asked = matching.outputs_asked(predictions, ours.outputs, theirs.predictions)
    specs = input_fns.training.element_spec, input_fns.keras_training.element_spec
    pair = _Pair(
        estimator=estimator, model=model, input_fns=input_fns, steps=steps, mapping=weights, metric_names=named,
        asked=asked, theirs=theirs, ours=ours, left=left,
        formats=common_formats(*specs) if input_fns.differ else RecordFormats(),
    )  # fmt: skip
    with folders.runs(folder, option="folder", engines=ENGINES, kept_after=(DivergedError,)) as base:
        return _compared(pair, base, allowed, slots)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pair:
    """The two sides of a comparison, with checked names.

    Attributes:
        estimator, model: the two sides.
        input_fns: their input functions.
        steps: number of training steps.
        mapping: Keras weight -> the Estimator's variable.
        metric_names: Keras metric -> the Estimator's.
        asked: Keras output -> the Estimator's key.
        theirs, ours: variables, metrics and outputs of the Estimator and the Keras model.
        left: variables that are not compared.
        formats: the compared parts of the records.
    """

    estimator: Any
    model: Any
    input_fns: InputFns
    steps: int
    mapping: Mapping[str, str]
    metric_names: Mapping[str, str]
    asked: Mapping[str, str]
    theirs: inspection.EstimatorSummary
    ours: inspection.KerasSummary
    left: matching.UnmatchedVariables
    formats: RecordFormats

    def as_keras(self, name: str) -> str:
        """Return Keras's name for a canonical name of the Estimator."""
        return matching.renamed_as(name, {variable: weight for weight, variable in self.mapping.items()})


@dataclasses.dataclass(kw_only=True)
class _Outcome:
    """The results of one side, beside its record.

    Attributes:
        metrics: metrics of the evaluation.
        answers: predictions.
        batches: number of records in each batch of the Estimator's evaluation, if they may differ from Keras's.
        evaluation: evaluation of Keras, batch by batch.
        random: names of random operations of the Keras model.
        notes: notes on this side.
        names: names of the variables in the Estimator's graph, and default names of its optimizers.
        replaced: values of the Estimator's variables before they were set to Keras's values.
    """

    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    answers: dict[str, Any] = dataclasses.field(default_factory=dict)
    batches: list[int] = dataclasses.field(default_factory=list)
    evaluation: ExportEvaluation = dataclasses.field(default_factory=ExportEvaluation)
    random: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)
    replaced: dict[str, Any] = dataclasses.field(default_factory=dict)


def _compared(pair: _Pair, base: Path, allowed: Tolerances, slots: bool | None) -> Parity:
    """Train both, and compare their records."""
    model, optimizer = pair.model, type(pair.model.optimizer).__name__
    read, writers = (
        graph_facts.GraphFacts(),
        {engine: StepWriter(base / engine / "record") for engine in reversed(ENGINES)},
    )
    keras = _by_keras(pair, writers["keras"])
    with inspection.keras_classes():
        estimator = _by_estimator(pair, base, writers, read)
    seen = keras.evaluation
    loss = loss_of_batch_means(keras.metrics.get("loss"), seen.each, seen.sizes)
    batches = (estimator.batches, seen.sizes) if estimator.batches else ((), ())
    finals, more_notes = matching.to_compare(estimator.metrics, keras.metrics, pair.metric_names, loss, batches=batches)
    notes = [
        *pair.left.notes(),
        *pair.formats.notes,
        *keras.notes,
        *_of_replaced(base, estimator.replaced),
        *more_notes,
    ]
    both = [name for name in finals["estimator"] if name in finals["keras"]]
    options = (read.options, graph_facts.options_of_keras(model.optimizer))
    random = (read.random, keras.random)
    by_nature = known_differences.of_optimizers(estimator.names, optimizer, options) + known_differences.of_random(
        ENGINES, random
    )
    if slots is None:
        slots, more_notes = _slots(base, estimator.names, model.optimizer, options)
        notes += more_notes
    if not pair.asked:
        notes.append(
            "predictions were not compared: name the Estimator's key of each output in `predictions` (--predictions), "
            f"of {', '.join(pair.ours.outputs)}"
        )
    replicas = (_replicas(pair.estimator.config.train_distribute), _replicas(model.distribute_strategy))
    facts = Facts(
        replicas=max(replicas),
        batches_per_step=replicas[0] if replicas[0] == replicas[1] else replicas,
        clip_norm=getattr(model.optimizer, "global_clipnorm", None),
        losses=seen.losses or {},
        options=options,
    )
    ran = about.of_program(
        pair.estimator, model, options=read.options, steps=pair.steps, input_fns=pair.input_fns, mapping=pair.mapping,
        metric_names=pair.metric_names, predictions=pair.asked, tolerances=allowed,
    )  # fmt: skip
    result = compare_records(
        base,
        metrics={engine: {name: finals[engine][name] for name in both} for engine in ENGINES},
        finals=finals,
        tolerances=allowed,
        facts=facts,
        notes=tuple(notes),
        by_nature=tuple(by_nature),
        slots=slots,
        records=pair.formats.compared,
        records_in_part=pair.formats.compared and bool(pair.formats.notes),
        steps=pair.steps,
        answers=(estimator.answers, keras.answers) if pair.asked else None,
        about=ran,
    )
    more = _of_what_came(pair, result, facts)
    return dataclasses.replace(result, notes=(*result.notes, *more))


def _of_replaced(base: Path, replaced: Mapping[str, Any]) -> list[str]:
    """Return a note on untrained values, such as a loaded table, that the comparison has replaced."""
    readers = [StepReader(base / engine / "record") for engine in ENGINES]
    if not all(reader.steps for reader in readers):
        return []
    start = readers[1].initial()
    others = [
        name
        for name, value in replaced.items()
        if name in start and not np.allclose(value, start[name], rtol=1e-5, atol=0, equal_nan=True)
    ]
    for reader in readers:
        others = reader.unchanged(others)
    if not others:
        return []
    return [
        f"neither side trains {format_names(others)}, and their initial values differed: the Estimator was set to the "
        "Keras model's values; check what both load (a table, a checkpoint)"
    ]


def _of_what_came(pair: _Pair, result: Parity, facts: Facts) -> list[str]:
    """Return notes that explain the result."""
    notes = []
    compared = [*result.numbers.values(), *result.records.values(), *(step.variables for step in result.steps)]
    if result.initial.equal and all(comparison.equal for comparison in compared) and result.metrics.faults:
        # With different weights the metrics differ, whatever their definitions.
        notes.append(known_differences.METRICS)
    if any(step.variables.differences for step in result.steps) and all(
        finding.name == FIRST_DIFFERENCE and finding.kind in _OF_ROUNDING for finding in result.findings
    ):
        notes += known_differences.of_session(pair.estimator.config.session_config)
    if result.equal and (others := other_options(facts)):
        notes.append(
            f"the optimizer options differ ({format_options(ENGINES, others)}), which had no effect in "
            + counted(len(result.steps), "step")
        )
    return notes


def _replicas(strategy: Any) -> int:
    return 1 if strategy is None else int(strategy.num_replicas_in_sync)


def _by_keras(pair: _Pair, writer: StepWriter) -> _Outcome:
    """Train, evaluate and predict with the Keras model, and restore its values."""
    tf: Any = compat.tensorflow()
    model, input_fns, outcome = pair.model, pair.input_fns, _Outcome()
    strategy = model.distribute_strategy
    # A model that creates variables in training has more of them afterwards.
    values = [(variable, variable.numpy()) for variable in _everything(model)]
    input_fn = _recorded_batches(input_fns.keras_training.for_keras(), writer.folder, pair.formats, 1)
    outcome.random, outcome.notes = graph_facts.random_of_model(model, input_fns.keras_training.first_features())

    def created(trained: bool) -> list[str]:
        """Return variables that training creates, or tracing for random operations."""
        before = {id(variable) for variable, _ in values}
        names = keras_names.names_of(weights := keras_optimizers.weights_of(model))
        new = [weight for weight in weights if id(weight) not in before]
        return [names[id(weight)] for weight in new if trained or not weight.trainable]

    def of_model(found: Iterable[str]) -> Mapping[str, str]:
        names, left = canonical(found, kept_by_keras(model).names), created(trained=False)
        return {
            name: canonical_name
            for name, canonical_name in names.items()
            if name not in pair.left.ours and canonical_name not in left
        }

    callback = recording.keras_callback(writer, canonical=of_model)
    try:
        try:
            with (
                at_work("the training of the Keras model", writer.folder),
                _betas_of_v1(model) if "Adam" in pair.theirs.optimizers else contextlib.nullcontext(),
            ):
                model.fit(
                    dataset_for_fit(input_fn, strategy),
                    steps_per_epoch=pair.steps,
                    epochs=1,
                    callbacks=[callback],
                    verbose=0,
                )
        except TaskFailedError as error:
            # Some metrics reject outputs that are not finite, one step after the cause.
            refused = isinstance(error.__cause__, tf.errors.InvalidArgumentError)
            if not refused or divergence_of(writer.folder) is None:
                raise
        if divergence_of(writer.folder) is not None:
            return outcome
        recorded = initial_of(writer.folder)
        if new := [name for name in created(trained=True) if name not in recorded]:
            outcome.notes += [
                f"variables that the Keras model creates in training were not compared: {format_names(new)}"
            ]
        if pair.asked:
            # Not by `predict`: under a strategy each replica would read its own moving statistics.
            with at_work("the prediction of the Keras model"):
                outputs = model.predict_step(
                    ((input_fns.keras_evaluation or input_fns.keras_training).first_features(),)
                )
            outcome.answers = predicted(outputs, pair.ours.outputs, list(pair.asked))
        if input_fns.keras_evaluation is None:
            return outcome
        evaluated = input_fns.keras_evaluation.for_keras()
        with at_work("the evaluation of the Keras model"):
            # The function that was traced before the training may lack metrics that the training created.
            model.make_test_function(force=True)
            with replica_means.alike(model):
                outcome.metrics = dict(model.evaluate(evaluated(), return_dict=True, verbose=0))
            outcome.evaluation = evaluation_of(model, evaluated())
            outcome.notes += outcome.evaluation.notes
        return outcome
    finally:
        for variable, value in values:
            variable.assign(value)


@contextlib.contextmanager
def _betas_of_v1(model: Any) -> Iterator[None]:
    """Round the betas of Keras's Adam to float32 while it trains, as `tf.compat.v1.train.AdamOptimizer` has them.

    V1 subtracts a beta from 1 in float32, Keras in Python: 1 - 0.9 differs by 2.4e-7 of its value, and so do the slots.
    """
    optimizer = model.optimizer
    betas = {name: beta for name in ("beta_1", "beta_2") if isinstance(beta := getattr(optimizer, name, None), float)}
    try:
        for name, beta in betas.items():
            setattr(optimizer, name, float(np.float32(beta)))
        model.train_function = None  # one that was traced before has the others
        yield
    finally:
        for name, beta in betas.items():
            setattr(optimizer, name, beta)
        model.train_function = None


def _everything(model: Any) -> list[Any]:
    keras_optimizers.create_slots(model)
    return [*model.variables, *keras_optimizers.variables_of(model.optimizer)]


def _by_estimator(pair: _Pair, base: Path, writers: Mapping[str, StepWriter], read: graph_facts.GraphFacts) -> _Outcome:
    """Train, evaluate and predict with a copy of the Estimator, from Keras's recorded values."""
    tf: Any = compat.tensorflow()
    input_fns, outcome = pair.input_fns, _Outcome()
    copy = inspection.copy_of(pair.estimator, str(base / "estimator" / "model"))
    start = {name: value for name, value in initial_of(writers["keras"].folder).items() if kind_of(name) != "slots"}
    start.pop(GLOBAL_STEP)

    def of_graph(found: Iterable[str]) -> Mapping[str, str]:
        kept = kept_in_graph(tf.compat.v1.get_default_graph())
        names = list(found)
        outcome.names = [*names, *kept.optimizers]
        return {
            pair.as_keras(name): canonical_name
            for name, canonical_name in canonical(names, kept.names).items()
            if name not in pair.left.theirs
        }

    replaced = outcome.replaced
    hook = recording.estimator_hook(writers["estimator"], canonical=of_graph, start=start, replaced=replaced)
    train_input_fn = _recorded_batches(input_fns.training.for_estimator(), writers["estimator"].folder, pair.formats, 0)
    # The record has that step; the error is reported together with the other side's.
    with (
        at_work("the training of the Estimator", writers["estimator"].folder),
        contextlib.suppress(tf.estimator.NanLossDuringTrainingError),
    ):
        copy.train(train_input_fn, max_steps=pair.steps, hooks=[hook, read.hook(), _ended_after(pair.steps)])
    check_divergence(base)
    if pair.asked:
        input_fn = (input_fns.evaluation or input_fns.training).for_estimator()
        with at_work("the prediction of the Estimator"):
            first = next(iter(copy.predict(lambda: features_of(input_fn()), yield_single_examples=False)))
        arrays = first if isinstance(first, Mapping) else dict.fromkeys(pair.asked.values(), first)
        outcome.answers = {f"predictions {output}": np.asarray(arrays[key]) for output, key in pair.asked.items()}
    if input_fns.evaluation is not None:
        with at_work("the evaluation of the Estimator"):
            input_fn = input_fns.evaluation.for_estimator()
            # TensorFlow may lose records of a round without a batch for each replica.
            input_fn = in_even_batches(input_fn, replicas := _replicas(copy.config.eval_distribute))
            if replicas > 1 or input_fns.differ_in_evaluation:
                input_fn = recording.recorded_batches(
                    input_fn, lambda checksums: outcome.batches.append(len(checksums))
                )
            evaluated = copy.evaluate(input_fn, steps=input_fns.eval_steps)
        outcome.metrics = {name: value for name, value in evaluated.items() if name != GLOBAL_STEP}
    return outcome


def _ended_after(runs: int) -> Any:
    """Return a hook that stops training after this many runs, if the global step does not count them."""
    base: Any = compat.tensorflow().compat.v1.train.SessionRunHook

    class Ender(base):
        left = runs

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.left -= 1
            if not self.left:
                run_context.request_stop()

    return Ender()


def _recorded_batches(
    input_fn: Callable[..., Any], record: Path, formats: RecordFormats, side: int
) -> Callable[..., Any]:
    """Return an input function that records checksums of its records, as far as they are compared."""
    if not formats.compared:
        return input_fn
    return recording.recorded_batches(input_fn, BatchWriter(record, "worker:0").batch, formats.chosen[side])


def _slots(base: Path, names: list[str], optimizer: Any, options: tuple[Any, Any]) -> tuple[bool, list[str]]:
    """Return whether both have the same slots with the same names and meaning, and notes if not."""
    sides = [initial_of(base / engine / "record") for engine in ("estimator", "keras")]
    slots = [{name for name in side if kind_of(name) == "slots"} for side in sides]
    if slots[0] != slots[1]:
        return False, ["the optimizers' slots are not compared: the two have different slots"]
    if known_differences.of_optimizers(names, type(optimizer).__name__, options) and type(optimizer).__name__ != "Adam":
        return False, ["the optimizers' slots are not compared: equal names have different meanings"]
    return True, []
