"""The sections `train` and `eval` of a job file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from estimator_pipeline.job.base import FunctionRef, Problem, Section

__all__ = ["EarlyStoppingSection", "EvalSection", "ExporterSection", "TrainingSection", "check_steps"]

_Text = Annotated[str, Field(min_length=1)]


_Count = Annotated[int, Field(ge=1)]


_Seconds = Annotated[float, Field(ge=0)]


def check_steps(value: object) -> bool:
    """Return whether a value is a number of steps per execution: "auto", or a number from 1 on."""
    return value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def _steps(value: Any) -> Any:
    if check_steps(value):
        return value
    problem = Problem(
        (),
        "this is not a number of steps.",
        f"{value!r}; allowed: auto, or a number of steps from 1 on",
        "use one of these.",
        code="job/bad-value",
    )
    raise PydanticCustomError("problems", "a wrong value", {"problems": [problem]})


class TrainingSection(Section):
    """The length of training. Without a limit, training runs until the input ends or a hook stops it.

    Fields:
        max_steps: Global step to stop at, counted over restarts.
        epochs: Passes over the training data, also fractions. Not with `max_steps`.
        steps_per_execution (int >= 1, or auto): Maximum number of steps per call of TensorFlow. Results do not change.
            See docs/guides/performance.md.
        hooks: Functions without arguments that return a hook or a list of hooks, for every training task:
            `tf.estimator.SessionRunHook` on the engine estimator, `tf.keras.callbacks.Callback` on keras and keras3.
            See docs/guides/model_fn.md.
    """

    max_steps: Annotated[int, Field(gt=0)] | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None
    steps_per_execution: Annotated[Any, AfterValidator(_steps)] = "auto"
    hooks: list[FunctionRef] = []

    def problems(self) -> Iterator[Problem]:
        if self.max_steps is not None and self.epochs is not None:
            yield Problem(
                ("epochs",),
                "the end of training is set twice.",
                f"max_steps {self.max_steps} and epochs {self.epochs:g}",
                "keep one of them.",
            )


class ExporterSection(Section):
    """A SavedModel written during the job.

    Fields:
        kind: `final` exports once at the end, `latest` after each evaluation, `best` when the metric improves.
        name: Folder below `export/`. null: the kind.
        exports_to_keep: Number of exports to keep. null: all. Not for `final`.
        metric: Metric that `best` compares. null: loss. NaN never counts as an improvement.
        mode: Direction of improvement for `best`. null: min.
    """

    kind: Literal["final", "latest", "best"]
    name: _Text | None = None
    exports_to_keep: _Count | None = None
    metric: _Text | None = None
    mode: Literal["min", "max"] | None = None

    @property
    def folder(self) -> str:
        """The folder's name below `export/`."""
        return self.name or self.kind

    def problems(self) -> Iterator[Problem]:
        fields = {"exports_to_keep": ("latest", "best"), "metric": ("best",), "mode": ("best",)}
        for field, kinds in fields.items():
            if getattr(self, field) is not None and self.kind not in kinds:
                yield Problem(
                    (field,),
                    f"an exporter of kind {self.kind!r} has no {field}.",
                    f"{field} {getattr(self, field)!r}; allowed for: {', '.join(kinds)}",
                    f"leave {field} out, or set kind: {kinds[-1]}.",
                    code="job/unknown-field",
                )


# Words in the names of metrics, and the direction in which such a metric improves.
_MODES: dict[str, Literal["min", "max"]] = {
    **dict.fromkeys(("loss", "error", "crossentropy", "mae", "mse", "rmse", "perplexity"), "min"),
    **dict.fromkeys(("accuracy", "auc", "precision", "recall", "f1", "r2"), "max"),
}


def direction_of(metric: str) -> Literal["min", "max"] | None:
    """Return whether a metric improves when it falls or rises, by the words in its name; None: unknown."""
    words = re.split("[^a-z0-9]+", metric.lower().replace("_", " "))
    return next((_MODES[word] for word in reversed(words) if word in _MODES), None)


class EarlyStoppingSection(Section):
    """End of training when the evaluations no longer improve. See docs/guides/evaluation.md.

    Fields:
        metric: Metric of the evaluations. NaN never counts as an improvement.
        mode: Direction of improvement. null: by the metric's name (`loss` and errors: min; accuracy, AUC, …: max).
        patience: Number of evaluations without improvement after which training stops.
        min_steps: Global step before which training does not stop.
        min_delta: Smallest change of the metric that counts as an improvement; a smaller one does not.
    """

    metric: _Text = "loss"
    mode: Literal["min", "max"] | None = None
    patience: _Count
    min_steps: Annotated[int, Field(ge=0)] = 0
    min_delta: Annotated[float, Field(ge=0)] = 0

    @property
    def direction(self) -> Literal["min", "max"] | None:
        """The direction of improvement; None: unknown."""
        return self.mode or direction_of(self.metric)

    def problems(self) -> Iterator[Problem]:
        if self.direction is None:
            yield Problem(
                ("mode",),
                "the direction in which this metric improves does not follow from its name.",
                f"metric {self.metric!r}",
                "set mode: min or mode: max.",
                code="job/missing-field",
            )


class EvalSection(Section):
    """When and how often to evaluate.

    Fields:
        steps: Batches per evaluation. null: all records.
        start_delay_secs: Seconds that an evaluator task waits before its first evaluation.
        throttle_secs: Minimum seconds between two evaluations. The final checkpoint is always evaluated.
        name: Results are written to `eval_NAME`. null: `eval`.
        during_training: The chief evaluates each checkpoint if there is no evaluator. A single process and a master do
            so anyway.
        exporters: SavedModels to write below `model_dir/export/`.
        early_stopping: Stops training when the metric of the evaluations has not improved. null: never.
    """

    steps: _Count | None = None
    start_delay_secs: _Seconds = 0
    throttle_secs: _Seconds = 0
    name: _Text | None = None
    during_training: bool = False
    exporters: list[ExporterSection] = []
    early_stopping: EarlyStoppingSection | None = None

    def problems(self) -> Iterator[Problem]:
        seen: set[str] = set()
        for i, exporter in enumerate(self.exporters):
            if exporter.folder in seen:
                yield Problem(
                    ("exporters", i),
                    f"two exporters write to the folder {exporter.folder!r}.",
                    f"the exporters {', '.join(e.folder for e in self.exporters)}",
                    "give each a different name.",
                )
            seen.add(exporter.folder)
