"""Holds what `submit kubernetes` makes, and the schemas of the tests, against upstream's CustomResourceDefinitions.

    python tools/kubernetes_crds.py jobset.x-k8s.io_jobsets.yaml kubeflow.org_tfjobs.yaml

The files are those of the releases of JobSet (config/components/crd/bases) and of training-operator
(manifests/base/crds); they are not kept here. Fields that the CRD does not have are refused, as the API server refuses
them. Ends with 1 where something does not fit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from estimator_pipeline.job import load_job
from estimator_pipeline.launch.kubernetes.manifests import KINDS, render

HERE = Path(__file__).resolve().parents[1] / "tests" / "kubernetes"
CHANGES = (
    (),
    ("cluster={}", "run.train_distribute=none"),
    ("kubernetes.step_timeout=900",),
    ("kubernetes.pod_patch.spec={schedulerName: volcano, initContainers: [{name: a, image: b}]}",),
)
"""What the job files of the tests are changed by, each in its turn."""
OF_KIND = {
    "JobSet": (("kubernetes.tf_config=written",),),
    "TFJob": (("kubernetes.scheduling_policy={queue: a, min_available: 2, min_resources: {cpu: 4}}",),),
}
# What a ReplicatedJob or a replica holds is checked by the schemas of Kubernetes itself.
_ELSEWHERE = ("template",)


def strict(schema: Any) -> Any:
    """Return the same schema, in which a mapping has no other fields than those that are named."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if found.pop("x-kubernetes-int-or-string", None):
        found.pop("anyOf", None)
        found["type"] = ["integer", "string"]
    is_mapping = schema.get("type") == "object" and isinstance(schema.get("properties"), dict)
    if is_mapping and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def unlike(own: Any, theirs: Any, path: str) -> Iterator[str]:
    """Where the schema of the tests names a field, a type or a value that the CRD does not have."""
    if "enum" in own and "enum" in theirs and not set(own["enum"]) <= set(theirs["enum"]):
        yield f"{path}: {sorted(set(own['enum']) - set(theirs['enum']))} is not allowed upstream"
    types = own.get("type")
    if types and theirs.get("type") and types != theirs["type"]:
        yield f"{path}: {types} in the tests, {theirs['type']} upstream"
    for name, inner in own.get("properties", {}).items():
        if name not in theirs.get("properties", {}):
            yield f"{path}.{name}: no such field upstream"
        elif name not in _ELSEWHERE:
            yield from unlike(inner, theirs["properties"][name], f"{path}.{name}")
    for name in set(theirs.get("required", ())) - set(own.get("required", ())):
        yield f"{path}.{name}: required upstream, and not in the tests"
    for key in ("items", "additionalProperties"):
        if isinstance(own.get(key), dict) and isinstance(theirs.get(key), dict):
            yield from unlike(own[key], theirs[key], f"{path}[]")


def resolved(schema: Any, whole: Any) -> Any:
    """Return the same schema without references."""
    if isinstance(schema, list):
        return [resolved(item, whole) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return resolved(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    return {key: resolved(value, whole) for key, value in schema.items()}


def faults(crd: dict[str, Any]) -> Iterator[str]:
    """Yield what does not fit one CustomResourceDefinition."""
    kind = crd["spec"]["names"]["kind"]
    ours = next(own for own, named in KINDS.items() if named == kind)
    (version,) = [one for one in crd["spec"]["versions"] if one["storage"]]
    schema = version["schema"]["openAPIV3Schema"]
    validator = jsonschema.Draft202012Validator(strict(schema["properties"]["spec"]))
    for job in sorted((HERE / "jobs").glob("*.yaml")):
        for changes in (*CHANGES, *OF_KIND[kind]):
            document = render(load_job(job, overrides=[*changes, f"kubernetes.kind={ours}"])).objects[-1]
            group, _, name = document["apiVersion"].partition("/")
            if (group, name) != (crd["spec"]["group"], version["name"]):
                yield f"{document['apiVersion']}: upstream it is {crd['spec']['group']}/{version['name']}"
            for error in validator.iter_errors(document["spec"]):
                yield f"{job.name} {' '.join(changes)}: spec.{'.'.join(map(str, error.path))}: {error.message[:200]}"
    own = json.loads((HERE / "schemas" / f"{ours}.json").read_text())
    own = resolved(own, own)["properties"]["spec"]
    yield from (f"the schema of the tests: {fault}" for fault in unlike(own, schema["properties"]["spec"], "spec"))


def main(files: list[str]) -> int:
    """Print what does not fit the CRDs in some files."""
    code = 0
    for file in files:
        found = list(faults(yaml.safe_load(Path(file).read_text(encoding="utf-8"))))
        print(f"{file}: {len(found) or 'no'} fault{'s'[: len(found) != 1]}")
        for fault in found:
            print(f"  {fault}")
        code = code or bool(found)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
