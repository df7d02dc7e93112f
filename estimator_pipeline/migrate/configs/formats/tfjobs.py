"""Kubeflow's TFJob, v1alpha2 to v1.

Fields: the operator's API packages (pkg/apis/kubeflow.org/v1, before it pkg/apis/tensorflow/v1beta2 and older), and
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.migrate.configs.documents import Item, Path, bad, dotted
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.arguments import apply_arguments
from estimator_pipeline.migrate.configs.formats.command_lines import plain_words
from estimator_pipeline.migrate.configs.formats.hyperparameters import Computed, need_devices, put_strategy
from estimator_pipeline.migrate.configs.formats.pods import convert_pod, move_common_fields
from estimator_pipeline.migrate.configs.formats.tables import Table, convert_table, later, taken

__all__ = ["FIELDS", "VERSIONS", "convert", "is_tfjob"]

VERSIONS = ("v1alpha2", "v1beta1", "v1beta2", "v1")
_ROLES = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "ps": "ps",
    "evaluator": "evaluator",
    "eval": "evaluator",
}
_STATUS = "a status field of the cluster"
# The types of the fields. "*" is any name. A field that is neither here nor in a table below is unknown, which
# is a decision.
_MAPPINGS, _TEXTS, _WORDS = [dict], {"*": str}, [object]
_CONTAINER = {
    **dict.fromkeys(("name", "image", "imagePullPolicy", "workingDir"), str),
    **dict.fromkeys(("command", "args"), _WORDS),
    **dict.fromkeys(("env", "envFrom", "ports", "volumeMounts"), _MAPPINGS),
    "resources": dict,
}
_POD = {
    "containers": [_CONTAINER],
    **dict.fromkeys(("volumes", "tolerations", "imagePullSecrets", "initContainers"), _MAPPINGS),
    "nodeSelector": _TEXTS,
    **dict.fromkeys(
        ("serviceAccountName", "serviceAccount", "priorityClassName", "restartPolicy", "schedulerName"), str
    ),
    "terminationGracePeriodSeconds": int,
    **dict.fromkeys(("securityContext", "affinity"), dict),
    "hostNetwork": bool,
}
_META = {**dict.fromkeys(("name", "generateName", "namespace"), str), "labels": _TEXTS, "annotations": _TEXTS}
_ROLE = {"replicas": int, "restartPolicy": str, "template": {"metadata": _META, "spec": _POD}}
_POLICY = {
    **dict.fromkeys(("cleanPodPolicy", "managedBy"), str),
    **dict.fromkeys(("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"), int),
    "schedulingPolicy": dict,
    "suspend": bool,
}
FIELDS = {
    "apiVersion": str,
    "kind": str,
    "metadata": _META,
    "spec": {
        **_POLICY,
        "runPolicy": _POLICY,
        "successPolicy": str,
        "enableDynamicWorker": bool,
        "tfReplicaSpecs": {"*": _ROLE},
    },
}
_REQUIRED = ("spec", "tfReplicaSpecs", "template", "containers")
_TYPES = {str: "text", int: "a number from 0 to 999999999", bool: "true or false", dict: "a mapping", list: "a list",
          object: "text or a number"}  # fmt: skip


def _mistakes(data: Any, kind: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path of each value that does not have its type, and the type."""
    outer = type(kind) if isinstance(kind, dict | list) else kind
    scalar = not isinstance(data, dict | list) and data is not None
    # Kubernetes reads a number in quotes, too.
    fits = re.fullmatch(r"\d{1,9}", str(data)) if kind is int else scalar if kind is object else isinstance(data, outer)
    if not fits:
        yield path, f"{_TYPES[outer]} (found: {data!r:.60})"
    elif isinstance(kind, list):
        for i, item in enumerate(data):
            yield from _mistakes(item, kind[0], (*path, i))
    elif isinstance(kind, dict):
        for name, item in data.items():
            if (name in kind and item is not None) or "*" in kind:
                yield from _mistakes(item, kind.get(name, kind.get("*")), (*path, name))
        for name in _REQUIRED:
            if name in kind and not data.get(name):
                yield (*path, name), "a value, which is missing"


def convert(draft: JobDraft) -> None:
    """Convert each field of a TFJob."""
    document = draft.document
    version = str(document.data.get("apiVersion", "")).rpartition("/")[2]
    if version not in VERSIONS:
        actual = f"{document.data.get('apiVersion')!r}; known: {', '.join(f'kubeflow.org/{v}' for v in VERSIONS)}"
        hint = "from v1alpha1, rename spec.replicaSpecs to spec.tfReplicaSpecs, as in v1"
        raise bad(f"{document.place(('apiVersion',))}: unsupported API version of a TFJob", actual, hint)
    if not is_tfjob(document.data):
        raise bad(f"{document.place(('kind',))}: not a TFJob", f"{document.data.get('kind')!r:.60}", "set kind: TFJob")
    wrong = _mistakes(document.data, FIELDS, ())
    mistakes = [f"{document.place(path)}: {dotted(path)}: expected {kind}" for path, kind in wrong]
    if mistakes:
        raise bad(f"{document.source} is not a TFJob:\n  " + "\n  ".join(mistakes), None, "correct it there")
    for name in ("apiVersion", "kind"):
        item = document.item(name)
        if item is not None and name == "apiVersion":
            draft.drop(item, "submit kubernetes writes kubeflow.org/v1")
        elif item is not None:
            draft.take(item, ("kubernetes", "kind"), "tfjob", why="or job or jobset, which need no operator")
    roles = _replicas(draft, list(document.data["spec"]["tfReplicaSpecs"]))
    convert_table(draft, _METADATA, document.items("metadata"))
    convert_table(draft, _SPEC, [*document.items("spec"), *document.items("spec", "runPolicy")])
    convert_pods(draft, roles)
    status = document.item("status")
    if status is not None:
        draft.drop(status, _STATUS)


def _labels(draft: JobDraft, item: Item) -> None:
    for label in draft.document.items(*item.path):
        draft.take(label, ("kubernetes", "labels", str(label.path[-1])))


def _annotations(draft: JobDraft, item: Item) -> None:
    for annotation in draft.document.items(*item.path):
        if "last-applied-configuration" in str(annotation.path[-1]):
            draft.drop(annotation, "added by kubectl")
        else:
            why = "an annotation of the TFJob; kubernetes.annotations sets those of the pods"
            draft.decide(annotation, why, ("kubernetes", "annotations"))


def _generated_name(draft: JobDraft, item: Item) -> None:
    draft.take(item, ("name",), str(item.value).rstrip("-"), why="submit kubernetes --name for each start")


_METADATA: Table = {
    "name": taken("name"),
    "generateName": _generated_name,
    "namespace": taken("kubernetes.namespace"),
    "labels": _labels,
    "annotations": _annotations,
    **dict.fromkeys(("creationTimestamp", "uid", "resourceVersion", "generation", "selfLink", "managedFields",
                     "ownerReferences", "finalizers"), _STATUS),
}  # fmt: skip


# Roles -----------------------------------------------------------------------------------------------------------


def _replicas(draft: JobDraft, names: list[str]) -> dict[str, Path]:
    """Set the cluster from the replica specs; return role -> path of its spec."""
    document = draft.document
    roles: dict[str, Path] = {}
    counts: dict[str, int] = {}
    for name in names:
        role = _ROLES.get(name.lower())
        path: Path = ("spec", "tfReplicaSpecs", name)
        if role is None or role in roles:
            problem = f"{document.place(path)}: {dotted(path)}: "
            actual = f"{', '.join(names)}; allowed: Chief or Master, Worker, PS, Evaluator"
            if role is None:
                raise bad(f"{problem}not a role of a TFJob", actual, "correct the name")
            raise bad(f"{problem}a second {role}", actual, "keep one of the two")
        item = document.item(*path, "replicas")
        count = 1 if item is None or item.value is None else int(item.value)
        roles[role], counts[role] = path, count
        if count == 0 and item is not None:
            draft.drop(item, "none")
    chief = counts.get("chief", 0)
    for role, count in counts.items():
        item = document.item(*roles[role], "replicas") or Item(roles[role], 1, document.line(roles[role]))
        # For a default, the path of the role would cover every field below it.
        replicas = item if item.path[-1] == "replicas" else Item((*roles[role], "replicas"), 1, item.line)
        if count == 0:
            continue
        if role in ("chief", "evaluator"):
            if count > 1:
                draft.decide(replicas, f"a job has at most one {role}", ("cluster", role))
            else:
                draft.take(replicas, ("cluster", role), True)
        else:
            draft.take(replicas, ("cluster", "workers" if role == "worker" else "ps"), count)
    if chief and not counts.get("worker"):
        draft.derive(("cluster", "workers"), 0, "only the chief trains")
    master = any(name.lower() == "master" for name in names)
    if chief and master and not counts.get("evaluator"):
        draft.derive(("cluster", "dialect"), "master", "the role Master also evaluates")
    put_strategy(draft)
    return {role: path for role, path in roles.items() if counts[role]} or roles


def convert_pods(draft: JobDraft, roles: dict[str, Path]) -> None:
    """Convert the pod templates; common fields go to `kubernetes.pods`."""
    for role, path in roles.items():
        item = draft.document.item(*path, "restartPolicy")
        if item is not None:
            _restart_policy(draft, item)
        convert_pod(draft, role, (*path, "template"), alone=len(roles) == 1)
    move_common_fields(draft, list(roles))
    section = draft.job.get("kubernetes", {})
    training = [section.get("pods", {}), *(section.get("roles", {}).get(role, {}) for role in ("chief", "worker"))]
    need_devices(draft, max(part.get("gpus") or 0 for part in training))
    _programs(draft, roles)


def _restart_policy(draft: JobDraft, item: Item) -> None:
    if item.value == "Never":
        why = "no restarts: max_restarts: 0 (the default is 3)"
        draft.decide(item, why, ("kubernetes", "max_restarts"), once=True)
    elif item.value == "ExitCode":
        draft.drop(
            item,
            "submit kubernetes writes OnFailure: ExitCode does not restart codes below 128, such as 75 (preempted)",
        )
    elif item.value in ("OnFailure", "Always", None):
        draft.drop(item, "submit kubernetes writes OnFailure, with max_restarts")
    else:
        draft.decide(item, "an unknown policy; the default is 3 restarts", ("kubernetes", "max_restarts"), once=True)


# Programs --------------------------------------------------------------------------------------------------------


def _programs(draft: JobDraft, roles: dict[str, Path]) -> None:
    """Convert the command of one training role; compare the other roles."""
    first = next((role for role in ("chief", "worker", "ps", "evaluator") if role in roles), None)
    lead: list[str] | None = None
    for role in sorted(roles, key=lambda name: name != first):
        path = draft.container_paths.get(role)
        if path is None:
            continue
        tokens = _tokens(draft, path)
        if tokens is None:
            continue
        texts = [str(token.value) for token in tokens]
        if lead is None:
            lead = texts
            _program(draft, tokens)
        elif texts == lead:
            for name in ("command", "args"):
                whole = draft.document.item(*path, name)
                if whole is not None:
                    draft.drop(whole, f"same as for the {first}")
        else:
            for token in tokens:
                same = str(token.value) in lead
                if same:
                    draft.drop(token, f"same as for the {first}")
                else:
                    draft.decide(token, f"differs from the {first}; all tasks of a job file run the same program")


def _tokens(draft: JobDraft, path: Path) -> list[Item] | None:
    """Return the words of a container's command; None for a shell script."""
    tokens = [*draft.document.items(*path, "command"), *draft.document.items(*path, "args")]
    texts = [str(token.value) for token in tokens]
    shell = [i for i, text in enumerate(texts) if text in ("-c", "-lc", "-ec")]
    if len(texts) >= 3 and re.search(r"(^|/)(ba|da|z)?sh$", texts[0]) and shell and shell[0] == len(texts) - 2:
        script = tokens[-1]
        words = plain_words(texts[-1].strip())
        for token in tokens[:-1]:
            draft.drop(token, "a shell that starts the program")
        if words is None:
            draft.decide(script, "a shell script: read its program and arguments manually")
            return None
        return [Item(script.path, word, script.line) for word in words]
    # Kubernetes replaces $(NAME) by a variable of the container.
    return [t._replace(value=Computed(t.value)) if re.search(r"\$\(\w", str(t.value)) else t for t in tokens]


def _program(draft: JobDraft, tokens: list[Item]) -> None:
    at = next((i for i, token in enumerate(tokens) if _is_program(str(token.value))), None)
    flags = next((i for i, t in enumerate(tokens) if re.match(r"--?[A-Za-z]\w", str(t.value))), len(tokens))
    end = flags if at is None else at + 1
    words = tokens[:end]
    if words:
        text = " ".join(str(token.value) for token in words)
        program = Item(words[0].path, text, words[0].line)
        draft.decide(program, "the training program: set model.function to its model", ("model", "function"))
        draft.joined.update(token.path for token in words)
    apply_arguments(draft, tokens[end:])


def _is_program(text: str) -> bool:
    """Return whether a word is a script or a module."""
    return text.endswith((".py", ".pex", ".sh")) or re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", text) is not None


# Spec ------------------------------------------------------------------------------------------------------------


def _backoff(draft: JobDraft, item: Item) -> None:
    servers, evaluator = draft.current("cluster", "ps") or 0, bool(draft.current("cluster", "evaluator"))
    tasks = draft.training_tasks + servers + evaluator
    why = f"for each of {tasks} tasks; {item.value} in total"
    draft.take(item, ("kubernetes", "max_restarts"), -(-int(item.value) // tasks), why=why)


def _dynamic(draft: JobDraft, item: Item) -> None:
    if item.value:
        draft.decide(item, "the number of workers changes between runs, not within one", ("cluster", "workers"))
    else:
        draft.drop(item, "the default")


def _scheduling(draft: JobDraft, item: Item) -> None:
    for inner in draft.document.items(*item.path):
        if inner.path[-1] in _SCHEDULING:
            convert_table(draft, _SCHEDULING, [inner])
        else:
            draft.decide(inner, "up to a gang scheduler, which labels select", ("kubernetes", "labels"))


_SCHEDULING: Table = {
    "priorityClass": taken("kubernetes.priority_class"),
    "minAvailable": taken("kubernetes.scheduling_policy.min_available"),
    "queue": taken("kubernetes.scheduling_policy.queue"),
    "minResources": taken("kubernetes.scheduling_policy.min_resources"),
    "scheduleTimeoutSeconds": taken("kubernetes.scheduling_policy.schedule_timeout_seconds"),
}
_SPEC: Table = {
    "tfReplicaSpecs": later,
    "runPolicy": later,
    "ttlSecondsAfterFinished": taken("kubernetes.ttl_seconds_after_finished", "seconds"),
    "activeDeadlineSeconds": taken("kubernetes.active_deadline_seconds", "seconds"),
    "backoffLimit": _backoff,
    "cleanPodPolicy": "finished pods are kept for ttl_seconds_after_finished, so that logs can be read",
    "schedulingPolicy": _scheduling,
    **dict.fromkeys(("suspend", "managedBy"), ("up to the queue: a label selects Kueue", "kubernetes.labels")),
    "successPolicy": "a job is complete when all its tasks are",
    "enableDynamicWorker": _dynamic,
}


def is_tfjob(value: Any) -> bool:
    """Return whether a mapping is a TFJob."""
    return isinstance(value, dict) and value.get("kind") == "TFJob"
