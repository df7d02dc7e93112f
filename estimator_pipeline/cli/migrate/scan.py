"""`estimator-pipeline migrate scan`: report the tf.estimator constructs of a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.migrate.reading import Jobs, progress_on
from estimator_pipeline.cli.options import JsonOption, argument, option
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.system_limits import available_cores

# Each includes those before it.
_TREATMENTS = ("manual", "automatic", "unchanged")


def command(
    path: Annotated[Path, argument("Scan this Python file, notebook or folder.", "PATH")],
    as_json: JsonOption = False,
    sarif: Annotated[Path | None, option("Also write SARIF 2.1.0, for code scanning and editors.", "FILE")] = None,
    fail_on: Annotated[
        str | None,
        option(
            "Exit with 1 if a finding has this treatment or one that needs more work.", "manual|automatic|unchanged"
        ),
    ] = None,
    jobs: Jobs = None,
) -> None:
    """Find every construct of tf.estimator and TensorFlow 1 in a program, and report what becomes of each.

    The command neither imports nor executes the program, and does not need TensorFlow. Exit codes: 0 when the scan is
    complete, 1 if --fail-on applies, 2 for bad input.
    """
    from estimator_pipeline.migrate.code import sarif_document, scan, text

    if fail_on is not None and fail_on not in _TREATMENTS:
        raise ConfigError(
            f"--fail-on {fail_on} is not a treatment",
            code="argument/unknown-name",
            found=", ".join(_TREATMENTS),
            hint="use one of the three",
        )
    with progress_on(quiet=as_json) as progress:
        findings = scan(path, jobs=jobs or len(available_cores()), progress=progress)
    if sarif is not None:
        _write(sarif, json.dumps(sarif_document(findings), indent=1) + "\n")
    typer.echo(json.dumps(findings.document(), indent=1) if as_json else text(findings))
    if fail_on is not None and any(map(findings.count, _TREATMENTS[: _TREATMENTS.index(fail_on) + 1])):
        raise typer.Exit(1)


def _write(path: Path, content: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(path, content.encode())
    except OSError as error:
        raise ConfigError(
            f"--sarif {path}: the file cannot be written",
            code="file/unwritable",
            found=error.strerror or str(error),
            hint="name a file in a folder that can be written to",
        ) from error
