"""`estimator-pipeline parity`: compare the training of two engines step by step."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from estimator_pipeline.cli.library_logging import quiet_libraries
from estimator_pipeline.cli.options import FUNCTION, JsonOption, SettingsOption, above_zero, argument, option
from estimator_pipeline.errors import ConfigError, TaskFailedError


def command(
    job: Annotated[Path | None, argument("Compare this job file.", "[JOB.yaml]")] = None,
    workers: Annotated[int | None, option("Train with this many tasks; default: as in the file.", min=1)] = None,
    steps: Annotated[int | None, option("Train this many steps; default: as in the file, or 50.", min=1)] = None,
    engines: Annotated[str | None, option("Compare these two engines; default: estimator,keras.", "NAME,NAME")] = None,
    settings: SettingsOption = None,
    folder: Annotated[Path | None, option("Write the runs and their step records to this folder.", "DIR")] = None,
    report: Annotated[
        Path | None, option("Write report.html (self-contained) and report.json to this folder.", "DIR")
    ] = None,
    timeout: Annotated[
        float | None, option("Limit each of the two runs to this many seconds.", callback=above_zero)
    ] = None,
    as_json: JsonOption = False,
    estimator: Annotated[str | None, option("Call this function for the Estimator.", FUNCTION)] = None,
    model: Annotated[str | None, option("Call this function for the compiled Keras model.", FUNCTION)] = None,
    input_fn: Annotated[str | None, option("Use this input function for training.", FUNCTION)] = None,
    eval_input_fn: Annotated[str | None, option("Use this input function for evaluation.", FUNCTION)] = None,
    eval_steps: Annotated[
        int | None, option("Evaluate this many batches; default: all. For a job file use --set eval.steps=N.", min=1)
    ] = None,
    keras_input_fn: Annotated[
        str | None,
        option("Use this input function for Keras's training, if its features have a different structure.", FUNCTION),
    ] = None,
    keras_eval_input_fn: Annotated[
        str | None, option("Use this input function for Keras's evaluation.", FUNCTION)
    ] = None,
    mapping: Annotated[Path | None, option("Map each Keras weight to the Estimator's variable.", "NAMES.yaml")] = None,
    metric_names: Annotated[
        Path | None, option("Map each Keras metric to the Estimator's metric.", "NAMES.yaml")
    ] = None,
    predictions: Annotated[
        list[str] | None,
        option(
            "Compare this prediction of the Estimator with the model's output; OUTPUT=KEY for each of several outputs.",
            "KEY",
        ),
    ] = None,
    tolerances: Annotated[
        Path | None, option("Read tolerances from this file, in the form of a job file's section parity.", "FILE.yaml")
    ] = None,
) -> None:
    """Train a job by two engines, tf.estimator and Model.fit by default, and compare them step by step.

    Both engines start from the same values and read the same records. The comparison covers the records, the loss, the
    learning rate, the weight updates, every variable and optimizer slot after each step, the metrics of the final
    evaluation, and the predictions of the exported models. It checks names first, then shapes, dtypes and values, and
    reports the first step and variable that differ, and the cause.

    Instead of a job file, name functions of a program: --estimator, --model and --input-fn.

    Exit codes: 0 if everything agrees within the tolerances, 1 if not or if a run failed, 2 for bad input, 3 if a run
    diverged, 130 after Ctrl-C.
    """
    functions = _explicit(estimator=estimator, model=model, input_fn=input_fn)
    others = _explicit(
        eval_input_fn=eval_input_fn,
        eval_steps=eval_steps,
        keras_input_fn=keras_input_fn,
        keras_eval_input_fn=keras_eval_input_fn,
        mapping=mapping,
        metric_names=metric_names,
        predictions=predictions,
        tolerances=tolerances,
    )
    of_jobs = _explicit(engines=engines, workers=workers, set=settings, timeout=timeout)
    _check(job, functions, others, of_jobs)
    if report is not None:
        # Fails here if matplotlib or jinja2 is missing.
        from estimator_pipeline.parity.report import html as reports
    from estimator_pipeline.parity import folders, text
    from estimator_pipeline.utils.jsonable import finite

    with contextlib.ExitStack() as stack:
        # Report folders that cannot be written before the runs, and remove them if they are empty afterwards.
        for output in filter(None, (folder, report)):
            stack.enter_context(folders.kept_if_used(output))
        if folder is not None:
            folders.prepare(folder, option="--folder", contents="the runs and their records")
        if report is not None:
            reports.prepare(report)
        try:
            if job is not None:
                from estimator_pipeline import launch
                from estimator_pipeline.parity.jobs.run import run_parity

                result = run_parity(
                    job,
                    engines=[name.strip() for name in ("estimator,keras" if engines is None else engines).split(",")],
                    settings=settings or [],
                    workers=workers,
                    steps=steps,
                    folder=folder,
                    view=launch.view_for(sys.stderr),
                    timeout=timeout,
                )
            else:
                from estimator_pipeline.parity.models.program import compare_program

                # The training runs in this process: TensorFlow's warnings would bury the report.
                with quiet_libraries():
                    result = compare_program(**functions, **others, steps=steps or 20, folder=folder)
        except KeyboardInterrupt:
            interrupted = TaskFailedError("the comparison was stopped by the user (SIGINT)", code="training/preempted")
            interrupted.exit_code = 130
            raise interrupted from None
        typer.echo(json.dumps(finite(text.document(result)), indent=2) if as_json else text.summary(result))
        if report is not None:
            # With --json, standard output holds only the JSON document.
            typer.echo(f"report: {reports.write_report(result, report)}", err=as_json)
    raise typer.Exit(0 if result.equal else 1)


def _explicit(**options: Any) -> dict[str, Any]:
    """Return the options that are set."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def _check(job: Path | None, functions: dict[str, Any], others: dict[str, Any], of_jobs: dict[str, Any]) -> None:
    """Reject a job file together with functions of a program, and an incomplete set of either."""
    of_programs = [f"--{name.replace('_', '-')}" for name in (*functions, *others)]
    if job is not None and of_programs:
        raise ConfigError(
            f"{', '.join(of_programs)} cannot be combined with the job file {job}",
            code="argument/conflict",
            hint="compare a job file, or the functions of a program",
        )
    if job is None and of_jobs:
        wrong = ", ".join(f"--{name}" for name in of_jobs)
        raise ConfigError(f"{wrong} requires a job file", code="argument/not-applicable", hint="name the job file")
    if job is None and len(functions) < 3:
        raise ConfigError(
            "parity needs a job file, or --estimator, --model and --input-fn",
            code="argument/missing",
            found=f"options: {', '.join(of_programs) or 'none of them'}",
        )
