"""A Keras model as a SavedModel with the signatures of an old export, put in its place when it is whole."""

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

__all__ = ["carry_assets", "concrete", "features_of", "own_folder", "place", "save"]

Answer = Callable[[Signature, Mapping[str, Any]], dict[str, Any]]


def features_of(export: EstimatorExport, signature: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features of what a signature takes: its tensors, and what is parsed of its serialized examples.

    Args:
        export: the old one.
        signature: one of its signatures.
        given: input -> tensor.
    """
    tf = compat.tensorflow()
    found: dict[str, Any] = {}
    for name, value in given.items():
        parsed = export.parsed.get(signature.inputs[name].name)
        if parsed is None:
            found[name] = value
        else:
            found.update(tf.io.parse_example(value, {feature.name: feature.spec() for feature in parsed}))
    return found


def concrete(signature: Signature, answer: Answer) -> Any:
    """Return the function of a signature, traced.

    Args:
        signature: the old one.
        answer: gives the outputs of (signature, inputs by name).
    """
    tf = compat.tensorflow()
    names = _arguments(signature)
    specs = {
        names[name]: tf.TensorSpec(tensor.shape, tf.as_dtype(tensor.dtype), name=names[name])
        for name, tensor in signature.inputs.items()
    }

    def call(**given: Any) -> dict[str, Any]:
        return answer(signature, {name: given[names[name]] for name in signature.inputs})

    return tf.function(call).get_concrete_function(**specs)


def save(folder: str, side: KerasSide, functions: Mapping[str, Any], export: EstimatorExport) -> None:
    """Write the SavedModel.

    Args:
        folder: where to.
        side: the model.
        functions: signature key -> its function, from `concrete`.
        export: the old one; its method names and names of inputs are taken.

    Raises:
        ConfigError: the model holds something that it does not tell of.
    """
    tf = compat.tensorflow()
    module = tf.Module()
    # The variables and tables alone: with the model its optimizer would be saved, and Keras be needed to load it.
    module.model_variables = side.variables()
    module.model_tables = list(_tables(tf, side.model))
    try:
        tf.saved_model.save(module, folder, signatures=dict(functions))
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"{side.what} cannot be saved: {str(error).strip().splitlines()[0][:300]}",
            code="model/bad-keras-file",
            hint="keep variables and tables as attributes of its layers",
        ) from error
    methods = {key: signature.method for key, signature in export.signatures.items()}
    inputs = {
        key: {clean: name for name, clean in _arguments(signature).items()}
        for key, signature in export.signatures.items()
    }
    saved_models.name_signatures(folder, methods, inputs)


def carry_assets(old: str, new: str) -> list[str]:
    """Copy what is beside the old export's graph and not in the new one: vocabularies, `assets.extra`.

    Returns:
        Notes on it.
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
                    notes.append(f"{inside} is another file than in the old export: the model has its own")
    return notes


@contextlib.contextmanager
def own_folder(output: str) -> Iterator[str]:
    """Yield a new folder beside the output, which is removed at the block's end unless it was renamed."""
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
    """Rename a whole SavedModel to its place; what was there before is removed after it."""
    before = f"{output}.replaced-{uuid.uuid4().hex[:8]}"
    there = os.path.lexists(output)
    if there:
        os.rename(output, before)
    durable.rename(temporary, output, by=os.rename)
    if there:
        shutil.rmtree(before, ignore_errors=True)


def _arguments(signature: Signature) -> dict[str, str]:
    """Input -> a name that Python and TensorFlow take for an argument; the same where it is one."""
    found: dict[str, str] = {}
    for name in signature.inputs:
        clean = re.sub(r"\W", "_", name, flags=re.ASCII)
        if clean[:1].isdigit() or keyword.iskeyword(clean) or clean in ("self", ""):
            clean = f"input_{clean}"
        while clean in found.values() or (clean != name and clean in signature.inputs):
            clean += "_"
        found[name] = clean
    return found


def renamed_inputs(export: EstimatorExport) -> list[str]:
    """Return inputs whose names are no arguments of a Python function."""
    return [
        f"{key}/{name}: `tf.saved_model.load` calls it {clean}; servers call it {name}"
        for key, signature in export.signatures.items()
        for name, clean in _arguments(signature).items()
        if name != clean
    ]


def _tables(tf: Any, model: Any) -> Iterator[Any]:
    """Yield the look-up tables and files that layers hold; a model tells of its variables alone."""
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
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, kinds):
                    yield one
                elif isinstance(one, tf.keras.layers.Layer):
                    waiting.append(one)
        waiting += list(getattr(layer, "layers", None) or ())
