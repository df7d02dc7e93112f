"""Which signals ask a task to end with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from estimator_pipeline.errors import ConfigError

__all__ = ["SIGNALS", "SIGNALS_VARIABLE", "signals_of"]

SIGNALS_VARIABLE = "ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS"
# What schedulers send before they kill. SIGINT is a person's, who wants the end and no checkpoint.
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU")


def signals_of(given: Sequence[str] | None, environ: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """The signals that ask a task to end.

    Args:
        given: names of signals, such as "SIGUSR1"; None: what ESTIMATOR_PIPELINE_PREEMPTION_SIGNALS says, separated
            by commas, or SIGTERM.
        environ: where the variable is read.

    Raises:
        ConfigError: no such signal, or one that ends a task for another reason.
    """
    where = "preemption_signals"
    if given is None:
        where = SIGNALS_VARIABLE
        given = [name for name in environ.get(SIGNALS_VARIABLE, "SIGTERM").split(",") if name.strip()]
    found = []
    for name in given:
        full = name.strip().upper()
        full = full if full.startswith("SIG") else f"SIG{full}"
        if full not in SIGNALS:
            raise ConfigError(
                f"{where} names the signal {name!r}",
                code="environment/bad-value",
                found=f"allowed: {', '.join(SIGNALS)}",
                hint="name those that the scheduler sends before it kills, such as SIGUSR1 for --signal=USR1@60",
            )
        found.append(signal.Signals[full])
    return tuple(dict.fromkeys(found))
