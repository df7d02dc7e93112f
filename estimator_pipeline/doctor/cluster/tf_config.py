"""TF_CONFIG in every dialect, the environment that speaks, and whether the job's strategy fits the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from estimator_pipeline.cluster import ENVIRONMENTS, Task, TFConfig
from estimator_pipeline.cluster.addresses import host_of, is_loopback
from estimator_pipeline.cluster.detection import NO_ENVIRONMENT, lone_task
from estimator_pipeline.cluster.parsing import tf_config_problems
from estimator_pipeline.cluster.tasks import listed
from estimator_pipeline.doctor.context import Context, JobPart
from estimator_pipeline.doctor.findings import DoctorFinding, NotLookedAt, error, info, of_error, ok, warning
from estimator_pipeline.errors import PipelineError

__all__ = ["check_environment", "check_strategy", "check_tf_config", "few"]

_ANY = ("0.0.0.0", "::")


def few(names: Iterable[object], most: int = 4) -> str:
    """The first of some names, and how many more there are."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


# The environment -------------------------------------------------------------------------------------------------


def check_environment(context: Context) -> Iterator[DoctorFinding]:
    """Which scheduler speaks, what else matches, and what comes of it."""
    part = context.part
    if context.document is not None:
        raise NotLookedAt(f"{context.document_source} was given")
    if part.detection is None:
        if part.error is not None and not context.environ.get("TF_CONFIG", "").strip():
            yield of_error(part.error, "this task cannot find its part, and `train` ends with this error")
            return
        if part.error is not None:
            raise NotLookedAt("TF_CONFIG cannot be read")
        yield _nobody(context)
        return
    detection = part.detection
    allocation = detection.allocation
    if part.error is not None:
        yield of_error(part.error, "this task cannot find its part, and `train` ends with this error")
        return
    yield ok(_resolved(context, part))
    if detection.others:
        yield from _others(context, detection.environment.name, detection.others)
    if allocation.inferred:
        yield info(
            f"{detection.environment.name} does not number its processes: this one is rank {allocation.rank} because "
            f"its host is number {allocation.rank} of the list",
            "a program that the job script starts once looks the same, and waits for the other hosts",
            "start it on every host, or say --environment none to train alone",
        )
    if part.ports == "agreed" and part.tasks:
        folder = context.environ.get("ESTIMATOR_PIPELINE_SHARED_DIR") or (context.job and context.job.run.model_dir)
        yield info(
            f"ports are agreed upon when the job starts, in {folder}",
            "every task must reach that folder; --shared tries it",
        )


def _nobody(context: Context) -> DoctorFinding:
    partly = [e.name for e in ENVIRONMENTS if any(name in context.environ for name in e.variables[:1])]
    seen = f"; variables of {', '.join(partly)} are there, but not those of a task" if partly else ""
    shape = context.job.cluster if context.job is not None else None
    tasks = shape.num_training_tasks if shape is not None else 1
    several = shape.workers + shape.chief + shape.ps if shape is not None else 1
    problem = lone_task(context.environ, several + (shape.evaluator if shape is not None else 0))
    if problem is not None and several > 1 and context.environment != NO_ENVIRONMENT:
        return of_error(problem, "`train` ends with this error here")
    if tasks > 1:
        return info(
            f"no TF_CONFIG and no scheduler has started this process as a task{seen}",
            f"`train` would run here alone, and the job has {tasks} training tasks",
            "start `doctor` as the job will be started (srun estimator-pipeline doctor ... --shared), or give "
            "--tf-config; `launch` starts all tasks on this machine",
        )
    return ok(f"no TF_CONFIG and no scheduler: one process{seen}")


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
    own = part.addresses.get(part.task) if part.task is not None else None
    if own is not None:
        parts.append(f"at {own} (ports {part.ports})")
    elif context.job is None and allocation.tf_config is None:
        parts.append("without a job file there are no roles")
    parts += allocation.notes
    return "; ".join(parts)


def _others(context: Context, name: str, others: tuple[str, ...]) -> Iterator[DoctorFinding]:
    if name != "tf_config":
        yield info(f"{name} speaks; {', '.join(others)} would match as well, and comes later in the order")
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
                f"TF_CONFIG names {tasks} task(s), and {other.name} has started {allocation.size}",
                "TF_CONFIG comes first; one that a job script exports is the same on every task, and several tasks "
                "would then be the same worker",
                f"unset TF_CONFIG and let `train` read {other.name}, or set TF_CONFIG for each task by itself",
            )
            return
    yield info(f"TF_CONFIG speaks; {', '.join(others)} would match as well")


# TF_CONFIG -------------------------------------------------------------------------------------------------------


def check_tf_config(context: Context) -> Iterator[DoctorFinding]:
    """The document: whether it can be read, and what is odd about it although it can."""
    part = context.part
    if part.error is not None:
        if context.document is None and not context.environ.get("TF_CONFIG", "").strip():
            raise NotLookedAt("no TF_CONFIG")
        text = context.document if context.document is not None else context.environ.get("TF_CONFIG", "")
        source = context.document_source if context.document is not None else "TF_CONFIG"
        # All that is wrong at once: who mends a document by hand would otherwise come back for each mistake.
        for problem in tf_config_problems(text, source=source) or [part.error]:
            yield of_error(problem, _why_unread(text))
        return
    if part.tf_config is None or not part.source:
        raise NotLookedAt("no TF_CONFIG")
    config = part.tf_config
    found = list(_odd(context, config))
    yield ok(_told(config, part.source))
    yield from found


def _why_unread(text: str) -> str:
    why = "TensorFlow, and `train`, cannot start with it"
    bare = text.strip()
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"":
        return f"{why}; the quotes around the whole document belong to the shell, not into the variable"
    return why


def _told(config: TFConfig, source: str) -> str:
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
    yield from _local_hosts(addresses)
    yield from _ports(addresses, config)
    strategy = context.job.run.train_distribute if context.job is not None else "none"
    if config.cluster.num_ps and "chief" not in config.cluster.jobs and strategy == "none":
        # With a strategy of parameter servers worker:0 is the chief; Estimator's own way, without one, wants a chief.
        yield (error if context.job is not None else warning)(
            "the cluster has parameter servers and no chief",
            'without a strategy tf.estimator\'s RunConfig ends with ValueError: "it must have one "chief" node"',
            "name the first worker chief: one task of the job `chief`, the others `worker`",
        )
    if len(addresses) == 1:
        yield info(
            "the cluster has one task",
            "it trains alone, as it would without TF_CONFIG",
            "name the other tasks, if there should be some",
        )


def _odd_document(context: Context, config: TFConfig) -> Iterator[DoctorFinding]:
    plain = "`train`, `launch` and `exec` read it; " if context.job is None else ""
    severity = "warning" if context.job is None else "info"
    if config.dialect == "master":
        yield DoctorFinding(
            severity,
            "the chief is called master, as before TensorFlow 1.4",
            f"{plain}TensorFlow's own strategies know no task of that name",
            "call it chief, if anything else than this package reads the document",
        )
    if config.evaluator_in_cluster:
        yield DoctorFinding(
            severity,
            "the evaluator's address is inside the cluster",
            f"{plain}a strategy that a program makes from TF_CONFIG by itself waits for it as for a worker",
            "leave the evaluator out of `cluster`, or run the program with `estimator-pipeline exec`",
        )
    if config.rpc_layer != "grpc":
        yield warning(
            f"rpc_layer is {config.rpc_layer!r}",
            "TensorFlow as it is published has grpc alone",
            "leave rpc_layer out, unless this TensorFlow was built with it",
        )
    if config.extra:
        yield info(
            f"keys that are not read: {', '.join(sorted(map(str, config.extra)))}",
            "services add some; a misspelt one does nothing",
        )


def _local_hosts(addresses: dict[Task, str]) -> Iterator[DoctorFinding]:
    hosts = {task: host_of(address) for task, address in addresses.items()}
    anywhere = [task for task, host in hosts.items() if host in _ANY]
    local = [task for task, host in hosts.items() if is_loopback(host)]
    others = [task for task in hosts if task not in local and task not in anywhere]
    if anywhere:
        yield error(
            f"{few(anywhere)} at {addresses[anywhere[0]]}: this is no address that others can connect to",
            "it means every address of the own machine, and each task would find itself there",
            "write the host by which the others reach that task",
        )
    if local and others:
        yield error(
            f"{few(local)} at {addresses[local[0]]}, and {few(others)} at {addresses[others[0]]}",
            "localhost is another machine on each machine: the tasks there look for a peer on their own host, and wait "
            "for ever",
            f"write the real host of {few(local)}",
        )


def _ports(addresses: dict[Task, str], config: TFConfig) -> Iterator[DoctorFinding]:
    first = _number_in("/proc/sys/net/ipv4/ip_unprivileged_port_start", 1024)
    low = [task for task, address in addresses.items() if int(address.rpartition(":")[2]) < min(first, 1024)]
    if low:
        yield warning(
            f"{few(low)} at {addresses[low[0]]}: a port below {min(first, 1024)}",
            "only root may listen there, and the server of that task cannot start",
            "take ports from 1024 on, best from 10000 to 29999",
        )
    spelled = Counter(address.rpartition(":")[2] for address in addresses.values())
    by_short: dict[tuple[str, str], set[str]] = {}
    for address in addresses.values():
        host = host_of(address)
        if not host.replace(".", "").isdigit() and ":" not in host:
            by_short.setdefault((host.split(".")[0], address.rpartition(":")[2]), set()).add(host)
    for (short, port), names in sorted(by_short.items()):
        if len(names) > 1 and short in names and spelled[port] > 1:
            yield warning(
                f"two addresses may be the same: {' and '.join(sorted(names))}, port {port}",
                "a host with and without its domain; two tasks cannot listen at one port",
                "give one of them another port, or spell all hosts in the same way",
            )


def _number_in(path: str, default: int) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return default


# Strategy --------------------------------------------------------------------------------------------------------


def check_strategy(context: Context) -> Iterator[DoctorFinding]:
    """Strategy, engine and evaluation against the cluster that there really is."""
    job = context.needed_job()
    config = context.part.tf_config
    strategy = job.run.train_distribute
    if config is None or not context.part.source or config.cluster is None:
        yield ok(f"{strategy} with engine {job.run.engine}, as the job file's cluster section has it")
        return
    found = [*_strategy_and_cluster(context, config), *_shape(context, config)]
    yield from found or [
        ok(
            f"{strategy} over {config.num_training_tasks} training task(s), engine {job.run.engine}; "
            f"evaluation: {_who_evaluates(context, config)}"
        )
    ]


def _strategy_and_cluster(context: Context, config: TFConfig) -> Iterator[DoctorFinding]:
    job, cluster = context.needed_job(), config.cluster
    assert cluster is not None
    strategy, engine = job.run.train_distribute, job.run.engine
    if cluster.num_ps and engine != "estimator":
        yield error(
            f"the engine is {engine}, and the cluster has {cluster.num_ps} parameter server(s)",
            "Model.fit has no training with parameter servers as Estimator has it",
            "take the ps job out of the cluster, or set run.engine: estimator and "
            "run.train_distribute: parameter_server",
        )
    elif cluster.num_ps and strategy == "multi_worker_mirrored":
        yield error(
            f"multi_worker_mirrored, and the cluster has {cluster.num_ps} parameter server(s)",
            "the workers reduce their gradients among themselves; the strategy refuses a ps job",
            "take the ps job out of TF_CONFIG, or set run.train_distribute: parameter_server",
        )
    if strategy == "parameter_server" and not cluster.num_ps:
        yield error(
            "parameter_server, and the cluster has no parameter server",
            "there is nobody to hold the variables",
            "add a ps job to the cluster, or set run.train_distribute: multi_worker_mirrored",
        )
    # Without any strategy, parameter servers are Estimator's own way of training together.
    alone = strategy in ("mirrored", "one_device") or (strategy == "none" and not cluster.num_ps)
    if alone and config.num_training_tasks > 1:
        yield error(
            f"train_distribute is {strategy}, and {config.num_training_tasks} tasks train",
            "each would train a model of its own in the same model_dir, which the job refuses",
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
            "it cannot be shared out equally, and the job refuses it when it starts",
            f"set input.global_batch_size to {f'{below} or ' if below else ''}{below + replicas}",
        )


def _shape(context: Context, config: TFConfig) -> Iterator[DoctorFinding]:
    job, cluster = context.needed_job(), config.cluster
    assert cluster is not None
    said, is_there = job.cluster, cluster.jobs
    told = {"workers": said.workers, "chief": int(said.chief), "ps": said.ps}
    real = {"workers": len(is_there.get("worker", ())), "chief": len(is_there.get("chief", ())), "ps": cluster.num_ps}
    if told != real:
        yield info(
            f"the job file's cluster is {_counts(told)}, and {context.part.source} has {_counts(real)}",
            f"{context.part.source} is followed",
            "change the job file's cluster section, if that is not meant",
        )
    if config.is_evaluator and not said.evaluator:
        yield info(
            "this task is an evaluator, and the job file has none",
            "the chief only waits for its result if it is there before the training ends",
            "set cluster.evaluator: true",
        )
    if config.num_training_tasks > 1 and not _evaluates(context, config):
        yield info(
            "nobody evaluates while the job trains; the chief does so once, at its end",
            "no best model is exported, and no curve shows how the training goes",
            "set cluster.evaluator: true and start one, or eval.during_training: true",
        )


def _evaluates(context: Context, config: TFConfig) -> bool:
    job = context.needed_job()
    own = config.evaluator_in_cluster or config.is_evaluator or config.dialect == "master"
    return own or job.cluster.evaluator or job.eval.during_training


def _who_evaluates(context: Context, config: TFConfig) -> str:
    job = context.needed_job()
    if config.evaluator_in_cluster or config.is_evaluator or job.cluster.evaluator:
        return "the evaluator"
    return "the chief" if _evaluates(context, config) else "the chief, at the end"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count or name == "workers")
