"""Scan and conversion of a folder, program by program, in several processes."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from estimator_pipeline.migrate.code.analysis.files import Skipped, SourceFile, read_tree
from estimator_pipeline.migrate.code.analysis.import_graph import Part, imported, parts, with_tensorflow
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.others import Others, holds, merged

__all__ = ["CodeBase", "Progress", "Work", "read_code", "run"]

Progress = Callable[[int, int], None]
"""Called with the number of finished files and the number of all files."""
Work = Callable[[list[SourceFile], Modules, Others], Mapping[str, Any]]
"""Returns path -> result for the files of one program; can be pickled."""

# A process takes half a second to start, which does not pay for fewer lines.
_LINES_FOR_A_PROCESS = 4_000
# A program is read again if the facts of other programs changed after it used them: usually once.
_ROUNDS = 8


@dataclass
class CodeBase:
    """A code base.

    Attributes:
        base: the folder that paths are relative to.
        parts: the programs; files that do not use TensorFlow belong to none.
        without: the files that neither use TensorFlow nor import a file that may use it.
    """

    base: Path
    sources: list[SourceFile]
    skipped: list[Skipped]
    modules: Modules
    parts: list[Part]
    without: set[str]


class _Answer(NamedTuple):
    """The results for the files of a program, the facts that it reports and those that it used."""

    results: Mapping[str, Any]
    reported: dict[str, Any]
    asked: dict[str, Any]


def read_code(root: str | os.PathLike[str]) -> CodeBase:
    """Read a file or a folder and split it into programs.

    Raises:
        ConfigError: the path does not exist, cannot be read or has no Python file.
    """
    base, sources, skipped = read_tree(root)
    by_path = {source.path: source for source in sources}
    imports = {path: imported(source) for path, source in by_path.items()}
    chosen = with_tensorflow(by_path, imports)
    modules = Modules(by_path, base.resolve().name)
    programs = parts(by_path, imports, {path for path in chosen if not by_path[path].problems}, modules)
    without = by_path.keys() - chosen
    for path in without:  # such a file belongs to no program that would report its problems
        by_path[path].problems += imports[path].problems
    return CodeBase(base, sources, skipped, modules, programs, without)


def run(code: CodeBase, work: Work, *, jobs: int = 1, progress: Progress | None = None) -> list[Mapping[str, Any]]:
    """Return the results of each program, which do not depend on the number of processes."""
    return _Run(code, work, jobs, progress).results()


@dataclass
class _Run:
    code: CodeBase
    work: Work
    jobs: int
    progress: Progress | None
    answers: dict[Part, _Answer] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sources = {source.path: source for source in self.code.sources}

    def results(self) -> list[Mapping[str, Any]]:
        """Read all programs, and again those that used a fact that has changed."""
        # Largest first, so that the processes finish at about the same time.
        parts = sorted(self.code.parts, key=self._lines, reverse=True)
        for again in range(_ROUNDS, -1, -1):
            self.known = merged(self.answers[part].reported for part in parts if part in self.answers)
            left = [part for part in parts if part not in self.answers or (again and self._is_old(part))]
            if left:
                self._read(left)
                continue
            joined = self._joined(parts)
            if len(joined) == len(parts):
                break
            parts = joined
        return [self.answers[part].results for part in parts]

    def _read(self, left: list[Part]) -> None:
        others = sum(self._lines(part) for part in left[1:])
        count = min(self.jobs, len(left), 1 + others // _LINES_FOR_A_PROCESS)
        waiting = left[::-1]
        if count > 1:
            with contextlib.suppress(BrokenProcessPool):  # a process was killed: the rest is read here
                self._read_in_processes(waiting, count)
        while waiting:
            part = waiting.pop()
            self._keep(part, _answer(*self._question(part)))

    def _read_in_processes(self, waiting: list[Part], count: int) -> None:
        """Read programs in processes, and remove them from `waiting`."""
        context = multiprocessing.get_context("spawn")
        reader, writer = context.Pipe(duplex=False)
        running: dict[Future[_Answer], Part] = {}
        # The processes exit when the pipe closes: after an interrupt, and if this process is killed.
        with reader, ProcessPoolExecutor(count, context, _exit_with_pipe, (reader,)) as pool, writer:
            try:
                while waiting or running:
                    while waiting and len(running) < count:
                        with _without_interrupts():
                            future = pool.submit(_answer, *self._question(waiting[-1]))
                        running[future] = waiting.pop()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        self._keep(running[future], future.result())
                        del running[future]
            finally:
                waiting += running.values()

    def _question(self, part: Part) -> tuple[Work, list[SourceFile], Modules, dict[str, Any]]:
        return self.work, [self.sources[path] for path in part], self.code.modules, self.known

    def _keep(self, part: Part, answer: _Answer) -> None:
        self.answers[part] = answer
        self.known = merged([self.known, answer.reported])
        if self.progress is not None:
            done = sum(len(program) for program in self.code.parts if program in self.answers)
            self.progress(done, sum(map(len, self.code.parts)))

    def _is_old(self, part: Part) -> bool:
        """Return whether facts that the program used have changed."""
        return not holds(self.answers[part].asked, self.known)

    def _joined(self, parts: list[Part]) -> list[Part]:
        """Return the programs, joining those that have different results for a shared file."""
        by_path: dict[str, list[Part]] = {}
        for part in parts:
            for path in part:
                by_path.setdefault(path, []).append(part)
        groups = {part: [part] for part in parts}
        for path, owners in by_path.items():
            results = [self.answers[owner].results[path] for owner in owners]
            if any(result != results[0] for result in results):
                group = list(dict.fromkeys(part for owner in owners for part in groups[owner]))
                groups.update(dict.fromkeys(group, group))
        distinct = {id(group): group for group in groups.values()}.values()
        return [tuple(sorted({path for part in group for path in part})) for group in distinct]

    def _lines(self, part: Part) -> int:
        return sum(self.sources[path].text.count("\n") for path in part)


def _answer(work: Work, sources: list[SourceFile], modules: Modules, known: Mapping[str, Any]) -> _Answer:
    others = Others(known)
    with _quiet_collector():
        results = work([replace(source, problems=[]) for source in sources], modules, others)
    return _Answer(results, others.reported, others.asked)


@contextlib.contextmanager
def _quiet_collector() -> Iterator[None]:
    """Disable garbage collection, which would scan millions of live nodes repeatedly."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Delay an interrupt while a process starts, which would wait forever. The process inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with_pipe(reader: Connection) -> None:
    """Exit when the other end of a pipe closes, also in the middle of a program."""

    def watch() -> None:
        reader.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
