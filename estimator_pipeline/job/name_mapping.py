"""Which name stands for which, as a file says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.io_errors import code_of

__all__ = ["read_mapping"]


def read_mapping(path: Path, example: str = "dense/kernel: fc1/weights") -> dict[str, str]:
    """A YAML file of Keras weight -> the Estimator's variable, or of other names to names.

    Args:
        path: the file.
        example: a line of such a file.

    Raises:
        ConfigError: it is not there, or holds something else.
    """
    found = _read(path)
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in found.items()):
        raise ConfigError(
            f"{path} is no mapping of names to names",
            code="file/bad-format",
            found="nothing" if found is None else repr(found)[:200],
            hint=f"a line for each, such as {example}",
        )
    return found


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
