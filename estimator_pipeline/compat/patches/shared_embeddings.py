"""Tables of `tf.feature_column.shared_embeddings` are trained.

The variables of all other columns are created by the Keras layer of the columns, and are among its trainable variables.
The table of shared embeddings is created with `get_variable` when a column is used. No layer has it, so an optimizer
that updates `model.trainable_variables`, as in canned Estimators of version 2, leaves it at its initial values
(tensorflow#47037). Here it is a variable of each layer that uses it. Its name and its initial values are unchanged.

A checkpoint from before has the tables, but not their optimizer state, such as Adagrad's accumulators. It is restored,
and this state starts with its initial values.

Private use: `SharedEmbeddingColumn._get_dense_tensor_internal`, the layer of its state manager, and the operations by
which a `tf.compat.v1.train.Saver` restores.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from estimator_pipeline.utils.logger import logger

NAME = "shared-embeddings"
WHAT = "tables of tf.feature_column.shared_embeddings are trained, in canned Estimators and in Keras layers"

# Graph -> names of its tables.
_tables: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def apply() -> None:
    import tensorflow as tf
    from tensorflow.python.feature_column import feature_column_v2 as module

    look_up = module.SharedEmbeddingColumn._get_dense_tensor_internal

    @functools.wraps(look_up)
    def get_dense_tensor(self: Any, transformation_cache: Any, state_manager: Any) -> Any:
        embedded = look_up(self, transformation_cache, state_manager)
        layer = getattr(state_manager, "_layer", None)
        if layer is not None:
            creator = self.shared_embedding_column_creator
            table = creator.embedding_weights
            # Keras tracks the variables that are attributes of a layer, each once. A partitioned one is iterable.
            setattr(layer, f"_table_{creator._name}", table if isinstance(table, tf.Variable) else list(table))
            _tables.setdefault(tf.compat.v1.get_default_graph(), set()).add(table.name.partition(":")[0])
        return embedded

    module.SharedEmbeddingColumn._get_dense_tensor_internal = get_dense_tensor

    saver = tf.compat.v1.train.Saver
    original = saver.restore

    @functools.wraps(original)
    def restore(self: Any, sess: Any, save_path: Any) -> Any:
        missing = _missing_state(tf, sess, save_path)
        feed, names = _substitutes(tf, self, sess.graph, missing) if missing else ({}, set())
        if not feed:
            return original(self, sess, save_path)
        logger.warning(
            "The training that wrote %s left tables of shared embeddings at their initial values. They are trained "
            "from here on, with new optimizer state: %s",
            tf.compat.as_text(save_path),
            ", ".join(sorted(names)),
        )
        original(self, _Substituting(sess, feed), save_path)
        # The initializer of a variable of several replicas would be a new operation.
        new = [variable for variable, _ in missing if variable.op.name in names]
        return sess.run([part.initializer for state in new for part in getattr(state, "values", None) or [state]])

    saver.restore = restore


def _missing_state(tf: Any, sess: Any, save_path: Any) -> list[tuple[Any, str]]:
    """Return the tables' optimizer state that the checkpoint does not have: (variable, name of the table)."""
    tables = _tables.get(sess.graph) if sess is not None else None
    if not tables or save_path is None or not tf.io.gfile.exists(f"{tf.compat.as_text(save_path)}.index"):
        return []
    saved = tf.train.load_checkpoint(save_path).get_variable_to_shape_map()
    return [
        (variable, table)
        for variable in sess.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        for table in sorted(tables & set(saved))
        if re.search(rf"(^|/){re.escape(table)}/", variable.op.name)
        and variable.op.name not in saved
        and variable.shape.as_list() == saved[table]
        # A slice of a variable is saved by a different name.
        and getattr(variable, "_save_slice_info", None) is None
    ]


def _substitutes(
    tf: Any, saver: Any, graph: Any, missing: Iterable[tuple[Any, str]]
) -> tuple[dict[Any, Any], set[str]]:
    """Return what to feed so that restoring reads the table, of the same shape, where its state is missing; and where.

    The graph is final: no operation that restores only the other variables can be added.
    """
    instead = {variable.op.name: table for variable, table in missing}
    feed, replaced = {}, set()
    for op in graph.get_operations():
        if op.type == "RestoreV2" and op.inputs[0].name == saver.saver_def.filename_tensor_name:
            # Not by `tf.get_static_value`, after which a tensor cannot be fed.
            names = [tf.compat.as_text(name) for name in tf.make_ndarray(op.inputs[1].op.get_attr("value"))]
            if not instead.keys().isdisjoint(names):
                feed[op.inputs[1]] = [instead.get(name, name) for name in names]
                replaced |= instead.keys() & set(names)
    return feed, replaced


class _Substituting:
    """A session that adds these values to those that are fed."""

    def __init__(self, session: Any, feed: Mapping[Any, Any]) -> None:
        self._session, self._feed = session, feed

    def run(self, operation: str, feed: Mapping[Any, Any]) -> Any:
        return self._session.run(operation, {**feed, **self._feed})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)
