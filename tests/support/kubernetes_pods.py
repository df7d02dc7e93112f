"""The pods that manifests would make, as the controllers do it: host names, labels, the variables that each adds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from estimator_pipeline.launch.kubernetes.manifests import Manifests


class Pod(NamedTuple):
    """A pod as its controller would make it: its name in the cluster's DNS, and its container's variables."""

    address: str
    environ: dict[str, str]
    labels: dict[str, str]
    spec: dict[str, Any]


def pods_of(manifests: Manifests, *, restart: int = 0) -> list[Pod]:
    return [pod for document in manifests.objects for pod in _pods(document, restart)]


def _pods(document: dict[str, Any], restart: int) -> Iterator[Pod]:
    spec, name = document.get("spec", {}), document["metadata"]["name"]
    if document["kind"] == "Job":
        yield from _pods_of_job(spec, name, {})
    elif document["kind"] == "JobSet":
        assert spec["network"]["enableDNSHostnames"]
        subdomain = spec["network"].get("subdomain", name)
        for replicated in spec["replicatedJobs"]:
            for i in range(replicated["replicas"]):
                labels = {
                    "jobset.sigs.k8s.io/jobset-name": name,
                    "jobset.sigs.k8s.io/jobset-uid": "4b1e-uid",
                    "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
                    "jobset.sigs.k8s.io/restart-attempt": str(restart),
                }
                job = replicated["template"]["spec"]
                yield from _pods_of_job(job, f"{name}-{replicated['name']}-{i}", labels, subdomain=subdomain)
    elif document["kind"] == "TFJob":
        yield from _pods_of_tfjob(document)


def _pods_of_job(
    spec: dict[str, Any], name: str, labels: dict[str, str], *, subdomain: str | None = None
) -> Iterator[Pod]:
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == spec["completions"]
    template = spec["template"]
    subdomain = subdomain or template["spec"].get("subdomain")
    for i in range(spec["completions"]):
        host = f"{name}-{i}"
        assert len(host) <= 63
        all_labels = {**template["metadata"]["labels"], **labels}
        annotations = {"batch.kubernetes.io/job-completion-index": str(i)}
        environ = {"HOSTNAME": host, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
        environ |= _variables(template["spec"], all_labels, annotations)
        # The Job controller adds its own variable behind the others.
        environ["JOB_COMPLETION_INDEX"] = str(i)
        yield Pod(f"{host}.{subdomain}" if subdomain else host, environ, all_labels, template["spec"])


def _variables(spec: dict[str, Any], labels: dict[str, str], annotations: dict[str, str]) -> dict[str, str]:
    """A container's variables, as the kubelet makes them: $(NAME) is one that was named before."""
    (container,) = spec["containers"]
    found: dict[str, str] = {}
    for variable in container["env"]:
        if "value" in variable:
            text = variable["value"]
            found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found.get(m[1], m[0]), text)
        else:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            source, key = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path).groups()
            found[variable["name"]] = {"labels": labels, "annotations": annotations}[source][key]
    assert len(found) == len(container["env"]), "a variable stands there twice"
    return found


def _pods_of_tfjob(document: dict[str, Any]) -> Iterator[Pod]:
    """As training-operator writes TF_CONFIG: a service for each pod, the evaluator outside of the cluster."""
    name, namespace = document["metadata"]["name"], document["metadata"].get("namespace", "default")
    replicas = document["spec"]["tfReplicaSpecs"]
    cluster: dict[str, list[str]] = {}
    for kind, replica in replicas.items():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "tensorflow"
        (port,) = [p["containerPort"] for p in container["ports"] if p["name"] == "tfjob-port"]
        if kind != "Evaluator":
            hosts = [f"{name}-{kind.lower()}-{i}.{namespace}.svc" for i in range(replica["replicas"])]
            cluster[kind.lower()] = [f"{host}:{port}" for host in hosts]
    for kind, replica in replicas.items():
        template = replica["template"]
        for i in range(replica["replicas"]):
            host = f"{name}-{kind.lower()}-{i}"
            environ = {"HOSTNAME": host, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
            environ |= _variables(template["spec"], template["metadata"]["labels"], {})
            if sum(r["replicas"] for r in replicas.values()) > 1:
                task = {"type": kind.lower(), "index": i}
                environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
            yield Pod(f"{host}.{namespace}.svc", environ, template["metadata"]["labels"], template["spec"])
