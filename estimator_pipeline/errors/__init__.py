"""The few kinds of error that a person meets, each a single message that can be acted upon.

Every message answers three questions: what was given, what was found, and what to change. The command
line prints it without a traceback and leaves with :attr:`PipelineError.exit_code`; a caller in Python
catches :class:`PipelineError` or one of its kinds.

Each error has a code, such as `job/unknown-field`, which stays the same when its words change: search for it,
ignore it or test for it by the code. :mod:`estimator_pipeline.errors.codes` lists them, with what to do.

This package is on floor 0: it imports nothing of TensorFlow. Its neighbour `estimator_pipeline.utils` has what turns
errors of the system into these.
"""

from __future__ import annotations

__all__ = [
    "ClusterError",
    "CompatError",
    "ConfigError",
    "DiskError",
    "DivergedError",
    "InputError",
    "OtherJobError",
    "PipelineError",
    "PortError",
    "PreemptedError",
    "TaskFailedError",
    "WaitError",
]


class PipelineError(Exception):
    """Base of every error that this package raises on purpose.

    Args:
        what: One sentence with the value that was given (or the place where it stands) and what is
            wrong with it.
        code: What stays the same when the words change: one of :data:`estimator_pipeline.errors.codes.CODES`. None:
            the kind's own; an error that a user's program raises may have none.
        found: What was found instead, or what is allowed. Optional where `what` says it already.
        hint: What to change. Optional only where `what` leaves a single possible reading.

    Attributes:
        exit_code: What the command line returns for this error. 2: the input was bad and a new try
            with the same input will fail in the same way. 1: the work failed while it ran. 3: training
            diverged. 75: the task was asked to end, and the same command goes on from its checkpoint.
    """

    exit_code = 2
    code: str | None = None

    def __init__(
        self, what: str, *, code: str | None = None, found: str | None = None, hint: str | None = None
    ) -> None:
        self.what = what
        if code is not None:
            self.code = code
        self.found = found
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [self.headline]
        if self.found:
            lines.append(f"  found: {self.found}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    @property
    def headline(self) -> str:
        """What is wrong, and the code in brackets."""
        return f"{self.what} [{self.code}]" if self.code else self.what

    def to_dict(self) -> dict[str, str | None]:
        """`code`, `what`, `found` and `hint`, for JSON; ``ConfigError(**document)`` makes an error of it again."""
        return {"code": self.code, "what": self.what, "found": self.found, "hint": self.hint}

    def __reduce__(self):
        # The default would call __init__ with the whole message as `what`, and say everything twice.
        return (_rebuild, (type(self), self.to_dict()))


def _rebuild(kind: type[PipelineError], document: dict[str, str | None]) -> PipelineError:
    what = document.pop("what") or ""
    return kind(what, **document)


class ConfigError(PipelineError):
    """A job file, an option or an argument that cannot work."""


class ClusterError(PipelineError):
    """A TF_CONFIG, a cluster description or a task that cannot work."""


class PortError(ClusterError):
    """A task's own port is taken.

    Args:
        restartable: whether the next start takes another one: then the exit code is 1, as where work failed.
    """

    code = "cluster/port-in-use"

    def __init__(
        self,
        what: str,
        *,
        code: str | None = None,
        found: str | None = None,
        hint: str | None = None,
        restartable: bool = False,
    ) -> None:
        super().__init__(what, code=code, found=found, hint=hint)
        if restartable:
            self.exit_code = TaskFailedError.exit_code


class OtherJobError(ConfigError):
    """The tasks of one cluster were started with different jobs."""

    code = "cluster/different-jobs"


class InputError(PipelineError):
    """Data that is not there, or that cannot be read, split or batched as asked."""


class CompatError(PipelineError):
    """`tf.estimator` cannot be put back in this process, or a part of it cannot be had."""


class TaskFailedError(PipelineError):
    """A task of a running job failed. The input was not at fault, as far as is known.

    Attributes:
        caused_by: The task ("worker:1") whose failure was the reason, where this one only ends because of it.
    """

    exit_code = 1
    caused_by: str | None = None


class DiskError(TaskFailedError):
    """A file could not be read or written, for the disk or the file server is full, read-only or fails."""

    code = "system/disk"


class DivergedError(TaskFailedError):
    """Training came to numbers that are none (NaN, infinite). The same training comes to them again."""

    exit_code = 3
    code = "training/diverged"


class PreemptedError(TaskFailedError):
    """The task was asked to end (SIGTERM, a scheduler's early signal), and training stands in a checkpoint.

    The same command goes on from there. The exit code is EX_TEMPFAIL of sysexits.h: "try again later".
    """

    exit_code = 75
    code = "training/preempted"


class WaitError(TaskFailedError):
    """A wait that came to its deadline; the message says what was waited for, and how long."""

    code = "cluster/timeout"
