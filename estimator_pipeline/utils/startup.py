"""Import of TensorFlow without garbage collection.

The import creates about 400,000 objects that live until the process exits. The cyclic GC would scan them roughly a
thousand times during the import, and once more at exit. This is a third of the CPU time of a process that only imports
TensorFlow.

* `loading` disables the GC during imports.
* In a process of the command line (`own_process`) it also calls `gc.freeze`, so that later collections, and those
  at exit, skip the imported objects. In a program that imports this package as a library nothing is frozen.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import sys
from collections.abc import Iterator

from estimator_pipeline.utils.process_state import STATE

__all__ = ["is_interactive", "is_own_process", "loading", "own_process"]


def own_process() -> None:
    """Mark this process as one of the command line, to freeze imported objects."""
    STATE.is_command = True


def is_own_process() -> bool:
    """Return whether this process runs a command of this package, and exits after it."""
    return STATE.is_command


def is_interactive() -> bool:
    """Return whether this is an interactive interpreter or a notebook."""
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Disable the GC in the block, and restore its state afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if STATE.is_command:
            gc.freeze()
        if enabled:
            gc.enable()
