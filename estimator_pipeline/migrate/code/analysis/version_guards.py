"""Detection of code that only runs on some TensorFlow versions."""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import Tree

__all__ = ["is_guarded"]


def is_guarded(tree: Tree, node: cst.CSTNode) -> bool:
    """Return whether a node only runs on some TensorFlow versions: `except AttributeError`, `if tf.__version__ …`."""
    below = node
    for above in tree.above(node):
        if isinstance(above, (cst.Try, cst.TryStar)):
            # Both the body and the handler: one runs where the other fails.
            handlers = [handler for handler in above.handlers if _catches_what_is_missing(handler)]
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
    names = [getattr(node, "value", "") for node in (caught, *(element.value for element in elements))]
    return bool({"AttributeError", "ImportError", "ModuleNotFoundError", "Exception"} & set(names))
