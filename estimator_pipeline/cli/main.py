"""The `estimator-pipeline` command: a list of subcommands, each imported only when it is called.

To add a subcommand, write `cli/NAME.py` and a line in :data:`COMMANDS`. The file defines

* `command`, a function with `typer` annotations (`Annotated[int, typer.Option(...)]`) whose docstring is the
  help text. It prints its result, and raises `typer.Exit(code)` to end with another code than 0. An error
  that a person can act upon is raised as a `PipelineError`: it becomes a message on standard error, without
  a traceback, and `error.exit_code`. Anything else is a defect and shows its traceback;
* `SETTINGS`, where it needs one: a dict of further arguments for `typer.Typer.command`. A command that
  takes a program's own arguments says `SETTINGS = {"context_settings": {"allow_interspersed_args": False}}`
  and has a last `list[str]` argument: everything after the first argument then goes there untouched.

A command that is a list of commands, such as `submit`, has them in `group`, each with a file of its own.

The file may import `typer` and the standard library at its top. What takes long to import, such as
TensorFlow or rich, is imported inside `command`, so that `--help` stays quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from estimator_pipeline.errors import DiskError, PipelineError, PreemptedError
from estimator_pipeline.utils import allocator, io_errors, startup

__all__ = ["COMMANDS", "CommandEntry", "app", "main"]


class CommandEntry(NamedTuple):
    """A line of the command list.

    Attributes:
        name: What a person types.
        module: The module that defines `command`.
        help: One line for the list.
        group: Where it is a list of commands itself, these; `module` is not imported then.
    """

    name: str
    module: str
    help: str
    group: tuple[CommandEntry, ...] = ()


COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry("train", "estimator_pipeline.cli.train", "Run this process's task of a job file."),
    CommandEntry("launch", "estimator_pipeline.cli.launch", "Run a whole cluster on this machine."),
    CommandEntry("supervise", "estimator_pipeline.cli.supervise", "Run a command, and again when it fails."),
    CommandEntry("doctor", "estimator_pipeline.cli.doctor", "Examine a job before it starts."),
    CommandEntry(
        "submit",
        "",
        "Run a job file on a cluster, by its scheduler.",
        group=(
            CommandEntry("slurm", "estimator_pipeline.cli.submit.slurm", "A batch script, with requeues and arrays."),
            CommandEntry("kubernetes", "estimator_pipeline.cli.submit.kubernetes", "An Indexed Job, JobSet or TFJob."),
        ),
    ),
    CommandEntry("status", "estimator_pipeline.cli.submit.status", "Say how a submitted job stands."),
    CommandEntry("logs", "estimator_pipeline.cli.submit.logs", "Print a submitted job's logs."),
    CommandEntry("stacks", "estimator_pipeline.cli.submit.stacks", "Show where each task of a running job stands."),
    CommandEntry("cancel", "estimator_pipeline.cli.submit.cancel", "End a submitted job."),
    CommandEntry("clean", "estimator_pipeline.cli.clean", "Remove what old runs have left; shown first."),
    CommandEntry("parity", "estimator_pipeline.cli.parity", "Compare a job by tf.estimator with itself by Keras."),
    CommandEntry(
        "partition", "estimator_pipeline.cli.data.partition", "Write a job's data as files, one part a worker."
    ),
    CommandEntry("index", "estimator_pipeline.cli.data.index", "Write where the records of TFRecord files begin."),
    CommandEntry("inspect", "estimator_pipeline.cli.data.inspect", "Show who reads which record; check a ledger."),
    CommandEntry(
        "migrate",
        "",
        "Take a program to Keras: code, checkpoints, exports, configs.",
        group=(
            CommandEntry("scan", "estimator_pipeline.cli.migrate.scan", "What there is, and what becomes of it."),
            CommandEntry("convert", "estimator_pipeline.cli.migrate.convert", "TensorFlow 1 code for TensorFlow 2."),
            CommandEntry(
                "checkpoint", "estimator_pipeline.cli.migrate.checkpoint", "A training's state to another engine."
            ),
            CommandEntry(
                "export", "estimator_pipeline.cli.migrate.export", "An export's signatures from a Keras model."
            ),
            CommandEntry(
                "config", "estimator_pipeline.cli.migrate.config", "A configuration of another era as a job file."
            ),
        ),
    ),
    CommandEntry("exec", "estimator_pipeline.cli.exec_", "Run a tf.estimator program unchanged."),
    CommandEntry(
        "contrib",
        "",
        "TensorFlow 1.15's own tf.contrib, for exec --tf1.",
        group=(CommandEntry("install", "estimator_pipeline.cli.contrib", "Bring its files into this user's cache."),),
    ),
    CommandEntry("explain", "estimator_pipeline.cli.explain", "Say what the code of an error means."),
)
"""In the order of the help: from the plain case to the special ones."""


class _LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called."""

    own: tuple[CommandEntry, ...] | None = None  # None: the command's own list

    @property
    def entries(self) -> tuple[CommandEntry, ...]:
        return COMMANDS if self.own is None else self.own

    def list_commands(self, ctx: Any) -> list[str]:
        return [entry.name for entry in self.entries]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = next((entry for entry in self.entries if entry.name == cmd_name), None)
        if entry is None:
            return None
        if entry.group:
            return _group(entry)
        module = importlib.import_module(entry.module)
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(name=entry.name, **getattr(module, "SETTINGS", {}))(module.command)
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.help) for entry in self.entries])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if not io_errors.failed(error):
                raise
            typer.echo(f"error: {error.filename or 'a file'}: {error.strerror} [{DiskError.code}]", err=True)
            raise typer.Exit(DiskError.exit_code) from error
        except PipelineError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(_exit_code(error)) from error


def _exit_code(error: PipelineError) -> int:
    if not isinstance(error, PreemptedError):
        return error.exit_code
    from estimator_pipeline.progress.progress_file import code_of_preemption

    return code_of_preemption(os.environ, error.exit_code)


def _group(entry: CommandEntry) -> Any:
    inner = typer.Typer(
        name=entry.name,
        cls=type("_Group", (_LazyGroup,), {"own": entry.group}),
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    inner.callback(help=entry.help)(lambda: None)
    return typer.main.get_group(inner)


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
    startup.own_process()
    allocator.keep_memory()
    app(prog_name="estimator-pipeline")
