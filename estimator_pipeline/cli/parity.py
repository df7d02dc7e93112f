"""`estimator-pipeline parity`: whether a job comes to the same by two engines, step by step."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from estimator_pipeline.cli.library_logging import quiet_libraries
from estimator_pipeline.cli.options import above_zero
from estimator_pipeline.errors import TaskFailedError

_PROGRAM = "A program's Estimator against a Keras model"


def command(
    job: Annotated[Path | None, typer.Argument(metavar="[JOB.yaml]", help="The job file.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Training tasks; as the file says by default.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps; as the file says by default, or 50.")
    ] = None,
    engines: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="The two engines; estimator,keras by default.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the job file; may be repeated."),
    ] = None,
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the runs and their records go.")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.html, which stands alone, and report.json there.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(callback=above_zero, help="Seconds for each of the two runs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    estimator: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="A function that returns an Estimator.", rich_help_panel=_PROGRAM),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME", help="A function that returns a compiled Keras model.", rich_help_panel=_PROGRAM
        ),
    ] = None,
    input_fn: Annotated[
        str | None, typer.Option(metavar="FILE.py:NAME", help="The training data.", rich_help_panel=_PROGRAM)
    ] = None,
    eval_input_fn: Annotated[
        str | None, typer.Option(metavar="FILE.py:NAME", help="The evaluation's data.", rich_help_panel=_PROGRAM)
    ] = None,
    eval_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Batches that each evaluates; all by default. A job file says it itself: --set eval.steps=N.",
            rich_help_panel=_PROGRAM,
        ),
    ] = None,
    keras_input_fn: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="The training data for Keras, where it takes its features in another form.",
            rich_help_panel=_PROGRAM,
        ),
    ] = None,
    keras_eval_input_fn: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="The same of the evaluation's data.", rich_help_panel=_PROGRAM),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(metavar="NAMES.yaml", help="A Keras weight: the Estimator's variable.", rich_help_panel=_PROGRAM),
    ] = None,
    metric_names: Annotated[
        Path | None,
        typer.Option(metavar="NAMES.yaml", help="A Keras metric: the Estimator's metric.", rich_help_panel=_PROGRAM),
    ] = None,
    predictions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="The Estimator's prediction that is the model's output, which is compared then; OUTPUT=KEY for each "
            "of several.",
            rich_help_panel=_PROGRAM,
        ),
    ] = None,
    tolerances: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml",
            help="What may differ by how much, as in the section parity of a job file.",
            rich_help_panel=_PROGRAM,
        ),
    ] = None,
) -> None:
    """Train a job by two engines, tf.estimator and Model.fit by default, and compare them step by step.

    Both start from the same values and read the same records. Compared are the records, the loss, the learning rate,
    the change of the weights, every variable and optimizer slot after each step, the metrics of the final evaluation,
    and the answers of the exported models. Names come first, then shapes, types and values; the first step and the
    variable at which they part are named, and what it comes from.

    In the place of a job file, functions of a program may be named: --estimator, --model and --input-fn.

    The exit code is 0 when all of it agrees within the tolerances, 1 when it does not or a run has failed, 2 for bad
    input, 3 when a run has diverged, 130 when it was ended by Ctrl-C.
    """
    program = {"--estimator": estimator, "--model": model, "--input-fn": input_fn}
    more = {"--eval-input-fn": eval_input_fn, "--eval-steps": eval_steps, "--keras-input-fn": keras_input_fn,
            "--keras-eval-input-fn": keras_eval_input_fn, "--mapping": mapping,
            "--metric-names": metric_names, "--predictions": predictions, "--tolerances": tolerances}  # fmt: skip
    of_jobs = {"--engines": engines, "--workers": workers, "--set": settings, "--timeout": timeout}
    _check(job, program, more, of_jobs)
    if report is not None:
        # It asks for matplotlib and jinja2.
        from estimator_pipeline.parity.report import html as reports
    from estimator_pipeline.parity import folders, text
    from estimator_pipeline.utils.jsonable import finite

    with contextlib.ExitStack() as stack:
        # Places that cannot be written to are told before the runs, and none is left behind empty.
        for place in filter(None, (folder, report)):
            stack.enter_context(folders.kept_if_used(place))
        if folder is not None:
            folders.prepare(folder, option="--folder", contents="the runs and their records")
        if report is not None:
            reports.prepare(report)
        try:
            if job is not None:
                from estimator_pipeline import launch
                from estimator_pipeline.parity.jobs.run import run_parity

                named = "estimator,keras" if engines is None else engines
                found = run_parity(
                    job,
                    engines=[one.strip() for one in named.split(",")],
                    settings=settings or [],
                    workers=workers,
                    steps=steps,
                    folder=folder,
                    view=launch.view_for(sys.stderr),
                    timeout=timeout,
                )
            else:
                from estimator_pipeline.parity.models.program import compare_program

                # It trains in this process: what it says would stand below pages of warnings of TensorFlow.
                with quiet_libraries():
                    found = compare_program(
                        estimator=estimator or "",
                        model=model or "",
                        input_fn=input_fn or "",
                        eval_input_fn=eval_input_fn,
                        keras_input_fn=keras_input_fn,
                        keras_eval_input_fn=keras_eval_input_fn,
                        mapping=mapping,
                        metric_names=metric_names,
                        predictions=predictions or [],
                        tolerances=tolerances,
                        steps=steps or 20,
                        eval_steps=eval_steps,
                        folder=folder,
                    )
        except KeyboardInterrupt:
            ended = TaskFailedError("the comparison was ended by the user (SIGINT)", code="training/preempted")
            ended.exit_code = 130
            raise ended from None
        if as_json:
            typer.echo(json.dumps(finite(text.document(found)), indent=2))
        else:
            typer.echo(text.summary(found))
        if report is not None:
            # Standard output is the JSON document's alone, where one is asked for.
            title = f"Parity of {_short(estimator)} and {_short(model)}" if estimator and model else ""
            typer.echo(f"report: {reports.write_report(found, report, title=title)}", err=as_json)
    raise typer.Exit(0 if found.equal else 1)


def _short(reference: str) -> str:
    """`programs/train.py:make_estimator` without its folders."""
    return os.path.basename(reference)


def _check(job: Path | None, program: dict[str, Any], more: dict[str, Any], of_jobs: dict[str, Any]) -> None:
    """Refuses a job file beside a program, and a half of either."""
    from estimator_pipeline.errors import ConfigError

    def given(options: dict[str, Any]) -> list[str]:
        return [name for name, value in options.items() if value not in (None, [])]

    if job is not None and given({**program, **more}) == ["--eval-steps"]:
        raise ConfigError(
            "--eval-steps is for the functions of a program, and a job file was given",
            code="argument/not-applicable",
            found=f"the job file {job}",
            hint=f"--set eval.steps={more['--eval-steps']}: a job file says itself how many batches are evaluated",
        )
    if job is not None and (wrong := given({**program, **more})):
        raise ConfigError(
            f"{', '.join(wrong)} and the job file {job} were both given",
            code="argument/conflict",
            hint="compare a job file, or the functions of a program",
        )
    if job is None and (wrong := given(of_jobs)):
        raise ConfigError(
            f"{', '.join(wrong)} is for job files, and none was given",
            code="argument/not-applicable",
            hint="name the job file",
        )
    if job is None and len(given(program)) != len(program):
        raise ConfigError(
            "parity needs a job file, or --estimator, --model and --input-fn",
            code="argument/missing",
            found=f"given: {', '.join(given({**program, **more})) or 'none of them'}",
        )
