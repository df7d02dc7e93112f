"""A job file, loaded: its data, its Estimator or Keras model, and what is done with its checkpoints.

Nothing here writes to the run's model directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.cluster import from_environ
from estimator_pipeline.engines.core.exporting import require_features_spec
from estimator_pipeline.engines.core.result import TrainResult, plain_metrics
from estimator_pipeline.engines.estimator.evaluation import EstimatorEvaluation
from estimator_pipeline.engines.estimator.exporters import serving_receiver
from estimator_pipeline.engines.jobs import estimator as estimator_jobs
from estimator_pipeline.engines.jobs import keras as keras_jobs
from estimator_pipeline.engines.jobs.build import BuiltJob, JobTask, prepare_process
from estimator_pipeline.engines.jobs.data import job_inputs
from estimator_pipeline.engines.jobs.file_data import FileData, evaluation_data, open_file_data, without_records
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.engines.keras import backend as keras2
from estimator_pipeline.engines.keras3 import backend as keras3
from estimator_pipeline.engines.keras_common.evaluation import KerasEvaluation
from estimator_pipeline.engines.model_dir.checkpoints import refuse_others
from estimator_pipeline.engines.model_dir.layout import BEST_CHECKPOINT, PREFIXES, checkpoint_step
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.sharding import ShardOptions
from estimator_pipeline.job import Job
from estimator_pipeline.job import load_job as load_job_file
from estimator_pipeline.progress import progress_file
from estimator_pipeline.utils import durable_files as durable

__all__ = ["LoadedJob", "Predictions", "load_job", "range_of"]


def load_job(path: str | os.PathLike[str], *, overrides: Sequence[str] = ()) -> LoadedJob:
    """Load and validate a job file.

    Args:
        path: The job file.
        overrides: Changes of fields, such as `train.max_steps=100`.

    Raises:
        ConfigError: The file is missing, or a field is wrong; all errors of the file are reported.
    """
    return LoadedJob(load_job_file(Path(path), overrides=overrides))


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions of some records.

    Attributes:
        checkpoint: The checkpoint or the export that predicts.
        start: The number of the first record; others are predicted by other workers.
        stop: The number after the last one.
        batches: An iterator over the predictions, in the order of the records: mappings from a name to an array whose
            first axis is the records of a batch.
        kept: An iterator over the kept columns of the same records, in chunks of any size.
        class_names: The names of the classes; (): unknown.
    """

    checkpoint: str
    start: int
    stop: int
    batches: Iterator[Mapping[str, np.ndarray]]
    kept: Iterator[Mapping[str, np.ndarray]]
    class_names: Sequence[str] = ()

    @property
    def num_records(self) -> int:
        """The number of records."""
        return self.stop - self.start


class LoadedJob:
    """A validated job file, with its data, its model and its checkpoints.

    The first call in a process of a method that uses TensorFlow decides on the version of Keras, that of `run.engine`.

    Attributes:
        job: The validated document.
    """

    def __init__(self, job: Job) -> None:
        self.job = job

    def __repr__(self) -> str:
        return f"LoadedJob({self.job.name!r}, engine {self.job.run.engine}, model_dir {self.job.run.model_dir!r})"

    def prepared(self) -> LoadedJob:
        """Load TensorFlow with the engine's version of Keras, which the other methods do as well."""
        prepare_process(self.job)
        return self

    def inputs(self) -> Any:
        """Return the job's data: an object with `train_input_fn` and `eval_input_fn`."""
        prepare_process(self.job)
        return job_inputs(self.job)

    def estimator(self) -> Any:
        """Return the `tf.estimator.Estimator` of the job, with its `RunConfig` and its model directory.

        Raises:
            ConfigError: The job's engine is not `estimator`, so its checkpoints are not an Estimator's.
        """
        if self.job.run.engine != "estimator":
            raise _other_engine(self.job, "an Estimator", "estimator", "model()")
        prepare_process(self.job)
        task = JobTask(tf_config=from_environ(os.environ), environ=os.environ)
        return BuiltJob(self.job).estimator(estimator_jobs.run_config(self.job, task))

    def model(self, checkpoint: int | str | None = "latest") -> Any:
        """Return the job's compiled Keras model.

        Args:
            checkpoint: Which values it has, see `checkpoint`; None: initial values.

        Raises:
            ConfigError: The job's engine is `estimator`, or there is no such checkpoint.
        """
        if self.job.run.engine == "estimator":
            raise _other_engine(self.job, "a Keras model", "keras", "estimator()")
        prepare_process(self.job)
        path = None if checkpoint is None else self.checkpoint(checkpoint)
        with self._scratch(without_records, labelled=False) as built:
            return built.new_keras_model() if path is None else _evaluation(built).model_of(path)

    def train(self) -> TrainResult:
        """Run this process's task of the job; see `estimator_pipeline.engines.jobs.run.run_job`."""
        return run_job(self.job)

    def checkpoint(self, which: int | str = "latest") -> str:
        """Return the path of a checkpoint, without the ending of its files.

        Args:
            which: A global step; "latest"; or the path of a checkpoint.

        Raises:
            ConfigError: There is no such checkpoint.
        """
        tf, run = prepare_process(self.job), self.job.run
        if tf.io.gfile.exists(f"{which}.index"):
            return str(which)
        refuse_others(run.model_dir, engine=run.engine)
        latest = tf.train.latest_checkpoint(run.model_dir)
        if latest is not None and which == "latest":
            return str(latest)
        folders = (os.path.join(run.model_dir, BEST_CHECKPOINT), run.model_dir)
        patterns = [os.path.join(folder, f"{PREFIXES[run.engine]}-*.index") for folder in folders]
        paths = [path.removesuffix(".index") for pattern in patterns for path in tf.io.gfile.glob(pattern)]
        steps = {checkpoint_step(path): path for path in paths}
        if re.fullmatch(r"\d+", str(which)) and int(which) in steps:
            return steps[int(which)]
        raise ConfigError(
            f"there is no checkpoint {which!r}" if steps else "the run has no checkpoint",
            code="file/not-found",
            found=f"{run.model_dir}: {'steps ' + ', '.join(map(str, sorted(steps))) if steps else 'no checkpoints'}",
            hint="name one of these steps, or latest" if steps else "train the job first",
        )

    def predict(
        self,
        files: Sequence[str],
        *,
        checkpoint: int | str = "latest",
        keep: Sequence[str] = (),
        batch_size: int | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> Predictions:
        """Predict the records of files, which need no labels.

        Args:
            files: Paths and patterns; see `file_data`.
            checkpoint: See `checkpoint`.
            keep: Columns to return beside the predictions; those of the kind `key` always are.
            batch_size: Records per batch; None: as in the job's evaluations.
            share: (index, count): predict one of so many equal ranges of the records.

        Raises:
            ConfigError: There is no such checkpoint, or the job's data are functions.
            InputError: A file is missing or damaged, or lacks a column.
        """
        prepare_process(self.job)
        path = self.checkpoint(checkpoint)
        batch_size = (batch_size or self.job.input.evaluation_batch_size) * share[1]
        data = open_file_data(self.job, files, labelled=False, keep=keep, batch_size=batch_size)
        shards = data.inputs.eval_shards(range_of(share))
        start, stop = shards.start, shards.start + shards.records
        return Predictions(path, start, stop, self._batches(path, data, share), data.rows(start, stop),
                           class_names=self._class_names(data))  # fmt: skip

    def _batches(self, path: str, data: FileData, share: tuple[int, int]) -> Iterator[Mapping[str, np.ndarray]]:
        tf = compat.tensorflow()
        index, count = share

        def input_fn() -> Any:
            return data.inputs.eval_input_fn(tf.distribute.InputContext(count, index, count))

        with self._scratch(lambda job: data.inputs, labelled=False) as built:
            if self.job.run.engine == "estimator":
                predict = _estimator(built).predict
                batches = predict(input_fn, checkpoint_path=path, yield_single_examples=False)
            else:
                batches = _keras_predictions(built, path, input_fn)
            for batch in batches:
                if len(next(iter(batch.values()))):
                    yield batch

    def _class_names(self, data: FileData) -> Sequence[str]:
        model = self.job.model
        if model.label_vocabulary or model.outputs:
            return () if model.outputs else model.label_vocabulary
        features = data.inputs.transform
        classes = None if features is None else next(iter(features.label.values()))["classes"]  # type: ignore[attr-defined]
        return classes if isinstance(classes, list) else data.inputs.class_names

    def evaluate(self, files: Sequence[str] | None = None, *, checkpoint: int | str = "latest") -> dict[str, float]:
        """Evaluate a checkpoint in this process.

        Args:
            files: Files with labels; None: the job's evaluation data. See `file_data`.
            checkpoint: See `checkpoint`.

        Returns:
            The metrics by name, with `global_step`.
        """
        prepare_process(self.job)
        path = self.checkpoint(checkpoint)
        read = evaluation_data if files is None else lambda job: open_file_data(job, files, labelled=True).inputs
        with self._scratch(read) as built:
            evaluation: Any
            if self.job.run.engine == "estimator":
                progress = progress_file.from_environ({})
                evaluation = EstimatorEvaluation(_estimator(built), built.eval_spec(), progress=progress, keep=False)
            else:
                evaluation = _evaluation(built)
            with contextlib.closing(evaluation):
                return dict(plain_metrics(evaluation.metrics_of(path)))

    def export(self, folder: str | os.PathLike[str], *, checkpoint: int | str = "latest") -> str:
        """Write the SavedModel of a checkpoint to a new folder.

        Raises:
            ConfigError: There is no such checkpoint, the job's data are functions, or the folder exists.
        """
        prepare_process(self.job)
        path, folder = self.checkpoint(checkpoint), Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} exists already", code="file/exists", hint="name a new folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            self._scratch(without_records, labelled=False) as built,
            tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as unfinished,
        ):
            spec = require_features_spec("the model", built.serving.specs)
            if self.job.run.engine == "estimator":
                receiver = serving_receiver(spec, **built.serving_options)
                export = _estimator(built).export_saved_model
                written = export(unfinished, receiver, checkpoint_path=path)
            else:
                written = _evaluation(built).export_saved_model(unfinished, checkpoint_path=path)
            durable.rename(os.fsdecode(written), folder)
        return str(folder)

    @contextlib.contextmanager
    def _scratch(self, read: Callable[[Job], Any], *, labelled: bool = True) -> Iterator[BuiltJob]:
        """Provide the parts of the job in one process, without strategies, with a temporary model directory."""
        job = self.job
        inputs = read(job)
        with tempfile.TemporaryDirectory(prefix="estimator-pipeline-") as folder:
            sections = {
                "run": {"model_dir": folder, "train_distribute": "none", "eval_distribute": "none", "protocol": None},
                "train": {"epochs": None, "max_steps": None},
                "eval": {"exporters": []},
            }
            changed = {name: getattr(job, name).model_copy(update=fields) for name, fields in sections.items()}
            yield BuiltJob(job.model_copy(update=changed), read=lambda job: inputs, labelled=labelled)


def _other_engine(job: Job, kind: str, engine: str, method: str) -> ConfigError:
    return ConfigError(
        f"the job's engine is {job.run.engine}, and its checkpoints are not those of {kind}",
        code="argument/not-applicable",
        hint=f"use {method}, or load the job with run.engine={engine} and its own model_dir",
    )


def _estimator(built: BuiltJob) -> Any:
    compat.install()
    task = JobTask(tf_config=from_environ({}), environ={})
    return built.estimator(estimator_jobs.run_config(built.job, task))


def _evaluation(built: BuiltJob) -> KerasEvaluation:
    is_keras_3 = built.job.run.engine == "keras3"
    if not is_keras_3:
        compat.install()
    keras_jobs.prepare_runtime(built.job)
    plan, _ = keras_jobs.with_explained_mismatches(keras_jobs.plan_of(built))
    return KerasEvaluation(plan, checkpoint_of=keras3.checkpoint_of if is_keras_3 else keras2.checkpoint_of)


def _keras_predictions(
    built: BuiltJob, checkpoint: str, input_fn: Callable[[], Any]
) -> Iterator[Mapping[str, np.ndarray]]:
    tf, outputs = compat.tensorflow(), built.outputs
    model = _evaluation(built).model_of(checkpoint)

    @tf.function(reduce_retracing=True)
    def predict(features: Any) -> Any:
        return outputs.predictions(outputs.answers(outputs.logits(model(features, training=False))))

    for features, _ in input_fn():
        yield {name: value.numpy() for name, value in predict(features).items()}


def range_of(share: tuple[int, int]) -> ShardOptions:
    """Return the shard options of (index, count) of a prediction."""
    index, count = share
    return ShardOptions(count, index, count)
