"""SageMaker training jobs (CreateTrainingJob, DescribeTrainingJob) and arguments of its TensorFlow estimator.

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

# Prefix of the hyperparameters that the Python SDK adds for SageMaker's container.
OWN = "sagemaker_"
PS, MWMS = "sagemaker_parameter_server_enabled", "sagemaker_multi_worker_mirrored_strategy_enabled"

DROPPED = {
    "VpcConfig": "determined by the cluster",
    "EnableNetworkIsolation": "determined by the cluster",
    "EnableInterContainerTrafficEncryption": "determined by the cluster",
    "DebugHookConfig": "SageMaker's debugger; the engines write events and metrics",
    "DebugRuleConfigurations": "SageMaker's debugger; a job with a NaN loss stops without it",
    "ProfilerConfig": "SageMaker's profiler",
    "ProfilerRuleConfigurations": "SageMaker's profiler",
    "ExperimentConfig": "SageMaker's list of experiments",
    "TensorBoardOutputConfig": "event files are in run.model_dir",
    "InfraCheckConfig": "estimator-pipeline doctor examines the machines",
    "RemoteDebugConfig": "use kubectl exec, or a shell of the scheduler",
    "SessionChainingConfig": "SageMaker's sessions",
}
# Fields in the response of DescribeTrainingJob.
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
    "framework_version": "the image determines the version of TensorFlow, 2.15 to 2.21",
    "py_version": "the image determines the version of Python",
    "script_mode": "a mode of SageMaker's container",
    "base_job_name": "a job file's name, or its field name, names the job",
    "job_name": "a job file's name, or its field name, names the job",
    "code_location": "the code is in the image",
    "input_mode": "data is read from its storage",
    "volume_size": "the disk of a machine that the service created",
    "volume_kms_key": "determined by the bucket or the volume",
    "output_kms_key": "determined by the bucket or the volume",
    "subnets": "determined by the cluster",
    "security_group_ids": "determined by the cluster",
    "enable_network_isolation": "determined by the cluster",
    "encrypt_inter_container_traffic": "determined by the cluster",
    "keep_alive_period_in_seconds": "the service's warm machines",
    "metric_definitions": "the engines write metrics",
    "enable_sagemaker_metrics": "the engines write metrics",
    "debugger_hook_config": "SageMaker's debugger",
    "tensorboard_output_config": "event files are in run.model_dir",
    "rules": "SageMaker's debugger",
    "profiler_config": "SageMaker's profiler",
    "disable_profiler": "SageMaker's profiler",
    "container_log_level": "the log level of SageMaker's container",
    "sagemaker_session": "only for the SDK",
    "max_wait": "the queue determines how long a job waits",
    "checkpoint_local_path": "checkpoints are written directly to run.model_dir",
    "output_path": "exports are in run.model_dir",
}
KWARGS_DECIDED = {
    "entry_point": ("the training program: set model.function to its model", "model.function"),
    "source_dir": ("the code must be in the image, or where the tasks import from", "kubernetes.image"),
    "dependencies": ("the code must be in the image, or where the tasks import from", "kubernetes.image"),
    "git_config": ("the code must be in the image, or where the tasks import from", "kubernetes.image"),
    "requirements_file": ("the packages must be in the image", "kubernetes.image"),
    "image_uri": ("the image must also contain this package: build an image FROM it", "kubernetes.image"),
    "role": ("access to buckets: name a Kubernetes service account that has it", "kubernetes.service_account"),
    "instance_groups": ("several machine types: set the section cluster, and roles of kubernetes or slurm", "cluster"),
}
KWARGS = frozenset(
    {*SageMakerEstimator.model_fields, *RENAMED, *RENAMED.values(), *KWARGS_DROPPED, *KWARGS_DECIDED}
    | {"hyperparameters", "model_dir", "checkpoint_s3_uri", "training_steps", "evaluation_steps", "checkpoint_path"}
)


def convert_job(draft: JobDraft) -> None:
    """Convert each field of a training job."""
    job = checked(TrainingJob, draft.document, kind="a training job of SageMaker")
    document = draft.document
    values = {name: _decoded(value) for name, value in (job.HyperParameters or {}).items()}
    count, kind = document.item("ResourceConfig", "InstanceCount"), document.item("ResourceConfig", "InstanceType")
    ps, mirrored = values.get(PS) is True, values.get(MWMS) is True
    _cluster(draft, count, kind, ps=ps, mirrored=mirrored)
    for item in document.items("ResourceConfig"):
        _resource(draft, str(item.path[-1]), item)
    for item in document.items():
        _field(draft, str(item.path[-1]), item)
    _hyperparameters(draft, [(item, values[str(item.path[-1])]) for item in document.items("HyperParameters")])


def convert_estimator(draft: JobDraft) -> None:
    """Convert each argument of the SDK's estimator."""
    checked(SageMakerEstimator, draft.document, kind="an estimator of SageMaker")
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
        draft.need(("cluster", "workers"), "the program decided what the instances of each group do")
    settings = ("model_dir", "checkpoint_s3_uri", "checkpoint_path", "training_steps", "evaluation_steps")
    folders = [name for name in settings[:3] if name in fields and fields[name].value]
    for name in folders[1:]:
        draft.decide(fields[name], f"a different directory for checkpoints than {folders[0]}", ("run", "model_dir"))
    single = [("model_dir", fields[folders[0]])] if folders else []
    single += [(name, fields[name]) for name in settings[3:] if name in fields and fields[name].value is not None]
    apply(draft, single)
    _hyperparameters(draft, [(item, item.value) for item in document.items("hyperparameters")])


def _decoded(text: str) -> Any:
    """Decode a hyperparameter: JSON as the SDK writes it, or plain text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return typed(text)


def _hyperparameters(draft: JobDraft, values: list[tuple[Item, Any]]) -> None:
    single = []
    for item, value in values:
        name = str(item.path[-1])
        named = Item(item.path, value, item.line, f"hyperparameter {name}")
        if name == "sagemaker_program":
            draft.decide(named, "the training program: set model.function to its model", ("model", "function"))
        elif name in ("sagemaker_submit_directory", "sagemaker_requirements"):
            draft.decide(
                named, "the code must be in the image, or where the tasks import from", ("kubernetes", "image")
            )
        elif name.startswith(OWN):
            draft.drop(named, "for SageMaker's container" + ("; see cluster" if name in (PS, MWMS) else ""))
        else:
            single.append((name, named))
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
        draft.drop(item, "replaced by cluster and run.train_distribute")
    elif not value:
        draft.drop(item, "none")
    for name in others:
        inner = draft.document.item(*item.path, name)
        if inner is not None:
            draft.decide(inner, "Horovod and SageMaker's libraries are not supported", ("run", "train_distribute"))


def _cluster(draft: JobDraft, count: Item | None, kind: Item | None, *, ps: bool, mirrored: bool) -> None:
    number = int(count.value) if count is not None and count.value is not None else 1
    if count is not None:
        if number <= 1:
            draft.drop(count, "one process")
        elif ps:
            draft.take(count, ("cluster", "workers"), number - 1, why=f"{number} instances; the first is the master")
            draft.take(count, ("cluster", "ps"), number, why="one parameter server per instance, as on SageMaker")
            draft.derive(("cluster", "chief"), True, "the first instance is the master")
            draft.derive(("cluster", "dialect"), "master", "the master also evaluates")
            draft.derive(("run", "train_distribute"), "parameter_server", "the cluster has parameter servers")
        else:
            draft.take(count, ("cluster", "workers"), number, why="one worker per instance")
            if mirrored:
                draft.derive(("run", "train_distribute"), "multi_worker_mirrored", "SageMaker's distribution")
            else:
                draft.need(
                    ("run", "train_distribute"),
                    "several instances without a distribution: multi_worker_mirrored, if the program used it",
                )
    gpus = 0
    if kind is not None and kind.value is not None:
        roles = ("chief", "worker", "ps") if ps and number > 1 else ("worker",)
        if str(kind.value) in ("local", "local_gpu"):
            draft.drop(kind, "the local machine: use estimator-pipeline launch")
        else:
            # The parameter servers run on the same machines and use no GPU.
            gpus = max(take_machine(draft, kind, role) for role in roles if role != "ps")
    need_devices(draft, gpus)


def _resource(draft: JobDraft, name: str, item: Item) -> None:
    if name in ("VolumeSizeInGB", "VolumeKmsKeyId"):
        draft.drop(item, "the disk of a machine that the service created")
    elif name == "KeepAlivePeriodInSeconds":
        draft.drop(item, "the service's warm machines")
    elif name == "InstanceGroups":
        draft.decide(
            item, "several machine types: set the section cluster, and roles of kubernetes or slurm", ("cluster",)
        )
        draft.need(("cluster", "workers"), "the program decided what the instances of each group do")


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
        draft.drop(item, "a status field of the service")
    elif name == "AlgorithmSpecification":
        _algorithm(draft, item)
    elif name == "RoleArn":
        draft.decide(
            item, "access to buckets: name a Kubernetes service account that has it", ("kubernetes", "service_account")
        )
    elif name == "InputDataConfig":
        for i in range(len(item.value)):
            _channel(draft, document.item(name, i))
    elif name == "OutputDataConfig":
        for inner in document.items(name):
            key = str(inner.path[-1])
            if key == "S3OutputPath" and document.item("CheckpointConfig") is None:
                draft.decide(
                    inner,
                    "the destination of the model after training; exports are in run.model_dir",
                    ("run", "model_dir"),
                )
            else:
                draft.drop(inner, "exports are in run.model_dir, and the bucket determines encryption")
    elif name == "CheckpointConfig":
        uri, local = document.item(name, "S3Uri"), document.item(name, "LocalPath")
        if local is not None:
            draft.drop(local, "checkpoints are written directly to run.model_dir")
        if uri is not None:
            apply(draft, [("model_dir", uri)])
    elif name == "StoppingCondition":
        for inner in document.items(name):
            if inner.path[-1] == "MaxRuntimeInSeconds":
                take_deadline(draft, inner, int(inner.value))
            else:
                draft.drop(inner, "the queue determines how long a job waits")
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
            draft.decide(
                inner, "the image must also contain this package: build an image FROM it", ("kubernetes", "image")
            )
        elif name in ("AlgorithmName", "ContainerEntrypoint", "ContainerArguments"):
            draft.decide(inner, "the training program: set model.function to its model", ("model", "function"))
        elif name == "TrainingInputMode":
            draft.drop(inner, "data is read from its storage")
        elif name in ("MetricDefinitions", "EnableSageMakerMetricsTimeSeries"):
            draft.drop(inner, "the engines write metrics")
        elif name == "TrainingImageConfig":
            draft.decide(inner, "access to the registry", ("kubernetes", "image_pull_secrets"))


def _channel(draft: JobDraft, item: Item | None) -> None:
    if item is None:
        return
    name = str(item.value["ChannelName"])
    channel = Item(item.path, item.value, item.line, f"channel {name}")
    evaluation = name.lower() in ("eval", "evaluation", "validation", "valid", "test")
    to = ("input", "eval" if evaluation else "train")
    source = item.value.get("DataSource") or {}
    uri = next((part["S3Uri"] for part in source.values() if isinstance(part, dict) and "S3Uri" in part), None)
    data = f"the data in {uri}" if uri else "the data"
    draft.decide(channel, f"{data}: set input.source, to files that all tasks can read; the job shards them", to)


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
            "preempted tasks write a checkpoint and resume; choose the nodes by a selector or a toleration",
            ("kubernetes", "pods", "tolerations"),
        )
    else:
        draft.decide(
            item, "a partition whose jobs may be preempted; they resume from a checkpoint", ("slurm", "partition")
        )
