"""`estimator-pipeline explain CODE`: explain an error code and the action to take."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from estimator_pipeline.cli.options import argument
from estimator_pipeline.errors import ConfigError

__all__ = ["command"]

_WIDTH = 100


def command(
    code: Annotated[
        str | None,
        argument("Explain this code, shown in brackets after an error; without it: list all codes.", "[CODE]"),
    ] = None,
) -> None:
    """Explain an error code and the action to take.

    Each error ends with a code in brackets, such as [job/unknown-field]. A code does not change when the message does.
    """
    from estimator_pipeline.errors.codes import AREAS, CODES
    from estimator_pipeline.utils.text import nearest

    if code is None:
        for area, about in AREAS.items():
            typer.echo(f"{about}:")
            for name, entry in CODES.items():
                if name.partition("/")[0] == area:
                    line = f"{name:<30} {entry.meaning}"
                    typer.echo(textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent=" " * 33))
        return
    code = code.strip("[]")
    if code not in CODES:
        close = nearest(code, CODES)
        raise ConfigError(
            f"no error has the code {code!r}",
            code="argument/unknown-name",
            hint=f"did you mean {close!r}?" if close else "`estimator-pipeline explain` lists all codes",
        )
    typer.echo(f"{code}\n")
    typer.echo(textwrap.fill(CODES[code].meaning, _WIDTH))
    typer.echo(textwrap.fill(f"What to do: {CODES[code].action}", _WIDTH))
