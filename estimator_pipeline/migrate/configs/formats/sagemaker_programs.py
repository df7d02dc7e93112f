"""Programs of SageMaker's Python SDK: the literal arguments of `sagemaker.tensorflow.TensorFlow(...)`.

The program is parsed, not run. Names assigned once, at its top level, to a literal are resolved. Every other argument
becomes a decision with its line.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Document, Item, Path
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats import sagemaker

__all__ = ["convert", "looks_like_python", "read_program"]

_MODULES = ("sagemaker.tensorflow", "sagemaker.tensorflow.estimator")
_UNKNOWN = object()


def looks_like_python(text: str) -> bool:
    """Return whether a text is a Python program or a notebook."""
    return _imports(_parsed(text)) or '"nbformat"' in text[-2000:]


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imports(tree: ast.Module | None) -> bool:
    return tree is not None and any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree))


def read_program(text: str, *, source: str) -> Document:
    """Read the arguments of a program's `TensorFlow(...)` and `fit` calls.

    Returns:
        A document with the literal `arguments`, `computed` (name -> source text of the other arguments), and `fit`,
        the data.

    Raises:
        ConfigError: The program has no such call, or several.
    """
    tree = _parsed(text)
    if tree is None or not _imports(tree):
        raise ConfigError(
            f"{source} is a notebook." if '"nbformat"' in text else f"{source} is not a valid Python 3 program.",
            code="file/bad-format",
            hint="save the cell that creates the estimator as a .py file; migrate scan reads programs.",
        )
    names, modules = _names(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_estimator(node, names, modules)]
    if len(calls) != 1:
        raise ConfigError(
            f"{source} is a program with {len(calls) or 'no'} call{'s' if calls else ''} of "
            "sagemaker.tensorflow.TensorFlow.",
            code="migrate/unknown-format",
            found=", ".join(f"line {call.lineno}" for call in calls) or "no configuration",
            hint="keep only one call in the file."
            if calls
            else "use estimator-pipeline migrate scan and convert for programs.",
        )
    constants = _constants(tree)
    document = Document(source, {}, {}, "python")
    arguments: dict[str, Any] = {}
    computed: dict[str, str] = {}
    document.data = {"arguments": arguments}
    values = [(keyword.arg or "**", keyword.value) for keyword in calls[0].keywords]
    # Positional arguments of the SDK, in the order of version 1.
    values += list(zip(("entry_point", "source_dir", "hyperparameters"), calls[0].args, strict=False))
    for name, node in values:
        document.lines[("arguments", name)] = document.lines[("computed", name)] = node.lineno
        literal = _literal_part(node, ("arguments", name), constants, computed, document)
        if literal is not _UNKNOWN:
            arguments[name] = literal
    if computed:
        document.data["computed"] = computed
    fits = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_fit(node)]
    if len(fits) == 1 and fits[0].args:
        place = fits[0].args[0]
        value = _literal(place, constants)
        document.data["fit"] = {"inputs": ast.unparse(place) if value is _UNKNOWN else value}
        document.lines[("fit", "inputs")] = place.lineno
    return document


def _names(tree: ast.Module) -> tuple[set[str], dict[str, str]]:
    """Return the names of the class, and the imported modules by alias."""
    names: set[str] = set()
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            names.update(alias.asname or alias.name for alias in node.names if alias.name == "TensorFlow")
        elif isinstance(node, ast.ImportFrom) and node.module == "sagemaker":
            modules.update({alias.asname or alias.name: f"sagemaker.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            for alias in node.names:
                head = alias.asname or alias.name.partition(".")[0]
                modules[head] = alias.name if alias.asname else head
    return names, modules


def _is_estimator(call: ast.Call, names: set[str], modules: dict[str, str]) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in names
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "TensorFlow":
        return False
    head, _, rest = ast.unparse(call.func.value).partition(".")
    return head in modules and f"{modules[head]}.{rest}".rstrip(".") in _MODULES


def _is_fit(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "fit"


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the names bound once in the program, by an assignment at its top level."""
    bound = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    constants = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if bound.count(name) == 1:
                constants[name] = node.value
    return constants


def _literal(node: ast.expr, constants: dict[str, ast.expr], depth: int = 0) -> Any:
    if isinstance(node, ast.Name) and node.id in constants and depth < 20:
        return _literal(constants[node.id], constants, depth + 1)
    try:
        value = ast.literal_eval(node)
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return _UNKNOWN
    return value


def _literal_part(
    node: ast.expr, path: Path, constants: dict[str, ast.expr], computed: dict[str, str], document: Document
) -> Any:
    """Return the literal part of an argument; add the rest to `computed`."""
    value = _literal(node, constants)
    if value is not _UNKNOWN:
        if isinstance(node, ast.Dict):
            for key, inner in zip(node.keys, node.values, strict=True):
                document.lines[(*path, ast.literal_eval(key) if key else "")] = inner.lineno
        return value
    inside = constants.get(node.id, node) if isinstance(node, ast.Name) else node
    keys = [_literal(key, constants) if key is not None else _UNKNOWN for key in getattr(inside, "keys", [])]
    if isinstance(inside, ast.Dict) and keys and all(isinstance(key, str) for key in keys):
        literal = {}
        for key, inner in zip(keys, inside.values, strict=True):
            document.lines[(*path, key)] = inner.lineno
            part = _literal_part(inner, (*path, key), constants, computed, document)
            if part is not _UNKNOWN:
                literal[key] = part
        return literal
    name = ".".join(map(str, path[1:]))
    computed[name] = ast.unparse(node)
    document.lines[("computed", name)] = node.lineno
    return _UNKNOWN


def convert(draft: JobDraft) -> None:
    """Convert each literal argument; a computed one becomes a decision."""
    document = draft.document
    lines = {path[1:]: line for path, line in document.lines.items() if path[:1] == ("arguments",)}
    inner = JobDraft(
        Document(document.source, document.data["arguments"], lines, "json"), draft.scheduler, draft.params, draft.base
    )
    sagemaker.convert_estimator(inner)
    draft.findings += [
        finding.at(finding.item._replace(path=("arguments", *finding.item.path), field=finding.item.name))
        for finding in inner.findings
    ]
    draft.job, draft.derived, draft.placeholders = inner.job, inner.derived, inner.placeholders
    for item in document.items("computed"):
        name = str(item.path[-1])
        known = sagemaker.KWARGS_DECIDED.get(name)
        why, to = known if known else ("", None)
        field = tuple(to.split(".")) if to else None
        draft.decide(
            Item(item.path, item.value, item.line, name),
            f"the program computes it{f'; {why}' if why else ': write its value'}",
            field,
        )
        if name in ("instance_count", "train_instance_count"):
            draft.need(("cluster", "workers"), f"the program computed it: {item.value}")
    for item in document.items("fit"):
        why = f"the data in {item.value}: set input.source, to files that all tasks can read"
        draft.decide(Item(item.path, item.value, item.line, "fit"), why, ("input", "train"))
