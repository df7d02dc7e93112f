"""Generator of the field tables in docs/reference/job-files.md from the sections of the job file's schema.

python tools/job_fields.py

A table is between `<!-- fields of KEY: ... -->` and `<!-- end of fields -->`. Types and defaults are those of the
pydantic models, meanings are the lines below `Fields:` in their docstrings. A line may name a type that the annotation
does not show: `every (epoch, or int >= 1): ...`.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from markdown_table import cell, row
from pydantic import Discriminator
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from estimator_pipeline import job  # noqa: E402
from estimator_pipeline.job import base  # noqa: E402
from estimator_pipeline.job.sections import keras, kubernetes, model, parity, run, training  # noqa: E402

DOCUMENT = ROOT / "docs" / "reference" / "job-files.md"
MARKERS = re.compile(
    r"(<!-- fields of (\w+): tools/job_fields\.py writes them -->\n).*?(<!-- end of fields -->)", re.DOTALL
)
# Key of a table -> (prefix of its fields, section).
TABLES: dict[str, tuple[str, type[base.Section]]] = {
    "job": ("", job.Job),
    "model": ("model.", job.ModelSection),
    "input": ("input.", job.InputCommon),
    "tfds": ("input.", job.TfdsInput),
    "tfrecord": ("input.", job.TFRecordInput),
    "csv": ("input.", job.CsvInput),
    "parquet": ("input.", job.ParquetInput),
    "arrays": ("input.", job.ArraysInput),
    "images": ("input.", job.ImagesInput),
    "function": ("input.", job.FunctionInput),
    "train": ("train.", job.TrainingSection),
    "eval": ("eval.", training.EvalSection),
    "run": ("run.", run.RunSection),
    "keras": ("keras.", keras.Keras),
    "cluster": ("cluster.", run.ClusterSection),
    "parity": ("parity.", parity.ParitySection),
    "kubernetes": ("kubernetes.", job.Kubernetes),
    "slurm": ("slurm.", job.SlurmSection),
    "pbs": ("pbs.", job.PbsSection),
}
SCHEDULES = get_args(model.Schedule)
# Placeholder for the key of a mapping or the index of a list, in the name of a field.
PLACEHOLDERS = {"exporters": "N", "volumes": "N", "tolerations": "N", "roles": "ROLE", "tolerances": "KEY"}
# Mappings whose fields are in another table or row of the page.
REPEATED = {"slurm.roles", "pbs.roles", "kubernetes.roles.ROLE.tolerations"}
NAMED_TYPES: tuple[tuple[Any, str], ...] = (
    (base.FunctionRef, "function reference"),
    (base.Paths, "path, or list of paths"),
    (base.Factor, "number or fraction"),
    (kubernetes.Quantity, "quantity"),
)


class Field(NamedTuple):
    """A row of a table."""

    name: str
    type: str
    default: str
    meaning: str


def meanings(section: type[base.Section]) -> dict[str, tuple[str | None, str]]:
    """Return field -> (type in the docstring or None, meaning), with the fields of base classes first."""
    lines: dict[str, tuple[str | None, str]] = {}
    for cls in reversed(section.__mro__):
        if not (issubclass(cls, base.Section) and cls.__doc__):
            continue
        text = inspect.cleandoc(cls.__doc__).partition("\nFields:\n")[2]
        for entry in re.split(r"\n(?= {4}\w)", "\n" + text.split("\n\n")[0])[1:]:
            match = re.fullmatch(r"(\w+)(?: \((.+?)\))?: (.+)", " ".join(entry.split()))
            assert match is not None, f"{cls.__name__}: {entry!r}"
            lines[match[1]] = (match[2], match[3])
    return lines


def sections_of(annotation: Any) -> Iterator[tuple[type[base.Section], bool]]:
    """Yield the sections in an annotation, and whether each is an element of a list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, base.Section):
        yield annotation, False
    origin = get_origin(annotation)
    parts = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
    for part in parts if origin is not Literal else ():
        for section, inside in sections_of(part):
            yield section, inside or origin in (list, dict)


def type_of(annotation: Any) -> str:
    """Return the type of a value in terms of YAML, without null."""
    for named, words in NAMED_TYPES:
        if annotation == named:
            return words
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        if any(isinstance(item, Discriminator) for item in metadata):
            return " or ".join(dict.fromkeys(type_of(part) for part in get_args(inner)))
        limits = [limit for item in metadata if isinstance(item, FieldInfo) for limit in item.metadata]
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
        bounds = [(sign, getattr(limit, key, None)) for limit in limits for key, sign in signs.items()]
        text = ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
        return f"{type_of(inner)} {text}".strip()
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_of(part) for part in get_args(annotation) if part is not type(None)))
    if origin is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if origin is list:
        return f"list of {type_of(get_args(annotation)[0])}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, base.Section)):
        return "mapping"
    return "any" if annotation is Any else annotation.__name__


def default_of(info: FieldInfo) -> str:
    """Return the default as one line of YAML."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, base.Section):
        value = {}
    if value is None:
        return "null"
    if isinstance(value, str):
        return '","' if value == "," else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    yaml, stream = YAML(typ="safe", pure=True), StringIO()
    yaml.default_flow_style = True
    yaml.dump(value, stream)
    return stream.getvalue().removesuffix("\n").removesuffix("\n...")


def fields(prefix: str, section: type[base.Section], *, inherited: bool = True) -> Iterator[Field]:
    """Yield the fields of a section and of its subsections, with dotted names.

    Args:
        prefix: Dotted name of the section, with a dot at its end.
        section: The section.
        inherited: Include the fields that all sources of data share.
    """
    hints, lines = get_type_hints(section, include_extras=True), meanings(section)
    skipped = () if inherited else job.InputCommon.model_fields
    names = [name for name in section.model_fields if name not in skipped]
    for name in names:
        annotation, dotted = hints[name], f"{prefix}{name}"
        inner = [] if dotted in REPEATED else list(sections_of(annotation))
        inner = [(cls, repeated) for cls, repeated in inner if cls is not kubernetes.PodPatch]
        nested = len(inner) == 1 and section is not job.Job
        if not nested or inner[0][1]:
            kind, meaning = lines[name]
            yield Field(dotted, kind or type_of(annotation), default_of(section.model_fields[name]), meaning)
        if nested:
            below, repeated = inner[0]
            yield from fields(f"{dotted}.{PLACEHOLDERS.get(name, 'NAME')}." if repeated else f"{dotted}.", below)


def link_documents(text: str) -> str:
    """Return a meaning as a cell, with its documents as links."""
    text = re.sub(
        r"docs/(guides/|reference/)([\w-]+\.md)(#[\w-]+)?",
        lambda m: f"[{m[2]}]({'../guides/' if m[1] == 'guides/' else ''}{m[2]}{m[3] or ''})",
        text,
    )
    return cell(text)


def schedules() -> str:
    """Return the table of the kinds of `learning_rate`."""
    rows = [row("`kind`", "learning rate", "fields"), row("---", "---", "---")]
    for schedule in SCHEDULES:
        names = []
        for name, info in schedule.model_fields.items():
            if name != "kind":
                names.append(f"`{name}`" if info.is_required() else f"`{name}` ({default_of(info)})")
        (kind,) = get_args(get_type_hints(schedule)["kind"])
        rows.append(row(f"`{kind}`", link_documents(schedule.__doc__ or ""), ", ".join(names)))
    return "".join(f"{line}\n" for line in rows)


def table(key: str) -> str:
    """Return the text between the markers of a key."""
    if key == "schedules":
        return schedules()
    prefix, section = TABLES[key]
    rows = [row("field", "type", "default", "meaning"), row("---", "---", "---", "---")]
    of_one_source = issubclass(section, job.InputCommon) and section is not job.InputCommon
    for field in fields(prefix, section, inherited=not of_one_source):
        default = field.default if field.default == "required" else f"`{field.default}`"
        name = f"[`{field.name}`](#{field.name})" if key == "job" and field.name != "name" else f"`{field.name}`"
        rows.append(row(name, field.type, default, link_documents(field.meaning)))
    assert len(rows) > 2, f"{key} has no fields"
    return "".join(f"{line}\n" for line in rows)


def render() -> str:
    """Return the page with its tables."""
    text = DOCUMENT.read_text(encoding="utf-8")
    keys = {match[2] for match in MARKERS.finditer(text)}
    assert keys == {*TABLES, "schedules"}, f"tables of {keys.symmetric_difference({*TABLES, 'schedules'})}"
    return MARKERS.sub(lambda match: f"{match[1]}\n{table(match[2])}\n{match[3]}", text)


if __name__ == "__main__":
    DOCUMENT.write_text(render(), encoding="utf-8")
