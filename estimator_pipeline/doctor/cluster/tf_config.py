"""Checks of the environment, of TF_CONFIG in every dialect, and of the job's strategy against the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from estimator_pipeline.cluster import ENVIRONMENTS, Task, TFConfig
from estimator_pipeline.cluster.addresses import host_of
from estimator_pipeline.cluster.detection import NO_ENVIRONMENT, lone_task
from estimator_pipeline.cluster.tasks import listed
from estimator_pipeline.doctor.context import Context, JobPart
from estimator_pipeline.doctor.findings import CheckSkipped, DoctorFinding, error, info, of_error, ok, warning
from estimator_pipeline.errors import PipelineError
from estimator_pipeline.utils.text import few

__all__ = ["check_environment", "check_strategy", "check_tf_config"]

_ANY = ("0.0.0.0", "::")


# The environment -------------------------------------------------------------------------------------------------


def check_environment(context: Context) -> Iterator[DoctorFinding]:
    """Check the detected scheduler, other schedulers that match, and the resulting task."""
    part = context.part
    if context.document is not None:
        raise CheckSkipped(f"{context.document_source} replaces it")
    if part.detection is None:
        if part.error is not None and not context.environ.get("TF_CONFIG", "").strip():
            yield of_error(part.error, "this task cannot determine its role, and `train` fails with this error")
            return
        if part.error is not None:
            raise CheckSkipped("TF_CONFIG cannot be read")
        yield _no_environment(context)
        return
    detection = part.detection
    allocation = detection.allocation
    if part.error is not None:
        yield of_error(part.error, "this task cannot determine its role, and `train` fails with this error")
        return
    yield ok(_resolved(context, part))
    if detection.others:
        yield from _others(context, detection.environment.name, detection.others)
    if allocation.inferred:
        yield info(
            f"{detection.environment.name} does not number its processes: this process has rank {allocation.rank} "
            f"because its host is number {allocation.rank} in the list",
            "a program that the job script starts only once looks the same, and waits for the other hosts",
            "start it on every host, or use --environment none to train in a single process",
        )
    if part.ports == "agreed" and part.tasks:
        folder = context.environ.get("ESTIMATOR_PIPELINE_SHARED_DIR") or (context.job and context.job.run.model_dir)
        yield info(
            f"the tasks agree on ports when the job starts, in {folder}",
            "every task needs access to that folder; --shared checks it",
        )


def _no_environment(context: Context) -> DoctorFinding:
    partly = [e.name for e in ENVIRONMENTS if any(name in context.environ for name in e.variables[:1])]
    seen = f"; variables of {', '.join(partly)} are set, but not those of a task" if partly else ""
    shape = context.job.cluster if context.job is not None else None
    tasks = shape.num_training_tasks if shape is not None else 1
    several = shape.workers + shape.chief + shape.ps if shape is not None else 1
    problem = lone_task(context.environ, several + (shape.evaluator if shape is not None else 0))
    if problem is not None and several > 1 and context.environment != NO_ENVIRONMENT:
        return of_error(problem, "`train` fails with this error here")
    if tasks > 1:
        return info(
            f"no TF_CONFIG, and no scheduler started this process as a task{seen}",
            f"`train` would run as a single process, and the job has {tasks} training tasks",
            "start `doctor` in the same way as the job (srun estimator-pipeline doctor ... --shared), or use "
            "--tf-config; `launch` starts all tasks on this machine",
        )
    return ok(f"no TF_CONFIG and no scheduler: a single process{seen}")


def _resolved(context: Context, part: JobPart) -> str:
    assert part.detection is not None
    allocation = part.detection.allocation
    parts = [part.detection.environment.name]
    if allocation.tf_config is None:
        of = f" of {allocation.size}" if allocation.size is not None else ""
        parts.append(f"job {allocation.job_id}, rank {allocation.rank}{of}")
        if allocation.restart:
            parts.append(f"restart {allocation.restart}")
    if part.task is not None:
        parts.append(f"this task is {part.task}")
    address = part.addresses.get(part.task) if part.task is not None else None
    if address is not None:
        parts.append(f"at {address} (ports {part.ports})")
    elif context.job is None and allocation.tf_config is None:
        parts.append("roles are unknown without a job file")
    parts += allocation.notes
    return "; ".join(parts)


def _others(context: Context, name: str, others: tuple[str, ...]) -> Iterator[DoctorFinding]:
    if name != "tf_config":
        yield info(f"{name} is used; {', '.join(others)} also matches, with a lower priority")
        return
    config = context.part.tf_config
    for other in ENVIRONMENTS:
        if other.name not in others:
            continue
        try:
            allocation = other.read(context.environ, hostname=context.hostname)
        except PipelineError:
            continue
        tasks = len(context.part.tasks) or 1
        wrong = allocation.size is not None and allocation.size not in (tasks, tasks + 1) and allocation.size > 1
        if wrong and config is not None:
            yield warning(
                f"TF_CONFIG has {tasks} task(s), and {other.name} has started {allocation.size}",
                "TF_CONFIG takes precedence; if the job script exports it, it is the same on every task, and several "
                "tasks would be the same worker",
                f"unset TF_CONFIG and let `train` read {other.name}, or set a different TF_CONFIG for each task",
            )
            return
    yield info(f"TF_CONFIG is used; {', '.join(others)} also matches")


# TF_CONFIG -------------------------------------------------------------------------------------------------------


def check_tf_config(context: Context) -> Iterator[DoctorFinding]:
    """Check that TF_CONFIG is valid, and warn about unusual contents."""
    part = context.part
    if part.error is not None:
        if context.document is None and not context.environ.get("TF_CONFIG", "").strip():
            raise CheckSkipped("no TF_CONFIG")
        text = context.document if context.document is not None else context.environ.get("TF_CONFIG", "")
        yield of_error(part.error, _why_unread(text))
        return
    if part.tf_config is None or not part.source:
        raise CheckSkipped("no TF_CONFIG")
    config = part.tf_config
    findings = list(_odd(context, config))
    yield ok(_format(config, part.source))
    yield from findings


def _why_unread(text: str) -> str:
    why = "neither TensorFlow nor `train` can train with it"
    bare = text.strip()
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"":
        return f"{why}; remove the quotes around the whole document: they are for the shell"
    return why


def _format(config: TFConfig, source: str) -> str:
    if config.cluster is None:
        return f"{source}: a single process"
    names = {"chief": "a chief job", "master": "a master (read as chief)", "workers": "worker:0 is the chief"}
    return (
        f"{source}: this task is {config.task} of {listed(config.cluster.tasks)}; {names.get(config.dialect, '')}"
        f"{'; the evaluator is in the cluster' if config.evaluator_in_cluster else ''}"
    )


def _odd(context: Context, config: TFConfig) -> Iterator[DoctorFinding]:
    yield from _odd_document(context, config)
    if config.cluster is None:
        return
    addresses = context.part.addresses
    yield from _any_hosts(addresses)
    strategy = context.job.run.train_distribute if context.job is not None else "none"
    if config.cluster.num_ps and "chief" not in config.cluster.jobs and strategy == "none":
        # With a parameter server strategy worker:0 is the chief; without a strategy, Estimator requires a chief.
        yield (error if context.job is not None else warning)(
            "the cluster has parameter servers and no chief",
            'without a strategy tf.estimator\'s RunConfig ends with ValueError: "it must have one "chief" node"',
            "make the first worker the chief: one task in the job `chief`, the others in `worker`",
        )


def _odd_document(context: Context, config: TFConfig) -> Iterator[DoctorFinding]:
    plain = "`train`, `launch` and `exec` read it; " if context.job is None else ""
    severity = "warning" if context.job is None else "info"
    if config.dialect == "master":
        yield DoctorFinding(
            severity,
            "the chief is called master, as before TensorFlow 1.4",
            f"{plain}TensorFlow's strategies do not support that task type",
            "rename it to chief if anything other than this package reads the document",
        )
    if config.evaluator_in_cluster:
        yield DoctorFinding(
            severity,
            "the evaluator's address is inside the cluster",
            f"{plain}a strategy that a program creates from TF_CONFIG waits for it like for a worker",
            "remove the evaluator from `cluster`, or run the program with `estimator-pipeline exec`",
        )
    if config.extra:
        yield info(
            f"unknown keys: {', '.join(sorted(map(str, config.extra)))}",
            "some services add keys; a misspelt key is ignored",
        )


def _any_hosts(addresses: dict[Task, str]) -> Iterator[DoctorFinding]:
    anywhere = [task for task, address in addresses.items() if host_of(address) in _ANY]
    if anywhere:
        yield error(
            f"{few(anywhere)} at {addresses[anywhere[0]]}: other tasks cannot connect to this address",
            "it means all interfaces of the local machine, so each task would connect to itself",
            "use the host name at which the others reach that task",
        )


# Strategy --------------------------------------------------------------------------------------------------------


def check_strategy(context: Context) -> Iterator[DoctorFinding]:
    """Check strategy, engine, batch size and evaluation against the actual cluster."""
    job = context.needed_job()
    config = context.part.tf_config
    strategy = job.run.train_distribute
    if config is None or not context.part.source or config.cluster is None:
        yield ok(f"{strategy} with engine {job.run.engine}, with the cluster of the job file")
        return
    findings = [*_strategy_and_cluster(context, config), *_shape(context, config)]
    yield from findings or [
        ok(f"{strategy} over {config.num_training_tasks} training task(s), engine {job.run.engine}")
    ]


def _strategy_and_cluster(context: Context, config: TFConfig) -> Iterator[DoctorFinding]:
    job, cluster = context.needed_job(), config.cluster
    assert cluster is not None
    strategy, engine = job.run.train_distribute, job.run.engine
    if cluster.num_ps and engine != "estimator":
        yield error(
            f"the engine is {engine}, and the cluster has {cluster.num_ps} parameter server(s)",
            "Model.fit does not support Estimator's parameter server training",
            "remove the ps job from the cluster, or set run.engine: estimator and "
            "run.train_distribute: parameter_server",
        )
    elif cluster.num_ps and strategy == "multi_worker_mirrored":
        yield error(
            f"multi_worker_mirrored, and the cluster has {cluster.num_ps} parameter server(s)",
            "the workers exchange gradients with all-reduce; the strategy rejects a ps job",
            "remove the ps job from TF_CONFIG, or set run.train_distribute: parameter_server",
        )
    if strategy == "parameter_server" and not cluster.num_ps:
        yield error(
            "parameter_server, and the cluster has no parameter server",
            "no task holds the variables",
            "add a ps job to the cluster, or set run.train_distribute: multi_worker_mirrored",
        )
    # Without a strategy, Estimator trains with parameter servers itself.
    alone = strategy in ("mirrored", "one_device") or (strategy == "none" and not cluster.num_ps)
    if alone and config.num_training_tasks > 1:
        yield error(
            f"train_distribute is {strategy}, and {config.num_training_tasks} tasks train",
            "each would train a separate model in the same model_dir, which the job rejects",
            "set run.train_distribute: multi_worker_mirrored",
        )
    if config.num_training_tasks > 1 and strategy == "multi_worker_mirrored":
        yield from _batch(context, config)


def _batch(context: Context, config: TFConfig) -> Iterator[DoctorFinding]:
    job = context.needed_job()
    replicas = config.num_training_tasks * context.devices_per_task
    size = job.input.global_batch_size
    if size % replicas:
        below = size - size % replicas
        yield error(
            f"a global batch of {size} records over {replicas} replicas ({config.num_training_tasks} tasks of "
            f"{context.devices_per_task} device(s))",
            "it cannot be split evenly, and the job rejects it at its start",
            f"set input.global_batch_size to {f'{below} or ' if below else ''}{below + replicas}",
        )


def _shape(context: Context, config: TFConfig) -> Iterator[DoctorFinding]:
    job, cluster = context.needed_job(), config.cluster
    assert cluster is not None
    expected, jobs = job.cluster, cluster.jobs
    configured = {"workers": expected.workers, "chief": int(expected.chief), "ps": expected.ps}
    actual = {"workers": len(jobs.get("worker", ())), "chief": len(jobs.get("chief", ())), "ps": cluster.num_ps}
    if configured != actual:
        yield info(
            f"the job file's cluster is {_counts(configured)}, and {context.part.source} has {_counts(actual)}",
            f"{context.part.source} takes precedence",
            "change the job file's cluster section if that is not intended",
        )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count or name == "workers")
