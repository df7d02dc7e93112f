"""A configuration of another era as a job file: what is taken, what a person decides, what nobody needs any more."""

from __future__ import annotations

import os
import tempfile
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
    dump_job,
    load_job,
)
from estimator_pipeline.job.base import Problem, Section
from estimator_pipeline.job.error_messages import Places, problems_of
from estimator_pipeline.job.loading import apply_override
from estimator_pipeline.job.placeholders import PLACEHOLDER, placeholders_in
from estimator_pipeline.migrate.configs.detect import FORMATS, Format, read
from estimator_pipeline.migrate.configs.documents import Path, dotted, read_text
from estimator_pipeline.migrate.configs.findings import ConfigFinding, JobDraft, State, get, layered, put, stand_ins
from estimator_pipeline.migrate.configs.formats.schemas import knows, likely
from estimator_pipeline.migrate.configs.write import job_text
from estimator_pipeline.utils import durable_files as durable

__all__ = ["FORMATS", "STATES", "Conversion", "convert_config", "write_conversion"]

STATES: tuple[State, ...] = ("taken", "needs a decision", "no longer needed")
SCHEDULERS = ("kubernetes", "slurm")


@dataclass(frozen=True)
class Conversion:
    """What came of a configuration.

    Attributes:
        source: The file's name.
        format: Its format's name.
        findings: What became of each of its fields, in their order there.
        job: The job as plain values; `???` stands where a value is still to be given.
        placeholders: Those fields, and why.
        derived: Fields that follow from several of the source, and why.
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
        """How many fields became what."""
        counted = Counter(finding.state for finding in self.findings)
        return {state: counted[state] for state in STATES}

    def document(self) -> dict[str, Any]:
        """As plain values, for JSON."""
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
    """Read a configuration and make a job file of it. Writes nothing.

    Args:
        path: The configuration, or "-" for standard input.
        wanted: Its format; None: found out.
        template: A job file that has what the configuration lacks; the configuration's fields go before its own.
        settings: "dotted.key=value", as `--set` of other commands; they go before all.
        params: Hyperparameters that are parameters of the model.
        scheduler: "kubernetes" or "slurm": whose section gets what concerns machines.
        stdin: A binary stream, for "-".

    Raises:
        ConfigError: The configuration cannot be read, its format is not clear, or what it comes to is no valid job.
    """
    if scheduler not in SCHEDULERS:
        raise ConfigError(
            f"--scheduler {scheduler!r}: there is no such scheduler.",
            code="argument/unknown-name",
            found=f"allowed: {', '.join(SCHEDULERS)}",
            hint="name the one whose section of the job file is wanted.",
        )
    source = str(path)
    known, document = read(read_text(path, stdin=stdin), source=source, wanted=wanted)
    draft = JobDraft(document, scheduler, tuple(params), base=_template(template))
    known.convert(draft)
    _rest(draft, known)
    _params_that_are_not_there(draft)
    _requirements(draft)
    data = layered(draft.base, draft.job)
    for place in draft.placeholders:
        put(data, place, PLACEHOLDER)
    data = _set(draft, data, settings)
    data = _ordered(data)
    _check(draft, data)
    order = {leaf: i for i, leaf in enumerate(document.leaves())}
    draft.findings.sort(key=lambda finding: _rank(finding, order))
    text = job_text(draft, data, known)
    _round_trip(text, data, source)
    return Conversion(
        source=source,
        format=known.name,
        findings=tuple(draft.findings),
        job=data,
        placeholders=dict(draft.placeholders),
        derived=dict(draft.derived),
        text=text,
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


def _rest(draft: JobDraft, known: Format) -> None:
    """What nothing was said of: no field of a source is left out of the report."""
    for leaf in draft.document.leaves():
        if draft.covered(leaf):
            continue
        # The whole of what is not known is one finding, not one for each value in it.
        at = next((leaf[:n] for n in range(1, len(leaf)) if not _within(draft, known, leaf[:n])), leaf)
        item = draft.document.item(*at)
        if item is None:
            continue
        close = likely(known.schema, at) if known.schema is not None else None
        why = f"a field that is not known here; did you mean {close}?" if close else "a field that is not known here"
        if known.schema is not None and knows(known.schema, at):
            why = "nothing of a job file fits it"
        if item.value in (None, "", {}, []):
            draft.drop(item, "empty")
        else:
            draft.decide(item, why)


def _within(draft: JobDraft, known: Format, path: Path) -> bool:
    """Whether a field is known as such, or something was said of one below it."""
    if known.schema is not None and knows(known.schema, path):
        return True
    return any(f.item.path[: len(path)] == path for f in draft.findings) or any(
        joined[: len(path)] == path for joined in draft.joined
    )


def _params_that_are_not_there(draft: JobDraft) -> None:
    for name in draft.params:
        own = name.lstrip("-").replace("-", "_").lower()
        if get(draft.job, ("model", "params", own)) is None:
            raise ConfigError(
                f"--param {name}: {draft.document.source} has no such hyperparameter.",
                code="argument/unknown-name",
                found=", ".join(f.item.name for f in draft.findings if f.to and f.to[:2] == ("model", "params"))
                or "none",
                hint="write the name as the report has it.",
            )


def _requirements(draft: JobDraft) -> None:
    """What every job file has, and no configuration of an optimizer or a cluster says."""
    if not any(draft.current("model", name) for name in ("name", "function")):
        draft.need(("model", "function"), "the model: module:function, or in its place `name`, a model of model_fns/")
    if not draft.base.get("model"):
        # The defaults of a job file would be a guess that runs.
        draft.need(("model", "optimizer", "name"), "the program decided it; a model_fn of its own needs none: any name")
        draft.need(("model", "optimizer", "learning_rate"), "the program decided it; a number or a schedule")
    ends = any(draft.current("train", n) or ("train", n) in draft.placeholders for n in ("max_steps", "epochs"))
    if not draft.base and not ends:
        # Without an end a job trains for ever.
        draft.need(("train", "max_steps"), "the global step to stop at; or in its place `epochs`")
    draft.need(
        ("input", "source"), "tfds, tfrecord, csv, arrays or function, with its own fields: docs/reference/job-files.md"
    )
    draft.need(("input", "global_batch_size"), "records of one training step, over all replicas")
    draft.need(("run", "model_dir"), "where checkpoints and events go; every task must reach it")


def _set(draft: JobDraft, data: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    places = Places("the job")
    for setting in settings:
        key = tuple(part.strip() for part in setting.partition("=")[0].split("."))
        if key == ("model", "name"):
            data.setdefault("model", {}).pop("function", None)
        elif key == ("model", "function"):
            data.setdefault("model", {}).pop("name", None)
        for one, other in (("max_steps", "epochs"), ("epochs", "max_steps")):
            if key == ("train", one) and get(data, ("train", other)) == PLACEHOLDER:
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
    """Sections in the order of the schema, and in each section its fields."""
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
    """Hold the job against the real schema; what is still to be given is stood in for."""
    trial = _filled(draft, data)
    try:
        Job.model_validate(trial)
    except ValidationError as error:
        problems = problems_of(error, trial)
        lines = [_traced(draft, problem) for problem in problems]
        raise ConfigError(
            f"what {draft.document.source} comes to is no valid job:\n" + "\n".join(lines),
            code="job/several-mistakes",
            hint="correct the source, or give the fields another value: --set FIELD=VALUE.",
        ) from None


def _traced(draft: JobDraft, problem: Problem) -> str:
    field = dotted(problem.path)
    found = f" ({problem.actual})" if problem.actual else ""
    origin = next(
        (
            f.item.place
            for f in draft.findings
            if f.state == "taken" and f.to and f.to[: len(problem.path)] == problem.path
        ),
        None,
    )
    came = f"; from {origin}" if origin else ""
    return f"  {field}: {problem.text.rstrip('.')}{found}{came}"


def _filled(draft: JobDraft, data: dict[str, Any]) -> dict[str, Any]:
    """Return the job with stand-ins that go with everything else in it."""
    trial = layered(data, {})
    missing = {problem.path for problem in placeholders_in(trial)}
    if not missing:
        return trial
    run = trial.setdefault("run", {})
    alone = stand_ins()
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
        ("run", "model_dir"): alone["run"]["model_dir"],
        ("input", "global_batch_size"): replicas,
    }
    for path in missing:
        if path in values:
            put(trial, path, values[path])
        elif get(trial, path) == PLACEHOLDER:
            # What has a default is checked with it.
            get(trial, path[:-1]).pop(path[-1])
    if ("input", "source") in missing:
        trial["input"] = {**alone["input"], **{k: v for k, v in trial["input"].items() if k != "source"}}
    if ("model", "optimizer", "name") in missing and trial["model"].get("loss") is None:
        trial["model"].setdefault("params", {})
    return trial


def _round_trip(text: str, data: dict[str, Any], source: str) -> None:
    """The written text, loaded as a job file is: the same job; or an error that names what is to be given."""
    with tempfile.TemporaryDirectory() as folder:
        path = File(folder) / "job.yaml"
        path.write_text(text, encoding="utf-8")
        missing = placeholders_in(data)
        try:
            loaded = load_job(path)
        except ConfigError as error:
            named = [".".join(map(str, problem.path)) for problem in missing]
            if missing and all(name in str(error) for name in named):
                return
            raise
        expected = Job.model_validate(data)
        if dump_job(loaded.model_copy(update={"name": expected.name})) != dump_job(expected):
            raise RuntimeError(f"the job file written for {source} does not come back as it was")


# Files -----------------------------------------------------------------------------------------------------------


def write_conversion(made: Conversion, output: str | File, *, overwrite: bool = False) -> list[File]:
    """Write the job file, whole or not at all.

    Returns:
        What was written.

    Raises:
        ConfigError: The file is there already and `overwrite` was not said, or the folder is not writable.
    """
    path = File(output)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder.", code="file/exists", hint="name a file: --output job.yaml.")
    if path.exists() and made.source != "-" and path.resolve() == File(made.source).resolve():
        raise ConfigError(
            f"{path} is the configuration itself.", code="file/exists", hint="name another file with --output."
        )
    if path.exists() and not overwrite:
        raise ConfigError(
            f"{path} is there already.", code="file/exists", hint="say --overwrite, or name another file with --output."
        )
    _write(path, made.text)
    return [path]


def _write(path: File, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}.",
            code="file/unwritable",
            hint="name a file in a folder that you may write.",
        ) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        durable.rename(name, path)
    except OSError as error:
        File(name).unlink(missing_ok=True)
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}.",
            code="file/unwritable",
            hint="make room, or name another file.",
        ) from None
