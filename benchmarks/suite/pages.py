"""Pages of files in the kernel's page cache, which show what was read. Linux only; no TensorFlow."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable

__all__ = ["drop", "resident"]


def drop(paths: Iterable[str]) -> None:
    """Drop the files from the page cache, except pages that another process has mapped."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # Dirty pages would be kept.
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident(paths: Iterable[str]) -> int:
    """Return the bytes of the files, in whole pages, that are in the page cache.

    Raises:
        OSError: `mincore` failed.
    """
    library = ctypes.CDLL(None, use_errno=True)
    total = 0
    for path in paths:
        size = os.path.getsize(path)
        if not size:
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # ctypes gives the address only of a writable map; a private one reads nothing.
            held = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(descriptor)
        count = -(-size // mmap.PAGESIZE)
        states = (ctypes.c_ubyte * count)()
        anchor = ctypes.c_char.from_buffer(held)
        try:
            address = ctypes.c_void_p(ctypes.addressof(anchor))
            if library.mincore(address, ctypes.c_size_t(size), states) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            del anchor
            held.close()
        total += sum(state & 1 for state in states) * mmap.PAGESIZE
    return total
