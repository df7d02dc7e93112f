"""Conversion of a configuration to a job file: fields taken, fields to decide on, fields no longer needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from pydantic import ValidationError

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import (
    ClusterSection,
    EvalSection,
    InputCommon,
    Job,
    Kubernetes,
    ModelSection,
    RunSection,
    SlurmSection,
    TrainingSection,
    load_job,
)
from estimator_pipeline.job.base import Problem, Section
from estimator_pipeline.job.error_messages import Places, problems_of
from estimator_pipeline.job.loading import apply_override
from estimator_pipeline.job.placeholders import PLACEHOLDER, placeholders_in
from estimator_pipeline.migrate.configs.detect import FORMATS, Format, read
from estimator_pipeline.migrate.configs.documents import Path, bad, dotted, read_text
from estimator_pipeline.migrate.configs.findings import ConfigFinding, JobDraft, State, get, layered, minimal_job, put
from estimator_pipeline.migrate.configs.write import job_text
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.text import nearest

__all__ = ["FORMATS", "STATES", "Conversion", "convert_config", "write_conversion"]

STATES: tuple[State, ...] = ("taken", "needs a decision", "no longer needed")
SCHEDULERS = ("kubernetes", "slurm")


@dataclass(frozen=True)
class Conversion:
    """The result of converting a configuration.

    Attributes:
        source: The file's name.
        format: The name of its format.
        findings: The result for each field, in the order of the file.
        job: The job as plain values, with `???` for each missing value.
        placeholders: Fields with a missing value -> why the value is missing.
        derived: Fields that follow from several fields of the configuration -> why.
        text: The job file.
    """

    source: str
    format: str
    findings: tuple[ConfigFinding, ...]
    job: dict[str, Any]
    placeholders: dict[Path, str]
    derived: dict[Path, str]
    text: str

    def counts(self) -> dict[str, int]:
        """Return the number of fields in each state."""
        counted = Counter(finding.state for finding in self.findings)
        return {state: counted[state] for state in STATES}

    def document(self) -> dict[str, Any]:
        """Return the conversion as plain values, for JSON."""
        return {
            "source": self.source,
            "format": self.format,
            "counts": self.counts(),
            "fields": [finding.document() for finding in self.findings],
            "to_be_given": {dotted(path): why for path, why in self.placeholders.items()},
            "derived": {dotted(path): why for path, why in self.derived.items()},
            "job": self.job,
            "job_file": self.text,
        }


def convert_config(
    path: str | File,
    *,
    wanted: str | None = None,
    template: str | File | None = None,
    settings: Sequence[str] = (),
    params: Sequence[str] = (),
    scheduler: str = "kubernetes",
    stdin: Any = None,
) -> Conversion:
    """Convert a configuration to a job file, without writing it.

    Args:
        path: The configuration, or "-" for standard input.
        wanted: The name of its format; None: detect it from the content.
        template: A job file with fields that the configuration lacks. The configuration's fields override them.
        settings: "dotted.key=value", as in `--set` of other commands. They override all other fields.
        params: Hyperparameters that are parameters of the model.
        scheduler: "kubernetes" or "slurm": the section that gets the fields about machines.
        stdin: A binary stream, for "-".

    Raises:
        ConfigError: The configuration cannot be read, its format is ambiguous, or the resulting job is not valid.
    """
    if scheduler not in SCHEDULERS:
        hint = "name the scheduler whose section the job file should have"
        problem = f"--scheduler {scheduler!r}: unknown scheduler"
        raise bad(problem, f"allowed: {', '.join(SCHEDULERS)}", hint, code="argument/unknown-name")
    source = str(path)
    known, document = read(read_text(path, stdin=stdin), source=source, wanted=wanted)
    draft = JobDraft(document, scheduler, tuple(params), base=_template(template))
    known.convert(draft)
    _report_other_fields(draft, known)
    _check_params(draft)
    _add_required_fields(draft)
    data = layered(draft.base, draft.job)
    for place in draft.placeholders:
        put(data, place, PLACEHOLDER)
    data = _apply_settings(draft, data, settings)
    data = _ordered(data)
    _check(draft, data)
    order = {leaf: i for i, leaf in enumerate(document.leaves())}
    draft.findings.sort(key=lambda finding: _rank(finding, order))
    text = job_text(draft, data, known)
    return Conversion(
        source, known.name, tuple(draft.findings), data, dict(draft.placeholders), dict(draft.derived), text
    )


def _rank(finding: ConfigFinding, order: dict[Path, int]) -> int:
    path = finding.item.path
    return order.get(path, min((i for leaf, i in order.items() if leaf[: len(path)] == path), default=len(order)))


def _template(path: str | File | None) -> dict[str, Any]:
    if path is None:
        return {}
    job = load_job(path)
    data = job.model_dump(exclude_defaults=True)
    if job.name == File(path).stem:
        data.pop("name", None)
    return data


def _report_other_fields(draft: JobDraft, known: Format) -> None:
    """Add a finding for each field that has none yet."""
    for leaf in draft.document.leaves():
        if draft.covered(leaf):
            continue
        # One finding for an unknown mapping, not one for each value in it.
        at = next((leaf[:n] for n in range(1, len(leaf)) if not _within(draft, known, leaf[:n])), leaf)
        item = draft.document.item(*at)
        if item is None:
            continue
        why = "no field of a job file corresponds to it"
        if not _knows(known, at):
            close = nearest(at[-1], known.names(at[:-1])) if known.names else None
            why = f"unknown field; did you mean {close}?" if close else "unknown field"
        if item.value in (None, "", {}, []):
            draft.drop(item, "empty")
        else:
            draft.decide(item, why)


def _within(draft: JobDraft, known: Format, path: Path) -> bool:
    """Return whether the format has a field, or a field below it has a finding."""
    if _knows(known, path):
        return True
    return any(f.item.path[: len(path)] == path for f in draft.findings) or any(
        joined[: len(path)] == path for joined in draft.joined
    )


def _knows(known: Format, path: Path) -> bool:
    return known.names is not None and all(
        isinstance(step, int) or step in known.names(path[:i]) for i, step in enumerate(path)
    )


def _check_params(draft: JobDraft) -> None:
    for name in draft.params:
        param = name.lstrip("-").replace("-", "_").lower()
        if get(draft.job, ("model", "params", param)) is None:
            taken = [f.item.name for f in draft.findings if f.to and f.to[:2] == ("model", "params")]
            problem = f"--param {name}: {draft.document.source} has no such hyperparameter"
            hint = "write the name as in the report"
            raise bad(problem, ", ".join(taken) or "none", hint, code="argument/unknown-name")


def _add_required_fields(draft: JobDraft) -> None:
    """Add placeholders for required fields that the configuration does not set."""
    if not any(draft.current("model", name) for name in ("name", "function")):
        draft.need(("model", "function"), "the model: module:function; or instead `name`, a model of model_fns/")
    if not draft.base.get("model"):
        # The defaults of a job file would be a guess, and the job would train with it.
        draft.need(("model", "optimizer", "name"), "set in the program; any name if the model_fn creates the optimizer")
        draft.need(("model", "optimizer", "learning_rate"), "set in the program; a number or a schedule")
    ends = any(draft.current("train", n) or ("train", n) in draft.placeholders for n in ("max_steps", "epochs"))
    if not draft.base and not ends:
        # Without an end a job trains forever.
        draft.need(("train", "max_steps"), "the global step to stop at; or instead `epochs`")
    draft.need(
        ("input", "source"),
        "tfds, tfrecord, csv, parquet, images, arrays or function: docs/reference/job-files.md",
    )
    draft.need(("input", "global_batch_size"), "examples in one training step, over all replicas")
    draft.need(("run", "model_dir"), "the directory for checkpoints and event files; every task must have access to it")


def _apply_settings(draft: JobDraft, data: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    places = Places("the job")
    for setting in settings:
        key = tuple(part.strip() for part in setting.partition("=")[0].split("."))
        if key == ("model", "name"):
            data.setdefault("model", {}).pop("function", None)
        elif key == ("model", "function"):
            data.setdefault("model", {}).pop("name", None)
        for limit, other in (("max_steps", "epochs"), ("epochs", "max_steps")):
            if key == ("train", limit) and get(data, ("train", other)) == PLACEHOLDER:
                data["train"].pop(other)
        if get(data, key[:-1]) == PLACEHOLDER:
            put(data, key[:-1], {})
        apply_override(setting, data, places)
        for finding in list(draft.findings):
            if finding.state == "taken" and finding.to and finding.to[: len(key)] == key:
                now = get(data, finding.to)
                if now != finding.job_value:
                    draft.replaced(finding, now, f"--set {setting}")
    still = {problem.path for problem in placeholders_in(data)}
    draft.placeholders = {path: why for path, why in draft.placeholders.items() if path in still}
    return data


def _ordered(data: dict[str, Any]) -> dict[str, Any]:
    """Sort the sections and their fields into the order of the schema."""
    sections: dict[str, type[Section]] = {
        "model": ModelSection,
        "input": InputCommon,
        "train": TrainingSection,
        "eval": EvalSection,
        "run": RunSection,
        "cluster": ClusterSection,
        "kubernetes": Kubernetes,
        "slurm": SlurmSection,
    }

    def sorted_by(names: list[str], section: dict[str, Any]) -> dict[str, Any]:
        return {name: section[name] for name in [*(n for n in names if n in section), *section]}

    ordered = sorted_by(list(Job.model_fields), data)
    for name, schema in sections.items():
        if isinstance(ordered.get(name), dict):
            ordered[name] = sorted_by(["source", *schema.model_fields], ordered[name])
    return ordered


# Checks ----------------------------------------------------------------------------------------------------------


def _check(draft: JobDraft, data: dict[str, Any]) -> None:
    """Validate the job against the schema, with sample values for the missing fields."""
    trial = _filled(draft, data)
    try:
        Job.model_validate(trial)
    except ValidationError as error:
        lines = [_traced(draft, problem) for problem in problems_of(error, trial)]
        problem = f"the job converted from {draft.document.source} is not valid:\n" + "\n".join(lines)
        hint = "correct the source, or set the fields to a different value: --set FIELD=VALUE."
        raise ConfigError(problem, code="job/several-mistakes", hint=hint) from None


def _traced(draft: JobDraft, problem: Problem) -> str:
    field = dotted(problem.path)
    actual = f" ({problem.actual})" if problem.actual else ""
    below = (f for f in draft.findings if f.state == "taken" and f.to and f.to[: len(problem.path)] == problem.path)
    origin = next((finding.item.place for finding in below), None)
    source = f"; from {origin}" if origin else ""
    return f"  {field}: {problem.text.rstrip('.')}{actual}{source}"


def _filled(draft: JobDraft, data: dict[str, Any]) -> dict[str, Any]:
    """Return the job with consistent sample values for its missing fields."""
    trial = layered(data, {})
    missing = {problem.path for problem in placeholders_in(trial)}
    if not missing:
        return trial
    run = trial.setdefault("run", {})
    minimal = minimal_job()
    tasks = draft.training_tasks
    if ("run", "train_distribute") in missing:
        run["train_distribute"] = "multi_worker_mirrored" if tasks > 1 else "mirrored"
        if tasks > 1:
            run.pop("save_checkpoints_secs", None)
            run.pop("eval_distribute", None)
    if ("cluster", "workers") in missing:
        trial["cluster"]["workers"] = 1
        run["train_distribute"] = "parameter_server" if trial["cluster"].get("ps") else "none"
    replicas = tasks * (
        run.get("num_devices") if isinstance(run.get("num_devices"), int) else len(run.get("devices") or [1])
    )
    values: dict[Path, Any] = {
        ("model", "function"): "module:function",
        ("model", "optimizer", "name"): "rmsprop" if get(trial, ("model", "optimizer", "options")) else "sgd",
        ("model", "optimizer", "learning_rate"): 0.01,
        ("run", "model_dir"): minimal["run"]["model_dir"],
        ("input", "global_batch_size"): replicas,
    }
    for path in missing:
        if path in values:
            put(trial, path, values[path])
        elif get(trial, path) == PLACEHOLDER:
            # A field with a default is validated with the default.
            get(trial, path[:-1]).pop(path[-1])
    if ("input", "source") in missing:
        trial["input"] = {**minimal["input"], **{k: v for k, v in trial["input"].items() if k != "source"}}
    if ("model", "optimizer", "name") in missing and trial["model"].get("loss") is None:
        trial["model"].setdefault("params", {})
    return trial


# Files -----------------------------------------------------------------------------------------------------------


def write_conversion(conversion: Conversion, output: str | File, *, overwrite: bool = False) -> list[File]:
    """Write the job file atomically.

    Returns:
        The files that were written.

    Raises:
        ConfigError: The file exists and `overwrite` is not set, or the folder is not writable.
    """
    path = File(output)
    if path.is_dir():
        raise bad(f"{path} is a folder", None, "name a file: --output job.yaml", code="file/exists")
    if path.exists() and conversion.source != "-" and path.resolve() == File(conversion.source).resolve():
        raise bad(
            f"{path} is the configuration itself", None, "name a different file with --output", code="file/exists"
        )
    if path.exists() and not overwrite:
        hint = "add --overwrite, or name a different file with --output"
        raise bad(f"{path} already exists", None, hint, code="file/exists")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(path, conversion.text.encode())
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror or error}"
        raise bad(
            problem, None, "name a file in a folder that is writable and has space", code="file/unwritable"
        ) from None
    return [path]
