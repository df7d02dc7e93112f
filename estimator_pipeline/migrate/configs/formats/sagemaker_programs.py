"""Programs of SageMaker's Python SDK: the arguments of `sagemaker.tensorflow.TensorFlow(...)` where they are literal.

The program is read and not run. Names that are assigned once, at its top, to a literal are followed; every other
argument is a decision that names its line.
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
    """Whether a text is a Python program, or a notebook with one."""
    return _imports(_parsed(text)) or '"nbformat"' in text[-2000:]


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imports(tree: ast.Module | None) -> bool:
    return tree is not None and any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree))


def read_program(text: str, *, source: str) -> Document:
    """Return the arguments of the one `TensorFlow(...)` of a program, and those of its `fit`.

    Returns:
        The document: `arguments` that are literal, `computed`: name -> text of those that are not, `fit`: where the
        data is.

    Raises:
        ConfigError: it has no such call, or several.
    """
    tree = _parsed(text)
    if tree is None or not _imports(tree):
        raise ConfigError(
            f"{source} is a notebook." if '"nbformat"' in text else f"{source} is no program that Python 3 reads.",
            code="file/bad-format",
            hint="save the cell that makes the estimator as a .py file; migrate scan reads programs.",
        )
    names, modules = _names(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_estimator(node, names, modules)]
    if len(calls) != 1:
        raise ConfigError(
            f"{source} is a program with {len(calls) or 'no'} call{'s' if calls else ''} of "
            "sagemaker.tensorflow.TensorFlow.",
            code="migrate/unknown-format",
            found=", ".join(f"line {call.lineno}" for call in calls) or "no configuration",
            hint="leave the one that is wanted in the file."
            if calls
            else "estimator-pipeline migrate scan and convert read programs.",
        )
    constants = _constants(tree)
    document = Document(source, {}, {}, "python")
    arguments: dict[str, Any] = {}
    computed: dict[str, str] = {}
    document.data = {"arguments": arguments}
    given = [(keyword.arg or "**", keyword.value) for keyword in calls[0].keywords]
    # The SDK takes by place what version 1 did: entry_point first.
    given += list(zip(("entry_point", "source_dir", "hyperparameters"), calls[0].args, strict=False))
    for name, node in given:
        document.lines[("arguments", name)] = document.lines[("computed", name)] = node.lineno
        found = _keep(node, ("arguments", name), constants, computed, document)
        if found is not _UNKNOWN:
            arguments[name] = found
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
    """Return what the class is called in the program, and what its modules are: alias -> module."""
    names: set[str] = set()
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            names.update(one.asname or one.name for one in node.names if one.name == "TensorFlow")
        elif isinstance(node, ast.ImportFrom) and node.module == "sagemaker":
            modules.update({one.asname or one.name: f"sagemaker.{one.name}" for one in node.names})
        elif isinstance(node, ast.Import):
            for one in node.names:
                head = one.asname or one.name.partition(".")[0]
                modules[head] = one.name if one.asname else head
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
    """Names that are bound once in the program, by an assignment at its top."""
    bound = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if bound.count(name) == 1:
                found[name] = node.value
    return found


def _literal(node: ast.expr, constants: dict[str, ast.expr], depth: int = 0) -> Any:
    if isinstance(node, ast.Name) and node.id in constants and depth < 20:
        return _literal(constants[node.id], constants, depth + 1)
    try:
        value = ast.literal_eval(node)
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return _UNKNOWN
    return value


def _keep(
    node: ast.expr, path: Path, constants: dict[str, ast.expr], computed: dict[str, str], document: Document
) -> Any:
    """Return the value of an argument; of a dictionary what is literal of it. The rest goes to `computed`."""
    value = _literal(node, constants)
    if value is not _UNKNOWN:
        if isinstance(node, ast.Dict):
            for key, inner in zip(node.keys, node.values, strict=True):
                document.lines[(*path, ast.literal_eval(key) if key else "")] = inner.lineno
        return value
    inside = constants.get(node.id, node) if isinstance(node, ast.Name) else node
    keys = [_literal(key, constants) if key is not None else _UNKNOWN for key in getattr(inside, "keys", [])]
    if isinstance(inside, ast.Dict) and keys and all(isinstance(key, str) for key in keys):
        kept = {}
        for key, inner in zip(keys, inside.values, strict=True):
            document.lines[(*path, key)] = inner.lineno
            found = _keep(inner, (*path, key), constants, computed, document)
            if found is not _UNKNOWN:
                kept[key] = found
        return kept
    name = ".".join(map(str, path[1:]))
    computed[name] = ast.unparse(node)
    document.lines[("computed", name)] = node.lineno
    return _UNKNOWN


def convert(draft: JobDraft) -> None:
    """Says of each argument what becomes of it: as the SDK's arguments are read, and what is computed is a decision."""
    document = draft.document
    lines = {path[1:]: line for path, line in document.lines.items() if path[:1] == ("arguments",)}
    inner = JobDraft(
        Document(document.source, document.data["arguments"], lines, "json"), draft.scheduler, draft.params, draft.base
    )
    sagemaker.convert_estimator(inner)
    draft.findings += [
        one.at(one.item._replace(path=("arguments", *one.item.path), field=one.item.name)) for one in inner.findings
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
        why = f"where the records were: {item.value}: input.source, and files that all tasks can read"
        draft.decide(Item(item.path, item.value, item.line, "fit"), why, ("input", "train"))
