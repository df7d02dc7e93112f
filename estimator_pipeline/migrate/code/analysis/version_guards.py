"""Whether a place of a program is reached on some TensorFlow alone."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import Tree

__all__ = ["is_guarded"]


def is_guarded(tree: Tree, node: cst.CSTNode) -> bool:
    """Whether a program reaches a place on some TensorFlow alone: `except AttributeError`, `if tf.__version__ …`."""
    below = node
    for above in tree.above(node):
        if isinstance(above, (cst.Try, cst.TryStar)):
            # On either side: the other one runs where this one fails.
            handlers = [one for one in above.handlers if _catches_what_is_missing(one)]
            if handlers and (below is above.body or below in handlers):
                return True
        elif isinstance(above, (cst.If, cst.IfExp)) and below is not above.test:
            test = tree.module.code_for_node(above.test)
            if "hasattr" in test or "version" in test.lower():
                return True
        below = above
    return False


def _catches_what_is_missing(handler: cst.CSTNode) -> bool:
    caught = getattr(handler, "type", None)
    if caught is None:
        return True
    elements = caught.elements if isinstance(caught, cst.Tuple) else ()
    names = [getattr(one, "value", "") for one in (caught, *(element.value for element in elements))]
    return bool({"AttributeError", "ImportError", "ModuleNotFoundError", "Exception"} & set(names))
