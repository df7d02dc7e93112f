"""Memory that every training step needs again stays with the process.

glibc gives the pages of a freed tensor back to the kernel at once: blocks from 128 KiB on by `munmap`, others when the
top of an arena is free. The next step asks for the same memory, and the kernel hands out pages of zeros, one fault for
each 4 KiB. With several workers on a machine that is a third of a step's time or more, since TensorFlow's threads
allocate in arenas of their own, and all of a step's memory is free when a step waits for the other workers.

:func:`keep_memory` tells glibc to keep what it has, by `mallopt` for this process and by the variables of `mallopt(3)`
for those that it starts. A process grows to the memory of its largest step, and stays there.

Nothing is done

* where the allocator is not glibc's: musl, macOS, or one that LD_PRELOAD names;
* where anything is set for it already: MALLOC_TOP_PAD_ and its like, or glibc.malloc in GLIBC_TUNABLES;
* with ESTIMATOR_PIPELINE_MALLOC=system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping, MutableMapping

__all__ = ["VARIABLE", "keep_memory"]

VARIABLE = "ESTIMATOR_PIPELINE_MALLOC"

_MIB = 1 << 20
# By glibc's malloc.h: the number of the parameter, its variable, bytes.
_PARAMETERS = (
    (-1, "MALLOC_TRIM_THRESHOLD_", 512 * _MIB),
    (-2, "MALLOC_TOP_PAD_", 64 * _MIB),
    # The most that glibc takes. Larger blocks are few, and copying them takes longer than their pages.
    (-3, "MALLOC_MMAP_THRESHOLD_", 32 * _MIB),
)


def keep_memory(environ: MutableMapping[str, str] | None = None) -> bool:
    """Lets this process, and those that it starts, keep what they have freed. Returns whether glibc was told.

    Args:
        environ: what processes are started with; `os.environ` by default. The variables are added to it.
    """
    environ = os.environ if environ is None else environ
    if not _is_ours_to_say(environ):
        return False
    libc = _glibc()
    if libc is None:
        return False
    for number, variable, size in _PARAMETERS:
        libc.mallopt(number, size)
        environ[variable] = str(size)
    return True


def _is_ours_to_say(environ: Mapping[str, str]) -> bool:
    if environ.get(VARIABLE, "") == "system" or "malloc" in environ.get("LD_PRELOAD", ""):
        return False
    said = any(name.startswith("MALLOC_") for name in environ)
    return not said and "glibc.malloc" not in environ.get("GLIBC_TUNABLES", "")


def _glibc() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        # musl and macOS lack one or the other.
        if libc.gnu_get_libc_version and libc.mallopt:
            return libc
    return None
