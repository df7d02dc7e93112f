"""Generator of docs/reference/command-line.md, the commands of `estimator-pipeline`, from their help texts.

python tools/command_line.py
"""

from __future__ import annotations

import inspect
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import typer
from markdown_table import cell, row

from estimator_pipeline.cli import main as cli

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "command-line.md"
HEAD = """# Command line

<!-- tools/command_line.py writes this page from the help texts. -->

The option `--help` of each command prints the same. Exit codes:

| code | meaning |
| --- | --- |
| 0 | success |
| 1 | a task failed, hung or exceeded its time limit; a comparison found a difference |
| 2 | invalid input; the message has a [code](errors.md), what was found and a hint |
| 3 | training diverged: the loss or a weight is NaN or infinite |
| 75 | stopped by a signal after a checkpoint; the same command resumes ([preemption](../guides/preemption.md)) |
| 130, 143 | stopped by SIGINT or SIGTERM without a checkpoint |
"""


NAMES = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def value(parameter: typer.core.TyperOption | typer.core.TyperArgument, function: Callable[..., object]) -> str:
    """Return the placeholder for a value: its metavar, its choices, or a word for its type."""
    kind = typing.get_type_hints(function)[parameter.name]
    kinds = [kind, *typing.get_args(kind)]
    enum = next((k for k in kinds if isinstance(k, type) and issubclass(k, Enum)), None)
    choices = "|".join(member.value for member in enum) if enum else ""
    return parameter.metavar or choices or next((NAMES[k] for k in kinds if k in NAMES), "TEXT")


def option_row(parameter: typer.core.TyperOption, function: Callable[..., object]) -> str:
    """Return the row of an option."""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    shown = "" if parameter.is_flag else f" `{value(parameter, function)}`"
    default = getattr(parameter.default, "value", parameter.default)
    default = "on" if default is True else default
    shown_default = (
        "" if default is None or default is False or callable(default) or default in ("", [], ()) else f"`{default}`"
    )
    return row(cell(names + shown), shown_default, cell(parameter.help or ""))


def paragraphs(text: str) -> str:
    """Return a help text with filled paragraphs."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False) for part in parts)


def section(name: str, command: typer.core.TyperCommand | typer.core.TyperGroup) -> Iterator[str]:
    """Yield the section of a command, and of the commands of a group."""
    yield f"\n## {name}\n\n{inspect.cleandoc(command.help or '')}\n"
    if isinstance(command, typer.core.TyperGroup):
        for inner in command.list_commands(None):
            yield from section(f"{name} {inner}", command.get_command(None, inner))
        return
    function = inspect.unwrap(command.callback)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = [value(p, function) if p.required else f"[{value(p, function)}]" for p in arguments]
    yield f"```text\nestimator-pipeline {' '.join([name, '[OPTIONS]', *words])}\n```\n"
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    if options:
        rows = "\n".join(option_row(p, function) for p in options)
        yield f"| option | default | meaning |\n| --- | --- | --- |\n{rows}\n"


def render() -> str:
    """Return the page."""
    group = typer.main.get_command(cli.app)
    parts = [part for name in group.list_commands(None) for part in section(name, group.get_command(None, name))]
    return HEAD + "\n".join(parts)


def main() -> int:
    DOCUMENT.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
