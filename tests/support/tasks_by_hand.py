"""Tasks of a cluster started one by one with their TF_CONFIG, as people on several machines would; no launcher."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from estimator_pipeline.launch import hold_ports
from tests.support.processes import environment

EXEC = (sys.executable, "-m", "estimator_pipeline", "exec")


class Tasks:
    """Running tasks: name ("worker0") -> process and log. Ends all of them on leaving the block.

    The command is the same for all tasks, or a function of job and index; so is the folder that each is started in.
    """

    def __init__(
        self,
        jobs: dict[str, int],
        command: Sequence[object] | Callable[[str, int], Sequence[object]],
        folder: Path,
        *,
        env: dict[str, str] | None = None,
        evaluator_inside: bool = False,
        cwd: Callable[[str, int], Path] | None = None,
    ) -> None:
        self._cwd = cwd
        self._jobs, self._command, self._folder = jobs, command, folder
        self._env, self._inside = env or {}, evaluator_inside
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Tasks:
        self._stack = contextlib.ExitStack()
        held = iter(self._stack.enter_context(hold_ports(sum(self._jobs.values()))).ports)
        self.cluster = {job: [f"localhost:{next(held)}" for _ in range(n)] for job, n in self._jobs.items()}
        for job, n in self._jobs.items():
            for index in range(n):
                self.start(job, index)
        return self

    def start(self, job: str, index: int) -> None:
        """Starts one task (again); its log goes on."""
        name = f"{job}{index}"
        inside = self._inside and job == "evaluator"
        cluster = {j: tasks for j, tasks in self.cluster.items() if j != "evaluator" or inside}
        tf_config = {"cluster": cluster, "task": {"type": job, "index": index}}
        variables = {"TF_CONFIG": json.dumps(tf_config), "TF_GRPC_REUSE_PORT": "1", **self._env}
        command = self._command(job, index) if callable(self._command) else self._command
        with self.log_file(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in command],
                env=environment(variables),
                cwd=self._cwd and self._cwd(job, index),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log_file(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def log(self, name: str) -> str:
        return self.log_file(name).read_text(errors="replace")

    def wait(self, *, timeout: float = 150, names: Sequence[str] = ()) -> dict[str, int | None]:
        """Exit codes once the tasks (all, or those named) have ended or time is up: None for one that still runs."""
        deadline = time.monotonic() + timeout
        waited = [self.processes[name] for name in names or self.processes]
        while any(process.poll() is None for process in waited) and time.monotonic() < deadline:
            time.sleep(0.1)
        return {name: process.poll() for name, process in self.processes.items()}

    def wait_for(self, done: Callable[[], bool], what: str, *, timeout: float = 100) -> None:
        """Waits until `done()`."""
        deadline = time.monotonic() + timeout
        while not done():
            assert time.monotonic() < deadline, f"waited {timeout} s for {what}\n{self.tails()}"
            time.sleep(0.1)

    def tails(self) -> str:
        """The ends of all logs, for a failed assertion."""
        return "\n".join(f"---- {name} ----\n{self.log(name)[-3000:]}" for name in self.processes)

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._stack.close()
