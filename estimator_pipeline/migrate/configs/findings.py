"""The result for each field of a configuration, and the job built from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError

from estimator_pipeline.job.base import Problem
from estimator_pipeline.job.error_messages import problems_of
from estimator_pipeline.job.schema import Job
from estimator_pipeline.migrate.configs.documents import Document, Item, Path, dotted

__all__ = ["ConfigFinding", "JobDraft", "State", "get", "layered", "put", "minimal_job"]

State = Literal["taken", "needs a decision", "no longer needed"]


@dataclass(frozen=True)
class ConfigFinding:
    """The result for one field of the configuration.

    Attributes:
        item: The field, its value and its line.
        state: "taken", "needs a decision" or "no longer needed".
        to: The field of the job file that has the value or the decision; None: no field.
        job_value: The value in the job file, if the state is "taken".
        why: The conversion with its units, or the reason.
    """

    item: Item
    state: State
    to: Path | None = None
    job_value: Any = None
    why: str = ""

    def document(self) -> dict[str, Any]:
        """Return the finding as plain values, for JSON."""
        document = {
            "field": dotted(self.item.path),
            "name": self.item.name,
            "line": self.item.line,
            "value": self.item.value,
            "state": self.state,
            "to": dotted(self.to) if self.to else None,
        }
        return {**document, **({"job_value": self.job_value} if self.state == "taken" else {}), "why": self.why}


@dataclass
class JobDraft:
    """A job under construction.

    A value that the job file's schema rejects becomes a decision, with the schema's reason.

    Attributes:
        document: The configuration.
        scheduler: "kubernetes" or "slurm": the section that gets the fields about machines.
        params: Names of hyperparameters that the user declared as parameters of the model.
        base: The fields of the template.
        job: The fields taken from the configuration, in the form of a job file.
        findings: The result for each field.
        placeholders: Field of the job -> why its value is still missing.
        derived: Field of the job -> why it has its value, if the value follows from several fields.
        joined: Fields that were read together with a different field, such as the value after a flag.
        container_paths: Role -> path of its container in a TFJob.
    """

    document: Document
    scheduler: str = "kubernetes"
    params: tuple[str, ...] = ()
    base: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    findings: list[ConfigFinding] = field(default_factory=list)
    placeholders: dict[Path, str] = field(default_factory=dict)
    derived: dict[Path, str] = field(default_factory=dict)
    joined: set[Path] = field(default_factory=set)
    container_paths: dict[str, Path] = field(default_factory=dict)

    def take(self, item: Item, to: Path, value: Any = None, *, why: str = "") -> bool:
        """Set a field of the job, by default to the value of the item.

        Returns:
            Whether the value was taken. Otherwise the item is a decision.
        """
        value = item.value if value is None else value
        before = get(self.job, to)
        if before is not None and before != value:
            first = next((f.item.place for f in self.findings if f.to == to and f.state == "taken"), "a field")
            self.decide(item, f"{first} already sets {_short(before)}", to)
            return False
        rejection = self._rejection(to, value)
        if rejection:
            self.decide(item, rejection, to)
            return False
        put(self.job, to, value)
        self.placeholders.pop(to, None)
        self.findings.append(ConfigFinding(item, "taken", to, value, why))
        return True

    def add(self, item: Item, to: Path, value: Any, *, why: str = "") -> bool:
        """Append a value to a list of the job, unless the list already has it.

        Returns:
            Whether the value was taken. Otherwise the item is a decision.
        """
        known = get(self.job, to) or []
        if value in known:
            self.drop(item, "same as a different role")
            return True
        rejection = self._rejection(to, [*known, value])
        if rejection:
            self.decide(item, rejection, to)
            return False
        put(self.job, to, [*known, value])
        self.findings.append(ConfigFinding(item, "taken", (*to, len(known)), value, why))
        return True

    def moved(self, before: Path, after: Path) -> None:
        """Record that a value has moved to a different field of the job."""
        self.findings = [replace(f, to=after) if f.to == before else f for f in self.findings]

    def decide(self, item: Item, why: str, to: Path | None = None, *, once: bool = False) -> None:
        """Leave a field to the user; with `once`, only the first of equal fields."""
        same = (f for f in self.findings if (f.state, f.why, f.to) == ("needs a decision", why, to))
        if once and any(f.item.value == item.value for f in same):
            self.drop(item, "same as a different role")
            return
        self.findings.append(ConfigFinding(item, "needs a decision", to, None, why))

    def drop(self, item: Item, why: str) -> None:
        """Record a field that is no longer needed."""
        self.findings.append(ConfigFinding(item, "no longer needed", None, None, why))

    def need(self, to: Path, why: str) -> None:
        """Add a placeholder for a required field that has no value yet."""
        if get(self.job, to) is None and get(self.base, to) is None:
            self.placeholders.setdefault(to, why)

    def derive(self, to: Path, value: Any, why: str) -> None:
        """Set a field of the job whose value follows from several fields."""
        if self.current(*map(str, to)) is None and self._rejection(to, value) is None:
            put(self.job, to, value)
            self.placeholders.pop(to, None)
            self.derived[to] = why

    def covered(self, path: Path) -> bool:
        """Return whether a field or one of its parents has a finding."""
        if any(path[: len(known)] == known for known in self.joined):
            return True
        return any(path[: len(f.item.path)] == f.item.path for f in self.findings)

    def current(self, *path: str) -> Any:
        """Return the present value of a field of the job or the template."""
        value = get(self.job, path)
        return get(self.base, path) if value is None else value

    @property
    def training_tasks(self) -> int:
        """The number of tasks that train, as far as it is known."""
        workers = self.current("cluster", "workers")
        return (1 if workers is None else workers) + bool(self.current("cluster", "chief"))

    def _rejection(self, to: Path, value: Any) -> str | None:
        data = layered(layered(minimal_job(), self.base), self.job)
        put(data, to, value)
        try:
            Job.model_validate(data)
        except ValidationError as error:
            for problem in problems_of(error, data, sections_only=True):
                if problem.path[: len(to)] == to:
                    return _rejection_text(problem)
        return None

    def replaced(self, finding: ConfigFinding, value: Any, by: str) -> None:
        """Record that `--set` has changed a value that was taken."""
        i = self.findings.index(finding)
        why = f"{finding.why}; " if finding.why else ""
        self.findings[i] = replace(finding, job_value=value, why=f"{why}replaced by {by}")


def _rejection_text(problem: Problem) -> str:
    actual = f" ({problem.actual})" if problem.actual else ""
    return f"a job file does not allow this value: {problem.text.rstrip('.')}{actual}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def minimal_job() -> dict[str, Any]:
    """Return the required fields of a job file, with sample values."""
    return {
        "model": {"name": "cnn"},
        "input": {"source": "tfds", "name": "digits", "global_batch_size": 64},
        "run": {"model_dir": "runs/x"},
    }


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; values of the upper mapping override."""
    result = copy.deepcopy(below)
    for key, value in above.items():
        inner = result.get(str(key))
        both = isinstance(inner, dict) and isinstance(value, dict)
        result[key] = merged(inner, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return result


def layered(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two jobs; a different model or data source replaces the lower one."""
    below = copy.deepcopy(below)
    if {"name", "function"} & set(above.get("model") or {}):
        for key in ("name", "function"):
            below.get("model", {}).pop(key, None)
    source, source_below = (above.get("input") or {}).get("source"), below.get("input", {}).get("source")
    if source is not None and source != source_below:
        common = {key: value for key, value in below.get("input", {}).items() if key == "global_batch_size"}
        below["input"] = common
    return merged(below, above)


def get(data: dict[str, Any], path: Path) -> Any:
    """Return the value at a path, or None."""
    value: Any = data
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def put(data: dict[str, Any], path: Path, value: Any) -> None:
    """Set the value at a path; create the mappings that are missing."""
    for step in path[:-1]:
        if not isinstance(data.get(str(step)), dict):
            data[str(step)] = {}
        data = data[str(step)]
    data[str(path[-1])] = value
