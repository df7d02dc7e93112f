"""`estimator-pipeline migrate convert`: a program as it runs on today's TensorFlow, in a folder of its own."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.migrate.reading import Jobs, NoCache, cores, progress_on, results_folder
from estimator_pipeline.errors import ConfigError


def command(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A Python file, or a folder of them.")],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder for the converted program; a new one.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; print all changes as a unified diff.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write into a folder that is there; its other files stay.")
    ] = False,
    notes: Annotated[
        str, typer.Option(metavar="manual|all|none", help="What of the code that is left gets a marked comment.")
    ] = "manual",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            "--target",
            metavar="keras|keras-layers|keras3|estimator",
            help="What it becomes: Keras; Keras or Keras 3 only where its model_fn becomes layers; Estimators still.",
        ),
    ] = "keras",
    parity: Annotated[
        Path | None,
        typer.Option(
            metavar="PROOF.py", help="Train the file and its conversion as this file's functions say, and compare."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of --parity.")] = 20,
    jobs: Jobs = None,
    no_cache: NoCache = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Convert what can be converted for sure, and mark what a person has to write.

    A file that can be converted as a whole becomes Keras code, of the same numbers. Any other stays an Estimator
    program that runs on TensorFlow 2, and the summary says for which line; with --to estimator all do. What has no
    counterpart is left as it is, with a comment that says why and what to write. Nothing of the program is imported or
    executed. The exit code is 0 when the conversion is done, 2 for bad input.

    With --parity both programs are imported, and trained from the same values on the same records, by the functions
    estimator(program), model(made) and input_fn(program) of that file. What was compared is written to DIR/parity.json,
    and the exit code is 1 where the two part.
    """
    from estimator_pipeline.migrate.code import NOT_RUN, convert, diff, summary
    from estimator_pipeline.migrate.code.write import check_output, write

    if output is None and not dry_run:
        raise ConfigError(
            "there is no --output", code="argument/missing", hint="name a new folder for the program, or pass --dry-run"
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
        made = convert(
            path, notes=notes, to=to, jobs=jobs or cores(), cache=results_folder(no_cache), progress=progress
        )
    written = output is not None and not dry_run
    if written and output is not None:
        write(made, output)
    compared = None
    if parity is not None and output is not None:
        from estimator_pipeline.cli.library_logging import quiet_libraries
        from estimator_pipeline.parity import text
        from estimator_pipeline.parity.models.conversion import compare_conversion
        from estimator_pipeline.utils.jsonable import finite

        (file,) = made.files
        if not file.keras:
            raise ConfigError(
                f"--parity: {path} remains an Estimator program, and there is no Keras model to compare",
                code="argument/not-applicable",
                found=file.kept_as_estimator,
            )
        (todays,) = convert(path, notes="none", to="estimator").files
        of_1 = any(one.rule.startswith("tensorflow-1") for one in todays.changes)
        with quiet_libraries(), tempfile.TemporaryDirectory() as folder:
            before = path
            if of_1:  # its Estimator runs by today's names
                before = Path(folder) / path.name
                before.write_text(todays.after, encoding=todays.encoding, newline="")
            compared = compare_conversion(
                before, output / file.path, parity, steps=steps, of_tensorflow_1=of_1, beside=path.parent
            )
        told = json.dumps(finite(text.document(compared)), indent=1)
        (output / "parity.json").write_text(told, encoding="utf-8")
    ran = NOT_RUN if compared is None else f"trained by --parity, {'equal' if compared.equal else 'not equal'}"
    if as_json:
        document = made.document() | {"output": str(output) if written else None, "run": ran}
        if dry_run:
            document["diff"] = diff(made)
        if compared is not None:
            document["parity"] = json.loads(told)
        typer.echo(json.dumps(document, indent=1))
        raise typer.Exit(1 if compared is not None and not compared.equal else 0)
    if dry_run:
        typer.echo(diff(made), nl=False)
        typer.echo(summary(made), err=True)
        return
    typer.echo(summary(made, ran))
    alone = to == "keras3" and made.became["keras"] == made.became["of"]
    by = "python FILE" if alone else "estimator-pipeline exec FILE"
    if made.changed and all(one.is_notebook for one in made.changed):
        by = "Jupyter" if alone else "Jupyter, in a Python that has estimator-pipeline"
    typer.echo(f"\nwritten to {output}; run it by: {by}")
    if compared is not None:
        typer.echo(f"\n{text.summary(compared)}")
        raise typer.Exit(0 if compared.equal else 1)
