"""What a run has left in its model directory: the job, the losses, the evaluations and the result.

| what | file |
| --- | --- |
| the job | `estimator_pipeline/identity.json`: the resolved job file; of programs and of 0.1.0 some settings |
| losses of the training | event files: tag `loss` of an Estimator, in `train` `batch_loss` or `loss` of Keras |
| evaluations | event files in `eval` and `eval_NAME`; those since the last start also in `result.json` |
| the end | `estimator_pipeline/result.json`, `training.json` |
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.engines.model_dir import run_identity
from estimator_pipeline.engines.model_dir.continuations import Continuation, read_continuations
from estimator_pipeline.engines.model_dir.layout import DIRECTORY, PREFIXES, checkpoint_step
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import Job, load_job, make_job
from estimator_pipeline.results.event_files import event_files, read_scalars
from estimator_pipeline.utils import io_errors

__all__ = ["RunResults", "model_dir_of", "read_run"]

# Folder and tag of the training loss: of an Estimator, of the engine keras, of keras3.
_LOSSES = (("", "loss"), ("train", "batch_loss"), ("train", "loss"))
# Settings of a run identity that are no fields of the job file: digests of data, and names of the first versions.
_NO_FIELDS = re.compile(
    r"input|input\.(content|fingerprint|records)\b.*|model\.optimizer (keeps|adds) .*|the (features|version) .*"
)
_RENAMED = {"seed": "run.seed", "global_batch_size": "input.global_batch_size"}
# Fields that only name a place or the run itself.
_PLACES = re.compile(
    r"name|input\.continue_(with|epochs)|run\.(model_dir|ledger|accept_changes)|keras\.\w+\.(dir|path)|input\.data_dir|(slurm|pbs)\.(metrics_)?dir"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResults:
    """The results of a run.

    Attributes:
        name: The run's name on the command line.
        model_dir: Its model directory.
        job: Its resolved job; None if it is not known.
        fields: The settings of the run by dotted names, without those that only name a place.
        step: The last global step; None if nothing was trained.
        losses: The losses of the training by step.
        evaluations: The metrics of each evaluation by step. Metrics of a further `eval_NAME` are `NAME/METRIC`.
        result: The fields of `TrainResult`, if training has ended.
        training: The last status that the chief has published.
        continuations: The further data on which it has continued, oldest first.
        notes: What could not be read.
    """

    name: str
    model_dir: Path
    job: Job | None = None
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: int | None = None
    losses: Mapping[int, float] = dataclasses.field(default_factory=dict)
    evaluations: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    continuations: Sequence[Continuation] = ()
    notes: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """The engine, by the job or by the names of the checkpoints; "" if it is not known."""
        if self.job is not None:
            return self.job.run.engine
        engines = (engine for engine, prefix in PREFIXES.items() if any(self.model_dir.glob(f"{prefix}-*.index")))
        return next(engines, "")

    def curve(self, metric: str) -> dict[int, float]:
        """Return a metric of the evaluations by step."""
        return {step: metrics[metric] for step, metrics in self.evaluations.items() if metric in metrics}


def model_dir_of(run: str) -> str:
    """Return the model directory that a name on the command line means: of a job file, its `run.model_dir`.

    Raises:
        ConfigError: The job file cannot be read.
    """
    path = Path(run)
    return load_job(path).run.model_dir if path.is_file() or path.suffix in (".yaml", ".yml") else run


def read_run(name: str) -> RunResults:
    """Read the results of a run.

    Args:
        name: Its model directory, or its job file.

    Raises:
        ConfigError: There is no run, or its files cannot be read.
    """
    place = model_dir_of(name)
    folder = Path(place)
    if "://" in place:
        raise ConfigError(
            f"{place} is not on a mounted file system",
            code="argument/not-applicable",
            hint="mount the bucket, or copy the event files and the folder `estimator_pipeline` of the model directory",
        )
    try:
        _check_model_dir(name, folder)
        return _read(name, folder)
    except OSError as error:
        raise ConfigError(
            f"the run {name} cannot be read: {error.strerror or error}",
            code=io_errors.code_of(error),
            found=str(error.filename or folder),
            hint="make its files readable for this user, or leave it out",
        ) from None


def _check_model_dir(name: str, folder: Path) -> None:
    source = f"run.model_dir of {name} is {folder}, which " if Path(name) != folder else f"{folder} "
    hint = "name the model directory of a run, or its job file"
    if not folder.exists():
        raise ConfigError(f"{source}does not exist", code="file/not-found", hint=hint)
    entries = sorted(entry.name for entry in folder.iterdir())
    if DIRECTORY not in entries and not any(event_files(folder)) and not any(folder.glob("*-[0-9]*.index")):
        raise ConfigError(
            f"{source}is not the model directory of a run",
            code="file/not-found",
            found=f"no checkpoint, no event file, and no folder {DIRECTORY} beside {len(entries)} other entries",
            hint=hint,
        )


def _read(name: str, folder: Path) -> RunResults:
    identity = run_identity.read_local(str(folder)) or {}
    training = _document(folder / DIRECTORY / "training.json")
    result = _document(folder / DIRECTORY / "result.json").get("result") or {}
    job, notes = _job(identity)
    continuations = read_continuations(str(folder))
    losses: dict[int, float] = {}
    evaluations = {each["global_step"]: _numbers(each["metrics"]) for each in result.get("evaluations", ())}
    for below, tag in _LOSSES:
        scalars, damaged = read_scalars(folder / below)
        losses = losses or scalars.get(tag, {})
        notes += damaged
    for prefix, evaluated in _evaluations(folder, "" if job is None else job.eval.name or ""):
        scalars, damaged = read_scalars(evaluated)
        notes += damaged
        for metric, curve in scalars.items():
            for step, value in curve.items():
                evaluations.setdefault(step, {})[prefix + metric] = value
    files = ", ".join(Path(path).name for each in continuations for path in each.files)
    steps = [
        *(known.get("global_step") or 0 for known in (result, training)),
        *(checkpoint_step(path.stem) for path in folder.glob("*-[0-9]*.index")),
        *losses,
        *evaluations,
    ]
    return RunResults(
        name=name,
        model_dir=folder,
        job=job,
        fields=_fields(job, identity, training) | ({"continuations": files} if files else {}),
        step=max(steps) or None,
        losses=losses,
        evaluations=dict(sorted(evaluations.items())),
        result=result,
        training=training,
        continuations=continuations,
        notes=tuple(notes),
    )


def _document(path: Path) -> dict[str, Any]:
    """Return a JSON document of a run, or {} if it is missing or truncated."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict):
            return document
    return {}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers, from a document in which NaN is text; others are arrays."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if name != "global_step" and isinstance(value, int | float | str)
    }


def _evaluations(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Iterate over the folders of evaluations, each with the prefix of its metrics: "" for the job's."""
    folders = [path for path in sorted(folder.glob("eval*")) if re.match(r"eval(_|$)", path.name) and event_files(path)]
    main = [path for path in folders if path.name == (f"eval_{name}" if name else "eval")]
    for path in folders:
        yield "" if path in main or len(folders) == 1 else f"{path.name.removeprefix('eval_')}/", path


# Settings --------------------------------------------------------------------------------------------------------


def _job(identity: Mapping[str, Any]) -> tuple[Job | None, list[str]]:
    try:
        return (make_job(identity["job"]), []) if "job" in identity else (None, [])
    except ConfigError as error:
        return None, [f"the job file of the run is not that of this version: {error.message}"]


def _fields(job: Job | None, identity: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by dotted names: of the job, or as far as the run has recorded them.

    The code of a program's functions is among them as a digest.
    """
    recorded = {**identity.get("fixed", {}), **identity.get("told", {}), **(training.get("job") or {})}
    if job is not None:
        code = {name: value for name, value in recorded.items() if name.startswith("the code of ")}
        fields = dict(_flat(job.model_dump(mode="json") | code))
    else:
        named = {_RENAMED.get(name, name): value for name, value in recorded.items() if not _NO_FIELDS.fullmatch(name)}
        optimizer = re.fullmatch(r"(\w+) \((\w+)\)", str(named.pop("model.optimizer", "")))
        if optimizer:
            named |= {"model.optimizer.name": optimizer[1], "model.optimizer.api": optimizer[2]}
        if named.get("input.shard_policy") == "by record":
            del named["input.shard_policy"]  # of an identity: policies that may replace each other
        fields = dict(_flat(named))
    return {name: value for name, value in fields.items() if not _PLACES.fullmatch(name)}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
