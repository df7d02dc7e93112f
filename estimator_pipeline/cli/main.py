"""The `estimator-pipeline` command: a list of subcommands, each imported only when it is called.

To add a subcommand, write `cli/NAME.py` and a line in `COMMANDS`. The file defines

* `command`, a function with `typer` annotations (`Annotated[int, option("Train this many steps.")]`, see
  `options.py`) whose docstring is the help text. It prints its result, and raises `typer.Exit(code)` for an exit code
  other than 0. Raise an error that the user can act upon as a `PipelineError`: it becomes a message on standard error,
  without a traceback, and `error.exit_code`. Any other exception is a defect and shows its traceback;
* `SETTINGS` (optional): a dict of further arguments for `typer.Typer.command`. A command that takes the
  arguments of a program sets `SETTINGS = {"context_settings": {"allow_interspersed_args": False}}`
  and has a last `list[str]` argument: everything after the first argument is passed there unchanged.

A command that is a list of commands, such as `migrate`, has them in `group`, each in a separate file. Commands of one
file, as those of `submit`, are returned by its function `command_of(name)`.

The file may import `typer` and the standard library at its top. Slow imports, such as TensorFlow or rich,
belong inside `command`, so that `--help` is fast.
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
    """One entry of the command list.

    Attributes:
        name: Name of the command on the command line.
        module: The module in this package that defines `command`; unused for a group.
        help: One line for the list.
        group: The commands of a group, such as `submit`.
    """

    name: str
    module: str
    help: str
    group: tuple[CommandEntry, ...] = ()


COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry("new", "new", "Write a job file for a CSV or Parquet table."),
    CommandEntry("train", "train", "Run the task of this process from a job file."),
    CommandEntry("launch", "launch", "Run all tasks of a cluster on this machine."),
    CommandEntry("predict", "predict", "Predict the records of files."),
    CommandEntry("evaluate", "evaluate", "Evaluate a checkpoint of a job."),
    CommandEntry("export", "export", "Write the SavedModel of a checkpoint."),
    CommandEntry("supervise", "supervise", "Run a command, and restart it when it fails."),
    CommandEntry("doctor", "doctor", "Check a job before it starts."),
    CommandEntry(
        "submit",
        "",
        "Submit a job file to Slurm, PBS, Kubernetes or this machine.",
        (
            CommandEntry("slurm", "submit.submit", "Submit a batch script to Slurm."),
            CommandEntry("pbs", "submit.submit", "Submit a batch script to PBS."),
            CommandEntry("kubernetes", "submit.submit", "Create an Indexed Job, JobSet or TFJob."),
            CommandEntry("local", "submit.submit", "Launch all tasks here, in the background."),
        ),
    ),
    CommandEntry("status", "submit.status", "Show the status of jobs."),
    CommandEntry("logs", "submit.logs", "Print the logs of a job."),
    CommandEntry("stacks", "submit.stacks", "Print the Python stacks of a running job's tasks."),
    CommandEntry("cancel", "submit.cancel", "Cancel a job."),
    CommandEntry("compare", "compare", "Compare the settings and evaluations of runs."),
    CommandEntry("report", "report", "Write an HTML page of a run."),
    CommandEntry("clean", "clean", "List and remove files of old runs."),
    CommandEntry("parity", "parity", "Compare the training of a job by two engines."),
    CommandEntry("partition", "data.partition", "Write a job's data as one TFRecord file per worker."),
    CommandEntry("index", "data.index", "Write index files for TFRecord files."),
    CommandEntry("inspect", "data.inspect", "Show which worker reads which record; check a ledger."),
    CommandEntry(
        "migrate",
        "",
        "Migrate a program to Keras: code, checkpoints, exports, configs.",
        (
            CommandEntry("scan", "migrate.scan", "Report the constructs to migrate and what becomes of each."),
            CommandEntry("convert", "migrate.convert", "Convert code to Keras or TensorFlow 2."),
            CommandEntry("checkpoint", "migrate.checkpoint", "Convert a checkpoint for a different engine."),
            CommandEntry("export", "migrate.export", "Export a Keras model with an old export's signatures."),
            CommandEntry("config", "migrate.config", "Convert an old configuration to a job file."),
        ),
    ),
    CommandEntry("exec", "exec_", "Run a tf.estimator program unchanged."),
    CommandEntry(
        "contrib",
        "",
        "Manage TensorFlow 1.15's tf.contrib files for exec --tf1.",
        (CommandEntry("install", "contrib", "Install the files into the user's cache."),),
    ),
    CommandEntry("env", "env", "Print versions and machine for a bug report."),
    CommandEntry("explain", "explain", "Explain an error code."),
)
"""In the order of the help: common commands first."""


_PLAIN: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}


class _LazyGroup(TyperGroup):
    """A group that imports a command when it is called."""

    listed: tuple[CommandEntry, ...] = ()  # those of a group

    @property
    def entries(self) -> tuple[CommandEntry, ...]:
        return self.listed or COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return [entry.name for entry in self.entries]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = next((entry for entry in self.entries if entry.name == cmd_name), None)
        if entry is None:
            return None
        if entry.group:
            return _group(entry)
        module = importlib.import_module(f"{__package__}.{entry.module}")
        single = typer.Typer(**_PLAIN)
        command = module.command_of(entry.name) if hasattr(module, "command_of") else module.command
        single.command(name=entry.name, **getattr(module, "SETTINGS", {}))(command)
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
    group = type("_Group", (_LazyGroup,), {"listed": entry.group})
    inner = typer.Typer(name=entry.name, cls=group, no_args_is_help=True, **_PLAIN)
    inner.callback(help=entry.help)(lambda: None)
    return typer.main.get_group(inner)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    versions = {}
    for name in ("estimator-pipeline", "tensorflow", "tensorflow-estimator"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    package = versions.pop("estimator-pipeline")
    rest = ", ".join(f"{name} {version}" for name, version in versions.items())
    typer.echo(f"estimator-pipeline {package} (Python {sys.version.split()[0]}, {rest})")
    raise typer.Exit


app = typer.Typer(cls=_LazyGroup, no_args_is_help=True, **_PLAIN)


@app.callback()
def _start(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Run tf.estimator jobs on TF_CONFIG clusters, on current TensorFlow."""


def main() -> None:
    """Run the console script."""
    startup.own_process()
    allocator.keep_memory()
    process = os.getpid()
    try:
        app(prog_name="estimator-pipeline")
    except SystemExit as end:
        if os.getpid() == process:  # not in a child that a program has forked
            _limit_shutdown(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _limit_shutdown(code: int) -> None:
    """Limit the time that the interpreter's shutdown may take in a task of a job: a thread may prevent it."""
    if os.environ.get("ESTIMATOR_PIPELINE_PROGRESS"):
        from estimator_pipeline.launch import late_exit

        late_exit.end_if_idle(code)
