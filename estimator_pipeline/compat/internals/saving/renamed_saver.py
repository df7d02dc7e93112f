"""A `tf.compat.v1.train.Saver` for variables with different names in the checkpoint than in the graph.

Private use: `tensorflow.python.training.saving.saveable_object_util.op_list_to_dict`, and
`_gather_saveables_for_checkpoint` of a strategy's variables (both unchanged from 2.15 to 2.21).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator_pipeline import compat

__all__ = ["renamed_saver"]


def renamed_saver(renamed: Mapping[str, Any]) -> Any:
    """Return a saver of the same variables as the current graph's default saver.

    Args:
        renamed: Name in the checkpoint -> variable of the graph; other variables keep their names. Parts of a
            partitioned variable are separate variables.
    """
    tf = compat.tensorflow()
    from tensorflow.python.training.saving import saveable_object_util

    known = {id(variable) for variable in renamed.values()}
    others = [variable for variable in tf.compat.v1.global_variables() if id(variable) not in known]
    kept = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS)
    named = saveable_object_util.op_list_to_dict([*others, *kept])
    new = {name: _saveable(tf, name, variable) for name, variable in renamed.items()}
    return tf.compat.v1.train.Saver({**named, **new})


def _saveable(tf: Any, name: str, variable: Any) -> Any:
    if not isinstance(variable, tf.distribute.DistributedValues):
        return variable
    # A Saver would restore only the first replica's variable without this saveable.
    (of_all_replicas,) = variable._gather_saveables_for_checkpoint().values()
    return of_all_replicas(name)
