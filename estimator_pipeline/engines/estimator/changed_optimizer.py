"""A run that goes on with another optimizer: the slots that a checkpoint has are kept, and the others begin.

So it is with gradients that are added up from now on, and with averages of the weights, which begin with the weights.
What a model itself is made of is never left to begin: a checkpoint without a layer's weights is another model's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.models.model_fn import LEARNING_RATE, OF_OPTIMIZER, SETTINGS
from estimator_pipeline.models.optimizers.moving_averages import AVERAGE, BEGIN
from estimator_pipeline.utils.logger import logger

__all__ = ["hook", "keeps_momentum", "refused", "tell"]

_SHOWN = 6
_NUMBERED = re.compile(r"(.+)_\d+")


def hook(model_dir: str, *, accept: bool, telling: bool) -> Any:
    """A session hook that lets an Estimator's training go on from a checkpoint of another optimizer.

    Models of :func:`estimator_pipeline.build_model_fn` say which variables are their optimizer's. Of others TensorFlow
    tells that the checkpoint does not have them.

    Args:
        model_dir: whose latest checkpoint is restored.
        accept: whether that is meant.
        telling: whether to say in the log what becomes of the slots.
    """
    tf: Any = compat.tensorflow()

    class OtherOptimizer(tf.compat.v1.train.SessionRunHook):
        def __init__(self) -> None:
            pass  # TensorFlow's says that it is deprecated

        def begin(self) -> None:
            own, settings = _names(tf, OF_OPTIMIZER), _names(tf, SETTINGS)
            savers = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVERS)
            path = tf.train.latest_checkpoint(model_dir)
            ours = own or tf.compat.v1.get_collection(LEARNING_RATE)
            if path is None or not ours or len(savers) != 1:
                return
            shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
            there = set(shapes)
            here = {one.name.partition(":")[0] for one in tf.compat.v1.global_variables()}
            missing = here - there
            if not missing <= own:
                return
            if missing and not accept:
                raise refused(path, missing)
            new = missing | _renumbered(here & own, there) if accept else missing
            gone = {name for name in there - here if shapes[name]}
            if accept and telling and (new - settings or gone):
                tell(path, kept=own & here - new - settings, new=new - settings, gone=gone)
            # What a Keras optimizer was made with, such as its learning rate, is the job's to say.
            new |= settings & here
            if new:
                _restore_all_but(new, savers[0], path)

    return OtherOptimizer()


def _names(tf: Any, collection: str) -> set[str]:
    return {tf.compat.as_text(name) for name in tf.compat.v1.get_collection(collection)}


def _renumbered(here: Set[str], there: Set[str]) -> set[str]:
    """Slots that TensorFlow tells apart by numbers ("RMSProp", "RMSProp_1"), of variables that had more or fewer."""

    def counted(names: Set[str]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name in names:
            match = _NUMBERED.fullmatch(name)
            if match and match[1] in here & there:
                found.setdefault(match[1], set()).add(name)
        return found

    before, now = counted(there), counted(here)
    return {name for slot in now for name in now[slot] if now[slot] != before.get(slot)}


def _restore_all_but(new: Set[str], saver: Any, path: str) -> None:
    """Has the session's saver leave some variables of the current graph at their initial values.

    It saves all of them, and restores other checkpoints whole.
    """
    tf = compat.tensorflow()
    v1 = tf.compat.v1
    variables: dict[bool, list[Any]] = {True: [], False: []}
    for variable in v1.global_variables():
        variables[variable.name.partition(":")[0] in new].append(variable)
    rest = v1.train.Saver([*variables[False], *v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)], sharded=True)
    begin = [one.initializer for one in variables[True]]
    averages = v1.get_collection(BEGIN) if any(name.endswith(f"/{AVERAGE}") for name in new) else []
    whole = saver.restore

    def restore(session: Any, given: Any) -> None:
        if tf.compat.as_text(given) != path:
            whole(session, given)
            return
        session.run(begin)
        rest.restore(session, given)
        session.run(averages)

    saver.restore = restore


def keeps_momentum(changed: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a Keras slot "momentum" means what it meant: three optimizers call a sum of their own by that name.

    Args:
        changed: see :func:`estimator_pipeline.engines.model_dir.run_identity.optimizer_changes`.
    """
    before, now = changed.get("model.optimizer", ("", ""))
    # Gradients (v1), or steps with the learning rate in them, added (keras) or subtracted (rmsprop).
    return len({"rmsprop" if "rmsprop" in one else one.partition(" ")[2] for one in (before, now)}) == 1


def refused(path: str, missing: Iterable[str]) -> ConfigError:
    """The error of a change that nobody has accepted.

    Args:
        path: of the checkpoint.
        missing: names of the optimizer's variables that it does not have.
    """
    return ConfigError(
        f"the checkpoint {path} was written with another optimizer",
        code="model-dir/other-model",
        found=f"it does not have {_shown(missing)}",
        hint="give the optimizer that it was trained with, give a model_dir of its own, or go on with this one: "
        "--accept-changes (run.accept_changes)",
    )


def tell(path: str, *, kept: Iterable[str], new: Iterable[str], gone: Iterable[str]) -> None:
    """Says in the log what becomes of the variables of the optimizer before, and of this one.

    Args:
        path: of the checkpoint.
        kept: names of this optimizer's variables that are restored.
        new: of those that begin.
        gone: of the other's that are left.
    """
    logger.warning(
        "%s was written with another optimizer. Kept: %s. New: %s. Left: %s",
        *(path, _shown(kept), _shown(new), _shown(gone)),
    )


def _shown(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(found[:_SHOWN]) or 'nothing'}{more}"
