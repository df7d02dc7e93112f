"""Jobs of Cloud ML Engine and AI Platform Training, both closed: `config.yaml`, jobs of the API, flags of `gcloud`.

Fields: https://cloud.google.com/ai-platform/training/docs/reference/rest/v1/projects.jobs#traininginput
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from estimator_pipeline.migrate.configs.documents import Item, Path, bad, dotted
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.arguments import apply_arguments, pairs_of
from estimator_pipeline.migrate.configs.formats.hyperparameters import (
    KNOWN,
    NO_TPU,
    UNCERTAIN,
    Computed,
    need_devices,
    need_strategy_of_tpu,
    normal,
    put_strategy,
    typed,
)
from estimator_pipeline.migrate.configs.formats.sagemaker import take_deadline, take_gpus, take_labels, take_machine

__all__ = ["FIELDS", "convert", "convert_command", "names_below"]


class Field(NamedTuple):
    """What a field becomes.

    Attributes:
        state: "take", "decide" or "drop", or the name of a conversion in `_convert`.
        to: The field of the job file; with "{scheduler}", the section for machines, and "{role}".
        why: The conversion, or the reason.
        flag: The flag of `gcloud` with this value.
    """

    state: str
    to: str = ""
    why: str = ""
    flag: str = ""


_CODE = "the code must be in the image, or where the tasks import from"
_STATUS = Field("drop", why="a status field of the service")
FIELDS: dict[str, Field] = {
    "jobId": Field("take", "name"),
    **dict.fromkeys(("createTime", "startTime", "endTime", "state", "errorMessage", "trainingOutput", "etag",
                     "jobPosition"), _STATUS),
    "scaleTier": Field("tier", "", "machine types and numbers are in separate fields", "scale-tier"),
    "workerCount": Field("take", "cluster.workers", "in addition to the master", "worker-count"),
    "parameterServerCount": Field("take", "cluster.ps", "", "parameter-server-count"),
    "evaluatorCount": Field("take", "cluster.evaluator", "one evaluator"),
    "masterType": Field("machine", flag="master-machine-type"),
    "workerType": Field("machine", flag="worker-machine-type"),
    "parameterServerType": Field("machine", flag="parameter-server-machine-type"),
    "evaluatorType": Field("machine"),
    "jobDir": Field("take", "run.model_dir", "the directory for checkpoints and exports", "job-dir"),
    "pythonModule": Field("decide", "model.function", "the training program: set model.function to its model",
                          "module-name"),
    "packageUris": Field("decide", "kubernetes.image", _CODE, "packages"),
    "packagePath": Field("decide", "kubernetes.image", _CODE, "package-path"),
    "runtimeVersion": Field("drop", "", "the image determines the version of TensorFlow, 2.15 to 2.21",
                            "runtime-version"),
    "pythonVersion": Field("drop", "", "the image determines the version of Python", "python-version"),
    "region": Field("drop", "", "determined by the cluster", "region"),
    "network": Field("decide", "", "determined by the cluster", "network"),
    "encryptionConfig": Field("decide", "", "determined by the bucket or the volume"),
    "serviceAccount": Field("decide", "kubernetes.service_account",
                            "access to buckets: name a Kubernetes service account that has it", "service-account"),
    "useChiefInTfConfig": Field("drop", "", "every dialect of TF_CONFIG is supported; see cluster.dialect",
                                "use-chief-in-tf-config"),
    "enableWebAccess": Field("drop", "", "use kubectl exec, or a shell of the scheduler", "enable-web-access"),
    "scheduling.maxRunningTime": Field("time"),
    "scheduling.maxWaitTime": Field("drop", "", "the queue determines how long a job waits"),
    "scheduling.priority": Field("decide", "kubernetes.priority_class", "Kubernetes has named priority classes"),
    "hyperparameters": Field("search", "", "run the job once for each value, as submit slurm --array does"),
    "Config.acceleratorConfig.count": Field("gpus"),
    "Config.acceleratorConfig.type": Field("decide", "{scheduler}.roles.{role}",
                                           "the GPU model: a label or a feature of the nodes"),
    "Config.imageUri": Field("decide", "kubernetes.image",
                             "the image must also contain this package: build an image FROM it"),
    "Config.tpuTfVersion": Field("decide", "", NO_TPU),
    "Config.diskConfig": Field("drop", "", "the disk of a machine that the service created"),
    "Config.containerCommand": Field("decide", "", "estimator-pipeline train runs a job file; it has no command"),
    "Config.containerArgs": Field("decide", "", "estimator-pipeline train runs a job file; it has no command"),
    "config": Field("decide", "", "the rest of the job: convert it, and use --template", "config"),
    "args": Field("arguments"),
    "labels": Field("labels"),
}  # fmt: skip
# https://cloud.google.com/ai-platform/training/docs/machine-types: numbers of workers and parameter servers of a
# scale tier, and GPUs of a machine type.
TIERS = {"BASIC": (0, 0), "BASIC_GPU": (0, 0), "BASIC_TPU": (0, 0), "STANDARD_1": (4, 3), "PREMIUM_1": (19, 11)}
GPUS = {"BASIC_GPU": 1, "standard_gpu": 1, "complex_model_m_gpu": 4, "complex_model_l_gpu": 8, "standard_p100": 1,
        "complex_model_m_p100": 4, "standard_v100": 1, "large_model_v100": 1, "complex_model_m_v100": 4,
        "complex_model_l_v100": 8}  # fmt: skip
ROLES = {"master": "chief", "worker": "worker", "parameterServer": "ps", "evaluator": "evaluator"}
_ROLE = re.compile(rf"({'|'.join(ROLES)})(?=Config\.|Type$)")
_FLAGS = {field.flag: name for name, field in FIELDS.items() if field.flag} | {
    f"{flag}-accelerator": f"{role}Config.acceleratorConfig.count"
    for flag, role in (("master", "master"), ("worker", "worker"), ("parameter-server", "parameterServer"))
}
_COUNTS = {"workers": "workerCount", "ps": "parameterServerCount", "evaluator": "evaluatorCount"}
_TPU = re.compile(r"(?i)(^|_)tpu(_|$)")
_ONLY_GCLOUD = ("stream-logs", "async", "project", "staging-bucket", "verbosity", "quiet", "user-output-enabled",
                "format", "account", "help", "distributed", "start-port", "labels-from-file")  # fmt: skip


def names_below(path: Path) -> set[str]:
    """Return the names of the fields that a mapping of a job may have."""
    paths: list[Path] = []
    for name, field in FIELDS.items():
        top: Path = () if field is _STATUS or name in ("jobId", "labels") else ("trainingInput",)
        roles = ROLES if name.startswith("Config") else ("",)
        paths += [(*top, *f"{role}{name}".split(".")) for role in roles]
    return {str(known[len(path)]) for known in paths if known[: len(path)] == path and len(known) > len(path)}


def convert(draft: JobDraft) -> None:
    """Convert each field of a job."""
    document = draft.document
    if not isinstance(document.data.get("trainingInput"), dict):
        actual = f"trainingInput: {document.data.get('trainingInput')!r:.60}"
        hint = "write the fields of the job below trainingInput"
        raise bad(f"{document.source} is not a job of AI Platform", actual, hint)
    _convert(draft, dict(_fields(draft, ())))


def _fields(draft: JobDraft, path: Path) -> Iterator[tuple[str, Item]]:
    for item in draft.document.items(*path):
        name = dotted(item.path).removeprefix("trainingInput.")
        if name in FIELDS or _ROLE.sub("", name) in FIELDS:
            yield name, item
        else:
            yield from _fields(draft, item.path)


def convert_command(draft: JobDraft, items: list[Item]) -> list[Item]:
    """Convert the flags of `gcloud`; return the arguments of the program."""
    words = [str(item.value) for item in items]
    end = words.index("--") if "--" in words else len(words)
    start = next((i for i in range(end) if words[i].startswith("--")), end)
    command = Item(items[0].path, " ".join(words[:start]), items[0].line, "gcloud")
    draft.drop(command, "use submit kubernetes, submit slurm or launch, and the name of the job file")
    draft.joined.update(item.path for item in items[1 : end + 1])
    fields = {"scaleTier": Item(items[0].path, "CUSTOM", items[0].line)} if "local" in words[:start] else {}
    for name, item in pairs_of(draft, items[start:end]):
        if name in _FLAGS:
            fields[_FLAGS[name]] = item
        elif name in _ONLY_GCLOUD:
            draft.drop(item, "only for gcloud")
        else:
            draft.decide(item, "no field corresponds to it")
    _convert(draft, fields)
    return items[end + 1 :]


def _convert(draft: JobDraft, fields: dict[str, Item]) -> None:
    roles = _cluster(draft, fields)
    arguments: list[Item] = []
    for name, item in fields.items():
        match = _ROLE.match(name)
        role = ROLES[match[1]] if match else roles[0]
        # A master without workers is worker 0 of a job file.
        role = "worker" if role == "chief" and "chief" not in roles else role
        field = FIELDS.get(name) or FIELDS[_ROLE.sub("", name)]
        to = tuple(field.to.format(scheduler=draft.scheduler, role=role).split(".")) if field.to else None
        accelerator = fields.get(name.replace(".count", ".type"), item)
        if item.value is None:
            draft.drop(item, "not set")
        elif isinstance(item.value, Computed):
            draft.decide(item, UNCERTAIN, to)
            if to == ("run", "model_dir"):
                draft.need(to, f"the job had {item.value}")
        elif match and _TPU.search(str(accelerator.value)):
            draft.decide(item, NO_TPU)
            need_strategy_of_tpu(draft)
        elif role not in roles:
            draft.drop(item, f"the cluster has no {role}")
        elif field.state == "take" and to:
            draft.take(item, to, why=field.why)
        elif field.state == "decide":
            draft.decide(item, field.why, to)
        elif field.state == "machine":
            take_machine(draft, item, role, GPUS)
        elif field.state == "gpus":
            count = re.search(r"(?:^|count=)(\d+)", str(item.value))
            take_gpus(draft, item, role, int(count[1]) if count else 0, why=f"GPUs of each {role}")
        elif field.state == "time":
            take_deadline(draft, item, re.sub(r"(\.\d+)?s$", "", str(item.value)))
        elif field.state == "tier":
            _tier(draft, item, role)
        elif field.state == "search":
            _search(draft, item, field.why)
        elif field.state == "labels":
            take_labels(draft, draft.document.items(*item.path))
        elif field.state == "arguments":
            words = draft.document.items(*item.path)
            arguments += [word._replace(field=f" of args[{word.path[-1]}]") for word in words]
        else:
            draft.drop(item, field.why)
    put_strategy(draft)
    need_devices(draft)
    apply_arguments(draft, arguments)


def _cluster(draft: JobDraft, fields: dict[str, Item]) -> list[str]:
    """Set the cluster; return its roles."""
    tier = fields.get("scaleTier")
    name = str(tier.value or "BASIC") if tier else "BASIC"
    counts: dict[str, Item] = {}
    if tier and name in TIERS and TIERS[name][0]:
        counts = {"workers": tier._replace(value=TIERS[name][0]), "ps": tier._replace(value=TIERS[name][1])}
    for role, field in _COUNTS.items():
        item = fields.get(field)
        if item is None or item.value is None or isinstance(item.value, Computed):
            continue
        fields.pop(field)
        worker = fields.get("workerType")
        if role == "workers" and worker and _TPU.search(str(worker.value)):
            # The only worker is the TPU, and the master is its host: one task trains.
            draft.decide(item, NO_TPU)
        elif name != "CUSTOM" and role != "evaluator":
            why = f"ignored: the scale tier {name} sets the numbers; only CUSTOM uses this field"
            draft.decide(item, why, ("cluster", role))
        elif not typed(item.value):
            draft.drop(item, "none")
        else:
            counts[role] = item._replace(value=True if role == "evaluator" else typed(item.value))
    whys = {role: FIELDS[field].why for role, field in _COUNTS.items()}
    taken = [role for role, item in counts.items() if draft.take(item, ("cluster", role), why=whys[role])]
    if not taken:
        return ["worker"]
    draft.derive(("cluster", "chief"), True, "AI Platform always has a master")
    if "workers" not in counts:
        draft.derive(("cluster", "workers"), 0, "only the master trains")
    version = str(fields["runtimeVersion"].value) if "runtimeVersion" in fields else ""
    chief = fields.get("useChiefInTfConfig")
    if re.match(r"[01]\b", version) and not (chief and chief.value) and "evaluator" not in counts:
        draft.derive(("cluster", "dialect"), "master", f"runtime {version}: the master also evaluates")
    return ["chief", *("worker" if role == "workers" else role for role in taken)]


def _tier(draft: JobDraft, item: Item, role: str) -> None:
    tier = str(item.value)
    if tier in ("CUSTOM", "BASIC"):
        draft.drop(item, "one machine" if tier == "BASIC" else FIELDS["scaleTier"].why)
    elif tier == "BASIC_TPU":
        draft.decide(item, NO_TPU)
        need_strategy_of_tpu(draft)
    elif tier in TIERS:
        take_machine(draft, item, role, GPUS)
    else:
        draft.decide(item, f"an unknown scale tier; known: {', '.join(TIERS)}, CUSTOM", ("cluster",))


def _search(draft: JobDraft, item: Item, why: str) -> None:
    """Leave a hyperparameter search to the user, with placeholders."""
    specs = item.value.get("params") if isinstance(item.value, dict) else None
    names = [str(spec.get("parameterName")) for spec in specs or () if isinstance(spec, dict)]
    listed = f" ({', '.join(names)})" if names else ""
    draft.decide(item, f"a search is not converted{listed}: {why}")
    for name in names:
        if normal(name) in KNOWN:
            draft.need(tuple(KNOWN[normal(name)][0].split(".")), "the search varied it")
