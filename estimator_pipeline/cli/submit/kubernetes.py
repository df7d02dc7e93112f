"""`estimator-pipeline submit kubernetes`: a job file as objects of a Kubernetes cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from estimator_pipeline.cli.checks_before import refuse_hopeless
from estimator_pipeline.cli.train import with_engine

# Of doctor's, those that need neither files nor functions.
_CHECKS = ("data", "model")


def command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the manifests, and submit nothing; no kubectl is needed.")
    ] = False,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="job, jobset or tfjob, in the place of kubernetes.kind.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the job is called in Kubernetes; else by its own name.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="In the place of kubernetes.namespace.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="The pods' image, in the place of kubernetes.image.")
    ] = None,
    tf_config: Annotated[
        str | None,
        typer.Option(
            "--tf-config",
            metavar="WAY",
            help="environment: each task works TF_CONFIG out from its pod's variables; written: it is in the manifest.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the job file; may be repeated."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="estimator, keras or keras3, in the place of run.engine.")
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="Go on from the checkpoint although seed, data, global batch or model changed."
        ),
    ] = False,
    no_checks: Annotated[
        bool, typer.Option("--no-checks", help="Without a look at model and data set: the image has others.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Run a job in Kubernetes: an Indexed Job with a headless Service, a JobSet, or a TFJob, by the section kubernetes.

    With --dry-run the manifests are printed, as YAML or as a List in JSON. Otherwise kubectl gets them, with the
    cluster and the rights of its own configuration. A data set that is in no catalogue, and a model that does not take
    the data, are told first; files and own functions are in the image, and not looked at.

    The exit code is 0 when all was accepted, or when this very job runs already; 2 for bad input, and where a job of
    this name is another one or has ended; 1 when kubectl or the cluster refused.
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
        refuse_hopeless(
            [loaded],
            file=str(job),
            done="nothing is submitted (--no-checks submits all the same)",
            checks=_CHECKS,
            other_files=True,
        )
    if dry_run:
        typer.echo(manifest_json(manifests) if as_json else manifest_text(manifests).rstrip("\n"))
        return
    said = kubernetes_jobs.submit(manifests, environ=os.environ)
    own = kubernetes_jobs.job_name(manifests)
    commands = {
        "status": f"estimator-pipeline status {own}{own.flags}",
        "logs": f"estimator-pipeline logs --follow {own}{own.flags}",
        "cancel": f"estimator-pipeline cancel {own}{own.flags}",
        "delete": own.delete,
    }
    if as_json:
        document = {
            "name": manifests.name,
            "kind": manifests.kind,
            "namespace": manifests.namespace,
            "submitted": said is not None,
            "tasks": manifests.tasks,
            "objects": [f"{made['kind']}/{made['metadata']['name']}" for made in manifests.objects],
            "notes": list(manifests.notes),
            "commands": commands,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    for note in manifests.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{own} runs already, just as it was to be submitted" if said is None else said.rstrip("\n"))
    for what, line in commands.items():
        typer.echo(f"{what + ':':<7} {line}")
