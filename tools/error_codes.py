"""Writes docs/reference/errors.md: the codes of errors, and the names of findings, as the source has them.

python tools/error_codes.py             writes it
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DOCUMENT = ROOT / "docs" / "reference" / "errors.md"
PACKAGE = ROOT / "estimator_pipeline"
WIDTH = 120

HEAD = """\
# Errors

An error of estimator_pipeline ends with its code in brackets:

```
error: job.yaml, line 9, column 3: run.steps: unknown field. [job/unknown-field]
  found: 'steps' with the value 100; allowed: …
  hint: leave it out, or move it to the section that it belongs to.
```

The words of a message may change with any version. Its code does not: search for it here, or let
`estimator-pipeline explain job/unknown-field` print its entry. In Python it is `error.code`, beside `error.what`,
`error.found` and `error.hint`; `launch --json` has it in `failure.refusal.code`, and `doctor --json` in `code` of a
finding where the job itself would raise that error.

The exit code says what a new try is worth: 2, the input is bad, and the same command fails again; 1, the work failed
while it ran; 3, training diverged; 75, the task was asked to end, and the same command goes on from its checkpoint.

<!-- tools/error_codes.py writes all of this page -->
"""


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def table(rows: Iterator[tuple[str, str]]) -> str:
    return "| name | |\n| --- | --- |\n" + "\n".join(f"| `{name}` | {text} |" for name, text in rows)


def examples() -> dict[str, str]:
    """From a code to a message that has it, as the tests hold them; a short one."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "messages" / "texts").glob("*.txt")):
        for message in re.split(r"^=== .+\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            text = message.rstrip("\n").removeprefix("error: ")
            inner = re.findall(r" \[([a-z-]+/[a-z-]+)\]$", text, re.MULTILINE)
            found.setdefault("job/several-mistakes" if " mistakes:\n" in text else inner[0], []).append(text)
    return {code: min(texts, key=lambda text: max(map(len, text.splitlines()))) for code, texts in found.items()}


def codes() -> Iterator[str]:
    from estimator_pipeline.errors.codes import AREAS, CODES

    known = examples()
    for area, about in AREAS.items():
        yield f"## {area}\n\n{about}."
        for code, entry in CODES.items():
            if code.partition("/")[0] == area:
                yield f"### {code}\n\n{filled(entry.meaning)}\n\n{filled(f'**What to do.** {entry.action}')}"
                if code in known:
                    yield f"```\nerror: {known[code]}\n```"


def doctor_checks() -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree(PACKAGE / "doctor" / "checks.py")):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "DoctorCheck":
            name, what = (ast.literal_eval(one) for one in node.args[:2])
            yield name, what


def compliance_checks(module: str) -> Iterator[tuple[str, str]]:
    for node in tree(PACKAGE / "testing" / module).body:
        if isinstance(node, ast.FunctionDef) and any(
            getattr(getattr(one, "func", None), "id", "") == "define" for one in node.decorator_list
        ):
            yield node.name, (ast.get_docstring(node) or "").splitlines()[0]


def parity_names() -> Iterator[tuple[str, str]]:
    """Yield the rows of the table in the docstring of the module that gives the names."""
    text = ast.get_docstring(tree(PACKAGE / "parity" / "diagnosis" / "diagnose.py")) or ""
    rule = next(line for line in text.splitlines() if re.fullmatch("=+ =+", line))
    at = rule.index(" ") + 1
    name = meaning = ""
    for line in text.split(rule)[2].splitlines():
        if line[:at].strip():
            if name:
                yield name, meaning
            name, meaning = line[:at].strip(), line[at:].strip()
        elif line.strip():
            meaning += " " + line.strip()
    yield name, meaning


def findings() -> Iterator[str]:
    from estimator_pipeline.inputs.ledger.report import KINDS

    yield (
        "# Findings\n\nWhat a check of data, a ledger, a program or a job finds has the name of that check, "
        "which does not change."
    )
    yield "## doctor\n\n`check` of a finding, and what `--only` and `--skip` take.\n\n" + table(doctor_checks())
    yield (
        "## check_input_fn and check_model_fn\n\nThe check's name, which `only=` and `skip=` take.\n\n"
        + table(compliance_checks("input_checks.py"))
        + "\n\n"
        + table(compliance_checks("model_checks.py"))
    )
    yield "## inspect: the ledger\n\n`kind` of a finding.\n\n" + table(iter(KINDS.items()))
    yield "## parity\n\n`name` of a cause.\n\n" + table(parity_names())
    yield "## migrate scan\n\n" + filled(
        "`name` of a finding is the name of the construct in TensorFlow, such as `tf.estimator.RunConfig`; the rule of "
        "a SARIF report (`ruleId`) is the same, with hyphens for spaces."
    )
    yield "## migrate config\n\n" + filled(
        "`field` of a finding is the field of the configuration, and `state` is `taken`, `needs a decision` or "
        "`no longer needed`."
    )


def written() -> str:
    return HEAD + "\n" + "\n\n".join([*codes(), *findings()]) + "\n"


def main() -> int:
    DOCUMENT.write_text(written(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
