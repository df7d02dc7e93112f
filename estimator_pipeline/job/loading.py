"""Reading and writing of job files: YAML with line numbers, `--set` overrides, one message for all mistakes."""

from __future__ import annotations

import io
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedBase
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.error_messages import Path, Places, config_error, problems_error
from estimator_pipeline.job.placeholders import placeholders_in
from estimator_pipeline.job.schema import Job
from estimator_pipeline.utils.io_errors import code_of

__all__ = ["JOB_FILE", "apply_override", "dump_job", "load_job", "make_job", "yaml_error"]

JOB_FILE = "job.yaml"
"""The name of a resolved job, as `dump_job` writes it for the tasks of a launch or a submission."""

# A job file is a page long. A larger file is not a job file, or would fill the memory: YAML aliases can repeat one
# value a million times.
MOST_BYTES = 1024 * 1024
MOST_VALUES = 100_000
DEEPEST = 100
_TOO_DEEP = re.compile(rf"(?:[\[{{]\s*){{{DEEPEST + 1}}}")


def load_job(path: str | pathlib.Path, *, overrides: Sequence[str] = ()) -> Job:
    """Read and check a job file.

    Args:
        path: The YAML file.
        overrides: "dotted.key=value", the value in YAML: `train.max_steps=100`, `run.devices=[a, b]`,
            `eval.exporters.0.name=x`. Applied in order, they replace fields of the file or add to them.

    Returns:
        The job, with every field set.

    Raises:
        ConfigError: The file cannot be read, or has mistakes. One message lists them all, each with line,
            column, field, the value found and the allowed values.
    """
    path = pathlib.Path(path)
    source = str(path)
    data, places = _read(_text_of(path), source=source)
    for override in overrides:
        apply_override(override, data, places)
    job = _build(data, places)
    return job if "name" in data else job.model_copy(update={"name": path.stem})


def make_job(data: Mapping[str, Any], *, source: str = "the job", overrides: Sequence[str] = ()) -> Job:
    """Check a job that is already a mapping.

    Args:
        data: The content of a job file; not modified.
        source: The prefix of messages.
        overrides: As for `load_job`.

    Raises:
        ConfigError: As for `load_job`, without lines.
    """
    places = Places(source)
    plain = _plain(data, (), places, ())
    for override in overrides:
        apply_override(override, plain, places)
    return _build(plain, places)


def dump_job(job: Job, *, defaults: bool = False) -> str:
    """Return the YAML text of a job file; `load_job` reads the same job from it.

    Args:
        job: The job.
        defaults: Whether to include the fields that have their default value.

    Raises:
        ConfigError: The text would be too large for `load_job`.
    """
    data = {"name": job.name, **job.model_dump(exclude_defaults=not defaults)}
    text = _yaml_text(data)
    if "\x85" in text:
        # ruamel does not escape this character, and reads it as a line break.
        text = _yaml_text(data, allow_unicode=False)
    if len(text.encode()) > MOST_BYTES:
        raise ConfigError(
            f"the job {job.name!r} is too large.",
            code="file/unreadable",
            found=f"more than {MOST_BYTES // 1024} KiB with each value on a line and all aliases replaced",
            hint="move a vocabulary or a table to a separate file.",
        )
    return text


def _yaml_text(data: Mapping[str, Any], *, allow_unicode: bool = True) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = allow_unicode
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None there
    yaml.width = 110
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _text_of(path: pathlib.Path) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ConfigError(
                f"the job file {str(path)!r} is too large.",
                code="file/unreadable",
                found=f"more than {MOST_BYTES // 1024} KiB",
                hint="name a job file, and move a vocabulary or a table to a separate file.",
            )
        return raw.decode("utf-8")
    except OSError as error:
        beside = sorted(other.name for other in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise ConfigError(
            f"the job file {str(path)!r} cannot be read: {error.strerror or error}.",
            code=code_of(error),
            found=f"in {str(path.parent)!r}: {', '.join(beside[:12]) or 'no YAML file'}",
            hint="name an existing YAML file; a relative path starts at the working directory.",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the job file {str(path)!r} is not UTF-8 text: {error.reason} at byte {error.start}.",
            code="file/unreadable",
            hint="save it as UTF-8.",
        ) from None


def _read(text: str, *, source: str) -> tuple[dict[str, Any], Places]:
    places = Places(source)
    if not text.strip():
        raise ConfigError(
            f"{source} is empty.",
            code="job/not-yaml",
            found="no text",
            hint="write at least the sections model, input and run; legacy_configs holds examples.",
        )
    data = _plain(_parse(text, source=source), (), places, ())
    if not isinstance(data, dict):
        raise ConfigError(
            f"{source} does not hold a mapping at its top level.",
            code="job/not-yaml",
            found=f"{data!r:.60}; allowed: the sections {', '.join(Job.model_fields)}",
            hint="write `model:`, `input:`, `run:` and so on, each at the start of a line.",
        )
    return data, places


def _parse(text: str, *, source: str) -> Any:
    try:
        if _TOO_DEEP.search(text):
            raise RecursionError
        # Only the round-trip loader keeps line numbers. It creates no Python objects from tags.
        return YAML(typ="rt", pure=True).load(text)
    except RecursionError:
        raise ConfigError(
            f"{source}: its values are nested too deep.",
            code="job/not-yaml",
            found=f"allowed: {DEEPEST} levels",
            hint="use fewer nested lists and mappings.",
        ) from None
    except (YAMLError, ValueError) as error:
        raise yaml_error(error, text, source=source) from None


def yaml_error(error: Exception, text: str, *, source: str) -> ConfigError:
    """Return an error of ruamel or of a scalar's constructor as a message with its line."""
    if not isinstance(error, MarkedYAMLError):
        return ConfigError(
            f"{source}: this is not YAML: {str(error).splitlines()[0]}.",
            code="job/not-yaml",
            hint="save the file as plain text, and quote dates and special characters.",
        )
    mark = error.problem_mark or error.context_mark
    place = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
    line = text.splitlines()[mark.line].strip() if mark and mark.line < len(text.splitlines()) else ""
    message = str(error.problem or error.context).splitlines()[0].strip()
    twice = re.match(r"found duplicate key \"(.*?)\" with", message)
    if twice:
        message = f"the key {twice[1]!r} appears twice in one mapping"
    return ConfigError(
        f"{place}: {message}." if twice else f"{place}: this is not YAML: {message}.",
        code="job/not-yaml",
        found=f"the line {line!r:.90}" if line else None,
        hint="keep one of the two."
        if twice
        else "correct this line or the one above it; indent with spaces, and quote "
        "text that contains ': ' or starts with a special character.",
    )


def _plain(value: Any, path: Path, places: Places, above: tuple[int, ...]) -> Any:
    """Convert ruamel's values to plain Python values, and record their lines in `places`."""
    if id(value) in above:
        raise ConfigError(
            f"{places.of(path)}: {'.'.join(map(str, path))}: the value contains itself.",
            code="job/not-yaml",
            found="a mapping or list inside itself",
            hint="write the inner value out.",
        )
    above = (*above, id(value))
    places.count += 1
    if places.count > MOST_VALUES or len(path) > DEEPEST:
        raise ConfigError(
            f"{places.of(path[:1])}: {'.'.join(map(str, path[:1]))}: there are too many values below it.",
            code="job/not-yaml",
            found=f"allowed: {MOST_VALUES} values, aliases followed, and {DEEPEST} levels",
            hint="use fewer values, and move a vocabulary or a table to a separate file.",
        )
    if isinstance(value, Mapping):
        result = {}
        for key, item in value.items():
            places.note(value, key, path)
            if not isinstance(key, str):
                raise ConfigError(
                    f"{places.of((*path, str(key)))}: the key {key!r} is not text.",
                    code="job/not-yaml",
                    found=f"a key of type {type(key).__name__} in {'.'.join(map(str, path)) or 'the job'}",
                    hint=f'write it in quotes: "{key}".',
                )
            result[str(key)] = _plain(item, (*path, str(key)), places, above)
        return result
    if isinstance(value, (list, tuple)):
        for i in range(len(value)):
            places.note(value, i, path)
        return [_plain(item, (*path, i), places, above) for i, item in enumerate(value)]
    if isinstance(value, (bool, ScalarBoolean)):
        return bool(value)
    kinds: tuple[type, ...] = (int, float, str)
    for kind in kinds:
        # ruamel's subclasses of these record how the number or text was written.
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    raise ConfigError(
        f"{places.of(path)}: {'.'.join(map(str, path))}: no field accepts a value of this type.",
        code="job/wrong-type",
        found=f"{_tag_or_type(value)}; allowed: text, numbers, true, false, null, lists and mappings",
        hint="put the value in quotes if it is text.",
    )


def _tag_or_type(value: Any) -> str:
    tag = getattr(value, "tag", None) if isinstance(value, CommentedBase) or hasattr(value, "tag") else None
    return f"the tag {tag.value}" if tag is not None and tag.value else f"a {type(value).__name__}"


def apply_override(override: str, data: dict[str, Any], places: Places) -> None:
    """Apply one "dotted.key=value" to the data, and create missing mappings."""
    label = f"--set {override}"
    dotted, equals, text = override.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not equals or not all(keys):
        raise ConfigError(
            f"{label}: this is not of the form key=value.",
            code="job/bad-override",
            found=f"{override!r}; allowed: dotted keys, an equals sign and a value in YAML",
            hint="write for example --set train.max_steps=100.",
        )
    value = _plain(_parse(text, source=label), (), Places(label), ()) if text.strip() else None
    at: Any = data
    path: Path = ()
    for last, key in [(i == len(keys) - 1, key) for i, key in enumerate(keys)]:
        step: str | int = key
        if isinstance(at, list):
            if not key.isdigit() or int(key) >= len(at):
                raise ConfigError(
                    f"{label}: {'.'.join(map(str, path))} is a list without an item {key!r}.",
                    code="job/bad-override",
                    found=f"{len(at)} items" + (f"; allowed: 0 to {len(at) - 1}" if at else ""),
                    hint="name an item by its number, or set the whole list: --set key=[a, b].",
                )
            step = int(key)
        elif not isinstance(at, dict):
            raise ConfigError(
                f"{label}: {'.'.join(map(str, path))} has no fields below it.",
                code="job/bad-override",
                found=f"the value {at!r:.60}",
                hint="set that field itself.",
            )
        path = (*path, step)
        if last:
            at[step] = value
            places.override(path, label)
        else:
            if isinstance(at, dict) and at.get(key) is None:
                at[key] = {}
                places.override(path, label)
            at = at[step]


def _build(data: dict[str, Any], places: Places) -> Job:
    missing = placeholders_in(data)
    if missing:
        raise problems_error(missing, places)
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        raise config_error(error, data, places) from None
