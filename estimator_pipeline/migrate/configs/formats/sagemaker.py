"""SageMaker: training jobs (CreateTrainingJob, DescribeTrainingJob) and the arguments of its TensorFlow estimator.

Fields: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html and
https://sagemaker.readthedocs.io/en/stable/frameworks/tensorflow/sagemaker.tensorflow.html
"""

from __future__ import annotations

import json
import re
from typing import Any

from estimator_pipeline.migrate.configs.documents import Item
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.hyperparameters import apply, typed
from estimator_pipeline.migrate.configs.formats.machines import need_devices, take_deadline, take_machine
from estimator_pipeline.migrate.configs.formats.schemas import SageMakerEstimator, TrainingJob, checked

__all__ = ["JOB_NAMES", "KWARGS", "convert_estimator", "convert_job"]

# What the Python SDK adds to a job's hyperparameters for its own container.
OWN = "sagemaker_"
PS, MWMS = "sagemaker_parameter_server_enabled", "sagemaker_multi_worker_mirrored_strategy_enabled"

DROPPED = {
    "VpcConfig": "the network is the cluster's",
    "EnableNetworkIsolation": "the network is the cluster's",
    "EnableInterContainerTrafficEncryption": "the network is the cluster's",
    "DebugHookConfig": "SageMaker's debugger; the engines write events and metrics",
    "DebugRuleConfigurations": "SageMaker's debugger; a diverging job ends by itself",
    "ProfilerConfig": "SageMaker's profiler",
    "ProfilerRuleConfigurations": "SageMaker's profiler",
    "ExperimentConfig": "SageMaker's list of experiments",
    "TensorBoardOutputConfig": "event files are in run.model_dir",
    "InfraCheckConfig": "estimator-pipeline doctor examines the machines",
    "RemoteDebugConfig": "kubectl exec, or a shell of the scheduler",
    "SessionChainingConfig": "SageMaker's sessions",
}
# What DescribeTrainingJob adds.
ANSWERED = re.compile(
    r"(TrainingJobArn|TuningJobArn|LabelingJobArn|AutoMLJobArn|ModelArtifacts|TrainingJobStatus|SecondaryStatus\w*|"
    r"FailureReason|CreationTime|TrainingStartTime|TrainingEndTime|LastModifiedTime|FinalMetricDataList|"
    r"TrainingTimeInSeconds|BillableTimeInSeconds|DebugRuleEvaluationStatuses|ProfilerRuleEvaluationStatuses|"
    r"ProfilingStatus|WarmPoolStatus|ResponseMetadata|MlflowDetails|ProgressInfo|OutputModelPackageArn)"
)
JOB_NAMES = frozenset(TrainingJob.model_fields)
# The SDK's names; version 2 renamed some: https://sagemaker.readthedocs.io/en/stable/v2.html
RENAMED = {
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
    "train_volume_size": "volume_size",
    "train_volume_kms_key": "volume_kms_key",
    "distributions": "distribution",
    "image_name": "image_uri",
}
KWARGS_DROPPED = {
    "framework_version": "the version of TensorFlow is that of the image, 2.15 to 2.21",
    "py_version": "the version of Python is that of the image",
    "script_mode": "legacy mode and script mode are the container's",
    "base_job_name": "a job's name is its file's, or name",
    "job_name": "a job's name is its file's, or name",
    "code_location": "the code is in the image",
    "input_mode": "records are read from where they are",
    "volume_size": "the disk of a machine that the service made",
    "volume_kms_key": "encryption is that of the bucket or the volume",
    "output_kms_key": "encryption is that of the bucket or the volume",
    "subnets": "the network is the cluster's",
    "security_group_ids": "the network is the cluster's",
    "enable_network_isolation": "the network is the cluster's",
    "encrypt_inter_container_traffic": "the network is the cluster's",
    "keep_alive_period_in_seconds": "the service's warm machines",
    "metric_definitions": "the engines write metrics themselves",
    "enable_sagemaker_metrics": "the engines write metrics themselves",
    "debugger_hook_config": "SageMaker's debugger",
    "tensorboard_output_config": "event files are in run.model_dir",
    "rules": "SageMaker's debugger",
    "profiler_config": "SageMaker's profiler",
    "disable_profiler": "SageMaker's profiler",
    "container_log_level": "the level of the container's log",
    "sagemaker_session": "the SDK's own",
    "max_wait": "how long a job waits is the queue's affair",
    "checkpoint_local_path": "checkpoints are written to run.model_dir at once",
    "output_path": "exports are in run.model_dir",
}
KWARGS_DECIDED = {
    "entry_point": ("the program that was run: its model becomes model.function", "model.function"),
    "source_dir": ("the code must be in the image, or where the tasks import from", "kubernetes.image"),
    "dependencies": ("the code must be in the image, or where the tasks import from", "kubernetes.image"),
    "git_config": ("the code must be in the image, or where the tasks import from", "kubernetes.image"),
    "requirements_file": ("the packages must be in the image", "kubernetes.image"),
    "image_uri": ("the image must hold this package as well: build one FROM it", "kubernetes.image"),
    "role": ("rights to buckets: a service account of Kubernetes with these", "kubernetes.service_account"),
    "instance_groups": ("machines of several kinds: the section cluster, and roles of kubernetes or slurm", "cluster"),
}
KWARGS = frozenset(
    {*SageMakerEstimator.model_fields, *RENAMED, *RENAMED.values(), *KWARGS_DROPPED, *KWARGS_DECIDED}
    | {"hyperparameters", "model_dir", "checkpoint_s3_uri", "training_steps", "evaluation_steps", "checkpoint_path"}
)


def convert_job(draft: JobDraft) -> None:
    """Says of each field of a training job what becomes of it."""
    job = checked(TrainingJob, draft.document, what="training job of SageMaker")
    document = draft.document
    given = {name: _decoded(value) for name, value in (job.HyperParameters or {}).items()}
    count, kind = document.item("ResourceConfig", "InstanceCount"), document.item("ResourceConfig", "InstanceType")
    ps, mirrored = given.get(PS) is True, given.get(MWMS) is True
    _cluster(draft, count, kind, ps=ps, mirrored=mirrored)
    for item in document.items("ResourceConfig"):
        _resource(draft, str(item.path[-1]), item)
    for item in document.items():
        _field(draft, str(item.path[-1]), item)
    _hyperparameters(draft, [(item, given[str(item.path[-1])]) for item in document.items("HyperParameters")])


def convert_estimator(draft: JobDraft) -> None:
    """Says of each argument of the SDK's estimator what becomes of it."""
    checked(SageMakerEstimator, draft.document, what="estimator of SageMaker")
    document = draft.document
    fields = {RENAMED.get(str(item.path[-1]), str(item.path[-1])): item for item in document.items()}
    _distribution(draft, fields)
    for name, item in fields.items():
        if item.value is None:
            draft.drop(item, "not set")
        elif name in KWARGS_DROPPED:
            draft.drop(item, KWARGS_DROPPED[name])
        elif name in KWARGS_DECIDED:
            why, to = KWARGS_DECIDED[name]
            draft.decide(item, why, tuple(to.split(".")))
        elif name == "max_run":
            take_deadline(draft, item, int(item.value))
        elif name == "use_spot_instances":
            _spot(draft, item)
        elif name == "max_retry_attempts":
            draft.take(item, (draft.scheduler, "max_restarts"))
        elif name == "environment":
            _environment(draft, document.items(*item.path))
        elif name == "tags":
            _tags(draft, item)
    if "instance_groups" in fields and fields["instance_groups"].value:
        draft.need(("cluster", "workers"), "the instances of each group, and what they did, are the program's own")
    own = ("model_dir", "checkpoint_s3_uri", "checkpoint_path", "training_steps", "evaluation_steps")
    folders = [name for name in own[:3] if name in fields and fields[name].value]
    for name in folders[1:]:
        draft.decide(fields[name], f"another folder for checkpoints than {folders[0]}", ("run", "model_dir"))
    single = [("model_dir", fields[folders[0]])] if folders else []
    single += [(name, fields[name]) for name in own[3:] if name in fields and fields[name].value is not None]
    apply(draft, single)
    _hyperparameters(draft, [(item, item.value) for item in document.items("hyperparameters")])


def _decoded(text: str) -> Any:
    """Return the SDK writes every value as JSON, text among them in quotes; people do not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return typed(text)


def _hyperparameters(draft: JobDraft, given: list[tuple[Item, Any]]) -> None:
    single = []
    for item, value in given:
        name = str(item.path[-1])
        own = Item(item.path, value, item.line, f"hyperparameter {name}")
        if name == "sagemaker_program":
            draft.decide(own, "the program that was run: its model becomes model.function", ("model", "function"))
        elif name in ("sagemaker_submit_directory", "sagemaker_requirements"):
            draft.decide(own, "the code must be in the image, or where the tasks import from", ("kubernetes", "image"))
        elif name.startswith(OWN):
            draft.drop(own, "for SageMaker's own container" + ("; see cluster" if name in (PS, MWMS) else ""))
        else:
            single.append((name, own))
    apply(draft, single)


# Cluster ---------------------------------------------------------------------------------------------------------


def _distribution(draft: JobDraft, fields: dict[str, Item]) -> None:
    item = fields.get("distribution")
    value = item.value if item is not None and isinstance(item.value, dict) else {}

    def enabled(name: str) -> bool:
        return isinstance(value.get(name), dict) and value[name].get("enabled") is True

    ps, mirrored = enabled("parameter_server"), enabled("multi_worker_mirrored_strategy")
    _cluster(draft, fields.get("instance_count"), fields.get("instance_type"), ps=ps, mirrored=mirrored)
    if item is None or item.value is None:
        return
    others = [name for name in value if name not in ("parameter_server", "multi_worker_mirrored_strategy")]
    if ps or mirrored:
        draft.drop(item, "followed by cluster and run.train_distribute")
    elif not value:
        draft.drop(item, "none")
    for name in others:
        inner = draft.document.item(*item.path, name)
        if inner is not None:
            draft.decide(inner, "Horovod and SageMaker's own libraries are not there", ("run", "train_distribute"))


def _cluster(draft: JobDraft, count: Item | None, kind: Item | None, *, ps: bool, mirrored: bool) -> None:
    number = int(count.value) if count is not None and count.value is not None else 1
    if count is not None:
        if number <= 1:
            draft.drop(count, "one process")
        elif ps:
            draft.take(
                count, ("cluster", "workers"), number - 1, why=f"{number} instances, the first of them the master"
            )
            draft.take(count, ("cluster", "ps"), number, why="a parameter server beside each, as SageMaker had it")
            draft.derive(("cluster", "chief"), True, "the first instance is the master")
            draft.derive(("cluster", "dialect"), "master", "the master evaluates by itself")
            draft.derive(("run", "train_distribute"), "parameter_server", "the cluster has parameter servers")
        else:
            draft.take(count, ("cluster", "workers"), number, why="a worker on each instance")
            if mirrored:
                draft.derive(("run", "train_distribute"), "multi_worker_mirrored", "SageMaker's distribution")
            else:
                draft.need(
                    ("run", "train_distribute"),
                    "several instances, and no distribution named: multi_worker_mirrored, if the program had it",
                )
    gpus = 0
    if kind is not None and kind.value is not None:
        roles = ("chief", "worker", "ps") if ps and number > 1 else ("worker",)
        if str(kind.value) in ("local", "local_gpu"):
            draft.drop(kind, "this machine: estimator-pipeline launch")
        else:
            # The parameter servers ran on the same machines, and used no GPU.
            gpus = max(take_machine(draft, kind, role) for role in roles if role != "ps")
    need_devices(draft, gpus)


def _resource(draft: JobDraft, name: str, item: Item) -> None:
    if name in ("VolumeSizeInGB", "VolumeKmsKeyId"):
        draft.drop(item, "the disk of a machine that the service made")
    elif name == "KeepAlivePeriodInSeconds":
        draft.drop(item, "the service's warm machines")
    elif name == "InstanceGroups":
        draft.decide(
            item, "machines of several kinds: the section cluster, and roles of kubernetes or slurm", ("cluster",)
        )
        draft.need(("cluster", "workers"), "the instances of each group, and what they did, are the program's own")


# Fields ----------------------------------------------------------------------------------------------------------


def _field(draft: JobDraft, name: str, item: Item) -> None:
    document = draft.document
    if item.value is None:
        draft.drop(item, "not set")
    elif name == "TrainingJobName":
        draft.take(item, ("name",))
    elif name in DROPPED:
        draft.drop(item, DROPPED[name])
    elif ANSWERED.fullmatch(name):
        draft.drop(item, "what the service said of the job")
    elif name == "AlgorithmSpecification":
        _algorithm(draft, item)
    elif name == "RoleArn":
        draft.decide(
            item, "rights to buckets: a service account of Kubernetes with these", ("kubernetes", "service_account")
        )
    elif name == "InputDataConfig":
        for i in range(len(item.value)):
            _channel(draft, document.item(name, i))
    elif name == "OutputDataConfig":
        for inner in document.items(name):
            own = str(inner.path[-1])
            if own == "S3OutputPath" and document.item("CheckpointConfig") is None:
                draft.decide(
                    inner,
                    "where the model was copied to at the end; exports are in run.model_dir",
                    ("run", "model_dir"),
                )
            else:
                draft.drop(inner, "exports are in run.model_dir, and encryption is the bucket's")
    elif name == "CheckpointConfig":
        uri, local = document.item(name, "S3Uri"), document.item(name, "LocalPath")
        if local is not None:
            draft.drop(local, "checkpoints are written to run.model_dir at once")
        if uri is not None:
            apply(draft, [("model_dir", uri)])
    elif name == "StoppingCondition":
        for inner in document.items(name):
            if inner.path[-1] == "MaxRuntimeInSeconds":
                take_deadline(draft, inner, int(inner.value))
            else:
                draft.drop(inner, "how long a job waits is the queue's affair")
    elif name == "Tags":
        _tags(draft, item)
    elif name == "EnableManagedSpotTraining":
        _spot(draft, item)
    elif name == "Environment":
        _environment(draft, document.items(name))
    elif name == "RetryStrategy":
        for inner in document.items(name):
            if inner.path[-1] == "MaximumRetryAttempts":
                draft.take(inner, (draft.scheduler, "max_restarts"))


def _algorithm(draft: JobDraft, item: Item) -> None:
    for inner in draft.document.items(*item.path):
        name = str(inner.path[-1])
        if name == "TrainingImage":
            draft.decide(inner, "the image must hold this package as well: build one FROM it", ("kubernetes", "image"))
        elif name in ("AlgorithmName", "ContainerEntrypoint", "ContainerArguments"):
            draft.decide(inner, "the program that was run: its model becomes model.function", ("model", "function"))
        elif name == "TrainingInputMode":
            draft.drop(inner, "records are read from where they are")
        elif name in ("MetricDefinitions", "EnableSageMakerMetricsTimeSeries"):
            draft.drop(inner, "the engines write metrics themselves")
        elif name == "TrainingImageConfig":
            draft.decide(inner, "rights to the registry", ("kubernetes", "image_pull_secrets"))


def _channel(draft: JobDraft, item: Item | None) -> None:
    if item is None:
        return
    name = str(item.value["ChannelName"])
    own = Item(item.path, item.value, item.line, f"channel {name}")
    evaluation = name.lower() in ("eval", "evaluation", "validation", "valid", "test")
    to = ("input", "eval" if evaluation else "train")
    source = item.value.get("DataSource") or {}
    uri = next((part["S3Uri"] for part in source.values() if isinstance(part, dict) and "S3Uri" in part), None)
    where = f"the records were in {uri}" if uri else "the records' place"
    draft.decide(own, f"{where}: input.source, and files that all tasks can read; shards are made by the job", to)


def _environment(draft: JobDraft, items: list[Item]) -> None:
    for item in items:
        draft.take(item, (draft.scheduler, "env", str(item.path[-1])), str(item.value))


def _tags(draft: JobDraft, item: Item) -> None:
    pairs: list[tuple[str, Item]] = []
    for inner in draft.document.items(*item.path):
        if isinstance(inner.value, dict) and "Key" in inner.value:
            pairs.append((str(inner.value["Key"]), Item(inner.path, inner.value.get("Value", ""), inner.line)))
        else:
            pairs.append((str(inner.path[-1]), inner))
    for key, inner in pairs:
        named = Item(inner.path, inner.value, inner.line, f"tag {key}")
        if draft.scheduler == "kubernetes":
            draft.take(named, ("kubernetes", "labels", key))
        else:
            draft.drop(named, "Slurm has no labels")
    if not pairs:
        draft.drop(item, "none")


def _spot(draft: JobDraft, item: Item) -> None:
    if item.value is not True:
        draft.drop(item, "the default")
    elif draft.scheduler == "kubernetes":
        draft.decide(
            item,
            "tasks that are preempted stop with a checkpoint and go on; which nodes: a selector or a toleration",
            ("kubernetes", "pods", "tolerations"),
        )
    else:
        draft.decide(
            item, "a partition whose jobs may be preempted; they go on from a checkpoint", ("slurm", "partition")
        )
