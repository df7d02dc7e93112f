"""What a job file says of pods beyond its own fields: `pod_patch`, Pod Security, a TFJob's scheduling policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job.sections.kubernetes_patch import KEYS, POD_FIELDS
from estimator_pipeline.launch.kubernetes.manifests import Manifests
from tests.launch.kubernetes.test_kubernetes import KINDS, job_of, rendered, validate

SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / "v1.37.0-local-strict"


def templates(made: Manifests) -> dict[str, dict[str, Any]]:
    """Role (or the Job's name) -> its pods' template."""
    found: dict[str, dict[str, Any]] = {}
    for one in made.objects:
        spec = one.get("spec", {})
        if one["kind"] == "Job":
            found[one["metadata"]["name"]] = spec["template"]
        for replicated in spec.get("replicatedJobs", ()):
            found[replicated["name"]] = replicated["template"]["spec"]["template"]
        for role, replica in spec.get("tfReplicaSpecs", {}).items():
            found[role.lower()] = replica["template"]
    return found


# Pod Security ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("job", ["workers", "parameter_servers"])
def test_pods_are_as_restricted_namespaces_want_them(kind, job):
    claim = "kubernetes.volumes=[{mount_path: /models, claim: models}]"
    made = rendered(job, f"kubernetes.kind={kind}", claim, "kubernetes.pods.shared_memory=1Gi")
    assert templates(made)
    for template in templates(made).values():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip


def test_pods_may_say_nothing_of_security():
    template = templates(rendered("workers", "kubernetes.pod_security=none"))["digits-cnn"]
    assert "securityContext" not in json.dumps(template)
    template = templates(rendered("workers", "kubernetes.pod_security=none", "kubernetes.run_as_user=7"))["digits-cnn"]
    assert template["spec"]["securityContext"] == {"runAsUser": 7}


# Patches ---------------------------------------------------------------------------------------------------------

PATCH = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"a/b": "c"}},
    "spec": {
        "schedulerName": "volcano",
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]
            }
        },
        "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}],
        "initContainers": [{"name": "fetch", "image": "busybox:1", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}],
        "volumes": [{"name": "x", "emptyDir": {}}],
        "securityContext": {"supplementalGroups": [5000]},
        "containers": [
            {"name": "tensorflow", "resources": {"limits": {"cpu": "8"}},
             "env": [{"name": "PYTHONUNBUFFERED", "value": "0"}]},
            {"name": "sidecar", "image": "busybox:1"},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_is_merged_into_every_pod(kind):
    changes = [f"kubernetes.kind={kind}", "kubernetes.pods.memory=1Gi", "kubernetes.labels={a: b}"]
    before = templates(rendered("workers", *changes))
    made = rendered("workers", *changes, f"kubernetes.pod_patch={json.dumps(PATCH)}")
    for document in made.objects:
        validate(document, "1.37")
    assert before.keys() == templates(made).keys()
    for role, template in templates(made).items():
        old, spec = before[role]["spec"], template["spec"]
        assert template["metadata"]["labels"] == {**before[role]["metadata"]["labels"], "team": "vision"}
        assert template["metadata"]["annotations"] == {"a/b": "c"}
        assert spec["schedulerName"] == "volcano" and spec["affinity"] == PATCH["spec"]["affinity"]
        assert spec["securityContext"] == {**old["securityContext"], "supplementalGroups": [5000]}
        assert spec["volumes"] == [*old["volumes"], {"name": "x", "emptyDir": {}}]
        own, sidecar = spec["containers"]
        assert sidecar == {"name": "sidecar", "image": "busybox:1"}
        assert own["command"] == old["containers"][0]["command"]
        assert own["resources"] == {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi", "cpu": "8"}}
        assert own["env"] == [{"name": "PYTHONUNBUFFERED", "value": "0"}, *old["containers"][0]["env"][1:]]


def test_a_role_has_a_patch_of_its_own_over_that_of_all():
    made = rendered(
        "workers",
        "kubernetes.pod_patch.spec={schedulerName: volcano, priorityClassName: low}",
        "kubernetes.roles.worker.pod_patch.spec={schedulerName: kueue, priorityClassName: null}",
        "kubernetes.priority_class=high",
    )
    found = {role: template["spec"] for role, template in templates(made).items()}
    assert found.keys() == {"digits-cnn-worker", "digits-cnn-evaluator"}, "pods that differ are Jobs of their own"
    worker, evaluator = found["digits-cnn-worker"], found["digits-cnn-evaluator"]
    assert worker["schedulerName"] == "kueue" and "priorityClassName" not in worker
    assert evaluator["schedulerName"] == "volcano" and evaluator["priorityClassName"] == "low"


def test_lists_without_names_take_the_place_of_what_was_there():
    tolerations = "kubernetes.pods.tolerations=[{key: a}]"
    made = rendered("workers", tolerations, "kubernetes.pod_patch.spec={tolerations: [{key: b, operator: Exists}]}")
    assert templates(made)["digits-cnn"]["spec"]["tolerations"] == [{"key": "b", "operator": "Exists"}]


def test_a_volume_of_another_kind_takes_the_place_of_one():
    patch = "kubernetes.pod_patch.spec={volumes: [{name: volume-1, hostPath: {path: /x}}]}"
    made = rendered("workers", "kubernetes.volumes=[{mount_path: /m, claim: m}]", patch)
    _, volume = templates(made)["digits-cnn"]["spec"]["volumes"]
    assert volume == {"name": "volume-1", "hostPath": {"path": "/x"}}


@pytest.mark.parametrize(
    ("patch", "path", "says"),
    [
        ({"spec": {"afinity": {}}}, "pod_patch.spec.afinity", "did you mean 'affinity'?"),
        ({"spce": {}}, "pod_patch.spce", "did you mean 'spec'?"),
        ({"metadata": {"name": "x"}}, "pod_patch.metadata.name", "allowed: labels, annotations"),
        ({"spec": {"restartPolicy": "Always"}}, "pod_patch.spec.restartPolicy", "set kubernetes.max_restarts"),
        ({"spec": {"terminationGracePeriodSeconds": 5}}, "Seconds", "set kubernetes.termination_grace_seconds"),
        ({"spec": {"hostname": "x"}}, "pod_patch.spec.hostname", "the tasks find each other"),
        ({"spec": {"containers": {"name": "x"}}}, "pod_patch.spec.containers", "this is a list in Kubernetes"),
        ({"spec": {"containers": [{"image": "x"}]}}, "pod_patch.spec.containers.0", "a mapping with name"),
        (
            {"spec": {"containers": [{"name": "tensorflow", "volumeMounts": [{"name": "x"}]}]}},
            "pod_patch.spec.containers.0.volumeMounts.0",
            "a mapping with mountPath",
        ),
        (
            {"spec": {"affinity": {"$patch": "delete"}}},
            "pod_patch.spec.affinity.$patch",
            "directives are not supported",
        ),
        ({"spec": {"volumes": [{"name": "job", "emptyDir": {}}]}}, "pod_patch.spec.volumes.0", "holds the job file"),
        (
            {"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}},
            "pod_patch.metadata.labels.app.kubernetes.io/instance",
            "identifies the job's pods",
        ),
        (
            {"spec": {"containers": [{"name": "tensorflow", "env": [{"name": "TF_CONFIG", "value": "x"}]}]}},
            "pod_patch.spec.containers.0.env.0",
            "the manifest sets this variable",
        ),
    ],
)
@pytest.mark.parametrize("where", ["kubernetes.", "kubernetes.roles.worker."])
def test_mistakes_in_a_patch_are_told_by_their_path(patch, path, says, where):
    with pytest.raises(ConfigError) as caught:
        job_of("workers", f"{where}pod_patch={json.dumps(patch)}")
    assert path in str(caught.value) and says in str(caught.value), str(caught.value)


def test_a_patch_of_another_kind_of_value_is_told_by_its_path():
    patch = {"spec": {"containers": [{"name": "tensorflow", "securityContext": []}]}}
    with pytest.raises(ConfigError, match=r"\.pod_patch\.spec\.containers\.tensorflow\.securityContext must be a"):
        rendered("workers", f"kubernetes.pod_patch={json.dumps(patch)}")


def test_the_fields_of_a_pod_are_those_of_kubernetes():
    """Its newest version has no field that a patch may not name, and merges lists by the same keys."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("podspec", "container"):
        found[name] = json.loads((SCHEMAS / f"{name}-v1.json").read_text())["properties"]
    assert found["podspec"].keys() == POD_FIELDS
    keys = {
        name: field["x-kubernetes-patch-merge-key"]
        for fields in found.values()
        for name, field in fields.items()
        if "x-kubernetes-patch-merge-key" in field
    }
    assert {name: key for name, key in keys.items() if name in KEYS} == KEYS
    assert keys.keys() - KEYS.keys() == {"ephemeralContainers", "evictionResponders"}


# Gang scheduling -------------------------------------------------------------------------------------------------


def test_a_tfjob_has_a_scheduling_policy():
    policy = (
        "{min_available: 2, queue: night, priority_class: low, min_resources: {cpu: 4, nvidia.com/gpu: 2}, "
        "schedule_timeout_seconds: 600}"
    )
    made = rendered("workers", "kubernetes.kind=tfjob", f"kubernetes.scheduling_policy={policy}")
    assert made.objects[-1]["spec"]["runPolicy"]["schedulingPolicy"] == {
        "minAvailable": 2,
        "queue": "night",
        "priorityClass": "low",
        "minResources": {"cpu": "4", "nvidia.com/gpu": "2"},
        "scheduleTimeoutSeconds": 600,
    }
    validate(made.objects[-1], "1.37")
    with pytest.raises(ConfigError, match=r"(?s)scheduling_policy: only a TFJob has a scheduling policy.*kind job"):
        job_of("workers", "kubernetes.scheduling_policy={queue: night}")
