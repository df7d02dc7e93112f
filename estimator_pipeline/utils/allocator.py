"""Settings of glibc's malloc that keep freed memory in the process.

By default glibc returns the pages of a freed tensor to the kernel at once: blocks from 128 KiB on by `munmap`, others
when the top of an arena is free. The next step allocates the same memory, and the kernel provides zeroed pages, with a
page fault for each 4 KiB. With several workers on a machine this takes a third of a step's time or more, since
TensorFlow's threads allocate in separate arenas, and all of a step's memory is free when it waits for other workers.

`keep_memory` makes glibc keep its memory, by `mallopt` for this process and by the variables of `mallopt(3)` for
its child processes. A process grows to the memory of its largest step, and does not shrink.

It has no effect

* if the allocator is not glibc's: musl, macOS, or one named in LD_PRELOAD;
* if any other setting exists already: MALLOC_TOP_PAD_ and similar variables, or glibc.malloc in GLIBC_TUNABLES;
* with ESTIMATOR_PIPELINE_MALLOC=system.

TensorFlow 2.21 replaces one of the settings later, for which `set_again` exists (compat/bootstrap/kept_memory.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping, MutableMapping

from estimator_pipeline.utils.process_state import STATE

__all__ = ["VARIABLE", "keep_memory", "set_again"]

VARIABLE = "ESTIMATOR_PIPELINE_MALLOC"

_MIB = 1 << 20
# The number of the parameter in glibc's malloc.h, its variable, and bytes.
_PARAMETERS = (
    (-1, "MALLOC_TRIM_THRESHOLD_", 512 * _MIB),
    (-2, "MALLOC_TOP_PAD_", 64 * _MIB),
    # The maximum of glibc. Larger blocks are few, and copying them takes longer than their page faults.
    (-3, "MALLOC_MMAP_THRESHOLD_", 32 * _MIB),
)
_OURS = {variable: str(size) for _, variable, size in _PARAMETERS}


def keep_memory(environ: MutableMapping[str, str] | None = None) -> bool:
    """Make glibc keep freed memory; return whether the settings were changed.

    Args:
        environ: The environment of child processes, to which the variables are added; by default `os.environ`.
    """
    environ = os.environ if environ is None else environ
    if not _is_unset(environ):
        return False
    STATE.allocator = _glibc()
    if STATE.allocator is None:
        return False
    set_again()
    environ.update(_OURS)
    return True


def set_again() -> None:
    """Repeat the settings of `keep_memory` in this process, after something else may have changed them.

    It has no effect without an earlier `keep_memory` that changed them.
    """
    if STATE.allocator is not None:
        for number, _, size in _PARAMETERS:
            STATE.allocator.mallopt(number, size)


def _is_unset(environ: Mapping[str, str]) -> bool:
    if environ.get(VARIABLE, "") == "system" or "malloc" in environ.get("LD_PRELOAD", ""):
        return False
    # A parent process may have added ours, which TensorFlow replaces in this process too.
    settings = {name: value for name, value in environ.items() if name.startswith("MALLOC_")}
    return settings in ({}, _OURS) and "glibc.malloc" not in environ.get("GLIBC_TUNABLES", "")


def _glibc() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        # musl and macOS lack one or the other.
        if libc.gnu_get_libc_version and libc.mallopt:
            return libc
    return None
