"""Small documents that the tasks of a run exchange through a folder.

`SharedDocuments` are JSON files by name. Each has one writer, and is written atomically.

`DocumentExchange` is a barrier: each task publishes a document, and waits for those of all others. A task draws a
random word, unique to this start of its process, and writes two files:

* `RANK.json`: its document and its word;
* `RANK.seen.json`, or a different name: the words of all tasks as it read them.

A task is done when every task has seen the same words as this task. Files of an earlier start cannot be mistaken for
current files, because they do not contain the new words. Once one task is done, all tasks will be, because none writes
any more. The words together identify the start; documents that the tasks exchange after that contain them.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ClusterError, WaitError
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.deadline import Deadline

__all__ = ["DocumentExchange", "SharedDocuments", "format_ranks"]

_POLL_SECS, _LONGEST_POLL_SECS = 0.02, 1.0
# A file that is not renamed into place may be incomplete; it is read again.
_TORN_LOOKS, _TORN_SECS = 5, 0.02
_FIRST = "json"

_ByRank = dict[int, dict[str, Any]]
_OnWait = Callable[[float, list[int]], object]


def _write(path: str, text: str) -> None:
    durable.write(path, text.encode(), to_disk=False)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


class SharedDocuments:
    """JSON documents in a folder.

    Args:
        folder: The folder.
        write: Writes a file, atomically if it can; by default in an existing folder of a mounted file system.
        read: Returns the content of a file; None, or an error, if it cannot be read.
        errors: The errors of `read`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        write: Callable[[str, str], object] = _write,
        read: Callable[[str], str | bytes | None] = _read,
        errors: tuple[type[Exception], ...] = (OSError,),
    ) -> None:
        self.folder = os.fspath(folder)
        self._write, self._read, self._errors = write, read, errors

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a document; raises the errors of the function that writes."""
        self._write(os.path.join(self.folder, name), json.dumps(document, indent=1))

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a document; None if it does not exist, or not completely, on this host."""
        for _ in range(_TORN_LOOKS):
            try:
                text = self._read(os.path.join(self.folder, name))
                document = None if text is None else json.loads(text)
            except ValueError:
                time.sleep(_TORN_SECS)
                continue
            except self._errors:
                return None
            return document if isinstance(document, dict) else None
        return None


class DocumentExchange:
    """The exchange of one start, as one task sees it. Methods raise OSError if a document cannot be written.

    Args:
        documents: In a folder of a mounted file system, which is created.
        rank: The rank of this task.
        size: The number of tasks.
        name: The name of this task, for messages.
        timeout: Seconds to wait for the others.
        event: What the others have to do, for the message if some do not: "publish their ports".
        hint: The hint of that error.

    Attributes:
        deadline: The time limit of all waits.
        present: The tasks' documents at the last poll, by rank.
    """

    def __init__(
        self, documents: SharedDocuments, *, rank: int, size: int, name: str, timeout: float, event: str, hint: str
    ) -> None:
        self.deadline = Deadline(timeout)
        self.present: _ByRank = {}
        self._documents, self._rank, self._size, self._name = documents, rank, size, name
        self._event, self._hint = event, hint
        self._document: dict[str, Any] = {}
        self._word, self._words = secrets.token_hex(8), dict[str, str]()
        os.makedirs(documents.folder, exist_ok=True)

    def agree(self, document: Mapping[str, Any], *, seen: str = "seen.json", on_wait: _OnWait | None = None) -> _ByRank:
        """Publish this task's document, and wait until every task has seen the same documents.

        Args:
            document: The document.
            seen: The end of the name of the files with the words that a task has seen.
            on_wait: Called at each poll with the seconds waited, and the ranks that are waited for.

        Returns:
            The documents by rank.

        Raises:
            ClusterError: Two processes have the same rank, or the numbers of tasks differ.
            WaitError: Tasks are missing after the timeout; the message names them.
        """

        def agreed() -> _ByRank:
            if self.absent():
                return self.present
            words = {str(rank): str(other.get("word")) for rank, other in self.present.items()}
            if words != self._words:
                self._words = words
                self.post(seen, {})
            return self._read(seen, words)

        self._document = {**document, "size": self._size, "word": self._word}
        self.refresh()
        self._wait(agreed, on_wait)
        self.check_sizes()
        return self.present

    def absent(self) -> list[int]:
        """Return the ranks without a document at the last poll."""
        return [rank for rank in range(self._size) if rank not in self.present]

    def post(self, kind: str, document: Mapping[str, Any]) -> None:
        """Write this task's document of a different kind, which is the end of the file's name."""
        self._documents.write(f"{self._rank}.{kind}", {**document, "word": self._word, "words": self._words})

    def collect(self, kind: str) -> _ByRank:
        """Wait for the documents of a kind that all tasks of this start have posted, and return them by rank.

        Raises:
            ClusterError, WaitError: See `agree`.
        """
        return self._wait(lambda: self._read(kind, self._words))

    def refresh(self) -> None:
        """Publish this task's document again, which makes a network file system refresh the folder, and read all."""
        # A different start that gives up may remove the folder while it is empty.
        os.makedirs(self._documents.folder, exist_ok=True)
        self._documents.write(f"{self._rank}.{_FIRST}", self._document)
        self._look()

    def check_sizes(self) -> None:
        """Raise ClusterError if all tasks are present, and one expects a different number of tasks."""
        for rank, document in self.present.items():
            if not self.absent() and document.get("size") != self._size:
                raise ClusterError(
                    f"{self._name} is one of {self._size} tasks, but {document.get('name', f'rank {rank}')} of "
                    f"{document.get('size')}.",
                    code="cluster/contradiction",
                    found=f"the files in {self._documents.folder}",
                    hint="start every task with the same job file, TF_CONFIG and options.",
                )

    def _wait(self, read: Callable[[], _ByRank], on_wait: _OnWait | None = None) -> _ByRank:
        """Wait until `read` returns the documents of all tasks."""
        missing: list[int] = []
        for waited in self.deadline.polls(_POLL_SECS, longest=_LONGEST_POLL_SECS):
            self._look()
            documents = read()
            missing = [rank for rank in range(self._size) if rank not in documents]
            if not missing:
                return documents
            if on_wait is not None:
                on_wait(waited, missing)
        raise WaitError(
            f"{self._name} waited {self.deadline.seconds:.0f} s for the other tasks to {self._event}, and "
            f"{self._size - len(missing)} of {self._size} did",
            found=f"missing: {format_ranks(missing)}; the folder is {self._documents.folder}",
            hint=self._hint,
        )

    def _look(self) -> None:
        # Listing the folder makes a network file system refresh files that it has cached as absent.
        with contextlib.suppress(OSError):
            os.listdir(self._documents.folder)
        self.present = self._read(_FIRST)
        local = self.present.get(self._rank, self._document)
        if local.get("word") != self._word:
            raise ClusterError(
                f"two processes have the rank {self._rank}.",
                code="cluster/contradiction",
                found=f"this one, and one at {local.get('address')}, in {self._documents.folder}",
                hint="start each task once (with TF_CONFIG, each with a different one); if the scheduler starts a "
                "process per core, request one per host.",
            )

    def _read(self, kind: str, words: Mapping[str, str] | None = None) -> _ByRank:
        """Return the documents of a kind by rank; with `words`, those of the same start."""
        documents = ((rank, self._documents.read(f"{rank}.{kind}")) for rank in range(self._size))
        return {rank: d for rank, d in documents if d is not None and (words is None or d.get("words") == words)}


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks as "ranks 1, 3 to 5"."""
    starts = [rank for rank in ranks if rank - 1 not in ranks]
    ends = [rank for rank in ranks if rank + 1 not in ranks]
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in zip(starts, ends, strict=True)]
    return f"rank{'s'[: len(ranks) != 1]} {', '.join(parts)}"
