"""Starter of a PBS job's tasks, in place of srun.

    python -m estimator_pipeline.launch.pbs.tasks LOGS GRACE COMMAND...

It runs on the first host, and starts the command on the host of each line of PBS_NODEFILE by `pbs_tmrsh`, which returns
the exit code of the task, but passes on neither the environment nor signals, and may be killed without the task. So a
task is started by a script in LOGS with the environment, writes its output to LOGS/task-RANK.log, and is signalled by a
further `pbs_tmrsh` with the number of its process group. OpenPBS: src/cmds/pbs_tmrsh.c.

When a task fails, the others are terminated, and later killed. The exit code is that of the first one that failed.
After SIGUSR1 or SIGTERM the tasks get SIGUSR1; after SIGTERM they are killed GRACE seconds later.

PBS leaves a job running whose first host works and a different one has failed, and may end it when that is back. Tasks
can never be started there again: `pbs_tmrsh` does not return while the host is down, and fails at once when it is back.
So then the script gets SIGUSR1, as before the time limit, and submits itself again.
"""

from __future__ import annotations

import contextlib
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
# Seconds in which a task writes the number of its process group, or its host has failed. A task takes some seconds, and
# a shared file system up to a minute to show its file on a different host. Not much more: PBS ends the job when the
# host is up again, without a requeue.
_START_SECS = 120
# pbs_tmrsh: PBS could not run the command on the host.
_NOT_RUN = 255
# The process id of the script, if it submits itself again after SIGUSR1; submissions of earlier versions do not set it.
_SCRIPT_VARIABLE = "ep_script"
# Variables of a shell, and those that PBS sets for each task.
_NOT_PASSED = re.compile(r"(?!ESTIMATOR_PIPELINE_)(?:PBS_.*|ep_script|HOSTNAME|SHLVL|PWD|OLDPWD|_)|.*\W.*", re.DOTALL)
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
        self._start_deadline = time.monotonic() + _START_SECS
        self._running = {rank: self._start(rank, str(folder / "start.sh"), str(rank)) for rank in range(len(hosts))}
        self._senders: dict[int, subprocess.Popen[bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    def _start(self, rank: int, *arguments: str) -> subprocess.Popen[bytes]:
        # In a new session: PBS and the supervisor signal this one, and a pbs_tmrsh that ends loses its task.
        return subprocess.Popen(["pbs_tmrsh", self._hosts[rank], "/bin/bash", *arguments], start_new_session=True)

    def ended(self) -> list[tuple[int, int | None]]:
        """Return the ranks that have ended since the last call, with their exit codes; None if the host has failed."""
        failed = {rank for rank, sender in self._senders.items() if sender.poll() == _NOT_RUN}
        if time.monotonic() >= self._start_deadline:
            self._start_deadline = float("inf")
            failed |= {rank for rank in self._running if not self._pid_file(rank).exists()}
        ended: dict[int, int | None] = dict.fromkeys(failed)
        for rank, task in self._running.items():
            code = task.poll()
            if code is not None:
                ended[rank] = None if code == _NOT_RUN and not self._pid_file(rank).exists() else code
        for rank in ended:
            self._leave(rank)
        return list(ended.items())

    def send(self, number: int) -> None:
        """Send a signal to all tasks; to one that has not started yet as soon as it has."""
        for rank in self._running:
            self._stop_sender(rank)
            file = shlex.quote(str(self._pid_file(rank)))
            # With a limit: a task that ends before it writes the file leaves the sender on its host.
            wait = f"until [ -s {file} ]; do [ $SECONDS -lt {_START_SECS} ] || exit 1; sleep 1; done"
            send = f"{wait}; kill -s {signal.Signals(number).name[3:]} -- -$(cat {file})"
            # It is not waited for: while PBS ends a job, it may not answer.
            self._senders[rank] = self._start(rank, "-c", send)

    def leave(self) -> list[str]:
        """Stop waiting for the tasks, and return their hosts."""
        hosts = [self._hosts[rank] for rank in self._running]
        for rank in list(self._running):
            self._leave(rank)
        return hosts

    def _leave(self, rank: int) -> None:
        self._stop_sender(rank)
        self._running.pop(rank).kill()

    def _pid_file(self, rank: int) -> Path:
        return self._folder / f"{rank}.pid"

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
            if code is None:
                _report_failed_hosts([hosts[rank]])
            else:
                how = _ENDS.get(code) or f"Exited with exit code {code}"
                print(f"pbs_tmrsh: error: {hosts[rank]}: task {rank}: {how}", file=sys.stderr, flush=True)
            if not first:
                first, deadline = code or 1, min(deadline, time.monotonic() + _FAILURE_SECS)
                tasks.send(signal.SIGTERM)
        while received:
            if received.pop(0) == signal.SIGTERM:
                deadline = min(deadline, time.monotonic() + grace)
            tasks.send(signal.SIGUSR1)
        if time.monotonic() >= deadline:
            if killed:
                # PBS does not report the end of a task on a host that it has lost.
                _report_failed_hosts(tasks.leave())
                return first or 1
            tasks.send(signal.SIGKILL)
            killed, deadline = True, time.monotonic() + _LOST_SECS
        time.sleep(_POLL_SECS)
    return first


def _report_failed_hosts(hosts: Iterable[str]) -> None:
    for host in dict.fromkeys(hosts):
        print(f"pbs_tmrsh: error: Node failure on {host}", file=sys.stderr, flush=True)  # as srun
    if script := os.environ.get(_SCRIPT_VARIABLE):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(script), signal.SIGUSR1)


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
