"""The variables of a graph as a checkpoint stores them: the parts of a partitioned variable together.

Private use: `Variable._get_save_slice_info`, by which a Saver knows to which variable a part belongs, and its shape.
"""

from __future__ import annotations

from typing import Any

__all__ = ["whole_variables"]


def whole_variables() -> dict[str, tuple[list[Any], list[int]]]:
    """Return the global variables of the current graph: name in a checkpoint -> its parts (or itself), and shape."""
    import tensorflow as tf

    variables: dict[str, tuple[list[Any], list[int]]] = {}
    for variable in tf.compat.v1.global_variables():
        part = variable._get_save_slice_info() if hasattr(variable, "_get_save_slice_info") else None
        name = variable.name.partition(":")[0] if part is None else part.full_name
        shape = variable.shape.as_list() if part is None else list(part.full_shape)
        variables.setdefault(name, ([], shape))[0].append(variable)
    return variables
