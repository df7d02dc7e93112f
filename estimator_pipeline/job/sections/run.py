"""The sections `run` and `cluster` of a job file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from estimator_pipeline.job.base import Problem, Section, Texts
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
    "WarmStartSection",
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
        implementation: Collective communication: `ring` (gRPC) or `nccl` (NVIDIA GPUs).
        bytes_per_pack: Approximate size of packed gradients. 0: chosen by TensorFlow.
        timeout_secs: Timeout of a collective. null: none.
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


class WarmStartSection(Section):
    """The checkpoint from which the variables of a new run get their initial values. See docs/guides/resuming.md.

    Fields:
        path: A checkpoint, such as `runs/old/model.ckpt-200`, or a model directory (its latest checkpoint). A path
            alone may be written in place of the section.
        variables (str, or list of str): Regular expressions that match the start of a variable's name.
        map: New name of a variable -> its name in the checkpoint.
    """

    path: _Text
    variables: Texts = [".*"]
    map: dict[str, _Text] = {}

    @model_validator(mode="before")
    @classmethod
    def _section_of_path(cls, data: Any) -> Any:
        return {"path": data} if isinstance(data, str) else data

    def problems(self) -> Iterator[Problem]:
        for i, pattern in enumerate(self.variables):
            try:
                re.compile(pattern)
            except re.error as error:
                yield Problem(
                    ("variables", i),
                    f"this is not a regular expression: {error}.",
                    f"{pattern!r}",
                    "correct it; a backslash before a special character matches the character itself.",
                    code="job/bad-value",
                )


class RunSection(Section):
    """Where the job writes, how training is distributed, and tf.estimator.RunConfig's fields.

    Fields:
        model_dir: Checkpoints, events and exports, written by the chief. Tasks may have different directories, except
            with an evaluator; see docs/guides/clusters.md.
        engine: `estimator` (tf.estimator), `keras` (`Model.fit` of Keras 2) or `keras3`. See docs/guides/keras.md.
        seed: Seed of variables, dropout and the graph. null: random. See docs/guides/model_fn.md.
        train_distribute: Strategy of training. See docs/guides/clusters.md.
        eval_distribute: Strategy of evaluation: none, one_device or mirrored.
        devices: Device names for mirrored and one_device. null: all devices of the process.
        num_devices: Devices of each task; on a CPU, logical devices. null: all. Not with `devices`.
        communication: Collective communication of multi_worker_mirrored.
        threads: Threads of the TensorFlow session.
        save_checkpoints_steps: Steps between checkpoints. Default with multi_worker_mirrored: 1000.
        save_checkpoints_secs: Seconds between checkpoints. Default otherwise: 600. Not with `save_checkpoints_steps` or
            multi_worker_mirrored.
        save_summary_steps: Steps between summaries.
        histograms: Histograms of each trainable variable in summaries; see docs/guides/model_fn.md.
        keep_checkpoint_max: Number of latest checkpoints to keep.
        keep_checkpoint_every_n_hours: Additionally keep one checkpoint per this many hours.
        log_step_count_steps: Steps between log lines of the training.
        checkpoint_save_graph_def: Save the graph with checkpoints.
        session_creation_timeout_secs: Timeout for the session to become available.
        max_worker_delay_secs: `experimental_max_worker_delay_secs` of RunConfig.
        start_timeout_secs: Timeout for the other tasks to join at the start. null: 1800. See docs/guides/clusters.md.
        session_config: Fields of `tf.compat.v1.ConfigProto`.
        protocol: Transport of the TensorFlow server. null: grpc.
        accept_changes: Resume although seed, data, global batch or model changed. See docs/guides/resuming.md.
        preemption_signals: Signals that stop a task with a checkpoint. null: SIGTERM. See docs/guides/preemption.md.
        ledger: true: each task records the records that it consumes in `model_dir/ledger`; or a directory for that. See
            docs/guides/ledger.md.
        warm_start_from: Checkpoint for the initial values of a new run; a run that resumes ignores it. null: none.
        tf1: The job's functions are TensorFlow 1 code. Requires the engine estimator. See docs/guides/tf1.md.
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
    warm_start_from: WarmStartSection | None = None
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
        workers: Tasks of the job `worker`, without the chief. 0 only with a chief.
        chief: Start a `chief` task. false: worker:0 is the chief.
        ps: Parameter servers. Requires `train_distribute: parameter_server`.
        evaluator: Start an evaluator.
        dialect: Dialect of TF_CONFIG.
        ports: Ports of tasks that a scheduler starts: `derived` from the job's id, `agreed` upon in model_dir, or
            `auto`: derived if the scheduler reports the host of each task. See docs/reference/environments.md.
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
                "no task trains.",
                "workers 0 without a chief",
                "set workers to 1 or more, or chief: true.",
                code="job/bad-value",
            )
