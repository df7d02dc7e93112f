"""What of tf.contrib is the same thing by another name today.

Of the names that TensorFlow 1.15 defined elsewhere and tf.contrib only showed (tensorflow/contrib/*/__init__.py), and
of three functions whose arithmetic is that of a public one. All else of tf.contrib stays by hand: its arguments,
defaults or variables' names are others.
"""

from __future__ import annotations

import libcst as cst

__all__ = ["CONTRIB", "as_it_was"]

_SAME = {
    "rnn.": ("compat.v1.nn.rnn_cell.", (
        "BasicLSTMCell", "BasicRNNCell", "DeviceWrapper", "DropoutWrapper", "GRUCell", "LSTMCell", "LSTMStateTuple",
        "MultiRNNCell", "RNNCell", "ResidualWrapper")),
    "tpu.": ("compat.v1.estimator.tpu.", (
        "InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec")),
    "framework.": ("compat.v1.train.", ("create_global_step", "get_global_step", "get_or_create_global_step")),
    "estimator.": ("estimator.experimental.", (
        "InMemoryEvaluatorHook", "make_early_stopping_hook", "make_stop_at_checkpoint_step_hook",
        "stop_if_higher_hook", "stop_if_lower_hook", "stop_if_no_decrease_hook", "stop_if_no_increase_hook")),
}  # fmt: skip

CONTRIB: dict[str, str] = {
    f"contrib.{package}{name}": f"{home}{name}" for package, (home, names) in _SAME.items() for name in names
} | {
    "contrib.tpu.CrossShardOptimizer": "compat.v1.tpu.CrossShardOptimizer",
    "contrib.layers.xavier_initializer": "compat.v1.glorot_uniform_initializer",
    "contrib.layers.l2_regularizer": "keras.regularizers.l2",
    "contrib.layers.l1_regularizer": "keras.regularizers.l1",
}
"""Name below tf of TensorFlow 1 -> name below tf of the same thing."""


def as_it_was(after: str, call: cst.Call | None) -> tuple[str, tuple[tuple[cst.CSTNode, str, str], ...]] | None:
    """The new name, and what of the call changes with it; None where this call means something else by it."""
    if after == "compat.v1.glorot_uniform_initializer":
        # Uniform by default; the normal one of contrib is no truncated normal of today's scale.
        keywords = {arg.keyword.value for arg in call.args if arg.keyword} if call is not None else set()
        plain = call is not None and all(arg.keyword is not None for arg in call.args)
        return (after, ()) if plain and keywords <= {"seed", "dtype"} else None
    if after.startswith("keras.regularizers."):
        arg = call.args[0] if call is not None and len(call.args) == 1 else None
        if arg is None or arg.star or arg.keyword is not None:
            return None
        if after.endswith("l1"):
            return after, ()
        # contrib's is scale * l2_loss(w), and l2_loss is half of the sum of squares.
        simple = isinstance(arg.value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Float, cst.Integer))
        wrap = ("0.5 * ", "") if simple else ("0.5 * (", ")")
        return after, ((arg.value, *wrap),)
    return after, ()
