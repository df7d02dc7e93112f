"""Manifests as YAML with comments."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString, SingleQuotedScalarString

from estimator_pipeline.launch.kubernetes.manifests import Manifests

__all__ = ["manifest_json", "manifest_text", "objects_text"]

COMMENTS: Mapping[str, str] = {
    "publishNotReadyAddresses": "The tasks resolve each other's names before they are ready.",
    "backoffLimitPerIndex": "After a lost peer all pods fail: each index counts its failures, and the limit of one "
    "fails the Job.",
    "onJobFailureMessagePatterns": "The first rule of podFailurePolicy below.",
    "successPolicy": "Every task exits when training is done, also parameter servers and the evaluator.",
    "restartStrategy": "A new attempt starts when all pods of the previous one are deleted.",
    "terminationGracePeriodSeconds": "From SIGTERM to SIGKILL: the time for a checkpoint.",
    "shareProcessNamespace": "So the task is not process 1, and SIGTERM ends it during its start, too.",
    "cleanPodPolicy": "Running pods are deleted when the chief is done.",
}
"""Comments at the first occurrence of a field."""
OF_KIND: Mapping[str, Mapping[str, str]] = {
    "job": {
        "podFailurePolicy": "No retry: bad input (2), diverged (3) and a command that cannot be run (126, 127).\n"
        "Not counted: a disruption, and a preempted task (75), which has written a checkpoint.",
    },
    "jobset": {
        "backoffLimit": "A failed pod fails its Job, and the JobSet restarts all Jobs.",
        "podFailurePolicy": "0, no retry: bad input (2), diverged (3) and a command that cannot be run (126, 127).\n"
        "1 and 2, not counted: a disruption, and a preempted task (75), which has written a checkpoint.",
    },
    "tfjob": {
        "backoffLimit": "Restarts of all containers together.",
        "restartPolicy": "With ExitCode, 1 (a lost peer) and 75 (preempted) would be permanent failures.",
    },
}
_PLAIN = re.compile(r"[A-Za-z/](?:[A-Za-z0-9_./$()-]|:(?=\S)|(?<=[A-Za-z0-9]) (?=[A-Za-z0-9]))*|[0-9]+(?:[KMGT]i|m)")
# Not strings in YAML 1.1, which kubectl reads.
_NO_STRINGS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def manifest_text(manifests: Manifests) -> str:
    """Format the manifests as YAML for `kubectl apply -f -`, after comments with the tasks and the notes."""
    wide = max(map(len, manifests.tasks))
    lines = [f"{task:{wide}}  {host}" for task, host in manifests.tasks.items()]
    lines += [f"note: {note}" for note in manifests.notes]
    return "".join(f"# {line}\n" for line in lines) + objects_text(manifests.objects, manifests.job.kind)


def manifest_json(manifests: Manifests) -> str:
    """Format the manifests as one JSON List for `kubectl apply -f -`."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests.objects)}, indent=2)


def objects_text(objects: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Format objects of a job of this `kubernetes.kind` as one YAML stream."""
    yaml, out = YAML(typ="rt", pure=True), io.StringIO()
    yaml.width = 4096
    left = {**COMMENTS, **OF_KIND[kind]}
    for number, item in enumerate(objects):
        out.write("---\n" if number else "")
        yaml.dump(_commented(item, left, indent=0), out)
    return out.getvalue()


def _commented(value: Any, left: dict[str, str], *, indent: int) -> Any:
    """Add comments before the fields in `left`, each once."""
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
    if _PLAIN.fullmatch(text) and text.lower() not in _NO_STRINGS:
        return text
    return DoubleQuotedScalarString(text) if "'" in text or '"' not in text else SingleQuotedScalarString(text)
