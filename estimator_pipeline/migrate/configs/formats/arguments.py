"""Command-line arguments and flag files: `--name=value`, `--name value`, `--name`, `--noname`, `--flagfile`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path as File

from estimator_pipeline.migrate.configs.documents import Document, Item, bad, read_text
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.hyperparameters import KNOWN, Computed, apply, known, normal

__all__ = ["apply_arguments", "convert_flags", "looks_like_flags", "pairs_of", "read_flags"]

_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
MOST_NESTED = 20


def looks_like_flags(text: str) -> bool:
    """Return whether the first line that is not a comment starts with a flag."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith(("#", "//"))), "")
    return re.match(r"--?[A-Za-z]", first) is not None


def read_flags(text: str, *, source: str) -> Document:
    """Read a flag file of gflags or absl, with one argument per line.

    Comments start with # or //. The content of a file named with --flagfile replaces that flag. The file is looked up
    beside the file that names it, then in the working directory, as the flags libraries do.

    Raises:
        ConfigError: A line is not an argument, or a flag file does not exist or contains itself.
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
        # `--name value` on one line also works when the file is pasted into a command.
        spaced = re.fullmatch(r"(--?[A-Za-z][\w.-]*)\s+([^=\s].*)", line)
        for token in spaced.groups() if spaced else (line,):
            if not token.startswith("-") and (before is None or "=" in before):
                hint = "write --name=value, one flag per line; comments start with # or //"
                raise bad(f"{place}: this is neither a flag nor the value of a flag", f"{line!r:.70}", hint)
            path = (len(document.data),)
            document.data.append({"file": source, "text": token})
            document.lines[path] = number
            before = token


def _nested(document: Document, name: str, source: str, place: str, above: tuple[str, ...]) -> None:
    beside = (File(source).parent / File(name).expanduser()) if source != "-" else File(name).expanduser()
    path = next((p for p in (beside, File(name).expanduser()) if p.is_file()), None)
    if path is None:
        actual = f"neither {beside} nor {name} in the working directory"
        problem = f"{place}: the flag file {name!r} does not exist"
        raise bad(problem, actual, "create it, or remove the line", code="file/not-found")
    if str(path.resolve()) in above:
        chain = " -> ".join(File(part).name for part in (*above[above.index(str(path.resolve())) :], str(path)))
        raise bad(f"{place}: the flag file {name!r} contains itself", chain, "remove one of the lines")
    if len(above) > MOST_NESTED:
        raise bad(f"{place}: flag files are nested more than {MOST_NESTED} deep", None, "merge them into one file")
    _read(document, read_text(path), str(path), above)


def convert_flags(draft: JobDraft) -> None:
    """Convert each flag of a flag file."""
    document = draft.document
    document_items = []
    for item in document.items():
        where = "" if item.value["file"] == document.source else f" in {File(item.value['file']).name}"
        document_items.append(Item(item.path, item.value["text"], item.line, where))
    apply_arguments(draft, document_items)


def apply_arguments(draft: JobDraft, tokens: Iterable[Item]) -> None:
    """Convert each argument of a program.

    Args:
        draft: The job under construction, with its cluster.
        tokens: The arguments, in order. The `field` of each is the text that a report adds to its name.
    """
    pairs = pairs_of(draft, list(tokens))
    last = {normal(name): i for i, (name, _) in enumerate(pairs)}
    single: list[tuple[str, Item]] = []
    for i, (name, item) in enumerate(pairs):
        again = pairs[last[normal(name)]][1]
        if i != last[normal(name)] and normal(name) in KNOWN:
            line = f" in line {again.line}" if again.line else ""
            draft.drop(item, f"overridden by the same flag{line}")
        else:
            single.append((name, item))
    apply(draft, single)


def pairs_of(draft: JobDraft, tokens: list[Item]) -> list[tuple[str, Item]]:
    """Return the name and value of each flag; other arguments become decisions."""
    names = {normal(match[1]) for token in tokens if (match := _FLAG.fullmatch(str(token.value)))}
    pairs: list[tuple[str, Item]] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token.value == "--":
            draft.drop(token, "the end of the flags")
            continue
        match = _FLAG.fullmatch(str(token.value))
        if match is None and isinstance(token.value, Computed):
            draft.decide(Item(token.path, token.value, token.line), "arguments that only the shell knows")
            pairs = _uncertain(pairs)
            continue
        if match is None:
            draft.decide(Item(token.path, token.value, token.line), "an argument that belongs to no flag")
            continue
        name, value = match[1], match[2]
        written = f"--{name}{token.field or ''}"
        if value is not None and isinstance(token.value, Computed):
            value = Computed(value)
        elif value is None:
            following = tokens[at].value if at < len(tokens) else "-"
            if not re.match(r"-(?![\d.])", str(following)):
                value = following if isinstance(following, Computed) else str(following)
                if isinstance(following, Computed) and not known(name):
                    pairs = _uncertain(pairs)  # the flag may have no value, and these be other arguments
                draft.joined.add(tokens[at].path)
                at += 1
            else:
                value = True
                positive = re.fullmatch(r"no[-_]?(\w[\w.-]*)", name)
                if positive and not known(name):
                    if not known(positive[1]) and normal(positive[1]) not in names:
                        item = Item(token.path, True, token.line, written)
                        draft.decide(item, f"either --{positive[1]}=false, or a flag with exactly this name")
                        continue
                    name, value = positive[1], False
        pairs.append((name, Item(token.path, value, token.line, written)))
    return pairs


def _uncertain(pairs: list[tuple[str, Item]]) -> list[tuple[str, Item]]:
    """Return flags that later arguments may override, with values that only the shell knows."""
    return [(name, item._replace(value=Computed(item.value))) for name, item in pairs]
