"""The description of a SavedModel: its signatures as TensorFlow Serving reads them.

TensorFlow 2 writes every signature with the method name of prediction, and cleans the names of inputs. What a server's
clients send to classification and regression is decided by the method name, so it is put right in the file.

Private use: the protocol buffer of the file (`tensorflow.core.protobuf.saved_model_pb2`), which the public API neither
reads nor writes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["FILE", "meta_graphs", "name_signatures"]

FILE = "saved_model.pb"


def meta_graphs(folder: str) -> list[Any]:
    """The graphs of a SavedModel, as `tf.compat.v1.MetaGraphDef`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged.
    """
    return list(_read(folder).meta_graphs)


def name_signatures(folder: str, methods: Mapping[str, str], inputs: Mapping[str, Mapping[str, str]]) -> None:
    """Gives the signatures of a SavedModel on a local disk their method names, and their inputs the names meant.

    Args:
        folder: of the SavedModel.
        methods: signature key -> method name.
        inputs: signature key -> name of an input in the file -> its name.
    """
    model = _read(folder)
    for graph in model.meta_graphs:
        for key, method in methods.items():
            signature = graph.signature_def[key]
            signature.method_name = method
            for given, meant in inputs.get(key, {}).items():
                if given != meant:
                    signature.inputs[meant].CopyFrom(signature.inputs.pop(given))
    unfinished = os.path.join(folder, f"{FILE}.unfinished")
    with open(unfinished, "wb") as file:
        file.write(model.SerializeToString(deterministic=True))
    os.replace(unfinished, os.path.join(folder, FILE))
    # It has a hash of the signatures as they were.
    fingerprint = os.path.join(folder, "fingerprint.pb")
    if os.path.exists(fingerprint):
        os.remove(fingerprint)


def _read(folder: str) -> Any:
    proto = importlib.import_module("tensorflow.core.protobuf.saved_model_pb2")
    errors = importlib.import_module("google.protobuf.message")
    with open(os.path.join(folder, FILE), "rb") as file:
        content = file.read()
    model = proto.SavedModel()
    try:
        model.ParseFromString(content)
    except errors.DecodeError as error:
        raise ValueError(str(error)) from error
    return model
