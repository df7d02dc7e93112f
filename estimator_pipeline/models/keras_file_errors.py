"""Error messages for `.keras` files that Keras cannot load, with the names of the layers."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.errors import ConfigError

__all__ = ["ERRORS", "explained"]

ERRORS = (ValueError, TypeError, AttributeError, ImportError, KeyError)
"""The exceptions that Keras raises for a file that it cannot load."""

_UNKNOWN = re.compile(r"(?:Could not locate (?:class|function)|Cannot deserialize object of type) [`']([^`']+)[`']")
_REGISTERED = "@tf.keras.utils.register_keras_serializable()"


def explained(path: str, local: str, error: Exception) -> ConfigError:
    """Return the error for a file that Keras cannot load, with a one-line message.

    Args:
        path: The path of the file, as the user gave it.
        local: The path of its copy on a local disk.
        error: The exception of Keras; one of `ERRORS`.
    """
    text = str(error)
    by_hand = "a function that loads it (export --model FILE.py:FUNCTION; checkpoint takes a .weights.h5 of that model)"
    if "safe_mode" in text:
        names = ", ".join(_lambdas(local))
        return ConfigError(
            f"{path} holds Python code, which Keras does not run from a file"
            + (f": that of the Lambda layer {names}" if names else ""),
            code="model/bad-keras-file",
            hint=f"write the layer as a class with {_REGISTERED}, and save the model again; or, if you trust the file, "
            f"name {by_hand}, by tf.keras.models.load_model(PATH, safe_mode=False)",
        )
    if unknown := _UNKNOWN.search(text):
        return ConfigError(
            f"{path} uses {unknown[1]!r}, which is not a class or function of Keras, and its code is not loaded",
            code="model/bad-keras-file",
            hint=f"name {by_hand}, in a file that also has that code",
        )
    lines = text.strip().splitlines()
    return ConfigError(
        f"Keras cannot load {path}: {lines[0][:300] if lines else type(error).__name__}",
        code="model/bad-keras-file",
        hint=f"load it with the Keras that wrote it, or name {by_hand}",
    )


def _lambdas(local: str) -> list[str]:
    """Return the names of the Lambda layers with code in the file."""
    try:
        with zipfile.ZipFile(local) as archive:
            config = json.loads(archive.read("config.json"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return []
    return list(dict.fromkeys(_in(config)))


def _in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        config = value.get("config")
        if value.get("class_name") == "Lambda" and isinstance(config, dict):
            yield str(config.get("name"))
        for item in value.values():
            yield from _in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _in(item)
