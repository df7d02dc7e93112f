"""A `tf.compat.v1.train.Saver` for a graph some of whose variables bear other names in the checkpoint.

Private use: `tensorflow.python.training.saving.saveable_object_util.op_list_to_dict`, and what a strategy's variables
tell a saver of themselves, `_gather_saveables_for_checkpoint` (both the same from 2.15 to 2.21).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat

__all__ = ["renamed_saver"]


def renamed_saver(renamed: Mapping[str, Any]) -> Any:
    """A saver of all that the current graph's default one has.

    Args:
        renamed: name in the checkpoint -> variable of the graph; the others have their own names. Parts of a
            partitioned variable are variables of their own.
    """
    tf = compat.tensorflow()
    from tensorflow.python.training.saving import saveable_object_util

    known = {id(variable) for variable in renamed.values()}
    others = [one for one in tf.compat.v1.global_variables() if id(one) not in known]
    kept = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS)
    found = saveable_object_util.op_list_to_dict([*others, *kept])
    return tf.compat.v1.train.Saver({**found, **{name: _saveable(tf, name, one) for name, one in renamed.items()}})


def _saveable(tf: Any, name: str, variable: Any) -> Any:
    if not isinstance(variable, tf.distribute.DistributedValues):
        return variable
    # A Saver would restore the first replica's alone, unless it is told how to restore all.
    (of_all_replicas,) = variable._gather_saveables_for_checkpoint().values()
    return of_all_replicas(name)
