"""What becomes of each field of a source, and the job that grows from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError

from estimator_pipeline.job.base import Problem
from estimator_pipeline.job.error_messages import problems_of
from estimator_pipeline.job.schema import Job
from estimator_pipeline.migrate.configs.documents import Document, Item, Path, dotted

__all__ = ["ConfigFinding", "JobDraft", "State", "get", "layered", "put", "stand_ins"]

State = Literal["taken", "needs a decision", "no longer needed"]


@dataclass(frozen=True)
class ConfigFinding:
    """What becomes of one field.

    Attributes:
        item: The field, its value and its line.
        state: "taken", "needs a decision" or "no longer needed".
        to: The field of the job file: where the value went, or where the decision is written; None: nowhere.
        job_value: What the job file holds; for "taken".
        why: The conversion with its units, or the reason.
    """

    item: Item
    state: State
    to: Path | None = None
    job_value: Any = None
    why: str = ""

    def at(self, item: Item) -> ConfigFinding:
        """Return the same of a field that another document calls so."""
        return replace(self, item=item)

    def document(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        found = {
            "field": dotted(self.item.path),
            "name": self.item.name,
            "line": self.item.line,
            "value": self.item.value,
            "state": self.state,
            "to": dotted(self.to) if self.to else None,
        }
        return {**found, **({"job_value": self.job_value} if self.state == "taken" else {}), "why": self.why}


@dataclass
class JobDraft:
    """A job in the making. A value that the job file's schema refuses becomes a decision, with the schema's reason.

    Attributes:
        document: The source.
        scheduler: "kubernetes" or "slurm": whose section gets what concerns machines.
        params: Names of hyperparameters that the person has said to be the model's.
        base: What a template holds already.
        job: What the source has given, as a job file holds it.
        findings: What became of each field.
        placeholders: Field of the job -> why it is still to be given.
        derived: Field of the job -> why it has its value, where no single field of the source says it.
        joined: Fields that were read together with another one, such as the value after a flag.
        container_paths: Role -> where its container stands, in a TFJob.
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
        """Put a value into the job. `value` is the field's own where it is left out.

        Returns:
            Whether it was taken; otherwise it has become a decision.
        """
        value = item.value if value is None else value
        before = get(self.job, to)
        if before is not None and before != value:
            first = next((f.item.place for f in self.findings if f.to == to and f.state == "taken"), "another field")
            self.decide(item, f"{first} has said {_short(before)} already", to)
            return False
        refused = self._refused(to, value)
        if refused:
            self.decide(item, refused, to)
            return False
        put(self.job, to, value)
        self.placeholders.pop(to, None)
        self.findings.append(ConfigFinding(item, "taken", to, value, why))
        return True

    def add(self, item: Item, to: Path, value: Any, *, why: str = "") -> bool:
        """Add to a list of the job, once.

        Returns:
            Whether it was taken; otherwise it has become a decision.
        """
        known = get(self.job, to) or []
        if value in known:
            self.drop(item, "as of another role")
            return True
        refused = self._refused(to, [*known, value])
        if refused:
            self.decide(item, refused, to)
            return False
        put(self.job, to, [*known, value])
        self.findings.append(ConfigFinding(item, "taken", (*to, len(known)), value, why))
        return True

    def moved(self, before: Path, after: Path) -> None:
        """Note that a value stands in another field now."""
        self.findings = [replace(f, to=after) if f.to == before else f for f in self.findings]

    def decide(self, item: Item, why: str, to: Path | None = None, *, once: bool = False) -> None:
        """Leaves a field to the person. `once`: not again, where another one has the same value and reason."""
        same = (f for f in self.findings if (f.state, f.why, f.to) == ("needs a decision", why, to))
        if once and any(f.item.value == item.value for f in same):
            self.drop(item, "as of another role")
            return
        self.findings.append(ConfigFinding(item, "needs a decision", to, None, why))

    def drop(self, item: Item, why: str) -> None:
        """A field that nothing needs any more."""
        self.findings.append(ConfigFinding(item, "no longer needed", None, None, why))

    def need(self, to: Path, why: str) -> None:
        """A field of the job that somebody has to give before it runs. What is there already stays."""
        if get(self.job, to) is None and get(self.base, to) is None:
            self.placeholders.setdefault(to, why)

    def derive(self, to: Path, value: Any, why: str) -> None:
        """A value that follows from several fields."""
        if self.current(*map(str, to)) is None and self._refused(to, value) is None:
            put(self.job, to, value)
            self.placeholders.pop(to, None)
            self.derived[to] = why

    def covered(self, path: Path) -> bool:
        """Whether something was said of a field, or of one above it."""
        if any(path[: len(known)] == known for known in self.joined):
            return True
        return any(path[: len(f.item.path)] == f.item.path for f in self.findings)

    def current(self, *path: str) -> Any:
        """Return what the job holds by now, the template's part included."""
        found = get(self.job, path)
        return get(self.base, path) if found is None else found

    @property
    def training_tasks(self) -> int:
        """How many tasks train, as far as it is known by now."""
        workers = self.current("cluster", "workers")
        return (1 if workers is None else workers) + bool(self.current("cluster", "chief"))

    def _refused(self, to: Path, value: Any) -> str | None:
        data = layered(layered(stand_ins(), self.base), self.job)
        put(data, to, value)
        try:
            Job.model_validate(data)
        except ValidationError as error:
            for problem in problems_of(error, data, sections_only=True):
                if problem.path[: len(to)] == to:
                    return _told(problem)
        return None

    def replaced(self, finding: ConfigFinding, value: Any, by: str) -> None:
        """Note that `--set` has changed what was taken."""
        i = self.findings.index(finding)
        why = f"{finding.why}; " if finding.why else ""
        self.findings[i] = replace(finding, job_value=value, why=f"{why}replaced by {by}")


def _told(problem: Problem) -> str:
    found = f" ({problem.actual})" if problem.actual else ""
    return f"a job file does not take this value: {problem.text.rstrip('.')}{found}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def stand_ins() -> dict[str, Any]:
    """Return the least that a job file must hold, so that the rest of one can be checked."""
    return {
        "model": {"name": "cnn"},
        "input": {"source": "tfds", "name": "digits", "global_batch_size": 64},
        "run": {"model_dir": "runs/x"},
    }


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two mappings as one: mappings are joined, of other values the upper one holds."""
    result = copy.deepcopy(below)
    for key, value in above.items():
        inner = result.get(str(key))
        both = isinstance(inner, dict) and isinstance(value, dict)
        result[key] = merged(inner, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return result


def layered(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two jobs as one. What the upper one chooses anew (a model, a source of data) takes its fields along."""
    below = copy.deepcopy(below)
    if {"name", "function"} & set(above.get("model") or {}):
        for key in ("name", "function"):
            below.get("model", {}).pop(key, None)
    own, other = (above.get("input") or {}).get("source"), below.get("input", {}).get("source")
    if own is not None and own != other:
        common = {key: value for key, value in below.get("input", {}).items() if key == "global_batch_size"}
        below["input"] = common
    return merged(below, above)


def get(data: dict[str, Any], path: Path) -> Any:
    """Return the value at a path; None where there is none."""
    value: Any = data
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def put(data: dict[str, Any], path: Path, value: Any) -> None:
    """Set the value at a path, with mappings on the way."""
    for step in path[:-1]:
        if not isinstance(data.get(str(step)), dict):
            data[str(step)] = {}
        data = data[str(step)]
    data[str(path[-1])] = value
