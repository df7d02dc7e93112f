"""A program's Estimator against a Keras model, both named on the command line."""

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
    """Compare what the functions of a program make; see `estimator_pipeline.parity.compare_models`.

    Args:
        estimator: `file.py:function` or `module:function` that returns the Estimator.
        model: of the function that returns the compiled Keras model.
        input_fn: of the training's input function.
        eval_input_fn: of the evaluation's.
        keras_input_fn: of one for the Keras model, where it takes its features in another form.
        keras_eval_input_fn: the same of the evaluation's.
        mapping: a YAML file: Keras weight -> the Estimator's variable.
        metric_names: a YAML file: the Keras model's metric -> the Estimator's.
        predictions: the Estimator's key for the model's output, or OUTPUT=KEY for each of several.
        tolerances: a YAML file: what is compared -> a tolerance, as in the section `parity` of a job file.
        steps: training steps.
        eval_steps: how many batches each evaluates; None: all.
        folder: where the runs and their records go.

    Raises:
        ConfigError: a function that is not there, fails or returns something else; a file of names that cannot be read;
            what `compare_models` refuses.
        DivergedError: the loss of either has come to a number that is none.
    """
    tf: Any = compat.tensorflow()
    # What can be refused without a function of the program comes first.
    names = None if mapping is None else read_mapping(mapping)
    metrics = None if metric_names is None else read_mapping(metric_names, "acc: accuracy")
    asked = _predictions(predictions)
    allowed = None if tolerances is None else _read(tolerances)
    given = {"--estimator": estimator, "--model": model, "--input-fn": input_fn, "--eval-input-fn": eval_input_fn,
             "--keras-input-fn": keras_input_fn, "--keras-eval-input-fn": keras_eval_input_fn}  # fmt: skip
    references = {option: reference for option, reference in given.items() if reference is not None}
    functions = {option: load_function(reference, field=option) for option, reference in references.items()}

    def made(option: str, kind: Any, name: str) -> Any:
        found = call_function(functions[option], reference=references[option], field=option)
        if not isinstance(found, kind):
            returns = describe_type(found)
            raise ConfigError(
                f"{option}: {references[option]} returns {returns}", code="model/bad-function", hint=f"return a {name}"
            )
        return found

    return compare_models(
        # Estimators of TensorFlow 1 are not of the class that tf.estimator.Estimator is.
        made("--estimator", tf.compat.v1.estimator.Estimator, "tf.estimator.Estimator"),
        made("--model", tf.keras.Model, "compiled tf.keras.Model"),
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


def _predictions(given: Sequence[str]) -> str | dict[str, str] | None:
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    found: dict[str, str] = {}
    for one in given:
        output, _, key = one.partition("=")
        if not (output and key):
            raise ConfigError(
                f"--predictions {one} is no OUTPUT=KEY",
                code="argument/bad-value",
                hint="give KEY alone for one output, or OUTPUT=KEY for each",
            )
        if output in found:
            raise ConfigError(
                f"--predictions gives the output {output} two keys",
                code="argument/conflict",
                found=f"{found[output]}, {key}",
                hint="keep one of the two",
            )
        found[output] = key
    return found
