"""Manifests as YAML that a person reads: a line for each task, and what a field is for, where it does not say so."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString, SingleQuotedScalarString

from estimator_pipeline.launch.kubernetes.manifests import Manifests

__all__ = ["manifest_json", "manifest_text"]

COMMENTS: Mapping[str, str] = {
    "publishNotReadyAddresses": "The tasks look for each other before they are ready.",
    "backoffLimitPerIndex": "A lost peer ends all pods: each index counts its own failures, and one too many ends all.",
    "backoffLimit": "",
    "podFailurePolicy": "",
    "onJobFailureMessagePatterns": "The first rule of podFailurePolicy below.",
    "successPolicy": "Every task ends by itself, parameter servers and the evaluator too.",
    "restartStrategy": "No pod of the next attempt before the last one of this attempt is gone.",
    "terminationGracePeriodSeconds": "From SIGTERM to SIGKILL: the time for a checkpoint.",
    "shareProcessNamespace": "The task is not process 1, so that a signal ends it while it starts, too.",
    "cleanPodPolicy": "What still runs when the chief is done is ended.",
}
"""Said where the field stands first."""
OF_KIND: Mapping[str, Mapping[str, str]] = {
    "job": {
        "podFailurePolicy": "Bad input (2), diverged (3) and what cannot be run (126, 127) would come again.\n"
        "A disruption, and a task that was asked to end (75), is no failure: the checkpoint is there.",
    },
    "jobset": {
        "backoffLimit": "One failed pod fails its Job, and the JobSet starts all Jobs anew.",
        "podFailurePolicy": "0: bad input (2), diverged (3) and what cannot be run (126, 127) would come again.\n"
        "1 and 2: a disruption, and a task that was asked to end (75), is no failure: the checkpoint is there.",
    },
    "tfjob": {
        "backoffLimit": "Restarts of all containers together.",
        "restartPolicy": "ExitCode would take 1 (a lost peer) and 75 (preempted) as final.",
    },
}
_PLAIN = re.compile(r"[A-Za-z/](?:[A-Za-z0-9_./$()-]|:(?=\S)|(?<=[A-Za-z0-9]) (?=[A-Za-z0-9]))*|[0-9]+(?:[KMGT]i|m)")
# What YAML 1.1, which kubectl reads, takes for no text.
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def manifest_text(manifests: Manifests) -> str:
    """The manifests as one YAML stream, as `kubectl apply -f -` takes it."""
    yaml = YAML(typ="rt", pure=True)
    yaml.width = 4096
    yaml.explicit_start = False
    left = {**COMMENTS, **OF_KIND[manifests.kind]}
    texts = []
    for document in manifests.objects:
        out = io.StringIO()
        yaml.dump(_commented(document, left, indent=0), out)
        texts.append(out.getvalue())
    return _head(manifests) + "---\n".join(texts)


def manifest_json(manifests: Manifests) -> str:
    """The manifests as one List, which `kubectl apply -f -` takes as well."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests.objects)}, indent=2)


def _head(manifests: Manifests) -> str:
    wide = max(map(len, manifests.tasks))
    lines = [f"{task:{wide}}  {host}" for task, host in manifests.tasks.items()]
    lines += [f"note: {note}" for note in manifests.notes]
    return "".join(f"# {line}\n" for line in lines)


def _commented(value: Any, left: dict[str, str], *, indent: int) -> Any:
    """A value with comments before the fields that `left` names, each once."""
    if isinstance(value, Mapping):
        result = CommentedMap()
        for key, item in value.items():
            comment = left.pop(key, "")
            result[_scalar(key)] = None
            if comment:
                result.yaml_set_comment_before_after_key(key, before=comment, indent=indent)
            result[key] = _commented(item, left, indent=indent + 2)
        return result
    if isinstance(value, (list, tuple)):
        items = CommentedSeq(_commented(item, left, indent=indent) for item in value)
        if all(not isinstance(item, (Mapping, list)) for item in value):
            items.fa.set_flow_style()
        return items
    return _scalar(value) if isinstance(value, str) else value


def _scalar(text: str) -> str:
    if "\n" in text:
        return LiteralScalarString(text)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return DoubleQuotedScalarString(text) if "'" in text or '"' not in text else SingleQuotedScalarString(text)
