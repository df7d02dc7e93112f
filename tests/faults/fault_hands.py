"""Two workers of a job started one by one, as people on two machines would: no launcher, and nobody who restarts them.

Both are on this machine; or each has a network of its own, and the cable between them can be pulled.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fault_jobs import ROOT, Job, lines_of, until

# TEST-NET-2 (RFC 5737): nobody's addresses.
_ADDRESS = "198.51.100.{}"
# Nobody's: what is sent to it arrives nowhere, and nobody is told.
_NOBODY = "02:00:00:00:00:99"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def _two_networks():
    """The names of two network namespaces, with a cable between them."""
    names = [f"faults-{os.getpid()}-{index}" for index in range(2)]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for index, name in enumerate(names):
            _ip("-n", name, "addr", "add", f"{_ADDRESS.format(index + 1)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=20)


def has_networks() -> bool:
    """Whether this machine, and this user, can have networks of their own."""
    try:
        with _two_networks():
            return True
    except (OSError, subprocess.SubprocessError):
        return False


class Hands:
    """Running tasks of a job, without its evaluator. Leaving the block ends them.

    Attributes:
        processes: task ("worker:0") -> its process.

    Args:
        job: whose launcher has ended.
        tasks: the numbers of the workers that are started.
        changes: to the job file, of single workers.
        environ: for all of them.
        apart: whether each has a network of its own.
    """

    def __init__(
        self,
        job: Job,
        *,
        tasks: Sequence[int] = (0, 1),
        changes: Mapping[int, str] | None = None,
        environ: Mapping[str, str] | None = None,
        apart: bool = False,
    ) -> None:
        self._job, self._tasks, self._apart = job, tasks, apart
        self._changes, self._environ = changes or {}, environ or {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.folder = job.folder / f"by-hand-{len(list(job.folder.glob('by-hand-*'))) + 1}"

    def __enter__(self) -> Hands:
        self.folder.mkdir()
        with contextlib.ExitStack() as stack:
            self._networks = stack.enter_context(_two_networks()) if self._apart else []
            addresses = [f"{_ADDRESS.format(n)}:2222" for n in (1, 2)] if self._apart else _free_addresses()
            stack.callback(self._end)
            for index in self._tasks:
                self._start(index, addresses)
            self._stack = stack.pop_all()
        return self

    def _start(self, index: int, addresses: Sequence[str]) -> None:
        task = f"worker:{index}"
        tf_config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environ = {**self._job.environ, **self._environ, "TF_CONFIG": json.dumps(tf_config),
                   "ESTIMATOR_PIPELINE_PROGRESS": str(self._told(task))}  # fmt: skip
        command = [*(["ip", "netns", "exec", self._networks[index]] if self._apart else []), sys.executable, "-m",
                   "estimator_pipeline", "train", str(self._job.file),
                   *self._job.settings("cluster.evaluator=false", "cluster.workers=2"),
                   *(("--set", self._changes[index]) if index in self._changes else ())]  # fmt: skip
        with open(self.log(task), "wb") as log:
            self.processes[task] = subprocess.Popen(
                command, env=environ, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def log(self, task: str) -> Path:
        return self.folder / f"{task.replace(':', '-')}.log"

    def _told(self, task: str) -> Path:
        return self.folder / f"{task.replace(':', '-')}.progress.jsonl"

    def step(self, task: str) -> int | None:
        """The last step that a task has told."""
        steps = [event.get("step") for event in lines_of(self._told(task)) if event.get("event") == "step"]
        return max((step for step in steps if step is not None), default=None)

    def steps(self) -> int:
        """The last step that any of them has told; 0 before the first."""
        return max(self.step(task) or 0 for task in self.processes)

    def running(self, *tasks: str) -> bool:
        """Whether one of these, or of all, still runs."""
        return any(self.processes[task].poll() is None for task in tasks or self.processes)

    def until_ended(self, what: str, *tasks: str, seconds: float = 90) -> None:
        """Until these, or all, have ended.

        Raises:
            Hang: they do not.
        """
        until(what, lambda: not self.running(*tasks), seconds=seconds)

    def send(self, task: str, number: int) -> None:
        if self.running(task):
            self.processes[task].send_signal(number)

    def ask(self) -> None:
        """All to end, and until they have."""
        for task in self.processes:
            self.send(task, signal.SIGTERM)
        self.until_ended("the end of tasks by hand that were asked to end")

    def cut(self) -> None:
        """No packet arrives any more, on either side."""
        for index, name in enumerate(self._networks):
            _ip("-n", name, "neigh", "replace", _ADDRESS.format(2 - index), "lladdr", _NOBODY, "nud", "permanent",
                "dev", "eth0")  # fmt: skip

    def join(self) -> None:
        """They arrive again."""
        for index, name in enumerate(self._networks):
            _ip("-n", name, "neigh", "del", _ADDRESS.format(2 - index), "dev", "eth0")

    def wrong(self, task: str, codes: Sequence[int], *words: str) -> str:
        """What is wrong with how a task has ended: its exit code, or what it did not say (regular expressions)."""
        code = self.processes[task].poll()
        log = self.log(task).read_text(errors="replace")
        missing = [word for word in words if not re.search(word, log)]
        if code not in codes or missing or "Traceback" in log:
            said = " | ".join(log.strip().splitlines()[-4:])[-400:]
            return f"{task} by hand ended with {code}, not {list(codes)}, or did not say {list(words)}: {said}"
        return ""

    def _end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(30)

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _free_addresses() -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [f"localhost:{one.getsockname()[1]}" for one in sockets]
