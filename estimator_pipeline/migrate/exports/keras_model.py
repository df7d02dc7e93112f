"""The Keras model of a job or program with its weights, inputs and outputs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving import saved_model_files as saved_models
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.functions import named_function

__all__ = ["ExportRequest", "Input", "KerasSide", "keras_side"]

_HEADS_OF_JOBS = {"one_hot": "multi_class"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """The exports, the model, its weights and the comparison of `migrate_export`."""

    source: str
    output: str
    head: str | None
    gives: str | None
    features: Any
    examples: str | None
    inputs: str | None
    records: int
    seed: int
    tolerance: str
    overwrite: bool
    allow_mismatch: bool
    job: str | None
    settings: tuple[str, ...]
    model: Any
    engine: str | None
    checkpoint: str | None
    mapping: Mapping[str, str]
    use_ema_weights: bool
    allow_leftover: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a model; its shape includes the batch dimension."""

    dtype: str
    shape: tuple[int | None, ...] | None
    sparse: bool = False

    def __str__(self) -> str:
        sizes = "any" if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{'sparse ' if self.sparse else ''}{self.dtype} [{sizes}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasSide:
    """The Keras model that replaces an old export.

    Attributes:
        model: The Keras model.
        description: Its name in messages.
        form: The form of its inputs: "tensor", "dictionary" or "list".
        inputs: Its inputs by name, in order; None: unknown.
        head: The head that the job names for its logits.
        defaults: Feature -> the job's default for an example without it; None: the feature is required.
        notes: Remarks for the user.
    """

    model: Any
    description: str
    form: str
    inputs: Mapping[str, Input] | None
    head: str | None = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def outputs(self, inputs: Any) -> tuple[dict[str, Any], bool]:
        """Call the model; return its outputs, and whether it is one unnamed output."""
        result = self.model(inputs, training=False)
        if isinstance(result, Mapping):
            return dict(result), False
        names = list(getattr(self.model, "output_names", None) or ())
        if isinstance(result, list | tuple):
            return dict(zip(names or [f"output_{i}" for i in range(len(result))], result, strict=True)), False
        return {names[0] if names else "output": result}, True

    def variables(self) -> list[Any]:
        """Return the model's variables as TensorFlow variables."""
        return [getattr(each, "value", each) if _is_keras_3(each) else each for each in self.model.variables]

    def last_activation(self) -> str | None:
        """Return the last layer's activation if it is softmax or sigmoid."""
        layers = getattr(self.model, "layers", None) or [None]
        name = getattr(getattr(layers[-1], "activation", None), "__name__", type(layers[-1]).__name__.lower())
        return name if name in ("softmax", "sigmoid") else None


def keras_side(request: ExportRequest) -> KerasSide:
    """Build the model and load its weights.

    Raises:
        ConfigError: The function returns no model, or the weights do not fit.
    """
    job = None
    if request.job is not None:
        from estimator_pipeline.job import load_job

        job = load_job(request.job, overrides=list(request.settings))
        engine = request.engine or ("keras3" if job.run.engine == "keras3" else "keras")
        job = load_job(request.job, overrides=[*request.settings, f"run.engine={engine}"])
        side = _of_job(job, request.job)
    else:
        if request.engine == "keras3":
            compat.use_keras_3()
        else:
            compat.install()
        side = _of_program(request.model)
    checkpoint = request.checkpoint or (None if job is None else job.run.model_dir)
    if checkpoint is None:
        return side
    notes = _load_weights(side.model, checkpoint, request)
    return dataclasses.replace(side, notes=(*side.notes, *notes))


def _of_job(job: Any, path: str) -> KerasSide:
    from estimator_pipeline.engines.jobs.build import build
    from estimator_pipeline.models.heads import head_of

    built = build(job)
    data, model = built.data, built.new_keras_model()
    if job.model.outputs:
        raise ConfigError(
            f"the job {path} has a model with several outputs",
            code="training/unsupported",
            found=", ".join(job.model.outputs),
            hint="name its .keras file with --model, or migrate one output at a time",
        )
    head = head_of(built.keras_options["loss"], built.keras_options.get("head"))
    form, inputs = _inputs_of(model)
    if inputs is None and data.features_spec is not None:
        form = "dictionary" if data.single_feature is None else "tensor"
        inputs = {
            name: Input(spec.dtype.name, (None, *spec.shape.as_list())) for name, spec in data.features_spec.items()
        }
    elif form == "tensor" and inputs and data.single_feature is not None and data.features_spec:
        # The model uses the name of a layer, the job the name of the feature.
        inputs = {next(iter(data.features_spec)): next(iter(inputs.values()))}
    defaults = {}
    if job.input.source == "tfrecord":
        defaults = {name: each.default for name, each in job.input.features.items() if each.kind == "fixed"}
    return KerasSide(
        model=model, description=f"the job {path}", form=form, inputs=inputs, head=_HEADS_OF_JOBS.get(head or "", head),
        defaults=defaults,
    )  # fmt: skip


def _of_program(reference: Any) -> KerasSide:
    from estimator_pipeline.models.keras_model import load_keras_model

    base = compat.tensorflow().keras.Model
    if isinstance(reference, str) and reference.endswith(".keras"):
        model, description = load_keras_model(reference), reference
    else:
        model, description = named_function(reference, option="--model")(), "the model"
    if not isinstance(model, base):
        raise ConfigError(
            f"--model: {reference} returns a {type(model).__name__}",
            code="model/bad-function",
            hint=f"return a tf.keras.Model of Keras {compat.keras_generation()}, or set --engine keras3 for Keras 3",
        )
    form, inputs = _inputs_of(model)
    return KerasSide(model=model, description=description, form=form, inputs=inputs)


def _inputs_of(model: Any) -> tuple[str, dict[str, Input] | None]:
    try:
        tensors = model.inputs
        structure = model.input if tensors else None
    except (AttributeError, ValueError):
        tensors = None
    if not tensors:
        return "dictionary", None
    if isinstance(structure, Mapping):
        return "dictionary", {name: _described(tensor) for name, tensor in structure.items()}
    names = getattr(model, "input_names", None) or [tensor.name for tensor in tensors]
    named = {name: _described(tensor) for name, tensor in zip(names, tensors, strict=True)}
    return ("list" if isinstance(structure, Sequence) else "tensor"), named


def _described(tensor: Any) -> Input:
    tf = compat.tensorflow()
    spec = getattr(tensor, "type_spec", None)
    sparse = isinstance(spec, tf.SparseTensorSpec) or getattr(tensor, "sparse", False) is True
    shape = tf.TensorShape(tensor.shape)
    return Input(tf.as_dtype(tensor.dtype).name, None if shape.rank is None else tuple(shape.as_list()), sparse)


def _is_keras_3(variable: Any) -> bool:
    return compat.keras_generation() == 3 and hasattr(variable, "path")


def _load_weights(model: Any, checkpoint: str, request: ExportRequest) -> list[str]:
    from estimator_pipeline.migrate.checkpoints import read as reading
    from estimator_pipeline.migrate.checkpoints.draft import Choices
    from estimator_pipeline.migrate.checkpoints.keras_files import state_of_file
    from estimator_pipeline.migrate.checkpoints.plan import plan
    from estimator_pipeline.migrate.checkpoints.targets import KerasTarget

    if reading.is_keras_file(checkpoint):
        state = state_of_file(checkpoint, model=request.model if isinstance(request.model, str) else None,
                              option="--model")  # fmt: skip
    elif os.path.exists(os.path.join(checkpoint, saved_models.FILE)):
        # An export stores its variables as a checkpoint.
        state = reading.read_state(os.path.join(checkpoint, "variables", "variables"))
    else:
        state = reading.read_state(reading.prefix_of(checkpoint))
    if getattr(model, "optimizer", None) is None:
        model.compile("sgd", "mse")
    target = KerasTarget(model, description="the model")
    bare = state.only_weights(averages=request.use_ema_weights)
    choices = Choices(
        mapping=request.mapping, allow_leftover=request.allow_leftover, drop_optimizer_state=True,
        use_ema_weights=request.use_ema_weights, step=0, may_initialize=False,
    )  # fmt: skip
    planned = plan(bare, target.state, choices, hyper={}, reverse=False)
    target.assign(planned.values)
    inferred = [row for row in planned.rows if row.target in planned.weights and row.how not in ("name", "mapping")]
    notes = [f"{row.target} <- {row.source} ({row.how})" for row in inferred]
    return [f"weights of {state.source}", *notes]
