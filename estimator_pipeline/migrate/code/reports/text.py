"""A scan as text for a terminal or a log."""

from __future__ import annotations

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.findings import AUTOMATIC, MANUAL, TREATMENTS, UNCHANGED, CodeFinding, Scan

__all__ = ["text"]

_HEAD = {UNCHANGED: "unchanged", AUTOMATIC: "automatic", MANUAL: "manual"}
MEANING = {
    UNCHANGED: "runs unchanged on TensorFlow 2.15 to 2.21, under exec or compat.install()",
    AUTOMATIC: "`migrate convert` converts it",
    MANUAL: "does not run as it stands; its reason says what to write",
}


def text(scan: Scan) -> str:
    """The whole of it: sums by kind, then each file with its constructs, then what to write."""
    parts = [_summary(scan)]
    parts += [_file(path, findings) for path, findings in scan.by_file().items()]
    parts += [part for part in (_successors(scan), _skipped(scan)) if part]
    return "\n\n".join(parts)


def headline(scan: Scan) -> str:
    """A sentence that says how it stands."""
    if not scan.findings:
        return f"{scan.root}: nothing of tf.estimator in {scan.files} files"
    manual, automatic = scan.count(MANUAL), scan.count(AUTOMATIC)
    if automatic:
        runs = f"{automatic} can be converted, {manual or 'none'} have to be written by hand"
    elif manual:
        runs = f"{manual} of them do not run as they stand"
    else:
        runs = "the program runs unchanged under compat"
    where = f"{len(scan.findings)} constructs in {len(scan.by_file())} of {scan.files} files"
    return f"{scan.root}: {where}; {runs}"


def _summary(scan: Scan) -> str:
    lines = [headline(scan), ""]
    if not scan.findings:
        return lines[0]
    names = [catalogue.KINDS[kind] for kind in scan.kinds()]
    width = max(map(len, [*names, "all"]))
    lines.append(" " * width + "".join(f"{_HEAD[name]:>12}" for name in TREATMENTS))
    for kind, name in zip(scan.kinds(), names, strict=True):
        lines.append(f"{name:<{width}}" + "".join(f"{scan.count(t, kind) or '':>12}" for t in TREATMENTS))
    lines.append(f"{'all':<{width}}" + "".join(f"{scan.count(t) or '':>12}" for t in TREATMENTS))
    lines += ["", *(f"{_HEAD[t]}: {MEANING[t]}" for t in TREATMENTS if scan.count(t))]
    return "\n".join(lines)


def _file(path: str, findings: list[CodeFinding]) -> str:
    lines = [f"{path}"]
    places = [finding.place for finding in findings]
    wide = min(max(map(len, places)), 48)
    named = min(max(len(_named(finding)) for finding in findings), 60)
    for finding, place in zip(findings, places, strict=True):
        told = f"  {place:<{wide}}  {_named(finding):<{named}}  {finding.treatment:<9}"
        why = "" if finding.treatment == UNCHANGED and not finding.keep else f"  {finding.reason}"
        keep = f"; write {finding.keep}" if finding.keep else ""
        lines.append(f"{told}{why}{keep}".rstrip())
    return "\n".join(lines)


def _named(finding: CodeFinding) -> str:
    """The name as the program has it, and what is known of this one."""
    details = finding.details
    if "function" in details:
        told = [f"handles {', '.join(details['modes'])}"] if details.get("modes") else []
        certainty = [finding.certainty] if finding.certainty != "resolved" else []
        inside = "; ".join([*told, *certainty])
        return f"{finding.name} {details['function']}" + (f" ({inside})" if inside else "")
    if "class" in details:
        return f"class {details['class']}({details['base']})"
    if "modes" in details:
        return f"{finding.spelled} ({', '.join(details['modes'])})"
    if "access" in details:
        return f"{finding.name} ({details['access']})"
    sure = finding.certainty == "resolved"
    return finding.spelled if sure else f"{finding.spelled} ({finding.certainty})"


def _successors(scan: Scan) -> str:
    """What takes each construct's place in Keras, once for each name."""
    rows: dict[str, CodeFinding] = {}
    for finding in scan.findings:
        if finding.successor:
            rows.setdefault(finding.name, finding)
    if not rows:
        return ""
    width = min(max(map(len, rows)), 56)
    lines = ["In Keras (code for each: --json, --html)"]
    for name in sorted(rows):
        lines.append(f"  {name:<{width}}  {rows[name].successor}")
    return "\n".join(lines)


def _skipped(scan: Scan) -> str:
    if not scan.skipped:
        return ""
    return "\n".join(["Not read", *(f"  {one.path}: {one.why}" for one in scan.skipped)])
