"""Resuming with a different optimizer: what the engines log and refuse, and which slots keep their meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few

__all__ = ["keeps_momentum", "log_slots", "refused"]


def keeps_momentum(changed: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether a Keras slot "momentum" has the same meaning: three optimizers use this name differently.

    Args:
        changed: See `estimator_pipeline.engines.model_dir.run_identity.optimizer_changes`.
    """
    before, now = changed.get("model.optimizer", ("", ""))
    # Gradients (v1), or steps with the learning rate in them, added (keras) or subtracted (rmsprop).
    kinds = {"rmsprop" if "rmsprop" in optimizer else optimizer.partition(" ")[2] for optimizer in (before, now)}
    return len(kinds) == 1


def refused(path: str, missing: Iterable[str]) -> ConfigError:
    """Return the error of a different optimizer that was not accepted, for its variables that a checkpoint lacks."""
    return ConfigError(
        f"the checkpoint {path} was written with another optimizer",
        code="model-dir/other-model",
        found=f"it does not have {_shown(missing)}",
        hint="use the optimizer that it was trained with, use a separate model_dir, or resume with this one: "
        "--accept-changes (run.accept_changes)",
    )


def log_slots(path: str, *, kept: Set[str], new: Set[str], gone: Set[str]) -> None:
    """Log, unless all are kept, which variables of this optimizer are restored or new, and which others are dropped."""
    if new or gone:
        logger.warning(
            "%s was written with another optimizer. Kept: %s. New: %s. Left: %s",
            *(path, _shown(kept), _shown(new), _shown(gone)),
        )


def _shown(names: Iterable[str]) -> str:
    return few(sorted(names), 6) or "nothing"
