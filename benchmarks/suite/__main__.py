"""`python -m benchmarks.suite`: this package beside plain tf.estimator and plain Keras, in one run, as ratios."""

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
        list[str] | None, typer.Argument(metavar="[CASE]...", help="Which cases; all by default. See --list.")
    ] = None,
    runs: Annotated[
        int | None, typer.Option(metavar="N", help="Measurements of each contender; 3 by default, 1 with --quick.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where results go, and from where a run that was broken off goes on."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and steps: some minutes, rough figures.")] = False,
    size: Annotated[
        str | None, typer.Option(metavar="NAME", help="full, quick or tiny; tiny is for tests of the benchmark alone.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the cases, with their targets, and measure nothing.")]
    = False,
) -> None:  # fmt: skip
    """Measure training, evaluation, starts, restarts and input side by side with plain code, and print ratios.

    Each measurement is made in fresh processes, contenders in turns. Results are written to DIR as a table
    (results.md), JSON (results.json) and plots. With the DIR of a run that was broken off, it goes on. The exit code is
    0 when all was measured, whether or not targets are met; 1 when a measured process failed, 2 for bad input.
    """
    from benchmarks.suite.cases import chosen
    from benchmarks.suite.work import PROFILES

    if quick and size not in (None, "quick"):
        raise ConfigError(f"--quick and --size {size} were both given", hint="give one of the two")
    name = size or ("quick" if quick else "full")
    if name not in PROFILES:
        raise ConfigError(f"--size {name} is not known", found=f"allowed: {', '.join(PROFILES)}")
    profile = PROFILES[name]
    wanted = chosen(cases or [], quick=name == "quick")
    count = profile.runs if runs is None else runs
    if not 1 <= count <= _RUNS:
        raise ConfigError(f"--runs {count} cannot be", hint=f"give a number from 1 to {_RUNS}")
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

    def tell(step: Any, found: Any, left: int) -> None:
        value = found.figures[step.case.metric]
        typer.echo(
            f"{time.monotonic() - begun:7.1f}s  {step.case.name}, {CONTENDERS[step.contender]}, run {step.run + 1}: "
            f"{report.number(value)} {step.case.unit} ({left} to go)",
            err=True,
        )

    if profile.name == "full":
        typer.echo(f"{len(steps)} measurements, about {running.seconds_of(steps) / 60:.0f} minutes", err=True)
    typer.echo(f"results go to {folder}", err=True)
    made_of, measurements = running.measure_all(steps, profile=profile, folder=folder, tell=tell)
    # Whatever the folder holds: a run may be made case by case.
    results = Results.of(CASES, made_of, measurements)
    document = report.write(results, folder)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        report.show(results)


def _list(cases: Any, *, as_json: bool) -> None:
    from benchmarks.suite.figures import Verdict
    from benchmarks.suite.report import ratio_words

    if as_json:
        told = [
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
        typer.echo(json.dumps(told, indent=1))
        return
    for case in cases:
        typer.echo(f"{case.name}: {case.title} ({case.unit})")
        for target in case.targets:
            typer.echo(f"    {ratio_words(Verdict(case.name, target, None))} {target.bound}")


def main(arguments: Sequence[str] | None = None) -> None:
    """As the subcommands of `estimator-pipeline` do: an error that a person can act upon is a message, and its code."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app(arguments, prog_name="python -m benchmarks.suite")
    except PipelineError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
