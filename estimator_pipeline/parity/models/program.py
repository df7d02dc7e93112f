"""Comparison of a program's Estimator with a Keras model, both named on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.name_mapping import _read, read_mapping
from estimator_pipeline.job.user_code import call_function, describe_type, load_function
from estimator_pipeline.parity.models.compare import compare_models
from estimator_pipeline.parity.result import Parity

__all__ = ["compare_program"]


def compare_program(
    *,
    estimator: str,
    model: str,
    input_fn: str,
    eval_input_fn: str | None = None,
    keras_input_fn: str | None = None,
    keras_eval_input_fn: str | None = None,
    mapping: Path | None = None,
    metric_names: Path | None = None,
    predictions: Sequence[str] = (),
    tolerances: Path | None = None,
    steps: int = 20,
    eval_steps: int | None = None,
    folder: Path | None = None,
) -> Parity:
    """Compare the Estimator and the Keras model that functions return; see `compare_models`.

    Args:
        estimator: `file.py:function` or `module:function` that returns the Estimator.
        model: the function that returns the compiled Keras model.
        input_fn: the training input function.
        eval_input_fn: the evaluation input function.
        keras_input_fn: the Keras model's training input function, if it takes features in a different format.
        keras_eval_input_fn: the Keras model's evaluation input function.
        mapping: a YAML file: Keras weight -> the Estimator's variable.
        metric_names: a YAML file: the Keras model's metric -> the Estimator's.
        predictions: the Estimator's key for the model's output, or OUTPUT=KEY for each of several.
        tolerances: a YAML file: kind or variable -> tolerance, as in the section `parity` of a job file.
        steps: number of training steps.
        eval_steps: number of batches in each evaluation; None: all.
        folder: folder of the runs and their records.

    Raises:
        ConfigError: a function that is missing, fails or returns a wrong type; a file of names that cannot be read;
            arguments that `compare_models` rejects.
        DivergedError: the loss of either is not finite.
    """
    tf: Any = compat.tensorflow()
    # Checks that need no function of the program come first.
    names = None if mapping is None else read_mapping(mapping)
    metrics = None if metric_names is None else read_mapping(metric_names, "acc: accuracy")
    asked = _predictions(predictions)
    allowed = None if tolerances is None else _read(tolerances)
    options = {"--estimator": estimator, "--model": model, "--input-fn": input_fn, "--eval-input-fn": eval_input_fn,
             "--keras-input-fn": keras_input_fn, "--keras-eval-input-fn": keras_eval_input_fn}  # fmt: skip
    references = {option: reference for option, reference in options.items() if reference is not None}
    functions = {option: load_function(reference, field=option) for option, reference in references.items()}

    def build(option: str, kind: Any, name: str) -> Any:
        value = call_function(functions[option], reference=references[option], field=option)
        if not isinstance(value, kind):
            returns = describe_type(value)
            raise ConfigError(
                f"{option}: {references[option]} returns {returns}", code="model/bad-function", hint=f"return a {name}"
            )
        return value

    return compare_models(
        # Estimators of TensorFlow 1 are not instances of tf.estimator.Estimator.
        build("--estimator", tf.compat.v1.estimator.Estimator, "tf.estimator.Estimator"),
        build("--model", tf.keras.Model, "compiled tf.keras.Model"),
        input_fn=functions["--input-fn"],
        eval_input_fn=functions.get("--eval-input-fn"),
        keras_input_fn=functions.get("--keras-input-fn"),
        keras_eval_input_fn=functions.get("--keras-eval-input-fn"),
        mapping=names,
        metric_names=metrics,
        predictions=asked,
        tolerances=allowed,
        steps=steps,
        eval_steps=eval_steps,
        folder=folder,
    )


def _predictions(pairs: Sequence[str]) -> str | dict[str, str] | None:
    if not pairs:
        return None
    if len(pairs) == 1 and "=" not in pairs[0]:
        return pairs[0]
    outputs: dict[str, str] = {}
    for pair in pairs:
        output, _, key = pair.partition("=")
        if not (output and key):
            raise ConfigError(
                f"--predictions {pair} is not OUTPUT=KEY",
                code="argument/bad-value",
                hint="pass KEY for a single output, or OUTPUT=KEY for each",
            )
        if output in outputs:
            raise ConfigError(
                f"--predictions maps the output {output} to two keys",
                code="argument/conflict",
                found=f"{outputs[output]}, {key}",
                hint="keep one of the two",
            )
        outputs[output] = key
    return outputs
