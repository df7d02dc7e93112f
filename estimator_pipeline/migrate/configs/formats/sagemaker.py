"""SageMaker training jobs (CreateTrainingJob, DescribeTrainingJob) and arguments of its TensorFlow estimator.

Fields: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html and
https://sagemaker.readthedocs.io/en/stable/frameworks/tensorflow/sagemaker.tensorflow.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.migrate.configs.documents import Item
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.hyperparameters import apply, need_devices, typed
from estimator_pipeline.migrate.configs.formats.tables import Table, convert_table, later, taken

__all__ = ["ESTIMATOR", "JOB", "convert_estimator", "convert_job", "take_deadline", "take_gpus", "take_labels",
           "take_machine"]  # fmt: skip

# Prefix of the hyperparameters that the Python SDK adds for SageMaker's container.
OWN = "sagemaker_"
PS, MWMS = "sagemaker_parameter_server_enabled", "sagemaker_multi_worker_mirrored_strategy_enabled"
# GPUs of an instance: https://aws.amazon.com/ec2/instance-types/#Accelerated_Computing. Others have none, or are newer.
GPUS = {"p2.xlarge": 1, "p2.8xlarge": 8, "p2.16xlarge": 16, "p3.2xlarge": 1, "p3.8xlarge": 4, "p3.16xlarge": 8,
        "p3dn.24xlarge": 8, "p4d.24xlarge": 8, "g4dn.xlarge": 1, "g4dn.2xlarge": 1, "g4dn.4xlarge": 1,
        "g4dn.8xlarge": 1, "g4dn.12xlarge": 4, "g4dn.16xlarge": 1, "g5.xlarge": 1, "g5.2xlarge": 1, "g5.12xlarge": 4,
        "g5.48xlarge": 8}  # fmt: skip


# Machines and limits, also of other services ---------------------------------------------------------------------


def take_machine(draft: JobDraft, item: Item, role: str, gpus: Mapping[str, int]) -> None:
    """Set the GPUs of a machine type, and leave its CPUs and memory to the user.

    A pod that requests all of a machine fits on no node of that size, because the node reserves a part.
    """
    count = gpus.get(str(item.value).removeprefix("ml."))
    if count:
        take_gpus(draft, item, role, count, why=f"GPUs of a {item.value}")
    requests = ("cpu and memory" if draft.scheduler == "kubernetes" else "cpus_per_task and mem") + (
        "" if count else ", and GPUs if it had any"
    )
    draft.decide(item, f"a machine type: set what the {role} requests as {requests}", (draft.scheduler, "roles", role))


def take_gpus(draft: JobDraft, item: Item, role: str, count: int, *, why: str) -> None:
    """Set the number of GPUs of a role."""
    name = "gpus" if draft.scheduler == "kubernetes" else "gpus_per_task"
    draft.take(item, (draft.scheduler, "roles", role, name), count, why=why)


def take_deadline(draft: JobDraft, item: Item, value: Any = None) -> None:
    """Convert a limit on the running time, in seconds."""
    seconds = typed(item.value if value is None else value)
    to = ("kubernetes", "active_deadline_seconds") if draft.scheduler == "kubernetes" else ("slurm", "time")
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        draft.decide(item, "not a number of seconds", to)
    elif seconds == 0:
        draft.drop(item, "no limit")
    elif draft.scheduler == "kubernetes":
        draft.take(item, to, seconds, why="seconds")
    else:
        why = f"{seconds} seconds in minutes, for one run; a requeue restarts it"
        draft.take(item, to, -(-seconds // 60), why=why)


def take_labels(draft: JobDraft, items: list[Item]) -> None:
    """Convert labels or tags: a mapping, or a list of `{Key: ..., Value: ...}`."""
    for item in items:
        value = item.value if isinstance(item.value, dict) else {"Key": item.path[-1], "Value": item.value}
        label = Item(item.path, value.get("Value", ""), item.line, f"label {value.get('Key')}")
        if draft.scheduler == "kubernetes":
            draft.take(label, ("kubernetes", "labels", str(value.get("Key"))), str(label.value))
        else:
            draft.drop(label, "Slurm has no labels")


def _labels(draft: JobDraft, item: Item) -> None:
    take_labels(draft, draft.document.items(*item.path))


def _environment(draft: JobDraft, item: Item) -> None:
    for variable in draft.document.items(*item.path):
        draft.take(variable, (draft.scheduler, "env", str(variable.path[-1])), str(variable.value))


def _spot(draft: JobDraft, item: Item) -> None:
    if item.value is not True:
        draft.drop(item, "the default")
    elif draft.scheduler == "kubernetes":
        why = "preempted tasks write a checkpoint and resume; choose the nodes by a selector or a toleration"
        draft.decide(item, why, ("kubernetes", "pods", "tolerations"))
    else:
        why = "a partition whose jobs may be preempted; they resume from a checkpoint"
        draft.decide(item, why, ("slurm", "partition"))


def _groups(draft: JobDraft, item: Item) -> None:
    if item.value:
        why = "several machine types: set the section cluster, and roles of kubernetes or slurm"
        draft.decide(item, why, ("cluster",))
        draft.need(("cluster", "workers"), "the program decided what the instances of each group do")


def _channels(draft: JobDraft, item: Item) -> None:
    for inner in draft.document.items(*item.path):
        value = inner.value if isinstance(inner.value, dict) else {}
        name = str(value.get("ChannelName"))
        evaluation = name.lower() in ("eval", "evaluation", "validation", "valid", "test")
        source = value.get("DataSource")
        parts = source.values() if isinstance(source, dict) else ()
        uri = next((part["S3Uri"] for part in parts if isinstance(part, dict) and "S3Uri" in part), None)
        data = f"the data in {uri}" if uri else "the data"
        draft.decide(
            Item(inner.path, inner.value, inner.line, f"channel {name}"),
            f"{data}: set input.source, to files that all tasks can read; the job shards them",
            ("input", "eval" if evaluation else "train"),
        )


def _output(draft: JobDraft, item: Item) -> None:
    if draft.document.item("CheckpointConfig") is None:
        why = "the destination of the model after training; exports are in run.model_dir"
        draft.decide(item, why, ("run", "model_dir"))
    else:
        draft.drop(item, "exports are in run.model_dir")


def _checkpoints(draft: JobDraft, item: Item) -> None:
    apply(draft, [("model_dir", item)])


# Tables ----------------------------------------------------------------------------------------------------------

_DEBUGGER, _PROFILER = "SageMaker's debugger; a job with a NaN loss stops without it", "SageMaker's profiler"
_DISK, _WARM = "the disk of a machine that the service created", "the service's warm machines"
_QUEUE, _METRICS = "the queue determines how long a job waits", "the engines write metrics"
_CLUSTER, _STORAGE = "determined by the cluster", "determined by the bucket or the volume"
_NAME, _STATUS = "a job file's name, or its field name, names the job", "a status field of the service"
_PROGRAM = ("the training program: set model.function to its model", "model.function")
_IMAGE = ("the image must also contain this package: build an image FROM it", "kubernetes.image")
_CODE = ("the code must be in the image, or where the tasks import from", "kubernetes.image")
_ACCESS = ("access to buckets: name a Kubernetes service account that has it", "kubernetes.service_account")
JOB: Table = {
    "TrainingJobName": taken("name"),
    "HyperParameters": later,
    "AlgorithmSpecification": {
        "TrainingImage": _IMAGE,
        "AlgorithmName": _PROGRAM,
        "ContainerEntrypoint": _PROGRAM,
        "ContainerArguments": _PROGRAM,
        "TrainingInputMode": "data is read from its storage",
        "MetricDefinitions": _METRICS,
        "EnableSageMakerMetricsTimeSeries": _METRICS,
        "TrainingImageConfig": ("access to the registry", "kubernetes.image_pull_secrets"),
    },
    "RoleArn": _ACCESS,
    "InputDataConfig": _channels,
    "OutputDataConfig": {"S3OutputPath": _output, "KmsKeyId": _STORAGE, "CompressionType": "exports are folders"},
    "ResourceConfig": {
        "InstanceCount": later,
        "InstanceType": later,
        "InstanceGroups": _groups,
        "VolumeSizeInGB": _DISK,
        "VolumeKmsKeyId": _DISK,
        "KeepAlivePeriodInSeconds": _WARM,
    },
    "StoppingCondition": {
        "MaxRuntimeInSeconds": take_deadline,
        "MaxWaitTimeInSeconds": _QUEUE,
        "MaxPendingTimeInSeconds": _QUEUE,
    },
    "CheckpointConfig": {"S3Uri": _checkpoints, "LocalPath": "checkpoints are written directly to run.model_dir"},
    "Tags": _labels,
    "EnableManagedSpotTraining": _spot,
    "Environment": _environment,
    "RetryStrategy": {"MaximumRetryAttempts": taken("{scheduler}.max_restarts")},
    "VpcConfig": _CLUSTER,
    "EnableNetworkIsolation": _CLUSTER,
    "EnableInterContainerTrafficEncryption": _CLUSTER,
    "DebugHookConfig": _DEBUGGER,
    "DebugRuleConfigurations": _DEBUGGER,
    "ProfilerConfig": _PROFILER,
    "ProfilerRuleConfigurations": _PROFILER,
    "ExperimentConfig": "SageMaker's list of experiments",
    "TensorBoardOutputConfig": "event files are in run.model_dir",
    "InfraCheckConfig": "estimator-pipeline doctor examines the machines",
    "RemoteDebugConfig": "use kubectl exec, or a shell of the scheduler",
    "SessionChainingConfig": "SageMaker's sessions",
    # The response of DescribeTrainingJob.
    **dict.fromkeys(
        ("TrainingJobArn", "TuningJobArn", "LabelingJobArn", "AutoMLJobArn", "ModelArtifacts",
         "TrainingJobStatus", "SecondaryStatus", "SecondaryStatusTransitions", "FailureReason",
         "CreationTime", "TrainingStartTime", "TrainingEndTime", "LastModifiedTime", "FinalMetricDataList",
         "TrainingTimeInSeconds", "BillableTimeInSeconds", "DebugRuleEvaluationStatuses",
         "ProfilerRuleEvaluationStatuses", "ProfilingStatus", "WarmPoolStatus", "ResponseMetadata",
         "MlflowDetails", "ProgressInfo", "OutputModelPackageArn"),
        _STATUS,
    ),
}  # fmt: skip
ESTIMATOR: Table = {
    **dict.fromkeys(("instance_count", "instance_type", "distribution", "hyperparameters", "model_dir",
                     "checkpoint_s3_uri", "checkpoint_path", "training_steps", "evaluation_steps"), later),
    "entry_point": _PROGRAM,
    **dict.fromkeys(("source_dir", "dependencies", "git_config"), _CODE),
    "requirements_file": ("the packages must be in the image", "kubernetes.image"),
    "image_uri": _IMAGE,
    "role": _ACCESS,
    "instance_groups": _groups,
    "max_run": take_deadline,
    "use_spot_instances": _spot,
    "max_retry_attempts": taken("{scheduler}.max_restarts"),
    "environment": _environment,
    "tags": _labels,
    "framework_version": "the image determines the version of TensorFlow, 2.15 to 2.21",
    "py_version": "the image determines the version of Python",
    "script_mode": "a mode of SageMaker's container",
    "container_log_level": "the log level of SageMaker's container",
    **dict.fromkeys(("base_job_name", "job_name"), _NAME),
    "code_location": "the code is in the image",
    "input_mode": "data is read from its storage",
    "volume_size": _DISK,
    **dict.fromkeys(("volume_kms_key", "output_kms_key"), _STORAGE),
    **dict.fromkeys(("subnets", "security_group_ids", "enable_network_isolation", "encrypt_inter_container_traffic"),
                    _CLUSTER),
    "keep_alive_period_in_seconds": _WARM,
    **dict.fromkeys(("metric_definitions", "enable_sagemaker_metrics"), _METRICS),
    **dict.fromkeys(("debugger_hook_config", "rules"), _DEBUGGER),
    **dict.fromkeys(("profiler_config", "disable_profiler"), _PROFILER),
    "tensorboard_output_config": "event files are in run.model_dir",
    "sagemaker_session": "only for the SDK",
    "max_wait": _QUEUE,
    "checkpoint_local_path": "checkpoints are written directly to run.model_dir",
    "output_path": "exports are in run.model_dir",
}  # fmt: skip
# Names in version 1 of the SDK: https://sagemaker.readthedocs.io/en/stable/v2.html
RENAMED = {
    **{f"train_{name}": name for name in ("instance_count", "instance_type", "max_run", "max_wait",
                                          "use_spot_instances", "volume_size", "volume_kms_key")},
    "distributions": "distribution",
    "image_name": "image_uri",
}  # fmt: skip
ESTIMATOR = {**ESTIMATOR, **{old: ESTIMATOR[new] for old, new in RENAMED.items()}}


def convert_job(draft: JobDraft) -> None:
    """Convert each field of a training job."""
    document = draft.document
    hyperparameters = [item._replace(value=_decoded(item.value)) for item in document.items("HyperParameters")]
    enabled = {item.path[-1] for item in hyperparameters if item.value is True}
    count, kind = document.item("ResourceConfig", "InstanceCount"), document.item("ResourceConfig", "InstanceType")
    _cluster(draft, count, kind, ps=PS in enabled, mirrored=MWMS in enabled)
    convert_table(draft, JOB, document.items())
    _hyperparameters(draft, hyperparameters)


def convert_estimator(draft: JobDraft) -> None:
    """Convert each argument of the SDK's estimator."""
    document = draft.document
    fields = {RENAMED.get(str(item.path[-1]), str(item.path[-1])): item for item in document.items()}
    _distribution(draft, fields)
    convert_table(draft, ESTIMATOR, document.items())
    folders = [name for name in ("model_dir", "checkpoint_s3_uri", "checkpoint_path") if name in fields]
    folders = [name for name in folders if fields[name].value]
    for name in folders[1:]:
        draft.decide(fields[name], f"a different directory for checkpoints than {folders[0]}", ("run", "model_dir"))
    single = [("model_dir", fields[folders[0]])] if folders else []
    single += [(name, fields[name]) for name in ("training_steps", "evaluation_steps") if name in fields]
    apply(draft, single)
    _hyperparameters(draft, document.items("hyperparameters"))


def _decoded(value: Any) -> Any:
    """Decode a hyperparameter: JSON as the SDK writes it, or plain text."""
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return typed(value)


def _hyperparameters(draft: JobDraft, items: list[Item]) -> None:
    single = []
    for item in items:
        name = str(item.path[-1])
        named = item._replace(field=f"hyperparameter {name}")
        if name == "sagemaker_program":
            draft.decide(named, _PROGRAM[0], ("model", "function"))
        elif name in ("sagemaker_submit_directory", "sagemaker_requirements"):
            draft.decide(named, _CODE[0], ("kubernetes", "image"))
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
    if ps or mirrored:
        draft.drop(item, "replaced by cluster and run.train_distribute")
    elif item.value in ({}, ""):
        draft.drop(item, "none")
    for inner in draft.document.items(*item.path):
        if inner.path[-1] not in ("parameter_server", "multi_worker_mirrored_strategy"):
            draft.decide(inner, "Horovod and SageMaker's libraries are not supported", ("run", "train_distribute"))


def _cluster(draft: JobDraft, count: Item | None, kind: Item | None, *, ps: bool, mirrored: bool) -> None:
    number = typed(count.value) if count is not None and count.value is not None else 1
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        draft.need(("cluster", "workers"), f"the number of instances was {number!r:.40}")
        if count is not None:
            draft.decide(count, "not a number of instances", ("cluster", "workers"))
    elif count is not None and number <= 1:
        draft.drop(count, "one process")
    elif count is not None and ps:
        draft.take(count, ("cluster", "workers"), number - 1, why=f"{number} instances; the first is the master")
        draft.take(count, ("cluster", "ps"), number, why="one parameter server per instance, as on SageMaker")
        draft.derive(("cluster", "chief"), True, "the first instance is the master")
        draft.derive(("cluster", "dialect"), "master", "the master also evaluates")
        draft.derive(("run", "train_distribute"), "parameter_server", "the cluster has parameter servers")
    elif count is not None:
        draft.take(count, ("cluster", "workers"), number, why="one worker per instance")
        if mirrored:
            draft.derive(("run", "train_distribute"), "multi_worker_mirrored", "SageMaker's distribution")
        else:
            draft.need(
                ("run", "train_distribute"),
                "several instances without a distribution: multi_worker_mirrored, if the program used it",
            )
    if kind is not None and kind.value in ("local", "local_gpu"):
        draft.drop(kind, "the local machine: use estimator-pipeline launch")
    elif kind is not None and kind.value is not None:
        # The parameter servers run on the same machines and use no GPU.
        for role in ("chief", "worker") if draft.current("cluster", "chief") else ("worker",):
            take_machine(draft, kind, role, GPUS)
    need_devices(draft)
