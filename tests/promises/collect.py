"""What the product promises to its users, a line each: `subjects()` reads it from the code and the documents."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from estimator_pipeline.cli import main as cli
from estimator_pipeline.errors.codes import CODES
from tests.repository import test_docs
from tests.support import tutorials

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
SCHEMA = re.compile(r"estimator-pipeline/[\w-]+/\d+")
VARIABLE = re.compile(r"ESTIMATOR_PIPELINE_[A-Z_]+")
# Packages with public names that the page of the API does not have: imported by programs, or by their names.
OTHERS = ("model_fns", "estimator_pipeline.errors", "estimator_pipeline.migrate.code")


def subjects() -> Mapping[str, Callable[[], Iterable[str]]]:
    """Return the name of each file in this folder, without .txt -> what its lines are now."""
    return {
        "command_line": _command_line,
        "documents": _documents,
        "environment": lambda: _constants(VARIABLE),
        "errors": _errors,
        "features": _features,
        "formats": _formats,
        "job_fields": _job_fields,
        "names": _names,
        "patches": _patches,
        "public_programs": _public_programs,
    }


def _command_line() -> Iterator[str]:
    """Yield each command, and each of its arguments and options with its default."""

    def lines(name: str, command: Any) -> Iterator[str]:
        yield name
        if isinstance(command, typer.core.TyperGroup):
            for inner in command.list_commands(None):
                yield from lines(f"{name} {inner}".strip(), command.get_command(None, inner))
        for parameter in command.params:
            default = getattr(parameter.default, "value", parameter.default)
            shown = "" if default is None or default is False or callable(default) else f" = {_plain(default)}"
            value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or 'VALUE'}"
            is_argument = parameter.param_type_name == "argument"
            names = parameter.metavar or parameter.name if is_argument else ", ".join(
                (*parameter.opts, *parameter.secondary_opts)
            )  # fmt: skip
            yield f"{name} {names}{'' if is_argument else value}{shown}".strip()

    yield from lines("", typer.main.get_command(cli.app))


def _documents() -> Iterator[str]:
    """Yield the blocks and commands of the README, the guides and the tutorials, by page."""
    pages = ("README.md", "docs/guides/", "docs/tutorials/")
    for block in test_docs.blocks():
        if block.where.startswith(pages):
            first = next((line.strip() for line in block.text.splitlines() if line.strip()), "")
            yield f"{block.where.partition(':')[0]}: {block.language or 'text'}: {block.mark or first}"
    for where, line in test_docs.command_lines():
        if where.startswith(pages):
            yield f"{where.partition(':')[0]}: $ {line}"
    for page in (ROOT / "README.md", *tutorials.pages()):
        for command in tutorials.Tutorial(page).commands:
            for line in command.script.replace("\\\n", " ").splitlines():
                yield f"{page.relative_to(ROOT)}: $ {' '.join(line.split())}"


def _errors() -> Iterator[str]:
    """Yield the exit codes of the command line, the error codes, and the exit code of each class of errors."""
    from estimator_pipeline import errors

    head = importlib.import_module("command_line").HEAD
    yield from (
        f"exit code {': '.join(cells)}" for cells in re.findall(r"^\| (\d[\d, ]*) \| (.+) \|$", head, re.MULTILINE)
    )
    yield from (f"code {code}" for code in CODES)
    for name in errors.__all__:
        kind = getattr(errors, name)
        yield f"{name}: exit code {kind.exit_code}, {kind.code or 'code of the case'}"


def _features() -> Iterator[str]:
    """Yield the rows of docs/features.md: ids with their state, otherwise the feature."""
    for line in (ROOT / "docs" / "features.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and not set(cells[0]) <= {"-"} and cells[0] not in ("id", "feature"):
            yield f"{cells[0]} {cells[1]}: {cells[3]}" if len(cells) == 5 else cells[0]


def _formats() -> Iterator[str]:
    """Yield the versioned formats, and the files of the stored runs, without numbers that differ from run to run."""
    yield from (f"schema {name}" for name in _constants(SCHEMA))
    for archive in sorted((ROOT / "tests" / "stored").glob("*/*.tar.gz")):
        with tarfile.open(archive) as stored:
            for member in stored.getmembers():
                if member.isfile():
                    name = re.sub(r"\d{8}-\d{6}-[0-9a-f]{8}", "RUN", member.name)
                    name = re.sub(r"\d{4,}", "N", name)
                    yield f"{archive.parent.name} {name}"


def _job_fields() -> Iterator[str]:
    """Yield the fields of a job file with type and default."""
    fields = importlib.import_module("job_fields")
    for table in fields.TABLES.values():
        for field in fields.fields(*table):
            yield f"{field.name} ({field.type}) = {field.default}"


def _names() -> Iterator[str]:
    """Yield the public names with their parameters."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    for dotted in re.findall(r"^::: (\S+)$", page, re.MULTILINE):
        module, _, name = dotted.rpartition(".")
        yield f"{dotted}{_parameters(getattr(importlib.import_module(module), name))}"
    for name in (*OTHERS, *_runtime()):
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            yield f"{name}.{public}{_parameters(getattr(module, public))}"


def _runtime() -> Iterator[str]:
    """Yield the modules that converted programs import."""
    folder = ROOT / "estimator_pipeline" / "models" / "keras_runtime"
    for path in sorted(folder.glob("[!_]*")):
        if path.suffix == ".py" and "__all__" in path.read_text(encoding="utf-8"):
            yield f"estimator_pipeline.models.keras_runtime.{path.stem}"
        elif (path / "__init__.py").is_file():
            yield f"estimator_pipeline.models.keras_runtime.{path.name}"


def _patches() -> Iterator[str]:
    from estimator_pipeline.compat import patches

    yield from patches.NAMES
    yield from (f"{old} = {new}" for old, new in patches.OLD_NAMES.items())


def _public_programs() -> Iterator[str]:
    """Yield the programs that the project is measured with, and the results that the documents name."""
    text = (ROOT / "tools" / "public_programs.yaml").read_text(encoding="utf-8")
    yield from (f"program {name}" for name in re.findall(r"^- name: (\S+)$", text, re.MULTILINE))
    page = (ROOT / "docs" / "reference" / "migrate-constructs.md").read_text(encoding="utf-8")
    for line in page.partition("\n## Public programs\n")[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] and not set(cells[0]) <= {"-"}:
            yield f"result {': '.join(cells)}"


def _constants(pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the strings of the package that a pattern matches as a whole."""
    return filter(pattern.fullmatch, _strings())


@functools.cache
def _strings() -> frozenset[str]:
    return frozenset(
        node.value
        for path in (ROOT / "estimator_pipeline").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _parameters(value: Any) -> str:
    """Return the parameters of a function or class with their defaults, without annotations."""
    try:
        parameters = inspect.signature(value).parameters.values() if callable(value) else None
    except (TypeError, ValueError):
        parameters = None
    if parameters is None:
        return ""
    parts, is_keyword = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            parts.append("*")
        is_keyword = is_keyword or parameter.kind is parameter.VAR_POSITIONAL
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={_plain(parameter.default)}"
        parts.append(f"{stars}{parameter.name}{default}")
    return f"({', '.join(parts)})"


def _plain(value: Any) -> str:
    """Return a default in one form for all versions of Python and TensorFlow."""
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, (bool, int, float, str, list, tuple)):
        return json.dumps(value)
    return f"<{getattr(value, '__name__', type(value).__name__)}>"
