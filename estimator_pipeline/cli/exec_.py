"""`estimator-pipeline exec`: run a tf.estimator program unchanged on any supported TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.options import EnvironmentOption, flag, option
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils import system_limits

SETTINGS = {"context_settings": {"allow_interspersed_args": False, "ignore_unknown_options": True}}


def command(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT.py | -m MODULE [ARGS]...", show_default=False)
    ] = None,
    patches: Annotated[
        str | None,
        option(
            "Apply these patches of tf.estimator: all, none, -NAME,-NAME (all except these) or NAME,NAME.",
            "NAMES",
            show_default="all",
        ),
    ] = None,
    repairs: Annotated[str | None, typer.Option(hidden=True)] = None,
    tf1: Annotated[
        bool,
        flag(
            "--tf1",
            "Run a TensorFlow 1 program: tensorflow is tf.compat.v1 with tf.contrib, and TensorFlow 2 behavior "
            "is disabled.",
        ),
    ] = False,
    shape: Annotated[
        str | None,
        option(
            "Set TF_CONFIG for this cluster, in tasks that a scheduler has started: "
            "workers=2,chief,ps=1,evaluator, or workers if all tasks are workers.",
            "TASKS",
        ),
    ] = None,
    environment: EnvironmentOption = None,
    ports: Annotated[
        str, option("Choose the ports: auto, derived (from the job id) or agreed (through --shared-dir).", "HOW")
    ] = "auto",
    ledger: Annotated[
        Path | None, option("Record which records each Estimator consumes in training, for `inspect`.", "DIR")
    ] = None,
    shard_input: Annotated[
        bool,
        flag(
            "--shard-input", "Train each of several tasks on different batches of an input_fn without `input_context`."
        ),
    ] = False,
    shared_dir: Annotated[
        str | None, option("Agree on ports through this folder, which all tasks share.", "FOLDER")
    ] = None,
) -> None:
    """Run a program that uses tf.estimator as `python` would: SCRIPT.py ARGS or -m MODULE ARGS.

    `tf.estimator` and its old import paths are restored first. The program runs as __main__ with its sys.argv. Its
    exit code is the exit code of this command, and tracebacks show the lines of the program.
    """
    import os

    from estimator_pipeline.cli.environment import enter, parse_shape, reject_independent_tasks
    from estimator_pipeline.cluster import proxies

    # The old name of the option, which submitted scripts contain.
    patches = repairs if patches is None else patches
    words = list(arguments or [])
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise ConfigError(
            "exec needs a program",
            code="argument/missing",
            hint="name it: exec SCRIPT.py ARGS, or exec -m MODULE ARGS",
        )
    # Not the limits of a training: a program may not train, or may use sessions of few threads.
    system_limits.require(os.environ, trains=False)
    system_limits.warn(os.environ)
    if shape is not None:
        cluster = parse_shape(shape, os.environ, environment=environment)
        enter(os.environ, cluster, environment=environment, ports=ports, directory=shared_dir, whole=False)
    else:
        reject_independent_tasks(os.environ, environment=environment)
    proxies.bypass(os.environ)
    # Imported late, so that errors in the options are reported without delay.
    from estimator_pipeline.compat import tf1 as tensorflow_1
    from estimator_pipeline.compat.script_runner import runner

    tf1 = tf1 or tensorflow_1.wanted()

    if shard_input:
        from estimator_pipeline.inputs.program_shards import shard_every_training

        runner.install(patches)
        shard_every_training()
    if ledger is not None:
        # After the shards, so that it has the records of this task only.
        from estimator_pipeline.engines.recording.ledger import keep_for_every_training

        runner.install(patches)
        keep_for_every_training(ledger)
    if words[0].startswith("-m") and words[0] != "-m":
        words[:1] = ["-m", words[0][2:]]
    if words[0] == "-m":
        if len(words) < 2:
            raise ConfigError(
                "exec -m needs a module", code="argument/missing", hint="name it: exec -m package.module ARGS"
            )
        raise typer.Exit(runner.run_module(words[1], words[2:], patches=patches, tf1=tf1))
    if words[0].startswith("-"):
        raise ConfigError(
            f"exec has no option {words[0]!r}",
            code="argument/unknown-name",
            hint="put options of the program after it: exec SCRIPT.py --its-option",
        )
    raise typer.Exit(runner.run_script(words[0], words[1:], patches=patches, tf1=tf1))
