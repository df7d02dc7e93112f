"""Atomic writing of a Keras model as a SavedModel with the signatures of an old export."""

from __future__ import annotations

import contextlib
import filecmp
import keyword
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving import saved_model_files as saved_models
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.exports.keras_model import KerasSide
from estimator_pipeline.migrate.exports.read import EstimatorExport, Signature
from estimator_pipeline.utils import durable_files as durable

__all__ = ["carry_assets", "concrete", "features_of", "temporary_folder", "place", "save"]

Answer = Callable[[Signature, Mapping[str, Any]], dict[str, Any]]


def features_of(export: EstimatorExport, signature: Signature, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features of a signature, with serialized examples parsed.

    Args:
        export: The old export.
        signature: One of its signatures.
        inputs: Name of the input -> tensor.
    """
    tf = compat.tensorflow()
    features: dict[str, Any] = {}
    for name, value in inputs.items():
        parsed = export.parsed.get(signature.inputs[name].name)
        if parsed is None:
            features[name] = value
        else:
            features.update(tf.io.parse_example(value, {feature.name: feature.spec() for feature in parsed}))
    return features


def concrete(signature: Signature, answer: Answer) -> Any:
    """Return the traced function of a signature.

    Args:
        signature: The signature of the old export.
        answer: Returns the outputs for a signature and its inputs by name.
    """
    tf = compat.tensorflow()
    names = _arguments(signature)
    specs = {
        names[name]: tf.TensorSpec(tensor.shape, tf.as_dtype(tensor.dtype), name=names[name])
        for name, tensor in signature.inputs.items()
    }

    def call(**arguments: Any) -> dict[str, Any]:
        return answer(signature, {name: arguments[names[name]] for name in signature.inputs})

    return tf.function(call).get_concrete_function(**specs)


def save(folder: str, side: KerasSide, functions: Mapping[str, Any], export: EstimatorExport) -> None:
    """Write the SavedModel.

    Args:
        folder: The output folder.
        side: The model.
        functions: Signature key -> its function, from `concrete`.
        export: The old export with the method names and input names.

    Raises:
        ConfigError: A signature uses a variable or table that is not tracked by the model.
    """
    tf = compat.tensorflow()
    module = tf.Module()
    # Only variables and tables. Saving the model would include its optimizer and require Keras for loading.
    module.model_variables = side.variables()
    module.model_tables = list(_tables(tf, side.model))
    try:
        tf.saved_model.save(module, folder, signatures=dict(functions))
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"{side.description} cannot be saved: {str(error).strip().splitlines()[0][:300]}",
            code="model/bad-keras-file",
            hint="store variables and tables as attributes of its layers",
        ) from error
    methods = {key: signature.method for key, signature in export.signatures.items()}
    inputs = {
        key: {clean: name for name, clean in _arguments(signature).items()}
        for key, signature in export.signatures.items()
    }
    saved_models.name_signatures(folder, methods, inputs)


def carry_assets(old: str, new: str) -> list[str]:
    """Copy assets of the old export that the new one lacks.

    Returns:
        Notes about the files.
    """
    notes = []
    for folder in ("assets", "assets.extra"):
        for base, _, names in os.walk(os.path.join(old, folder)):
            for name in sorted(names):
                source = os.path.join(base, name)
                inside = os.path.relpath(source, old)
                target = os.path.join(new, inside)
                if not os.path.exists(target):
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    shutil.copyfile(source, target)
                    notes.append(f"{inside} was copied")
                elif not filecmp.cmp(source, target, shallow=False):
                    notes.append(f"{inside} differs from the old export: the file of the model was written")
    return notes


@contextlib.contextmanager
def temporary_folder(output: str) -> Iterator[str]:
    """Yield a temporary folder beside the output."""
    temporary = f"{output}.unfinished-{uuid.uuid4().hex[:8]}"
    try:
        os.makedirs(os.path.dirname(temporary) or ".", exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written", code="file/unwritable", found=str(error)) from error
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def place(temporary: str, output: str) -> None:
    """Move a complete SavedModel to the output, replacing an existing one."""
    replaced = f"{output}.replaced-{uuid.uuid4().hex[:8]}"
    exists = os.path.lexists(output)
    if exists:
        os.rename(output, replaced)
    durable.rename(temporary, output, by=os.rename)
    if exists:
        shutil.rmtree(replaced, ignore_errors=True)


def _arguments(signature: Signature) -> dict[str, str]:
    """Map each input to a valid Python argument name."""
    arguments: dict[str, str] = {}
    for name in signature.inputs:
        clean = re.sub(r"\W", "_", name, flags=re.ASCII)
        if clean[:1].isdigit() or keyword.iskeyword(clean) or clean in ("self", ""):
            clean = f"input_{clean}"
        while clean in arguments.values() or (clean != name and clean in signature.inputs):
            clean += "_"
        arguments[name] = clean
    return arguments


def renamed_inputs(export: EstimatorExport) -> list[str]:
    """Report inputs with names that are not valid Python argument names."""
    return [
        f"{key}/{name}: its argument in `tf.saved_model.load` is {clean}; TensorFlow Serving uses {name}"
        for key, signature in export.signatures.items()
        for name, clean in _arguments(signature).items()
        if name != clean
    ]


def _tables(tf: Any, model: Any) -> Iterator[Any]:
    """Yield the lookup tables and assets of layers, which a model does not list."""
    lookup = tf.lookup
    kinds = (
        lookup.StaticHashTable, lookup.StaticVocabularyTable, lookup.experimental.MutableHashTable,
        lookup.experimental.DenseHashTable, tf.saved_model.Asset,
    )  # fmt: skip
    seen = set()
    waiting = [model]
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        for value in vars(layer).values():
            for attribute in value if isinstance(value, list | tuple) else [value]:
                if isinstance(attribute, kinds):
                    yield attribute
                elif isinstance(attribute, tf.keras.layers.Layer):
                    waiting.append(attribute)
        waiting += list(getattr(layer, "layers", None) or ())
