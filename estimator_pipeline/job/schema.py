"""The schema of the job file and the checks across its sections; see `Job`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from pydantic import model_validator

from estimator_pipeline.job.base import Problem, Section
from estimator_pipeline.job.sections.input import FunctionInput, InputSource, TableInput
from estimator_pipeline.job.sections.keras import Keras
from estimator_pipeline.job.sections.kubernetes import Kubernetes
from estimator_pipeline.job.sections.model import ModelSection
from estimator_pipeline.job.sections.parity import ParitySection
from estimator_pipeline.job.sections.pbs import PbsSection
from estimator_pipeline.job.sections.run import ClusterSection, RunSection
from estimator_pipeline.job.sections.slurm import SlurmSection
from estimator_pipeline.job.sections.training import EvalSection, TrainingSection, _Text

__all__ = ["Job"]


class Job(Section):
    """A complete job file.

    Fields:
        name: Name of the job. Commands default to the file's name without its suffix.
        model: Network, loss, optimizer, metrics, exports.
        input: Data source and batches.
        train: End of training.
        eval: Evaluation and exporters.
        run: Model directory, engine, distribution strategy, checkpoints.
        keras: Callbacks of `Model.fit`.
        cluster: Tasks that `launch` starts.
        parity: Settings of `estimator-pipeline parity`.
        kubernetes: Settings of `estimator-pipeline submit kubernetes`.
        slurm: Settings of `estimator-pipeline submit slurm`.
        pbs: Settings of `estimator-pipeline submit pbs`.
    """

    name: _Text = "job"
    model: ModelSection
    input: InputSource
    train: TrainingSection = TrainingSection()
    eval: EvalSection = EvalSection()
    run: RunSection
    keras: Keras = Keras()
    cluster: ClusterSection = ClusterSection()
    parity: ParitySection = ParitySection()
    kubernetes: Kubernetes = Kubernetes()
    slurm: SlurmSection = SlurmSection()
    pbs: PbsSection = PbsSection()

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, data: Any) -> Any:
        """Read `eval:` with nothing below it as a section of defaults."""
        if not isinstance(data, dict):
            return data
        sections = cls.model_fields.keys() - {"name"}
        return {key: {} if value is None and key in sections else value for key, value in data.items()}

    @property
    def has_features(self) -> bool:
        """Whether the inputs of the model are found from the columns of a table; see `model.features`."""
        return isinstance(self.input, TableInput) and (self.model.features is not None or self.input.columns is None)

    @property
    def functions(self) -> list[tuple[str, str]]:
        """The user-defined functions of the job, as (field, reference)."""
        functions = self.model.functions
        if isinstance(self.input, FunctionInput):
            functions += [("input.train", self.input.train), ("input.eval", self.input.eval)]
        functions += [("train.hooks", reference) for reference in self.train.hooks]
        if self.run.engine == "keras":
            functions += [("keras.callbacks", reference) for reference in self.keras.callbacks]
        return functions

    def problems(self) -> Iterator[Problem]:
        return _cross_checks(self)


def _cross_checks(job: Job) -> Iterator[Problem]:
    """Yield the conflicts between sections of a job, each with its location and a hint."""
    yield from _parameter_servers(job)
    yield from _outputs(job)
    yield from _continuation(job)
    yield from _features(job)
    yield from _keras(job)
    yield from _callbacks(job)
    yield from _single_process_strategies(job)
    yield from _batches(job)
    yield from _evaluation(job)
    yield from _dialect(job)
    yield from _missing_roles(job)
    yield from _slurm_nodes(job)


def _outputs(job: Job) -> Iterator[Problem]:
    if job.input.source == "function":
        return
    for name in job.model.outputs:
        if name not in job.input.labels:
            yield Problem(
                ("model", "outputs", name),
                "there are no labels for this output.",
                f"input.label_key: {', '.join(job.input.labels) or 'none'}",
                f"name the labels: input.label_key: [{', '.join(job.model.outputs)}].",
            )


def _continuation(job: Job) -> Iterator[Problem]:
    section = job.input
    if section.continue_with is None:
        return
    for allowed, problem, value in (
        (section.source in ("csv", "parquet", "tfrecord"), "a run continues on CSV, JSON lines, Parquet or TFRecord "
         "files.", f"input.source {section.source}"),
        (section.shard_policy in ("auto", "data"), "each record can be read once if workers share the records, not the "
         "files.", f"shard_policy {section.shard_policy}"),
        (job.run.train_distribute != "parameter_server", "workers with parameter servers do not read each record once.",
         "train_distribute parameter_server"),
    ):  # fmt: skip
        if not allowed:
            yield Problem(
                ("input", "continue_with"),
                problem,
                f"continue_with and {value}",
                "leave continue_with out, or train on all data in a new model_dir.",
            )


def _features(job: Job) -> Iterator[Problem]:
    table, model = isinstance(job.input, TableInput), job.model
    if model.features is not None and not table:
        yield Problem(
            ("model", "features"),
            "features are found in the columns of a table.",
            f"features with input.source {job.input.source}",
            "leave features out, or use source: csv or parquet.",
        )
    if model.estimator is not None:
        yield from _canned(job)
    elif table and model.features is None and job.input.columns is None and model.function is not None:  # type: ignore[union-attr]
        yield Problem(
            ("input", "columns"),
            "the columns that the model's function takes are not known.",
            f"function {model.function!r}, and neither input.columns nor model.features",
            "add columns with their types, or model.features: {} for all columns as numbers and ids.",
            code="job/missing-field",
        )
    if not job.has_features:
        yield from _balanced(job)
        return
    columns = sorted({"numeric", "categorical", "input_shape"} & set(model.params))
    if model.name is not None and columns:
        yield Problem(
            ("model", "params", columns[0]),
            "the inputs of the model follow from its features.",
            f"params.{columns[0]} with model.features, or without input.columns",
            f"leave {columns[0]} out, or add input.columns.",
        )
    if model.name in ("cnn", "resnet"):
        yield Problem(
            ("model", "name"),
            "this model takes images, not the columns of a table.",
            f"name {model.name!r} with input.source {job.input.source}",
            "use wide_deep, dnn or linear.",
        )
    if isinstance(job.input.features_key, str):  # type: ignore[union-attr]
        yield Problem(
            ("input", "features_key"),
            "a single column cannot be the tensor of a model that has features.",
            f"features_key {job.input.features_key!r}",  # type: ignore[union-attr]
            f"name a list: [{job.input.features_key}].",  # type: ignore[union-attr]
        )


def _canned(job: Job) -> Iterator[Problem]:
    """Check the sections beside a canned Estimator, whose feature columns are the features of a table."""
    estimator = f"estimator {job.model.estimator!r}"
    if not job.has_features:
        yield Problem(
            ("model", "estimator"),
            "the feature columns of a canned Estimator follow from the features of a table.",
            f"{estimator} with input.source {job.input.source}, without model.features",
            "read a CSV or Parquet file with model.features: {}, or call the class in a program.",
        )
    if job.run.engine != "estimator":
        yield Problem(
            ("run", "engine"),
            "Keras does not train a canned Estimator.",
            f"engine {job.run.engine} with {estimator}",
            "use model.name: wide_deep, dnn or linear, or keep the engine estimator.",
        )
    for field, value in (("weight_key", job.input.weight_key), ("label_key", job.input.labels[1:])):
        if value and job.has_features:
            yield Problem(
                ("input", field),
                "a canned Estimator of a job file takes a single label, without weights.",
                f"{field} {getattr(job.input, field)!r} with {estimator}",
                "use model.name: wide_deep, dnn or linear.",
            )


def _balanced(job: Job) -> Iterator[Problem]:
    outputs = [(("model", "outputs", name), output.class_weights) for name, output in job.model.outputs.items()]
    for path, weights in [(("model",), job.model.class_weights), *outputs]:
        if weights == "balanced":
            yield Problem(
                (*path, "class_weights"),
                "the number of records of each class is not known.",
                f"balanced with input.source {job.input.source}, without model.features",
                "write the weights as a list or a mapping, or read a table with model.features.",
            )


def _parameter_servers(job: Job) -> Iterator[Problem]:
    strategy, ps = job.run.train_distribute, job.cluster.ps
    if strategy == "parameter_server" and ps == 0:
        yield Problem(
            ("run", "train_distribute"),
            "parameter_server needs a parameter server, and the cluster has none.",
            "train_distribute parameter_server with cluster.ps 0",
            "set cluster.ps to 1 or more, or train_distribute: multi_worker_mirrored.",
        )
    elif ps and strategy != "parameter_server":
        yield Problem(
            ("cluster", "ps"),
            f"train_distribute {strategy!r} uses no parameter servers.",
            f"cluster.ps {ps}",
            "set cluster.ps to 0, or run.train_distribute: parameter_server.",
        )
    steps = job.model.optimizer.gradient_accumulation_steps
    if strategy == "parameter_server" and steps > 1:
        yield Problem(
            ("model", "optimizer", "gradient_accumulation_steps"),
            "workers with parameter servers update variables independently, and cannot accumulate gradients together.",
            f"gradient_accumulation_steps {steps} with train_distribute parameter_server",
            "set it to 1, or train_distribute: multi_worker_mirrored and cluster.ps: 0.",
        )


def _keras(job: Job) -> Iterator[Problem]:
    engine = job.run.engine
    if engine != "estimator" and job.run.train_distribute == "parameter_server":
        who = "Model.fit" if engine == "keras" else "the training loop for Keras 3"
        yield Problem(
            ("run", "engine"),
            f"{who} does not support the Estimator's training with parameter servers.",
            f"engine {engine} with train_distribute parameter_server",
            "set train_distribute: multi_worker_mirrored and cluster.ps: 0, or engine: estimator.",
        )
    if job.run.engine != "keras" and job.input.shard_policy == "hint":
        yield Problem(
            ("input", "shard_policy"),
            "an Estimator calls the input function on each worker, where TensorFlow does not apply the hint.",
            f"shard_policy hint with engine {job.run.engine}",
            "set shard_policy: data, which reads the same records at each step, or engine: keras.",
        )


def _callbacks(job: Job) -> Iterator[Problem]:
    if job.run.engine != "keras":
        # Other engines ignore the section, and report that.
        return
    unit, interval = job.run.checkpoint_interval
    for name in job.keras.by_epoch():
        if unit != "steps":
            yield Problem(
                ("keras", name),
                "epochs are counted by checkpoints, which must be saved by steps, not by time.",
                f"checkpoints every {interval} seconds",
                "set run.save_checkpoints_steps, the length of an epoch.",
            )
    if job.keras.learning_rate_by_epoch is not None and not isinstance(job.model.optimizer.learning_rate, float | int):
        yield Problem(
            ("keras", "learning_rate_by_epoch"),
            "the learning rate is set both by epoch and by step.",
            f"model.optimizer.learning_rate of kind {job.model.optimizer.learning_rate.kind}",
            "keep one of them.",
        )
    for name, field, folder in job.keras.folders():
        if posixpath.normpath(folder or ".") == posixpath.normpath(job.run.model_dir):
            yield Problem(
                ("keras", name, field),
                "the engine keeps its checkpoints here, and both lists of checkpoints would be the same file.",
                f"the folder {folder or '.'}, which is run.model_dir",
                "name a different folder, or one in it.",
            )


def _single_process_strategies(job: Job) -> Iterator[Problem]:
    tasks, strategy = job.cluster.num_training_tasks, job.run.train_distribute
    if tasks > 1 and strategy in ("none", "mirrored", "one_device"):
        yield Problem(
            ("cluster", "workers"),
            f"train_distribute {strategy!r} trains in one process, but the cluster has {tasks} training tasks.",
            f"workers {job.cluster.workers}" + (" and a chief" if job.cluster.chief else ""),
            "set run.train_distribute: multi_worker_mirrored, or keep one training task.",
        )
    for field in ("train_distribute", "eval_distribute"):
        devices = job.run.devices_per_task
        if getattr(job.run, field) == "one_device" and devices is not None and devices > 1:
            yield Problem(
                ("run", field),
                f"one_device computes on one device, but {devices} are configured.",
                f"num_devices {devices}" if job.run.num_devices else f"devices {job.run.devices}",
                "set mirrored, or keep one device.",
            )
    if job.run.train_distribute == "one_device" and job.keras.backup is not None:
        yield Problem(
            ("keras", "backup"),
            "Keras does not back up training under one_device.",
            "run.train_distribute one_device",
            "leave train_distribute out (none), or set mirrored or multi_worker_mirrored.",
        )


def _batches(job: Job) -> Iterator[Problem]:
    devices, tasks = job.run.devices_per_task or 1, job.cluster.num_training_tasks
    replicas = {"mirrored": devices, "multi_worker_mirrored": devices * tasks}
    eval_replicas = {"mirrored": devices}
    sizes = {
        "global_batch_size": (job.input.global_batch_size, replicas.get(job.run.train_distribute, 1)),
        "eval_batch_size": (job.input.evaluation_batch_size, eval_replicas.get(job.run.eval_distribute, 1)),
    }
    for field, (size, parts) in sizes.items():
        if size % parts:
            below = size - size % parts
            better = f"{below} or {below + parts}" if below else f"{parts}"
            yield Problem(
                ("input", field),
                f"a batch of {size} records cannot be split equally among {parts} replicas.",
                f"{field} {size}, {_shares(parts // devices, devices)}",
                f"set {field} to a multiple of {parts}, such as {better}.",
            )


def _shares(tasks: int, devices: int) -> str:
    return f"{tasks} training task{'s'[: tasks > 1]} of {devices} device{'s'[: devices > 1]}"


def _evaluation(job: Job) -> Iterator[Problem]:
    strategy = job.run.eval_distribute
    if strategy in ("multi_worker_mirrored", "parameter_server"):
        who = "evaluator" if job.cluster.evaluator else "chief"
        yield Problem(
            ("run", "eval_distribute"),
            f"the {who} evaluates in one process, and {strategy} would wait for other processes.",
            f"eval_distribute {strategy} with cluster.evaluator {str(job.cluster.evaluator).lower()}",
            f"set eval_distribute: mirrored (all devices of the {who}) or none.",
        )
    if job.cluster.evaluator and job.eval.during_training:
        yield Problem(
            ("eval", "during_training"),
            "the evaluator evaluates during training, so the chief must not.",
            "eval.during_training true with cluster.evaluator true",
            "leave one of them out.",
        )


def _dialect(job: Job) -> Iterator[Problem]:
    cluster = job.cluster
    if cluster.dialect == "master" and cluster.evaluator:
        yield Problem(
            ("cluster", "evaluator"),
            "the dialect 'master' has no evaluator task: the master runs the evaluation.",
            "dialect master with evaluator true",
            "set evaluator: false and eval.during_training: true, or dialect: canonical.",
        )
    if cluster.dialect == "master" and not cluster.chief:
        yield Problem(
            ("cluster", "dialect"),
            "the dialect 'master' renames the chief, and the cluster has no chief.",
            "dialect master with chief false",
            "set chief: true, or dialect: canonical.",
        )
    if cluster.dialect == "evaluator_in_cluster" and not cluster.evaluator:
        yield Problem(
            ("cluster", "dialect"),
            "the dialect 'evaluator_in_cluster' needs an evaluator.",
            "dialect evaluator_in_cluster with evaluator false",
            "set evaluator: true, or dialect: canonical.",
        )


def _missing_roles(job: Job) -> Iterator[Problem]:
    cluster = job.cluster
    there = {"chief": cluster.chief, "worker": cluster.workers, "ps": cluster.ps, "evaluator": cluster.evaluator}
    for section, roles in (("slurm", job.slurm.roles), ("pbs", job.pbs.roles)):
        for role in roles:
            if not there[role]:
                yield Problem(
                    (section, "roles", role),
                    f"the cluster has no {role}.",
                    f"the roles {', '.join(name for name, count in there.items() if count)}",
                    "leave it out, or add it to the section cluster.",
                )


def _slurm_nodes(job: Job) -> Iterator[Problem]:
    sharing = [role for role, resources in job.slurm.roles.items() if resources.nodes is None]
    if job.slurm.nodes is not None and sharing:
        yield Problem(
            ("slurm", "nodes"),
            f"the {sharing[0]} is a separate component, and would get as many nodes as the rest.",
            f"slurm.nodes {job.slurm.nodes}, and slurm.roles.{sharing[0]} without nodes",
            f"set slurm.roles.{sharing[0]}.nodes, or tasks_per_node instead of nodes.",
        )
