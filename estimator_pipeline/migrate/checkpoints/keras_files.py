"""Keras files: `.keras` with a model, `.weights.h5` with only weights. The Keras that wrote a file must read it."""

from __future__ import annotations

import json
import zipfile
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.state import TrainingState

__all__ = ["save_file", "state_of_file"]


def save_file(model: Any, path: str) -> None:
    """Write a model as `.keras`, or only its weights as `.weights.h5`.

    Raises:
        ConfigError: Keras cannot write the file.
    """
    from estimator_pipeline.models.keras_model import save_keras_model

    try:
        if path.endswith(".keras"):
            save_keras_model(model, path)
        else:
            model.save_weights(path)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Keras cannot write the model as {path.rpartition('.')[2]}: {str(error).strip().splitlines()[0]}",
            code="model/bad-keras-file",
            hint="give a folder: a checkpoint does not require layers with a get_config method",
        ) from error


def state_of_file(path: str, *, model: str | None, option: str = "--source-model") -> TrainingState:
    """Read the state from a Keras file.

    Args:
        path: Path of a local file.
        model: `file.py:function` of the model of a `.weights.h5` file.
        option: The command-line option for `model`.

    Raises:
        ConfigError: The file cannot be read, or is from the other Keras.
    """
    from estimator_pipeline.job.user_code import load_function
    from estimator_pipeline.migrate.checkpoints.targets import KerasTarget
    from estimator_pipeline.models.keras_model import load_keras_model

    if path.endswith(".keras"):
        _check_generation(path)
        return KerasTarget(load_keras_model(path), description=path).state
    if model is None:
        raise ConfigError(
            f"{path} has weights without names",
            code="migrate/bad-checkpoint",
            hint=f"name the function of its model: {option} file.py:function",
        )
    built = load_function(model, field=option)()
    try:
        built.load_weights(path)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{path} does not contain the weights of {model}",
            code="model/bad-keras-file",
            found=str(error).strip().splitlines()[0][:300],
        ) from error
    return KerasTarget(built, description=path).state.only_weights()


def _check_generation(path: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            version = str(json.loads(archive.read("metadata.json"))["keras_version"])
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as a .keras file", code="model/bad-keras-file", found=str(error)[:300]
        ) from error
    generation = 3 if version.startswith("3.") else 2
    if generation != compat.keras_generation():
        name = "keras3" if generation == 3 else "keras"
        raise ConfigError(
            f"{path} was written by Keras {version}, but this process has the other Keras",
            code="tensorflow/wrong-keras",
            hint=f"convert it to a checkpoint first: estimator-pipeline migrate checkpoint {path} --to {name} --model "
            "FILE.py:NAME --output FOLDER; then use that checkpoint",
        )
