"""Common parts of the benchmarks: child processes, ratios of alternating runs, tables."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator_pipeline.utils.system_limits import available_cores

ROOT = Path(__file__).resolve().parents[1]
_MEASURE = "--measure"


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options.add_argument(_MEASURE, help=argparse.SUPPRESS)
    return options


def in_child(script: str, way: str, *, arguments: Sequence[str] = (), timeout: float = 600) -> dict[str, Any]:
    """Run `script --measure WAY` in a child process, and return the JSON of its last line."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    command = [sys.executable, script, _MEASURE, way, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_turns(rate: Callable[[bool], float], rounds: int) -> dict[str, float]:
    """Measure a rate with and without a feature, in turns in one process.

    A figure is the median of the rounds, and a ratio the median of the ratios of neighbouring runs, since the speed of
    a shared machine varies. The order alternates, so that a drift of the speed favours neither. The first round is the
    warm-up and does not count.

    Args:
        rate: Function that returns the operations per second, with (True) or without (False) the feature.
        rounds: Number of rounds that count.
    """
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds + 1):
        for is_with in (False, True) if number % 2 else (True, False):
            measured = rate(is_with)
            if number:
                rates[is_with].append(measured)
    ratios = [with_one / without for without, with_one in zip(rates[False], rates[True], strict=True)]
    return {
        "without": statistics.median(rates[False]),
        "with": statistics.median(rates[True]),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def rate_columns(figures: Mapping[str, float]) -> dict[str, Any]:
    """Return the table columns for the result of `in_turns`, in steps per second."""
    rates = {f"steps/s {way}": round(figures[way]) for way in ("without", "with")}
    return {**rates, **{name: figures[name] for name in ("ratio", "least", "most")}}


def step_clock(tf: Any, behind: int) -> Any:
    """Return a SessionRunHook whose `rate()` is the steps per second, without the first `behind` steps.

    The first steps start threads and fill buffers.
    """

    class Clock(tf.estimator.SessionRunHook):
        def __init__(self) -> None:
            self.steps, self.begun, self.ended = 0, 0.0, 0.0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.steps += 1
            self.ended = time.perf_counter()
            if self.steps == behind:
                self.begun = self.ended

        def rate(self) -> float:
            return (self.steps - behind) / (self.ended - self.begun)

    return Clock()


def machine() -> dict[str, Any]:
    """Return the kind of machine and the versions, without names."""
    return {
        "cores": len(available_cores()),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "tensorflow": importlib.metadata.version("tensorflow"),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as aligned text; floats have three significant digits."""
    texts = [{k: f"{v:.3g}" if isinstance(v, float) else str(v) for k, v in row.items()} for row in rows]
    widths = {k: max(len(k), *(len(text[k]) for text in texts)) for k in texts[0]}
    lines = ["  ".join(k.ljust(w) for k, w in widths.items())]
    lines += ["  ".join(text[k].ljust(w) for k, w in widths.items()) for text in texts]
    return "\n".join(line.rstrip() for line in lines)


def report(name: str, rows: Sequence[Mapping[str, Any]], path: Path | None) -> None:
    """Print the table, and write the JSON file if there is a path."""
    about = machine()
    print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in about.items()))
    print(table(rows))
    if path is not None:
        path.write_text(json.dumps({"benchmark": name, "machine": about, "rows": list(rows)}, indent=1) + "\n")
