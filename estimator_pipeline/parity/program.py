"""A program's Estimator against a Keras model, both named on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.parity.models import compare_models
from estimator_pipeline.parity.result import Parity

__all__ = ["compare_program", "read_mapping"]


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
    folder: Path | None = None,
) -> Parity:
    """Compares what the functions of a program make; see :func:`estimator_pipeline.parity.compare_models`.

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
        folder: where the runs and their records go.

    Raises:
        ConfigError: a function that is not there, one that returns something else, a mapping that cannot be read.
    """
    from estimator_pipeline.engines.job import load_function

    tf = compat.install()
    names = None if mapping is None else read_mapping(mapping)

    def function(reference: str | None, option: str) -> Any:
        return None if reference is None else load_function(reference, field=option)

    def made(reference: str, option: str, kind: Any) -> Any:
        found = function(reference, option)()
        if not isinstance(found, kind):
            raise ConfigError(
                f"{option}: {reference} returns a {type(found).__name__}", mend=f"return a {kind.__name__}"
            )
        return found

    return compare_models(
        made(estimator, "--estimator", tf.estimator.Estimator),
        made(model, "--model", tf.keras.Model),
        input_fn=function(input_fn, "--input-fn"),
        eval_input_fn=function(eval_input_fn, "--eval-input-fn"),
        keras_input_fn=function(keras_input_fn, "--keras-input-fn"),
        keras_eval_input_fn=function(keras_eval_input_fn, "--keras-eval-input-fn"),
        mapping=names,
        metric_names=None if metric_names is None else read_mapping(metric_names),
        predictions=_predictions(predictions),
        tolerances=None if tolerances is None else _read(tolerances),
        steps=steps,
        folder=folder,
    )


def read_mapping(path: Path) -> dict[str, str]:
    """A YAML file of Keras weight -> the Estimator's variable.

    Raises:
        ConfigError: it is not there, or holds something else.
    """
    found = _read(path)
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in found.items()):
        raise ConfigError(
            f"{path} is no mapping of names to names",
            found=repr(found)[:200],
            mend="a line for each weight, such as dense/kernel: fc1/weights",
        )
    return found


def _predictions(given: Sequence[str]) -> str | dict[str, str] | None:
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [one.partition("=") for one in given]
    wrong = [one for one, (output, _, key) in zip(given, pairs, strict=True) if not (output and key)]
    if wrong:
        raise ConfigError(
            f"--predictions {wrong[0]} is no OUTPUT=KEY", mend="give KEY alone for one output, or OUTPUT=KEY for each"
        )
    return {output: key for output, _, key in pairs}


def _read(path: Path) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
