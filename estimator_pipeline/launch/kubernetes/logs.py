"""Logs of a job's pods in Kubernetes, and the progress and errors in them."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from estimator_pipeline.errors import PipelineError
from estimator_pipeline.launch.job_status import job_progress
from estimator_pipeline.launch.kubernetes.kubectl import Kubectl
from estimator_pipeline.launch.kubernetes.pods import CONTAINER
from estimator_pipeline.launch.kubernetes.status import PodState, newest
from estimator_pipeline.launch.logs.noise import is_noise
from estimator_pipeline.progress.error_lines import error_in
from estimator_pipeline.progress.log_reader import log_event
from estimator_pipeline.progress.progress_file import TaskState

__all__ = ["failed_log", "follow", "failure_line", "printed", "progress_of"]

POLL_SECS = 2.0
# Enough to contain a line with the loss, which `tf.estimator` logs every hundred steps.
_PROGRESS_LINES = 400
# Enough lines for a long traceback.
_LAST_LINES = 400
# The prefix of each line with `--timestamps`: a time of the node's clock in UTC.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z ?")
_RESULT = re.compile(r"^step (\d+) \(.+\): ")


def _log(kubectl: Kubectl, pod: PodState, *arguments: str) -> list[str]:
    return kubectl.run("logs", pod.pod, "-c", CONTAINER, *arguments).splitlines()


def failure_line(kubectl: Kubectl, pod: PodState) -> str:
    """Return the log line with a failed task's error; "" if there is no such line."""
    try:
        lines = failed_log(kubectl, pod, lines=_LAST_LINES)
    except PipelineError:
        # The node may be gone; the pod's status is useful without the log.
        return ""
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    others = [line for line in lines if line.strip() and not line.startswith((" ", "INFO:", "WARNING:"))]
    return errors[-1].rstrip(".") if errors else error_in(lines) or (others or [""])[-1]


def failed_log(kubectl: Kubectl, pod: PodState, *, lines: int) -> list[str]:
    """Return the last lines of the container that failed, 0 for all, without TensorFlow's startup messages."""
    arguments = [f"--tail={lines}"] if lines else []
    arguments += ["--previous"] if pod.previous else []
    return [line.rstrip() for line in _log(kubectl, pod, *arguments) if not is_noise(line)]


def progress_of(kubectl: Kubectl, pods: Sequence[PodState]) -> dict[str, Any]:
    """Return a job's progress from the logs of its first task and its evaluator, as far as they have it."""
    progress = _progress_of_task(kubectl, pods[0])
    evaluator = next((pod for pod in pods[1:] if pod.task.startswith("evaluator:")), None)
    if evaluator is not None and "evaluation" not in progress:
        evaluated = _progress_of_task(kubectl, evaluator)
        progress |= {"evaluation": evaluated["evaluation"]} if "evaluation" in evaluated else {}
    return progress


def _progress_of_task(kubectl: Kubectl, pod: PodState) -> dict[str, Any]:
    if not pod.started:
        return {}
    state = TaskState(pod.task)
    result: dict[str, Any] = {}
    try:
        lines = _log(kubectl, pod, f"--tail={_PROGRESS_LINES}")
    except PipelineError:
        return {}
    for line in lines:
        if event := log_event(line):
            state.apply({"time": 0.0, **event})
        elif match := _RESULT.match(line):
            state.apply({"time": 0.0, "event": "step", "step": int(match[1])})
            result = {"result": line}
    return job_progress(state, **result)


def printed(kubectl: Kubectl, pods: Sequence[PodState], *, lines: int) -> Iterator[tuple[str, str]]:
    """Read pairs (task, line): the last lines of the newest pod of each task, or with 0 all lines of all pods."""
    for pod in pods if not lines else newest(pods):
        if not pod.started:
            yield pod.task, f"({pod.text})"
            continue
        # Kubernetes keeps the log of a pod's previous container.
        for arguments in [["--previous"], []] if pod.restarts and not lines else [[f"--tail={lines}"] if lines else []]:
            yield from ((pod.task, line) for line in _log(kubectl, pod, *arguments))


def follow(
    kubectl: Kubectl,
    pods: Callable[[], tuple[Sequence[PodState], bool]],
    *,
    lines: int,
    show: Callable[[str, str], None],
    poll: float = POLL_SECS,
) -> None:
    """Show new log lines, over restarts, until the job has ended.

    Args:
        kubectl: kubectl for the job.
        pods: Returns the job's pods of the wanted tasks, and whether the job has ended; called repeatedly.
        lines: The number of existing lines to show first; 0 for all lines of all pods.
        show: Called with task and line.
        poll: Seconds between two calls of `pods`.
    """
    fresh: queue.Queue[tuple[str, str]] = queue.Queue()
    readers: dict[tuple[str, int], _Follower] = {}
    # Earlier attempts, whose logs are not shown.
    passed: set[tuple[str, int]] = set()
    first = True
    try:
        while True:
            now, ended = pods()
            if first and lines:
                passed = {(pod.pod, pod.restarts) for pod in now} - {(pod.pod, pod.restarts) for pod in newest(now)}
            for pod in now:
                key = (pod.pod, pod.restarts)
                known = readers.get(key)
                reads = known is not None and (not known.over or ended or pod.state != "Running")
                if not pod.started or key in passed or reads:
                    continue
                # A log connection ends after some hours; then continue from the time of the last line.
                tail = [f"--tail={lines}"] if first and lines else []
                after = known.last if known is not None else ""
                readers[key] = _Follower(kubectl, pod, tail, fresh, after=after)
            first = False
            if ended and all(reader.over for reader in readers.values()):
                _show_lines(fresh, show, 0.0)
                return
            _show_lines(fresh, show, poll)
    finally:
        for reader in readers.values():
            reader.stop()


def _show_lines(fresh: queue.Queue[tuple[str, str]], show: Callable[[str, str], None], seconds: float) -> None:
    """Show the lines that arrive within some seconds."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(queue.Empty):
        while True:
            left = deadline - time.monotonic()
            show(*(fresh.get(timeout=left) if left > 0 else fresh.get_nowait()))


class _Follower:
    """A `kubectl logs --follow` whose lines are put into a queue.

    Attributes:
        last: The time of its last line, by the clock of the pod's node.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        pod: PodState,
        arguments: Sequence[str],
        lines: queue.Queue[tuple[str, str]],
        *,
        after: str,
    ) -> None:
        command = kubectl.command("logs", "--follow", "--timestamps", pod.pod, "-c", CONTAINER)
        # `--since-time` has seconds only: lines of the same second are repeated, and skipped in `_read`.
        since = [f"--since-time={after[:19]}Z"] if after else []
        self.last = after
        self._process = subprocess.Popen(
            [*command, *arguments, *since],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=dict(kubectl.environ),
        )
        self._thread = threading.Thread(target=self._read, args=(pod.task, lines, after), daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has ended, and all its lines are in the queue."""
        return not self._thread.is_alive()

    def _read(self, task: str, lines: queue.Queue[tuple[str, str]], after: str) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                text, match = line.rstrip("\n"), _STAMP.match(line)
                if match is not None:
                    # Padded to nanoseconds, so that comparing strings compares times.
                    when, text = f"{match[1]}.{(match[2] or '').ljust(9, '0')}", text[match.end() :]
                    if when <= after:
                        continue
                    self.last = max(self.last, when)
                lines.put((task, text))
        self._process.wait()

    def stop(self) -> None:
        """Terminate kubectl."""
        if self._process.poll() is None:
            self._process.terminate()
        self._thread.join(timeout=10)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
