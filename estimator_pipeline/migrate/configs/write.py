"""The text of the job file: each field with its origin, each decision beside the section that it belongs to."""

from __future__ import annotations

import json
import math
import re
import textwrap
from typing import TYPE_CHECKING, Any

from estimator_pipeline.job.placeholders import PLACEHOLDER
from estimator_pipeline.migrate.configs.documents import Path, dotted
from estimator_pipeline.migrate.configs.findings import ConfigFinding, JobDraft

if TYPE_CHECKING:
    from estimator_pipeline.migrate.configs.detect import Format

__all__ = ["flow", "job_text", "shown"]

WIDTH = 110
# Text that YAML 1.1 and 1.2 read as text without quotes.
_BARE = re.compile(r"[A-Za-z_./][\w./@+-]*(://[\w./@+-]+)?")
_RESERVED = re.compile(r"(?i)(true|false|null|yes|no|on|off|y|n|~|\.inf|\.nan|[-+.\d][\d_.eE+-]*)")


def job_text(draft: JobDraft, data: dict[str, Any], known: Format) -> str:
    """Return the YAML of a job file, with comments.

    Args:
        draft: The findings for each field.
        data: The job as plain values, with placeholders.
        known: The format of the configuration.
    """
    writer = _Writer(draft)
    writer.comment(f"From {draft.document.source}, {known.description}, by estimator-pipeline migrate config.", "")
    if draft.placeholders:
        writer.comment(f"{PLACEHOLDER}: missing value; the job is rejected until you set it.", "")
    for section, value in data.items():
        writer.section(section, value)
    writer.rest(data)
    return "\n".join(writer.lines) + "\n"


class _Writer:
    """The lines of the job file."""

    def __init__(self, draft: JobDraft) -> None:
        self.draft = draft
        self.lines: list[str] = []
        self.written: set[int] = set()

    def comment(self, text: str, indent: str) -> None:
        width = WIDTH - len(indent) - 2
        text = " ".join(text.split())
        printable = "".join(letter if letter.isprintable() else "?" for letter in text)
        for line in textwrap.wrap(printable, width, break_long_words=False, break_on_hyphens=False):
            self.lines.append(f"{indent}# {line}")

    def section(self, name: str, value: Any) -> None:
        self.field((name,), value, "")
        self.decisions(name, "  " if isinstance(value, dict) and value else "")

    def decisions(self, section: str, indent: str) -> None:
        for finding in self.draft.findings:
            if finding.state == "needs a decision" and finding.to and finding.to[0] == section:
                self.decision(finding, indent)

    def decision(self, finding: ConfigFinding, indent: str) -> None:
        self.written.add(id(finding))
        to = f"{dotted(finding.to)}: " if finding.to else ""
        self.comment(f"DECIDE {to}{finding.item.place} was {shown(finding.item.value)}: {finding.why}", indent)

    def field(self, path: Path, value: Any, indent: str) -> None:
        notes = self.notes(path)
        key = flow(path[-1])
        if isinstance(value, dict) and value:
            for note in notes:
                self.comment(note, indent)
            self.lines.append(f"{indent}{key}:")
            for name, inner in value.items():
                self.field((*path, name), inner, indent + "  ")
            return
        line = f"{indent}{key}: {PLACEHOLDER if value == PLACEHOLDER else flow(value)}"
        if len(notes) == 1 and len(line) + len(notes[0]) + 4 <= WIDTH and notes[0].isprintable():
            self.lines.append(f"{line}  # {notes[0]}")
            return
        for note in notes:
            self.comment(note, indent)
        self.lines.append(line)

    def notes(self, path: Path) -> list[str]:
        """Return comments with the origin of a field, or why it is missing."""
        notes = [_origin(f) for f in self.draft.findings if f.state == "taken" and f.to and _same(f.to, path)]
        if path in self.draft.derived:
            notes.append(self.draft.derived[path])
        if path in self.draft.placeholders:
            notes.append(self.draft.placeholders[path])
        return notes

    def rest(self, data: dict[str, Any]) -> None:
        """Write decisions without a section, and fields no longer needed."""
        others = [f for f in self.draft.findings if f.state == "needs a decision" and id(f) not in self.written]
        if others:
            self.lines.append("")
            self.comment("Decisions that belong to no section above:", "")
            for finding in others:
                self.decision(finding, "")
        dropped = [f for f in self.draft.findings if f.state == "no longer needed"]
        if dropped:
            self.lines.append("")
            self.comment("No longer needed:", "")
            for finding in dropped:
                self.comment(f"{finding.item.place}: {shown(finding.item.value)}: {finding.why}", "")


def _same(to: Path, path: Path) -> bool:
    # The origin of an item added to a list is written at the list.
    return to == path or (to[:-1] == path and isinstance(to[-1], int))


def _origin(finding: ConfigFinding) -> str:
    source_value = finding.item.value
    value = "" if source_value == finding.job_value or isinstance(source_value, dict) else f" {shown(source_value)}"
    why = f"; {finding.why}" if finding.why else ""
    return f"{finding.item.place}{value}{why}"


def shown(value: Any, most: int = 60) -> str:
    """Format a value on one line, shortened to `most` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split()) or "empty"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def flow(value: Any) -> str:
    """Format a value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(inner) for inner in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if _BARE.fullmatch(text) and not _RESERVED.fullmatch(text):
        return text
    return '"' + "".join(_escaped(letter) for letter in text) + '"'


def _number(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    # YAML 1.1 reads 1e-05 as text: the mantissa needs a decimal point.
    return text if "e" not in text or "." in text else text.replace("e", ".0e")


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
