"""Run a tutorial or the README: write its files, run its commands in order, compare the output with what it shows.

Marks are comments in the line before a fenced block:

    <!-- file: NAME -->            the block is the file NAME, in the folder in which the commands run
    <!-- run -->                   the block is run by bash; the `text` block that follows it shows its output
    <!-- run: exit 1 -->           the same, with another exit code than 0
    <!-- run: 2.15 -->             the same, on TensorFlow 2.15; `2.21` is any later TensorFlow
    <!-- run: 2.21, needs 2.15 --> the same, and an earlier command ran on TensorFlow 2.15
    <!-- run: needs tf-slim -->    the same, where tf-slim is installed; also optuna
    <!-- run: slurm -->            the same, where a Slurm is
    <!-- run: setup -->            the same, and before the commands for Slurm as well
"""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import ROOT, environment

__all__ = ["FOLDER", "Command", "Tutorial", "environments", "is_shown", "pages"]

FOLDER = ROOT / "docs" / "tutorials"

_FENCE = re.compile(r"(?:^<!-- ([^\n]*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# In a line of output: a run or submission id, a number or time, a stretch of blanks, what is left out.
_PIECE = re.compile(r"(\d{8}-\d{6}-[0-9a-f]{8})|(\d+(?:[.,:-]\d+)*(?:e[+-]?\d+)?)|(\s+)|(\.\.\.)")
_MEANING = (r"\d{8}-\d{6}-[0-9a-f]{8}", r"\d+(?:[.,:-]\d+)*(?:e[+-]?\d+)?", r"\s+", r".*")


class Command(NamedTuple):
    """A block that is run: its line, the shell lines, the words of its mark, the lines of output that are shown."""

    line: int
    script: str
    conditions: tuple[str, ...]
    shown: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        codes = [int(word.removeprefix("exit ")) for word in self.conditions if word.startswith("exit ")]
        return codes[0] if codes else 0

    @property
    def tensorflow(self) -> str:
        """The TensorFlow that the command asks for, or "" for any."""
        return next((word for word in self.conditions if word in ("2.15", "2.21")), "")

    @property
    def requires(self) -> set[str]:
        """The TensorFlow versions and packages without which the command cannot run."""
        needs = {word.removeprefix("needs ") for word in self.conditions if word.startswith("needs ")}
        return needs | ({self.tensorflow} if self.tensorflow else set())

    @property
    def only_on_slurm(self) -> bool:
        return "slurm" in self.conditions

    @property
    def on_slurm(self) -> bool:
        return self.only_on_slurm or "setup" in self.conditions


class Tutorial:
    """A page whose commands are run.

    Args:
        path: Of the page.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.text = path.read_text(encoding="utf-8")
        self.files: dict[str, str] = {}
        self.commands: list[Command] = []
        runs = False
        for match in _FENCE.finditer(self.text):
            kind, _, rest = (match[1] or "").partition(": ")
            if kind == "file":
                self.files[rest] = match[3]
            elif kind == "run":
                line = self.text.count("\n", 0, match.start(3)) + 1
                conditions = tuple(word.strip() for word in rest.split(",") if word)
                self.commands.append(Command(line, match[3], conditions, ()))
            elif match[2] == "text" and runs:
                self.commands[-1] = self.commands[-1]._replace(shown=tuple(match[3].splitlines()))
            runs = kind == "run"

    def write_files(self, folder: Path) -> None:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")

    def run(
        self, command: Command, folder: Path, binaries: Path, environ: Mapping[str, str | None] | None = None
    ) -> None:
        """Runs a command, and asserts its exit code and that its output has the lines that are shown.

        Args:
            command: One of `commands`.
            folder: Where it runs.
            binaries: The folder of the `estimator-pipeline` and the `python` that it runs.
            environ: Changes of the environment.
        """
        where = f"{self.name}:{command.line}"
        search = f"{binaries}{os.pathsep}{os.environ['PATH']}"
        process = subprocess.Popen(
            ["bash", "-e", "-c", command.script], cwd=folder, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=environment({"PATH": search, "HOME": str(folder), **(environ or {})}),
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=300)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert process.returncode == command.exit_code, f"{where}: exit code {process.returncode}\n{output[-6000:]}"
        missing = [line for line in command.shown if not is_shown(line, output)]
        assert not missing, f"{where}: not in the output: {missing}\n{output[-6000:]}"


def is_shown(line: str, output: str) -> bool:
    """Whether a line of the output is the line that is shown, but for numbers and what `...` leaves out."""
    line = line.strip()
    if line in ("", "..."):
        return True
    pattern = ""
    end = 0
    for match in _PIECE.finditer(line):
        assert match.lastindex is not None
        pattern += re.escape(line[end : match.start()]) + _MEANING[match.lastindex - 1]
        end = match.end()
    pattern += re.escape(line[end:])
    return re.search(rf"^\s*{pattern}\s*$", output, re.MULTILINE) is not None


@functools.cache
def environments() -> dict[str, Path]:
    """TensorFlow "2.15" and "2.21" (any later one) -> the folder of its programs, as far as they are here.

    The one is that of the running Python; the other is made by `make venv` or `make venv TF=2.15`.
    """
    own = "2.15" if version("tensorflow").startswith("2.15.") else "2.21"
    found = {own: Path(sys.executable).parent}
    for name, folder in (("2.15", ".venv-2.15"), ("2.21", ".venv")):
        if name != own and (ROOT / folder / "bin" / "estimator-pipeline").exists():
            found[name] = ROOT / folder / "bin"
    return found


def pages() -> list[Path]:
    """All tutorials."""
    return sorted(FOLDER.glob("*.md"))
