"""The sections `run` and `cluster` of a job file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from estimator_pipeline.job.base import Problem, Section
from estimator_pipeline.job.sections.training import _Count, _Text
from estimator_pipeline.utils.text import nearest

__all__ = [
    "ENGINE_NAMES",
    "SESSION_FIELDS",
    "ClusterSection",
    "CommunicationSection",
    "EngineName",
    "RunSection",
    "StrategyName",
    "ThreadsSection",
]

StrategyName = Literal["none", "mirrored", "multi_worker_mirrored", "parameter_server", "one_device"]


EngineName = Literal["estimator", "keras", "keras3"]


ENGINE_NAMES: tuple[EngineName, ...] = get_args(EngineName)


# The fields of tf.compat.v1.ConfigProto; cluster_def is left out: the cluster comes from TF_CONFIG alone.
SESSION_FIELDS = (
    "allow_soft_placement",
    "device_count",
    "device_filters",
    "experimental",
    "gpu_options",
    "graph_options",
    "inter_op_parallelism_threads",
    "intra_op_parallelism_threads",
    "isolate_session_state",
    "log_device_placement",
    "operation_timeout_in_ms",
    "placement_period",
    "pluggable_device_options",
    "rpc_options",
    "session_inter_op_thread_pool",
    "share_cluster_devices_in_session",
    "use_per_session_threads",
)


class CommunicationSection(Section):
    """How workers of multi_worker_mirrored exchange gradients.

    Fields:
        implementation: "ring" (gRPC), "nccl" (NVIDIA GPUs) or "auto".
        bytes_per_pack: Gradients are sent in packs of about this size; 0 leaves it to TensorFlow.
        timeout_secs: After how long a collective that does not end is an error; null waits for ever.
    """

    implementation: Literal["auto", "ring", "nccl"] = "auto"
    bytes_per_pack: Annotated[int, Field(ge=0)] = 0
    timeout_secs: Annotated[float, Field(gt=0)] | None = None


class ThreadsSection(Section):
    """Threads of one task's TensorFlow session; 0 or null leaves the number to TensorFlow."""

    inter_op: Annotated[int, Field(ge=0)] | None = None
    intra_op: Annotated[int, Field(ge=0)] | None = None


class RunSection(Section):
    """Where the job writes, how training is distributed, and tf.estimator.RunConfig's fields.

    Fields:
        model_dir: For checkpoints, events and exports; every task must reach it.
        engine: What trains: "estimator" (tf.estimator), "keras" (Model.fit of Keras 2) or "keras3" (Keras 3).
        seed: Of variables, dropout and the graph; null leaves them to chance.
        train_distribute: The strategy of training.
        eval_distribute: The strategy of evaluation.
        devices: Device names for mirrored and one_device; null takes all of this process.
        num_devices: How many logical devices each task has; on a CPU they are made.
        save_checkpoints_steps: Global steps between checkpoints.
        save_checkpoints_secs: Seconds between checkpoints. Not both; see :attr:`checkpoint_interval`.
        session_config: Fields of tf.compat.v1.ConfigProto.
        histograms: What summaries have beside the scalars, for each trained variable.
        protocol: The transport of the TensorFlow server; null is grpc.
        accept_changes: Go on from a checkpoint although the seed, the data, the global batch or the model has changed.
        preemption_signals: The signals that ask a task to end with a checkpoint; null is SIGTERM.
        start_timeout_secs: How long a task waits at its start for the others to join; null is 1800.
        ledger: Whether each task writes down the records that it consumes, below model_dir; or a folder for that.
        tf1: Whether the job's own functions are written for TensorFlow 1; see `compat.install(tf1=True)`.
        The others: as in tf.estimator.RunConfig.
    """

    model_dir: _Text
    engine: EngineName = "estimator"
    seed: Annotated[int, Field(ge=0)] | None = None
    train_distribute: StrategyName = "none"
    eval_distribute: StrategyName = "none"
    devices: Annotated[list[_Text], Field(min_length=1)] | None = None
    num_devices: _Count | None = None
    communication: CommunicationSection = CommunicationSection()
    threads: ThreadsSection = ThreadsSection()
    save_checkpoints_steps: _Count | None = None
    save_checkpoints_secs: _Count | None = None
    save_summary_steps: _Count = 100
    histograms: list[Literal["weights", "gradients"]] = []
    keep_checkpoint_max: Annotated[int, Field(ge=0)] | None = 5
    keep_checkpoint_every_n_hours: Annotated[float, Field(gt=0)] = 10000
    log_step_count_steps: _Count | None = 100
    checkpoint_save_graph_def: bool = True
    session_creation_timeout_secs: _Count = 7200
    max_worker_delay_secs: Annotated[int, Field(ge=0)] | None = None
    start_timeout_secs: Annotated[float, Field(gt=0)] | None = None
    session_config: dict[str, Any] = {}
    protocol: _Text | None = None
    accept_changes: bool = False
    preemption_signals: list[Literal["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU"]] | None = None
    ledger: bool | _Text = False
    tf1: bool = False

    @property
    def ledger_folder(self) -> str | None:
        """Where the ledger is kept; None: nowhere."""
        if isinstance(self.ledger, str):
            return self.ledger
        return f"{self.model_dir.rstrip('/')}/ledger" if self.ledger else None

    @property
    def checkpoint_interval(self) -> tuple[Literal["steps", "secs"], int]:
        """What to count between checkpoints, and how many.

        Where the job file says nothing: 600 seconds, as RunConfig has it; under multi_worker_mirrored 1000
        steps, since workers' clocks differ and a checkpoint there is a collective that all must enter.
        """
        if self.save_checkpoints_steps is not None:
            return "steps", self.save_checkpoints_steps
        if self.save_checkpoints_secs is not None:
            return "secs", self.save_checkpoints_secs
        return ("steps", 1000) if self.train_distribute == "multi_worker_mirrored" else ("secs", 600)

    @property
    def devices_per_task(self) -> int | None:
        """How many devices each task computes on, where the job file says so."""
        return self.num_devices or (len(self.devices) if self.devices else None)

    def problems(self) -> Iterator[Problem]:
        if self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            yield Problem(
                ("save_checkpoints_secs",),
                "checkpoints are timed by steps and by seconds.",
                f"save_checkpoints_steps {self.save_checkpoints_steps} and save_checkpoints_secs "
                f"{self.save_checkpoints_secs}",
                "keep one of them.",
            )
        elif self.save_checkpoints_secs is not None and self.train_distribute == "multi_worker_mirrored":
            yield Problem(
                ("save_checkpoints_secs",),
                "workers of multi_worker_mirrored cannot save by the clock: a save is a collective that all "
                "must enter at the same step, and their clocks differ.",
                f"save_checkpoints_secs {self.save_checkpoints_secs}",
                "set save_checkpoints_steps instead.",
            )
        if self.devices is not None and self.num_devices is not None:
            yield Problem(
                ("num_devices",),
                "devices are given by name and by number.",
                f"devices {self.devices} and num_devices {self.num_devices}",
                "keep one of them.",
            )
        if self.tf1 and self.engine != "estimator":
            yield Problem(
                ("tf1",),
                "functions written for TensorFlow 1 need graphs and sessions, which tf.estimator alone gives them.",
                f"run.engine {self.engine}",
                "leave it out, or set run.engine to estimator.",
            )
        for key in self.session_config:
            if key not in SESSION_FIELDS:
                close = nearest(key, SESSION_FIELDS)
                yield Problem(
                    ("session_config", key),
                    "the session configuration has no such field.",
                    f"{key!r}; allowed: {', '.join(SESSION_FIELDS)}",
                    f"did you mean {close!r}?" if close else "leave it out; see tf.compat.v1.ConfigProto.",
                    code="job/unknown-field",
                )


class ClusterSection(Section):
    """The job's processes, as a launcher or a scheduler starts them. One that finds a TF_CONFIG follows that instead.

    Fields:
        workers: Tasks of the job `worker`; the chief is not one of them. 0 with a chief alone.
        chief: Whether there is a `chief` task. Otherwise worker:0 is the chief.
        ps: Parameter servers.
        evaluator: Whether there is an evaluator.
        dialect: The dialect of TF_CONFIG that the tasks get.
        ports: How tasks that a scheduler has started find ports: "derived" from the job's id, "agreed" upon in
            model_dir, or "auto": derived where the scheduler says which task is on which host.
    """

    workers: Annotated[int, Field(ge=0)] = 1
    chief: bool = False
    ps: Annotated[int, Field(ge=0)] = 0
    evaluator: bool = False
    dialect: Literal["canonical", "master", "evaluator_in_cluster"] = "canonical"
    ports: Literal["auto", "derived", "agreed"] = "auto"

    @property
    def num_training_tasks(self) -> int:
        """The chief and the workers."""
        return self.workers + int(self.chief)

    def problems(self) -> Iterator[Problem]:
        if self.num_training_tasks == 0:
            yield Problem(
                ("workers",),
                "nobody trains.",
                "workers 0 without a chief",
                "set workers to 1 or more, or chief: true.",
                code="job/bad-value",
            )
