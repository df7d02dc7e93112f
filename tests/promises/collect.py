"""What the product promises to its users, a line each: `subjects()` reads it from the code and the documents."""

from __future__ import annotations

import ast
import collections
import functools
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from ruamel.yaml import YAML

from estimator_pipeline import errors
from estimator_pipeline.cli import main as cli
from estimator_pipeline.errors.codes import CODES
from tests.repository import test_docs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
PACKAGE = ROOT / "estimator_pipeline"
# Modules with public names that the page of the API does not have: imported by programs, also by converted ones.
OTHERS = ("model_fns", "estimator_pipeline.models.optimizers.keras2")
FILE = re.compile(
    r"(?!dataset_info)[a-z*][\w*.-]*\.(json|jsonl|heartbeat|npz|sh|lock|tfrecord)"
    r"|\*\.\*\.ledger|model\.keras|(output|answers|task-\*|\*)\.log"
)
FORMAT = re.compile(
    r"MAGIC|(_|_INDEX_)?VERSION|SCHEMA|INDEX_SUFFIX|_DIGEST_SUFFIX|PREFIXES|DIRECTORY|FOLDER|JOB_FOLDER"
)


def subjects() -> Mapping[str, Callable[[], Iterable[str]]]:
    """Return the name of each file in this folder, without .txt -> what its lines are now."""
    return {
        "command_line": _command_line,
        "documents": _documents,
        "environment": _environment,
        "errors": _errors,
        "features": _features,
        "formats": _formats,
        "job_fields": _job_fields,
        "names": _names,
        "patches": _patches,
        "public_programs": _public_programs,
    }


# The command line, job files, errors -----------------------------------------------------------------------------


def _command_line() -> Iterator[str]:
    """Yield each command, and each of its arguments and options with its values or choices and its default."""
    value = importlib.import_module("command_line").value

    def lines(name: str, command: Any) -> Iterator[str]:
        yield f"{name}: command"
        if isinstance(command, typer.core.TyperGroup):
            for inner in command.list_commands(None):
                yield from lines(f"{name} {inner}", command.get_command(None, inner))
        for parameter in command.params:
            is_option = parameter.param_type_name == "option"
            shown = [", ".join((*parameter.opts, *parameter.secondary_opts))] if is_option else ["argument"]
            if not (is_option and parameter.is_flag):
                shown.append(value(parameter, inspect.unwrap(command.callback)))
            default = getattr(parameter.default, "value", parameter.default)
            if default is not None and default is not False and default not in ("", [], ()) and not callable(default):
                shown.append(f"= {_plain(default)}")
            marks = [word for word in ("required", "multiple", "hidden") if getattr(parameter, word, False)]
            yield " ".join([name, *shown, *(f"({mark})" for mark in marks)])

    yield from lines("estimator-pipeline", typer.main.get_command(cli.app))


def _job_fields() -> Iterator[str]:
    """Yield the fields of a job file with type or choices and default; those of the sources with their source."""
    tool = importlib.import_module("job_fields")
    for key, (prefix, section) in tool.TABLES.items():
        source = f" (source {key})" if prefix == "input." and key != "input" else ""
        for field in tool.fields(prefix, section, inherited=not source):
            yield f"{field.name}{source}: {field.type} = {field.default}"
    for schedule in tool.SCHEDULES:
        (kind,) = tool.get_args(tool.get_type_hints(schedule)["kind"])
        for name, info in schedule.model_fields.items():
            yield f"model.optimizer.learning_rate (kind {kind}).{name} = {tool.default_of(info)}"


def _errors() -> Iterator[str]:
    """Yield exit codes, classes of errors, error codes with the exit codes of the errors, and names of findings."""
    head = importlib.import_module("command_line").HEAD
    for code, meaning in re.findall(r"^\| (\d[\d, ]*) \| (.+) \|$", head, re.MULTILINE):
        yield f"exit code {code}: {meaning}"
    exits = collections.defaultdict(set)
    for name in errors.__all__:
        kind = getattr(errors, name)
        exits[kind.code].add(kind.exit_code)
        yield f"class {name}({kind.__base__.__name__}): exit code {kind.exit_code}"
    for call in (node for node in _nodes() if isinstance(node, ast.Call)):
        kind = getattr(errors, getattr(call.func, "attr", getattr(call.func, "id", "")), None)
        for node in ast.walk(next((word.value for word in call.keywords if word.arg == "code"), call.func)):
            if kind is not None and isinstance(node, ast.Constant):
                exits[node.value].add(kind.exit_code)
    yield from (f"code {code}: exit code {', '.join(map(str, sorted(exits[code])))}" for code in CODES)
    tool = importlib.import_module("error_codes")
    kinds = importlib.import_module("estimator_pipeline.inputs.ledger.report").KINDS
    yield from (f"finding of inspect --ledger: {name}" for name in kinds)
    yield from (f"finding of parity: {name}" for name, _ in tool.parity_names())
    for module in ("input_checks", "model_checks"):
        yield from (f"check of {module}: {name}" for name, _ in tool.compliance_checks(f"{module}.py"))


# Python names ------------------------------------------------------------------------------------------------------


def _names() -> Iterator[str]:
    """Yield the public names with their kind and parameters, the methods of classes, the elements of constants."""
    for dotted in importlib.import_module("api_page").names():
        module, _, name = dotted.rpartition(".")
        yield from _described(importlib.import_module(module), name)
    modules = importlib.import_module("model_fns").NAMES
    for module in map(importlib.import_module, OTHERS):
        for name in getattr(module, "__all__", ()):
            yield from _described(module, name)
    for module in (importlib.import_module(f"model_fns.{name}") for name in modules):
        yield from (f"{module.__name__}.DEFAULTS: {name} = {_plain(value)}" for name, value in module.DEFAULTS.items())


def _described(module: ModuleType, name: str) -> Iterator[str]:
    value, dotted = getattr(module, name), f"{module.__name__}.{name}"
    if inspect.isclass(value):
        yield f"class {dotted}{_parameters(value)}"
        for inner, member in vars(value).items():
            if not inner.startswith("_") and isinstance(member, (property, functools.cached_property)):
                yield f"property {dotted}.{inner}"
            elif not inner.startswith("_") and inspect.isroutine(member):
                yield f"method {dotted}.{inner}{_parameters(getattr(value, inner))}"
    elif callable(value):
        yield f"function {dotted}{_parameters(value)}"
    else:
        yield f"constant {dotted}"
        for item in value if isinstance(value, Iterable) and not isinstance(value, str) else ():
            yield f"constant {dotted}: {getattr(item, 'name', item)}"


def _parameters(value: Any) -> str:
    """Return the parameters of a function or class with their defaults, without annotations."""
    parts, is_keyword = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            parts.append("*")
        is_keyword = is_keyword or parameter.kind is parameter.VAR_POSITIONAL
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={_plain(parameter.default)}"
        parts.append(f"{stars}{parameter.name}{default}")
    return f"({', '.join(parts)})"


def _plain(value: Any) -> str:
    """Return a default in a form that is equal on all versions of Python and TensorFlow."""
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, (bool, int, float, str, list, tuple, dict)):
        return json.dumps(value)
    name = getattr(value, "__name__", type(value).__name__)
    return "<factory>" if name == "_HAS_DEFAULT_FACTORY_CLASS" else f"<{name}>"


# Stored files, environment -----------------------------------------------------------------------------------------


def _formats() -> Iterator[str]:
    """Yield names and versions of files, keys of JSON documents, progress events, and the versions that are read."""
    for path in (path for path in PACKAGE.rglob("*.py") if "compat" not in path.parts or "patches" in path.parts):
        tree = _tree(path)
        yield from (f"file {text}" for text in map(_text, ast.walk(tree)) if FILE.fullmatch(text))
        for outer in tree.body:
            if isinstance(outer, ast.Assign) and FORMAT.fullmatch(ast.unparse(outer.targets[0])):
                yield f"format {path.stem}: {ast.unparse(outer)}"
            for node in outer.body if isinstance(outer, ast.ClassDef) else [outer]:
                if isinstance(node, ast.FunctionDef):
                    yield from _keys(node, outer if node is not outer else None, path.stem)
    stored = ROOT / "tests" / "stored"
    yield from (f"is read: {path.relative_to(stored)}" for path in stored.glob("*/*.tar.gz"))


def _keys(function: ast.FunctionDef, cls: ast.ClassDef | None, module: str) -> Iterator[str]:
    """Yield the keys of the document that a function returns or writes, and the fields of the events that it emits."""
    text, owner = ast.unparse(function), cls.name if cls else module
    is_writer = function.name in ("document", "to_dict", "to_json") or re.search(
        r"\bjson\.dumps?\(|_documents(\(\))?\.write\(|\.(post|agree)\(", text
    )
    for node in ast.walk(function):
        if is_writer and isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if re.fullmatch(r"[a-z_]+", _text(key)):
                    version = f" = {ast.unparse(value)}" if _text(key) == "version" else ""
                    yield f"json {owner}: {_text(key)}{version}"
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") == "emit"
            and node.args
            and _text(node.args[0])
        ):
            yield f"event {_text(node.args[0])}"
            yield from (f"event {_text(node.args[0])}: {word.arg}" for word in node.keywords if word.arg)
    if is_writer and cls and re.search(r"asdict\(self\)|self\.__dict__", text):
        fields = (node.target for node in cls.body if isinstance(node, ast.AnnAssign))
        yield from (f"json {owner}: {ast.unparse(field)}" for field in fields)


def _environment() -> Iterator[str]:
    return (text for text in map(_text, _nodes()) if re.fullmatch("ESTIMATOR_PIPELINE_[A-Z_]+", text))


def _patches() -> Iterator[str]:
    """Yield the patches with their default state, their old names, and the steps of `compat.install()`."""
    patches = importlib.import_module("estimator_pipeline.compat.patches")
    default = patches.chosen(None, {})
    yield from (f"patch {name}: {'on' if name in default else 'off'} by default" for name in patches.NAMES)
    yield from (f"old name {old}: {new}" for old, new in patches.OLD_NAMES.items())
    for node in ast.walk(_tree(PACKAGE / "compat" / "__init__.py")):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_done":
            yield f"step {_text(node.args[0])}"


def _nodes() -> Iterator[ast.AST]:
    return (node for path in PACKAGE.rglob("*.py") for node in ast.walk(_tree(path)))


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _text(node: ast.AST | None) -> str:
    """Return a string of the code, with an asterisk for each value in it; "" for other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "*" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


# Documents ---------------------------------------------------------------------------------------------------------


def _documents() -> Iterator[str]:
    """Yield the commands and blocks of the README, the guides and the tutorials, by page."""
    pages, seen = ("README.md", "docs/guides/", "docs/tutorials/"), collections.Counter[str]()
    for block in test_docs.blocks():
        if not block.where.startswith(pages) or block.language == "sh":
            continue
        first = next(filter(re.compile("[A-Za-z]{2}").search, block.text.splitlines()), "")
        line = f"{block.where.partition(':')[0]}: {block.language or 'text'}: {block.mark or first}"
        seen[line] += 1
        yield line if seen[line] == 1 else f"{line} ({seen[line]})"
    commands = [(where, " ".join(text.split())) for where, text in test_docs.command_lines()]
    commands += [
        ("README.md", text) for text in re.findall(r"^ {4}(make .+)", test_docs.DOCUMENTS[0].read_text(), re.M)
    ]
    for block in test_docs.of("sh"):
        text = re.sub(r"(<<'(\w+)')\n.*?^\2$", r"\1", block.text.replace("\\\n", " "), flags=re.DOTALL | re.MULTILINE)
        commands += [(block.where, line) for line in text.splitlines()]
    for where, text in commands:
        if where.startswith(pages) and (command := re.split(r"(?:^|\s+)# ", text)[0]):
            yield f"{where.partition(':')[0]}: $ {command}"


def _features() -> Iterator[str]:
    """Yield the rows of docs/features.md: ids with feature and state, otherwise the feature."""
    yield from (f"{row[0]} {row[1]}: {row[3]}" for row in test_docs.feature_rows())
    yield from (row[0] for row in _rows("features.md") if not re.fullmatch(r"[A-Z]\d+", row[0]))


def _public_programs() -> Iterator[str]:
    """Yield the programs that the project is measured with, and the results that the documents name."""
    document = YAML(typ="safe", pure=True).load(ROOT / "tools" / "public_programs.yaml")
    for each in document["programs"]:
        yield f"program {each['name']}: {each['repository']} {each['folder']}"
    yield from (f"result: {': '.join(row)}" for row in _rows("reference/migrate-constructs.md", "Public programs"))
    yield from (f"package: {': '.join(row)}" for row in _rows("reference/real-programs.md"))


def _rows(page: str, heading: str = "") -> Iterator[list[str]]:
    """Yield the rows of the tables of a page, or of its section with a heading, without heads and targets of links."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else text
    for table in re.findall(r"^\|.*\|\n\|[-| ]+\|\n((?:\|.*\|\n)*)", text, re.MULTILINE):
        for line in re.sub(r"\]\([^)]*\)", "]", table).splitlines():
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
