"""Size of the machine and versions of a measurement, without names."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from estimator_pipeline import __version__
from estimator_pipeline.utils.system_limits import available_cores

__all__ = ["about", "load"]


def about() -> dict[str, Any]:
    """Return the constants of a run: cores, memory, architecture, versions."""
    return {
        "cores": len(available_cores()),
        "memory_gib": round(_memory_bytes() / 2**30),
        "processor": _processor(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "tensorflow": _version("tensorflow"),
        "tf_keras": _version("tf-keras") or _version("keras"),
        "tensorflow_estimator": _version("tensorflow-estimator"),
        "estimator_pipeline": __version__,
    }


def load() -> float | None:
    """Return the load average of the last minute; None if the system has none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _processor() -> str:
    """Return the model name of the processor from /proc/cpuinfo."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = ""
    return model or platform.processor()
