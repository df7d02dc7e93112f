"""Check of the objects of `submit kubernetes` and the schemas of the tests against upstream's CRDs.

    python tools/kubernetes_crds.py jobset.x-k8s.io_jobsets.yaml kubeflow.org_tfjobs.yaml

The files are in the releases of JobSet (config/components/crd/bases) and training-operator (manifests/base/crds), not
in this repository. Fields that a CustomResourceDefinition does not have are rejected, as the API server rejects them.
The exit code is 1 if anything does not match.
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
from estimator_pipeline.launch.kubernetes.kubectl import KINDS
from estimator_pipeline.launch.kubernetes.manifests import render

HERE = Path(__file__).resolve().parents[1] / "tests" / "kubernetes"
CHANGES = (
    (),
    ("cluster={}", "run.train_distribute=none"),
    ("kubernetes.step_timeout=900",),
    ("kubernetes.pod_patch.spec={schedulerName: volcano, initContainers: [{name: a, image: b}]}",),
)
"""Overrides for the job files of the tests; each tuple is one variant."""
OF_KIND = {
    "JobSet": (("kubernetes.tf_config=written",),),
    "TFJob": (("kubernetes.scheduling_policy={queue: a, min_available: 2, min_resources: {cpu: 4}}",),),
}
# The pod template of a ReplicatedJob or a replica is checked with the schemas of Kubernetes itself.
_ELSEWHERE = ("template",)


def strict(schema: Any) -> Any:
    """Return the same schema, in which a mapping allows only its named fields."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    if result.pop("x-kubernetes-int-or-string", None):
        result.pop("anyOf", None)
        result["type"] = ["integer", "string"]
    is_mapping = schema.get("type") == "object" and isinstance(schema.get("properties"), dict)
    if is_mapping and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


def differences(ours: Any, theirs: Any, path: str) -> Iterator[str]:
    """Yield each field, type or value of the tests' schema that the CRD does not have."""
    if "enum" in ours and "enum" in theirs and not set(ours["enum"]) <= set(theirs["enum"]):
        yield f"{path}: {sorted(set(ours['enum']) - set(theirs['enum']))} is not allowed upstream"
    types = ours.get("type")
    if types and theirs.get("type") and types != theirs["type"]:
        yield f"{path}: {types} in the tests, {theirs['type']} upstream"
    for name, inner in ours.get("properties", {}).items():
        if name not in theirs.get("properties", {}):
            yield f"{path}.{name}: no such field upstream"
        elif name not in _ELSEWHERE:
            yield from differences(inner, theirs["properties"][name], f"{path}.{name}")
    for name in set(theirs.get("required", ())) - set(ours.get("required", ())):
        yield f"{path}.{name}: required upstream, and not in the tests"
    for key in ("items", "additionalProperties"):
        if isinstance(ours.get(key), dict) and isinstance(theirs.get(key), dict):
            yield from differences(ours[key], theirs[key], f"{path}[]")


def resolve(schema: Any, whole: Any) -> Any:
    """Return the same schema without references."""
    if isinstance(schema, list):
        return [resolve(item, whole) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return resolve(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    return {key: resolve(value, whole) for key, value in schema.items()}


def faults(crd: dict[str, Any]) -> Iterator[str]:
    """Yield each mismatch with one CustomResourceDefinition."""
    kind = crd["spec"]["names"]["kind"]
    ours = next(name for name, named in KINDS.items() if named == kind)
    (version,) = [version for version in crd["spec"]["versions"] if version["storage"]]
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
    schema_of_tests = json.loads((HERE / "schemas" / f"{ours}.json").read_text())
    schema_of_tests = resolve(schema_of_tests, schema_of_tests)["properties"]["spec"]
    yield from (
        f"the schema of the tests: {fault}"
        for fault in differences(schema_of_tests, schema["properties"]["spec"], "spec")
    )


def main(files: list[str]) -> int:
    """Print the mismatches with the CRDs of the files."""
    code = 0
    for file in files:
        mismatches = list(faults(yaml.safe_load(Path(file).read_text(encoding="utf-8"))))
        print(f"{file}: {len(mismatches) or 'no'} fault{'s'[: len(mismatches) != 1]}")
        for fault in mismatches:
            print(f"  {fault}")
        code = code or bool(mismatches)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
