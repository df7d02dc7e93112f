"""A kubectl whose cluster is a folder: it answers, refuses and prints as the real one does, and keeps what it is given.

FAKE_CLUSTER names the folder: `state.json` has the objects, `logs/POD` (and `logs/POD.previous`) what pods say, and
`calls.jsonl` gets the arguments of each call. There are no controllers: tests put pods and conditions there themselves.
What it knows of the API server: names are taken once, a Job's template and an immutable ConfigMap cannot be changed,
what is deleted takes its pods along, and these are there until their time is up (`"grace": N`: for N looks at them).
"""

import datetime
import fcntl
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(os.environ["FAKE_CLUSTER"])
# Resource, and its other names -> kind, and what kubectl prints of it.
RESOURCES = {
    "jobs.batch": ("Job", "job.batch"),
    "jobsets.jobset.x-k8s.io": ("JobSet", "jobset.jobset.x-k8s.io"),
    "tfjobs.kubeflow.org": ("TFJob", "tfjob.kubeflow.org"),
    "pods": ("Pod", "pod"),
    "service": ("Service", "service"),
    "configmap": ("ConfigMap", "configmap"),
    "events": ("Event", "event"),
}
WORKLOADS = ("Job", "JobSet", "TFJob")


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(1)


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Cluster:
    def __enter__(self):
        self.lock = open(ROOT / "lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.text = (ROOT / "state.json").read_text()
        self.state = json.loads(self.text)
        return self

    def __exit__(self, *_):
        # Tests write to it as well, while this one only looks.
        if json.dumps(self.state) != self.text:
            (ROOT / "state.json.new").write_text(json.dumps(self.state))
            (ROOT / "state.json.new").replace(ROOT / "state.json")
        self.lock.close()

    def find(self, kind, name, namespace):
        for one in self.state["objects"]:
            meta = one["metadata"]
            if (one["kind"], meta["name"], meta["namespace"]) == (kind, name, namespace):
                return one
        return None

    def chosen(self, resources, namespace, labels):
        for name in resources:
            if name not in RESOURCES or RESOURCES[name][0] in self.state.get("unknown", ()):
                fail(f'error: the server doesn\'t have a resource type "{name.partition(".")[0]}"')
        kinds = [RESOURCES[name][0] for name in resources]
        return [
            one
            for kind in kinds
            for one in self.state["objects"]
            if one["kind"] == kind
            and one["metadata"]["namespace"] == namespace
            and labels.items() <= one["metadata"].get("labels", {}).items()
        ]


def make(cluster, made, namespace, verb):
    kind, meta = made["kind"], made["metadata"]
    shown = next(text for own, text in RESOURCES.values() if own == kind)
    if kind in cluster.state.get("unknown", ()):
        fail(
            f'error: resource mapping not found for name: "{meta["name"]}" namespace: "" from "STDIN": '
            f'no matches for kind "{kind}" in version "{made["apiVersion"]}"\nensure CRDs are installed first'
        )
    if cluster.state.get("refuses"):
        fail(cluster.state["refuses"])
    meta.setdefault("namespace", namespace)
    old = cluster.find(kind, meta["name"], meta["namespace"])
    if old is None:
        meta["creationTimestamp"], meta["uid"] = now(), f"uid-{len(cluster.state['objects'])}"
        cluster.state["objects"].append(made)
        return f"{shown}/{meta['name']} created"
    if verb == "create":
        plural = {"Job": "jobs.batch", "ConfigMap": "configmaps", "Service": "services"}.get(kind, f"{kind.lower()}s")
        fail(
            f'Error from server (AlreadyExists): error when creating "STDIN": {plural} "{meta["name"]}" already exists'
        )
    if {k: v for k, v in made.items() if k != "metadata"} == {k: old[k] for k in made if k != "metadata"}:
        return f"{shown}/{meta['name']} unchanged"
    if kind == "Job":
        fail(f'The Job "{meta["name"]}" is invalid: spec.template: Invalid value: ...: field is immutable')
    if kind == "ConfigMap" and old.get("immutable"):
        fail(f'The ConfigMap "{meta["name"]}" is invalid: data: Forbidden: field is immutable when `immutable` is set')
    cluster.state["objects"].remove(old)
    cluster.state["objects"].append(made)
    return f"{shown}/{meta['name']} configured"


def get(cluster, words, options, namespace):
    resources = words[0].split(",")
    if len(words) > 1:
        found = cluster.find(RESOURCES[resources[0]][0], words[1], namespace)
        if found is None:
            fail(f'Error from server (NotFound): {resources[0]}s "{words[1]}" not found')
        return found
    items = cluster.chosen(resources, namespace, options["labels"])
    if "pods" in resources:
        # The time of pods that are being deleted goes by.
        for pod in [one for one in items if one["metadata"].get("deletionTimestamp")]:
            pod["grace"] = pod.get("grace", cluster.state.get("grace", 1)) - 1
            if pod["grace"] < 0:
                cluster.state["objects"].remove(pod)
                items.remove(pod)
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}


def delete(cluster, words, options, namespace):
    chosen = cluster.chosen(words[0].split(","), namespace, options["labels"])
    if not chosen:
        print("No resources found", file=sys.stderr)
    for one in chosen:
        shown = next(text for own, text in RESOURCES.values() if own == one["kind"])
        print(f'{shown} "{one["metadata"]["name"]}" deleted')
        if one["kind"] == "Pod":
            one["metadata"]["deletionTimestamp"] = now()
            # A second, which is over until somebody looks.
            one["grace"] = 0 if options.get("grace-period") == "1" else cluster.state.get("grace", 1)
            continue
        cluster.state["objects"].remove(one)
        if one["kind"] in WORKLOADS:
            for pod in cluster.chosen(["pods"], namespace, options["labels"]):
                pod["metadata"]["deletionTimestamp"] = now()


def logs(words, options, namespace):
    name = words[0]
    path = ROOT / "logs" / (f"{name}.previous" if "previous" in options else name)
    shown = 0
    while True:
        with Cluster() as cluster:
            pod = cluster.find("Pod", name, namespace)
        if pod is None and not shown:
            fail(f'Error from server (NotFound): pods "{name}" not found')
        states = [one["state"] for one in (pod or {}).get("status", {}).get("containerStatuses", ())]
        if states and "waiting" in states[0] and not path.exists():
            reason = states[0]["waiting"]["reason"]
            who = f'container "{options["c"]}" in pod "{name}"'
            fail(f"Error from server (BadRequest): {who} is waiting to start: {reason}")
        lines = path.read_text().splitlines() if path.exists() else []
        if "tail" in options and not shown:
            shown = max(len(lines) - int(options["tail"]), 0)
        for number, line in list(enumerate(lines))[shown:]:
            # All within one second, as the lines that --since-time gives again may be.
            when = f"2026-11-27T11:00:00.{number + 1:09}Z " if "timestamps" in options else ""
            print(f"{when}{line}", flush=True)
        shown = max(len(lines), shown)
        if "follow" not in options or not states or "running" not in states[0]:
            return
        if path.with_name(f"{name}.ends").exists():
            # As the API server ends every connection at some time.
            return
        time.sleep(0.02)


def main():
    arguments = sys.argv[1:]
    namespace, words, options = "default", [], {"labels": {}}
    while arguments:
        word = arguments.pop(0)
        if word in ("--namespace", "-n"):
            namespace = arguments.pop(0)
        elif word in ("-l", "--selector"):
            options["labels"] = dict(pair.split("=") for pair in arguments.pop(0).split(","))
        elif word in ("-o", "-f", "-c", "--field-selector"):
            options[word.lstrip("-")] = arguments.pop(0)
        elif word.startswith("--"):
            name, _, value = word[2:].partition("=")
            options[name] = value
        else:
            words.append(word)
    verb = words.pop(0)
    text = sys.stdin.read() if options.get("f") == "-" else ""
    with open(ROOT / "calls.jsonl", "a") as file:
        call = {"arguments": sys.argv[1:], "text": text, "kubeconfig": os.environ.get("KUBECONFIG")}
        file.write(json.dumps(call) + "\n")
    if verb == "logs":
        logs(words, options, namespace)
        return
    with Cluster() as cluster:
        if verb in ("apply", "create"):
            import yaml

            for made in yaml.safe_load_all(text):
                print(make(cluster, made, namespace, verb), flush=True)
        elif verb == "get":
            print(json.dumps(get(cluster, words, options, namespace)))
        elif verb == "delete":
            delete(cluster, words, options, namespace)
        else:
            fail(f'error: unknown command "{verb}" for "kubectl"')


main()
