"""Arguments of a comparison of programs: Estimator, Keras model, and their input functions."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.arguments import check_count
from estimator_pipeline.parity.models.input_fns import ComparedInputFn

__all__ = ["InputFns", "check_arguments"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFns:
    """The input functions of both sides.

    Attributes:
        training, evaluation: the Estimator's; None: nothing is evaluated.
        keras_training, keras_evaluation: Keras's; the Estimator's by default.
        functions: argument -> function, as passed.
        eval_steps: number of batches in each evaluation; None: all.
    """

    training: ComparedInputFn
    keras_training: ComparedInputFn
    evaluation: ComparedInputFn | None
    keras_evaluation: ComparedInputFn | None
    functions: Mapping[str, Any]
    eval_steps: int | None = None

    @property
    def differ(self) -> bool:
        """Whether Keras has a separate training input function."""
        return self.keras_training is not self.training

    @property
    def differ_in_evaluation(self) -> bool:
        """Whether Keras has a separate evaluation input function."""
        return self.keras_evaluation is not self.evaluation

    @classmethod
    def of(
        cls, estimator: Any, input_fn: Any, eval_input_fn: Any, keras_input_fn: Any, keras_eval: Any,
        eval_steps: int | None = None,
    ) -> InputFns:  # fmt: skip
        """Return the input functions from the arguments of a comparison.

        Raises:
            ConfigError: a function is missing, or is not callable.
        """
        modes = compat.tensorflow().estimator.ModeKeys

        def feed(name: str, function: Any, mode: str) -> ComparedInputFn | None:
            batches = eval_steps if mode == modes.EVAL else None
            return (
                None
                if function is None
                else ComparedInputFn(function, name=name, estimator=estimator, mode=mode, batches=batches)
            )

        if input_fn is None:
            raise ConfigError(
                "input_fn is missing", code="argument/missing", hint="pass the function of the training data"
            )
        if keras_eval is not None and eval_input_fn is None:
            raise ConfigError(
                "keras_eval_input_fn is set, and nothing is evaluated",
                code="argument/not-applicable",
                hint="pass eval_input_fn (--eval-input-fn)",
            )
        if eval_steps is not None and eval_input_fn is None:
            raise ConfigError(
                f"eval_steps={eval_steps} is set, and nothing is evaluated",
                code="argument/not-applicable",
                hint="pass eval_input_fn (--eval-input-fn), or leave out eval_steps (--eval-steps)",
            )
        training = ComparedInputFn(input_fn, name="input_fn", estimator=estimator, mode=modes.TRAIN)
        evaluation = feed("eval_input_fn", eval_input_fn, modes.EVAL)
        functions = {"input_fn": input_fn, "eval_input_fn": eval_input_fn, "keras_input_fn": keras_input_fn,
                 "keras_eval_input_fn": keras_eval}  # fmt: skip
        return cls(
            training=training,
            keras_training=feed("keras_input_fn", keras_input_fn, modes.TRAIN) or training,
            evaluation=evaluation,
            keras_evaluation=feed("keras_eval_input_fn", keras_eval, modes.EVAL) or evaluation,
            functions={name: function for name, function in functions.items() if function is not None},
            eval_steps=eval_steps,
        )


def check_arguments(estimator: Any, model: Any, steps: Any, eval_steps: Any = None) -> None:
    """Check that the arguments are an Estimator, a compiled Keras model, and numbers of steps.

    Raises:
        ConfigError: they are not.
    """
    tf: Any = compat.tensorflow()
    # Estimators of TensorFlow 1 are not instances of tf.estimator.Estimator.
    kinds = (("estimator", estimator, tf.compat.v1.estimator.Estimator, "tf.estimator.Estimator"),
             ("model", model, tf.keras.Model, "compiled tf.keras.Model of Keras 2"))  # fmt: skip
    for argument, value, kind, expected in kinds:
        if not isinstance(value, kind):
            is_function = inspect.isroutine(value) or isinstance(value, functools.partial)
            raise ConfigError(
                f"{argument} is not a {expected}",
                code="argument/bad-value",
                found=f"a {type(value).__module__}.{type(value).__name__}",
                hint=f"call it, and pass its result: {argument}={getattr(value, '__name__', 'function')}()"
                if is_function
                else f"pass a {expected}",
            )
    check_count(steps, "steps")
    check_count(eval_steps, "eval_steps")
    if getattr(model, "optimizer", None) is None:
        raise ConfigError(
            "the Keras model is not compiled",
            code="parity/not-comparable",
            hint="model.compile(optimizer, loss, metrics)",
        )
    # Keras has no public name for it; in a strategy it is a distributed variable.
    is_tuned = getattr(model, "_autotune_steps_per_execution", False)
    at_once = "auto" if is_tuned else int(tf.convert_to_tensor(model._steps_per_execution))
    if at_once != 1:
        raise ConfigError(
            f"the Keras model is compiled with steps_per_execution={at_once!r}",
            code="parity/not-comparable",
            found="single steps cannot be recorded within one call of several",
            hint="compile it without steps_per_execution for the comparison: it changes no number",
        )
