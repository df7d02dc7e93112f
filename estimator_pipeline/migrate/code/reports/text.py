"""A scan as text for a terminal or a log."""

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
from estimator_pipeline.migrate.code.verdicts import RENAMED, VERDICTS, FileVerdict

__all__ = ["MEANING", "files", "headline", "made", "text", "verdicts_of"]

_HEAD = {UNCHANGED: "unchanged", AUTOMATIC: "automatic", MANUAL: "manual"}
MEANING = {
    UNCHANGED: "runs unchanged on TensorFlow 2.15 to 2.21, under exec or compat.install()",
    AUTOMATIC: "`migrate convert` converts it",
    MANUAL: "does not run unchanged; the reason names the replacement",
}


def text(scan: Scan) -> str:
    """The whole of it: sums, what to do first, then each file with its verdict and constructs, then what to write."""
    if not files(scan):
        return "\n\n".join(part for part in (headline(scan), _skipped(scan)) if part)
    head = "\n".join(line for line in (headline(scan), made(scan)) if line)
    parts = [part for part in (head, _totals(scan), _first(scan), _kinds(scan)) if part]
    parts += [_file(scan, path, findings) for path, findings in files(scan).items()]
    parts += [part for part in (_successors(scan), _skipped(scan)) if part]
    return "\n\n".join(parts)


def headline(scan: Scan) -> str:
    """Return a sentence that says how it stands."""
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


def made(scan: Scan) -> str:
    """When, and of what: the day, and the commit of a checkout."""
    commit = f", commit {scan.commit}" if scan.commit else ""
    return f"scanned on {scan.date}{commit}" if scan.date else ""


def files(scan: Scan) -> dict[str, list[CodeFinding]]:
    """Return the user's files that there is something to say of, in their order, each with its findings."""
    found = scan.by_file()
    said = [one.notebook or one.path for one in scan.verdicts.values() if one.why or one.verdict == RENAMED]
    return {path: found.get(path, []) for path in sorted({*found, *said})}


def verdicts_of(scan: Scan, path: str) -> list[FileVerdict]:
    """Return the verdict on a file, and on those that it writes, where it is a notebook."""
    return [one for one in scan.verdicts.values() if path in (one.path, one.notebook)]


def _kinds(scan: Scan) -> str:
    if not scan.findings:
        return ""
    lines = []
    names = [catalogue.KINDS[kind] for kind in scan.kinds()]
    width = max(map(len, [*names, "all"]))
    lines.append(" " * width + "".join(f"{_HEAD[name]:>12}" for name in TREATMENTS))
    for kind, name in zip(scan.kinds(), names, strict=True):
        lines.append(f"{name:<{width}}" + "".join(f"{scan.count(t, kind) or '':>12}" for t in TREATMENTS))
    lines.append(f"{'all':<{width}}" + "".join(f"{scan.count(t) or '':>12}" for t in TREATMENTS))
    lines += ["", *(f"{_HEAD[t]}: {MEANING[t]}" for t in TREATMENTS if scan.count(t))]
    return "\n".join(lines)


def _totals(scan: Scan) -> str:
    """How many files have each verdict."""
    lines = [f"{scan.judged(word):>6}  {meaning}" for word, meaning in VERDICTS.items() if scan.judged(word)]
    return "\n".join(["Files", *lines]) if lines else ""


def _first(scan: Scan) -> str:
    steps = first_steps(scan)
    return "\n".join(["Next steps", *(f"{at:>3}. {step}" for at, step in enumerate(steps, 1))]) if steps else ""


def _file(scan: Scan, path: str, findings: list[CodeFinding]) -> str:
    lines = []
    for one in verdicts_of(scan, path):
        written = f" writes {one.path}, which" if one.notebook else ":"
        lines.append(f"{path}{written} {one.told()}")
        lines += [f"    {one.stops_at}: {one.source}"] if one.source else []
    lines = lines or [path]
    if not findings:
        return "\n".join(lines)
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
    """Return the name as the program has it, and what is known of this one."""
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
    """Return what takes each construct's place in Keras, once for each name."""
    rows: dict[str, CodeFinding] = {}
    for finding in scan.findings:
        if finding.successor:
            rows.setdefault(finding.name, finding)
    if not rows:
        return ""
    width = min(max(map(len, rows)), 56)
    lines = ["Keras replacements (with code: --json, --html)"]
    for name in sorted(rows):
        lines.append(f"  {name:<{width}}  {rows[name].successor}")
    return "\n".join(lines)


def _skipped(scan: Scan) -> str:
    if not scan.skipped:
        return ""
    return "\n".join(["Not read", *(f"  {one.path}: {one.why}" for one in scan.skipped)])
