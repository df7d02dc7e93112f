"""A local cluster of TF_CONFIG tasks: planned as data, then run to its end. Imports no TensorFlow."""

from __future__ import annotations

from estimator_pipeline.launch.local import launch_local, run_local
from estimator_pipeline.launch.outcome import Failure, Outcome, TaskEnd
from estimator_pipeline.launch.plan import Plan, Shape, TaskPlan, new_run_id, plan_local
from estimator_pipeline.launch.ports import HeldPorts, hold_ports
from estimator_pipeline.launch.view import LineView, LiveView, SilentView, View, view_for

__all__ = [
    "Failure",
    "HeldPorts",
    "LineView",
    "LiveView",
    "Outcome",
    "Plan",
    "Shape",
    "SilentView",
    "TaskEnd",
    "TaskPlan",
    "View",
    "hold_ports",
    "launch_local",
    "new_run_id",
    "plan_local",
    "run_local",
    "view_for",
]
