"""The `estimator-pipeline` command: a list of subcommands, each imported only when it is called.

To add a subcommand, write `cli/NAME.py` and a line in :data:`COMMANDS`. The file defines

* `command`, a function with `typer` annotations (`Annotated[int, typer.Option(...)]`) whose docstring is the
  help text. It prints its result, and raises `typer.Exit(code)` to end with another code than 0. An error
  that a person can act upon is raised as a `PipelineError`: it becomes a message on standard error, without
  a traceback, and `error.exit_code`. Anything else is a defect and shows its traceback;
* `SETTINGS`, where it needs one: a dict of further arguments for `typer.Typer.command`. A command that
  takes a program's own arguments says `SETTINGS = {"context_settings": {"allow_interspersed_args": False}}`
  and has a last `list[str]` argument: everything after the first argument then goes there untouched.

The file may import `typer` and the standard library at its top. What takes long to import, such as
TensorFlow or rich, is imported inside `command`, so that `--help` stays quick.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from estimator_pipeline.errors import PipelineError

__all__ = ["COMMANDS", "CommandEntry", "app", "main"]


class CommandEntry(NamedTuple):
    """A line of the command list.

    Attributes:
        name: What a person types.
        module: The module that defines `command`.
        help: One line for the list.
    """

    name: str
    module: str
    help: str


COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry("train", "estimator_pipeline.cli.train", "Run this process's task of a job file."),
    CommandEntry("launch", "estimator_pipeline.cli.launch", "Run a whole cluster on this machine."),
    CommandEntry("exec", "estimator_pipeline.cli.exec_", "Run a tf.estimator program unchanged."),
)
"""In the order of the help: from the plain case to the special ones."""


class _LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = next((entry for entry in COMMANDS if entry.name == cmd_name), None)
        if entry is None:
            return None
        module = importlib.import_module(entry.module)
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(name=entry.name, **getattr(module, "SETTINGS", {}))(module.command)
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.help) for entry in COMMANDS])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PipelineError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(error.exit_code) from error


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    found = {}
    for name in ("estimator-pipeline", "tensorflow", "tensorflow-estimator"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    own = found.pop("estimator-pipeline")
    rest = ", ".join(f"{name} {version}" for name, version in found.items())
    typer.echo(f"estimator-pipeline {own} (Python {sys.version.split()[0]}, {rest})")
    raise typer.Exit


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _start(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Run tf.estimator jobs on TF_CONFIG workers, on today's TensorFlow."""


def main() -> None:
    """The console script."""
    app(prog_name="estimator-pipeline")
