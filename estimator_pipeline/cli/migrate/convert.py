"""`estimator-pipeline migrate convert`: convert a program for today's TensorFlow, into a separate folder."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.migrate.reading import Jobs, progress_on
from estimator_pipeline.cli.options import JsonOption, argument, flag, option
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.system_limits import available_cores


def command(
    path: Annotated[Path, argument("Convert this Python file or folder.", "PATH")],
    output: Annotated[Path | None, option("Write the converted program to this new folder.", "DIR")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Print all changes as a unified diff without writing files.")] = False,
    overwrite: Annotated[
        bool, flag("--overwrite", "Write into an existing folder; other files in it are kept.")
    ] = False,
    notes: Annotated[
        str, option("Mark unconverted code with comments: what is manual, all, or none.", "manual|all|none")
    ] = "manual",
    to: Annotated[
        str, option("Convert to Keras, without this package, or to Estimators on TensorFlow 2.", "keras|estimator")
    ] = "keras",
    parity: Annotated[
        Path | None,
        option("Train the file and its conversion with the functions of this file, and compare.", "PROOF.py"),
    ] = None,
    steps: Annotated[int, option("Train this many steps for --parity.", min=1)] = 20,
    jobs: Jobs = None,
    as_json: JsonOption = False,
) -> None:
    """Convert the code that can be converted safely, and mark the code that needs manual work.

    A file that converts as a whole becomes Keras layers that compute the same numbers. Any other file becomes an
    Estimator program for TensorFlow 2, and the summary names the line that prevents Keras; with --to estimator all do.
    Code without a counterpart is unchanged, with a comment on the reason and the replacement. The command neither
    imports nor executes the program. Exit codes: 0 when the conversion is complete, 2 for bad input.

    With --parity both programs are imported and trained from the same values on the same records, with the functions
    estimator(program), model(made) and input_fn(program) of PROOF.py. The comparison is written to DIR/parity.json, and
    the exit code is 1 if the two differ.
    """
    from estimator_pipeline.migrate.code import NOT_RUN, convert, diff, summary
    from estimator_pipeline.migrate.code.write import check_output, write

    if output is None and not dry_run:
        raise ConfigError(
            "--output is missing", code="argument/missing", hint="name a new folder for the program, or add --dry-run"
        )
    if parity is not None:
        from estimator_pipeline.parity.models.conversion import check_proof

        if dry_run:
            raise ConfigError(
                "--parity compares what is written, and --dry-run writes nothing", code="argument/conflict"
            )
        check_proof(parity, path)
    if output is not None and path.exists():
        check_output(path, output, overwrite=overwrite)
    with progress_on(quiet=as_json) as progress:
        conversion = convert(path, notes=notes, to=to, jobs=jobs or len(available_cores()), progress=progress)
    written = output is not None and not dry_run
    if written and output is not None:
        write(conversion, output)
    compared = None
    if parity is not None and output is not None:
        from estimator_pipeline.cli.library_logging import quiet_libraries
        from estimator_pipeline.parity import text
        from estimator_pipeline.parity.models.conversion import compare_conversion
        from estimator_pipeline.utils.jsonable import finite

        (file,) = conversion.files
        if not file.keras:
            raise ConfigError(
                f"--parity: {path} remains an Estimator program, so there is no Keras model to compare",
                code="argument/not-applicable",
                found=file.kept_as_estimator,
            )
        (todays,) = convert(path, notes="none", to="estimator").files
        of_1 = any(change.rule.startswith("tensorflow-1") for change in todays.changes)
        with quiet_libraries(), tempfile.TemporaryDirectory() as folder:
            before = path
            if of_1:  # its Estimator runs with today's names
                before = Path(folder) / path.name
                before.write_text(todays.after, encoding=todays.encoding, newline="")
            compared = compare_conversion(
                before, output / file.path, parity, steps=steps, of_tensorflow_1=of_1, beside=path.parent
            )
        report = json.dumps(finite(text.document(compared)), indent=1)
        (output / "parity.json").write_text(report, encoding="utf-8")
    ran = NOT_RUN if compared is None else f"trained by --parity, {'equal' if compared.equal else 'not equal'}"
    if as_json:
        document = conversion.document() | {"output": str(output) if written else None, "run": ran}
        if dry_run:
            document["diff"] = diff(conversion)
        if compared is not None:
            document["parity"] = json.loads(report)
        typer.echo(json.dumps(document, indent=1))
        raise typer.Exit(1 if compared is not None and not compared.equal else 0)
    if dry_run:
        typer.echo(diff(conversion), nl=False)
        typer.echo(summary(conversion), err=True)
        return
    typer.echo(summary(conversion, ran))
    standalone = to == "keras" and conversion.became["keras"] == conversion.became["of"]
    standalone = standalone and not any("estimator_pipeline" in file.after for file in conversion.files)
    runner = "python FILE" if standalone else "estimator-pipeline exec FILE"
    if conversion.changed and all(file.is_notebook for file in conversion.changed):
        runner = "Jupyter" if standalone else "Jupyter, in a Python that has estimator-pipeline"
    typer.echo(f"\nwritten to {output}; run it with: {runner}")
    if compared is not None:
        typer.echo(f"\n{text.summary(compared)}")
        raise typer.Exit(0 if compared.equal else 1)
