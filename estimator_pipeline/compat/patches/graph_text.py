"""`graph.pbtxt` is written in a tenth of the time.

Each training of an Estimator begins with it: the chief writes its graph as text, by protobuf's printer in Python, which
takes a second for 15 MB. `str(message)` is text of the same format, by protobuf's own code in C, and parses to the same
message; TensorFlow writes `saved_model.pbtxt` by it. The text is not the same in each letter: attributes of a node are
in another order, always the same one, and numbers are as short as C prints them.

Private use: `graph_io.text_format`, by which `tf.io.write_graph` prints, and with it the hooks and `export_meta_graph`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

NAME = "graph-text"
WHAT = "graph.pbtxt, which each training begins with, is written in a tenth of the time"


def apply() -> None:
    from google.protobuf import text_format
    from google.protobuf.internal import api_implementation
    from tensorflow.python.framework import graph_io

    # In the other implementations `str(message)` is that printer itself, or has not been tried.
    if api_implementation.Type() == "upb":
        printer = types.SimpleNamespace(**vars(text_format))
        printer.MessageToString = in_c(text_format.MessageToString)
        graph_io.text_format = printer


def in_c(original: Callable[..., str]) -> Callable[..., str]:
    """`MessageToString` by protobuf's code in C."""

    def message_to_string(message: Any, **options: Any) -> str:
        try:
            return str(message)
        except UnicodeDecodeError:
            # Up to protobuf 4 what is a letter follows the locale; in one of Latin-1 it is bytes that are no UTF-8.
            return original(message, **options)

    return message_to_string
