"""Kubeflow's TFJob, v1alpha2 to v1.

Fields: the operator's API packages (pkg/apis/kubeflow.org/v1, before it pkg/apis/tensorflow/v1beta2 and older), and
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.configs.documents import Item, Path
from estimator_pipeline.migrate.configs.findings import JobDraft
from estimator_pipeline.migrate.configs.formats.arguments import apply_arguments
from estimator_pipeline.migrate.configs.formats.hyperparameters import put_strategy
from estimator_pipeline.migrate.configs.formats.machines import need_devices
from estimator_pipeline.migrate.configs.formats.pods import convert_pod, same_in_all
from estimator_pipeline.migrate.configs.formats.schemas import TFJob, checked

__all__ = ["VERSIONS", "convert"]

VERSIONS = ("v1alpha2", "v1beta1", "v1beta2", "v1")
_ROLES = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "ps": "ps",
    "evaluator": "evaluator",
    "eval": "evaluator",
}
_STATUS = "what the cluster said of the job"


def convert(draft: JobDraft) -> None:
    """Says of each field of a TFJob what becomes of it."""
    document = draft.document
    version = str(document.data.get("apiVersion", "")).rpartition("/")[2]
    if version not in VERSIONS:
        line = document.line(("apiVersion",))
        raise ConfigError(
            f"{document.source}{f', line {line}' if line else ''}: a TFJob of another version of the API.",
            code="file/bad-format",
            found=f"{document.data.get('apiVersion')!r}; known: {', '.join(f'kubeflow.org/{v}' for v in VERSIONS)}",
            hint="of v1alpha1, write spec.replicaSpecs as spec.tfReplicaSpecs, as v1 has it.",
        )
    job = checked(TFJob, document, what="TFJob")
    for name in ("apiVersion", "kind"):
        item = document.item(name)
        if item is not None and name == "apiVersion":
            draft.drop(item, "submit kubernetes writes kubeflow.org/v1")
        elif item is not None:
            draft.take(item, ("kubernetes", "kind"), "tfjob", why="or job, jobset: neither needs an operator")
    roles = _replicas(draft, list(job.spec.tfReplicaSpecs))
    _metadata(draft)
    _spec(draft, roles)
    convert_pods(draft, roles)
    status = document.item("status")
    if status is not None:
        draft.drop(status, _STATUS)


def _metadata(draft: JobDraft) -> None:
    for item in draft.document.items("metadata"):
        name = str(item.path[-1])
        if name == "name":
            draft.take(item, ("name",))
        elif name == "generateName":
            draft.take(item, ("name",), str(item.value).rstrip("-"), why="submit kubernetes --name for each start")
        elif name == "namespace":
            draft.take(item, ("kubernetes", "namespace"))
        elif name == "labels":
            for label in draft.document.items("metadata", "labels"):
                draft.take(label, ("kubernetes", "labels", str(label.path[-1])))
        elif name == "annotations":
            for own in draft.document.items("metadata", "annotations"):
                if "last-applied-configuration" in str(own.path[-1]):
                    draft.drop(own, "kubectl's own")
                else:
                    why = "of the TFJob itself; kubernetes.annotations are those of the pods"
                    draft.decide(own, why, ("kubernetes", "annotations"))
        elif name in ("creationTimestamp", "uid", "resourceVersion", "generation", "selfLink", "managedFields",
                      "ownerReferences", "finalizers"):  # fmt: skip
            draft.drop(item, _STATUS)


# Roles -----------------------------------------------------------------------------------------------------------


def _replicas(draft: JobDraft, names: list[str]) -> dict[str, Path]:
    """Role -> the path of its spec. The cluster follows from them."""
    document = draft.document
    roles: dict[str, Path] = {}
    counts: dict[str, int] = {}
    for name in names:
        role = _ROLES.get(name.lower())
        path: Path = ("spec", "tfReplicaSpecs", name)
        if role is None or role in roles:
            line = document.line(path)
            raise ConfigError(
                f"{document.source}{f', line {line}' if line else ''}: spec.tfReplicaSpecs.{name}: "
                + ("no role of a TFJob." if role is None else f"a second {role}."),
                code="file/bad-format",
                found=f"{', '.join(names)}; allowed: Chief or Master, Worker, PS, Evaluator",
                hint="correct the name." if role is None else "keep one of the two.",
            )
        item = document.item(*path, "replicas")
        count = 1 if item is None or item.value is None else int(item.value)
        roles[role], counts[role] = path, count
        if count == 0 and item is not None:
            draft.drop(item, "none")
    chief = counts.get("chief", 0)
    for role, count in counts.items():
        item = document.item(*roles[role], "replicas") or Item(roles[role], 1, document.line(roles[role]))
        # What is only derived from a default has a path that would cover all below it.
        own = item if item.path[-1] == "replicas" else Item((*roles[role], "replicas"), 1, item.line)
        if count == 0:
            continue
        if role in ("chief", "evaluator"):
            if count > 1:
                draft.decide(own, f"there is one {role}", ("cluster", role))
            else:
                draft.take(own, ("cluster", role), True)
        else:
            draft.take(own, ("cluster", "workers" if role == "worker" else "ps"), count)
    if chief and not counts.get("worker"):
        draft.derive(("cluster", "workers"), 0, "the chief trains alone")
    master = any(name.lower() == "master" for name in names)
    if chief and master and not counts.get("evaluator"):
        draft.derive(("cluster", "dialect"), "master", "the role Master evaluates by itself")
    put_strategy(draft)
    return {role: path for role, path in roles.items() if counts[role]} or roles


def convert_pods(draft: JobDraft, roles: dict[str, Path]) -> None:
    """The templates of all roles: what they share once, what a role has otherwise for it alone."""
    for role, path in roles.items():
        item = draft.document.item(*path, "restartPolicy")
        if item is not None:
            _restart_policy(draft, item)
        convert_pod(draft, role, (*path, "template"), alone=len(roles) == 1)
    same_in_all(draft, list(roles))
    section = draft.job.get("kubernetes", {})
    training = [section.get("pods", {}), *(section.get("roles", {}).get(role, {}) for role in ("chief", "worker"))]
    need_devices(draft, max(part.get("gpus") or 0 for part in training))
    _programs(draft, roles)


def _restart_policy(draft: JobDraft, item: Item) -> None:
    if item.value == "Never":
        why = "no restarts: max_restarts: 0 (the default is 3)"
        draft.decide(item, why, ("kubernetes", "max_restarts"), once=True)
    elif item.value == "ExitCode":
        draft.drop(item, "submit kubernetes writes OnFailure: below 128 ExitCode is final, preemption (75) among it")
    else:
        draft.drop(item, "submit kubernetes writes OnFailure, with max_restarts")


# Programs --------------------------------------------------------------------------------------------------------


def _programs(draft: JobDraft, roles: dict[str, Path]) -> None:
    """Command and arguments: of one training role they are read, of the others only compared."""
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
                    draft.drop(whole, f"the same as of the {first}")
        else:
            for token in tokens:
                same = str(token.value) in lead
                if same:
                    draft.drop(token, f"the same as of the {first}")
                else:
                    draft.decide(token, f"other than of the {first}; all tasks of a job file run the same")


def _tokens(draft: JobDraft, path: Path) -> list[Item] | None:
    """Command and arguments of a container, one item a word; None: a shell script that is not taken apart."""
    tokens = [*draft.document.items(*path, "command"), *draft.document.items(*path, "args")]
    texts = [str(token.value) for token in tokens]
    shell = [i for i, text in enumerate(texts) if text in ("-c", "-lc", "-ec")]
    if len(texts) >= 3 and re.search(r"(^|/)(ba|da|z)?sh$", texts[0]) and shell and shell[0] == len(texts) - 2:
        script = tokens[-1]
        try:
            words = None if re.search(r"[;&|<>`\n]|\$\(", texts[-1].strip()) else shlex.split(texts[-1])
        except ValueError:
            words = None
        for token in tokens[:-1]:
            draft.drop(token, "a shell around the program")
        if words is None:
            draft.decide(script, "a shell script: its program, and its arguments, are read by a person")
            return None
        return [Item(script.path, word, script.line) for word in words]
    return tokens


def _program(draft: JobDraft, tokens: list[Item]) -> None:
    at = next((i for i, token in enumerate(tokens) if _is_program(str(token.value))), None)
    flags = next((i for i, t in enumerate(tokens) if re.match(r"--?[A-Za-z]\w", str(t.value))), len(tokens))
    end = flags if at is None else at + 1
    words = tokens[:end]
    if words:
        text = " ".join(str(token.value) for token in words)
        own = Item(words[0].path, text, words[0].line)
        draft.decide(own, "the program that was run: its model becomes model.function", ("model", "function"))
        draft.joined.update(token.path for token in words)
    apply_arguments(draft, tokens[end:])


def _is_program(text: str) -> bool:
    """Return a script, or a module behind -m; not the interpreter and its options."""
    return text.endswith((".py", ".pex", ".sh")) or re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", text) is not None


# Spec ------------------------------------------------------------------------------------------------------------


def _spec(draft: JobDraft, roles: dict[str, Path]) -> None:
    document = draft.document
    policies = [*document.items("spec"), *document.items("spec", "runPolicy")]
    for item in policies:
        name = str(item.path[-1])
        if name in ("tfReplicaSpecs", "runPolicy"):
            continue
        if item.value is None:
            draft.drop(item, "not set")
        elif name == "ttlSecondsAfterFinished":
            draft.take(item, ("kubernetes", "ttl_seconds_after_finished"), why="seconds")
        elif name == "activeDeadlineSeconds":
            draft.take(item, ("kubernetes", "active_deadline_seconds"), why="seconds")
        elif name == "backoffLimit":
            tasks = (
                draft.training_tasks
                + (draft.current("cluster", "ps") or 0)
                + bool(draft.current("cluster", "evaluator"))
            )
            each = -(-int(item.value) // tasks)
            draft.take(item, ("kubernetes", "max_restarts"), each, why=f"of each of {tasks} tasks; {item.value} in all")
        elif name == "cleanPodPolicy":
            draft.drop(item, "finished pods stay until ttl_seconds_after_finished, so that logs can be read")
        elif name == "schedulingPolicy":
            _scheduling(draft, item)
        elif name in ("suspend", "managedBy"):
            draft.decide(item, "a queue's affair: Kueue is asked for by a label", ("kubernetes", "labels"))
        elif name == "successPolicy":
            draft.drop(item, "a job is done when all its tasks are")
        elif name == "enableDynamicWorker":
            if item.value:
                draft.decide(item, "the number of workers changes between runs, not within one", ("cluster", "workers"))
            else:
                draft.drop(item, "the default")


_SCHEDULING = {
    "minAvailable": "min_available",
    "queue": "queue",
    "minResources": "min_resources",
    "scheduleTimeoutSeconds": "schedule_timeout_seconds",
}


def _scheduling(draft: JobDraft, item: Item) -> None:
    for inner in draft.document.items(*item.path):
        name = str(inner.path[-1])
        if name == "priorityClass":
            draft.take(inner, ("kubernetes", "priority_class"))
        elif name in _SCHEDULING:
            draft.take(inner, ("kubernetes", "scheduling_policy", _SCHEDULING[name]))
        else:
            draft.decide(inner, "a gang scheduler's affair: it is asked for by labels", ("kubernetes", "labels"))


def pods_named(value: Any) -> bool:
    """Whether a mapping is a TFJob."""
    return isinstance(value, dict) and value.get("kind") == "TFJob"
