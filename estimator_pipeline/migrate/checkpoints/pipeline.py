"""From what was asked for to the migrated checkpoint: the target of a job or a program, read, planned, written."""

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

__all__ = ["CheckpointRequest", "check", "in_a_process_of_its_own", "migrate", "needs_another_process"]

_GENERATION = {"keras": 2, "estimator": 2, "keras3": 3}
_SECS = 1800.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointRequest:
    """What is to be migrated where; see `estimator_pipeline.migrate.migrate_checkpoint`."""

    source: str
    to: str
    job: str | None
    settings: tuple[str, ...]
    model: Any
    estimator: Any
    input_fn: Any
    source_model: str | None
    output: str | None
    mapping_out: str | None
    overwrite: bool


def check(asked: CheckpointRequest) -> None:
    """Refuses what does not go together, before TensorFlow is imported.

    Raises:
        ConfigError: it does not.
    """
    if asked.to not in _GENERATION:
        raise ConfigError(
            f"the target {asked.to!r} is not known",
            code="argument/unknown-name",
            found="allowed: keras, keras3, estimator",
        )
    program = {"--model": asked.model, "--estimator": asked.estimator, "--input-fn": asked.input_fn}
    given = [name for name, value in program.items() if value is not None]
    if asked.job is not None:
        if given:
            raise ConfigError(
                f"{', '.join(given)} and the job file {asked.job} were both given",
                code="argument/conflict",
                hint="say the target once",
            )
        return
    if asked.settings:
        raise ConfigError(
            "--set changes a job file, and none was given",
            code="argument/not-applicable",
            hint="name the job file: --job JOB.yaml",
        )
    needed = ["--estimator", "--input-fn"] if asked.to == "estimator" else ["--model"]
    if given != needed:
        raise ConfigError(
            f"the target {asked.to} needs a job file (--job), or {' and '.join(needed)}",
            code="argument/missing",
            found=f"given: {', '.join(given) or 'none of them'}",
        )
    if asked.output is None:
        raise ConfigError(
            "where to write is not said",
            code="argument/missing",
            hint="--output, a folder or, for Keras, a .keras file",
        )
    if asked.to == "estimator" and asked.output.endswith((".keras", ".h5")):
        raise ConfigError(
            f"an Estimator reads no {asked.output}", code="argument/bad-value", hint="give a folder, its model_dir"
        )


def needs_another_process(to: str) -> bool:
    """Whether this process has the other Keras; one that has none yet is left without Keras 3."""
    decided = compat.status().installed
    return compat.keras_generation() != _GENERATION[to] if decided else to == "keras3"


def in_a_process_of_its_own(asked: CheckpointRequest, choices: Choices) -> dict[str, Any]:
    """Migrates in another process, and tells what `MigratedCheckpoint` is made of.

    Raises:
        ConfigError: what that process refuses.
        TaskFailedError: it failed.
    """
    for name, function in (("model", asked.model), ("estimator", asked.estimator), ("input_fn", asked.input_fn)):
        if callable(function):
            raise ConfigError(
                f"{name} is a function, and the target {asked.to} is made in a process of its own: this one has "
                "the other Keras",
                code="argument/not-applicable",
                hint=f"name it as text: {name}='file.py:function'",
            )
    told = json.dumps({"asked": dataclasses.asdict(asked), "choices": dataclasses.asdict(choices)})
    command = [sys.executable, "-m", "estimator_pipeline.migrate.checkpoints.subprocess_main"]
    # As this process found it, wherever it is started from.
    path = os.pathsep.join(one or os.getcwd() for one in sys.path)
    environ = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    environ.pop("TF_CONFIG", None)
    try:
        done = subprocess.run(command, input=told, env=environ, capture_output=True, text=True, timeout=_SECS)
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
    found: dict[str, Any] = answer["done"]
    return found


def migrate(asked: CheckpointRequest, choices: Choices) -> tuple[str, MigrationPlan, tuple[str, str]]:
    """Read, plans and write, in this process.

    Returns:
        The checkpoint that was read, what was done, the output and the mapping's file.
    """
    from estimator_pipeline.migrate.checkpoints import read as reading

    if asked.to == "keras3":
        compat.use_keras_3()
    else:
        compat.install()
    if reading.is_keras_file(asked.source):
        from estimator_pipeline.migrate.checkpoints.keras_files import state_of_file

        source, state = asked.source, state_of_file(asked.source, model=asked.source_model)
    else:
        source = reading.prefix_of(asked.source)
        state = reading.read_state(source)
    move = _to_estimator if asked.to == "estimator" else _to_keras
    return source, *move(asked, choices, source, state)


def _to_keras(
    asked: CheckpointRequest, choices: Choices, source: str, state: TrainingState
) -> tuple[MigrationPlan, tuple[str, str]]:
    from estimator_pipeline.engines.model_dir.layout import PREFIXES
    from estimator_pipeline.migrate.checkpoints import write as writing
    from estimator_pipeline.migrate.checkpoints.keras_files import save_file

    prefix = PREFIXES[asked.to] if asked.job is not None else "ckpt"
    target, output = _keras_target(asked)
    into_file = output.endswith((".keras", ".h5"))
    if not into_file:
        writing.check_folder(output, prefix=prefix, source=source, overwrite=asked.overwrite)
    elif not output.endswith(".keras") and not choices.drop_optimizer_state:
        raise ConfigError(
            f"{output} would hold weights alone: no slots, no step",
            code="argument/conflict",
            hint="give a .keras file or a folder; or say that they are not needed with --drop-optimizer-state",
        )
    found = plan(state, target.state, choices, hyper=target.hyper, reverse=False)
    found = dataclasses.replace(found, notes=(*found.notes, *_from_here_on(asked, state, target)))
    target.assign(found.values)
    if into_file:
        writing.to_file(output, lambda path: save_file(target.model, path), overwrite=asked.overwrite)
        return found, (output, _write_mapping(asked, found, f"{output}.mapping.yaml", reverse=False))
    with writing.own_folder(output) as temporary:
        manager = compat.tensorflow().train.CheckpointManager(
            target.checkpoint(of_engine=asked.job is not None), temporary, max_to_keep=None, checkpoint_name=prefix
        )
        written = manager.save(checkpoint_number=found.step)
        _verify(written, target.state, found, target.alike)
        placed = writing.into_folder(output, written, run=_run_of(source), told=_record(asked, source, found.step))
    return found, (placed, _write_mapping(asked, found, f"{placed}.mapping.yaml", reverse=False))


def _to_estimator(
    asked: CheckpointRequest, choices: Choices, source: str, state: TrainingState
) -> tuple[MigrationPlan, tuple[str, str]]:
    from estimator_pipeline.engines.model_dir.layout import PREFIXES
    from estimator_pipeline.migrate.checkpoints import write as writing

    target, output = _estimator_target(asked)
    writing.check_folder(output, prefix=PREFIXES["estimator"], source=source, overwrite=asked.overwrite)
    planned: list[tuple[TrainingState, MigrationPlan]] = []

    def values(first: TrainingState, hyper: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        found = plan(state, first, choices, hyper=hyper, reverse=state.kind != "name-based")
        planned.append((first, found))
        return found.values

    with writing.own_folder(output) as temporary:
        written = target.write(temporary, values)
        first, found = planned[0]
        _verify(written, first, found)
        placed = writing.into_folder(output, written, run=_run_of(source), told=_record(asked, source, found.step))
    reverse = state.kind != "name-based"
    return found, (placed, _write_mapping(asked, found, f"{placed}.mapping.yaml", reverse=reverse))


def _from_here_on(asked: CheckpointRequest, source: TrainingState, target: Any) -> list[str]:
    """Return what the target computes otherwise than what wrote the checkpoint, though its state is the same."""
    from estimator_pipeline.migrate.checkpoints.optimizer_slots import differences_of_stock
    from estimator_pipeline.models.optimizers import keras2 as keras_optimizers
    from estimator_pipeline.models.optimizers import keras3 as keras3_optimizers
    from estimator_pipeline.models.optimizers.spec import NAMES, Optimizer, optimizer_of

    why = []
    if asked.job is not None:
        if asked.to == "keras3":
            why.append(keras3_optimizers.differences(optimizer_of(_job(asked).model.optimizer.model_dump())))
    elif source.style == "v1" and target.state.style == "keras" and source.family in (*NAMES, "adadelta"):
        options = {"epsilon": 1e-8} if target.hyper.get("epsilon") == 1e-8 else {}
        if not keras_optimizers.is_legacy(target.model.optimizer):
            why.append(differences_of_stock(source.family, target.hyper))
        elif source.family != "momentum":
            why.append(keras_optimizers.differences(Optimizer(name=source.family, options=options)))
    notes = [f"the optimizer goes on from the same state with another arithmetic: {one}" for one in why if one]
    if asked.to == "keras3" and source.kind != "keras3" and any("moving_variance" in name for name in source.weights):
        notes.append("Keras 3 moves BatchNormalization's variance towards that of the batch, Keras 2 of the sample")
    return notes


def _record(asked: CheckpointRequest, source: str, step: int) -> dict[str, Any]:
    """Return what is written down of a migration, where its checkpoint is."""
    told: dict[str, Any] = {"source": source, "step": step}
    if asked.job is None:
        return told
    optimizer = _job(asked).model.optimizer
    return {**told, "optimizer": f"{optimizer.name} ({optimizer.api})"}


def _run_of(source: str) -> str:
    return os.path.dirname(source) or "."


def _verify(written: str, target: TrainingState, done: MigrationPlan, alike: frozenset[str] = frozenset()) -> None:
    """Read what was written, and hold it against what it was to be.

    Args:
        written: the checkpoint.
        target: what was there before it was given the values.
        done: them.
        alike: variables that share a name with others, and so stand in the file by their places in the program.

    Raises:
        TaskFailedError: it is something else.
    """
    from estimator_pipeline.migrate.checkpoints.read import read_state

    again = read_state(written)
    wrong = [f"step {sorted(set(again.steps.values()))}"] if set(again.steps.values()) != {done.step} else []
    pairs = [(target.weights[name], again.weights.get(name)) for name in target.weights]
    for weight, slots in target.slots.items():
        pairs += [(slots[slot], again.slots.get(weight, {}).get(slot)) for slot in slots]
    named = {id(found) for _, found in pairs if found is not None}
    entries = [*again.weights.values(), *(entry for slots in again.slots.values() for entry in slots.values())]
    nameless = [entry for entry in entries if id(entry) not in named]
    for entry, found in pairs:
        wanted = done.values.get(entry.given)
        if wanted is None:
            continue
        # What has the values is it, as far as the file tells; it is no other one as well.
        asked = nameless if found is None and entry.given in alike else [found]
        value = np.asarray(wanted).tobytes()
        same = next((one for one in asked if one is not None and one.fitted(entry.shape).tobytes() == value), None)
        if same is None:
            wrong.append(entry.given)
        elif same is not found:
            nameless = [one for one in nameless if one is not same]
    if wrong:
        raise TaskFailedError(
            f"the checkpoint {written} reads back otherwise than it was written",
            code="migrate/failed",
            found=", ".join(wrong[:8]),
        )


def _write_mapping(asked: CheckpointRequest, done: MigrationPlan, beside: str, *, reverse: bool) -> str:
    from estimator_pipeline.migrate.checkpoints.mapping_file import write_mapping

    path = asked.mapping_out or beside
    write_mapping(path, done.weights, reverse=reverse)
    return path


def _keras_target(asked: CheckpointRequest) -> tuple[Any, str]:
    from estimator_pipeline.migrate.checkpoints.targets import KerasTarget

    if asked.job is None:
        function = named_function(asked.model, option="--model")
        model = function()
        base = compat.tensorflow().keras.Model
        if not isinstance(model, base):
            raise ConfigError(
                f"--model: {getattr(function, '__name__', asked.model)} returns a {type(model).__name__}",
                code="model/bad-function",
                hint=f"return a compiled tf.keras.Model of Keras {compat.keras_generation()}",
            )
        return KerasTarget(model, what="the model"), str(asked.output)
    from estimator_pipeline.engines.jobs import common, runner
    from estimator_pipeline.engines.jobs import keras as keras_job
    from estimator_pipeline.models.keras3_variables import built_as_in_a_new_process

    job = _job(asked)
    tf = runner.prepare_process(job)
    data = common.job_inputs(job)
    if job.run.seed is not None:
        # What begins anew begins as in a run from the start.
        tf.keras.utils.set_random_seed(job.run.seed)
    build = keras_job.job_keras_model(job, data)
    model = built_as_in_a_new_process(build, data.train_input_fn)
    return KerasTarget(model, what=f"the job {asked.job}"), asked.output or job.run.model_dir


def _estimator_target(asked: CheckpointRequest) -> tuple[Any, str]:
    from estimator_pipeline.migrate.checkpoints.targets import EstimatorTarget

    tf: Any = compat.tensorflow()
    if asked.job is None:
        function = named_function(asked.estimator, option="--estimator")
        estimator = function()
        # That of tf.estimator is one of these.
        if not isinstance(estimator, tf.compat.v1.estimator.Estimator):
            raise ConfigError(
                f"--estimator: {getattr(function, '__name__', asked.estimator)} returns a {type(estimator).__name__}",
                code="model/bad-function",
                hint="return a tf.estimator.Estimator",
            )
        input_fn = named_function(asked.input_fn, option="--input-fn")
        return EstimatorTarget(estimator=estimator, input_fn=input_fn, what="the Estimator"), str(asked.output)
    from estimator_pipeline.distribute.run_config import build_run_config
    from estimator_pipeline.engines.jobs import common, runner

    job = _job(asked)
    runner.prepare_process(job)
    data = common.job_inputs(job)
    output = asked.output or job.run.model_dir
    config = build_run_config(output, seed=job.run.seed, environ={})
    estimator = tf.estimator.Estimator(common.job_model_fn(job, data), config=config, params=dict(job.model.params))
    rate = job.model.optimizer.model_dump()["learning_rate"]
    hyper: dict[str, Any] = {"learning_rate": rate if isinstance(rate, float | int) else {}}
    what = f"the job {asked.job}"
    return EstimatorTarget(estimator=estimator, input_fn=data.train_input_fn, what=what, hyper=hyper), output


def _job(asked: CheckpointRequest) -> Any:
    from estimator_pipeline.job import load_job

    return load_job(str(asked.job), overrides=[*asked.settings, f"run.engine={asked.to}"])
