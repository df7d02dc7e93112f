"""Kubernetes as one of the schedulers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.launch import kubernetes
from estimator_pipeline.launch.job_status import JobEntry, JobStatus
from estimator_pipeline.launch.scheduler import (
    JobList,
    JobReference,
    ListRequest,
    LogFolder,
    LogRequest,
    Scheduler,
    SubmitOption,
    SubmitPlan,
    SubmitRequest,
    SubmitResult,
    check_element,
)

if TYPE_CHECKING:
    from estimator_pipeline.launch.kubernetes.kubectl import JobName
    from estimator_pipeline.launch.kubernetes.manifests import Manifests
    from estimator_pipeline.launch.kubernetes.status import JobObjects, PodState

__all__ = ["KubernetesScheduler"]


class KubernetesScheduler(Scheduler["JobName"]):
    """Manifests for kubectl; a job is KIND/NAME, such as job/digits, or a job file that names an image."""

    name = "kubernetes"
    title = "Kubernetes"
    location = "in Kubernetes"
    program = "kubectl"
    notation = re.compile(r"(job|jobset|tfjob)/([-a-z0-9]+)")
    submit_help = """Run a job in Kubernetes as an Indexed Job with a headless Service, a JobSet, or a TFJob.

    The section kubernetes of the job file configures it. The manifests go to kubectl, which uses its cluster and
    credentials; --dry-run prints them as YAML, or as a List in JSON. Unknown data sets, and models that do not accept
    the data, are reported first. Files and user functions are in the image and are not checked.

    Exit codes: 0 if all objects were accepted or this job already runs, 1 if kubectl or the cluster rejected them, 2
    for bad input, or if a different or finished job has this name.
    """
    submit_options = (
        SubmitOption("--kind", "Override kubernetes.kind: job, jobset or tfjob.", "KIND", field="kubernetes.kind"),
        SubmitOption("--name", "Set the name in Kubernetes; default: the name of the job.", "NAME"),
        SubmitOption("--namespace", "Override kubernetes.namespace.", "NAME", short="-n", field="kubernetes.namespace"),
        SubmitOption("--image", "Override kubernetes.image, the image of the pods.", "IMAGE", field="kubernetes.image"),
        SubmitOption(
            "--tf-config",
            "Override kubernetes.tf_config: environment (each task derives TF_CONFIG from its pod's variables) or "
            "written (the manifest contains it).",
            "WAY",
            field="kubernetes.tf_config",
        ),
        SubmitOption("--engine", "Override run.engine: estimator, keras or keras3.", "NAME", field="run.engine"),
        SubmitOption(
            "--accept-changes",
            "Resume from the checkpoint even if seed, data, global batch or model have changed.",
            kind=bool,
            field="run.accept_changes",
        ),
    )
    # Pods always have time for a checkpoint, unless `now` is set.
    options = frozenset({"checkpoint", "element", "namespace", "now"})
    checks = ("data", "model")
    other_files = True

    def plan(self, request: SubmitRequest) -> SubmitPlan:
        from estimator_pipeline.job import load_job

        job = load_job(request.file, overrides=request.settings)
        manifests = kubernetes.manifests.render(job, name=request.options.get("name"))
        text, document = kubernetes.yaml_text.manifest_text(manifests), kubernetes.yaml_text.manifest_json(manifests)
        return SubmitPlan(text, document, [job], manifests)

    def submit(self, plan: SubmitPlan, *, environ: Mapping[str, str]) -> SubmitResult:
        manifests: Manifests = plan.content
        output = kubernetes.jobs.submit(manifests, environ=environ)
        submission = document(manifests, submitted=output is not None)
        done = f"{manifests.job} already runs with the same manifests" if output is None else output.rstrip("\n")
        lines = [done, *(f"{action + ':':<7} {line}" for action, line in submission["commands"].items())]
        messages = [(f"note: {note}", True) for note in manifests.notes]
        return SubmitResult(submission, [*messages, *((line, False) for line in lines)])

    def claims(self, reference: JobReference) -> bool:
        return "namespace" in reference.options or _job_name(reference) is not None

    def find(self, reference: JobReference, *, environ: Mapping[str, str]) -> JobName:
        """See `Scheduler`. The job may not exist in the cluster."""
        if (name := _job_name(reference)) is not None:
            return name
        namespace = reference.options["namespace"]
        raise ConfigError(
            f"--namespace {namespace} is for jobs in Kubernetes, and {reference.name} is not one.",
            code="argument/not-applicable",
            found="no image in a section kubernetes",
            hint="name a job file with that section (and the same --set), or KIND/NAME, such as job/digits.",
        )

    def status(self, job: JobName, *, environ: Mapping[str, str]) -> JobEntry:
        return _entry(job, kubernetes.jobs.job_status(kubernetes.kubectl.Kubectl(job, environ)))

    def list_jobs(self, request: ListRequest, *, environ: Mapping[str, str]) -> JobList:
        """See `Scheduler`. Kubernetes itself deletes jobs that ended long ago."""
        jobs = kubernetes.jobs.list_jobs(request.options.get("namespace"), environ=environ)
        return JobList([_entry(*job) for job in jobs])

    def logs(self, job: JobName, reference: JobReference, request: LogRequest, *, environ: Mapping[str, str]) -> None:
        check_element(reference.options.get("element"), None, noun="logs")
        kubectl = kubernetes.kubectl.Kubectl(job, environ)
        there = kubernetes.jobs.find_objects(kubectl)
        if there is None or not there.pods:
            message = f"{job} has no pods and therefore no logs."
            raise ConfigError(message, code="jobs/not-found", hint=f"see `status {job}{job.flags}`.")
        tasks = list(dict.fromkeys(pod.task for pod in there.pods))
        request.check(tasks)
        if request.failed:
            first = kubernetes.status.first_failure(there.workloads, there.pods)
            if first is None:
                raise ConfigError("no task has failed, as far as its pods are still there.", code="jobs/not-found")
            request.write(kubernetes.status.failure_of(first).text())
            for line in kubernetes.logs.failed_log(kubectl, first, lines=request.lines):
                request.write(line)
            return
        show = request.show(tasks)

        def wanted(there: JobObjects | None) -> list[PodState]:
            return [pod for pod in (there.pods if there else ()) if request.task in (None, pod.task)]

        def now() -> tuple[list[PodState], bool]:
            there = kubernetes.jobs.find_objects(kubectl)
            return wanted(there), there is None or there.status.ended

        if request.follow:
            kubernetes.logs.follow(kubectl, now, lines=request.lines, show=show)
            return
        for task, line in kubernetes.logs.printed(kubectl, wanted(there), lines=request.lines):
            show(task, line)

    def stacks(self, job: JobName, reference: JobReference) -> LogFolder:
        """Raise an error: the log folders are in the pods."""
        raise ConfigError(
            f"{job}: the tasks of a job in Kubernetes cannot be reached from here, because their logs are in pods.",
            code="argument/not-applicable",
            hint="run the command in a pod, where kubernetes.step_timeout has started a supervisor: "
            f"`kubectl{job.flags} exec POD -- sh -c 'estimator-pipeline stacks /tmp/estimator-pipeline-*'`.",
        )

    def cancel(
        self, job: JobName, reference: JobReference, *, environ: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        kubectl = kubernetes.kubectl.Kubectl(job, environ)
        kubernetes.jobs.cancel(kubectl, now="now" in reference.options, report=report)


def document(manifests: Manifests, *, submitted: bool) -> dict[str, Any]:
    """Return a submission as a JSON document, with the commands for its job."""
    job = manifests.job
    return {
        "name": job.name,
        "kind": job.kind,
        "namespace": job.namespace,
        "submitted": submitted,
        "tasks": manifests.tasks,
        "objects": [f"{item['kind']}/{item['metadata']['name']}" for item in manifests.objects],
        "notes": list(manifests.notes),
        "commands": {
            "status": f"estimator-pipeline status {job}{job.flags}",
            "logs": f"estimator-pipeline logs --follow {job}{job.flags}",
            "cancel": f"estimator-pipeline cancel {job}{job.flags}",
            "delete": job.delete,
        },
    }


def _job_name(reference: JobReference) -> JobName | None:
    """Return the job if the user names it by KIND/NAME, or by a job file with an image."""
    namespace, job = reference.options.get("namespace"), reference.job
    named = KubernetesScheduler.notation.fullmatch(reference.name)
    if named and reference.is_id:
        return kubernetes.kubectl.JobName(named[1], named[2], namespace)
    if job is None or job.kubernetes.image is None:
        return None
    name = kubernetes.manifests.kubernetes_name(job.name)
    return kubernetes.kubectl.JobName(job.kubernetes.kind, name, namespace or job.kubernetes.namespace)


def _entry(job: JobName, status: JobStatus) -> JobEntry:
    return JobEntry({"scheduler": "kubernetes", **job._asdict()}, [status])
