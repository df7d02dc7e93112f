"""Report of a scan as text for a terminal or a log."""

from __future__ import annotations

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.findings import (
    AUTOMATIC,
    MANUAL,
    TREATMENTS,
    UNCHANGED,
    CodeFinding,
    Scan,
    first_steps,
)
from estimator_pipeline.migrate.code.verdicts import RENAMED, VERDICTS

__all__ = ["text"]

MEANING = {
    UNCHANGED: "runs unchanged on TensorFlow 2.15 to 2.21, under exec or compat.install()",
    AUTOMATIC: "`migrate convert` converts it",
    MANUAL: "does not run unchanged; the reason names the replacement",
}


def text(scan: Scan) -> str:
    """Return the report: totals, next steps, each file with its verdict and constructs, and the Keras replacements."""
    reported = _reported(scan)
    if not reported:
        parts = [_headline(scan), _skipped(scan)]
    else:
        parts = [_headline(scan), _totals(scan), _first(scan), _kinds(scan)]
        parts += [_file(scan, path, findings) for path, findings in reported.items()]
        parts += [_successors(scan), _skipped(scan)]
    return "\n\n".join(part for part in parts if part)


def _headline(scan: Scan) -> str:
    """Return the result of a scan in one sentence."""
    if not scan.findings:
        return f"{scan.root}: no tf.estimator constructs in {scan.files} files"
    manual, automatic = scan.count(MANUAL), scan.count(AUTOMATIC)
    if automatic:
        runs = f"{automatic} automatic, {manual} manual"
    elif manual:
        runs = f"{manual} manual: they do not run unchanged"
    else:
        runs = "the program runs unchanged under `estimator-pipeline exec`"
    where = f"{len(scan.findings)} constructs in {len(scan.by_file())} of {scan.files} files"
    return f"{scan.root}: {where}; {runs}"


def _reported(scan: Scan) -> dict[str, list[CodeFinding]]:
    """Return path -> findings for the files to report, sorted by path."""
    by_path = scan.by_file()
    reported = [
        verdict.notebook or verdict.path
        for verdict in scan.verdicts.values()
        if verdict.why or verdict.verdict == RENAMED
    ]
    return {path: by_path.get(path, []) for path in sorted({*by_path, *reported})}


def _kinds(scan: Scan) -> str:
    if not scan.findings:
        return ""
    names: dict[str | None, str] = {kind: catalogue.KINDS[kind] for kind in scan.kinds()} | {None: "all"}
    width = max(map(len, names.values()))
    lines = [" " * width + "".join(f"{treatment:>12}" for treatment in TREATMENTS)]
    for kind, name in names.items():
        lines.append(f"{name:<{width}}" + "".join(f"{scan.count(t, kind) or '':>12}" for t in TREATMENTS))
    lines += ["", *(f"{t}: {MEANING[t]}" for t in TREATMENTS if scan.count(t))]
    return "\n".join(lines)


def _totals(scan: Scan) -> str:
    """Return the number of files with each verdict."""
    lines = [f"{scan.judged(word):>6}  {meaning}" for word, meaning in VERDICTS.items() if scan.judged(word)]
    return "\n".join(["Files", *lines]) if lines else ""


def _first(scan: Scan) -> str:
    steps = first_steps(scan)
    return "\n".join(["Next steps", *(f"{at:>3}. {step}" for at, step in enumerate(steps, 1))]) if steps else ""


def _file(scan: Scan, path: str, findings: list[CodeFinding]) -> str:
    lines = []
    for verdict in scan.verdicts.values():
        if path not in (verdict.path, verdict.notebook):
            continue
        written = f" writes {verdict.path}, which" if verdict.notebook else ":"
        lines.append(f"{path}{written} {verdict.describe()}")
        lines += [f"    {verdict.stops_at}: {verdict.source}"] if verdict.source else []
    lines = lines or [path]
    if not findings:
        return "\n".join(lines)
    places = [finding.place for finding in findings]
    wide = min(max(map(len, places)), 48)
    named = min(max(len(_named(finding)) for finding in findings), 60)
    for finding, place in zip(findings, places, strict=True):
        row = f"  {place:<{wide}}  {_named(finding):<{named}}  {finding.treatment:<9}"
        why = "" if finding.treatment == UNCHANGED and not finding.keep else f"  {finding.reason}"
        keep = f"; write {finding.keep}" if finding.keep else ""
        lines.append(f"{row}{why}{keep}".rstrip())
    return "\n".join(lines)


def _named(finding: CodeFinding) -> str:
    """Return the name as the program spells it, with details of the construct."""
    details = finding.details
    if "function" in details:
        handled = [f"handles {', '.join(details['modes'])}"] if details.get("modes") else []
        certainty = [finding.certainty] if finding.certainty != "resolved" else []
        inside = "; ".join([*handled, *certainty])
        return f"{finding.name} {details['function']}" + (f" ({inside})" if inside else "")
    if "class" in details:
        return f"class {details['class']}({details['base']})"
    if "modes" in details:
        return f"{finding.spelled} ({', '.join(details['modes'])})"
    sure = finding.certainty == "resolved"
    return finding.spelled if sure else f"{finding.spelled} ({finding.certainty})"


def _successors(scan: Scan) -> str:
    """Return the Keras replacements, once for each name."""
    rows: dict[str, CodeFinding] = {}
    for finding in scan.findings:
        if finding.successor:
            rows.setdefault(finding.name, finding)
    if not rows:
        return ""
    width = min(max(map(len, rows)), 56)
    lines = ["Keras replacements (with code: --json)"]
    for name in sorted(rows):
        lines.append(f"  {name:<{width}}  {rows[name].successor}")
    return "\n".join(lines)


def _skipped(scan: Scan) -> str:
    if not scan.skipped:
        return ""
    return "\n".join(["Not read", *(f"  {skipped.path}: {skipped.why}" for skipped in scan.skipped)])
