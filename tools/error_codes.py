"""Generator of docs/reference/errors.md, the error codes and names of findings, from the source code.

python tools/error_codes.py
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

Look up an error of estimator_pipeline by its code, which the first line of the error ends with:

```
error: job.yaml, line 9, column 3: run.steps: unknown field. [job/unknown-field]
  found: 'steps' with the value 100; allowed: …
  hint: leave it out, or move it to its section.
```

`estimator-pipeline explain job/unknown-field` prints the entry of a code. The text of a message may change between
versions, its code does not. The code is also available as:

| where | field |
| --- | --- |
| Python | `error.code`, with `error.message`, `error.found` and `error.hint` |
| `launch --json` | `failure.refusal.code` |
| `doctor --json` | `code` of a finding, if the job would raise that error |

The exit code shows whether a retry makes sense:

| exit code | meaning |
| --- | --- |
| 1 | the work failed while it ran |
| 2 | bad input; the same command fails again |
| 3 | training diverged |
| 75 | the task was asked to stop; the same command resumes from its checkpoint |

<!-- tools/error_codes.py writes all of this page -->
"""


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def fill(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def table(rows: Iterator[tuple[str, str]]) -> str:
    return "| name | |\n| --- | --- |\n" + "\n".join(f"| `{name}` | {text} |" for name, text in rows)


def examples() -> dict[str, str]:
    """Return the example message with the shortest lines for each code in tests/messages."""
    messages: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "messages" / "texts").glob("*.txt")):
        for message in re.split(r"^=== .+\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            text = message.rstrip("\n").removeprefix("error: ")
            inner = re.findall(r" \[([a-z-]+/[a-z-]+)\]$", text, re.MULTILINE)
            messages.setdefault("job/several-mistakes" if " mistakes:\n" in text else inner[0], []).append(text)
    return {code: min(texts, key=lambda text: max(map(len, text.splitlines()))) for code, texts in messages.items()}


def codes() -> Iterator[str]:
    from estimator_pipeline.errors.codes import AREAS, CODES

    known = examples()
    for area, about in AREAS.items():
        yield f"## {area}\n\n{about}."
        for code, entry in CODES.items():
            if code.partition("/")[0] == area:
                yield f"### {code}\n\n{fill(entry.meaning)}\n\n{fill(f'**What to do.** {entry.action}')}"
                if code in known:
                    yield f"```\nerror: {known[code]}\n```"


def doctor_checks() -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree(PACKAGE / "doctor" / "checks.py")):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "DoctorCheck":
            name, description = (ast.literal_eval(argument) for argument in node.args[:2])
            yield name, description


def compliance_checks(module: str) -> Iterator[tuple[str, str]]:
    for node in tree(PACKAGE / "testing" / module).body:
        if isinstance(node, ast.FunctionDef) and any(
            getattr(getattr(decorator, "func", None), "id", "") == "define" for decorator in node.decorator_list
        ):
            yield node.name, (ast.get_docstring(node) or "").splitlines()[0]


def parity_names() -> Iterator[tuple[str, str]]:
    """Yield the rows of the table in the docstring of the module that defines the names."""
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
        "# Findings\n\nEach finding of a check of data, a ledger, a program or a job has a name that does not change."
    )
    yield "## doctor\n\n`check` of a finding; also the values of `--only` and `--skip`.\n\n" + table(doctor_checks())
    yield (
        "## check_input_fn and check_model_fn\n\nThe name of the check; also the values of `only=` and `skip=`.\n\n"
        + table(compliance_checks("input_checks.py"))
        + "\n\n"
        + table(compliance_checks("model_checks.py"))
    )
    yield "## inspect: the ledger\n\n`kind` of a finding.\n\n" + table(iter(KINDS.items()))
    yield "## parity\n\n`name` of a cause.\n\n" + table(parity_names())
    yield "## migrate scan\n\n" + fill(
        "`name` of a finding is the TensorFlow name, such as `tf.estimator.RunConfig`. `ruleId` in a SARIF report is "
        "the same name, with hyphens for spaces."
    )
    yield "## migrate config\n\n" + fill(
        "`field` of a finding is the field of the configuration. `state` is `taken`, `needs a decision` or "
        "`no longer needed`."
    )


def render() -> str:
    return HEAD + "\n" + "\n\n".join([*codes(), *findings()]) + "\n"


def main() -> int:
    DOCUMENT.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
