"""Command line of the benchmark, `python -m benchmarks.suite`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from estimator_pipeline.errors import ConfigError, PipelineError

_RUNS = 100


def command(
    cases: Annotated[
        list[str] | None, typer.Argument(metavar="[CASE]...", help="Cases to run; all by default. See --list.")
    ] = None,
    runs: Annotated[
        int | None, typer.Option(metavar="N", help="Measurements of each contender; 3 by default, 1 with --quick.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the results; an interrupted run resumes from it."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and steps: some minutes, rough figures.")] = False,
    size: Annotated[
        str | None, typer.Option(metavar="NAME", help="full, quick or tiny; tiny is only for tests of the benchmark.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the cases with their targets, without a run.")]
    = False,
) -> None:  # fmt: skip
    """Measure training, evaluation, starts, restarts and input, compare them with plain code, and print ratios.

    Each measurement runs in new processes, with the contenders in turns. Results are written to DIR as a table
    (results.md), JSON (results.json) and plots. With the DIR of an interrupted run, that run resumes. The exit code is
    0 if everything was measured, whether or not targets are met; 1 if a measured process failed, 2 for bad input.
    """
    from benchmarks.suite.cases import select_cases
    from benchmarks.suite.work import PROFILES

    if quick and size not in (None, "quick"):
        raise ConfigError(f"--quick and --size {size} were both given", hint="give one of the two")
    name = size or ("quick" if quick else "full")
    if name not in PROFILES:
        raise ConfigError(f"unknown --size {name}", found=f"allowed: {', '.join(PROFILES)}")
    profile = PROFILES[name]
    wanted = select_cases(cases or [], quick=name == "quick")
    count = profile.runs if runs is None else runs
    if not 1 <= count <= _RUNS:
        raise ConfigError(f"--runs {count} is out of range", hint=f"give a number from 1 to {_RUNS}")
    if listed:
        _list(wanted, as_json=as_json)
        return
    _run(wanted, profile, count, output=output, as_json=as_json)


def _run(wanted: Any, profile: Any, runs: int, *, output: Path | None, as_json: bool) -> None:
    from benchmarks.suite import report, running
    from benchmarks.suite.cases import CASES, CONTENDERS
    from benchmarks.suite.results import Results

    folder = output or Path("runs") / time.strftime("bench-%Y%m%d-%H%M%S")
    steps = running.plan(wanted, runs=runs)
    begun = time.monotonic()

    def print_progress(step: Any, measurement: Any, remaining: int) -> None:
        value = measurement.figures[step.case.metric]
        typer.echo(
            f"{time.monotonic() - begun:7.1f}s  {step.case.name}, {CONTENDERS[step.contender]}, run {step.run + 1}: "
            f"{report.format_number(value)} {step.case.unit} ({remaining} to go)",
            err=True,
        )

    if profile.name == "full":
        typer.echo(f"{len(steps)} measurements, about {running.seconds_of(steps) / 60:.0f} minutes", err=True)
    typer.echo(f"writing results to {folder}", err=True)
    conditions, measurements = running.measure_all(steps, profile=profile, folder=folder, on_measurement=print_progress)
    # All cases of the folder: a run may be made case by case.
    results = Results.of(CASES, conditions, measurements)
    document = report.write(results, folder)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        report.show(results)


def _list(cases: Any, *, as_json: bool) -> None:
    from benchmarks.suite.figures import Verdict
    from benchmarks.suite.report import ratio_words

    if as_json:
        documents = [
            {
                "name": case.name,
                "title": case.title,
                "unit": case.unit,
                "contenders": list(case.contenders),
                "targets": [
                    {"ratio": ratio_words(Verdict(case.name, target, None)), "target": target.bound}
                    for target in case.targets
                ],
            }
            for case in cases
        ]
        typer.echo(json.dumps(documents, indent=1))
        return
    for case in cases:
        typer.echo(f"{case.name}: {case.title} ({case.unit})")
        for target in case.targets:
            typer.echo(f"    {ratio_words(Verdict(case.name, target, None))} {target.bound}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; a PipelineError is printed as a message, as by `estimator-pipeline`, and sets the exit code."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app(arguments, prog_name="python -m benchmarks.suite")
    except PipelineError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
