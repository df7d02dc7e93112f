"""Generator of docs/reference/api.md, the public names with signatures and docstrings, from the source code.

python tools/api_page.py
"""

from __future__ import annotations

import functools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "api.md"
WIDTH = 100
HEAD = """# Python API

<!-- tools/api_page.py writes this page from the docstrings. -->

The public names of the package. Each is imported when it is first used; `import estimator_pipeline` imports no
TensorFlow. Guides with examples: [input data](../guides/inputs.md), [models](../guides/model_fn.md),
[clusters](../guides/clusters.md), [compatibility](../guides/compat.md).
"""
# Public module -> its sentence.
MODULES = {
    "estimator_pipeline": "",
    "estimator_pipeline.compat": "`tf.estimator` on today's TensorFlow ([guide](../guides/compat.md)).",
    "estimator_pipeline.inputs": "Input data ([guide](../guides/inputs.md)).",
    "estimator_pipeline.cluster": "TF_CONFIG and the schedulers that a task finds its place in "
    "([clusters](../guides/clusters.md), [environments](environments.md)).",
    "estimator_pipeline.callbacks": "Callbacks for `Model.fit` on several workers ([guide](../guides/keras.md)).",
    "estimator_pipeline.ledger": "Which records each worker consumed at which step ([guide](../guides/ledger.md)).",
    "estimator_pipeline.doctor": "Checks of a job before it starts ([guide](../guides/doctor.md)).",
    "estimator_pipeline.migrate": "Checkpoints and exports "
    "([checkpoints](../guides/migrate-checkpoints.md), [exports](../guides/migrate-exports.md)).",
    "estimator_pipeline.migrate.code": "Programs ([guide](../guides/migrate-code.md)).",
    "estimator_pipeline.migrate.config": "Configurations ([guide](../guides/migrate-configs.md)).",
    "estimator_pipeline.testing": "Checks of your own `input_fn` and `model_fn`, for a team's tests "
    "([guide](../guides/testing.md)).",
    "estimator_pipeline.errors": "Every error of this package is a `PipelineError` with a [code](errors.md).",
}
TITLES = {"parameters": "Arguments", "attributes": "Attributes", "raises": "Errors"}


@functools.cache
def load(module: str) -> griffe.Module:
    """Parse one file; `griffe.load` would parse the package, which takes seconds."""
    path = ROOT.joinpath(*module.split("."))
    path = next(
        file for file in (path / "__init__.pyi", path / "__init__.py", path.with_suffix(".py")) if file.exists()
    )
    options = {"returns_multiple_items": False, "returns_named_value": False, "warnings": False}
    text = path.read_text(encoding="utf-8")
    return griffe.visit(module, path, text, docstring_parser="google", docstring_options=options)


def definition(module: str, name: str) -> griffe.Object | griffe.Module:
    """Return what a name of a module is: the statement that defines it, through all imports."""
    member = load(module).members.get(name)
    if member is None:
        return load(f"{module}.{name}")
    if not member.is_alias:
        return member
    target, _, inner = member.target_path.rpartition(".")
    return definition(target, inner)


def public(module: str) -> tuple[str, list[str]]:
    """Return the module's path in the repository, and its public names: functions, constants, classes."""
    parent, _, name = module.rpartition(".")
    path = definition(parent, name).path if parent else module
    kinds = ("function", "attribute", "class")
    # The stub of the package has no __all__: each of its imports is a public name.
    names = {n: definition(path, n).kind.value for n in load(path).exports or load(path).members if n[0] != "_"}
    return path, sorted((n for n in names if names[n] in kinds), key=lambda n: (kinds.index(names[n]), n))


def names() -> Iterator[str]:
    """Yield each name of the page with its module's path in the repository."""
    for path, members in map(public, MODULES):
        yield from (f"{path}.{name}" for name in members)


def parameters(function: griffe.Function, *, bound: bool) -> Iterator[str]:
    """Yield the parameters of a function as they are written, with `*` and `/`."""
    kinds = griffe.ParameterKind
    last = None
    for parameter in list(function.parameters)[bound:]:
        kind = parameter.kind
        if last is kinds.positional_only and kind is not last:
            yield "/"
        if kind is kinds.keyword_only and last not in (kind, kinds.var_positional):
            yield "*"
        last = kind
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(kind, "")
        text = stars + parameter.name + (f": {parameter.annotation}" if parameter.annotation is not None else "")
        if parameter.default is not None and not stars:
            text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
        yield text


def signature(function: griffe.Function, indent: str = "", *, bound: bool = False) -> str:
    """Return a function without its body; longer than a line, with a parameter a line."""
    decorators = {str(decorator.value) for decorator in function.decorators}
    kept = [f"@{name}" for name in ("staticmethod", "classmethod", "property") if name in decorators]
    kept += ["@property"] * ("functools.cached_property" in decorators)
    parts = [*(["self"] if bound and "staticmethod" not in decorators else []), *parameters(function, bound=bound)]
    if "classmethod" in decorators:
        parts[0] = "cls"
    start, end = f"def {function.name}(", ")" + (f" -> {function.returns}" if function.returns else "") + ": ..."
    text = f"{start}{', '.join(parts)}{end}"
    if len(indent + text) > WIDTH:
        text = start + "".join(f"\n{indent}    {part}," for part in parts) + f"\n{indent}{end}"
    return "\n".join(indent + line for line in [*kept, text])


def attribute(item: griffe.Attribute, indent: str = "") -> str:
    """Return an assignment; a long value is left out."""
    text = indent + item.name + (f": {item.annotation}" if item.annotation is not None else "")
    value = f"{text} = {item.value}" if item.value is not None else text
    return (
        value if len(value) <= WIDTH and "\n" not in value else text if item.annotation is not None else f"{text} = ..."
    )


def stub(cls: griffe.Class) -> str:
    """Return a class with its bases, fields and constructor."""
    lines = [f"@{d.value}" for d in cls.decorators if "dataclass" in str(d.value)]
    bases = f"({', '.join(map(str, cls.bases))})" if cls.bases else ""
    methods = [member for member in cls.members.values() if member.is_function]
    body = [
        attribute(item, "    ")
        for item in cls.members.values()
        if item.is_attribute
        and not item.name.startswith("_")
        and "property" not in item.labels
        # Not what a method assigns to self.
        and not any(method.lineno <= item.lineno <= method.endlineno for method in methods)
    ]
    body += [signature(method, "    ", bound=True) for method in methods if method.name == "__init__"]
    lines.append(f"class {cls.name}{bases}:" + ("" if body else " ..."))
    return "\n".join(lines + body)


def prose(item: griffe.Object) -> Iterator[str]:
    """Yield the docstring as Markdown: paragraphs, and its sections as lists."""
    returns = getattr(item, "returns" if item.is_function else "annotation", None)
    for section in item.docstring.parsed if item.docstring else ():
        kind = section.kind.value
        if kind == "text":
            yield section.value
        elif kind == "admonition":
            yield f"**{section.title}.** {section.value.contents}"
        elif kind in ("returns", "yields"):
            (value,) = section.value
            # The text before a colon is taken for a type.
            before = f"{value.annotation}: " if value.annotation and value.annotation is not returns else ""
            text = f"**{kind.capitalize()}.** {before}{value.description}"
            yield textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
        else:
            yield f"**{TITLES[kind]}**"
            yield "\n".join(entry(element) for element in section.value)


def entry(element: griffe.DocstringElement) -> str:
    """Return an argument, attribute or error as an entry of a list."""
    name = getattr(element, "name", None) or str(element.annotation)
    text = re.sub(r"\n(?=\S)", "\n  ", element.description)
    return f"- `{name}`: {text}"


def described(item: griffe.Object, heading: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {heading}"
    if item.is_class:
        code = stub(item)
    elif item.is_function:
        code = signature(item, bound=level > 3)
    elif "property" in item.labels:
        returns = f" -> {item.annotation}" if item.annotation is not None else ""
        code = f"@property\ndef {item.name}(self){returns}: ..."
    else:
        code = attribute(item)
    yield f"```python\n{code}\n```"
    yield from prose(item)
    for name, member in item.members.items() if item.is_class else ():
        if (name[0] != "_" or name == "__call__") and (member.is_function or "property" in member.labels):
            yield from described(member, f"{item.name}.{name}", level + 1)


def sections() -> Iterator[str]:
    for module, sentence in MODULES.items():
        yield f"## {module}"
        if sentence:
            yield sentence
        path, names = public(module)
        prefix = module.partition(".")[2]
        for name in names:
            yield from described(definition(path, name), f"{prefix}.{name}" if prefix else name, 3)


def render() -> str:
    return HEAD + "\n" + "\n\n".join(sections()) + "\n"


def main() -> int:
    DOCUMENT.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
