"""Pydantic schema of a TFJob. It accepts unknown fields.

An unknown field is not an error in the source. It becomes a decision that names the most similar known field.

Sources: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/, and the operator's API
packages v1alpha2, v1beta1, v1beta2 and v1.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Document, Path, dotted

__all__ = ["TFJob", "checked", "names_in"]


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


def names_in(schema: type[BaseModel]) -> Callable[[Path], Iterable[str]]:
    """Return a function from the path of a mapping to the names of the fields that it may have."""

    def names_below(path: Path) -> Iterable[str]:
        at: type[BaseModel] | None = schema
        for step in path:
            if isinstance(step, str):
                at = _inner(at.model_fields[step].annotation) if at and step in at.model_fields else None
        return at.model_fields if at else ()

    return names_below


def _inner(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in typing.get_args(annotation) if (model := _inner(part))), None)
