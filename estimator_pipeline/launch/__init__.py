"""Launchers: local clusters, restarts, Slurm and Kubernetes. No TensorFlow."""

from __future__ import annotations

from estimator_pipeline.cluster.ports import HeldPorts, hold_ports
from estimator_pipeline.launch.history import Attempt, read_events
from estimator_pipeline.launch.local.metrics import MetricsView
from estimator_pipeline.launch.local.outcome import Failure, LaunchOutcome, TaskEnd
from estimator_pipeline.launch.local.plan import LaunchPlan, LaunchShape, TaskPlan, new_run_id, plan_local
from estimator_pipeline.launch.local.run import HEARTBEAT_SECS, run_local
from estimator_pipeline.launch.local.timeouts import TaskTimeouts
from estimator_pipeline.launch.local.view import LineView, LiveView, SilentView, View, view_for
from estimator_pipeline.launch.supervisor.restart_policy import RestartLimits
from estimator_pipeline.launch.supervisor.supervisor import (
    CommandView,
    plan_command,
    supervise_command,
    supervise_local,
)

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
