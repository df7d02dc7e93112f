"""A program's arguments and flag files: `--name=value`, `--name value`, `--name`, `--noname`, `--flagfile`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path as File

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Document, Item, read_text
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.hyperparameters import KNOWN, apply, known, normal

__all__ = ["apply_arguments", "convert_flags", "looks_like_flags", "read_flags"]

_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
MOST_NESTED = 20


def looks_like_flags(text: str) -> bool:
    """Whether the first line that is no comment begins with a flag."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith(("#", "//"))), "")
    return re.match(r"--?[A-Za-z]", first) is not None


def read_flags(text: str, *, source: str) -> Document:
    """Read a flag file of gflags or absl: an argument a line, comments after # and //.

    A file that is named with --flagfile is read in its place: beside the file that names it, or in the working
    directory, where the flags libraries look.

    Raises:
        ConfigError: A line that is no argument; a file that is not there, or contains itself.
    """
    document = Document(source, [])
    _read(document, text, source, ())
    return document


def _read(document: Document, text: str, source: str, above: tuple[str, ...]) -> None:
    above = (*above, str(File(source).resolve()) if source != "-" else source)
    before: str | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "//")):
            continue
        place = f"{source}, line {number}"
        nested = re.fullmatch(r"--?flagfile(?:=|\s+)(.+)", line)
        if nested:
            _nested(document, nested[1].strip().strip("'\""), source, place, above)
            before = None
            continue
        # `--name value` on one line is what people write who paste the file into a command.
        spaced = re.fullmatch(r"(--?[A-Za-z][\w.-]*)\s+([^=\s].*)", line)
        for token in spaced.groups() if spaced else (line,):
            if not token.startswith("-") and (before is None or "=" in before):
                raise ConfigError(
                    f"{place}: this is no flag, and no value of one.",
                    code="file/bad-format",
                    found=f"{line!r:.70}",
                    hint="write --name=value, one a line; comments begin with # or //.",
                )
            path = (len(document.data),)
            document.data.append({"file": source, "text": token})
            document.lines[path] = number
            before = token


def _nested(document: Document, name: str, source: str, place: str, above: tuple[str, ...]) -> None:
    beside = (File(source).parent / File(name).expanduser()) if source != "-" else File(name).expanduser()
    path = next((p for p in (beside, File(name).expanduser()) if p.is_file()), None)
    if path is None:
        raise ConfigError(
            f"{place}: the flag file {name!r} is not there.",
            code="file/not-found",
            found=f"neither {beside} nor {name} in the working directory",
            hint="put it there, or leave the line out.",
        )
    if str(path.resolve()) in above:
        chain = " -> ".join(File(part).name for part in (*above[above.index(str(path.resolve())) :], str(path)))
        raise ConfigError(
            f"{place}: the flag file {name!r} contains itself.",
            code="file/bad-format",
            found=chain,
            hint="leave one of the lines out.",
        )
    if len(above) > MOST_NESTED:
        raise ConfigError(
            f"{place}: flag files are nested more than {MOST_NESTED} deep.",
            code="file/bad-format",
            hint="put them into one.",
        )
    _read(document, read_text(path), str(path), above)


def convert_flags(draft: JobDraft) -> None:
    """Says of each flag of a flag file what becomes of it."""
    document = draft.document
    document_items = []
    for item in document.items():
        where = "" if item.value["file"] == document.source else f" in {File(item.value['file']).name}"
        document_items.append(Item(item.path, item.value["text"], item.line, where))
    apply_arguments(draft, document_items)


def apply_arguments(draft: JobDraft, tokens: Iterable[Item]) -> None:
    """Says of each argument of a program what becomes of it.

    Args:
        draft: The job so far; its cluster is known already.
        tokens: The arguments, in their order; `field` of each is what a report puts behind its name.
    """
    pairs = _pairs(draft, list(tokens))
    last = {normal(name): i for i, (name, _) in enumerate(pairs)}
    single: list[tuple[str, Item]] = []
    for i, (name, item) in enumerate(pairs):
        again = pairs[last[normal(name)]][1]
        if i != last[normal(name)] and normal(name) in KNOWN:
            line = f" in line {again.line}" if again.line else ""
            draft.drop(item, f"given again{line}, which counts")
        else:
            single.append((name, item))
    apply(draft, single)


def _pairs(draft: JobDraft, tokens: list[Item]) -> list[tuple[str, Item]]:
    """Name and value of each flag. What is no flag becomes a decision."""
    names = {normal(found[1]) for token in tokens if (found := _FLAG.fullmatch(str(token.value)))}
    pairs: list[tuple[str, Item]] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        text = str(token.value)
        if text == "--":
            draft.drop(token, "the end of the flags")
            continue
        found = _FLAG.fullmatch(text)
        if found is None:
            draft.decide(Item(token.path, token.value, token.line), "an argument that belongs to no flag")
            continue
        name, value = found[1], found[2]
        written = f"--{name}{token.field or ''}"
        own: object = value
        if value is None:
            following = str(tokens[at].value) if at < len(tokens) else "-"
            if not re.match(r"-(?![\d.])", following):
                own = following
                draft.joined.add(tokens[at].path)
                at += 1
            else:
                own = True
                positive = re.fullmatch(r"no[-_]?(\w[\w.-]*)", name)
                if positive and not known(name):
                    if not known(positive[1]) and normal(positive[1]) not in names:
                        item = Item(token.path, True, token.line, written)
                        draft.decide(item, f"either --{positive[1]}=false, or a flag of this very name")
                        continue
                    name, own = positive[1], False
        pairs.append((name, Item(token.path, own, token.line, written)))
    return pairs
