"""`tf.summary.scalar` and the other summaries of TensorFlow 2 in a model_fn are written to the Estimator's event file.

They are written by the default file writer, and a model_fn has none: in a graph they are ignored without a warning
(tensorflow#26408). Here each is a summary of the graph, as those of `tf.compat.v1.summary` are: it is written at
`save_summary_steps`, at the global step, whatever its argument `step`.

Where the program has a file writer, it also has to run its operations. The patch `train-op` warns if it does not.

Private use: `summary_ops_v2.write`, through which all of them go, and its state, which has the writer and the condition
of `tf.summary.record_if`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from estimator_pipeline.compat.internals import estimator_wrapping
from estimator_pipeline.compat.patches import replacing
from estimator_pipeline.utils.logger import logger

NAME = "v2-summaries"
WHAT = "tf.summary of TensorFlow 2 in a model_fn is written to the Estimator's event file"


def apply() -> None:
    import tensorflow as tf
    from tensorflow.python.distribute import summary_op_util
    from tensorflow.python.framework import smart_cond
    from tensorflow.python.ops import summary_ops_v2 as module

    original, state, trainings = module.write, module._summary_state, []

    @contextlib.contextmanager
    def training(estimator: Any, hooks: list[Any]) -> Iterator[None]:
        trainings.append(estimator)
        try:
            yield
        finally:
            trainings.pop()

    @functools.wraps(original)
    def write(tag: Any, tensor: Any, step: Any = None, metadata: Any = None, name: Any = None) -> Any:
        if not trainings or tf.executing_eagerly() or state.writer is not None or summary_op_util.skip_summary():
            return original(tag, tensor, step=step, metadata=metadata, name=name)
        graph = tf.compat.v1.get_default_graph()
        if graph.building_function or graph._get_control_flow_context() is not None:
            logger.warning(
                "The summary %s is not written: it is in a tf.function, a loop or a condition. Call tf.summary outside",
                tag,
            )
            return original(tag, tensor, step=step, metadata=metadata, name=name)

        def summary() -> Any:
            with tf.device("cpu:0"):
                value = tensor() if callable(tensor) else tf.identity(tensor)
                content = metadata.SerializeToString() if hasattr(metadata, "SerializeToString") else metadata or b""
                return tf.raw_ops.TensorSummaryV2(tag=tag, tensor=value, serialized_summary_metadata=content)

        with tf.name_scope(name or "write_summary"):
            condition = state.is_recording() if callable(state.is_recording) else state.is_recording
            # An empty string is a summary without values.
            text = smart_cond.smart_cond(True if condition is None else condition, summary, lambda: tf.constant(b""))
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SUMMARIES, text)
            return tf.constant(True)

    estimator_wrapping.training(training)
    replacing.everywhere(original, write)
