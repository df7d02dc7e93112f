"""The programs of a folder and their results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline.migrate.code.analysis.files import Skipped, SourceFile, read_tree
from estimator_pipeline.migrate.code.analysis.import_graph import Part, imported, parts, with_tensorflow
from estimator_pipeline.migrate.code.analysis.modules import Modules
from estimator_pipeline.migrate.code.others import holds, merged
from estimator_pipeline.migrate.code.repository import results_cache
from estimator_pipeline.migrate.code.repository.processes import Processes
from estimator_pipeline.migrate.code.repository.results_cache import ResultsCache
from estimator_pipeline.migrate.code.repository.worker import PartFunction, Worker, quiet_collector

__all__ = ["CodeBase", "Progress", "read_code", "run"]

Progress = Callable[[int, int], None]
"""Called with the number of finished files and the number of all files."""

# Each file counts two ticks while it is read, and one when its program is done.
_TICKS = 3
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


def run(
    code: CodeBase,
    work: str,
    part: PartFunction,
    options: Mapping[str, str],
    *,
    jobs: int = 1,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Return the result of each program, which depends neither on the number of processes nor on the cache.

    Args:
        work: the name of `part` for worker processes: "scan" or "convert".
        part, options: see `..worker.Worker`.
    """
    running = _Run(code, work, part, dict(options), jobs, None if cache is None else ResultsCache(cache), progress)
    with quiet_collector(), contextlib.ExitStack() as stack:
        return running.answers(stack)


@dataclass
class _Run:
    code: CodeBase
    work: str
    part: PartFunction
    options: dict[str, str]
    jobs: int
    cache: ResultsCache | None
    progress: Progress | None
    results: dict[Part, dict[str, Any]] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    processes: Processes | None = None
    worker: Worker | None = None

    def __post_init__(self) -> None:
        self.sources = {source.path: source for source in self.code.sources}
        self.ticks = dict.fromkeys(self.code.parts, 0)

    def answers(self, stack: contextlib.ExitStack) -> list[dict[str, Any]]:
        """Read all programs, and again those that used a fact that has changed."""
        # Largest first, so that the processes finish at about the same time.
        parts = sorted(self.code.parts, key=self._lines, reverse=True)
        stored = {part: self.cache.get(self._key(part)) for part in parts} if self.cache is not None else {}
        for part, answer in stored.items():
            if answer is not None:
                self._keep(part, answer)
        for again in range(_ROUNDS, -1, -1):
            self.known = merged(self.results[part]["told"] for part in parts if part in self.results)
            left = [part for part in parts if part not in self.results or (again and self._is_old(part))]
            if left:
                self._read(left, stack)
                continue
            joined = self._joined(parts)
            if len(joined) == len(parts):
                break
            parts = joined
        if self.cache is not None:
            self.cache.trim()
        return [self.results[part] for part in parts]

    def _read(self, left: list[Part], stack: contextlib.ExitStack) -> None:
        others = sum(self._lines(part) for part in left[1:])
        count = min(self.jobs, len(left), 1 + others // _LINES_FOR_A_PROCESS)
        if count < 2:
            for part in left:
                self._new(part, self._answer(part))
            return
        if self.processes is None:
            first = {"work": self.work, "options": self.options, "package": self.code.modules.package,
                     "paths": [source.path for source in self.code.sources]}  # fmt: skip
            self.processes = stack.enter_context(Processes(count, first))
        for event in self.processes.each([self._sources(part) for part in left], lambda: self.known):
            part = left[event.job]
            if event.ticks:
                self._tick(part, event.ticks)
            else:  # if the process was killed, the program is read here
                self._new(part, event.answer or self._answer(part))

    def _answer(self, part: Part) -> dict[str, Any]:
        if self.worker is None:
            self.worker = Worker(self.part, self.options, self.code.modules)
        return self.worker.answer(self._sources(part), self.known, lambda: self._tick(part, 1))

    def _new(self, part: Part, answer: dict[str, Any]) -> None:
        if self.cache is not None:
            self.cache.put(self._key(part), answer)
        self._keep(part, answer)

    def _keep(self, part: Part, answer: dict[str, Any]) -> None:
        self.results[part] = answer
        self.known = merged([self.known, answer["told"]])
        self._tick(part, _TICKS * len(part.paths))

    def _tick(self, part: Part, ticks: int) -> None:
        if part not in self.ticks:
            return  # a program joined from two that are already counted
        self.ticks[part] = min(self.ticks[part] + ticks, _TICKS * len(part.paths))
        if self.progress is not None:
            self.progress(sum(self.ticks.values()) // _TICKS, sum(len(program.paths) for program in self.ticks))

    def _is_old(self, part: Part) -> bool:
        """Return whether facts that the program used have changed."""
        return not holds(self.results[part]["asked"], self.known)

    def _joined(self, parts: list[Part]) -> list[Part]:
        """Return the programs, joining those that have different results for a shared file."""
        by_path: dict[str, list[Part]] = {}
        for part in parts:
            for path in part.paths:
                by_path.setdefault(path, []).append(part)
        groups = {part: [part] for part in parts}
        for path, owners in by_path.items():
            if len(owners) > 1 and any(self._of(path, owner) != self._of(path, owners[0]) for owner in owners):
                group = list(dict.fromkeys(part for owner in owners for part in groups[owner]))
                groups.update(dict.fromkeys(group, group))
        distinct = {id(group): group for group in groups.values()}.values()
        return [
            group[0] if len(group) == 1 else Part(*(tuple(sorted({value for part in group for value in part[field]}))
                                                    for field in range(len(Part._fields))))
            for group in distinct
        ]  # fmt: skip

    def _of(self, path: str, part: Part) -> list[dict[str, Any]]:
        answer = self.results[part]
        of_path: list[dict[str, Any]] = [
            entry for name in ("files", "findings", "verdicts") for entry in answer.get(name, ())
            if (entry.get("written") or entry["path"]) == path
        ]  # fmt: skip
        return of_path

    def _sources(self, part: Part) -> list[SourceFile]:
        return [self.sources[path] for path in part.paths]

    def _lines(self, part: Part) -> int:
        return sum(source.text.count("\n") for source in self._sources(part))

    def _key(self, part: Part) -> str:
        return results_cache.key(
            self.work, self.options, self.code.modules.package, part.modules, self._sources(part)
        )  # fmt: skip
