"""Comparison of a program with its conversion by `migrate convert`, described by a file of functions."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.bootstrap.keras3 import fresh_names
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.tolerances import Tolerances
from estimator_pipeline.parity.models.arguments import InputFns
from estimator_pipeline.parity.models.compare import compare_models
from estimator_pipeline.parity.models.keras_3 import compare_keras_3, shapes_of_tensorflow_2
from estimator_pipeline.parity.models.layers import is_keras_3
from estimator_pipeline.parity.result import Parity

__all__ = ["check_proof", "compare_conversion"]

_ASKED = ("estimator", "model", "input_fn")
_OF_DATA = ("eval_input_fn", "keras_input_fn", "keras_eval_input_fn")
_DATA = ("input_fn", *_OF_DATA)
_OF_MODEL = ("mapping", "metric_names", "predictions")


def check_proof(proof: Path, program: Path) -> None:
    """Check the files before the conversion.

    Raises:
        ConfigError: the file is missing, or the program is a folder or a notebook.
    """
    if program.is_dir():
        raise ConfigError(
            f"--parity compares one file with its conversion, and {program} is a folder", code="argument/not-applicable"
        )
    if program.suffix == ".ipynb":
        raise ConfigError(
            f"--parity imports the program and its conversion, and {program} is a notebook",
            code="argument/not-applicable",
            hint="save its code as a Python file, and convert that",
        )
    if not proof.is_file():
        raise ConfigError(f"--parity: there is no file {proof}", code="file/not-found", hint=_hint())


def compare_conversion(
    program: Path, converted: Path, proof: Path, *, steps: int = 20, folder: Path | None = None,
    of_tensorflow_1: bool = False, beside: Path | None = None,
) -> Parity:  # fmt: skip
    """Train a program's Estimator and its converted model on the same records, and compare each step.

    Args:
        program, converted: the two files. Both are imported in this process; code under `__main__` is not run.
        proof: a file with `estimator(program)`, `model(converted)` and `input_fn(program)`, which receive the two files
            as modules; optionally also `eval_input_fn(program)`, `keras_input_fn(converted)`,
            `keras_eval_input_fn(converted)`, and `mapping(model)`, `metric_names(model)`, `predictions(model)`, with
            the names of the Keras model; see `estimator_pipeline.parity.compare_models`.
        steps: number of training steps.
        of_tensorflow_1: whether the program was written for TensorFlow 1, and `program` has the new names: shapes and
            tensors then behave as in TensorFlow 1. Eager execution remains enabled.
        beside: the folder of the program, if `program` is in a different one.

    Raises:
        ConfigError: a file that cannot be imported, a function that is missing or returns a wrong type.
    """
    tf = compat.tensorflow()
    functions_of_proof = _module(proof, "parity_proof")
    missing = [name for name in _ASKED if not callable(getattr(functions_of_proof, name, None))]
    if missing:
        raise ConfigError(f"{proof} has no function {missing[0]}", code="job/bad-function", hint=_hint())
    if of_tensorflow_1:
        tf.compat.v1.disable_v2_tensorshape()
        tf.compat.v1.disable_tensor_equality()
    theirs = _module(program, "program_before", beside)
    ours = _module(converted, "program_made")
    functions: dict[str, Any] = {
        name: getattr(functions_of_proof, name, None) for name in (*_ASKED, *_OF_DATA, *_OF_MODEL)
    }
    # The Keras model's initial values follow from this seed.
    tf.keras.utils.set_random_seed(1)
    with_keras_3 = str(getattr(sys.modules.get("keras"), "__version__", "")).startswith("3.")
    # The names of layers match those of the Estimator only if no earlier model is counted.
    numbered = fresh_names() if with_keras_3 else contextlib.nullcontext()
    with numbered, shapes_of_tensorflow_2(of_tensorflow_1):
        model = _model(functions["model"], ours, proof, converted)
    estimator = functions["estimator"](theirs)
    for name, value, kind in (
        ("model", model, tf.keras.Model if not is_keras_3(model) else type(model)),
        ("estimator", estimator, tf.compat.v1.estimator.Estimator),
    ):
        if not isinstance(value, kind):
            raise ConfigError(
                f"{proof}: {name} returns a {type(value).__name__}",
                code="job/bad-function",
                hint=f"return a {kind.__name__}",
            )

    def bound(name: str, module: Any) -> Any:
        return None if functions[name] is None else lambda: functions[name](module)

    data = {name: bound(name, theirs if name in ("input_fn", "eval_input_fn") else ours) for name in _DATA}
    if is_keras_3(model):
        read = InputFns.of(estimator, *(data[name] for name in _DATA))
        mapping = functions["mapping"](model) if functions["mapping"] is not None else {}
        return compare_keras_3(estimator, model, read, Tolerances.of(None), steps, mapping, folder, old=of_tensorflow_1)
    return compare_models(
        estimator,
        model,
        **data,
        steps=steps,
        **{name: functions[name](model) for name in _OF_MODEL if functions[name] is not None},
    )


def _model(function: Any, module: Any, proof: Path, converted: Path) -> Any:
    """Return the Keras model that a proof file builds from the converted file."""
    try:
        return function(module)
    except AttributeError as error:
        if error.obj is not module:
            raise
        raise ConfigError(
            f"{proof}: the function model uses {error.name}, which {converted} does not define",
            code="job/bad-function",
            hint="use a name that the converted file defines",
        ) from error


def _hint() -> str:
    return (
        "write a file with the functions estimator(program), model(made) and input_fn(program): the Estimator, the "
        "compiled Keras model, and the training data of both, in the same order each time"
    )


def _module(path: Path, name: str, beside: Path | None = None) -> Any:
    """Import a file under a module name, with its folder importable."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", code="file/bad-format")
    module = importlib.util.module_from_spec(spec)
    with _called_as(path, beside or path.resolve().parent):
        try:
            spec.loader.exec_module(module)
        except SystemExit as ended:
            raise ConfigError(
                f"{path} ends when it is imported, with code {ended.code}",
                code="job/bad-function",
                hint='read the command line under `if __name__ == "__main__":`',
            ) from ended
        except Exception as error:
            raise ConfigError(
                f"{path} cannot be imported: {type(error).__name__}: {error}", code="job/bad-function"
            ) from error
    return module


@contextmanager
def _called_as(path: Path, folder: Path) -> Iterator[None]:
    """Set the command line and the import folder of a program without arguments within the block."""
    words, sys.argv = sys.argv, [str(path)]
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.argv = words
        sys.path.remove(str(folder.resolve()))
