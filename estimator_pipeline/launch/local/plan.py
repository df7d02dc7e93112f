"""Plan of a local launch: the processes to start, as data."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator_pipeline.cluster.ports import REUSE_VARIABLE
from estimator_pipeline.cluster.proxies import exempted
from estimator_pipeline.cluster.resolution import EVALUATOR_VARIABLE
from estimator_pipeline.cluster.spec import Task, TFConfig, local_cluster
from estimator_pipeline.errors import ClusterError, ConfigError
from estimator_pipeline.launch.local.cores import share_cores, thread_environment
from estimator_pipeline.launch.local.orphan_guard import RUN_ID_VARIABLE
from estimator_pipeline.progress.progress_file import HEARTBEAT_FOLDER_VARIABLE, HEARTBEAT_VARIABLE, PROGRESS_VARIABLE
from estimator_pipeline.utils.system_limits import available_cores
from estimator_pipeline.utils.text import counted

if TYPE_CHECKING:
    from estimator_pipeline.job import Job

__all__ = [
    "TASK_VARIABLE",
    "LaunchPlan",
    "LaunchShape",
    "TaskPlan",
    "launches_folder",
    "log_folder_of",
    "make_log_folder",
    "new_run_id",
    "plan_local",
]

TASK_VARIABLE = "ESTIMATOR_PIPELINE_TASK"
_TEMPORARY = f"{tempfile.gettempdir()}/estimator-pipeline-"


@dataclass(frozen=True)
class LaunchShape:
    """Number of tasks of each job in a local cluster, and the TF_CONFIG dialect.

    Attributes:
        workers: The number of `worker` tasks, without the chief.
        chief: Whether there is a `chief` task (`master` in the dialect of that name).
        ps: The number of parameter servers.
        evaluator: Whether there is an evaluator.
        dialect: One of `cluster.spec.DIALECTS`.
    """

    workers: int = 2
    chief: bool = False
    ps: int = 0
    evaluator: bool = False
    dialect: str = "canonical"

    @classmethod
    def of(cls, config: TFConfig) -> LaunchShape:
        """Return the shape of the cluster that a TF_CONFIG document describes.

        An evaluator counts if the document has it in the cluster or as the document's own task.

        Raises:
            ClusterError: The document describes no cluster.
        """
        if config.cluster is None:
            raise ClusterError(
                "The TF_CONFIG document describes no cluster, so there is no shape to rehearse.",
                code="cluster/bad-tf-config",
                found="no `cluster`, or an empty one",
                hint='Add "cluster" with its jobs, or leave --tf-config out and give --workers.',
            )
        jobs = config.cluster.jobs
        written = "evaluator_in_cluster" if config.evaluator_in_cluster else "canonical"
        return cls(
            workers=len(jobs.get("worker", ())),
            chief=bool(jobs.get("chief")),
            ps=len(jobs.get("ps", ())),
            evaluator=config.evaluator_in_cluster or config.is_evaluator,
            dialect="master" if config.dialect == "master" else written,
        )

    @property
    def ports(self) -> int:
        """The number of ports that the cluster needs."""
        return self.workers + self.chief + self.ps + self.evaluator

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in the order of the cluster."""
        return tuple(map(str, self.documents(range(1, self.ports + 1))))

    def documents(self, ports: Sequence[int]) -> dict[Task, dict[str, Any]]:
        """Return each task's TF_CONFIG on this machine.

        Raises:
            ClusterError: The cluster is not valid, for example without a training task.
        """
        return local_cluster(**self.__dict__, ports=ports)


@dataclass(frozen=True)
class TaskPlan:
    """One process of a launch.

    Attributes:
        task: Which task of the cluster it is.
        command: The program and its arguments.
        environ: The variables to add to the launcher's environment.
        cores: The CPUs it may use; empty for all.
        log: The file for its standard output and standard error.
        progress: The file for its events, see `progress_file.py`.
        label: A name to show instead of the task.
    """

    task: Task
    command: tuple[str, ...]
    environ: Mapping[str, str]
    cores: tuple[int, ...]
    log: Path
    progress: Path
    label: str = ""

    @property
    def name(self) -> str:
        """The name to show, such as "worker:0"."""
        return self.label or str(self.task)


@dataclass(frozen=True)
class LaunchPlan:
    """All processes of a launch.

    Attributes:
        run_id: The launch's unique name, in the environment of all its processes and their children.
        tasks: The tasks in the order in which they are started.
        ports: The ports that the cluster uses.
        log_dir: The folder of the logs and progress files.
        foreign: Whether the command is a user program, which may not shut down its ps and evaluator tasks.
        files: The files to write before the first task starts, such as a resolved job: path -> text.
    """

    run_id: str
    tasks: tuple[TaskPlan, ...]
    ports: tuple[int, ...]
    log_dir: Path
    foreign: bool
    files: Mapping[Path, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the plan as a JSON document."""
        return {
            "run_id": self.run_id,
            "log_dir": str(self.log_dir),
            "ports": list(self.ports),
            "files": {str(path): text for path, text in self.files.items()},
            "tasks": [
                {
                    "task": str(task.task),
                    "command": list(task.command),
                    "environ": dict(task.environ),
                    "tf_config": json.loads(task.environ["TF_CONFIG"]),
                    "cores": list(task.cores),
                    "log": str(task.log),
                    "progress": str(task.progress),
                }
                for task in self.tasks
            ],
        }

    def text(self) -> str:
        """Format the plan as text, with commands quoted for a shell."""
        first = self.tasks[0].environ
        common = {
            name: value for name, value in first.items() if all(task.environ.get(name) == value for task in self.tasks)
        }
        ports = ", ".join(map(str, self.ports))
        lines = [
            f"run {self.run_id}: {counted(len(self.tasks), 'task')} on the ports {ports}",
            f"logs in {self.log_dir}",
            "",
            "environment of every task",
            *(f"  {name}={shlex.quote(value)}" for name, value in sorted(common.items())),
        ]
        for task in self.tasks:
            extra = {name: value for name, value in task.environ.items() if name not in common}
            lines += [
                "",
                str(task.task),
                f"  command  {shlex.join(task.command)}",
                f"  cores    {', '.join(map(str, task.cores)) or 'all'}",
                f"  log      {task.log}",
                *(f"  {name}={shlex.quote(value)}" for name, value in sorted(extra.items())),
            ]
        for path, text in self.files.items():
            lines += ["", str(path), *(f"  {line}" for line in text.splitlines())]
        return "\n".join(lines)


def new_run_id() -> str:
    """Return a unique name for a launch that sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def log_folder_of(job: Job | None, run_id: str) -> Path:
    """Return the log folder of a launch, for a program a temporary one."""
    return Path(f"{_TEMPORARY}{run_id}") if job is None else launches_folder(job.run.model_dir) / run_id


def launches_folder(model_dir: str) -> Path:
    """Return the folder of a model directory's launches: in it, or for a bucket a temporary folder of this user."""
    if "://" in model_dir:
        return Path(f"{_TEMPORARY}{os.getuid()}-{hashlib.sha256(model_dir.encode()).hexdigest()[:12]}")
    return Path(model_dir).absolute() / "logs"


def make_log_folder(folder: Path) -> None:
    """Create a log folder; a temporary one, of `log_folder_of`, only for this user."""
    if not str(folder).startswith(_TEMPORARY):
        folder.mkdir(parents=True, exist_ok=True)
        return
    if str(folder.parent).startswith(_TEMPORARY):
        folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def plan_local(
    command: Sequence[str],
    *,
    shape: LaunchShape,
    ports: Sequence[int],
    log_dir: str | Path,
    run_id: str,
    environ: Mapping[str, str],
    files: Mapping[Path, str] | None = None,
    foreign: bool = False,
    hold_ports: bool = True,
    cores: str = "split",
    available: Sequence[int] | None = None,
    heartbeat: float | None = None,
) -> LaunchPlan:
    """Build the plan of a local cluster without starting or writing anything.

    Args:
        command: The program that every task runs, and its arguments.
        shape: The cluster.
        ports: Its ports, at least `shape.ports`.
        log_dir: The folder for logs and progress files.
        run_id: See `new_run_id`.
        environ: The environment that the tasks will inherit. Its settings of threads and of TensorFlow's log level are
            kept.
        files: The files to write before the first task starts: path -> text.
        foreign: Whether the command is a user program.
        hold_ports: Whether the launcher keeps the ports bound; the tasks' servers must know.
        cores: "split": each task gets its share of the CPUs, and as many threads, see `cores.share_cores`.
            "share": all tasks run on all CPUs, and TensorFlow chooses the number of threads.
        available: The CPUs to split; None for those that this process may use.
        heartbeat: Seconds between two heartbeats of a task; None for none. User programs send none.

    Raises:
        ClusterError: The cluster is not valid.
        ConfigError: `cores` is neither word, or the command is empty.
    """
    if cores not in ("split", "share"):
        raise ConfigError(
            f"cores is {cores!r}.",
            code="argument/bad-value",
            found="allowed: split, share",
            hint="Give one of the two.",
        )
    if not command:
        raise ConfigError(
            "The command is empty.", code="argument/missing", hint="Name the program that each task runs."
        )
    documents = shape.documents(ports)
    folder = Path(log_dir).absolute()
    pinned: dict[Task, tuple[int, ...]] = dict.fromkeys(documents, ())
    threads: dict[Task, dict[str, str]] = {task: {} for task in documents}
    if cores == "split":
        shares = share_cores(list(documents), available_cores() if available is None else available)
        threads = thread_environment(shares, environ=environ)
        pinned.update(shares)
    common = {RUN_ID_VARIABLE: run_id, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    common[EVALUATOR_VARIABLE] = "1" if shape.evaluator else "0"
    clusters = [document.get("cluster", {}) for document in documents.values()]
    common |= exempted(environ, [address for jobs in clusters for listed in jobs.values() for address in listed])
    # If the variable is set, the ports belong to this launch; see cluster.own_port.
    common[REUSE_VARIABLE] = "1" if hold_ports else "0"
    if "TF_CPP_MIN_LOG_LEVEL" not in environ:
        common["TF_CPP_MIN_LOG_LEVEL"] = "1"
    if heartbeat is not None:
        common[HEARTBEAT_VARIABLE] = f"{heartbeat:g}"
        if environ.get(HEARTBEAT_FOLDER_VARIABLE):
            # The folder of a supervisor above this launcher; this launcher reads a heartbeat file per task instead.
            common[HEARTBEAT_FOLDER_VARIABLE] = ""
    tasks = []
    for task, document in documents.items():
        name = f"{task.type}-{task.index}"
        progress = folder / f"{name}.progress.jsonl"
        tasks.append(
            TaskPlan(
                task=task,
                command=tuple(command),
                environ={
                    **common,
                    **threads[task],
                    "TF_CONFIG": json.dumps(document),
                    TASK_VARIABLE: str(task),
                    PROGRESS_VARIABLE: str(progress),
                },
                cores=pinned[task],
                log=folder / f"{name}.log",
                progress=progress,
            )
        )
    return LaunchPlan(
        run_id=run_id,
        tasks=tuple(tasks),
        ports=tuple(ports)[: shape.ports],
        log_dir=folder,
        foreign=foreign,
        files=files or {},
    )
