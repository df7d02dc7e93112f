"""What the pods of a job in Kubernetes say: their logs by task, and what these tell of progress and of an end."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from estimator_pipeline.errors import PipelineError
from estimator_pipeline.launch.kubernetes import kubectl
from estimator_pipeline.launch.kubernetes.kubectl import JobName
from estimator_pipeline.launch.kubernetes.pods import CONTAINER
from estimator_pipeline.launch.kubernetes.status import PodState, newest
from estimator_pipeline.launch.logs.noise import is_noise
from estimator_pipeline.progress.error_lines import error_in
from estimator_pipeline.progress.log_reader import log_event
from estimator_pipeline.progress.progress_file import TaskState

__all__ = ["failed_log", "follow", "last_words", "printed", "progress_of"]

POLL_SECS = 2.0
# Enough for a line of the loss, which `tf.estimator` logs every hundred steps.
_PROGRESS_LINES = 400
# As much of a log as a long traceback takes.
_LAST_LINES = 400
# What `--timestamps` puts before each line: a time of the node's clock in UTC.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z ?")
_RESULT = re.compile(r"^step (\d+) \(.+\): ")


def _log(pod: PodState, *arguments: str, job: JobName, environ: Mapping[str, str]) -> list[str]:
    return kubectl.checked(["logs", pod.pod, "-c", CONTAINER, *arguments], job=job, environ=environ).splitlines()


def last_words(pod: PodState, *, job: JobName, environ: Mapping[str, str]) -> str:
    """The line with which a task that failed says why; "" where its log cannot be had or says nothing."""
    try:
        lines = failed_log(pod, lines=_LAST_LINES, job=job, environ=environ)
    except PipelineError:
        # The pod is of use without: its node may be gone.
        return ""
    ours = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    said = [line for line in lines if line.strip() and not line.startswith((" ", "INFO:", "WARNING:"))]
    return ours[-1].rstrip(".") if ours else error_in(lines) or (said or [""])[-1]


def failed_log(pod: PodState, *, lines: int, job: JobName, environ: Mapping[str, str]) -> list[str]:
    """The last lines of the container that failed, 0: all, without what TensorFlow says at its start."""
    arguments = [f"--tail={lines}"] if lines else []
    arguments += ["--previous"] if pod.previous else []
    return [line.rstrip() for line in _log(pod, *arguments, job=job, environ=environ) if not is_noise(line)]


def progress_of(pods: Sequence[PodState], *, job: JobName, environ: Mapping[str, str]) -> dict[str, Any]:
    """How far a job is, by the last lines of the logs of its first task and of its evaluator.

    Empty where they have not told, or cannot be asked.
    """
    found = _progress_of_task(pods[0], job=job, environ=environ)
    evaluator = next((pod for pod in pods[1:] if pod.task.startswith("evaluator:")), None)
    if evaluator is not None and "evaluation" not in found:
        theirs = _progress_of_task(evaluator, job=job, environ=environ)
        found |= {"evaluation": theirs["evaluation"]} if "evaluation" in theirs else {}
    return found


def _progress_of_task(pod: PodState, *, job: JobName, environ: Mapping[str, str]) -> dict[str, Any]:
    if not pod.started:
        return {}
    state = TaskState(pod.task)
    result: dict[str, Any] = {}
    try:
        lines = _log(pod, f"--tail={_PROGRESS_LINES}", job=job, environ=environ)
    except PipelineError:
        return {}
    for line in lines:
        if event := log_event(line):
            state.apply({"time": 0.0, **event})
        elif match := _RESULT.match(line):
            state.apply({"time": 0.0, "event": "step", "step": int(match[1])})
            result = {"result": line}
    told = {
        "step": state.step,
        "loss": state.loss,
        "steps_per_sec": state.steps_per_sec,
        "checkpoint": state.checkpoint,
        "evaluation": state.evaluation,
    }
    return {key: value for key, value in told.items() if value is not None} | result


def printed(
    pods: Sequence[PodState], *, lines: int, job: JobName, environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """(task, line) of logs that are there.

    Args:
        pods: Of which tasks, in their order.
        lines: The last ones of the newest pod of each task; 0: all, of all pods.
        job: The job.
        environ: For kubectl.
    """
    for pod in pods if not lines else newest(pods):
        if not pod.started:
            yield pod.task, f"({pod.text})"
            continue
        # Of the containers that a pod had before, the last one's log is kept.
        for arguments in [["--previous"], []] if pod.restarts and not lines else [[f"--tail={lines}"] if lines else []]:
            yield from ((pod.task, line) for line in _log(pod, *arguments, job=job, environ=environ))


def follow(
    pods: Callable[[], tuple[Sequence[PodState], bool]],
    *,
    lines: int,
    show: Callable[[str, str], None],
    job: JobName,
    environ: Mapping[str, str],
    poll: float = POLL_SECS,
) -> None:
    """Shows lines as they come, over restarts, until the job has ended.

    Args:
        pods: Asked again and again: the job's pods, of the wanted tasks, and whether the job has ended.
        lines: The last ones of what is there at first; 0: all, of all pods.
        show: Gets task and line.
        job: The job.
        environ: For kubectl.
        poll: Seconds between two questions.
    """
    found: queue.Queue[tuple[str, str]] = queue.Queue()
    readers: dict[tuple[str, int], _Follower] = {}
    # Earlier attempts, of which nothing is shown.
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
                # A connection to a log ends after some hours; what the log says since then is asked for again.
                tail = [f"--tail={lines}"] if first and lines else []
                after = known.last if known is not None else ""
                readers[key] = _Follower(pod, tail, found, after=after, job=job, environ=environ)
            first = False
            if ended and all(reader.over for reader in readers.values()):
                _shown(found, show, 0.0)
                return
            _shown(found, show, poll)
    finally:
        for reader in readers.values():
            reader.stop()


def _shown(found: queue.Queue[tuple[str, str]], show: Callable[[str, str], None], seconds: float) -> None:
    """Shows what comes within some seconds."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(queue.Empty):
        while True:
            left = deadline - time.monotonic()
            show(*(found.get(timeout=left) if left > 0 else found.get_nowait()))


class _Follower:
    """One `kubectl logs --follow`, whose lines go into a queue.

    Attributes:
        last: The time of its last line, as the node that runs the pod has it.
    """

    def __init__(
        self,
        pod: PodState,
        arguments: Sequence[str],
        lines: queue.Queue[tuple[str, str]],
        *,
        after: str,
        job: JobName,
        environ: Mapping[str, str],
    ) -> None:
        namespace = ["--namespace", job.namespace] if job.namespace else []
        command = [kubectl.program(environ), *namespace, "logs", "--follow", "--timestamps", pod.pod, "-c", CONTAINER]
        # Lines of this very second come again, and are left out.
        since = [f"--since-time={after[:19]}Z"] if after else []
        self.last = after
        self._process = subprocess.Popen(
            [*command, *arguments, *since],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=dict(environ),
        )
        self._thread = threading.Thread(target=self._read, args=(pod.task, lines, after), daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has ended, and all its lines are in the queue."""
        return not self._thread.is_alive()

    def _read(self, task: str, lines: queue.Queue[tuple[str, str]], after: str) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                text, match = line.rstrip("\n"), _STAMP.match(line)
                if match is not None:
                    # With as many digits as there may be, so that texts compare as times do.
                    when, text = f"{match[1]}.{(match[2] or '').ljust(9, '0')}", text[match.end() :]
                    if when <= after:
                        continue
                    self.last = max(self.last, when)
                lines.put((task, text))
        self._process.wait()

    def stop(self) -> None:
        """Ends it."""
        if self._process.poll() is None:
            self._process.terminate()
        self._thread.join(timeout=10)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
