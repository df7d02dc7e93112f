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


_FUNCTIONS = ("estimator", "model", "input_fn", "eval_input_fn", "keras_input_fn", "keras_eval_input_fn")


def compare_program(
    *,
    mapping: Path | None = None,
    metric_names: Path | None = None,
    predictions: Sequence[str] = (),
    tolerances: Path | None = None,
    **options: Any,
) -> Parity:
    """Compare the Estimator and the Keras model that functions return.

    Args:
        mapping: a YAML file: Keras weight -> the Estimator's variable.
        metric_names: a YAML file: the Keras model's metric -> the Estimator's.
        predictions: the Estimator's key for the model's output, or OUTPUT=KEY for each of several.
        tolerances: a YAML file: kind or variable -> tolerance, as in the section `parity` of a job file.
        **options: the other arguments of `compare_models`, functions as `file.py:function` or `module:function`:
            `estimator` and `model` name functions that return these.

    Raises:
        ConfigError: a function that is missing, fails or returns a wrong type; a file of names that cannot be read;
            arguments that `compare_models` rejects.
        DivergedError: the loss of either is not finite.
    """
    tf: Any = compat.tensorflow()
    # Checks that need no function of the program come first.
    options |= {
        "mapping": None if mapping is None else read_mapping(mapping),
        "metric_names": None if metric_names is None else read_mapping(metric_names, "acc: accuracy"),
        "predictions": _predictions(predictions),
        "tolerances": None if tolerances is None else _read(tolerances),
    }
    fields = {name: f"--{name.replace('_', '-')}" for name in _FUNCTIONS if name in options}
    references = {name: options[name] for name in fields}
    options |= {name: load_function(references[name], field=field) for name, field in fields.items()}
    for name, kind, title in (
        # Estimators of TensorFlow 1 are not instances of tf.estimator.Estimator.
        ("estimator", tf.compat.v1.estimator.Estimator, "tf.estimator.Estimator"),
        ("model", tf.keras.Model, "compiled tf.keras.Model"),
    ):
        value = call_function(options[name], reference=references[name], field=fields[name])
        if not isinstance(value, kind):
            raise ConfigError(
                f"{fields[name]}: {references[name]} returns {describe_type(value)}",
                code="model/bad-function",
                hint=f"return a {title}",
            )
        options[name] = value
    return compare_models(**options)


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
