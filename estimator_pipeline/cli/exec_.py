"""`estimator-pipeline exec`: a tf.estimator program, unchanged, on any supported TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils import system_limits

SETTINGS = {"context_settings": {"allow_interspersed_args": False, "ignore_unknown_options": True}}


def command(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT.py | -m MODULE [ARGS]...", show_default=False)
    ] = None,
    patches: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Which faults of tf.estimator are mended: all, none, -NAME,-NAME (all but these) or NAME,NAME.",
            show_default="all",
        ),
    ] = None,
    repairs: Annotated[str | None, typer.Option(hidden=True)] = None,
    tf1: Annotated[
        bool,
        typer.Option(
            "--tf1",
            help="The program is written for TensorFlow 1: tensorflow is tf.compat.v1 with tf.contrib, and TensorFlow "
            "2's behaviour is off.",
        ),
    ] = False,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="TASKS",
            help="The cluster, for tasks that a scheduler has started: workers=2,chief,ps=1,evaluator, or workers for "
            "workers alone. TF_CONFIG is then written for the program.",
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which scheduler tells this process its task; none: none but TF_CONFIG."),
    ] = None,
    ports: Annotated[
        str, typer.Option(metavar="HOW", help="auto, derived (from the job's id) or agreed (in --shared-dir).")
    ] = "auto",
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write down which records each training of an Estimator consumes, for `inspect`."
        ),
    ] = None,
    shared_dir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="A folder that all tasks share, in which they agree on ports.")
    ] = None,
) -> None:
    """Run a program that uses tf.estimator, as `python` would: SCRIPT.py ARGS or -m MODULE ARGS.

    `tf.estimator` and its old import paths are put back first. The program sees its own sys.argv and is
    __main__; its exit code is this command's, and a traceback shows its own lines.
    """
    import os

    from estimator_pipeline.cli.environment import enter, parse_shape, refuse_tasks_apart
    from estimator_pipeline.cluster import proxies

    # Its old name, which submitted scripts hold.
    patches = repairs if patches is None else patches
    given = list(arguments or [])
    if given[:1] == ["--"]:
        given = given[1:]
    if not given:
        raise ConfigError(
            "exec was given no program",
            code="argument/missing",
            hint="name one: exec SCRIPT.py ARGS, or exec -m MODULE ARGS",
        )
    # Not what a training takes: a program may have none, or sessions of few threads.
    system_limits.require(os.environ, trains=False)
    system_limits.warn(os.environ)
    if shape is not None:
        cluster = parse_shape(shape, os.environ, environment=environment)
        enter(os.environ, cluster, environment=environment, ports=ports, directory=shared_dir, whole=False)
    else:
        refuse_tasks_apart(os.environ, environment=environment)
    proxies.bypass(os.environ)
    # Not before they are needed: a mistake in the options is told at once.
    from estimator_pipeline.compat import tf1 as tensorflow_1
    from estimator_pipeline.compat.script_runner import runner

    tf1 = tf1 or tensorflow_1.wanted()

    if ledger is not None:
        from estimator_pipeline import compat
        from estimator_pipeline.engines.recording.ledger import keep_for_every_training

        compat.install(patches)
        keep_for_every_training(ledger)
    if given[0] == "-m":
        if len(given) < 2:
            raise ConfigError(
                "exec -m was given no module", code="argument/missing", hint="name one: exec -m package.module ARGS"
            )
        raise typer.Exit(runner.run_module(given[1], given[2:], patches=patches, tf1=tf1))
    if given[0].startswith("-m") and len(given[0]) > 2:
        raise typer.Exit(runner.run_module(given[0][2:], given[1:], patches=patches, tf1=tf1))
    if given[0].startswith("-"):
        raise ConfigError(
            f"exec has no option {given[0]!r}",
            code="argument/unknown-name",
            hint="options come after the program, and are the program's own: exec SCRIPT.py --its-option",
        )
    raise typer.Exit(runner.run_script(given[0], given[1:], patches=patches, tf1=tf1))
