"""The same job on two engines, from the same values on the same records, compared step by step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline import launch
from estimator_pipeline.errors import ConfigError, DivergedError, PipelineError, PreemptedError, TaskFailedError
from estimator_pipeline.job import ENGINE_NAMES, Job, dump_job, load_job
from estimator_pipeline.job.arguments import check_count, check_seconds
from estimator_pipeline.job.loading import JOB_FILE
from estimator_pipeline.job.tolerances import Tolerances
from estimator_pipeline.launch.local.run import planned_cluster
from estimator_pipeline.parity import folders
from estimator_pipeline.parity import known_differences as known
from estimator_pipeline.parity.comparison import compare_records
from estimator_pipeline.parity.diagnosis.diagnose import Facts
from estimator_pipeline.parity.export_answers import EXPORT
from estimator_pipeline.parity.jobs import default_tolerances as defaults
from estimator_pipeline.parity.jobs.metadata import about
from estimator_pipeline.parity.result import ENGINES, Parity
from estimator_pipeline.parity.step_records import StepReader, initial_of, read_arrays
from estimator_pipeline.utils.arrays import compare

__all__ = ["run_parity", "weighed_alike"]

# The operating system accepts no longer waits; about eleven days.
_LONGEST_WAIT = 1e6


def run_parity(
    path: str | Path,
    *,
    engines: Sequence[str] = ENGINES,
    settings: Sequence[str] = (),
    workers: int | None = None,
    steps: int | None = None,
    tolerances: Any = None,
    folder: str | os.PathLike[str] | None = None,
    view: Any = None,
    timeout: float | None = None,
) -> Parity:
    """Run a job file on two engines and compare them.

    Args:
        path: the job file.
        engines: names of two different engines, as in `run.engine`; the first starts from the values of the second.
        settings: changes to the job file, as `--set` takes them.
        workers: number of training tasks; None: as in the file. Evaluator and parameter servers are left out.
        steps: number of training steps, 1 or more; None: as in the job's section `parity`.
        tolerances: allowed differences, see `Tolerances.of`; None: as in that section.
        folder: folder of the runs and their records; a new temporary one by default. Empty folders that the
            comparison created are removed.
        view: shows the runs; None shows nothing.
        timeout: seconds for each run, above 0; None for no limit.

    Raises:
        ConfigError: an invalid argument or folder; a job that cannot be compared, or that an engine rejects.
        TaskFailedError: one of the runs failed; the message has the end of its log. Its exit code is that of the run:
            3 if it diverged, 130 if the user stopped it.
    """
    engines = _two(engines)
    steps, workers = check_count(steps, "steps"), check_count(workers, "workers")
    timeout = check_seconds(timeout, "timeout")
    plain = load_job(path, overrides=list(settings))
    steps = plain.parity.steps if steps is None else steps
    if tolerances is None:
        written = plain.parity.tolerances
        tolerances = {
            name: tolerance if isinstance(tolerance, str) else tolerance.model_dump()
            for name, tolerance in written.items()
        }
    Tolerances.of(tolerances)  # rejected before anything is run
    changes = _changes(plain, settings, workers=workers, steps=steps)
    with folders.runs(folder, option="--folder", engines=engines) as base:
        # Both, before either is trained.
        jobs = {
            engine: load_job(
                path, overrides=[*changes, f"run.engine={engine}", f"run.model_dir={base / engine / 'model'}"]
            )
            for engine in engines
        }
        return _compared(
            jobs, path, engines=engines, settings=settings, steps=steps, tolerances=tolerances, base=base,
            view=view, timeout=timeout,
        )  # fmt: skip


def _two(engines: Sequence[str]) -> tuple[str, str]:
    named = [name for name in engines if name]
    if len(named) != 2 or len(engines) != 2:
        raise ConfigError(
            "parity compares two engines, and two must be named",
            code="argument/missing",
            found=f"named: {', '.join(named) or 'none'}; engines: {', '.join(ENGINE_NAMES)}",
            hint="name two, with a comma between: --engines keras,keras3",
        )
    if unknown := [name for name in engines if name not in ENGINE_NAMES]:
        raise ConfigError(
            f"the engines {', '.join(engines)} are not both known",
            code="argument/unknown-name",
            found=f"not known: {', '.join(map(repr, unknown))}; engines: {', '.join(ENGINE_NAMES)}",
            hint="name two, with a comma between: --engines keras,keras3",
        )
    if engines[0] == engines[1]:
        raise ConfigError(
            f"the engine {engines[0]} cannot be compared with itself", code="argument/conflict", hint="name two engines"
        )
    return engines[0], engines[1]


def _compared(
    jobs: Mapping[str, Job], path: Any, *, engines: tuple[str, str], settings: Sequence[str], steps: int,
    tolerances: Any, base: Path, view: Any, timeout: float | None,
) -> Parity:  # fmt: skip
    """Run both engines and compare their records."""
    metrics: dict[str, Mapping[str, Any]] = {}
    # The second engine runs first: the other one starts from its initial values.
    for engine in reversed(engines):
        job = jobs[engine]
        start = [] if engine == engines[1] else ["--start", str(base / engines[1] / "record")]
        try:
            metrics[engine] = _run(job, folder=base / engine, more=start, view=view, timeout=timeout)
        except (ConfigError, TaskFailedError):
            if engine == engines[1] or not _other_variables(base, engines):
                raise
            allowed = Tolerances.of(tolerances)
            where = f"its logs: {base / engine / 'logs'}"
            notes = (f"{engine} was not trained, because it cannot start from the other's values: {where}",)
            ran = about(path, job, engines=engines, settings=settings, tolerances=allowed)
            none: dict[str, Mapping[str, Any]] = {name: {} for name in engines}
            return compare_records(base, engines=engines, metrics=none, tolerances=allowed, notes=notes, about=ran)
    exported, answers = _answers(base, engines, timeout=timeout)
    allowed = Tolerances.of(tolerances, defaults=_defaults(job, base, engines))
    local = job.run.devices_per_task or 1
    options = _options(job)
    facts = Facts(
        replicas=local * job.cluster.num_training_tasks,
        batches_per_step=local,
        clip_norm=job.model.clip_norm,
        losses={name: (pair[0], pair[1]) for name, pair in exported["losses"].items()},
        options=(options, options),
    )
    by_nature = known.of_job(job, engines=engines, random=(exported["random"], exported["random"]))
    ran = about(path, job, engines=engines, settings=settings, tolerances=allowed)
    return compare_records(
        base,
        engines=engines,
        metrics=weighed_alike(metrics),
        finals=metrics,
        tolerances=allowed,
        facts=facts,
        answers=answers,
        notes=tuple(exported["notes"]),
        by_nature=tuple(by_nature),
        steps=steps,
        about=ran,
    )


def weighed_alike(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the metrics that mean the same in both engines.

    Estimator's `loss` is a mean of batch means, which gives a small last batch too much weight; `average_loss`, where
    it exists, is the mean over all records, as Keras's `loss` is.
    """
    weighed = all("average_loss" in values for values in metrics.values())
    return {
        engine: {name: value for name, value in values.items() if name != "loss" or not weighed}
        for engine, values in metrics.items()
    }


def _options(job: Job) -> dict[str, Any]:
    """Return the options of the job's optimizer, by Keras's names."""
    optimizer = job.model.optimizer
    kind = {"nesterov": "momentum", "adamw": "adam"}.get(optimizer.name, optimizer.name)
    options = {_OPTIONS.get(name, name): value for name, value in optimizer.options.items()}
    options = {**_BY_DEFAULT.get(kind, {}), **({"nesterov": True} if optimizer.name == "nesterov" else {}), **options}
    return {"kind": kind, **{name: value for name, value in options.items() if isinstance(value, int | float)}}


# The name of an option in tf.compat.v1.train -> Keras's name.
_OPTIONS = {"beta1": "beta_1", "beta2": "beta_2", "decay": "rho"}
# Default options that are needed to compute a gradient from a slot.
_BY_DEFAULT = {"momentum": {"momentum": 0.9}, "adam": {"beta_1": 0.9, "beta_2": 0.999}}


def _other_variables(base: Path, engines: tuple[str, str]) -> bool:
    """Whether both have recorded initial values, and the variables differ."""
    try:
        starts = [initial_of(base / engine / "record") for engine in engines]
    except ConfigError:
        return False
    return not compare(*starts).alike


def _defaults(job: Job, base: Path, engines: tuple[str, str]) -> Mapping[str, Any]:
    variables = initial_of(base / engines[0] / "record")
    environments = [StepReader(base / engine / "record").environment() for engine in engines]
    seen = [device for facts in environments for device in facts.get("devices", ())]
    return defaults.of_job(job, engines=engines, variables=variables, devices=seen)


def _job_file(folder: Path) -> Path:
    """Return the resolved job in an engine's folder."""
    return folder / "logs" / JOB_FILE


def _answers(base: Path, engines: tuple[str, str], *, timeout: float | None) -> tuple[Any, Any]:
    """Return metadata and the outputs of both exports, from a process that loads them."""
    # That process needs Keras 2, also for the layers of the job.
    with_keras_2 = next(engine for engine in reversed(engines) if engine != "keras3")
    command = [sys.executable, "-m", "estimator_pipeline.parity.export_answers", str(base), ",".join(engines)]
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    try:
        done = subprocess.run(
            [*command, str(_job_file(base / with_keras_2))],
            env={**environ, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=None if timeout is None else min(timeout, _LONGEST_WAIT),
        )
    except subprocess.TimeoutExpired as error:
        raise TaskFailedError(
            f"the exported models did not answer within {timeout:g} s", code="cluster/timeout"
        ) from error
    (base / "answers.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        raise TaskFailedError(
            f"the exported models could not be evaluated: {' '.join(last)}",
            code="parity/run-failed",
            found=f"{base}/answers.log",
        )
    facts = json.loads((base / "facts.json").read_text(encoding="utf-8"))
    paths = [base / f"answers-{engine}.npz" for engine in engines]
    if not all(path.exists() for path in paths):
        return facts, None
    return facts, (read_arrays(paths[0]), read_arrays(paths[1]))


def _changes(job: Job, settings: Sequence[str], *, workers: int | None, steps: int) -> list[str]:
    """Return the changes to the job for the comparison; the report names the resulting strategy."""
    if job.run.train_distribute == "parameter_server":
        raise ConfigError(
            "parity compares synchronous training, and train_distribute is parameter_server",
            code="parity/not-comparable",
            hint="--set run.train_distribute=multi_worker_mirrored --set cluster.ps=0",
        )
    seed = getattr(job.input, "seed", 0)
    if job.run.seed is None or seed is None:
        raise ConfigError(
            "parity needs the same records in the same order, and the same dropout in both",
            code="parity/not-comparable",
            found=f"run.seed {job.run.seed}, input.seed {seed}",
            hint="--set run.seed=1 --set input.seed=1",
        )
    # The features of a custom input function are unknown, so the model cannot be exported.
    exporters = "[]" if job.input.source == "function" else f"[{{kind: final, name: {EXPORT}}}]"
    # A Keras epoch lasts from checkpoint to checkpoint; anything that acts by epochs must act at the job's epochs.
    unit, interval = job.run.checkpoint_interval
    epochs = unit == "steps" and (job.keras.learning_rate_by_epoch is not None or job.keras.callbacks)
    epoch = min(interval, steps) if epochs else steps
    changes = [*settings, f"train.max_steps={steps}", "train.epochs=null", f"run.save_checkpoints_steps={epoch}",
               "run.save_checkpoints_secs=null", "cluster.evaluator=false", "eval.during_training=false",
               f"eval.exporters={exporters}"]  # fmt: skip
    # It writes only to its own folders: a backup, checkpoints or a ledger elsewhere belong to the job's real run.
    changes += [f"keras.{name}=null" for name in job.keras.writing()]
    if job.run.ledger:
        changes.append("run.ledger=false")
    if workers is not None:
        changes += [f"cluster.workers={workers}", "cluster.chief=false"]
        strategy = job.run.train_distribute
        if workers > 1 and strategy in ("mirrored", "one_device"):
            raise ConfigError(
                f"train_distribute {strategy!r} trains in one process, and {workers} workers are requested",
                code="parity/not-comparable",
                found=f"workers {workers} and run.train_distribute {strategy}",
                hint="--set run.train_distribute=multi_worker_mirrored, or leave the workers out",
            )
        if workers > 1 and strategy == "none":
            changes.append("run.train_distribute=multi_worker_mirrored")
    return changes


def _run(job: Job, *, folder: Path, more: Sequence[str], view: Any, timeout: float | None) -> Mapping[str, Any]:
    file = _job_file(folder)
    command = [sys.executable, "-m", "estimator_pipeline", "train", str(file)]
    command += ["--record", str(folder / "record"), *more]
    with planned_cluster(
        command,
        shape=launch.LaunchShape(workers=job.cluster.workers, chief=job.cluster.chief),
        log_dir=file.parent,
        run_id=launch.new_run_id(),
        environ=os.environ,
        files={file: dump_job(job)},
    ) as plan:
        outcome = launch.run_local(plan, view=view, timeout=timeout)
    if outcome.exit_code != 0 or outcome.result is None:
        raise _failed(job.run.engine, outcome)
    metrics: Mapping[str, Any] = outcome.result["metrics"]
    return metrics


def _failed(engine: str, outcome: launch.LaunchOutcome) -> PipelineError:
    """Return the error of a failed run, with its exit code; a job that an engine rejects is a ConfigError."""
    logs = f"its logs: {outcome.log_dir}"
    refusal = None if outcome.failure is None else outcome.failure.refusal
    if outcome.exit_code == ConfigError.exit_code and refusal is not None:
        message = f"the engine {engine} cannot run this job: {refusal['what']}"
        code = refusal.get("code") or "parity/run-failed"
        return ConfigError(
            message, code=code, found="; ".join(filter(None, (refusal["found"], logs))), hint=refusal["hint"]
        )
    if outcome.failure is not None:
        ending = f"failed: {outcome.failure.text()}"
    elif outcome.reason == "interrupted":
        number = outcome.signal or outcome.exit_code - 128
        by = "the user (SIGINT)" if number == signal.SIGINT else f"signal {number}"
        ending = f"was stopped by {by}"
    elif outcome.reason == "timeout":
        ending = f"timed out: it was stopped after {outcome.seconds:.0f} s"
    else:
        ending = f"returned no result: it ended as {outcome.reason}"
    if outcome.exit_code == DivergedError.exit_code:
        code = DivergedError.code
    else:
        code = PreemptedError.code if outcome.reason == "interrupted" else "parity/run-failed"
    error = TaskFailedError(f"the run of the engine {engine} {ending}", code=code, found=logs)
    # The exit codes of diverged and stopped runs are kept.
    error.exit_code = outcome.exit_code or error.exit_code
    return error
