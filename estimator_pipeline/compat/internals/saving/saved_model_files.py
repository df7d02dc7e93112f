"""The signatures of a SavedModel, as TensorFlow Serving reads them.

TensorFlow 2 writes every signature with the method name of prediction, and sanitizes the names of inputs. A server
selects classification and regression by the method name, so it is corrected in the file.

Private use: the protocol buffer of the file (`tensorflow.core.protobuf.saved_model_pb2`), for which there is no public
API.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.utils import durable_files as durable

__all__ = ["FILE", "meta_graphs", "name_signatures"]

FILE = "saved_model.pb"


def meta_graphs(folder: str) -> list[Any]:
    """Return the graphs of a SavedModel, as `tf.compat.v1.MetaGraphDef`.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged.
    """
    return list(_read(folder).meta_graphs)


def name_signatures(folder: str, methods: Mapping[str, str], inputs: Mapping[str, Mapping[str, str]]) -> None:
    """Set the method names of the signatures of a local SavedModel, and the names of their inputs.

    Args:
        folder: The folder of the SavedModel.
        methods: Signature key -> method name.
        inputs: Signature key -> name of an input in the file -> new name.
    """
    model = _read(folder)
    for graph in model.meta_graphs:
        for key, method in methods.items():
            signature = graph.signature_def[key]
            signature.method_name = method
            for written, name in inputs.get(key, {}).items():
                if written != name:
                    signature.inputs[name].CopyFrom(signature.inputs.pop(written))
    durable.write(os.path.join(folder, FILE), model.SerializeToString(deterministic=True), to_disk=False)
    # It has a hash of the previous signatures.
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
