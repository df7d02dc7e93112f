"""The `model_fn` under test: its sample, graphs and runs, each created once on first use."""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.testing import calling
from estimator_pipeline.testing import sample_batch as samples
from estimator_pipeline.testing import training_runs as runs
from estimator_pipeline.testing.report import Blocked, ComplianceFinding, Skip, format_exception, shared

__all__ = ["ModelCheckOptions", "ModelSubject", "same", "worst"]

_STATISTICS = r"(moving_(mean|variance|stddev|average|avg)|ExponentialMovingAverage)"
_RUN = "correct the error of the model on the sample batch"
_CALL = "correct the error in the model_fn; Estimator calls it in a new graph for each mode"


@dataclass
class ModelCheckOptions:
    """The arguments of `check_model_fn`."""

    params: Any
    config: Any
    steps: int
    metrics: tuple[str, ...]
    frozen: tuple[str, ...]
    tolerance: float
    seed: int | None
    replicas: bool


class ModelSubject:
    """A model_fn and the results of all runs so far."""

    def __init__(self, model_fn: Any, data: Any, options: ModelCheckOptions) -> None:
        self.options = options
        self.tf = tf = compat.tensorflow()
        self.devices_error: ConfigError | None = None
        if options.replicas:
            try:
                # The devices of a process cannot change after TensorFlow has run.
                runs.prepare()
            except ConfigError as error:
                self.devices_error = error
        if isinstance(model_fn, tf.compat.v1.estimator.Estimator):
            # Its params are already bound to its model_fn; an input_fn may need them, too.
            self.user_config, self.input_params = options.config or model_fn.config, model_fn.params
            self.function = model_fn.model_fn
        else:
            self.user_config, self.input_params = options.config, self.params
            self.function = model_fn
        self.takes = calling.parameters(self.function)
        self._data = data
        self._folder = tempfile.mkdtemp(prefix="check_model_fn_")
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    # The model_fn as Estimator calls it ----------------------------------------------------------------------

    def call(self, features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
        """Call the model_fn with the arguments that it has."""
        arguments = {"features": features, "labels": labels, "mode": mode, "params": params, "config": config}
        return self.function(**{name: value for name, value in arguments.items() if name in self.takes})

    @shared("parameters_are_known", hint="")
    def check_parameters(self) -> None:
        """Check that Estimator can call the model_fn."""
        calling.check_parameters(self.function, calling.MODEL_FN, kind="a model_fn")
        text = calling.describe(self.function)
        if "features" not in self.takes:
            raise ComplianceFinding(
                f"{text} does not accept features",
                hint="name the first parameter features; Estimator passes it by name",
            )
        if self.options.params is not None and "params" not in self.takes:
            raise ComplianceFinding(
                f"params were passed, and {text} does not accept them", hint="add the parameter params"
            )
        if self.sample().labels is not None and "labels" not in self.takes:
            raise ComplianceFinding(
                f"there are labels, and {text} does not accept them", hint="add the parameter labels"
            )

    def config(self, name: str, *, seed_shift: int = 0, strategy: Any = None) -> Any:
        seed = self.options.seed
        return runs.make_config(
            self.user_config,
            runs.under(self._folder, name),
            seed=None if seed is None else seed + seed_shift,
            strategy=strategy,
        )

    @property
    def params(self) -> Any:
        return {} if self.options.params is None else self.options.params

    @shared("sample_is_readable", hint="pass an input_fn that works, or a pair (features, labels) of arrays")
    def sample(self) -> samples.Sample:
        config = self.config("sample")
        return samples.take(self.tf, self._data, params=self.input_params, config=config, seed=config.tf_random_seed)

    def spec(self, mode: str, *, with_labels: bool = True) -> tuple[Any, Any]:
        """Return the (EstimatorSpec, graph) of one mode, in a new graph; nothing is run."""
        self.check_parameters()
        tf, config = self.tf, self.config("graph")
        sample = self.sample()
        with tf.Graph().as_default() as graph:
            tf.compat.v1.set_random_seed(config.tf_random_seed)
            tf.compat.v1.train.create_global_step(graph)
            dataset = sample.dataset(tf, rows=sample.rows, with_labels=with_labels)
            element = tf.compat.v1.data.make_initializable_iterator(dataset).get_next()
            features, labels = element if with_labels and sample.labels is not None else (element, None)
            spec = self.call(features, labels, mode, self.params, config)
            if not isinstance(spec, tf.estimator.EstimatorSpec):
                raise ComplianceFinding(
                    f"the model_fn returned {'None' if spec is None else 'a ' + type(spec).__name__} in mode {mode}",
                    hint="return tf.estimator.EstimatorSpec(mode, ...) in each mode",
                )
            if spec.mode != mode:
                raise ComplianceFinding(
                    f"in mode {mode} the model_fn returned a spec of mode {spec.mode}",
                    hint="pass the mode: tf.estimator.EstimatorSpec(mode, ...)",
                )
        return spec, graph

    @shared("train_spec_is_complete", hint=_CALL)
    def train_spec(self) -> tuple[Any, Any]:
        return self.spec("train")

    def check_another_call(self) -> None:
        """Raise Blocked if only the first call of the model_fn works."""
        try:
            self.train_spec()
        except Blocked:
            return
        self.called_again()

    @shared("eval_spec_is_complete", hint=_CALL)
    def eval_spec(self) -> tuple[Any, Any]:
        self.check_another_call()
        return self.spec("eval")

    @shared("predict_spec_is_complete", hint=_CALL)
    def predict_spec(self) -> tuple[Any, Any]:
        self.check_another_call()
        try:
            return self.spec("infer", with_labels=False)
        except (ComplianceFinding, Blocked):
            raise
        except Exception as error:
            try:
                self.spec("infer")
            except Exception:
                raise error from None
            hint = "return before the labels are used: Estimator passes labels=None in mode PREDICT"
            raise Blocked(
                "predicts_without_labels", ComplianceFinding(format_exception(error), hint=hint, error=error)
            ) from None

    @shared(
        "can_be_called_again",
        hint="create layers, optimizers and tensors inside the model_fn: others belong to the first graph",
    )
    def called_again(self) -> Any:
        self.train_spec()
        return self.spec("train")

    # Runs ----------------------------------------------------------------------------------------------------

    @shared("training_runs", hint=_RUN)
    def training(self) -> runs.CheckedTraining:
        self.called_again()
        sample = self.sample()
        return runs.train(
            self.call,
            samples.calls(sample, self.tf, rows=sample.rows),
            params=self.params,
            config=self.config("train"),
            steps=self.options.steps,
        )

    @shared("evaluation_runs", hint=_RUN)
    def evaluation(self, number: int) -> runs.CheckedEvaluation:
        """Evaluate the trained checkpoint, with a different seed for each number."""
        self.eval_spec()
        sample, checkpoint = self.sample(), self.trained_checkpoint()
        return runs.evaluate(
            self.call,
            samples.calls(sample, self.tf, rows=sample.rows),
            params=self.params,
            config=self.config(f"eval{number}", seed_shift=100 * number),
            checkpoint=checkpoint,
        )

    @shared("prediction_runs", hint=_RUN)
    def predictions(self) -> list[Any]:
        """Return the predictions for the sample, twice in the same session."""
        self.predict_spec()
        sample, tf, batches = self.sample(), self.tf, []
        estimator = tf.estimator.Estimator(self.call, params=self.params, config=self.config("predict"))
        answers = estimator.predict(
            samples.calls(sample, tf, rows=sample.rows, with_labels=False),
            checkpoint_path=self.trained_checkpoint(),
            yield_single_examples=False,
        )
        for answer in answers:
            batches.append(answer)
            if len(batches) == 2:
                answers.close()
                break
        return batches

    @shared("evaluation_is_not_random", hint="")
    def steady_evaluation(self) -> runs.CheckedEvaluation:
        run = self.evaluation(0)
        first, second = run.losses
        if not np.allclose(first, second, rtol=1e-5, equal_nan=True):
            raise ComplianceFinding(
                f"the loss of the same batch is {float(first):.6g} and then {float(second):.6g}",
                hint="call layers with training=(mode == TRAIN); use tf.nn.dropout only in TRAIN",
            )
        return run

    @shared("prediction_is_not_random", hint="")
    def steady_predictions(self) -> dict[str, np.ndarray]:
        """Return the predictions by name; a single one as "predictions"."""
        first, second = (
            dict(answer) if isinstance(answer, Mapping) else {"predictions": answer} for answer in self.predictions()
        )
        for name, value in first.items():
            if not same(value, second[name], 1e-5):
                raise ComplianceFinding(
                    f"the prediction {name} of the same batch is {worst(value, second[name])}",
                    hint="call layers with training=(mode == TRAIN); use tf.nn.dropout only in TRAIN",
                )
        return first

    def trained_checkpoint(self) -> str:
        run = self.training()
        if not np.all(np.isfinite(run.losses)):
            raise Blocked("loss_is_finite", self.not_finite() or ComplianceFinding("", hint=""))
        if run.checkpoint is None:
            raise ComplianceFinding("training wrote no checkpoint", hint="let the scaffold's saver save the variables")
        return run.checkpoint

    def not_finite(self) -> ComplianceFinding | None:
        losses = self.training().losses
        bad = [step for step, loss in enumerate(losses) if not np.isfinite(loss)]
        if not bad:
            return None
        return ComplianceFinding(
            f"the losses in training are {', '.join(f'{loss:.4g}' for loss in losses)}",
            hint="look for log(0), a division by zero or a high learning rate; compute the loss from logits",
        )

    @shared("export_answers_as_predict", hint="use only the features in PREDICT, with any number of rows")
    def exported(self) -> str:
        """Export a SavedModel that accepts raw tensors, and return its folder."""
        tf, sample = self.tf, self.sample()
        self.predictions()
        features = sample.simple_features
        if features is None:
            raise Skip("features are sparse or ragged: their SavedModel needs a custom serving input receiver")

        def receiver() -> Any:
            batch = sample.rows if sample.fixed_batch else None
            places = {
                name: tf.compat.v1.placeholder(_dtype(tf, value), [batch, *value.shape[1:]], name=_op_name(name))
                for name, value in features.items()
            }
            if isinstance(sample.features, Mapping):
                return tf.estimator.export.ServingInputReceiver(places, dict(places))
            (place,) = places.values()
            return tf.estimator.export.TensorServingInputReceiver(place, places)

        estimator = tf.estimator.Estimator(self.call, params=self.params, config=self.config("export"))
        folder = estimator.export_saved_model(
            runs.under(self._folder, "exported"), receiver, checkpoint_path=self.trained_checkpoint()
        )
        return folder.decode() if isinstance(folder, bytes) else folder

    # Replicas ------------------------------------------------------------------------------------------------

    @shared("replicas_equal_one_batch", hint="correct the error of the model under a strategy with two replicas")
    def step(self, replicas: int, rows: int, copies: int, seed_shift: int) -> runs.CheckedTraining:
        """Run one training step from the initial values of the first run."""
        if self.devices_error is not None:
            raise Skip(
                f"two replicas need two logical CPUs: {self.devices_error.message}; call testing.prepare() in "
                "conftest.py, before anything uses TensorFlow"
            )
        strategy = runs.two_replicas() if replicas == 2 else None
        name = f"step-{replicas}-{rows}-{copies}-{seed_shift}"
        return runs.train(
            self.call,
            samples.calls(self.sample(), self.tf, rows=rows, copies=copies),
            params=self.params,
            config=self.config(name, seed_shift=seed_shift, strategy=strategy),
            steps=1,
            initial=self.training().before,
        )

    def statistics_of(self, names: Sequence[str]) -> list[str]:
        """Return the names that are moving statistics, such as those of BatchNorm."""
        return [name for name in names if re.search(_STATISTICS, name)]

    def is_frozen(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.options.frozen)


def _dtype(tf: Any, value: np.ndarray) -> Any:
    return tf.string if value.dtype.kind in "OSU" else tf.as_dtype(value.dtype)


def _op_name(name: str) -> str:
    return re.sub(r"[^\w.]", "_", name).lstrip("_") or "feature"


def same(value: Any, other: Any, tolerance: float) -> bool:
    """Whether two values are equal; floats within `tolerance` of the largest element."""
    value, other = np.asarray(value), np.asarray(other)
    if value.shape != other.shape:
        return False
    if value.dtype.kind not in "fc":
        return bool(np.array_equal(value, other))
    scale = float(np.max(np.abs(value), initial=0.0))
    scale = scale if np.isfinite(scale) else 0.0
    return bool(np.allclose(value, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def worst(value: np.ndarray, other: np.ndarray) -> str:
    """Describe the element that differs most, or the shapes."""
    if value.shape != other.shape:
        return f"of shape {list(value.shape)} and then {list(other.shape)}"
    if value.dtype.kind not in "fciu":
        at = tuple(map(int, np.argwhere(value != other)[0]))
    else:
        at = tuple(map(int, np.unravel_index(np.argmax(np.abs(np.subtract(value, other, dtype=float))), value.shape)))
    return f"{value[at]} and then {other[at]}, at {list(at)}"
