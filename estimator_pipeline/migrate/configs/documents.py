"""Configuration files as plain values, with the line of each value: JSON, YAML and other text."""

from __future__ import annotations

import bisect
import datetime
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from json import decoder
from pathlib import Path as File
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.loading import yaml_error
from estimator_pipeline.utils.io_errors import code_of

__all__ = ["Document", "Item", "Path", "dotted", "read_json", "read_text", "read_yaml"]

Path = tuple[str | int, ...]

MOST_BYTES = 16 * 1024 * 1024
MOST_YAML = 2 * 1024 * 1024
MOST_VALUES = 100_000
"""YAML aliases can expand to millions of values. Such a file is rejected before it fills the memory."""
DEEPEST = 100


class Item(NamedTuple):
    """One field of a source.

    Attributes:
        path: Keys and list indices, from the top.
        value: The value, as plain Python values.
        line: Its line, counted from 1; None for a format without lines.
        field: The name to show instead of the path ("--learning-rate" in a list of arguments).
    """

    path: Path
    value: Any
    line: int | None = None
    field: str | None = None

    @property
    def name(self) -> str:
        """Return the short name for reports, which show the line beside it."""
        return self.field or re.sub(r"^spec\.tfReplicaSpecs\.(\w+)\.(template\.(spec\.)?)?", r"\1: ", dotted(self.path))

    @property
    def place(self) -> str:
        """Return the name, with the line if there is one."""
        return f"{self.name} (line {self.line})" if self.line else self.name


@dataclass
class Document:
    """The parsed content of a configuration file.

    Attributes:
        source: The file's name, for messages.
        data: Its content as plain values.
        lines: Path -> line.
        kind: "json", "yaml" or "text".
    """

    source: str
    data: Any
    lines: dict[Path, int] = field(default_factory=dict)
    kind: str = "text"

    def line(self, path: Path) -> int | None:
        """Return the line of a field, or of its nearest parent that has a line."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def item(self, *path: str | int, field: str | None = None) -> Item | None:
        """Return the field at a path, or None if the path does not exist."""
        value = self.data
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return Item(path, value, self.line(path), field)

    def items(self, *path: str | int) -> list[Item]:
        """Return the fields of a mapping, or the items of a list."""
        at = self.item(*path)
        if at is None:
            return []
        keys: Any = at.value if isinstance(at.value, dict) else range(len(at.value)) if _is_list(at.value) else ()
        return [Item((*path, key), at.value[key], self.line((*path, key))) for key in keys]

    def leaves(self) -> Iterator[Path]:
        """Yield the path of every leaf value."""
        yield from _leaves(self.data, ())


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if _is_list(value) else ()
    if not inner or not value:
        yield path
        return
    for key, item in inner:
        yield from _leaves(item, (*path, key))


def dotted(path: Path) -> str:
    """Format a path: `("args", 3)` -> "args[3]"."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


# Text ------------------------------------------------------------------------------------------------------------


def read_text(path: str | File, *, stdin: Any = None) -> str:
    """Return a file's text.

    Args:
        path: The file, or "-" for standard input.
        stdin: A binary stream, for "-".

    Raises:
        ConfigError: The file cannot be read, is not text, is empty, or is too large.
    """
    source = str(path)
    try:
        raw = stdin.read(MOST_BYTES + 1) if source == "-" else _bytes_of(File(path))
    except OSError as error:
        raise ConfigError(
            f"the configuration {source!r} cannot be read: {error.strerror or error}.",
            code=code_of(error),
            hint="name an existing file.",
        ) from None
    if len(raw) > MOST_BYTES:
        raise ConfigError(
            f"{source} is too large for a configuration.",
            code="file/unreadable",
            found=f"more than {MOST_BYTES // 2**20} MiB",
            hint="name the file with only the configuration; from a log, copy the line `Using config: {...}`.",
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{source} is not UTF-8 text: {error.reason} at byte {error.start}.",
            code="file/unreadable",
            found=f"the bytes {raw[error.start : error.start + 8]!r}",
            hint="save it as UTF-8; for a pickle or a protocol buffer, let the program that created it write JSON.",
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigError(
            f"{source} is not text: line {line} contains a null byte.",
            code="file/unreadable",
            hint="save it as UTF-8 text; for a binary file, let the program that created it write JSON.",
        )
    if not text.strip():
        raise ConfigError(
            f"{source} is empty.", code="file/unreadable", found="no text", hint="name the file with the configuration."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bytes_of(path: File) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


# JSON ------------------------------------------------------------------------------------------------------------

_SPACE = re.compile(r"[ \t\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?(?![\w.])")
_WORDS = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}


def read_json(text: str, *, source: str) -> Document:
    """Read JSON and record the line of each value.

    Duplicate keys are rejected, because JSON parsers disagree on which value counts.

    Raises:
        ConfigError: The text is not JSON. The message has the line and the column.
    """
    reader = _Json(text, source)
    return Document(source, reader.document(), reader.lines, "json")


class _Json:
    """A JSON parser that records lines, which the standard library's parser does not."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.lines: dict[Path, int] = {}
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def document(self) -> Any:
        value, at = self._value(self._skip(0), ())
        at = self._skip(at)
        if at < len(self.text):
            raise self._error(at, "there is more after the end of the value")
        return value

    def _skip(self, at: int) -> int:
        space = _SPACE.match(self.text, at)
        return space.end() if space else at

    def _line(self, at: int) -> int:
        return bisect.bisect_right(self._starts, at)

    def _error(self, at: int, problem: str, *, found: str | None = None, hint: str | None = None) -> ConfigError:
        line = self._line(at)
        start = self._starts[line - 1]
        shown = self.text[start:].split("\n", 1)[0].strip()
        return ConfigError(
            f"{self.source}, line {line}, column {at - start + 1}: this is not JSON: {problem}.",
            code="file/bad-format",
            found=found or f"the line {shown!r:.90}",
            hint=hint or "correct it there or just above.",
        )

    def _value(self, at: int, path: Path) -> tuple[Any, int]:
        if len(path) > DEEPEST:
            raise self._error(at, f"values are nested more than {DEEPEST} deep")
        if len(self.lines) > MOST_VALUES:
            raise self._error(at, f"there are more than {MOST_VALUES} values")
        self.lines.setdefault(path, self._line(at))
        first = self.text[at : at + 1]
        if first == "{":
            return self._object(at + 1, path)
        if first == "[":
            return self._array(at + 1, path)
        if first == '"':
            return self._string(at + 1)
        for word, value in _WORDS.items():
            if self.text.startswith(word, at):
                return value, at + len(word)
        number = _NUMBER.match(self.text, at)
        if number is None:
            raise self._error(at, "a value is missing" if not first else f"no value starts with {first!r}")
        try:
            value = float(number[0]) if number[1] or number[2] else int(number[0])
        except ValueError:
            raise self._error(at, f"a number of {len(number[0])} digits", found=f"{number[0]:.40}...") from None
        return value, number.end()

    def _string(self, at: int) -> tuple[str, int]:
        try:
            value, end = decoder.scanstring(self.text, at, True)  # type: ignore[attr-defined]
        except json.JSONDecodeError as error:
            raise self._error(error.pos, error.msg[:1].lower() + error.msg[1:]) from None
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self._error(at, "an incomplete surrogate pair", hint="write the character itself, in UTF-8.")
        return value, end

    def _object(self, at: int, path: Path) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        at = self._skip(at)
        if self.text[at : at + 1] == "}":
            return result, at + 1
        while True:
            if self.text[at : at + 1] != '"':
                raise self._error(at, "a key in double quotes is missing")
            start = at
            key, at = self._string(at + 1)
            if key in result:
                raise ConfigError(
                    f"{self.source}, line {self._line(start)}: the key {key!r} appears twice in one object.",
                    code="file/bad-format",
                    found=f"the first one in line {self.lines[(*path, key)]}",
                    hint="keep one of the two.",
                )
            self.lines[(*path, key)] = self._line(start)
            at = self._skip(at)
            if self.text[at : at + 1] != ":":
                raise self._error(at, "a colon is missing after the key")
            result[key], at = self._value(self._skip(at + 1), (*path, key))
            at = self._skip(at)
            if self.text[at : at + 1] == "}":
                return result, at + 1
            if self.text[at : at + 1] != ",":
                raise self._error(at, "a comma or a closing brace is missing")
            at = self._skip(at + 1)

    def _array(self, at: int, path: Path) -> tuple[list[Any], int]:
        result: list[Any] = []
        at = self._skip(at)
        if self.text[at : at + 1] == "]":
            return result, at + 1
        while True:
            value, at = self._value(at, (*path, len(result)))
            result.append(value)
            at = self._skip(at)
            if self.text[at : at + 1] == "]":
                return result, at + 1
            if self.text[at : at + 1] != ",":
                raise self._error(at, "a comma or a closing bracket is missing")
            at = self._skip(at + 1)


# YAML ------------------------------------------------------------------------------------------------------------


def read_yaml(text: str, *, source: str) -> list[Document]:
    """Read YAML with one or more documents; empty documents are skipped.

    Documents are separated by `---`. Anchors, aliases and merge keys are resolved. A value with a tag that creates an
    object is rejected.

    Raises:
        ConfigError: The text is not YAML (the message has the line), or a value is of an unsupported type.
    """
    if len(text) > MOST_YAML or re.search(rf"(?:[\[{{]\s*){{{DEEPEST + 1}}}", text):
        raise ConfigError(
            f"{source}: the YAML is too long, or nested too deeply.",
            code="file/bad-format",
            found=f"{len(text)} characters; allowed: {MOST_YAML}, and {DEEPEST} levels",
            hint="name the file with the configuration itself.",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an anchor that is defined again: the later definition applies
            for root in YAML(typ="rt", pure=True).compose_all(text):
                _check_aliases(root, source)
            loaded = list(YAML(typ="rt", pure=True).load_all(text))
    except (YAMLError, ValueError) as error:
        raise yaml_error(error, text, source=source) from None
    except RecursionError:
        raise ConfigError(
            f"{source}: values are nested too deeply.", code="file/bad-format", hint="name a different file."
        ) from None
    documents = []
    for value in loaded:
        if value is not None:
            lines: dict[Path, int] = {}
            documents.append(Document(source, _plain(value, (), lines, source, []), lines, "yaml"))
    return documents


def _check_aliases(root: Any, source: str) -> None:
    """Reject values that contain themselves, and aliases that expand too far."""
    count = 0

    def walk(node: Any, above: tuple[int, ...]) -> None:
        nonlocal count
        count += 1
        if id(node) in above or count > MOST_VALUES or len(above) > DEEPEST:
            itself = id(node) in above
            raise ConfigError(
                f"{source}, line {node.start_mark.line + 1}: "
                + ("a value contains itself." if itself else "too many values, or values nested too deeply."),
                code="file/bad-format",
                found="an alias of a parent value" if itself else f"allowed: {MOST_VALUES} values, aliases expanded",
                hint="replace the alias with its value.",
            )
        inner = node.value if node is not None and isinstance(node.value, list) else []
        for child in inner:
            for part in child if isinstance(child, tuple) else (child,):
                walk(part, (*above, id(node)))

    if root is not None:
        walk(root, ())


def _plain(value: Any, path: Path, lines: dict[Path, int], source: str, count: list[None]) -> Any:
    """Convert ruamel's values to plain values, and record their lines in `lines`."""
    count.append(None)
    if len(path) > DEEPEST or len(count) > MOST_VALUES:
        raise ConfigError(
            f"{source}: too many values, or values nested too deeply.",
            code="file/bad-format",
            found=f"allowed: {MOST_VALUES} values, aliases expanded, {DEEPEST} levels",
            hint="replace aliases with their values, or name a different file.",
        )
    known = (getattr(getattr(value, "lc", None), "data", None) or {}) if isinstance(value, Mapping | list) else {}
    if isinstance(value, Mapping):
        result = {}
        for key, item in value.items():
            at = known.get(key)
            place = f"{source}, line {at[0] + 1}" if at else source
            if not isinstance(key, str):
                raise ConfigError(
                    f"{place}: the key {key!r} is not text.",
                    code="file/bad-format",
                    found=f"a key of type {type(key).__name__}",
                    hint=f'write it in quotes: "{key}".',
                )
            if at:
                lines[(*path, str(key))] = at[0] + 1
            result[str(key)] = _plain(item, (*path, str(key)), lines, source, count)
        return result
    if isinstance(value, list | tuple):
        for i in range(len(value)):
            if known.get(i):
                lines[(*path, i)] = known[i][0] + 1
        return [_plain(item, (*path, i), lines, source, count) for i, item in enumerate(value)]
    if isinstance(value, bool | ScalarBoolean):
        return bool(value)
    for kind in (int, float, str):
        # ruamel's subclasses of these types remember how the number or text was written.
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    if isinstance(value, datetime.date):
        # A date without quotes, such as creationTimestamp.
        return value.isoformat()
    tag = getattr(value, "tag", None)
    raise ConfigError(
        f"{source}: {dotted(path)}: unsupported type of value.",
        code="file/bad-format",
        found=f"the tag {tag.value}" if tag is not None and tag.value else f"a {type(value).__name__}",
        hint="quote the value if it is text.",
    )
