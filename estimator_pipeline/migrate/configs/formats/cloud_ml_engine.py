"""Jobs of Cloud ML Engine and AI Platform Training: `config.yaml` of `gcloud`, and jobs in the form of the API.

Fields: https://cloud.google.com/ai-platform/training/docs/reference/rest/v1/projects.jobs#traininginput
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from estimator_pipeline.migrate.configs.documents import Item
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.arguments import apply_arguments
from estimator_pipeline.migrate.configs.formats.hyperparameters import (
    KNOWN,
    NO_TPU,
    need_strategy_of_tpu,
    normal,
    put_strategy,
)
from estimator_pipeline.migrate.configs.formats.machines import need_devices, take_deadline, take_gpus, take_machine
from estimator_pipeline.migrate.configs.formats.schemas import AIPlatformJob, TrainingInput, checked

__all__ = ["convert"]

# https://cloud.google.com/ai-platform/training/docs/machine-types#scale_tiers: machine types of master, workers and
# parameter servers, and the numbers of workers and parameter servers.
TIERS: dict[str, tuple[str, tuple[str, int], tuple[str, int]]] = {
    "BASIC": ("n1-standard-4", ("", 0), ("", 0)),
    "STANDARD_1": ("n1-highcpu-8", ("n1-highcpu-8", 4), ("n1-standard-4", 3)),
    "PREMIUM_1": ("n1-highcpu-16", ("n1-highcpu-16", 19), ("n1-highmem-8", 11)),
    "BASIC_GPU": ("standard_gpu", ("", 0), ("", 0)),
}
ROLES = (("master", "chief"), ("worker", "worker"), ("parameterServer", "ps"), ("evaluator", "evaluator"))
DROPPED = {
    "region": "determined by the cluster",
    "runtimeVersion": "the image determines the version of TensorFlow, 2.15 to 2.21",
    "pythonVersion": "the image determines the version of Python",
    "enableWebAccess": "use kubectl exec, or a shell of the scheduler",
    "useChiefInTfConfig": "every dialect of TF_CONFIG is supported; see cluster.dialect",
}
DECIDED = {
    "pythonModule": ("the training program: set model.function to its model", "model.function"),
    "packageUris": ("the code must be in the image, or where the tasks import from", "kubernetes.image"),
    "network": ("determined by the cluster", None),
    "encryptionConfig": ("determined by the bucket or the volume", None),
    "serviceAccount": (
        "access to buckets: name a Kubernetes service account that has it",
        "kubernetes.service_account",
    ),
}


def convert(draft: JobDraft) -> None:
    """Convert each field of a job."""
    job = checked(AIPlatformJob, draft.document, kind="a job of AI Platform")
    training = job.trainingInput
    fields = {str(item.path[-1]): item for item in draft.document.items("trainingInput")}
    _cluster(draft, training, fields)
    for item in draft.document.items():
        _top(draft, str(item.path[-1]), item)
    for name, item in fields.items():
        if item.value is None:
            draft.drop(item, "not set")
        elif name in DROPPED:
            draft.drop(item, DROPPED[name])
        elif name in DECIDED:
            why, to = DECIDED[name]
            draft.decide(item, why, tuple(to.split(".")) if to else None)
    if fields.get("jobDir") and fields["jobDir"].value:
        draft.take(fields["jobDir"], ("run", "model_dir"), why="the directory for checkpoints and exports")
    for item in draft.document.items("trainingInput", "scheduling"):
        _scheduling(draft, str(item.path[-1]), item)
    if draft.document.item("trainingInput", "args") is not None:
        apply_arguments(draft, [_suffixed(item) for item in draft.document.items("trainingInput", "args")])
    if training.hyperparameters is not None:
        _search(draft, [parameter.parameterName for parameter in training.hyperparameters.params])


def _search(draft: JobDraft, names: Sequence[str]) -> None:
    """Leave a hyperparameter search to the user, with placeholders."""
    item = draft.document.item("trainingInput", "hyperparameters")
    if item is None:
        return
    listed = f" ({', '.join(names)})" if names else ""
    draft.decide(
        item, f"a search is not converted{listed}: run the job once for each value, as submit slurm --array does"
    )
    for name in names:
        to, _ = KNOWN.get(normal(name), ("", ""))
        if to:
            draft.need(tuple(to.split(".")), "the search varied it")


def _suffixed(item: Item) -> Item:
    return Item(item.path, item.value, item.line, f" of args[{item.path[-1]}]")


def _top(draft: JobDraft, name: str, item: Item) -> None:
    if name == "jobId":
        draft.take(item, ("name",))
    elif name == "labels":
        for label in draft.document.items("labels"):
            if draft.scheduler == "kubernetes":
                draft.take(label, ("kubernetes", "labels", str(label.path[-1])))
            else:
                draft.drop(label, "Slurm has no labels")
        if not item.value:
            draft.drop(item, "empty")
    elif name in (
        "createTime",
        "startTime",
        "endTime",
        "state",
        "errorMessage",
        "trainingOutput",
        "etag",
        "jobPosition",
    ):
        draft.drop(item, "a status field of the service")


# Cluster ---------------------------------------------------------------------------------------------------------


def _cluster(draft: JobDraft, training: TrainingInput, fields: dict[str, Item]) -> None:
    tier = training.scaleTier or "BASIC"
    custom = tier == "CUSTOM"
    counts = {
        "worker": training.workerCount or 0,
        "ps": training.parameterServerCount or 0,
        "evaluator": training.evaluatorCount or 0,
    }
    source: dict[str, Item | None] = {
        "worker": fields.get("workerCount"),
        "ps": fields.get("parameterServerCount"),
        "evaluator": fields.get("evaluatorCount"),
    }
    item = fields.get("scaleTier")
    if tier == "BASIC_TPU":
        need_strategy_of_tpu(draft)
    if custom and _is_tpu(training.workerType):
        # The only worker is the TPU, and the master is its host: one task trains.
        if fields.get("workerCount"):
            draft.decide(fields["workerCount"], NO_TPU)
        source.pop("worker")
        counts["worker"] = 0
        need_strategy_of_tpu(draft)
    if not custom:
        for name, to in (("workerCount", "workers"), ("parameterServerCount", "ps")):
            if name in fields and fields[name].value is not None:
                why = f"ignored: the scale tier {tier} sets the numbers; only CUSTOM uses this field"
                draft.decide(fields[name], why, ("cluster", to))
                source.pop("worker" if to == "workers" else "ps")
                counts["worker" if to == "workers" else "ps"] = 0
    if not custom and tier in TIERS and TIERS[tier][1][1]:
        counts.update(worker=TIERS[tier][1][1], ps=TIERS[tier][2][1])
        source.update(worker=item, ps=item)
    _counts(draft, counts, source, training)
    if item is not None:
        _tier(draft, tier, item)
    for service, role in ROLES:
        _machines(draft, service, role, fields, there=role == "chief" or counts[role] > 0)
    put_strategy(draft)
    need_devices(draft, _gpus(draft))


def _is_tpu(machine: Any) -> bool:
    return str(machine).startswith("cloud_tpu") or str(machine).endswith("_tpu")


def _gpus(draft: JobDraft) -> int:
    roles = draft.job.get(draft.scheduler, {}).get("roles", {})
    gpus: list[Any] = [role.get("gpus") or role.get("gpus_per_task") or 0 for role in roles.values()]
    return max([0, *gpus])


def _counts(draft: JobDraft, counts: dict[str, int], source: dict[str, Item | None], training: TrainingInput) -> None:
    alone = not (counts["worker"] or counts["ps"] or counts["evaluator"])
    for role, to in (("worker", "workers"), ("ps", "ps"), ("evaluator", "evaluator")):
        item = source.get(role)
        count: int | bool = counts[role]
        if item is None:
            continue
        if alone or not count:
            draft.drop(item, "none")
        elif role == "evaluator":
            draft.take(item, ("cluster", "evaluator"), True, why="one evaluator")
        else:
            why = "in addition to the master" if role == "worker" else ""
            draft.take(item, ("cluster", to), count, why=why)
    if alone:
        return
    draft.derive(("cluster", "chief"), True, "AI Platform always has a master")
    if not counts["worker"]:
        draft.derive(("cluster", "workers"), 0, "only the master trains")
    version = re.match(r"(\d+)", str(training.runtimeVersion or ""))
    old = version is not None and int(version[1]) < 2 and not training.useChiefInTfConfig
    if old and not counts["evaluator"]:
        draft.derive(("cluster", "dialect"), "master", f"runtime {training.runtimeVersion}: the master also evaluates")


def _tier(draft: JobDraft, tier: str, item: Item) -> None:
    if tier == "CUSTOM":
        draft.drop(item, "machine types and numbers are in separate fields")
    elif tier == "BASIC_TPU":
        draft.decide(item, NO_TPU)
    else:
        master, (worker, workers), (ps, _) = TIERS[tier]
        machine_type = Item(item.path, master, item.line, f"scaleTier {tier}: master")
        take_machine(draft, machine_type, "chief" if workers else "worker")
        if workers:
            for machine, role in ((worker, "worker"), (ps, "ps")):
                take_machine(draft, Item(item.path, machine, item.line, f"scaleTier {tier}: {role}"), role)


def _machines(draft: JobDraft, service: str, role: str, fields: dict[str, Item], *, there: bool) -> None:
    # A master without workers is worker 0 of a job file.
    role = "worker" if role == "chief" and not draft.current("cluster", "chief") else role
    kind, config = fields.get(f"{service}Type"), fields.get(f"{service}Config")
    if kind is not None and kind.value is not None:
        if _is_tpu(kind.value):
            draft.decide(kind, NO_TPU)
        elif not there:
            draft.drop(kind, f"the cluster has no {role}")
        else:
            take_machine(draft, kind, role)
    if config is None or config.value is None:
        return
    if not there and not (kind is not None and _is_tpu(kind.value)):
        draft.drop(config, f"the cluster has no {role}")
        return
    for item in draft.document.items(*config.path):
        _replica(draft, str(item.path[-1]), item, role)


def _replica(draft: JobDraft, name: str, item: Item, role: str) -> None:
    if name == "acceleratorConfig":
        count, kind = draft.document.item(*item.path, "count"), draft.document.item(*item.path, "type")
        if kind is not None and str(kind.value).startswith("TPU"):
            draft.decide(item, NO_TPU)
            return
        if count is not None:
            take_gpus(draft, count, role, int(count.value), why=f"GPUs of each {role}")
        if kind is not None:
            section = "kubernetes" if draft.scheduler == "kubernetes" else "slurm"
            to = "node_selector" if section == "kubernetes" else "constraint"
            draft.decide(kind, "the GPU model: a label or a feature of the nodes", (section, "roles", role, to))
    elif name == "imageUri":
        draft.decide(item, "the image must also contain this package: build an image FROM it", ("kubernetes", "image"))
    elif name == "tpuTfVersion":
        draft.decide(item, NO_TPU)
    elif name == "diskConfig":
        draft.drop(item, "the disk of a machine that the service created")
    elif name in ("containerCommand", "containerArgs"):
        draft.decide(item, "estimator-pipeline train runs a job file; it has no separate command")


def _scheduling(draft: JobDraft, name: str, item: Item) -> None:
    if name == "maxRunningTime":
        seconds = re.fullmatch(r"(\d{1,9})(\.\d+)?s", str(item.value))
        if seconds is None:
            draft.decide(item, "not a number of seconds such as 7200s", ("kubernetes", "active_deadline_seconds"))
        else:
            take_deadline(draft, item, int(seconds[1]))
    elif name == "maxWaitTime":
        draft.drop(item, "the queue determines how long a job waits")
    elif name == "priority":
        draft.decide(item, "Kubernetes has named priority classes", ("kubernetes", "priority_class"))
