"""The GPUs that this process may use."""

from __future__ import annotations

import glob
from collections.abc import Mapping

__all__ = ["visible_gpus"]


def visible_gpus(environ: Mapping[str, str], *, pattern: str = "/dev/nvidia[0-9]*") -> tuple[str, ...]:
    """Return the names of the NVIDIA GPUs that are visible with these variables, by the device files.

    CUDA ignores all entries from the first unknown one on; an empty list hides all GPUs.
    """
    on_host = sorted(glob.glob(pattern))
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return tuple(str(i) for i in range(len(on_host)))
    names = []
    for entry in text.split(","):
        entry = entry.strip()
        if not entry.isdigit() and not entry.startswith(("GPU-", "MIG-")):
            break
        names.append(entry)
    if any(not name.isdigit() for name in names):
        return tuple(names) if on_host else ()
    # A number beyond the last GPU ends the list.
    return tuple(name for i, name in enumerate(names) if all(int(n) < len(on_host) for n in names[: i + 1]))
