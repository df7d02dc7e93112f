"""The exceptions that this package raises for users.

Every message states the value with the problem, what was found, and what to change. The command line prints it
without a traceback and exits with `PipelineError.exit_code`. Python code catches `PipelineError` or a
subclass.

Each error has a code, such as `job/unknown-field`, which does not change when the text changes: use it to search for
an error or to test for it. `estimator_pipeline.errors.codes` lists all codes, with what to do.

This package does not import TensorFlow. `estimator_pipeline.utils` converts system errors to these exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

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
    "ProgramInputError",
    "TaskFailedError",
    "WaitError",
]


class PipelineError(Exception):
    """Base class of the errors that this package raises for users.

    Args:
        message: One sentence: the value (or its location) and what is wrong with it.
        code: One of `estimator_pipeline.errors.codes.CODES`. None: the code of the class; an error that a
            user's program raises may have none.
        found: What was found instead, or what is allowed. Optional if `message` includes it.
        hint: What to change, as an imperative. Optional only if `message` leaves no doubt.

    Attributes:
        message: See above.
        code: See above.
        found: See above.
        hint: See above.
        exit_code: Exit code of the command line for this error. 2: bad input, a retry with the same input fails
            again. 1: the work failed while it ran. 3: training diverged. 75: the task was asked to stop, and the
            same command resumes from its checkpoint.
    """

    exit_code = 2
    code: str | None = None

    def __init__(
        self, message: str, *, code: str | None = None, found: str | None = None, hint: str | None = None
    ) -> None:
        self.message = message
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
        """The message, with the code in brackets."""
        return f"{self.message} [{self.code}]" if self.code else self.message

    def to_dict(self) -> dict[str, str | None]:
        """Return the message (as `what`), `code`, `found` and `hint`, for JSON."""
        return {"code": self.code, "what": self.message, "found": self.found, "hint": self.hint}

    @classmethod
    def from_dict(cls, document: Mapping[str, str | None]) -> PipelineError:
        """Return the error that `to_dict` described."""
        fields = {name: document.get(name) for name in ("code", "found", "hint")}
        return cls(document.get("what") or "", **fields)

    def __reduce__(self):
        # The default would pass the formatted error to __init__ as `message`, and repeat `found` and `hint`.
        return (self.from_dict, (self.to_dict(),))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> str:
            # The name of `message` in JSON documents, and in programs written before it was renamed.
            if name == "what":
                return self.message
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class ConfigError(PipelineError):
    """An invalid job file, option or argument."""


class ClusterError(PipelineError):
    """An invalid TF_CONFIG, cluster description or task."""


class PortError(ClusterError):
    """The port of this task is in use.

    Args:
        restartable: Whether the next start uses a different port. The exit code is then 1, as for failed work.
    """

    code = "cluster/port-in-use"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        found: str | None = None,
        hint: str | None = None,
        restartable: bool = False,
    ) -> None:
        super().__init__(message, code=code, found=found, hint=hint)
        if restartable:
            self.exit_code = TaskFailedError.exit_code


class OtherJobError(ConfigError):
    """The tasks of one cluster were started with different jobs."""

    code = "cluster/different-jobs"


class InputError(PipelineError):
    """Data that does not exist, or that cannot be read, sharded or batched as requested."""


class ProgramInputError(InputError):
    """The data of an unchanged program cannot be sharded by `exec --shard-input`."""

    code = "data/cannot-shard"


class CompatError(PipelineError):
    """`tf.estimator` or a part of it cannot be restored in this process."""


class TaskFailedError(PipelineError):
    """A task of a running job failed, as far as is known not because of its input.

    Attributes:
        caused_by: The task ("worker:1") whose failure made this task stop, if any.
    """

    exit_code = 1
    caused_by: str | None = None


class DiskError(TaskFailedError):
    """A file could not be read or written: the disk or file server is full, read-only or failing."""

    code = "system/disk"


class DivergedError(TaskFailedError):
    """The loss or a weight became NaN or infinite. A retry from the same state would diverge again.

    Attributes:
        step: The global step by which this was noticed, if known.
    """

    exit_code = 3
    step: int | None = None
    code = "training/diverged"


class PreemptedError(TaskFailedError):
    """The task was asked to stop (SIGTERM, a scheduler's early signal), and training is saved in a checkpoint.

    The same command resumes from it. The exit code is EX_TEMPFAIL of sysexits.h: "try again later".
    """

    exit_code = 75
    code = "training/preempted"


class WaitError(TaskFailedError):
    """A wait timed out. The message names the awaited event and the timeout."""

    code = "cluster/timeout"
