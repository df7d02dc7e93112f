"""From a job file to its data, model and exporters, for every command that needs one of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from estimator_pipeline import compat
from estimator_pipeline.cluster import TFConfig
from estimator_pipeline.cluster.peers import start_secs
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.estimator.exporters import make_exporter, with_examples
from estimator_pipeline.engines.jobs.continuing import TrainingPlan
from estimator_pipeline.engines.jobs.data import is_model_fn, job_inputs
from estimator_pipeline.engines.jobs.export_once import once
from estimator_pipeline.engines.jobs.job_identity import of_data, shared_by_tasks
from estimator_pipeline.engines.jobs.serving import Serving, serving_of
from estimator_pipeline.engines.jobs.table import keep_features
from estimator_pipeline.engines.keras3 import exporters as keras3_exporters
from estimator_pipeline.errors import CompatError, ConfigError
from estimator_pipeline.inputs.value_checks import job_scan, not_finite, unknown_ids, unscaled
from estimator_pipeline.job import Job
from estimator_pipeline.job.sections.model import OF_LAYERS
from estimator_pipeline.job.user_code import load_function, require_no_arguments
from estimator_pipeline.models.feature_mismatch import mismatch, refuse_text
from estimator_pipeline.models.heads import HEAD_OF_LOSS
from estimator_pipeline.models.keras3_variables import built_as_in_a_new_process
from estimator_pipeline.models.keras_model import build_keras_model
from estimator_pipeline.models.model_fn import build_model_fn, takes_params
from estimator_pipeline.models.outputs import Outputs, keras_batches, outputs_of
from estimator_pipeline.models.user_metrics import UserMetric
from estimator_pipeline.progress.progress_file import from_environ
from estimator_pipeline.utils.logger import logger

if TYPE_CHECKING:
    from estimator_pipeline.engines.recording.step_recorder import StepRecorder

__all__ = ["BuiltJob", "JobTask", "build", "explaining_mismatches", "prepare_process"]


def build(job: Job) -> BuiltJob:
    """Return the parts of a job, in a process with the Keras version of its engine.

    Raises:
        CompatError: See `prepare_process`.
    """
    prepare_process(job)
    return BuiltJob(job)


def prepare_process(job: Job) -> ModuleType:
    """Return TensorFlow with the Keras version of the job's engine; the first call in a process decides.

    With `run.tf1`, the job's functions can use TensorFlow 1 names.

    Raises:
        CompatError: This TensorFlow has no such Keras, or the process has loaded the other one.
    """
    engine = job.run.engine
    if engine == "keras3":
        return compat.use_keras_3()
    tf = compat.tensorflow()
    if compat.keras_generation() == 3:
        raise CompatError(
            f"this process has Keras 3, and the engine {engine} is built on Keras 2",
            code="tensorflow/wrong-keras",
            hint="run the job in a separate process",
        )
    if job.run.tf1:
        compat.install(tf1=True)
    return tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobTask:
    """This process's task of a job.

    Attributes:
        tf_config: Cluster and task of this process.
        environ: Its environment.
        evaluator: See `TrainOptions`.
        evaluate_during_training: See `TrainOptions`.
        recording: Records each training step, and may set the initial values of the variables.
    """

    tf_config: TFConfig
    environ: MutableMapping[str, str]
    evaluator: bool | None = None
    evaluate_during_training: bool | None = None
    recording: StepRecorder | None = None


@dataclasses.dataclass(frozen=True)
class BuiltJob:
    """The parts of a job; each is built when it is first used.

    Attributes:
        job: The job.
        read: Returns its data.
        labelled: Whether the data have labels; a prediction needs none.
        plan: The data that this start trains; None: the model is not trained.
    """

    job: Job
    read: Callable[[Job], Any] = job_inputs
    labelled: bool = True
    plan: TrainingPlan | None = None

    # -- data -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def data(self) -> Any:
        """The data: an object with `train_input_fn`, `eval_input_fn` and, if known, `features_spec`."""
        return self.read(self.job)

    @functools.cached_property
    def max_steps(self) -> int | None:
        """The global step at which training ends, from `max_steps` or `epochs`; None: at the end of the data."""
        if self.plan is None:
            return self._max_steps()
        if self.plan.continuation is not None:
            return self.plan.continuation.end
        steps = self._max_steps()
        return None if steps is None else steps + self.plan.origin

    def _max_steps(self) -> int | None:
        """Return the number of steps on the data with which the run begins."""
        job, epochs = self.job, self.job.train.epochs
        if epochs is None:
            return job.train.max_steps
        if self.data.num_train_records is None:
            raise ConfigError(
                f"train.epochs is {epochs:g}, and the number of records of a user-defined input function is unknown",
                code="argument/missing",
                hint="give train.max_steps",
            )
        return max(1, round(epochs * self.data.num_train_records / job.input.global_batch_size))

    def options(self, task: JobTask) -> TrainOptions:
        """Return the options of a task of the job."""
        job, pipelines = self.job, task.tf_config.num_training_tasks
        features = self.data.transform.digest if job.has_features else None
        plan, shared = self.plan, shared_by_tasks(job, max_steps=self.max_steps, features=features)

        def identity(input_fn: Any) -> Any:
            # The chief has the lock of the model directory by now.
            if features is not None and task.tf_config.is_chief:
                keep_features(self.data.transform, job.run.model_dir, from_environ(task.environ))
            current = of_data(job, input_fn, num_pipelines=pipelines, max_steps=self.max_steps, features=features)
            return current if plan is None else plan.identity(current)

        return TrainOptions(
            evaluator=task.evaluator,
            evaluate_during_training=task.evaluate_during_training,
            identity=identity,
            shared=shared if plan is None else {**shared, **plan.facts},
            before_training=None if plan is None else lambda step: plan.begin(step, from_environ(task.environ)),
            accept_changes=job.run.accept_changes,
            preemption_signals=job.run.preemption_signals,
            startup_timeout=job.run.start_timeout_secs or start_secs(task.environ),
            ledger=job.run.ledger_folder,
            steps_per_execution=job.train.steps_per_execution,
            warm_start_from=job.run.warm_start_from,
            # Each record of a continuation is trained.
            early_stopping=None if plan is not None and plan.continuation is not None else job.eval.early_stopping,
        )

    def check_values(self) -> None:
        """Check the columns of a built-in model in tables and arrays, and warn of numbers that are not scaled.

        Raises:
            InputError: A column has ids that the model does not have, or NaN or infinite numbers.
        """
        for use in ("training", "evaluation"):
            input_fn = self.data.train_input_fn if use == "training" else self.data.eval_input_fn
            source = getattr(input_fn, "source", None)
            if source is None or not source.is_plain or (scan := job_scan(self.job, source.specs())) is None:
                return
            error = unknown_ids(scan.read(source), self.job, use=use, place=source.place)
            error = error or not_finite(scan, place=source.place)
            if error is not None:
                raise error
            if use == "training" and (problem := unscaled(scan, self.job)) is not None:
                logger.warning("%s; %s; %s", *problem)

    def check_functions(self) -> None:
        """Load the user-defined functions without arguments, before anything is built.

        Raises:
            ConfigError: One does not exist, or requires arguments.
        """
        for field, reference in self.job.functions:
            if field not in ("model.function", "input.train", "input.eval"):
                require_no_arguments(load_function(reference, field=field), reference=reference, field=field)

    # -- model ----------------------------------------------------------------------------------------------------

    @property
    def model_options(self) -> dict[str, Any]:
        """The model's options other than the layers, as arguments of `build_model_fn`."""
        job, model = self.job, self.job.model
        options: dict[str, Any] = {
            "optimizer": model.optimizer.model_dump(),
            "clip_norm": model.clip_norm,
            "clip_value": model.clip_value,
            "label_smoothing": model.label_smoothing,
            "weight_column": job.input.weight_key,
            "class_weights": self._class_weights(model),
            "label_vocabulary": model.label_vocabulary or self._class_names,
            "mixed_precision": model.mixed_precision,
        }
        if model.outputs:
            options["outputs"] = {
                name: {
                    **output.model_dump(),
                    "metrics": _with_functions(output.metrics, f"model.outputs.{name}.metrics") or None,
                    "class_weights": self._class_weights(output, name),
                }
                for name, output in model.outputs.items()
            }
        metrics = _with_functions(model.metrics, "model.metrics")
        optional = {"loss": model.loss, "head": model.head, "metrics": metrics}
        return options | {name: value for name, value in optional.items() if value}

    def _class_weights(self, section: Any, label: str | None = None) -> Any:
        """Return the class weights of a section; balanced ones follow from the training records."""
        if section.class_weights != "balanced":
            return section.weights_of_classes
        labels = self.data.transform.label
        counts = labels[label or next(iter(labels))].get("counts")
        if not counts:
            raise ConfigError(
                "class_weights is balanced, and the label has no classes",
                code="argument/conflict",
                hint="leave class_weights out",
            )
        return [sum(counts) / (len(counts) * max(count, 1)) for count in counts]

    @property
    def _class_names(self) -> list[str]:
        """The names of the classes that the data has, for a loss of classes by number."""
        model = self.job.model
        by_number = model.loss in (None, "binary_crossentropy", "sparse_categorical_crossentropy")
        return list(self.data.class_names) if by_number and not model.outputs and model.head != "multi_label" else []

    @property
    def model_params(self) -> dict[str, Any]:
        """The parameters of a model of `model_fns/`: the job's, completed from its data.

        Raises:
            ConfigError: The job's parameters do not match the data.
        """
        import model_fns

        model, spec = self.job.model, self.data.features_spec
        params = {**self.feature_params, **model.params}
        known = {name: getattr(feature, "shape", None) for name, feature in (spec or {}).items()}  # None: sparse
        shapes = {
            name: None if shape is None or shape.rank is None else shape.as_list() for name, shape in known.items()
        }
        return model_fns.for_data(
            model.name or "",
            params,
            shapes=None if spec is None else shapes,
            classes=len(model.label_vocabulary) or self.data.num_classes,
            loss=model.loss,
            text=[name for name, feature in (spec or {}).items() if getattr(feature, "dtype", None) == "string"],
        )

    @property
    def feature_params(self) -> dict[str, Any]:
        """The parameters of a model that follow from a table: its inputs, and what a regression predicts."""
        if not self.job.has_features:
            return {}
        features, model = self.data.transform, self.job.model
        params = {"numeric": features.numeric, "categorical": features.categorical}
        (label, *others) = features.label.values()
        if HEAD_OF_LOSS.get(model.loss or "") == "regression" and "mean" in label and not others:
            params |= {"target_mean": label["mean"], "target_deviation": label["deviation"] or 1.0}
        return params

    @property
    def function_params(self) -> dict[str, Any]:
        """The parameters of a user-defined function; with features also `feature_params`, if it takes parameters."""
        params = dict(self.job.model.params)
        if self.job.model.function is None or not self.job.has_features:
            return params
        function = load_function(self.job.model.function, field="model.function")
        takes = "params" in inspect.signature(function).parameters if is_model_fn(function) else takes_params(function)
        labels = {"classes": self.data.num_classes, "label_vocabulary": self.model_options["label_vocabulary"]}
        return {**self.feature_params, **labels, **params} if takes else params

    def estimator(self, config: Any) -> Any:
        """Return the `tf.estimator.Estimator` of the job's model, with a `tf.estimator.RunConfig`."""
        # With `params=None`, Estimator passes `{}` but does not require a `params` argument. User functions may not
        # have one, so they get None. Built-in model functions do have one and would trigger a warning, so they get
        # `{}`.
        params = self.function_params or ({} if self.job.model.name else None)
        return compat.tensorflow().estimator.Estimator(model_fn=self.model_fn, config=config, params=params)

    @functools.cached_property
    def model_fn(self) -> Callable[..., Any]:
        """The job's `model_fn`: a model of `model_fns/`, user-defined layers, or a user-defined `model_fn`."""
        model_fn = self._model_fn()
        return with_examples(model_fn) if self.takes_examples else model_fn

    def _model_fn(self) -> Callable[..., Any]:
        job, model = self.job, self.job.model
        options = {**self.model_options, "signatures": model.export.signatures, "histograms": job.run.histograms}
        if model.name is not None:
            import model_fns

            return model_fns.model_fn(model.name, params=self.model_params, **options)
        function = load_function(model.function or "", field="model.function")
        if is_model_fn(function):
            if job.run.histograms:
                raise ConfigError(
                    f"run.histograms is {job.run.histograms}, and model.function {model.function} is a model_fn",
                    code="argument/conflict",
                    found="a user-defined model_fn writes its own summaries",
                    hint="leave run.histograms out; in the model_fn, call tf.compat.v1.summary.histogram(name, values)",
                )
            if model.params and "params" not in inspect.signature(function).parameters:
                raise ConfigError(
                    f"model.params are given, and model.function {model.function} has no parameter `params`",
                    code="model/bad-function",
                    found=f"{(model.function or '').rpartition(':')[2]}{inspect.signature(function)}",
                    hint="add the parameter to it, or leave model.params out",
                )
            ignored = sorted(model.model_fields_set & set(OF_LAYERS))
            if ignored:
                logger.warning(
                    "Not used, because model.function %s is a model_fn: %s",
                    model.function, ", ".join(f"model.{name}" for name in ignored),
                )  # fmt: skip
            return function
        self._require_loss()
        return _explaining_mismatches(function, options)

    def _require_loss(self) -> None:
        if self.job.model.loss is None and not self.job.model.outputs:
            raise ConfigError(
                f"model.function {self.job.model.function} builds layers, and model.loss is not given",
                code="argument/missing",
                hint="add model.loss, such as sparse_categorical_crossentropy; or name a model_fn(features, labels, "
                "mode)",
            )

    @functools.cached_property
    def keras_options(self) -> dict[str, Any]:
        """`model_options`, with the loss of a model of `model_fns/`."""
        if self.job.model.name is None:
            return self.model_options
        import model_fns

        return model_fns.with_loss(self.job.model.name, self.model_options)

    @functools.cached_property
    def new_keras_model(self) -> functools.partial[Any]:
        """A function that returns the job's compiled Keras model, with the initial values of a new process.

        Raises:
            ConfigError: The job has a user-defined `model_fn`.
        """
        model = self.job.model
        if model.name is not None:
            import model_fns

            layers = model_fns.get(model.name).keras_model
            params = model_fns.complete(model.name, self.model_params)
        else:
            layers, params = load_function(model.function or "", field="model.function"), self.function_params
            if is_model_fn(layers):
                raise ConfigError(
                    f"model.function {model.function} is a model_fn, and Keras trains layers",
                    code="model/bad-function",
                    hint="name the function that builds the layers, and give model.loss; or keep the engine estimator",
                )
            self._require_loss()
        build = functools.partial(build_keras_model, layers, params=params, **self.keras_options)
        data, weighted = self.data, self.weighted
        input_fn = data.train_input_fn if getattr(data, "has_training", True) else data.eval_input_fn
        read = (lambda: weighted(input_fn())) if self.labelled else input_fn
        return functools.partial(built_as_in_a_new_process, build, read)

    @property
    def outputs(self) -> Outputs:
        """The heads of the Keras model's outputs."""
        options = self._keras_options("outputs", "loss", "head", "metrics", "label_vocabulary")
        return outputs_of(**{"outputs": None, "loss": None, **options})

    @property
    def weighted(self) -> Callable[[Any], Any]:
        """Converts the job's datasets for Keras: labels as numbers, with example weights."""
        names = ("loss", "outputs", "head", "label_vocabulary", "weight_column", "class_weights")
        return functools.partial(keras_batches, **self._keras_options(*names))

    def _keras_options(self, *names: str) -> dict[str, Any]:
        return {name: value for name, value in self.keras_options.items() if name in names}

    # -- evaluation and exports -----------------------------------------------------------------------------------

    @property
    def takes_examples(self) -> bool:
        """Whether signatures of the job's exports take serialized `tf.Example` records."""
        return not {"classify", "regress"}.isdisjoint(self.job.model.export.signatures)

    @functools.cached_property
    def serving(self) -> Serving:
        """The inputs of the job's exports."""
        return serving_of(self.job, self.data)

    @property
    def serving_options(self) -> dict[str, Any]:
        """The arguments of `serving_receiver`, beside the specs of the inputs."""
        serving = self.serving
        examples = serving.parse_examples if self.takes_examples else None
        return {"single": serving.single, "examples": examples, "transform": serving.transform}

    def eval_spec(self) -> Any:
        """Return the job's evaluation with its exporters: a `tf.estimator.EvalSpec`, or that of Keras 3."""
        evaluation, data = self.job.eval, self.data
        is_keras_3 = self.job.run.engine == "keras3"

        def make(section: Any) -> Any:
            if is_keras_3:
                return keras3_exporters.make_exporter(section, self.serving.specs)
            return make_exporter(section, self.serving.specs, **self.serving_options)

        spec: Any = keras3_exporters.EvaluationSpec if is_keras_3 else compat.tensorflow().estimator.EvalSpec
        return spec(
            input_fn=data.eval_input_fn,
            steps=evaluation.steps,
            name=evaluation.name,
            start_delay_secs=evaluation.start_delay_secs,
            throttle_secs=evaluation.throttle_secs,
            exporters=tuple(self.exporters(make)),
        )

    def exporters(self, make: Callable[[Any], Any]) -> list[Any]:
        """Return the job's exporters, which `make(section)` builds; see `once`."""
        exporters = []
        for section in self.job.eval.exporters:
            parts = [part.model_dump(mode="json") for part in (section, self.job.model, self.job.input)]
            for field in ("continue_with", "continue_epochs"):
                del parts[-1][field]  # The checkpoint decides what was trained.
            if parts[-1]["serving"] is None:
                del parts[-1]["serving"]  # Exports of earlier versions have no such field.
            made_of = None if section.kind == "best" else parts
            exporters.append(once(make(section), made_of, final=section.kind == "final"))
        return exporters


def _with_functions(metrics: Sequence[str], field: str) -> list[str | UserMetric]:
    """Return the metrics of a job file, with references to functions as `UserMetric`."""
    return [UserMetric(metric, field) if ":" in metric else metric for metric in metrics]


def _explaining_mismatches(layers: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the `model_fn` of user-defined layers, with the errors of `explaining_mismatches`."""
    models: list[Any] = []
    with_params = takes_params(layers)

    def build_layers(params: Any) -> Any:
        models[:] = [layers(params) if with_params else layers()]
        return models[0]

    inner = build_model_fn(build_layers, **options)

    def model_fn(features: Any, labels: Any, mode: str, params: Any = None, config: Any = None) -> Any:
        try:
            with explaining_mismatches(models, [features]):
                spec = inner(features, labels, mode, params, config)
                refuse_text(models[0] if models else None, features)
                return spec
        finally:
            models.clear()  # it belongs to this graph

    return model_fn


@contextlib.contextmanager
def explaining_mismatches(models: Sequence[Any], features: Sequence[Any]) -> Iterator[None]:
    """Raise a clear error, within the block, for features that the model does not take.

    Args:
        models: The Keras model, once it is built.
        features: Features that it is called on, or their specs.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        explained = [wrong for each in features if models and (wrong := mismatch(models[0], each)) is not None]
        if not explained:
            raise
        raise explained[0] from error
