"""A local cluster of TF_CONFIG tasks: planned as data, then run to its end. Imports no TensorFlow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator_pipeline.cluster.ports import HeldPorts, hold_ports
    from estimator_pipeline.launch.history import Attempt, read_events
    from estimator_pipeline.launch.local.metrics import MetricsView
    from estimator_pipeline.launch.local.outcome import Failure, Outcome, TaskEnd
    from estimator_pipeline.launch.local.plan import Plan, Shape, TaskPlan, new_run_id, plan_local
    from estimator_pipeline.launch.local.run import HEARTBEAT_SECS, run_local
    from estimator_pipeline.launch.local.timeouts import Deadlines
    from estimator_pipeline.launch.local.view import LineView, LiveView, SilentView, View, view_for
    from estimator_pipeline.launch.supervisor.attempts import (
        CommandView,
        plan_command,
        supervise_command,
        supervise_local,
    )
    from estimator_pipeline.launch.supervisor.restart_policy import Limits

__all__ = [
    "HEARTBEAT_SECS",
    "Attempt",
    "CommandView",
    "Deadlines",
    "Failure",
    "HeldPorts",
    "Limits",
    "LineView",
    "LiveView",
    "MetricsView",
    "Outcome",
    "Plan",
    "Shape",
    "SilentView",
    "TaskEnd",
    "TaskPlan",
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

# Each task of a cluster tells its progress by a module of this package, and needs nothing else of it.
_MODULES = {
    "attempts": (
        "CommandView",
        "plan_command",
        "supervise_command",
        "supervise_local",
    ),
    "deadlines": ("Deadlines",),
    "history": ("Attempt", "read_events"),
    "local": (
        "HEARTBEAT_SECS",
        "run_local",
    ),
    "metrics": ("MetricsView",),
    "outcome": (
        "Failure",
        "Outcome",
        "TaskEnd",
    ),
    "plan": (
        "Plan",
        "Shape",
        "TaskPlan",
        "new_run_id",
        "plan_local",
    ),
    "policy": ("Limits",),
    "ports": (
        "HeldPorts",
        "hold_ports",
    ),
    "view": (
        "LineView",
        "LiveView",
        "SilentView",
        "View",
        "view_for",
    ),
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
