"""Launchers: local clusters, restarts, Slurm and Kubernetes. No TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator_pipeline.utils import lazy

if TYPE_CHECKING:
    from estimator_pipeline.cluster.ports import HeldPorts, hold_ports
    from estimator_pipeline.launch.history import Attempt, read_events
    from estimator_pipeline.launch.local.metrics import MetricsView
    from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome, TaskEnd
    from estimator_pipeline.launch.local.plan import LaunchPlan, LaunchShape, TaskPlan, new_run_id, plan_local
    from estimator_pipeline.launch.local.run import HEARTBEAT_SECS, run_local
    from estimator_pipeline.launch.local.timeouts import TaskTimeouts
    from estimator_pipeline.launch.local.view import LineView, LiveView, SilentView, View, view_for
    from estimator_pipeline.launch.supervisor.attempts import (
        CommandView,
        plan_command,
        supervise_command,
        supervise_local,
    )
    from estimator_pipeline.launch.supervisor.restart_policy import RestartLimits

__all__ = [
    "HEARTBEAT_SECS",
    "Attempt",
    "CommandView",
    "Failure",
    "HeldPorts",
    "LaunchOutcome",
    "LaunchPlan",
    "LaunchShape",
    "LineView",
    "LiveView",
    "MetricsView",
    "RestartLimits",
    "SilentView",
    "TaskEnd",
    "TaskPlan",
    "TaskTimeouts",
    "View",
    "hold_ports",
    "new_run_id",
    "plan_command",
    "plan_local",
    "read_events",
    "run_local",
    "supervise_command",
    "supervise_local",
    "view_for",
]

_PUBLIC = {
    "Attempt": "estimator_pipeline.launch.history:Attempt",
    "CommandView": "estimator_pipeline.launch.supervisor.attempts:CommandView",
    "TaskTimeouts": "estimator_pipeline.launch.local.timeouts:TaskTimeouts",
    "Failure": "estimator_pipeline.launch.local.outcome:Failure",
    "HEARTBEAT_SECS": "estimator_pipeline.launch.local.run:HEARTBEAT_SECS",
    "HeldPorts": "estimator_pipeline.cluster.ports:HeldPorts",
    "RestartLimits": "estimator_pipeline.launch.supervisor.restart_policy:RestartLimits",
    "LineView": "estimator_pipeline.launch.local.view:LineView",
    "LiveView": "estimator_pipeline.launch.local.view:LiveView",
    "MetricsView": "estimator_pipeline.launch.local.metrics:MetricsView",
    "LaunchOutcome": "estimator_pipeline.launch.local.outcome:LaunchOutcome",
    "LaunchPlan": "estimator_pipeline.launch.local.plan:LaunchPlan",
    "LaunchShape": "estimator_pipeline.launch.local.plan:LaunchShape",
    "SilentView": "estimator_pipeline.launch.local.view:SilentView",
    "TaskEnd": "estimator_pipeline.launch.local.outcome:TaskEnd",
    "TaskPlan": "estimator_pipeline.launch.local.plan:TaskPlan",
    "View": "estimator_pipeline.launch.local.view:View",
    "hold_ports": "estimator_pipeline.cluster.ports:hold_ports",
    "new_run_id": "estimator_pipeline.launch.local.plan:new_run_id",
    "plan_command": "estimator_pipeline.launch.supervisor.attempts:plan_command",
    "plan_local": "estimator_pipeline.launch.local.plan:plan_local",
    "read_events": "estimator_pipeline.launch.history:read_events",
    "run_local": "estimator_pipeline.launch.local.run:run_local",
    "supervise_command": "estimator_pipeline.launch.supervisor.attempts:supervise_command",
    "supervise_local": "estimator_pipeline.launch.supervisor.attempts:supervise_local",
    "view_for": "estimator_pipeline.launch.local.view:view_for",
}

__getattr__, __dir__ = lazy.attach(__name__, _PUBLIC)
