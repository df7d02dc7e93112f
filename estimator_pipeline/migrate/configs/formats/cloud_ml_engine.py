"""Jobs of Cloud ML Engine and AI Platform Training: the `config.yaml` of `gcloud`, and jobs as the API has them.

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

# https://cloud.google.com/ai-platform/training/docs/machine-types#scale_tiers: the machines of master, workers and
# parameter servers, and how many there are of the last two.
TIERS: dict[str, tuple[str, tuple[str, int], tuple[str, int]]] = {
    "BASIC": ("n1-standard-4", ("", 0), ("", 0)),
    "STANDARD_1": ("n1-highcpu-8", ("n1-highcpu-8", 4), ("n1-standard-4", 3)),
    "PREMIUM_1": ("n1-highcpu-16", ("n1-highcpu-16", 19), ("n1-highmem-8", 11)),
    "BASIC_GPU": ("standard_gpu", ("", 0), ("", 0)),
}
ROLES = (("master", "chief"), ("worker", "worker"), ("parameterServer", "ps"), ("evaluator", "evaluator"))
DROPPED = {
    "region": "the cluster is where it is",
    "runtimeVersion": "the version of TensorFlow is that of the image, 2.15 to 2.21",
    "pythonVersion": "the version of Python is that of the image",
    "enableWebAccess": "kubectl exec, or a shell of the scheduler",
    "useChiefInTfConfig": "every dialect of TF_CONFIG is read; see cluster.dialect",
}
DECIDED = {
    "pythonModule": ("the program that was run: its model becomes model.function", "model.function"),
    "packageUris": ("the code must be in the image, or where the tasks import from", "kubernetes.image"),
    "network": ("the network is the cluster's", None),
    "encryptionConfig": ("encryption is that of the bucket or the volume", None),
    "serviceAccount": ("rights to buckets: a service account of Kubernetes with these", "kubernetes.service_account"),
}


def convert(draft: JobDraft) -> None:
    """Says of each field of a job what becomes of it."""
    job = checked(AIPlatformJob, draft.document, what="job of AI Platform")
    given = job.trainingInput
    fields = {str(item.path[-1]): item for item in draft.document.items("trainingInput")}
    _cluster(draft, given, fields)
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
        draft.take(fields["jobDir"], ("run", "model_dir"), why="the folder for checkpoints and exports")
    for item in draft.document.items("trainingInput", "scheduling"):
        _scheduling(draft, str(item.path[-1]), item)
    if draft.document.item("trainingInput", "args") is not None:
        apply_arguments(draft, [_suffixed(item) for item in draft.document.items("trainingInput", "args")])
    if given.hyperparameters is not None:
        _search(draft, [one.parameterName for one in given.hyperparameters.params])


def _search(draft: JobDraft, names: Sequence[str]) -> None:
    """Leaves a search for hyperparameters to the person: a job file has one value of each."""
    item = draft.document.item("trainingInput", "hyperparameters")
    if item is None:
        return
    said = f" ({', '.join(names)})" if names else ""
    draft.decide(
        item, f"a search is not converted{said}: run the job once for each value, as submit slurm --array does"
    )
    for name in names:
        to, _ = KNOWN.get(normal(name), ("", ""))
        if to:
            draft.need(tuple(to.split(".")), "a search went through it")


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
        draft.drop(item, "what the service said of the job")


# Cluster ---------------------------------------------------------------------------------------------------------


def _cluster(draft: JobDraft, given: TrainingInput, fields: dict[str, Item]) -> None:
    tier = given.scaleTier or "BASIC"
    custom = tier == "CUSTOM"
    counts = {
        "worker": given.workerCount or 0,
        "ps": given.parameterServerCount or 0,
        "evaluator": given.evaluatorCount or 0,
    }
    source: dict[str, Item | None] = {
        "worker": fields.get("workerCount"),
        "ps": fields.get("parameterServerCount"),
        "evaluator": fields.get("evaluatorCount"),
    }
    item = fields.get("scaleTier")
    if tier == "BASIC_TPU":
        need_strategy_of_tpu(draft)
    if custom and _is_tpu(given.workerType):
        # The one worker is the TPU itself, and the master its host: one task trains.
        if fields.get("workerCount"):
            draft.decide(fields["workerCount"], NO_TPU)
        source.pop("worker")
        counts["worker"] = 0
        need_strategy_of_tpu(draft)
    if not custom:
        for name, to in (("workerCount", "workers"), ("parameterServerCount", "ps")):
            if name in fields and fields[name].value is not None:
                why = f"the scale tier {tier} has numbers of its own; these are for CUSTOM"
                draft.decide(fields[name], why, ("cluster", to))
                source.pop("worker" if to == "workers" else "ps")
                counts["worker" if to == "workers" else "ps"] = 0
    if not custom and tier in TIERS and TIERS[tier][1][1]:
        counts.update(worker=TIERS[tier][1][1], ps=TIERS[tier][2][1])
        source.update(worker=item, ps=item)
    _counts(draft, counts, source, given)
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
    found: list[Any] = [role.get("gpus") or role.get("gpus_per_task") or 0 for role in roles.values()]
    return max([0, *found])


def _counts(draft: JobDraft, counts: dict[str, int], source: dict[str, Item | None], given: TrainingInput) -> None:
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
            why = "besides the master" if role == "worker" else ""
            draft.take(item, ("cluster", to), count, why=why)
    if alone:
        return
    draft.derive(("cluster", "chief"), True, "AI Platform always has a master")
    if not counts["worker"]:
        draft.derive(("cluster", "workers"), 0, "the master trains alone")
    version = re.match(r"(\d+)", str(given.runtimeVersion or ""))
    old = version is not None and int(version[1]) < 2 and not given.useChiefInTfConfig
    if old and not counts["evaluator"]:
        draft.derive(
            ("cluster", "dialect"), "master", f"runtime {given.runtimeVersion}: the master evaluates by itself"
        )


def _tier(draft: JobDraft, tier: str, item: Item) -> None:
    if tier == "CUSTOM":
        draft.drop(item, "machines and numbers are given one by one")
    elif tier == "BASIC_TPU":
        draft.decide(item, NO_TPU)
    else:
        master, (worker, workers), (ps, _) = TIERS[tier]
        own = Item(item.path, master, item.line, f"scaleTier {tier}: master")
        take_machine(draft, own, "chief" if workers else "worker")
        if workers:
            for machine, role in ((worker, "worker"), (ps, "ps")):
                take_machine(draft, Item(item.path, machine, item.line, f"scaleTier {tier}: {role}"), role)


def _machines(draft: JobDraft, service: str, role: str, fields: dict[str, Item], *, there: bool) -> None:
    # A master alone is worker 0 of a job file.
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
            draft.decide(kind, "the kind of GPU: a label or a feature of the nodes", (section, "roles", role, to))
    elif name == "imageUri":
        draft.decide(item, "the image must hold this package as well: build one FROM it", ("kubernetes", "image"))
    elif name == "tpuTfVersion":
        draft.decide(item, NO_TPU)
    elif name == "diskConfig":
        draft.drop(item, "the disk of a machine that the service made")
    elif name in ("containerCommand", "containerArgs"):
        draft.decide(item, "a job file is run by estimator-pipeline train, not by a command of its own")


def _scheduling(draft: JobDraft, name: str, item: Item) -> None:
    if name == "maxRunningTime":
        seconds = re.fullmatch(r"(\d{1,9})(\.\d+)?s", str(item.value))
        if seconds is None:
            draft.decide(item, "no number of seconds such as 7200s", ("kubernetes", "active_deadline_seconds"))
        else:
            take_deadline(draft, item, int(seconds[1]))
    elif name == "maxWaitTime":
        draft.drop(item, "how long a job waits is the queue's affair")
    elif name == "priority":
        draft.decide(item, "priorities have names in Kubernetes", ("kubernetes", "priority_class"))
