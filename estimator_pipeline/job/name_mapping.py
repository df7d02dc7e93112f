"""YAML files that map names to names, such as Keras weights to an Estimator's variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.io_errors import code_of

__all__ = ["read_mapping"]


def read_mapping(path: Path, example: str = "dense/kernel: fc1/weights") -> dict[str, str]:
    """Read a YAML file that maps Keras weights to the Estimator's variables, or other names to names.

    Args:
        path: The file.
        example: An example line, for messages.

    Raises:
        ConfigError: The file cannot be read, or is not such a mapping.
    """
    mapping = _read(path)
    if not isinstance(mapping, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in mapping.items()):
        raise ConfigError(
            f"{path} is not a mapping of names to names",
            code="file/bad-format",
            found="nothing" if mapping is None else repr(mapping)[:200],
            hint=f"write a line for each name, such as {example}",
        )
    return mapping


def _read(path: Path) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from estimator_pipeline.job.loading import yaml_error

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}", code=code_of(error), hint="name a YAML file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text: {error.reason}", code="file/unreadable", hint="save it as UTF-8"
        ) from error
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError) as error:
        raise yaml_error(error, text, source=str(path)) from error
