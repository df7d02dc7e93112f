"""Reading of an Estimator's export: its signatures, the features that it parses, and its outputs.

The SavedModel is loaded as by a server: its graph runs in a session, fed and fetched by the names of its signatures.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from estimator_pipeline import compat
from estimator_pipeline.compat.internals.saving import saved_model_files as saved_models
from estimator_pipeline.errors import ConfigError, InputError, TaskFailedError

__all__ = [
    "CLASSIFY",
    "PREDICT",
    "REGRESS",
    "EstimatorExport",
    "ExportFeature",
    "Signature",
    "Tensor",
    "answers_of",
    "read_export",
]

CLASSIFY, PREDICT, REGRESS = (f"tensorflow/serving/{name}" for name in ("classify", "predict", "regress"))
_PARSERS = ("ParseExampleV2", "ParseExample")
_COPIES = ("Identity", "PlaceholderWithDefault")
_PLACES = re.compile(r"Graph execution error|Detected at node|\d+ root error|File |Node: |\[\[|-- |\(most recent")
_MOST_WORDS = 20_000


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input or output of a signature.

    Attributes:
        name: Name of the tensor in the graph.
        dtype: Name of its dtype.
        shape: Its shape, with None for unknown dimensions; None for an unknown rank.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def rank(self) -> int | None:
        """The number of dimensions; None: unknown."""
        return None if self.shape is None else len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {_shape_text(self.shape)}"


@dataclasses.dataclass(frozen=True)
class Signature:
    """A signature with its method name, and its inputs and outputs by name."""

    key: str
    method: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class ExportFeature:
    """A feature that the graph parses from a serialized `tf.Example`.

    Attributes:
        name: Name of the feature in the example.
        kind: "dense", "sequence" (padded), "sparse" or "ragged".
        dtype: Name of its dtype.
        shape: Its shape in one example; for a sequence, without its length.
        default: The default for an example without it; None: the feature is required.
        splits: The dtype of a ragged feature's row splits.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    default: Any = None
    splits: str = "int32"

    def __str__(self) -> str:
        return (
            f"{self.dtype} {_shape_text((None, *self.shape))}" if self.kind == "dense" else f"{self.kind} {self.dtype}"
        )

    def spec(self) -> Any:
        """Return the feature's spec for `tf.io.parse_example`."""
        tf = compat.tensorflow()
        dtype = tf.as_dtype(self.dtype)
        if self.kind == "sparse":
            return tf.io.VarLenFeature(dtype)
        if self.kind == "ragged":
            return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.as_dtype(self.splits))
        if self.kind == "sequence":
            return tf.io.FixedLenSequenceFeature(self.shape, dtype, allow_missing=True, default_value=self.default)
        return tf.io.FixedLenFeature(self.shape, dtype, self.default)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatorExport:
    """A SavedModel with the tag `serve`.

    Attributes:
        path: Path of its folder.
        signatures: Its signatures by key.
        parsed: Name of a tensor of serialized examples in the graph -> the features parsed from it.
        words: Strings in the graph and its assets, such as vocabularies.
        notes: Remarks for the user.
    """

    path: str
    signatures: Mapping[str, Signature]
    parsed: Mapping[str, tuple[ExportFeature, ...]]
    words: tuple[bytes, ...]
    notes: tuple[str, ...]


def read_export(path: str) -> EstimatorExport:
    """Read the SavedModel in a folder on a local disk.

    Raises:
        ConfigError: There is no SavedModel, it has no signatures to serve, or it is not supported.
    """
    try:
        graphs = saved_models.meta_graphs(path)
    except OSError as error:
        inside = sorted(name for name in os.listdir(path) if name.isdigit()) if os.path.isdir(path) else []
        raise ConfigError(
            f"{path} is not a SavedModel: it has no {saved_models.FILE}",
            code="migrate/bad-export",
            found=f"exports in it: {', '.join(inside[-6:])}" if inside else f"working directory {os.getcwd()}",
            hint=f"name one of them: {os.path.join(path, inside[-1])}" if inside else "name the folder of an export",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} cannot be read: its {saved_models.FILE} is damaged", code="migrate/bad-export", found=str(error)
        ) from error
    tags = [sorted(graph.meta_info_def.tags) for graph in graphs]
    serving = [graph for graph, tag in zip(graphs, tags, strict=True) if tag == ["serve"]]
    if not serving:
        raise ConfigError(
            f"{path} has no graph with the tag serve",
            code="migrate/bad-export",
            found=f"tags: {', '.join('+'.join(tag) for tag in tags)}",
        )
    # The graphs for training and evaluation of `experimental_export_all_saved_models`.
    notes = [f"the graph {'+'.join(tag)} is skipped: the Keras program has it" for tag in tags if tag != ["serve"]]
    signatures = {
        key: _signature(path, key, each)
        for key, each in sorted(serving[0].signature_def.items())
        if not key.startswith("__saved_model_")
    }
    if not signatures:
        raise ConfigError(f"{path} has no signatures", code="migrate/bad-export", hint="name an export of an Estimator")
    if any(node.op in _PARSERS for function in serving[0].graph_def.library.function for node in function.node_def):
        raise ConfigError(
            f"{path} parses its examples in a function of its graph, like exports of TensorFlow 2",
            code="migrate/bad-export",
            hint="name the export of an Estimator, which has its parsing spec in the graph",
        )
    with _loaded(path) as session:
        parsed = _parsed(session, signatures)
        words = _words(serving[0].graph_def, path)
    return EstimatorExport(path=path, signatures=signatures, parsed=parsed, words=words, notes=tuple(notes))


def answers_of(
    path: str, signatures: Mapping[str, Signature], records: Mapping[str, Mapping[str, Any]], *, old: bool
) -> dict[str, np.ndarray]:
    """Run the signatures of a SavedModel.

    Args:
        path: Path of its folder.
        signatures: The signatures to call.
        records: Signature key -> input -> array.
        old: Whether it is the old export.

    Returns:
        "KEY/OUTPUT" -> the output.

    Raises:
        InputError: The old export fails with these inputs.
        TaskFailedError: Only the new export fails with these inputs.
    """
    tf = compat.tensorflow()
    outputs = {}
    with _loaded(path) as session:
        for key, signature in signatures.items():
            feed = {signature.inputs[name].name: value for name, value in records[key].items()}
            fetch = {name: tensor.name for name, tensor in signature.outputs.items()}
            try:
                answers = session.run(fetch, feed)
            except tf.errors.OpError as error:
                reason = _reason(error.message)
                if old:
                    raise InputError(
                        f"the signature {key} of the old export fails with these records",
                        code="migrate/mismatch",
                        found=reason,
                        hint="provide valid records: --examples FILE.tfrecord, --inputs FILE.npz",
                    ) from error
                raise TaskFailedError(
                    f"the signature {key} of the new export fails with records that the old export accepts",
                    code="migrate/mismatch",
                    found=reason,
                ) from error
            outputs.update({f"{key}/{name}": np.asarray(value) for name, value in answers.items()})
    return outputs


def signatures_of(path: str) -> dict[str, Signature]:
    """Return the signatures of a SavedModel written by this package."""
    (graph,) = saved_models.meta_graphs(path)
    named = graph.signature_def.items()
    return {key: _signature(path, key, each) for key, each in named if not key.startswith("__saved_model_")}


class _loaded:
    """A session with the graph, the variables and the tables of a SavedModel."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> Any:
        tf = compat.tensorflow()
        session = tf.compat.v1.Session(graph=tf.Graph())
        try:
            with session.graph.as_default():
                tf.compat.v1.saved_model.load(session, ["serve"], self._path)
        except (tf.errors.OpError, ValueError, KeyError, OSError) as error:
            session.close()
            lines = str(error).strip().splitlines()
            raise ConfigError(
                f"{self._path} cannot be loaded", code="migrate/bad-export", found=lines[0][:300] if lines else None
            ) from error
        self._session = session
        return session

    def __exit__(self, *error: object) -> None:
        self._session.close()


def _signature(path: str, key: str, signature: Any) -> Signature:
    def tensors(infos: Any) -> dict[str, Tensor]:
        by_name = {}
        for name, info in sorted(infos.items()):
            if info.WhichOneof("encoding") != "name":
                raise ConfigError(
                    f"{path}: {name} of the signature {key} is a sparse or composite tensor, which is not supported",
                    code="migrate/bad-export",
                    hint="export with a serving input receiver of dense tensors or serialized examples",
                )
            shape = compat.tensorflow().TensorShape(info.tensor_shape)
            known = None if shape.rank is None else tuple(shape.as_list())
            by_name[name] = Tensor(info.name, compat.tensorflow().as_dtype(info.dtype).name, known)
        return by_name

    return Signature(key, signature.method_name, tensors(signature.inputs), tensors(signature.outputs))


def _parsed(session: Any, signatures: Mapping[str, Signature]) -> dict[str, tuple[ExportFeature, ...]]:
    taken = {tensor.name for each in signatures.values() for tensor in each.inputs.values() if tensor.dtype == "string"}
    parsed: dict[str, dict[str, ExportFeature]] = {}
    for operation in session.graph.get_operations():
        if operation.type not in _PARSERS:
            continue
        records = operation.inputs[0]
        while records.name not in taken and records.op.type in _COPIES:
            records = records.op.inputs[0]
        if records.name not in taken:
            continue
        known = parsed.setdefault(records.name, {})
        for feature in _features(session, operation):
            if feature.name in known and str(known[feature.name]) != str(feature):
                raise ConfigError(
                    f"the feature {feature.name} is parsed twice, as {known[feature.name]} and as {feature}",
                    code="migrate/bad-export",
                    hint="export with only one spec of it",
                )
            known[feature.name] = feature
    return {name: tuple(features.values()) for name, features in parsed.items()}


def _features(session: Any, operation: Any) -> Iterator[ExportFeature]:
    dense_types = operation.get_attr("Tdense")
    shapes = [tuple(-1 if d is None or d < 0 else d for d in _dims(s)) for s in operation.get_attr("dense_shapes")]
    inputs = list(operation.inputs)
    count = len(dense_types)
    ragged: list[bytes] = []
    if operation.type == "ParseExampleV2":
        sparse, dense, ragged = (list(session.run(tensor)) for tensor in inputs[2:5])
        defaults = session.run(inputs[5:])
    else:
        few = operation.get_attr("Nsparse")
        keys = session.run(inputs[2 : 2 + few + count])
        sparse, dense = list(keys[:few]), list(keys[few:])
        defaults = session.run(inputs[2 + few + count :])
    for key, dtype in zip(sparse, operation.get_attr("sparse_types"), strict=True):
        yield ExportFeature(_text(key), "sparse", dtype.name)
    for key, dtype, shape, default in zip(dense, dense_types, shapes, defaults, strict=True):
        value = np.asarray(default)
        if -1 in shape[:1]:
            # The default of a sequence is its padding value; if empty, the default of the dtype.
            yield ExportFeature(_text(key), "sequence", dtype.name, shape[1:], value.ravel()[0] if value.size else None)
        else:
            needed = value.size == 0 and 0 not in shape
            yield ExportFeature(_text(key), "dense", dtype.name, shape, None if needed else value.reshape(shape))
    if ragged:
        types = zip(ragged, operation.get_attr("ragged_value_types"), operation.get_attr("ragged_split_types"),
                    strict=True)  # fmt: skip
        for key, dtype, splits in types:
            yield ExportFeature(_text(key), "ragged", dtype.name, splits=splits.name)


def _dims(shape: Any) -> list[int | None]:
    return [int(d.size) for d in shape.dim] if hasattr(shape, "dim") else list(shape.as_list())


def _text(key: Any) -> str:
    return bytes(key).decode()


def _words(graph: Any, path: str) -> tuple[bytes, ...]:
    """Return the strings in the graph and its assets, for random examples."""
    tf = compat.tensorflow()
    words: dict[bytes, None] = {}
    keys = {name.partition(":")[0] for node in graph.node if node.op in _PARSERS for name in node.input}
    for node in graph.node:
        if node.op == "Const" and node.name not in keys and node.attr["dtype"].type == tf.string.as_datatype_enum:
            value = tf.make_ndarray(node.attr["value"].tensor)
            if value.ndim == 1 and value.size > 1 and not node.name.startswith("save"):
                words.update(dict.fromkeys(bytes(word) for word in value.tolist()))
    assets = os.path.join(path, "assets")
    for name in sorted(os.listdir(assets)) if os.path.isdir(assets) else ():
        with open(os.path.join(assets, name), "rb") as file:
            words.update(dict.fromkeys(file.read(1 << 20).splitlines()))
    return tuple(words)[:_MOST_WORDS]


def _reason(message: str) -> str:
    """Return the line of a TensorFlow error that has its cause."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    causes = [line for line in lines if not _PLACES.match(line)]
    return re.sub(r"^\(\d+\) ", "", (causes or lines or ["unknown reason"])[0])[:300]


def _shape_text(shape: tuple[int | None, ...] | None) -> str:
    return "of any shape" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"
