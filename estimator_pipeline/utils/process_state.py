"""What this package knows of its process: the only state that is not an argument, a task's context or a local object.

Everything here must be of the process, as signal handlers, locks, servers and imports are. A training keeps nothing
here that a later or simultaneous one in the same process could take for its own.

Patches of TensorFlow in `compat/patches` keep beside their code which graphs and variables they have seen.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

__all__ = ["STATE", "ProcessState"]


@dataclasses.dataclass
class ProcessState:
    """The state of this process.

    Attributes:
        is_command: Whether this is a process of the command `estimator-pipeline`, see `utils/startup.py`.
        allocator: The C library whose allocator `utils/allocator.py` has configured.
        synced_files: Objects whose files are written to disk before a checkpoint is, see `utils/durable_files.py`.
        environments: Schedulers' environments that this process has entered, see `cli/environment.py`.
        hearts: Threads that send heartbeats, by process and file, see `progress/progress_file.py`.
        outboxes: Events that could not be written yet, likewise.
        user_modules: Path of a user's file -> its time and size, and the module; see `job/user_code.py`.
        user_imports: Name of a module that such a file has imported from its folder -> its path.
        job_files: Number of blocks in which hints are for a job file, see `utils/fixes.py`.
        input_errors: The last errors of input functions, which TensorFlow converts, see `inputs/tf_dataset.py`.
        input_reads: The last sources and the ids of their records that input functions read, likewise.
        is_installed: Whether `compat.install` or `compat.use_keras_3` has run.
        install_steps: What it has done, in order.
        patches: Names of the patches that it has applied.
        keras_generation: The Keras of this process: 2 or 3.
        around_training: Contexts of every later training of an Estimator, see `compat/internals/estimator_wrapping.py`.
        around_inputs: Wrappers of its input function, likewise.
        around_evaluation: Contexts of every later evaluation, likewise.
        short_waits: Number of blocks in which sessions do not wait long, see `compat/internals/sessions.py`.
        undo_short_waits: Ends this, after the last block.
        traced_steps: Trainings whose step is being traced, see `compat/internals/data_end/keras_common_end.py`.
        strategies: Strategies that can exist once in a process, with their options; see `distribute/strategies.py`.
        servers: TensorFlow's servers of this process, see `compat/internals/distribute_coordinator.py`.
        exchanges: Key -> number of its exchanges through the coordination service, whose keys can be set once.
        trainings: Number of trainings whose stop went through that service, likewise.
        joined_as: Key by which this task knows the service that it has joined.
        next_roll_call: Time of the next check that the tasks which have joined it are alive.
        lock_names: Model directories whose lock this process holds, see `engines/model_dir/lock.py`.
        lock_files: Their open files, which a forked child closes.
        examined: Model directories whose checkpoints were examined, see `engines/estimator/legacy.py`.
        stop_listeners: Handlers of stop requests, the innermost last; see `engines/core/stopping/preemption.py`.
        awaited_exits: Addresses of tasks that must exit before this process, see `engines/core/stopping/shutdown.py`.
        ended_sessions: Sessions of the rendezvous that have ended: the next training belongs to a different one.
    """

    is_command: bool = False
    allocator: Any = None
    synced_files: WeakSet[Any] = dataclasses.field(default_factory=WeakSet)
    environments: list[Any] = dataclasses.field(default_factory=list)
    hearts: dict[tuple[int, str], Any] = dataclasses.field(default_factory=dict)
    outboxes: dict[tuple[int, str], Any] = dataclasses.field(default_factory=dict)
    user_modules: dict[str, Any] = dataclasses.field(default_factory=dict)
    user_imports: dict[str, str] = dataclasses.field(default_factory=dict)
    job_files: int = 0
    input_errors: deque[Any] = dataclasses.field(default_factory=lambda: deque(maxlen=8))
    input_reads: deque[Any] = dataclasses.field(default_factory=lambda: deque(maxlen=4))
    is_installed: bool = False
    install_steps: list[Any] = dataclasses.field(default_factory=list)
    patches: frozenset[str] = frozenset()
    keras_generation: int = 2
    around_training: list[Any] = dataclasses.field(default_factory=list)
    around_inputs: list[Any] = dataclasses.field(default_factory=list)
    around_evaluation: list[Any] = dataclasses.field(default_factory=list)
    short_waits: int = 0
    undo_short_waits: Callable[[], None] | None = None
    traced_steps: list[Any] = dataclasses.field(default_factory=list)
    strategies: dict[tuple[str, str], tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    servers: dict[tuple[str, ...], Any] = dataclasses.field(default_factory=dict)
    exchanges: Counter[str] = dataclasses.field(default_factory=Counter)
    trainings: int = 0
    joined_as: str = ""
    next_roll_call: float = 0.0
    lock_names: list[str] = dataclasses.field(default_factory=list)
    lock_files: dict[int, Any] = dataclasses.field(default_factory=dict)
    examined: set[str] = dataclasses.field(default_factory=set)
    stop_listeners: list[Any] = dataclasses.field(default_factory=list)
    awaited_exits: dict[str, str] = dataclasses.field(default_factory=dict)
    ended_sessions: set[str | None] = dataclasses.field(default_factory=set)


STATE = ProcessState()
