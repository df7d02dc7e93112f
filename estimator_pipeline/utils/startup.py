"""Loading TensorFlow without looking for garbage in it.

An import of TensorFlow makes 400,000 objects that live as long as the process. Python's cyclic collector looks at them
some thousand times while they are made, and at all of them again when the process ends: a third of the CPU time of a
process that only imports it. None of them is ever garbage.

* :func:`loading` is a block in which nothing is collected: the imports.
* In a process that is this package's from its start (:func:`own_process`: the command line), the block also hands what
  it has loaded to `gc.freeze`, so that later collections, and those at the end of the process, pass it over. A program
  that imports this package as a library keeps its own objects as they were: they are not ours to freeze.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import sys
from collections.abc import Iterator

__all__ = ["is_interactive", "is_own_process", "loading", "own_process"]

_own = False


def own_process() -> None:
    """Says that this process runs a command of ours: what stands when TensorFlow is loaded stands to its end."""
    global _own
    _own = True


def is_own_process() -> bool:
    """Whether this process runs a command of ours, and ends when that ends."""
    return _own


def is_interactive() -> bool:
    """Whether a person types at this interpreter, or a notebook does: it outlives what is interrupted in it."""
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """A block that imports what stays. The collector is on again after it where it was on before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _own:
            gc.freeze()
        if enabled:
            gc.enable()
