"""Pydantic schemas of the documents of training services. They accept unknown fields.

An unknown field is not an error in the source. It becomes a decision that names the most similar known field.

Sources: https://cloud.google.com/ai-platform/training/docs/reference/rest/v1/projects.jobs,
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html,
https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/, and the operator's API packages
v1alpha2, v1beta1, v1beta2 and v1.
"""

from __future__ import annotations

import typing
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Document, Path, dotted
from estimator_pipeline.utils.text import nearest

__all__ = ["AIPlatformJob", "SageMakerEstimator", "TFJob", "TrainingJob", "checked", "knows", "likely"]


class SchemaPart(BaseModel):
    """A mapping in a document. Unknown fields are kept."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


# Google's services write int64 as text in JSON, so a number in quotes is valid.
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=2**31 - 1)]
Scalar = str | int | float | bool


# AI Platform Training, before it Cloud ML Engine -----------------------------------------------------------------


class AcceleratorConfig(SchemaPart):
    """GPUs of a machine."""

    count: Count | None = None
    type: str | None = None


class ReplicaConfig(SchemaPart):
    """Properties of the machines of one role other than their type."""

    acceleratorConfig: AcceleratorConfig | None = None
    imageUri: str | None = None
    tpuTfVersion: str | None = None
    containerCommand: list[Scalar] | None = None
    containerArgs: list[Scalar] | None = None
    diskConfig: dict[str, Any] | None = None


class ParameterSpec(SchemaPart):
    """One hyperparameter of a search; only its name is used."""

    parameterName: str


class HyperparameterSpec(SchemaPart):
    """A hyperparameter search."""

    params: list[ParameterSpec] = []


class Scheduling(SchemaPart):
    """Time limits."""

    maxRunningTime: str | None = None
    maxWaitTime: str | None = None
    priority: int | None = None


class TrainingInput(SchemaPart):
    """The inputs of a training job."""

    scaleTier: Literal["BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU", "CUSTOM"] | None = None
    masterType: str | None = None
    masterConfig: ReplicaConfig | None = None
    workerType: str | None = None
    workerConfig: ReplicaConfig | None = None
    workerCount: Count | None = None
    parameterServerType: str | None = None
    parameterServerConfig: ReplicaConfig | None = None
    parameterServerCount: Count | None = None
    evaluatorType: str | None = None
    evaluatorConfig: ReplicaConfig | None = None
    evaluatorCount: Count | None = None
    packageUris: list[str] | None = None
    pythonModule: str | None = None
    args: list[Scalar] | None = None
    hyperparameters: HyperparameterSpec | None = None
    region: str | None = None
    jobDir: str | None = None
    runtimeVersion: Scalar | None = None
    pythonVersion: Scalar | None = None
    encryptionConfig: dict[str, Any] | None = None
    scheduling: Scheduling | None = None
    network: str | None = None
    serviceAccount: str | None = None
    useChiefInTfConfig: bool | None = None
    enableWebAccess: bool | None = None


class AIPlatformJob(SchemaPart):
    """A job, or the part of a job in a file for `gcloud --config`."""

    jobId: str | None = None
    labels: dict[str, str] | None = None
    trainingInput: TrainingInput


# SageMaker -------------------------------------------------------------------------------------------------------


class InstanceGroup(SchemaPart):
    """Instances of one type."""

    InstanceType: str
    InstanceCount: Count
    InstanceGroupName: str | None = None


class Resources(SchemaPart):
    """The machines of a job."""

    InstanceType: str | None = None
    InstanceCount: Count | None = None
    VolumeSizeInGB: Count | None = None
    VolumeKmsKeyId: str | None = None
    KeepAlivePeriodInSeconds: Count | None = None
    InstanceGroups: list[InstanceGroup] | None = None


class Channel(SchemaPart):
    """One source of data."""

    ChannelName: str
    DataSource: dict[str, Any] = {}
    ContentType: str | None = None
    CompressionType: str | None = None
    RecordWrapperType: str | None = None
    InputMode: str | None = None
    ShuffleConfig: dict[str, Any] | None = None


class Stopping(SchemaPart):
    """Time limits in seconds."""

    MaxRuntimeInSeconds: Count | None = None
    MaxWaitTimeInSeconds: Count | None = None
    MaxPendingTimeInSeconds: Count | None = None


class Checkpoints(SchemaPart):
    """The destination for copies of checkpoints."""

    S3Uri: str
    LocalPath: str | None = None


class Tag(SchemaPart):
    """A key and a value."""

    Key: str
    Value: str = ""


class TrainingJob(SchemaPart):
    """The request of CreateTrainingJob, or the response of DescribeTrainingJob."""

    TrainingJobName: str | None = None
    HyperParameters: dict[str, str] | None = None
    AlgorithmSpecification: dict[str, Any] | None = None
    RoleArn: str | None = None
    InputDataConfig: list[Channel] | None = None
    OutputDataConfig: dict[str, Any] | None = None
    ResourceConfig: Resources
    VpcConfig: dict[str, Any] | None = None
    StoppingCondition: Stopping | None = None
    Tags: list[Tag] | None = None
    EnableNetworkIsolation: bool | None = None
    EnableInterContainerTrafficEncryption: bool | None = None
    EnableManagedSpotTraining: bool | None = None
    CheckpointConfig: Checkpoints | None = None
    DebugHookConfig: dict[str, Any] | None = None
    DebugRuleConfigurations: list[dict[str, Any]] | None = None
    TensorBoardOutputConfig: dict[str, Any] | None = None
    ExperimentConfig: dict[str, Any] | None = None
    ProfilerConfig: dict[str, Any] | None = None
    ProfilerRuleConfigurations: list[dict[str, Any]] | None = None
    Environment: dict[str, str] | None = None
    RetryStrategy: dict[str, Any] | None = None
    InfraCheckConfig: dict[str, Any] | None = None
    RemoteDebugConfig: dict[str, Any] | None = None
    SessionChainingConfig: dict[str, Any] | None = None


class SageMakerEstimator(SchemaPart):
    """Arguments of `sagemaker.tensorflow.TensorFlow`, by old and new names."""

    hyperparameters: dict[str, Any] | None = None
    instance_count: Count | None = None
    train_instance_count: Count | None = None
    instance_type: str | None = None
    train_instance_type: str | None = None
    distribution: dict[str, Any] | None = None
    distributions: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    max_run: Count | None = None
    train_max_run: Count | None = None
    tags: list[Tag] | dict[str, str] | None = None


# TFJob -----------------------------------------------------------------------------------------------------------


class Container(SchemaPart):
    """A container of a pod."""

    name: str | None = None
    image: str | None = None
    imagePullPolicy: str | None = None
    command: list[Scalar] | None = None
    args: list[Scalar] | None = None
    workingDir: str | None = None
    env: list[dict[str, Any]] | None = None
    envFrom: list[dict[str, Any]] | None = None
    ports: list[dict[str, Any]] | None = None
    resources: dict[str, Any] | None = None
    volumeMounts: list[dict[str, Any]] | None = None


class PodSpec(SchemaPart):
    """The spec of a pod."""

    containers: Annotated[list[Container], Field(min_length=1)]
    volumes: list[dict[str, Any]] | None = None
    nodeSelector: dict[str, str] | None = None
    tolerations: list[dict[str, Any]] | None = None
    imagePullSecrets: list[dict[str, Any]] | None = None
    serviceAccountName: str | None = None
    serviceAccount: str | None = None
    priorityClassName: str | None = None
    restartPolicy: str | None = None
    terminationGracePeriodSeconds: Count | None = None
    securityContext: dict[str, Any] | None = None
    schedulerName: str | None = None
    affinity: dict[str, Any] | None = None
    initContainers: list[dict[str, Any]] | None = None
    hostNetwork: bool | None = None


class Metadata(SchemaPart):
    """Name and labels of an object."""

    name: str | None = None
    generateName: str | None = None
    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodTemplate(SchemaPart):
    """The template of a role's pods."""

    metadata: Metadata | None = None
    spec: PodSpec


class ReplicaSpec(SchemaPart):
    """The pods of one role."""

    replicas: Count | None = None
    restartPolicy: Literal["Never", "OnFailure", "Always", "ExitCode"] | None = None
    template: PodTemplate


class RunPolicy(SchemaPart):
    """Limits and cleanup of a job; v1alpha2 to v1beta2 have these fields in the spec."""

    cleanPodPolicy: Literal["", "None", "Running", "All", "Undefined"] | None = None
    ttlSecondsAfterFinished: Count | None = None
    activeDeadlineSeconds: Count | None = None
    backoffLimit: Count | None = None
    schedulingPolicy: dict[str, Any] | None = None
    suspend: bool | None = None
    managedBy: str | None = None


class TFJobSpec(RunPolicy):
    """The spec of a TFJob."""

    runPolicy: RunPolicy | None = None
    successPolicy: str | None = None
    enableDynamicWorker: bool | None = None
    tfReplicaSpecs: Annotated[dict[str, ReplicaSpec], Field(min_length=1)]


class TFJob(SchemaPart):
    """A TFJob of the training operator."""

    apiVersion: str
    kind: Literal["TFJob"]
    metadata: Metadata = Metadata()
    spec: TFJobSpec


# Checking --------------------------------------------------------------------------------------------------------

Model = typing.TypeVar("Model", bound=BaseModel)


def checked(schema: type[Model], document: Document, *, kind: str) -> Model:
    """Validate a document and return it as its schema.

    Raises:
        ConfigError: Values have a wrong type. The message lists all of them, with their lines.
    """
    try:
        return schema.model_validate(document.data)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False):
            path = _within(document.data, item["loc"])
            line = document.line(path)
            message = item["msg"].removeprefix("Value error, ")
            value = "" if item["type"] == "missing" else f" (found: {item['input']!r:.60})"
            name = dotted(tuple(item["loc"]) if item["type"] == "missing" else path)
            lines.append((line or 0, f"line {line}: " if line else "", f"{name}: {message}{value}"))
        lines = sorted(dict.fromkeys(lines))
        if len(lines) == 1:
            place, text = (
                (f"{document.source}, {lines[0][1].rstrip(': ')}" if lines[0][1] else document.source),
                lines[0][2],
            )
            raise ConfigError(
                f"{place}: this is not {kind}: {text}.", code="file/bad-format", hint="correct it there."
            ) from None
        details = "\n".join(f"  {place}{text}" for _, place, text in lines)
        raise ConfigError(
            f"{document.source} is not {kind}:\n{details}", code="file/bad-format", hint="correct them there."
        ) from None


def _within(data: Any, loc: tuple[int | str, ...]) -> Path:
    """Return a pydantic location without the steps that name branches of unions."""
    path: list[str | int] = []
    for step in loc:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            continue
        path.append(step)
    return tuple(path)


def likely(schema: type[BaseModel], path: Path) -> str | None:
    """Return the known name most similar to an unknown field, or None."""
    at: type[BaseModel] | None = schema
    for step in path[:-1]:
        if at is None or not isinstance(step, str):
            continue
        at = _inner(at.model_fields[step].annotation) if step in at.model_fields else None
    return nearest(path[-1], at.model_fields) if at is not None and path[-1] not in at.model_fields else None


def knows(schema: type[BaseModel], path: Path) -> bool:
    """Return whether a path leads to a field of the schema, or to an item of one."""
    at: type[BaseModel] | None = schema
    for step in path:
        if isinstance(step, str) and at is not None and step in at.model_fields:
            at = _inner(at.model_fields[step].annotation)
        elif isinstance(step, str):
            return False
    return True


def _inner(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in typing.get_args(annotation) if (model := _inner(part))), None)
