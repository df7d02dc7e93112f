"""`estimator-pipeline submit kubernetes`: submit a job file to a Kubernetes cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.checks_before import reject_failing_jobs
from estimator_pipeline.cli.train import with_engine

# The checks of `doctor` that need neither files nor functions.
_CHECKS = ("data", "model")


def command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="Submit this job file.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the manifests without submitting them; does not need kubectl.")
    ] = False,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Override kubernetes.kind: job, jobset or tfjob.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Set the name in Kubernetes; default: the name of the job.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Override kubernetes.namespace.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Override kubernetes.image, the image of the pods.")
    ] = None,
    tf_config: Annotated[
        str | None,
        typer.Option(
            "--tf-config",
            metavar="WAY",
            help="Override kubernetes.tf_config: environment (each task derives TF_CONFIG from its pod's variables) or "
            "written (the manifest contains it).",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a field of the job file; repeatable."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Override run.engine: estimator, keras or keras3.")
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Resume from the checkpoint even if seed, data, global batch or model have changed.",
        ),
    ] = False,
    no_checks: Annotated[
        bool,
        typer.Option("--no-checks", help="Skip the checks of model and data set, if the image has different ones."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Run a job in Kubernetes as an Indexed Job with a headless Service, a JobSet, or a TFJob.

    The section kubernetes of the job file configures it. The manifests go to kubectl, which uses its cluster and
    credentials; --dry-run prints them as YAML, or as a List in JSON. Unknown data sets, and models that do not accept
    the data, are reported first. Files and user functions are in the image and are not checked.

    Exit codes: 0 if all objects were accepted or this job already runs, 1 if kubectl or the cluster rejected them, 2
    for bad input, or if a different or finished job has this name.
    """
    import os

    from estimator_pipeline.job import load_job
    from estimator_pipeline.launch.kubernetes import jobs as kubernetes_jobs
    from estimator_pipeline.launch.kubernetes.manifests import render
    from estimator_pipeline.launch.kubernetes.yaml_text import manifest_json, manifest_text

    changes = with_engine(settings, engine, None, accept_changes)
    fields = {"kind": kind, "namespace": namespace, "image": image, "tf_config": tf_config}
    changes += [f"kubernetes.{field}={json.dumps(value)}" for field, value in fields.items() if value is not None]
    loaded = load_job(job, overrides=changes)
    manifests = render(loaded, name=name)
    if not no_checks:
        reject_failing_jobs(
            [loaded],
            file=str(job),
            done="nothing is submitted (--no-checks submits all the same)",
            checks=_CHECKS,
            other_files=True,
        )
    if dry_run:
        typer.echo(manifest_json(manifests) if as_json else manifest_text(manifests).rstrip("\n"))
        return
    output = kubernetes_jobs.submit(manifests, environ=os.environ)
    submitted = kubernetes_jobs.job_name(manifests)
    commands = {
        "status": f"estimator-pipeline status {submitted}{submitted.flags}",
        "logs": f"estimator-pipeline logs --follow {submitted}{submitted.flags}",
        "cancel": f"estimator-pipeline cancel {submitted}{submitted.flags}",
        "delete": submitted.delete,
    }
    if as_json:
        document = {
            "name": manifests.name,
            "kind": manifests.kind,
            "namespace": manifests.namespace,
            "submitted": output is not None,
            "tasks": manifests.tasks,
            "objects": [f"{manifest['kind']}/{manifest['metadata']['name']}" for manifest in manifests.objects],
            "notes": list(manifests.notes),
            "commands": commands,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    for note in manifests.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{submitted} already runs with the same manifests" if output is None else output.rstrip("\n"))
    for action, line in commands.items():
        typer.echo(f"{action + ':':<7} {line}")
