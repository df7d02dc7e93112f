"""`graph.pbtxt` is written in a tenth of the time.

At the start of an Estimator's training the chief writes its graph as text with protobuf's Python printer, which takes a
second for 15 MB. `str(message)` produces the same format with protobuf's C code, and parses to the same message;
TensorFlow writes `saved_model.pbtxt` in this way. The text is not identical: the attributes of a node are in a
different, fixed order, and numbers are in the short form of C.

Private use: `graph_io.text_format`, with which `tf.io.write_graph`, the hooks and `export_meta_graph` print.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

NAME = "graph-text"
WHAT = "graph.pbtxt, which is written at the start of each training, takes a tenth of the time"


def apply() -> None:
    from google.protobuf import text_format
    from google.protobuf.internal import api_implementation
    from tensorflow.python.framework import graph_io

    # In other implementations `str(message)` is the Python printer, or is untested.
    if api_implementation.Type() == "upb":
        printer = types.SimpleNamespace(**vars(text_format))
        printer.MessageToString = in_c(text_format.MessageToString)
        graph_io.text_format = printer


def in_c(original: Callable[..., str]) -> Callable[..., str]:
    """Return a `MessageToString` that uses protobuf's C code."""

    def message_to_string(message: Any, **options: Any) -> str:
        try:
            return str(message)
        except UnicodeDecodeError:
            # Up to protobuf 4 printable characters depend on the locale; in Latin-1 they may be invalid UTF-8.
            return original(message, **options)

    return message_to_string
