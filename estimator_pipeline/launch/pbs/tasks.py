"""Starter of a PBS job's tasks, in place of srun.

    python -m estimator_pipeline.launch.pbs.tasks LOGS GRACE COMMAND...

It runs on the first host, and starts the command on the host of each line of PBS_NODEFILE by `pbs_tmrsh`, which returns
the exit code of the task, but passes on neither the environment nor signals, and may be killed without the task. So a
task is started by a script in LOGS with the environment, writes its output to LOGS/task-RANK.log, and is signalled by a
further `pbs_tmrsh` with the number of its process group. OpenPBS: src/cmds/pbs_tmrsh.c.

When a task fails, the others are terminated, and later killed. The exit code is that of the first one that failed.
After SIGUSR1 or SIGTERM the tasks get SIGUSR1; after SIGTERM they are killed GRACE seconds later.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from estimator_pipeline.cluster.environments.pbs import RANK_VARIABLE
from estimator_pipeline.launch.supervisor.supervisor import ATTEMPT_VARIABLE

__all__ = ["main"]

_POLL_SECS = 0.1
# Seconds that the other tasks have after a failure, as KillWait of Slurm.
_FAILURE_SECS = 30.0
# Seconds from SIGKILL until the host of a task counts as lost.
_LOST_SECS = 60.0
# Variables of a shell, and those that PBS sets for each task.
_NOT_PASSED = re.compile(r"(?!ESTIMATOR_PIPELINE_)(?:PBS_.*|HOSTNAME|SHLVL|PWD|OLDPWD|_)|.*\W.*", re.DOTALL)
# As srun names them, for `launch.supervisor.ranks`.
_ENDS = {128 + number: signal.strsignal(number) for number in signal.Signals}

_SCRIPT = """\
{exports}
export {rank}=$1
cd {working_dir} || exit 2
again=
trap 'again=1' TERM USR1
set -m
{command} >>{logs}/task-$1.log 2>&1 </dev/null &
task=$!
echo "$task" >{folder}/$1.pid
while :; do
    wait "$task" 2>/dev/null
    code=$?
    [ -n "$again" ] || break
    again=
done
exit "$code"
"""


class _Tasks:
    """The tasks of one start.

    Args:
        hosts: The host of each rank.
        folder: The folder of the script and the numbers of the process groups.
    """

    def __init__(self, hosts: Sequence[str], folder: Path) -> None:
        self._hosts, self._folder = hosts, folder
        self._running = {rank: self._start(rank, str(folder / "start.sh"), str(rank)) for rank in range(len(hosts))}
        self._senders: dict[int, subprocess.Popen[bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    def _start(self, rank: int, *arguments: str) -> subprocess.Popen[bytes]:
        # In a new session: PBS and the supervisor signal this one, and a pbs_tmrsh that ends loses its task.
        return subprocess.Popen(["pbs_tmrsh", self._hosts[rank], "/bin/bash", *arguments], start_new_session=True)

    def ended(self) -> list[tuple[int, int]]:
        """Return the ranks that have ended since the last call, with their exit codes."""
        ended = [(rank, code) for rank, task in self._running.items() if (code := task.poll()) is not None]
        for rank, _ in ended:
            del self._running[rank]
            self._stop_sender(rank)
        return ended

    def send(self, number: int) -> None:
        """Send a signal to all tasks; to one that has not started yet as soon as it has."""
        for rank in self._running:
            self._stop_sender(rank)
            file = shlex.quote(str(self._folder / f"{rank}.pid"))
            send = f"until [ -s {file} ]; do sleep 1; done; kill -s {signal.Signals(number).name[3:]} -- -$(cat {file})"
            # It is not waited for: while PBS ends a job, it may not answer.
            self._senders[rank] = self._start(rank, "-c", send)

    def leave(self) -> list[str]:
        """Stop waiting for the tasks, and return their hosts."""
        for rank, task in self._running.items():
            self._stop_sender(rank)
            task.kill()
        return [self._hosts[rank] for rank in self._running]

    def _stop_sender(self, rank: int) -> None:
        sender = self._senders.pop(rank, None)
        if sender is not None:
            sender.kill()
            sender.wait()


def main(arguments: Sequence[str]) -> int:
    """Run the tasks; see the module."""
    logs, grace, command = Path(arguments[0]), float(arguments[1]), arguments[2:]
    hosts = Path(os.environ["PBS_NODEFILE"]).read_text(encoding="utf-8").split()
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: received.append(number))
    tasks = _Tasks(hosts, _write_script(logs, hosts, command, os.environ))
    first, deadline, killed = 0, float("inf"), False
    while tasks:
        for rank, code in tasks.ended():
            if code == 0:
                continue
            how = _ENDS.get(code) or f"Exited with exit code {code}"
            print(f"pbs_tmrsh: error: {hosts[rank]}: task {rank}: {how}", file=sys.stderr, flush=True)
            if not first:
                first, deadline = code, min(deadline, time.monotonic() + _FAILURE_SECS)
                tasks.send(signal.SIGTERM)
        while received:
            if received.pop(0) == signal.SIGTERM:
                deadline = min(deadline, time.monotonic() + grace)
            tasks.send(signal.SIGUSR1)
        if time.monotonic() >= deadline:
            if killed:
                # PBS does not report the end of a task on a host that it has lost.
                print(f"pbs_tmrsh: error: no answer from {', '.join(tasks.leave())}", file=sys.stderr, flush=True)
                return first or 1
            tasks.send(signal.SIGKILL)
            killed, deadline = True, time.monotonic() + _LOST_SECS
        time.sleep(_POLL_SECS)
    return first


def _write_script(logs: Path, hosts: Iterable[str], command: Sequence[str], environ: Mapping[str, str]) -> Path:
    """Write the script that starts a task, and a copy of PBS_NODEFILE, which only the first host has."""
    folder = logs / f"tasks-{environ.get(ATTEMPT_VARIABLE, '1')}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)  # the environment may have secrets
    (folder / "hosts").write_text("".join(f"{host}\n" for host in hosts), encoding="utf-8")
    passed = {name: value for name, value in environ.items() if not _NOT_PASSED.fullmatch(name)}
    passed["PBS_NODEFILE"] = str(folder / "hosts")
    script = _SCRIPT.format(
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in passed.items()),
        rank=RANK_VARIABLE,
        working_dir=shlex.quote(os.getcwd()),
        command=shlex.join(command),
        logs=shlex.quote(str(logs)),
        folder=shlex.quote(str(folder)),
    )
    (folder / "start.sh").write_text(script, encoding="utf-8", errors="surrogateescape")
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
