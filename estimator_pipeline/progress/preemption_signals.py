"""Signals after which a task stops with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from estimator_pipeline.errors import ConfigError

__all__ = ["SIGNALS", "SIGNALS_VARIABLE", "signals_of"]

SIGNALS_VARIABLE = "ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS"
# Signals that schedulers send before SIGKILL. SIGINT comes from a user, who wants no checkpoint.
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU")


def signals_of(names: Sequence[str] | None, environ: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """Return the signals after which a task stops with a checkpoint.

    Args:
        names: The names of signals, such as "SIGUSR1"; None for those in ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS,
            separated by commas, by default SIGTERM.
        environ: The environment with this variable.

    Raises:
        ConfigError: A name is not one of the allowed signals.
    """
    where = "preemption_signals"
    if names is None:
        where = SIGNALS_VARIABLE
        names = [name for name in environ.get(SIGNALS_VARIABLE, "SIGTERM").split(",") if name.strip()]
    signals = []
    for name in names:
        full = name.strip().upper()
        full = full if full.startswith("SIG") else f"SIG{full}"
        if full not in SIGNALS:
            raise ConfigError(
                f"{where} names the signal {name!r}",
                code="environment/bad-value",
                found=f"allowed: {', '.join(SIGNALS)}",
                hint="name those that the scheduler sends before SIGKILL, such as SIGUSR1 for --signal=USR1@60",
            )
        signals.append(signal.Signals[full])
    return tuple(dict.fromkeys(signals))
