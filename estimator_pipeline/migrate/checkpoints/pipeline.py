"""The steps of a checkpoint migration: check the request, build the target, read, plan, write and verify."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.migrate.checkpoints.draft import Choices, MigrationPlan
from estimator_pipeline.migrate.checkpoints.plan import plan
from estimator_pipeline.migrate.checkpoints.state import TrainingState
from estimator_pipeline.migrate.functions import named_function

__all__ = ["CheckpointRequest", "check", "migrate_in_subprocess", "migrate", "needs_subprocess"]

_GENERATION = {"keras": 2, "estimator": 2, "keras3": 3}
_SECS = 1800.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointRequest:
    """The source, the target and the output of `migrate_checkpoint`."""

    source: str
    to: str
    job: str | None
    settings: tuple[str, ...]
    model: Any
    estimator: Any
    input_fn: Any
    source_model: str | None
    output: str | None
    overwrite: bool


def check(request: CheckpointRequest) -> None:
    """Check the combination of arguments before TensorFlow is imported.

    Raises:
        ConfigError: Arguments are missing or conflict.
    """
    if request.to not in _GENERATION:
        raise ConfigError(
            f"unknown target {request.to!r}",
            code="argument/unknown-name",
            found="allowed: keras, keras3, estimator",
        )
    program = {"--model": request.model, "--estimator": request.estimator, "--input-fn": request.input_fn}
    options = [name for name, value in program.items() if value is not None]
    if request.job is not None:
        if options:
            raise ConfigError(
                f"{', '.join(options)} and the job file {request.job} are both set",
                code="argument/conflict",
                hint="set only one of them",
            )
        return
    if request.settings:
        raise ConfigError(
            "--set requires a job file",
            code="argument/not-applicable",
            hint="name the job file: --job JOB.yaml",
        )
    needed = ["--estimator", "--input-fn"] if request.to == "estimator" else ["--model"]
    if options != needed:
        raise ConfigError(
            f"the target {request.to} requires a job file (--job), or {' and '.join(needed)}",
            code="argument/missing",
            found=", ".join(options) or "none of them",
        )
    if request.output is None:
        raise ConfigError(
            "the output is missing",
            code="argument/missing",
            hint="set --output to a folder or, for Keras, a .keras file",
        )
    if request.to == "estimator" and request.output.endswith((".keras", ".h5")):
        raise ConfigError(
            f"an Estimator cannot read {request.output}",
            code="argument/bad-value",
            hint="give a folder, the model_dir of the Estimator",
        )


def needs_subprocess(to: str) -> bool:
    """Return whether this process has the other Keras, or would have to load Keras 3."""
    decided = compat.status().installed
    return compat.keras_generation() != _GENERATION[to] if decided else to == "keras3"


def migrate_in_subprocess(request: CheckpointRequest, choices: Choices) -> dict[str, Any]:
    """Migrate in a subprocess, and return the values of `MigratedCheckpoint`.

    Raises:
        ConfigError: The error that the subprocess reported.
        TaskFailedError: The subprocess failed.
    """
    for name, function in (("model", request.model), ("estimator", request.estimator), ("input_fn", request.input_fn)):
        if callable(function):
            raise ConfigError(
                f"{name} is a function, but the target {request.to} requires a subprocess, because this process has "
                "the other Keras",
                code="argument/not-applicable",
                hint=f"name it as text: {name}='file.py:function'",
            )
    options = dataclasses.asdict(choices)
    del options["may_initialize"]  # `migrate export` never comes here
    document = json.dumps({"request": dataclasses.asdict(request), "choices": options})
    command = [sys.executable, "-m", "estimator_pipeline.migrate.checkpoints.subprocess_main"]
    # The import path of this process, independent of the working directory.
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    environ = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    environ.pop("TF_CONFIG", None)
    try:
        done = subprocess.run(command, input=document, env=environ, capture_output=True, text=True, timeout=_SECS)
    except subprocess.TimeoutExpired as error:
        raise TaskFailedError(
            f"the checkpoint was not migrated within {_SECS:.0f} s", code="cluster/timeout"
        ) from error
    if done.returncode != 0:
        raise TaskFailedError(
            "the checkpoint could not be migrated", code="migrate/failed", found=done.stderr.strip()[-2000:]
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise ConfigError.from_dict(answer["error"])
    result: dict[str, Any] = answer["done"]
    return result


def migrate(request: CheckpointRequest, choices: Choices) -> tuple[str, MigrationPlan, tuple[str, str]]:
    """Read, plan and write in this process.

    Returns:
        The checkpoint that was read, the plan, and the output with its mapping file.
    """
    from estimator_pipeline.migrate.checkpoints import read as reading

    if request.to == "keras3":
        compat.use_keras_3()
    else:
        compat.install()
    if reading.is_keras_file(request.source):
        from estimator_pipeline.migrate.checkpoints.keras_files import state_of_file

        source, state = request.source, state_of_file(request.source, model=request.source_model)
    else:
        source = reading.prefix_of(request.source)
        state = reading.read_state(source)
    move = _to_estimator if request.to == "estimator" else _to_keras
    return source, *move(request, choices, source, state)


def _to_keras(
    request: CheckpointRequest, choices: Choices, source: str, state: TrainingState
) -> tuple[MigrationPlan, tuple[str, str]]:
    from estimator_pipeline.engines.model_dir.layout import PREFIXES
    from estimator_pipeline.migrate.checkpoints import write as writing
    from estimator_pipeline.migrate.checkpoints.keras_files import save_file

    prefix = PREFIXES[request.to] if request.job is not None else "ckpt"
    target, output = _keras_target(request)
    into_file = output.endswith((".keras", ".h5"))
    if not into_file:
        writing.check_folder(output, prefix=prefix, source=source, overwrite=request.overwrite)
    elif not output.endswith(".keras") and not choices.drop_optimizer_state:
        raise ConfigError(
            f"{output} would contain only weights, without slots and step",
            code="argument/conflict",
            hint="give a .keras file or a folder; or add --drop-optimizer-state if they are not needed",
        )
    planned = plan(state, target.state, choices, hyper=target.hyper, reverse=False)
    planned = dataclasses.replace(planned, notes=(*planned.notes, *_future_differences(request, state, target)))
    target.assign(planned.values)
    if into_file:
        writing.to_file(output, lambda path: save_file(target.model, path), overwrite=request.overwrite)
        return planned, (output, writing.write_mapping(output, planned.weights, reverse=False))
    with writing.temporary_folder(output) as temporary:
        manager = compat.tensorflow().train.CheckpointManager(
            target.checkpoint(of_engine=request.job is not None), temporary, max_to_keep=None, checkpoint_name=prefix
        )
        written = manager.save(checkpoint_number=planned.step)
        _verify(written, target.state, planned, target.ambiguous)
        placed = writing.into_folder(
            output, written, run=_run_of(source), record=_record(request, source, planned.step)
        )
    return planned, (placed, writing.write_mapping(placed, planned.weights, reverse=False))


def _to_estimator(
    request: CheckpointRequest, choices: Choices, source: str, state: TrainingState
) -> tuple[MigrationPlan, tuple[str, str]]:
    from estimator_pipeline.engines.model_dir.layout import PREFIXES
    from estimator_pipeline.migrate.checkpoints import write as writing

    target, output = _estimator_target(request)
    writing.check_folder(output, prefix=PREFIXES["estimator"], source=source, overwrite=request.overwrite)
    plans: list[tuple[TrainingState, MigrationPlan]] = []

    def values(first: TrainingState, hyper: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        planned = plan(state, first, choices, hyper=hyper, reverse=state.kind != "name-based")
        plans.append((first, planned))
        return planned.values

    with writing.temporary_folder(output) as temporary:
        written = target.write(temporary, values)
        first, planned = plans[0]
        _verify(written, first, planned)
        placed = writing.into_folder(
            output, written, run=_run_of(source), record=_record(request, source, planned.step)
        )
    return planned, (placed, writing.write_mapping(placed, planned.weights, reverse=state.kind != "name-based"))


def _future_differences(request: CheckpointRequest, source: TrainingState, target: Any) -> list[str]:
    """Report how the target computes differently from the same state."""
    from estimator_pipeline.migrate.checkpoints.optimizer_slots import differences_of_stock
    from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
    from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers
    from estimator_pipeline.models.optimizers.spec import NAMES, Optimizer, optimizer_of

    why = []
    if request.job is not None:
        if request.to == "keras3":
            why.append(keras3_optimizers.differences(optimizer_of(_job(request).model.optimizer.model_dump())))
    elif source.style == "v1" and target.state.style == "keras" and source.family in (*NAMES, "adadelta"):
        options = {"epsilon": 1e-8} if target.hyper.get("epsilon") == 1e-8 else {}
        if not keras_optimizers.is_legacy(target.model.optimizer):
            why.append(differences_of_stock(source.family, target.hyper))
        elif source.family != "momentum":
            why.append(keras_optimizers.differences(Optimizer(name=source.family, options=options)))
    notes = [f"the optimizer has the same state but computes differently: {reason}" for reason in why if reason]
    if request.to == "keras3" and source.kind != "keras3" and any("moving_variance" in name for name in source.weights):
        notes.append("BatchNormalization in Keras 3 averages the batch variance, in Keras 2 the sample variance")
    return notes


def _record(request: CheckpointRequest, source: str, step: int) -> dict[str, Any]:
    """Return the record of a migration, for the folder of its checkpoint."""
    record: dict[str, Any] = {"source": source, "step": step}
    if request.job is None:
        return record
    optimizer = _job(request).model.optimizer
    return {**record, "optimizer": f"{optimizer.name} ({optimizer.api})"}


def _run_of(source: str) -> str:
    return os.path.dirname(source) or "."


def _verify(written: str, target: TrainingState, done: MigrationPlan, ambiguous: frozenset[str] = frozenset()) -> None:
    """Read the written checkpoint and compare it with the plan.

    Args:
        written: The checkpoint.
        target: The initial state of the target.
        done: The plan.
        ambiguous: Variables that share a name with others; the file stores them by their paths in the object graph.

    Raises:
        TaskFailedError: The checkpoint differs from the plan.
    """
    from estimator_pipeline.migrate.checkpoints.read import read_state

    again = read_state(written)
    wrong = [f"step {sorted(set(again.steps.values()))}"] if set(again.steps.values()) != {done.step} else []
    pairs = [(target.weights[name], again.weights.get(name)) for name in target.weights]
    for weight, slots in target.slots.items():
        pairs += [(slots[slot], again.slots.get(weight, {}).get(slot)) for slot in slots]
    named = {id(saved) for _, saved in pairs if saved is not None}
    entries = [*again.weights.values(), *(entry for slots in again.slots.values() for entry in slots.values())]
    nameless = [entry for entry in entries if id(entry) not in named]
    for entry, saved in pairs:
        wanted = done.values.get(entry.name)
        if wanted is None:
            continue
        # Variables that share a name are identified by their values; each saved variable counts once.
        candidates = nameless if saved is None and entry.name in ambiguous else [saved]
        value = np.asarray(wanted).tobytes()
        same = next((c for c in candidates if c is not None and c.fitted(entry.shape).tobytes() == value), None)
        if same is None:
            wrong.append(entry.name)
        elif same is not saved:
            nameless = [candidate for candidate in nameless if candidate is not same]
    if wrong:
        raise TaskFailedError(
            f"the checkpoint {written} does not contain the values that were written",
            code="migrate/failed",
            found=", ".join(wrong[:8]),
        )


def _keras_target(request: CheckpointRequest) -> tuple[Any, str]:
    from estimator_pipeline.migrate.checkpoints.targets import KerasTarget

    if request.job is None:
        function = named_function(request.model, option="--model")
        model = function()
        base = compat.tensorflow().keras.Model
        if not isinstance(model, base):
            raise ConfigError(
                f"--model: {getattr(function, '__name__', request.model)} returns a {type(model).__name__}",
                code="model/bad-function",
                hint=f"return a compiled tf.keras.Model of Keras {compat.keras_generation()}",
            )
        return KerasTarget(model, description="the model"), str(request.output)
    from estimator_pipeline.engines.jobs.build import build

    job = _job(request)
    built = build(job)
    if job.run.seed is not None:
        # Initial values are those of a new run with this seed.
        compat.tensorflow().keras.utils.set_random_seed(job.run.seed)
    model = built.new_keras_model()
    return KerasTarget(model, description=f"the job {request.job}"), request.output or job.run.model_dir


def _estimator_target(request: CheckpointRequest) -> tuple[Any, str]:
    from estimator_pipeline.migrate.checkpoints.targets import EstimatorTarget

    tf: Any = compat.tensorflow()
    if request.job is None:
        function = named_function(request.estimator, option="--estimator")
        estimator = function()
        # tf.estimator.Estimator is a subclass.
        if not isinstance(estimator, tf.compat.v1.estimator.Estimator):
            raise ConfigError(
                f"--estimator: {getattr(function, '__name__', request.estimator)} returns a {type(estimator).__name__}",
                code="model/bad-function",
                hint="return a tf.estimator.Estimator",
            )
        input_fn = named_function(request.input_fn, option="--input-fn")
        return EstimatorTarget(estimator=estimator, input_fn=input_fn, description="the Estimator"), str(request.output)
    from estimator_pipeline.distribute.run_config import build_run_config
    from estimator_pipeline.engines.jobs.build import build

    job = _job(request)
    built = build(job)
    output = request.output or job.run.model_dir
    estimator = built.estimator(build_run_config(output, seed=job.run.seed, environ={}))
    rate = job.model.optimizer.model_dump()["learning_rate"]
    hyper: dict[str, Any] = {"learning_rate": rate if isinstance(rate, float | int) else {}}
    job_name = f"the job {request.job}"
    return EstimatorTarget(
        estimator=estimator, input_fn=built.data.train_input_fn, description=job_name, hyper=hyper
    ), output


def _job(request: CheckpointRequest) -> Any:
    from estimator_pipeline.job import load_job

    return load_job(str(request.job), overrides=[*request.settings, f"run.engine={request.to}"])
