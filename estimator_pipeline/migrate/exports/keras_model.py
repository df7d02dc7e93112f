"""The Keras side of an export: the model of a job or a program, with its weights, and what it takes and gives."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving import saved_model_files as saved_models
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.state import TrainingState
from estimator_pipeline.migrate.functions import named_function

__all__ = ["Input", "KerasSide", "ModelRequest", "keras_side"]

_HEADS_OF_JOBS = {"one_hot": "multi_class"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """Which model, with which weights; see `estimator_pipeline.migrate.migrate_export`."""

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
    """An input of a model: its type by name, its shape with the batch, whether it takes a sparse tensor."""

    dtype: str
    shape: tuple[int | None, ...] | None
    sparse: bool = False

    def __str__(self) -> str:
        sizes = "any" if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{'sparse ' if self.sparse else ''}{self.dtype} [{sizes}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasSide:
    """A model that is to answer as an old export does.

    Attributes:
        model: the Keras model.
        what: how messages call it.
        form: how it takes its inputs: "tensor", "dictionary" or "list".
        inputs: by name, in order; None: not known.
        head: what a job says its logits mean.
        defaults: feature -> what a job says that a record without it has; None: there must be one.
        notes: what a person should know of it.
    """

    model: Any
    what: str
    form: str
    inputs: Mapping[str, Input] | None
    head: str | None = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def outputs(self, given: Any) -> tuple[dict[str, Any], bool]:
        """Return what the model gives, by name, and whether it is one tensor without a name that a program gave it."""
        made = self.model(given, training=False)
        if isinstance(made, Mapping):
            return dict(made), False
        names = list(getattr(self.model, "output_names", None) or ())
        if isinstance(made, list | tuple):
            return dict(zip(names or [f"output_{i}" for i in range(len(made))], made, strict=True)), False
        return {names[0] if names else "output": made}, True

    def variables(self) -> list[Any]:
        """Return the model's variables, as TensorFlow saves them."""
        return [getattr(one, "value", one) if _is_keras_3(one) else one for one in self.model.variables]

    def last_activation(self) -> str | None:
        """Return the name of the last layer's activation, where it has one that makes probabilities of logits."""
        layers = getattr(self.model, "layers", None) or [None]
        name = getattr(getattr(layers[-1], "activation", None), "__name__", type(layers[-1]).__name__.lower())
        return name if name in ("softmax", "sigmoid") else None


def keras_side(request: ModelRequest) -> KerasSide:
    """Make the model, with its weights.

    Raises:
        ConfigError: there is none, or its weights do not fit.
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
    notes = _give_weights(side.model, checkpoint, request)
    return dataclasses.replace(side, notes=(*side.notes, *notes))


def _of_job(job: Any, path: str) -> KerasSide:
    from estimator_pipeline.engines.jobs import common, runner
    from estimator_pipeline.engines.jobs import keras as keras_job
    from estimator_pipeline.models.heads import head_of
    from estimator_pipeline.models.keras3_variables import built_as_in_a_new_process

    runner.prepare_process(job)
    data = common.job_inputs(job)
    build = keras_job.job_keras_model(job, data)
    model = built_as_in_a_new_process(build, data.train_input_fn)
    if job.model.outputs:
        raise ConfigError(
            f"the job {path} has a model of several outputs",
            code="training/unsupported",
            found=", ".join(job.model.outputs),
            hint="name its .keras file by --model, or move one output at a time",
        )
    head = head_of(build.keywords["loss"], build.keywords.get("head"))
    form, inputs = _inputs_of(model)
    if inputs is None and data.features_spec is not None:
        form = "dictionary" if data.single_feature is None else "tensor"
        inputs = {
            name: Input(spec.dtype.name, (None, *spec.shape.as_list())) for name, spec in data.features_spec.items()
        }
    elif form == "tensor" and inputs and data.single_feature is not None and data.features_spec:
        # The model's own name for it is a layer's; the records' is what the job says.
        inputs = {next(iter(data.features_spec)): next(iter(inputs.values()))}
    defaults = {}
    if job.input.source == "tfrecord":
        defaults = {name: each.default for name, each in job.input.features.items() if each.kind == "fixed"}
    return KerasSide(
        model=model, what=f"the job {path}", form=form, inputs=inputs, head=_HEADS_OF_JOBS.get(head or "", head),
        defaults=defaults,
    )  # fmt: skip


def _of_program(reference: Any) -> KerasSide:
    from estimator_pipeline.models.keras_model import load_keras_model

    base = compat.tensorflow().keras.Model
    if isinstance(reference, str) and reference.endswith(".keras"):
        model, what = load_keras_model(reference), reference
    else:
        model, what = named_function(reference, option="--model")(), "the model"
    if not isinstance(model, base):
        raise ConfigError(
            f"--model: {reference} returns a {type(model).__name__}",
            code="model/bad-function",
            hint=f"return a tf.keras.Model of Keras {compat.keras_generation()}; --engine keras3 for Keras 3",
        )
    form, inputs = _inputs_of(model)
    return KerasSide(model=model, what=what, form=form, inputs=inputs)


def _inputs_of(model: Any) -> tuple[str, dict[str, Input] | None]:
    try:
        tensors = model.inputs
        given = model.input if tensors else None
    except (AttributeError, ValueError):
        tensors = None
    if not tensors:
        return "dictionary", None
    if isinstance(given, Mapping):
        return "dictionary", {name: _described(tensor) for name, tensor in given.items()}
    names = getattr(model, "input_names", None) or [tensor.name for tensor in tensors]
    named = {name: _described(tensor) for name, tensor in zip(names, tensors, strict=True)}
    return ("list" if isinstance(given, Sequence) else "tensor"), named


def _described(tensor: Any) -> Input:
    tf = compat.tensorflow()
    spec = getattr(tensor, "type_spec", None)
    sparse = isinstance(spec, tf.SparseTensorSpec) or getattr(tensor, "sparse", False) is True
    shape = tf.TensorShape(tensor.shape)
    return Input(tf.as_dtype(tensor.dtype).name, None if shape.rank is None else tuple(shape.as_list()), sparse)


def _is_keras_3(variable: Any) -> bool:
    return compat.keras_generation() == 3 and hasattr(variable, "path")


def _give_weights(model: Any, checkpoint: str, request: ModelRequest) -> list[str]:
    from estimator_pipeline.migrate.checkpoints import read as reading
    from estimator_pipeline.migrate.checkpoints.draft import Choices
    from estimator_pipeline.migrate.checkpoints.keras_files import state_of_file
    from estimator_pipeline.migrate.checkpoints.plan import plan
    from estimator_pipeline.migrate.checkpoints.targets import KerasTarget

    if reading.is_keras_file(checkpoint):
        state = state_of_file(checkpoint, model=request.model if isinstance(request.model, str) else None,
                              option="--model")  # fmt: skip
    elif os.path.exists(os.path.join(checkpoint, saved_models.FILE)):
        # The variables of an export are a checkpoint like any other.
        state = reading.read_state(os.path.join(checkpoint, "variables", "variables"))
    else:
        state = reading.read_state(reading.prefix_of(checkpoint))
    if getattr(model, "optimizer", None) is None:
        model.compile("sgd", "mse")
    target = KerasTarget(model, description="the model")
    # An export has weights alone.
    bare = TrainingState(
        source=state.source, kind=state.kind, steps={}, weights=state.weights, slots={}, settings={},
        averages=state.averages if request.use_ema_weights else {},
    )  # fmt: skip
    choices = Choices(
        mapping=request.mapping, allow_leftover=request.allow_leftover, drop_optimizer_state=True,
        use_ema_weights=request.use_ema_weights, step=0, may_initialize=False,
    )  # fmt: skip
    found = plan(bare, target.state, choices, hyper={}, reverse=False)
    target.assign(found.values)
    by_shape = [row for row in found.rows if row.target in found.weights and row.how not in ("name", "mapping")]
    notes = [f"{row.target} <- {row.source} ({row.how})" for row in by_shape]
    return [f"weights of {state.source}", *notes]
