"""A program's Estimator against a Keras model, both named on the command line."""

from __future__ import annotations

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
    mapping: Path | None = None,
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
        mapping: a YAML file: Keras weight -> the Estimator's variable.
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
        mapping=names,
        steps=steps,
        folder=folder,
    )


def read_mapping(path: Path) -> dict[str, str]:
    """A YAML file of Keras weight -> the Estimator's variable.

    Raises:
        ConfigError: it is not there, or holds something else.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in found.items()):
        raise ConfigError(
            f"{path} is no mapping of names to names",
            found=repr(found)[:200],
            mend="a line for each weight, such as dense/kernel: fc1/weights",
        )
    return found
