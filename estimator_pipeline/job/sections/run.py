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


# The fields of tf.compat.v1.ConfigProto except cluster_def: the cluster comes only from TF_CONFIG.
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
        bytes_per_pack: The approximate size of the packs of gradients; 0 leaves it to TensorFlow.
        timeout_secs: The timeout of a collective operation; null for no timeout.
    """

    implementation: Literal["auto", "ring", "nccl"] = "auto"
    bytes_per_pack: Annotated[int, Field(ge=0)] = 0
    timeout_secs: Annotated[float, Field(gt=0)] | None = None


class ThreadsSection(Section):
    """Threads of one task's TensorFlow session; 0 or null leaves the number to TensorFlow.

    Fields:
        inter_op: Threads for independent operations. null or 0: chosen by TensorFlow.
        intra_op: Threads within an operation. null or 0: chosen by TensorFlow.
    """

    inter_op: Annotated[int, Field(ge=0)] | None = None
    intra_op: Annotated[int, Field(ge=0)] | None = None


class RunSection(Section):
    """Where the job writes, how training is distributed, and tf.estimator.RunConfig's fields.

    Fields:
        model_dir: The folder of checkpoints, events and exports; every task must be able to access it.
        engine: The engine: "estimator" (tf.estimator), "keras" (Model.fit of Keras 2) or "keras3" (Keras 3).
        seed: The seed of variables, dropout and the graph; null for random seeds.
        train_distribute: The strategy of training.
        eval_distribute: The strategy of evaluation.
        devices: Device names for mirrored and one_device; null for all devices of the process.
        num_devices: The number of logical devices of each task; created on a CPU.
        save_checkpoints_steps: Global steps between checkpoints.
        save_checkpoints_secs: Seconds between checkpoints. Set only one; see :attr:`checkpoint_interval`.
        session_config: Fields of tf.compat.v1.ConfigProto.
        histograms: Histogram summaries of each trainable variable.
        protocol: The protocol of the TensorFlow server; null for grpc.
        accept_changes: Resume from a checkpoint even if the seed, the data, the global batch or the model has changed.
        preemption_signals: The signals after which a task stops with a checkpoint; null for SIGTERM.
        start_timeout_secs: How long a task waits at its start for the other tasks; null for 1800.
        ledger: Whether each task records the records that it consumes, below model_dir; or a folder for the ledger.
        tf1: Whether the job's functions are written for TensorFlow 1; see `compat.install(tf1=True)`.
        The others: As in tf.estimator.RunConfig.
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
        """The folder of the ledger, or None."""
        if isinstance(self.ledger, str):
            return self.ledger
        return f"{self.model_dir.rstrip('/')}/ledger" if self.ledger else None

    @property
    def checkpoint_interval(self) -> tuple[Literal["steps", "secs"], int]:
        """The unit and the length of the interval between checkpoints.

        Defaults to 600 seconds, as in RunConfig. Under multi_worker_mirrored it defaults to 1000 steps, because a
        checkpoint is a collective operation and the workers' clocks differ.
        """
        if self.save_checkpoints_steps is not None:
            return "steps", self.save_checkpoints_steps
        if self.save_checkpoints_secs is not None:
            return "secs", self.save_checkpoints_secs
        return ("steps", 1000) if self.train_distribute == "multi_worker_mirrored" else ("secs", 600)

    @property
    def devices_per_task(self) -> int | None:
        """The number of devices of each task, if the job file sets it."""
        return self.num_devices or (len(self.devices) if self.devices else None)

    def problems(self) -> Iterator[Problem]:
        if self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            yield Problem(
                ("save_checkpoints_secs",),
                "the interval of checkpoints is set both in steps and in seconds.",
                f"save_checkpoints_steps {self.save_checkpoints_steps} and save_checkpoints_secs "
                f"{self.save_checkpoints_secs}",
                "keep one of them.",
            )
        elif self.save_checkpoints_secs is not None and self.train_distribute == "multi_worker_mirrored":
            yield Problem(
                ("save_checkpoints_secs",),
                "multi_worker_mirrored cannot save checkpoints by time: all workers must save at the same step, and "
                "their clocks differ.",
                f"save_checkpoints_secs {self.save_checkpoints_secs}",
                "set save_checkpoints_steps instead.",
            )
        if self.devices is not None and self.num_devices is not None:
            yield Problem(
                ("num_devices",),
                "devices are set both by name and by number.",
                f"devices {self.devices} and num_devices {self.num_devices}",
                "keep one of them.",
            )
        if self.tf1 and self.engine != "estimator":
            yield Problem(
                ("tf1",),
                "functions written for TensorFlow 1 need graphs and sessions, which only tf.estimator provides.",
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
    """The job's processes, as a launcher or a scheduler starts them. TF_CONFIG overrides this section.

    Fields:
        workers: Tasks of the type `worker`, without the chief; 0 for a chief only.
        chief: Whether there is a `chief` task. Otherwise worker:0 is the chief.
        ps: The number of parameter servers.
        evaluator: Whether there is an evaluator.
        dialect: The dialect of the tasks' TF_CONFIG.
        ports: How tasks started by a scheduler choose ports: "derived" from the job id, "agreed" through model_dir,
            or "auto": derived if the scheduler reports which task is on which host.
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
                "the cluster has no training task.",
                "workers 0 without a chief",
                "set workers to 1 or more, or chief: true.",
                code="job/bad-value",
            )
