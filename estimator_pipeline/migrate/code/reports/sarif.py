"""Report of a scan as SARIF 2.1.0, for GitHub code scanning and editors.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0". GitHub reads rules with an id and
help, and results with a physical location and partial fingerprints.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from estimator_pipeline.migrate.code.findings import MANUAL, UNCHANGED, CodeFinding, Scan, source_lines
from estimator_pipeline.utils.version import __version__

__all__ = ["SCHEMA_URI", "sarif"]

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {MANUAL: "warning", UNCHANGED: "note"}


def sarif(scan: Scan) -> dict[str, Any]:
    """Return the SARIF document, with paths relative to the scanned root (`%SRCROOT%`).

    A finding in a notebook has the line within its cell, and the cell in its message: SARIF has no cells.
    """
    names = sorted({finding.name for finding in scan.findings})
    index = {name: number for number, name in enumerate(names)}
    first = {finding.name: finding for finding in reversed(scan.findings)}
    seen: dict[str, int] = {}
    return {
        "$schema": SCHEMA_URI,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "estimator-pipeline migrate scan",
                        "version": __version__,
                        "rules": [_rule(first[name]) for name in names],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {"%SRCROOT%": {"uri": _root_uri(scan.root)}},
                "results": [_result(finding, index, scan, seen) for finding in scan.findings],
            }
        ],
    }


def _root_uri(root: str) -> str:
    path = Path(os.path.abspath(root))
    return (path.parent if path.is_file() else path).as_uri().rstrip("/") + "/"


def rule_id(finding: CodeFinding) -> str:
    return finding.name.replace(" ", "-")


def _rule(finding: CodeFinding) -> dict[str, Any]:
    code = f"\n\n```python\n{finding.write}\n```" if finding.write else ""
    return {
        "id": rule_id(finding),
        "name": "".join(part[:1].upper() + part[1:] for part in finding.kind.split()),
        "shortDescription": {"text": finding.name},
        "fullDescription": {"text": f"{finding.name}, in Keras: {finding.successor}"},
        "help": {
            "text": f"In Keras: {finding.successor}\n{finding.write}",
            "markdown": f"In Keras: {finding.successor}{code}\n\nSee {finding.docs}.",
        },
        "defaultConfiguration": {"level": "note"},
        "properties": {"tags": ["migration", finding.kind]},
    }


def _result(finding: CodeFinding, index: Mapping[str, int], scan: Scan, seen: dict[str, int]) -> dict[str, Any]:
    line = next(iter(source_lines(scan, finding)[finding.line - 1 :]), "")
    key = hashlib.sha256(f"{finding.path}\0{finding.cell}\0{finding.name}\0{line.strip()}".encode()).hexdigest()
    # Equal lines are numbered, so that each has a unique fingerprint that does not depend on line numbers.
    number = seen[key] = seen.get(key, 0) + 1
    cell = "" if finding.cell is None else f" (cell {finding.cell})"
    keep = f". Write: {finding.keep}" if finding.keep else ""
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    return {
        "ruleId": rule_id(finding),
        "ruleIndex": index[finding.name],
        "level": _LEVELS.get(finding.treatment, "note"),
        "message": {"text": f"{finding.spelled}{cell}: {finding.treatment}: {finding.reason}{keep}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(finding.path), "uriBaseId": "%SRCROOT%"},
                    "region": region,
                }
            }
        ],
        "partialFingerprints": {"construct/v1": f"{key[:32]}:{number}"},
        "properties": {"treatment": finding.treatment, "certainty": finding.certainty, "cell": finding.cell},
    }
