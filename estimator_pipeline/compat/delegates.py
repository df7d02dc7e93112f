"""What a lower floor calls and a higher one provides, by name.

Imports go down only; a few calls must go up all the same: `tf.estimator.train_and_evaluate`, put back by `compat`
(floor 1), runs on the engine (floor 3). The lower floor asks here by name, the package's `__init__` says what the
name stands for, and neither imports the other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_provided: dict[str, tuple[str, str]] = {}


def provide(name: str, module: str, attribute: str) -> None:
    """Says that `name` stands for `attribute` of `module`, which is imported when it is first asked for."""
    _provided[name] = (module, attribute)


def get(name: str) -> Callable[..., Any]:
    """What was provided under `name`. Raises KeyError where nothing was."""
    module, attribute = _provided[name]
    return getattr(importlib.import_module(module), attribute)
