"""Configuration files as plain values, with the line of each value: JSON, YAML and other text."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, SequenceNode

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.loading import yaml_error
from estimator_pipeline.utils.io_errors import code_of

__all__ = ["Document", "Item", "Path", "bad", "dotted", "read_json", "read_text", "read_yaml"]

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

    def place(self, path: Path) -> str:
        """Return the file and the line of a field, for messages."""
        line = self.line(path)
        return f"{self.source}, line {line}" if line else self.source

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
        keys: Any = (
            at.value if isinstance(at.value, dict) else range(len(at.value)) if isinstance(at.value, list) else ()
        )
        return [Item((*path, key), at.value[key], self.line((*path, key))) for key in keys]

    def leaves(self) -> Iterator[Path]:
        """Yield the path of every leaf value."""
        yield from _leaves(self.data, ())


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not value or not inner:
        yield path
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
        with contextlib.nullcontext(stdin) if source == "-" else File(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        problem = f"the configuration {source!r} cannot be read: {error.strerror or error}."
        raise ConfigError(problem, code=code_of(error), hint="name an existing file.") from None
    except UnicodeDecodeError as error:
        problem, actual = f"{error.reason} at byte {error.start}", f"the bytes {raw[error.start : error.start + 8]!r}"
        hint = "save it as UTF-8; for a pickle or a protocol buffer, let the program that created it write JSON"
        raise bad(f"{source} is not UTF-8 text: {problem}", actual, hint, code="file/unreadable") from None
    if len(raw) > MOST_BYTES:
        hint = "name the file with only the configuration; from a log, copy the line `Using config: {...}`"
        actual = f"more than {MOST_BYTES // 2**20} MiB"
        raise bad(f"{source} is too large for a configuration", actual, hint, code="file/unreadable")
    if "\0" in text:
        problem = f"{source} is not text: line {text.count(chr(10), 0, text.index(chr(0))) + 1} contains a null byte"
        hint = "save it as UTF-8 text; for a binary file, let the program that created it write JSON"
        raise bad(problem, None, hint, code="file/unreadable")
    if not text.strip():
        raise bad(f"{source} is empty", "no text", "name the file with the configuration", code="file/unreadable")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def bad(problem: str, actual: str | None, hint: str, *, code: str = "file/bad-format") -> ConfigError:
    """Return an error about the content of a configuration."""
    return ConfigError(f"{problem}.", code=code, found=actual, hint=f"{hint}.")


def _too_many(place: str) -> ConfigError:
    allowed = f"allowed: {MOST_YAML} characters of YAML, {MOST_VALUES} values, aliases expanded, and {DEEPEST} levels"
    return bad(
        f"{place}: too long, too many values, or values nested too deeply", allowed, "name the configuration itself"
    )


# JSON ------------------------------------------------------------------------------------------------------------


def read_json(text: str, *, source: str) -> Document:
    """Read JSON, with the line of each value.

    Duplicate keys are rejected, because JSON parsers disagree on which value counts.

    Raises:
        ConfigError: The text is not JSON. The message has the line.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"{source}, line {error.lineno}, column {error.colno}: this is not JSON: {error.msg.lower()}"
        shown = error.doc.split("\n")[error.lineno - 1].strip()
        raise bad(problem, f"the line {shown!r:.90}", "correct it there or just above") from None
    except ValueError as error:
        raise bad(f"{source}: a number has too many digits", str(error), "write a shorter number") from None
    except RecursionError:
        raise _too_many(source) from None
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        shown = ascii(str(error.object)[error.start : error.end])
        raise bad(f"{source}: an incomplete surrogate pair", shown, "write the character itself, in UTF-8") from None
    # JSON is YAML, except for tabs and a few characters in strings.
    plain = re.sub(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda match: f"\\u{ord(match[0]):04x}", text)
    (document,) = read_yaml(plain.replace("\t", " "), source=source)
    return Document(source, data, document.lines, "json")


# YAML ------------------------------------------------------------------------------------------------------------

_TAG = "tag:yaml.org,2002:"


def read_yaml(text: str, *, source: str) -> list[Document]:
    """Read YAML with one or more documents; empty documents are skipped.

    Documents are separated by `---`. Anchors, aliases and merge keys are resolved. A value with a tag that creates an
    object is rejected.

    Raises:
        ConfigError: The text is not YAML (the message has the line), or a value is of an unsupported type.
    """
    if len(text) > MOST_YAML or re.search(rf"(?:[\[{{]\s*){{{DEEPEST + 1}}}", text):
        raise _too_many(source)
    documents = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an anchor that is defined again: the later definition applies
            yaml = YAML(typ="safe", pure=True)
            for root in [*yaml.compose_all(text)]:
                if root is not None:
                    document = Document(source, None, {}, "yaml")
                    document.data = _Nodes(document, yaml.constructor.construct_object).plain(root, (), ())
                    documents.append(document)
    except (YAMLError, ValueError) as error:
        raise yaml_error(error, text, source=source) from None
    except RecursionError:
        raise _too_many(source) from None
    return [document for document in documents if document.data is not None]


class _Nodes:
    """The values of a document's nodes. The loaders of ruamel read an alias of a parent as null."""

    def __init__(self, document: Document, scalar: Callable[[Any], Any]) -> None:
        self.document, self.scalar, self.count = document, scalar, 0

    def plain(self, node: Any, path: Path, above: tuple[Any, ...]) -> Any:
        """Return the value of a node, and record its lines in the document."""
        place = f"{self.document.source}, line {node.start_mark.line + 1}"
        self.count += 1
        if any(node is parent for parent in above):
            raise bad(f"{place}: a value contains itself", "an alias of a parent", "replace the alias with its value")
        if len(path) > DEEPEST or self.count > MOST_VALUES:
            raise _too_many(place)
        if node.tag.removeprefix(_TAG) not in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp"):
            problem = f"{place}: {dotted(path)}: unsupported type of value"
            raise bad(problem, f"the tag {node.tag}", "quote the value if it is text")
        above = (*above, node)
        if isinstance(node, SequenceNode):
            for i, item in enumerate(node.value):
                self.document.lines[(*path, i)] = item.start_mark.line + 1
            return [self.plain(item, (*path, i), above) for i, item in enumerate(node.value)]
        if not isinstance(node, MappingNode):
            value = self.scalar(node)
            # A date without quotes, such as creationTimestamp.
            return value.isoformat() if isinstance(value, datetime.date) else value
        result: dict[str, Any] = {}
        seen: set[str] = set()
        # Merge keys first: all other keys override them.
        for key, value in sorted(node.value, key=lambda entry: bool(entry[0].tag != f"{_TAG}merge")):
            place = f"{self.document.source}, line {key.start_mark.line + 1}"
            if key.tag == f"{_TAG}merge":
                # Of several mappings, the values of the first apply.
                for part in reversed(value.value) if isinstance(value, SequenceNode) else (value,):
                    inner = self.plain(part, path, above)
                    result.update(inner if isinstance(inner, dict) else {})
                continue
            if key.tag != f"{_TAG}str":
                raise bad(f"{place}: the key {key.value!s:.40} is not text", f"the tag {key.tag}", "write it in quotes")
            if key.value in seen:
                actual = f"the first one in line {self.document.lines[(*path, key.value)]}"
                raise bad(f"{place}: the key {key.value!r} appears twice in one mapping", actual, "keep one of the two")
            seen.add(key.value)
            self.document.lines[(*path, key.value)] = key.start_mark.line + 1
            result[key.value] = self.plain(value, (*path, key.value), above)
        return result
