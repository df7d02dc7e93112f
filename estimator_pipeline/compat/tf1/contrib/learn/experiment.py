"""`tf.contrib.learn.Experiment` and `learn_runner`, based on `tf.estimator.train_and_evaluate`.

On one machine and in TF_CONFIG clusters a schedule matches the task's role: a master trains and evaluates, a worker
trains, a parameter server serves.
"""

from __future__ import annotations

import os
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from estimator_pipeline.compat.tf1.contrib import files
from estimator_pipeline.compat.tf1.contrib.learn.estimator import Estimator, as_hooks

__all__ = [
    "Experiment",
    "ExportStrategy",
    "InputFnOps",
    "build_parsing_serving_input_fn",
    "learn_runner_run",
    "make_export_strategy",
]

_v1: Any = tf.compat.v1
_NEVER = 10**9  # seconds

InputFnOps = namedtuple("InputFnOps", ["features", "labels", "default_inputs"])


class ExportStrategy(namedtuple("_ExportStrategy", ["name", "export_fn", "strip_default_attrs"])):
    """An export of a trained model: a name, and a function of the Estimator and a folder."""

    __slots__ = ()

    def __new__(cls, name: str, export_fn: Callable[..., Any], strip_default_attrs: Any = None) -> ExportStrategy:
        return super().__new__(cls, name, export_fn, strip_default_attrs)

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str | None = None, eval_result: Any = None
    ) -> Any:
        """Export to `export_path`, and return the new folder."""
        import inspect

        options = {"checkpoint_path": checkpoint_path, "eval_result": eval_result}
        taken = inspect.signature(self.export_fn).parameters
        return self.export_fn(estimator, export_path, **{name: options[name] for name in options if name in taken})


def make_export_strategy(
    serving_input_fn: Callable[[], Any],
    default_output_alternative_key: str | None = None,
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    exports_to_keep: int | None = 5,
    strip_default_attrs: Any = None,
) -> ExportStrategy:
    """Return an export of SavedModels, which keeps the latest `exports_to_keep` (None: all).

    Args:
        serving_input_fn: Returns the model's inputs: `InputFnOps` or a ServingInputReceiver.
        default_output_alternative_key: Ignored: the model's default is used.
        assets_extra: Path below assets.extra -> file.
        as_text: Whether to write the graph as text.
        exports_to_keep: The number of exports to keep.
        strip_default_attrs: Ignored.
    """

    def export_fn(estimator: Any, export_dir_base: str, checkpoint_path: str | None = None) -> Any:
        path = estimator.export_saved_model(
            export_dir_base, _receiver_fn(serving_input_fn), assets_extra, as_text, checkpoint_path
        )
        _keep(export_dir_base, exports_to_keep)
        return path

    return ExportStrategy("Servo", export_fn, strip_default_attrs)


def _receiver_fn(serving_input_fn: Callable[[], Any]) -> Callable[[], Any]:
    def receiver_fn() -> Any:
        inputs = serving_input_fn()
        if not isinstance(inputs, InputFnOps):
            return inputs
        return tf.estimator.export.ServingInputReceiver(inputs.features, inputs.default_inputs)

    return receiver_fn


def _keep(folder: str, count: int | None) -> None:
    if count is not None:
        names = (name.rstrip("/") for name in tf.io.gfile.listdir(folder))
        for name in sorted((name for name in names if name.isdigit()), key=int)[:-count]:
            tf.io.gfile.rmtree(os.path.join(folder, name))


def build_parsing_serving_input_fn(feature_spec: Mapping[str, Any], default_batch_size: int | None = None) -> Any:
    """Return a serving_input_fn for serialized tf.train.Example records."""

    def serving_input_fn() -> InputFnOps:
        serialized = _v1.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        return InputFnOps(_v1.parse_example(serialized, feature_spec), None, {"examples": serialized})

    return serving_input_fn


class _StrategyExporter(tf.estimator.Exporter):
    def __init__(self, strategy: ExportStrategy, *, every_time: bool) -> None:
        self._strategy, self._every_time = strategy, every_time

    @property
    def name(self) -> str:
        return self._strategy.name

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        if self._every_time or is_the_final_export:
            return self._strategy.export(estimator, export_path, checkpoint_path, eval_result)
        return None


class Experiment:
    """An Estimator with its training data and evaluation data.

    With a canned Estimator of `tf.contrib.learn`, from TensorFlow 1.15's files, it is the Experiment of these files.

    Args:
        estimator: An Estimator of tf.estimator or of `tf.contrib.learn`.
        train_input_fn: The training data.
        eval_input_fn: The evaluation data.
        eval_metrics: Name -> MetricSpec, for an Estimator of `tf.contrib.learn`.
        train_steps: The global step at which training ends; None: at the end of the data.
        eval_steps: The number of batches of an evaluation; None: all.
        train_monitors: Hooks of the training.
        eval_hooks: Hooks of evaluations.
        eval_delay_secs: The delay of an evaluator's first evaluation.
        continuous_eval_throttle_secs: The time between evaluations of an evaluator.
        min_eval_frequency: 0: evaluate only at the end of training; otherwise at each checkpoint.
        export_strategies: One or several `ExportStrategy` objects.
        train_steps_per_iteration: The steps between evaluations of `continuous_train_and_eval`.
        checkpoint_and_export: Whether each evaluation exports, not only the last.
        saving_listeners: Listeners of the training's checkpoints.
        **options: local_eval_frequency, delay_workers_by_global_step, check_interval_secs: without effect.

    Raises:
        ValueError: `eval_metrics` is set for an Estimator of tf.estimator, whose model_fn has the metrics.
    """

    def __new__(cls, estimator: Any, *args: Any, **options: Any) -> Any:
        if cls is Experiment and not isinstance(estimator, (_v1.estimator.Estimator, tf.estimator.Estimator)):
            module = files.load("learn.python.learn.experiment")
            if module is not None:
                return module.Experiment(estimator, *args, **options)
        return super().__new__(cls)

    def __init__(
        self,
        estimator: Any,
        train_input_fn: Callable[[], Any],
        eval_input_fn: Callable[[], Any],
        eval_metrics: Mapping[str, Any] | None = None,
        train_steps: int | None = None,
        eval_steps: int | None = 100,
        train_monitors: Sequence[Any] | None = None,
        eval_hooks: Sequence[Any] | None = None,
        local_eval_frequency: Any = None,
        eval_delay_secs: int = 120,
        continuous_eval_throttle_secs: int = 60,
        min_eval_frequency: int | None = None,
        delay_workers_by_global_step: bool = False,
        export_strategies: Any = None,
        train_steps_per_iteration: int | None = None,
        checkpoint_and_export: bool = False,
        saving_listeners: Sequence[Any] | None = None,
        check_interval_secs: int = 5,
    ) -> None:
        if eval_metrics and not isinstance(estimator, Estimator):
            raise ValueError(
                "`eval_metrics` must be None for an Estimator of tf.estimator: its model_fn has the metrics"
            )
        self._estimator = estimator
        self._train_input_fn, self._eval_input_fn = train_input_fn, eval_input_fn
        self._eval_metrics = eval_metrics
        self._train_steps, self._eval_steps = train_steps, eval_steps
        self._train_monitors = as_hooks(train_monitors, estimator)
        self._eval_hooks = list(eval_hooks or [])
        self._eval_delay_secs, self._throttle_secs = eval_delay_secs, continuous_eval_throttle_secs
        self._evaluates_often = min_eval_frequency != 0
        self._steps_per_iteration = train_steps_per_iteration
        self._exports_often = checkpoint_and_export
        self._saving_listeners = list(saving_listeners or [])
        self.reset_export_strategies(export_strategies)

    @property
    def estimator(self) -> Any:
        return self._estimator

    @property
    def train_steps(self) -> int | None:
        return self._train_steps

    @property
    def eval_steps(self) -> int | None:
        return self._eval_steps

    @property
    def eval_metrics(self) -> Any:
        return self._eval_metrics

    def extend_train_hooks(self, additional_hooks: Sequence[Any]) -> None:
        self._train_monitors.extend(as_hooks(additional_hooks, self._estimator))

    def reset_export_strategies(self, new_export_strategies: Any = None) -> Any:
        """Replace the export strategies, and return the previous ones."""
        before = getattr(self, "_export_strategies", ())
        if isinstance(new_export_strategies, ExportStrategy):
            new_export_strategies = [new_export_strategies]
        self._export_strategies = tuple(new_export_strategies or ())
        return before

    def _specs(self) -> tuple[Any, Any]:
        exporters = [_StrategyExporter(each, every_time=self._exports_often) for each in self._export_strategies]
        train = tf.estimator.TrainSpec(
            self._train_input_fn, self._train_steps, hooks=self._train_monitors, saving_listeners=self._saving_listeners
        )
        evaluate = tf.estimator.EvalSpec(
            self._eval_input_fn,
            self._eval_steps,
            hooks=self._eval_hooks,
            exporters=exporters,
            start_delay_secs=self._eval_delay_secs if self._is_evaluator() else 0,
            throttle_secs=self._throttle_secs if self._is_evaluator() else 0 if self._evaluates_often else _NEVER,
        )
        return train, evaluate

    def _is_evaluator(self) -> bool:
        return getattr(self._estimator.config, "task_type", None) == "evaluator"

    def train_and_evaluate(self) -> Any:
        """Train and evaluate; return the last evaluation and the exports, on the chief."""
        if not self._eval_metrics:
            return tf.estimator.train_and_evaluate(self._estimator, *self._specs())
        # Additional metrics are known only to this object.
        inner, evaluate, metrics = self._estimator, type(self._estimator).evaluate, self._eval_metrics
        inner.evaluate = lambda *args, **options: evaluate(inner, *args, **{"metrics": metrics, **options})
        try:
            return tf.estimator.train_and_evaluate(inner, *self._specs())
        finally:
            del inner.evaluate

    local_run = train_and_evaluate

    def train(self, delay_secs: float | None = None) -> Any:
        """Train, in a cluster as this process's task, and return the Estimator."""
        time.sleep(delay_secs or 0)
        if len(getattr(self._estimator.config, "cluster_spec", None).as_dict() or {}):  # type: ignore[union-attr]
            tf.estimator.train_and_evaluate(self._estimator, *self._specs())
        else:
            self._estimator.train(
                self._train_input_fn,
                hooks=self._train_monitors,
                max_steps=self._train_steps,
                saving_listeners=self._saving_listeners or None,
            )
        return self._estimator

    def run_std_server(self) -> None:
        """Serve variables until the training ends, as a parameter server."""
        tf.estimator.train_and_evaluate(self._estimator, *self._specs())

    def evaluate(self, delay_secs: float | None = None, name: str | None = None) -> Any:
        """Evaluate the latest checkpoint."""
        time.sleep(self._eval_delay_secs if delay_secs is None else delay_secs)
        return self._evaluate(name or "one_pass")

    def _evaluate(self, name: str | None, steps: Any = None, checkpoint_path: str | None = None) -> Any:
        options = {"metrics": self._eval_metrics} if self._eval_metrics else {}
        return self._estimator.evaluate(
            input_fn=self._eval_input_fn,
            steps=self._eval_steps if steps is None else steps,
            hooks=self._eval_hooks,
            checkpoint_path=checkpoint_path,
            name=name,
            **options,
        )

    def _export(self, result: Any, checkpoint_path: str | None = None) -> list[Any]:
        base = os.path.join(self._estimator.model_dir, "export")
        return [
            each.export(self._estimator, os.path.join(base, each.name), checkpoint_path, result)
            for each in self._export_strategies
        ]

    def continuous_eval(
        self,
        delay_secs: float | None = None,
        throttle_delay_secs: float | None = None,
        evaluate_checkpoint_only_once: bool = True,
        continuous_eval_predicate_fn: Callable[..., bool] | None = None,
        name: str = "continuous",
    ) -> None:
        """Evaluate and export each checkpoint that a different process writes, up to the last step."""
        time.sleep(self._eval_delay_secs if delay_secs is None else delay_secs)
        throttle = self._throttle_secs if throttle_delay_secs is None else throttle_delay_secs
        before, result = None, None
        while continuous_eval_predicate_fn is None or continuous_eval_predicate_fn(result):
            if self._train_steps and result and result["global_step"] >= self._train_steps:
                return
            start = time.time()
            latest = tf.train.latest_checkpoint(self._estimator.model_dir)
            if latest and not (evaluate_checkpoint_only_once and latest == before):
                result = self._evaluate(name, checkpoint_path=latest)
                self._export(result, latest)
                before = latest
            time.sleep(max(0.0, throttle - (time.time() - start)))

    def continuous_train_and_eval(self, continuous_eval_predicate_fn: Callable[..., bool] | None = None) -> Any:
        """Alternate `train_steps_per_iteration` training steps and an evaluation, up to `train_steps`."""
        each = self._steps_per_iteration or (self._train_steps // 10 if self._train_steps else 1000)
        result = None
        while continuous_eval_predicate_fn is None or continuous_eval_predicate_fn(result):
            done = result["global_step"] if result else 0
            end = done + max(1, each)
            if self._train_steps:
                if done >= self._train_steps:
                    break
                end = min(end, self._train_steps)
            self._estimator.train(self._train_input_fn, hooks=self._train_monitors, max_steps=int(end))
            result = self._evaluate(None)
        return result, self._export(result)

    def test(self) -> Any:
        """Run one training step, one evaluation step and the exports, as a test."""
        self._estimator.train(self._train_input_fn, hooks=self._train_monitors, steps=1)
        result = self._evaluate("one_pass", steps=1)
        return result, self._export(result)


def learn_runner_run(
    experiment_fn: Callable[..., Experiment],
    output_dir: str | None = None,
    schedule: str | None = None,
    run_config: Any = None,
    hparams: Any = None,
) -> Any:
    """Create an experiment and run it.

    Args:
        experiment_fn: Called with `output_dir`, or with `run_config` and `hparams`.
        output_dir: The model directory.
        schedule: The method of `Experiment` to run; by default that of the task in TF_CONFIG, or
            "train_and_evaluate".
        run_config: A RunConfig with a model_dir.
        hparams: Passed to experiment_fn.

    Raises:
        ValueError: Not exactly one of `output_dir` and `run_config` is set, there is no model_dir, or the schedule is
            unknown.
        TypeError: experiment_fn is not a function, or returns no Experiment.
    """
    if (output_dir is None) == (run_config is None):
        raise ValueError("Must set value for `output_dir` or `run_config`, and not for both")
    if not callable(experiment_fn):
        raise TypeError(f'Experiment builder "{experiment_fn}" is not callable.')
    if run_config is not None:
        if not run_config.model_dir:
            raise ValueError("Must specify a model directory `model_dir` in `run_config`.")
        experiment = experiment_fn(run_config, hparams)
    else:
        if hparams is not None:
            raise ValueError("Must set `hparams` as None for `experiment_fn` with `output_dir`.")
        experiment = experiment_fn(output_dir)
    if not hasattr(experiment, "train_and_evaluate"):
        raise TypeError(f"Experiment builder did not return an Experiment instance, got {type(experiment)} instead.")
    config = run_config or experiment.estimator.config
    tasks = config.cluster_spec.as_dict() if config.cluster_spec else {}
    if schedule is None and len(tasks) > 0 and sum(map(len, tasks.values())) > 1:
        schedule = {"ps": "run_std_server", "worker": "train"}.get(config.task_type, "train_and_evaluate")
    method = getattr(experiment, schedule or "train_and_evaluate", None)
    if method is None or (schedule or "").startswith("_"):
        known = [name for name in dir(Experiment) if not name.startswith("_")]
        raise ValueError(f"Schedule references non-existent task {schedule}. Valid tasks are {', '.join(known)}")
    if not callable(method):
        raise TypeError(f"Schedule references non-callable member {schedule}")
    return method()
