"""The known configuration formats, and detection of a file's format by its content."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Document, Path, read_json, read_yaml
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats import (
    arguments,
    cloud_ml_engine,
    command_lines,
    flag_values,
    hparams,
    run_configs,
    sagemaker,
    tables,
    tfjobs,
)
from estimator_pipeline.migrate.configs.python_reprs import LOGGED, read_dump
from estimator_pipeline.utils.text import nearest

__all__ = ["FORMATS", "Format", "read"]


class Format(NamedTuple):
    """A configuration format.

    Attributes:
        name: The value for `--format`.
        description: A description for messages.
        convert: Records the result for each field.
        fits: Returns whether a mapping has this format; None: the format is not a mapping.
        names: Returns the names of the known fields below a path, to suggest names for unknown fields.
    """

    name: str
    description: str
    convert: Callable[[JobDraft], None]
    fits: Callable[[Any, Document], bool] | None = None
    names: Callable[[Path], Iterable[str]] | None = None


def _flat(data: Any) -> bool:
    """Return whether all values are scalars or lists of scalars."""
    if not isinstance(data, dict) or not data:
        return False
    simple = (str, int, float, bool, type(None))
    return all(
        isinstance(value, simple) or (isinstance(value, list) and all(isinstance(v, simple) for v in value))
        for value in data.values()
    )


def _loose(data: Any, document: Document) -> bool:
    other = run_configs.is_run_config(document) or _estimator(data)
    return _flat(data) and document.kind == "json" and not other


def _estimator(data: Any) -> bool:
    """Return whether a mapping has arguments of SageMaker's estimator."""
    return (
        isinstance(data, dict)
        and bool({"train_instance_type", "instance_type"} & set(data))
        and bool({"train_instance_count", "instance_count", "entry_point"} & set(data))
    )


FORMATS: tuple[Format, ...] = (
    Format(
        "run_config",
        "a RunConfig",
        run_configs.convert,
        lambda data, document: run_configs.is_run_config(document),
    ),
    Format(
        "hparams_json",
        "HParams as JSON",
        hparams.convert,
        lambda data, document: _loose(data, document) and not flag_values.has_flag_names(data),
    ),
    Format("hparams", "HParams as text", hparams.convert),
    Format(
        "flags_json",
        "flag values as JSON",
        flag_values.convert,
        lambda data, document: _loose(data, document),
    ),
    Format("flags", "a flag file of gflags or absl", arguments.convert_flags),
    Format(
        "cloud_ml_engine",
        "a job of Cloud ML Engine or AI Platform",
        cloud_ml_engine.convert,
        lambda data, document: isinstance(data, dict) and "trainingInput" in data,
        cloud_ml_engine.names_below,
    ),
    Format(
        "sagemaker",
        "a training job of SageMaker",
        sagemaker.convert_job,
        lambda data, document: (
            isinstance(data, dict)
            and len({"TrainingJobName", "ResourceConfig", "AlgorithmSpecification", "StoppingCondition"} & set(data))
            >= 2
        ),
        tables.names_in(sagemaker.JOB),
    ),
    Format(
        "sagemaker_estimator",
        "arguments of SageMaker's TensorFlow estimator",
        sagemaker.convert_estimator,
        lambda data, document: _estimator(data),
        tables.names_in(sagemaker.ESTIMATOR),
    ),
    Format("shell", "a command line or a script of a shell", command_lines.convert),
    Format(
        "tfjob",
        "a TFJob of Kubeflow",
        tfjobs.convert,
        lambda data, document: tfjobs.is_tfjob(data),
        tables.names_in(tfjobs.FIELDS),
    ),
)
_BY_NAME = {known.name: known for known in FORMATS}


def read(text: str, *, source: str, wanted: str | None = None) -> tuple[Format, Document]:
    """Detect the format of a configuration and parse its content.

    Args:
        text: The content of the file.
        source: The name of the file, for messages.
        wanted: The format, if the user named it.

    Raises:
        ConfigError: No format fits, several formats fit, or the text does not have the format that was named.
    """
    if wanted is not None and wanted not in _BY_NAME:
        close = nearest(wanted, _BY_NAME)
        hint = f"did you mean {close!r}?" if close else "omit it: the format is detected from the content."
        actual = f"allowed: {', '.join(_BY_NAME)}"
        raise ConfigError(
            f"--format {wanted!r}: unknown format.", code="argument/unknown-name", found=actual, hint=hint
        )
    if wanted == "shell" or (wanted is None and command_lines.looks_like_shell(text)):
        return _BY_NAME["shell"], command_lines.read_shell(text, source=source)
    if wanted == "flags" or (wanted is None and arguments.looks_like_flags(text)):
        return _BY_NAME["flags"], arguments.read_flags(text, source=source)
    if wanted == "hparams" or (wanted is None and hparams.is_text(text)):
        return _BY_NAME["hparams"], hparams.read(text, source=source)
    if LOGGED.search(text) and wanted in (None, "run_config"):
        return _BY_NAME["run_config"], read_dump(text, source=source)
    documents = _documents(text, source, wanted)
    if wanted is not None:
        return _wanted(_BY_NAME[wanted], documents, source)
    fits = [(known, document) for document in documents for known in FORMATS if _fits(known, document)]
    if len({known.name for known, _ in fits}) > 1:
        names = " or ".join(f"{known.description} ({known.name})" for known, _ in fits)
        hint = f"name the format: --format {fits[0][0].name} or --format {fits[1][0].name}"
        raise _unknown(f"{source} may be {names}", f"the fields {_fields(documents)}", hint)
    if len(fits) > 1:
        problem = f"{source} has {len(fits)} documents of the format {fits[0][0].name}"
        raise _unknown(problem, None, "write each document to a separate file")
    if not fits:
        raise _none_fits(documents, source)
    return fits[0]


def _unknown(problem: str, actual: str | None, hint: str) -> ConfigError:
    return ConfigError(f"{problem}.", code="migrate/unknown-format", found=actual, hint=f"{hint}.")


def _fits(known: Format, document: Document) -> bool:
    return known.fits is not None and known.fits(document.data, document)


def _documents(text: str, source: str, wanted: str | None) -> list[Document]:
    first = text.lstrip()[:1]
    if first not in "{[":
        return read_yaml(text, source=source)
    try:
        return [read_json(text, source=source)]
    except ConfigError as error:
        # A printed Python dict starts with a quoted name, and so does YAML in braces, which is tried last.
        printed = re.match(r"\s*\{\s*'", text)
        if printed and wanted in (None, "run_config") and re.match(r"\s*\{\s*'_?[a-z]\w*'\s*:", text):
            return [_printed(text, source)]
        if first == "{" and not printed and not re.match(r'\s*\{\s*("|\})', text):
            return read_yaml(text, source=source)
        raise error from None


def _printed(text: str, source: str) -> Document:
    """Read a printed dict of literals, or a RunConfig with protocol buffers."""
    document = read_dump(text, source=source)
    try:
        ast.literal_eval(text.strip())
        document.kind = "json"
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass
    return document


def _wanted(known: Format, documents: list[Document], source: str) -> tuple[Format, Document]:
    mappings = [document for document in documents if isinstance(document.data, dict)]
    if known.names:
        mappings = [document for document in mappings if set(document.data) & set(known.names(()))]
    matching = [document for document in mappings if _fits(known, document)]
    actual = None
    if len(matching or mappings) != 1:
        actual = "no mapping with its fields" if not mappings else f"{len(mappings)} documents"
    elif known.name in ("hparams_json", "flags_json") and not _flat(mappings[0].data):
        nested = next((name for name, value in mappings[0].data.items() if not _flat({name: value})), None)
        actual = f"the field {nested!r} is a mapping" if nested else "no fields"
    if actual:
        raise _unknown(f"{source} is not {known.description}", actual, "name a different file, or omit --format")
    return known, (matching or mappings)[0]


def _fields(documents: list[Document]) -> str:
    names = [str(name) for document in documents if isinstance(document.data, dict) for name in document.data]
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _none_fits(documents: list[Document], source: str) -> ConfigError:
    for document in documents:
        if isinstance(document.data, dict) and {"model", "input", "run"} <= set(document.data):
            actual = f"the sections {_fields([document])}"
            return _unknown(f"{source} is already a job file", actual, f"run it: estimator-pipeline launch {source}")
    content = f"the fields {_fields(documents)}" if _fields(documents) else "no mapping of names and values"
    actual = f"{content}; known: {', '.join(_BY_NAME)}"
    return _unknown(f"{source} has no known format", actual, "name the format: --format NAME")
