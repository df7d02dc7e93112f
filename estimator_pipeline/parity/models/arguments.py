"""What a comparison of two programs is given: the two, and the functions of their data."""

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
    """The data of both.

    Attributes:
        training, evaluation: the Estimator's; None: nothing is evaluated.
        keras_training, keras_evaluation: Keras's, which are the Estimator's where it has none of its own.
        given: argument -> function, as they were given.
        eval_steps: how many batches each evaluates; None: all.
    """

    training: ComparedInputFn
    keras_training: ComparedInputFn
    evaluation: ComparedInputFn | None
    keras_evaluation: ComparedInputFn | None
    given: Mapping[str, Any]
    eval_steps: int | None = None

    @property
    def differ(self) -> bool:
        """Whether Keras trains on data of its own."""
        return self.keras_training is not self.training

    @property
    def differ_in_evaluation(self) -> bool:
        """The same of the evaluation."""
        return self.keras_evaluation is not self.evaluation

    @classmethod
    def of(
        cls, estimator: Any, input_fn: Any, eval_input_fn: Any, keras_input_fn: Any, keras_eval: Any,
        eval_steps: int | None = None,
    ) -> InputFns:  # fmt: skip
        """From the arguments of a comparison.

        Raises:
            ConfigError: one is missing, or is no function that can be called.
        """
        modes = compat.tensorflow().estimator.ModeKeys

        def feed(name: str, given: Any, mode: str) -> ComparedInputFn | None:
            batches = eval_steps if mode == modes.EVAL else None
            return (
                None
                if given is None
                else ComparedInputFn(given, name=name, estimator=estimator, mode=mode, batches=batches)
            )

        if input_fn is None:
            raise ConfigError(
                "input_fn is None", code="argument/missing", hint="give the function of the training data"
            )
        if keras_eval is not None and eval_input_fn is None:
            raise ConfigError(
                "keras_eval_input_fn was given, and nothing is evaluated",
                code="argument/not-applicable",
                hint="give eval_input_fn (--eval-input-fn)",
            )
        if eval_steps is not None and eval_input_fn is None:
            raise ConfigError(
                f"eval_steps={eval_steps} batches were to be evaluated, and nothing is evaluated",
                code="argument/not-applicable",
                hint="give eval_input_fn (--eval-input-fn), or leave eval_steps (--eval-steps) out",
            )
        training = ComparedInputFn(input_fn, name="input_fn", estimator=estimator, mode=modes.TRAIN)
        evaluation = feed("eval_input_fn", eval_input_fn, modes.EVAL)
        given = {"input_fn": input_fn, "eval_input_fn": eval_input_fn, "keras_input_fn": keras_input_fn,
                 "keras_eval_input_fn": keras_eval}  # fmt: skip
        return cls(
            training=training,
            keras_training=feed("keras_input_fn", keras_input_fn, modes.TRAIN) or training,
            evaluation=evaluation,
            keras_evaluation=feed("keras_eval_input_fn", keras_eval, modes.EVAL) or evaluation,
            given={name: function for name, function in given.items() if function is not None},
            eval_steps=eval_steps,
        )


def check_arguments(estimator: Any, model: Any, steps: Any, eval_steps: Any = None) -> None:
    """Refuses what is no Estimator, no compiled Keras model or no number of steps.

    Raises:
        ConfigError: as said.
    """
    tf: Any = compat.tensorflow()
    # Those of TensorFlow 1 are not of the class that tf.estimator.Estimator is.
    kinds = (("estimator", estimator, tf.compat.v1.estimator.Estimator, "tf.estimator.Estimator"),
             ("model", model, tf.keras.Model, "compiled tf.keras.Model of Keras 2"))  # fmt: skip
    for argument, given, kind, what in kinds:
        if not isinstance(given, kind):
            is_function = inspect.isroutine(given) or isinstance(given, functools.partial)
            raise ConfigError(
                f"{argument} is no {what}",
                code="argument/bad-value",
                found=f"a {type(given).__module__}.{type(given).__name__}",
                hint=f"call it, and give what it returns: {argument}={getattr(given, '__name__', 'function')}()"
                if is_function
                else f"give a {what}",
            )
    check_count(steps, "steps")
    check_count(eval_steps, "eval_steps")
    if getattr(model, "optimizer", None) is None:
        raise ConfigError(
            "the Keras model is not compiled",
            code="parity/not-comparable",
            hint="model.compile(optimizer, loss, metrics)",
        )
    # Keras tells what it was compiled with by no public name; in a strategy it is a variable of several parts.
    is_tuned = getattr(model, "_autotune_steps_per_execution", False)
    at_once = "auto" if is_tuned else int(tf.convert_to_tensor(model._steps_per_execution))
    if at_once != 1:
        raise ConfigError(
            f"the Keras model is compiled with steps_per_execution={at_once!r}",
            code="parity/not-comparable",
            found="of steps that are made in one go the single ones cannot be recorded",
            hint="compile it without steps_per_execution for the comparison: it changes no number",
        )
