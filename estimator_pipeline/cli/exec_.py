"""`estimator-pipeline exec`: a tf.estimator program, unchanged, on any supported TensorFlow."""

from __future__ import annotations

from typing import Annotated

import typer

from estimator_pipeline.errors import ConfigError

SETTINGS = {"context_settings": {"allow_interspersed_args": False, "ignore_unknown_options": True}}


def command(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT.py | -m MODULE [ARGS]...", show_default=False)
    ] = None,
) -> None:
    """Run a program that uses tf.estimator, as `python` would: SCRIPT.py ARGS or -m MODULE ARGS.

    `tf.estimator` and its old import paths are put back first. The program sees its own sys.argv and is
    __main__; its exit code is this command's, and a traceback shows its own lines.
    """
    from estimator_pipeline.compat import runner

    given = list(arguments or [])
    if given[:1] == ["--"]:
        given = given[1:]
    if not given:
        raise ConfigError(
            "exec was given no program", mend="name one: exec SCRIPT.py ARGS, or exec -m MODULE ARGS"
        )
    if given[0] == "-m":
        if len(given) < 2:
            raise ConfigError("exec -m was given no module", mend="name one: exec -m package.module ARGS")
        raise typer.Exit(runner.run_module(given[1], given[2:]))
    if given[0].startswith("-m") and len(given[0]) > 2:
        raise typer.Exit(runner.run_module(given[0][2:], given[1:]))
    if given[0].startswith("-"):
        raise ConfigError(
            f"exec has no option {given[0]!r}",
            mend="options come after the program, and are the program's own: exec SCRIPT.py --its-option",
        )
    raise typer.Exit(runner.run_script(given[0], given[1:]))
