"""What all benchmarks share: each way of doing a thing in a process of its own, ratios, one table."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_ASKED = "--measure"


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options.add_argument(_ASKED, help=argparse.SUPPRESS)
    return options


def in_child(script: str, way: str, *, arguments: Sequence[str] = (), timeout: float = 600) -> dict[str, Any]:
    """Runs `script --measure WAY` in a process of its own, and gives back what it printed as JSON on its last line."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    command = [sys.executable, script, _ASKED, way, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def machine() -> dict[str, Any]:
    """The kind of machine, and the versions: what a figure means nothing without. No names."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "tensorflow": importlib.metadata.version("tensorflow"),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as aligned text; floats with three digits that matter."""
    texts = [{k: f"{v:.3g}" if isinstance(v, float) else str(v) for k, v in row.items()} for row in rows]
    widths = {k: max(len(k), *(len(text[k]) for text in texts)) for k in texts[0]}
    lines = ["  ".join(k.ljust(w) for k, w in widths.items())]
    lines += ["  ".join(text[k].ljust(w) for k, w in widths.items()) for text in texts]
    return "\n".join(line.rstrip() for line in lines)


def report(name: str, rows: Sequence[Mapping[str, Any]], path: Path | None) -> None:
    """Prints the table, and writes the JSON file if one was asked for."""
    about = machine()
    print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in about.items()))
    print(table(rows))
    if path is not None:
        path.write_text(json.dumps({"benchmark": name, "machine": about, "rows": list(rows)}, indent=1) + "\n")
