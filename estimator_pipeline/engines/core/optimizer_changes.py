"""Resuming with a different optimizer: slots in the checkpoint are restored, others are initialized.

The same applies when gradient accumulation or moving averages are turned on; averages start from the weights. The
weights of the model are never initialized: a checkpoint without a layer's weights belongs to a different model.

The Keras engines restore in `keras_common/checkpoints.py` and `keras3/backend.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.engines.core.context import TaskContext
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.model_fn import LEARNING_RATE, OF_OPTIMIZER, SETTINGS
from estimator_pipeline.models.optimizers.moving_averages import AVERAGE, BEGIN
from estimator_pipeline.utils.logger import logger
from estimator_pipeline.utils.text import few

__all__ = ["keeps_momentum", "log_slots", "refused", "session_hook"]

_NUMBERED = re.compile(r"(.+)_\d+")


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


def session_hook(context: TaskContext) -> Any:
    """Return a session hook with which an Estimator can resume from a checkpoint of a different optimizer.

    Models of `estimator_pipeline.build_model_fn` mark the variables of their optimizer. For other models,
    TensorFlow reports variables that are missing in the checkpoint.
    """
    accept = context.options.accept_changes
    tf: Any = compat.tensorflow()

    class OtherOptimizer(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            pass  # TensorFlow's __init__ logs a deprecation warning

        def begin(self) -> None:
            of_optimizer, settings = _names(tf, OF_OPTIMIZER), _names(tf, SETTINGS)
            savers = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVERS)
            path = tf.train.latest_checkpoint(context.model_dir)
            ours = of_optimizer or tf.compat.v1.get_collection(LEARNING_RATE)
            if path is None or not ours or len(savers) != 1:
                return
            shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
            there = set(shapes)
            here = {variable.name.partition(":")[0] for variable in tf.compat.v1.global_variables()}
            missing = here - there
            if not missing <= of_optimizer:
                return
            if missing and not accept:
                raise refused(path, missing)
            new = missing | _renumbered(here & of_optimizer, there) if accept else missing
            gone = {name for name in there - here if shapes[name]}
            if accept and context.is_chief:
                kept = of_optimizer & here - new - settings
                log_slots(path, kept=kept, new=new - settings, gone=gone)
            # Options of a Keras optimizer, such as its learning rate, come from the job, not from the checkpoint.
            new |= settings & here
            if new:
                _restore_all_but(new, savers[0], path)

    return OtherOptimizer()


def _names(tf: Any, collection: str) -> set[str]:
    return {tf.compat.as_text(name) for name in tf.compat.v1.get_collection(collection)}


def _renumbered(here: Set[str], there: Set[str]) -> set[str]:
    """Return numbered slots ("RMSProp", "RMSProp_1") of variables whose number of slots differs."""

    def counted(names: Set[str]) -> dict[str, set[str]]:
        numbered: dict[str, set[str]] = {}
        for name in names:
            match = _NUMBERED.fullmatch(name)
            if match and match[1] in here & there:
                numbered.setdefault(match[1], set()).add(name)
        return numbered

    before, now = counted(there), counted(here)
    return {name for slot in now for name in now[slot] if now[slot] != before.get(slot)}


def _restore_all_but(new: Set[str], saver: Any, path: str) -> None:
    """Make the session's saver skip some variables of the current graph, which keep their initial values.

    It still saves all variables, and restores other checkpoints completely.
    """
    tf = compat.tensorflow()
    v1 = tf.compat.v1
    kept = [variable for variable in v1.global_variables() if variable.name.partition(":")[0] not in new]
    rest = v1.train.Saver([*kept, *v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)], sharded=True)
    begin = [variable.initializer for variable in v1.global_variables() if variable.name.partition(":")[0] in new]
    averages = v1.get_collection(BEGIN) if any(name.endswith(f"/{AVERAGE}") for name in new) else []
    whole = saver.restore

    def restore(session: Any, save_path: Any) -> None:
        if tf.compat.as_text(save_path) != path:
            whole(session, save_path)
            return
        session.run(begin)
        rest.restore(session, save_path)
        session.run(averages)

    saver.restore = restore
