"""RunConfig as programs print it: `Using config: {'_model_dir': ..., '_session_config': gpu_options { ... } ...}`.

It looks like a Python dict but is not a literal: it contains protocol buffers as text, and objects as
`<... object at 0x...>`.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from estimator_pipeline.migrate.configs.documents import Document, bad

__all__ = ["LOGGED", "Opaque", "parse_proto", "read_dump"]

LOGGED = re.compile(r"Using config: (?=\{)")
_NAME = re.compile(r"""\s*(['"])(_?[A-Za-z]\w*)\1\s*:\s*""")
_CLOSES = {"{": "}", "[": "]", "(": ")", "<": ">"}


class Opaque(str):
    """The text of a non-literal value: a protocol buffer or an object's repr."""


def read_dump(text: str, *, source: str) -> Document:
    """Read a printed RunConfig, on its own or within a log.

    Raises:
        ConfigError: The text has no such dict, an incomplete dict, or several that differ.
    """
    starts = [match.end() for match in LOGGED.finditer(text)] or [text.index("{") if "{" in text else -1]
    if starts == [-1]:
        hint = "name a log with the line `Using config: {...}`, or the dict itself"
        raise bad(f"{source} has no printed RunConfig", "no `{`", hint)
    dumps = [_entries(text, start, source) for start in starts]
    first_values = {name: value for name, (value, _) in dumps[0].items()}
    for start, other in zip(starts[1:], dumps[1:], strict=True):
        values = {name: value for name, (value, _) in other.items()}
        differ = [name for name in {**first_values, **values} if _differ(first_values.get(name), values.get(name))]
        if differ:
            lines = [text.count("\n", 0, at) + 1 for at in (starts[0], start)]
            problem = f"{source} has several RunConfigs: line {lines[0]} and line {lines[1]} differ in {differ[0]}"
            actual = f"{first_values.get(differ[0])!r:.40} and {values.get(differ[0])!r:.40}"
            raise bad(problem, actual, "copy the line of the RunConfig that you want into a separate file")
    return Document(
        source,
        {name: value for name, (value, _) in dumps[0].items()},
        {(name,): line for name, (_, line) in dumps[0].items()},
        "text",
    )


def _differ(first: Any, second: Any) -> bool:
    # Addresses of objects differ in every process.
    def plain(value: Any) -> str:
        return re.sub(r"0x[0-9A-Fa-f]+", "", re.sub(r"\s+", " ", repr(value)))

    return plain(first) != plain(second)


def _entries(text: str, start: int, source: str) -> dict[str, tuple[Any, int]]:
    result: dict[str, tuple[Any, int]] = {}
    at = start + 1
    while True:
        name = _NAME.match(text, at)
        if name is None:
            if re.match(r"\s*\}", text[at:]):
                return result
            line = text.count("\n", 0, len(text) - len(text[at:].lstrip())) + 1
            problem = f"{source}, line {line}: this is not a printed RunConfig: a quoted name and a colon are missing"
            shown = text[at:].lstrip().split("\n", 1)[0]
            hint = "copy the whole dict, from the opening to the closing brace, or write it as JSON"
            raise bad(problem, f"{shown!r:.70}", hint)
        line = text.count("\n", 0, name.start(2)) + 1
        end = _end_of_value(text, name.end())
        if end is None:
            problem = f"{source}, line {line}: the value of {name[2]!r} does not end"
            raise bad(problem, f"{text[name.end() :]!r:.60}", "copy the whole dict, up to its closing brace")
        key = name[2]
        if key in result:
            problem = f"{source}, line {line}: the name {key!r} appears twice"
            raise bad(problem, f"the first one in line {result[key][1]}", "keep one of the two")
        result[key] = (_value(text[name.end() : end]), line)
        if text[end] == "}":
            return result
        at = end + 1


def _end_of_value(text: str, at: int) -> int | None:
    """Return the index of the comma or brace that ends a value, or None."""
    open_: list[str] = []
    while at < len(text):
        letter = text[at]
        if letter in "'\"":
            end = at + 1
            while end < len(text) and text[end] != letter:
                end += 2 if text[end] == "\\" else 1
            at = end
        elif letter in _CLOSES:
            open_.append(_CLOSES[letter])
        elif open_ and letter == open_[-1]:
            open_.pop()
        elif not open_ and (letter == "}" or (letter == "," and re.match(r",\s*(['\"]_?[A-Za-z]|\})", text[at:]))):
            return at
        at += 1
    return None


def _value(text: str) -> Any:
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return Opaque(text)


# Protocol buffers ------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\n\s*)*(?:(?P<name>[A-Za-z_]\w*)\s*(?P<mark>:|(?=[{<]))|(?P<close>[}>]))[,;]?\s*""", re.VERBOSE
)
_SCALAR = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[-+\w.]+)\s*[,;]?\s*""")


def parse_proto(text: str) -> dict[str, Any] | None:
    """Parse the text format of a protocol buffer; return None for other text."""
    text = text.rstrip()
    message, at = _message(text, 0, 0)
    return message if at >= len(text) else None


def _message(text: str, at: int, depth: int) -> tuple[dict[str, Any] | None, int]:
    result: dict[str, Any] = {}
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or depth > 20:
            return None, at
        at = token.end()
        if token["close"]:
            return (result, at) if depth else (None, at)
        value: Any
        opening = re.compile(r"\s*[{<]").match(text, at)
        if opening:
            value, at = _message(text, opening.end(), depth + 1)
            if value is None:
                return None, at
        else:
            scalar = _SCALAR.match(text, at)
            if scalar is None:
                return None, at
            value, at = _scalar(scalar[1]), scalar.end()
        _add(result, token["name"], value)
    return (None, at) if depth else (result, at)


def _add(result: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, dict) and set(value) <= {"key", "value"} and "key" in value:
        # An entry of a map field, such as device_count.
        result.setdefault(name, {})[str(value["key"])] = value.get("value", 0)
    elif name in result:
        if not isinstance(result[name], list):
            result[name] = [result[name]]
        result[name].append(value)
    else:
        result[name] = value


def _scalar(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # the name of an enum value
