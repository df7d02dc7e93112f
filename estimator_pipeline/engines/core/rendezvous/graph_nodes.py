"""Digests of the nodes from which the loss and the train_op of a model_fn are computed.

Two workers that run the same code have the same digests, although their graphs differ: the chief has more nodes, names
are made unique by counters, and a set of Python has an order per process. So a digest covers what a node computes (its
type, attributes, constants, inputs and the updates that must run before it), and not its name. Left out is what may
differ between the tasks of a job:

* the input: the features and labels, iterators, queues;
* summaries, prints, assertions, Python functions that only run before others;
* devices, seeds of random operations, keys of collectives, strings (paths, messages), names of functions and tables;
* the order of a sum, and names of nodes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.compat.internals import graph_state

# The boundary of the model: what is above these is not compared, nor a conditional that contains one.
_DATA = re.compile(r"Iterator|Dataset|^Optional|^Queue|Dequeue|Reader|^(Un)?[Ss]tage")
_SUMMARY = re.compile(r"Summary")
# What only runs before a node is compared if it changes something.
_UPDATE = re.compile(r"^Assign|Apply[A-Z]|^(Resource)?Scatter(Nd)?(Add|Sub|Mul|Div|Min|Max|Update)|Insert|Enqueue")
# The first input is the result.
_SAME = frozenset({"Identity", "IdentityN", "Print", "CheckNumerics", "CheckNumericsV2", "Snapshot"})
_SUMS = frozenset({"Add", "AddV2", "AddN"})
_VARIABLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})
_NOT_COMPARED = re.compile(
    "_.*|allowed_devices|communication_hint|config|config_proto|container|debug_name|device_ordinal|devices|"
    "executor_type|frame_name|group_key|instance_key|is_stateless|message|name|seed2?|shared_name|stack_name|"
    "tensor_array_name|timeout_seconds|token|wait_for"
)
# Inputs with a seed, or a key of it.
_SEEDS = frozenset({"seed", "key", "counter", "alg"})
# The constant that `tf.distribute` creates for the replica's number.
_REPLICA_ID = re.compile(r"replica_id_in_sync_group(_\d+)?$")
_LONG = 60


@dataclasses.dataclass(frozen=True)
class Replica:
    """A call of the model_fn: its input, and what it returned.

    Attributes:
        inputs: The tensors of features and labels.
        loss: The loss, before it is summed over the replicas.
        train_op: The train_op.
    """

    inputs: tuple[Any, ...]
    loss: Any
    train_op: Any


@dataclasses.dataclass(frozen=True)
class _Node:
    """A node of a graph or of a function: an edge of `inputs` is (name, output), or the digest of an argument."""

    name: str
    type: str
    attributes: Mapping[str, Any]
    inputs: tuple[tuple[str, str] | bytes, ...]
    controls: tuple[str, ...]


class GraphNodes:
    """The digests of a training graph.

    Args:
        graph: The graph.
        replicas: The calls of the model_fn in it, in order.
        wildcards: Names of constants whose value is not compared.

    Attributes:
        digest: The digest of all losses and train_ops.
        by_digest: The nodes except constants by digest, with the digests of their inputs, in the order of computation.
    """

    def __init__(self, graph: Any, replicas: Iterable[Replica], wildcards: frozenset[str] = frozenset()) -> None:
        self._functions = graph_state.functions_of(graph)
        self._wildcards = wildcards
        self._digests_of_functions: dict[str, bytes] = {}
        self._constants: dict[str, _Node] = {}
        # Digest of a sum -> the sum of its terms' digests.
        self._sums: dict[bytes, int] = {}
        self.by_digest: dict[bytes, tuple[_Node, tuple[bytes, ...]]] = {}
        replicas = list(replicas)
        inputs = {
            tensor.name.removesuffix(":0"): _hash("input", str(i))
            for replica in replicas
            for i, tensor in enumerate(replica.inputs)
        }
        walk = _Walk(self, lambda name: _node_of(graph.get_operation_by_name(name).node_def, inputs))
        ends = [walk.value_of((replica.loss.op.name, str(replica.loss.value_index))) for replica in replicas]
        self._of_loss = len(self.by_digest)
        for replica in replicas:
            ops = [getattr(output, "op", output) for output in (replica.loss, replica.train_op)]
            ends += [b"and", *sorted(walk.updates_of([op.name for op in ops]))]
        self.digest = _hash(*ends, *sorted(walk.of_loops())).hex()

    def indices(self, numbers: Iterable[int]) -> list[str]:
        """Return the names of the whole-number constants with one of these values."""
        texts = set(map(str, numbers))
        return sorted(name for name, node in self._constants.items() if _text_of(node) in texts)

    def first_of_difference(self, others: set[bytes], most: int = 4) -> list[tuple[bool, str, str, str]]:
        """Return the first nodes that another graph does not have, with inputs that it has, or constants.

        Returns:
            Of each: whether only train_op needs it, and not the loss; name; short and long description.
        """
        digests = (
            (place >= self._of_loss, node.name, *self._described(node))
            for place, (digest, (node, needs)) in enumerate(self.by_digest.items())
            if digest not in others and others.issuperset(need for need in needs if need in self.by_digest)
        )
        return list(itertools.islice(digests, most))

    def _described(self, node: _Node) -> tuple[str, str]:
        names = [edge[0] for edge in node.inputs if not isinstance(edge, bytes)]
        short = ", ".join(_text_of(self._constants[name]) if name in self._constants else name for name in names)
        short = f"{node.type}({short})"
        texts = {name: " ".join(str(value).split()) for name, value in sorted(node.attributes.items())}
        plain = [
            f"{name} {text}" for name, text in texts.items() if not _NOT_COMPARED.fullmatch(name) and len(text) <= _LONG
        ]
        return short, f"{short} with {', '.join(plain)}"

    def add(self, node: _Node, inputs: tuple[bytes, ...], before: frozenset[bytes]) -> bytes:
        """Add a node with the digests of its inputs, and of the updates that run before it; return its digest."""
        if node.type in _SUMS and not before:
            total = sum(self._sums.get(value, int.from_bytes(value, "big")) for value in inputs) % (1 << 64)
            digest = _hash("sum", str(total))
            self._sums[digest] = total
        else:
            named = node.type in _VARIABLES
            shared = node.attributes["shared_name"].s if named else b""
            name = (shared or node.name.encode()) if named else b""
            # The type may be the name of a function.
            kind = self._of_function(node.type) if node.type in self._functions else node.type
            digest = _hash(kind, name, *self._attributes_of(node), b"of", *inputs, b"after", *sorted(before))
        if node.type == "Const":
            self._constants[node.name] = node
        if node.type != "Const" or inputs or before:
            self.by_digest.setdefault(digest, (node, (*inputs, *before)))
        return digest

    def _attributes_of(self, node: _Node) -> Iterator[Any]:
        for name in sorted(node.attributes):
            if _NOT_COMPARED.fullmatch(name) or (name == "value" and not self._has_value(node)):
                continue
            value = node.attributes[name]
            digests = [self._of_function(function) for function in _functions_in(value)]
            yield name
            yield from digests or [value.SerializeToString(deterministic=True)]

    def _has_value(self, node: _Node) -> bool:
        """Return whether a constant is compared with its value."""
        if node.type != "Const":
            return True
        is_text = node.attributes["dtype"].type == compat.tensorflow().string.as_datatype_enum
        return not (is_text or node.name in self._wildcards or _REPLICA_ID.search(node.name))

    def contains(self, node: _Node, pattern: re.Pattern[str]) -> bool:
        """Return whether a node, or a node of a function that it calls, has such a type."""
        waiting, seen = [(node.type, node.attributes)], set()
        while waiting:
            kind, attributes = waiting.pop()
            if pattern.search(kind):
                return True
            for name in (kind, *(name for value in attributes.values() for name in _functions_in(value))):
                if name in self._functions and name not in seen:
                    seen.add(name)
                    waiting += [(inner.op, inner.attr) for inner in self._functions[name].node_def]
        return False

    def _of_function(self, name: str) -> bytes:
        if name not in self._digests_of_functions:
            self._digests_of_functions[name] = b"recursive"
            function = self._functions.get(name)
            self._digests_of_functions[name] = b"unknown" if function is None else self._walked(function)
        return self._digests_of_functions[name]

    def _walked(self, function: Any) -> bytes:
        signature = function.signature
        arguments = {argument.name: _hash("argument", str(i)) for i, argument in enumerate(signature.input_arg)}
        nodes = {node.name: node for node in function.node_def}
        walk = _Walk(self, lambda name: _node_of(nodes[name], arguments))
        edges = [_edge(function.ret[argument.name], arguments) for argument in signature.output_arg]
        values = [walk.value_of(edge) for edge in edges]
        updates = sorted(walk.updates_of(function.control_ret.values()))
        return _hash(*values, b"after", *updates, *sorted(walk.of_loops()))


class _Walk:
    """The digests of one graph or of one function, each computed once, without recursion: graphs are deep."""

    def __init__(self, nodes: GraphNodes, node: Any) -> None:
        self._all, self._node = nodes, node
        # Name -> the node's digest; or the values of its inputs, if it returns these.
        self._values: dict[str, bytes | tuple[bytes, ...]] = {}
        self._updates: dict[str, frozenset[bytes]] = {}
        self._loops: list[str] = []

    def updates_of(self, names: Iterable[str]) -> set[bytes]:
        """Return the digests of the updates that run if these nodes run."""
        digests: set[bytes] = set()
        for name in names:
            self._of(name)
            digests |= self._updates[name]
        return digests

    def value_of(self, edge: tuple[str, str] | bytes) -> bytes:
        if isinstance(edge, bytes):
            return edge
        name, output = edge
        value = self._of(name)
        if isinstance(value, tuple):
            return value[int(output.rpartition(":")[2])]
        return value if output == "0" else _hash(value, output)

    def of_loops(self) -> list[bytes]:
        """Return the digests of what the loops of TensorFlow 1 compute for their next iterations."""
        digests = []
        while self._loops:
            digests.append(self.value_of(self._node(self._loops.pop()).inputs[0]))
        return digests

    def _of(self, name: str) -> bytes | tuple[bytes, ...]:
        stack: list[tuple[str, _Node | None]] = [(name, None)]
        while stack:
            at, node = stack.pop()
            if at in self._values:
                continue
            if node is None:
                node = self._relevant(self._node(at))
                needed = [edge[0] for edge in node.inputs if not isinstance(edge, bytes)]
                stack.append((at, node))
                stack += [(other, None) for other in (*node.controls, *reversed(needed)) if other not in self._values]
            else:
                self._compute(node)
        return self._values[name]

    def _relevant(self, node: _Node) -> _Node:
        """Return a node without the inputs that are not compared."""
        inputs, controls = node.inputs, node.controls
        if node.type == "NextIteration":
            # The only way back in a graph.
            self._loops.append(node.name)
            inputs, controls = (), ()
        elif self._all.contains(node, _DATA):
            node, inputs, controls = dataclasses.replace(node, type="data", attributes={}), (), ()
        elif self._all.contains(node, _SUMMARY):
            node, inputs, controls = dataclasses.replace(node, type="summary", attributes={}), (), ()
        elif node.type in ("Assert", "PrintV2"):
            inputs = ()
        elif (node.type in _SAME and node.type != "IdentityN") or node.type.startswith("Collective"):
            inputs = inputs[:1]
        elif node.type.startswith("Stateless"):
            named = zip(inputs, graph_state.argument_names(node.type), strict=False)
            inputs = tuple(edge for edge, name in named if name not in _SEEDS)
        return dataclasses.replace(node, inputs=inputs, controls=controls)

    def _compute(self, node: _Node) -> None:
        inputs = tuple(map(self.value_of, node.inputs))
        before = _union(self._updates[name] for name in node.controls)
        update: frozenset[bytes] = frozenset()
        if node.type in _SAME and not before:
            self._values[node.name] = inputs
        else:
            self._values[node.name] = digest = self._all.add(node, inputs, before)
            if self._all.contains(node, _UPDATE):
                update = frozenset({digest})
        through = (self._updates[edge[0]] for edge in node.inputs if not isinstance(edge, bytes))
        self._updates[node.name] = _union((update, before, *through))


def _union(sets: Iterable[frozenset[bytes]]) -> frozenset[bytes]:
    """Return the union; the same object where there is only one, as for most nodes."""
    some = {id(each): each for each in sets if each}
    return next(iter(some.values())) if len(some) == 1 else frozenset().union(*some.values())


def _node_of(node: Any, arguments: Mapping[str, bytes]) -> _Node:
    edges = tuple(_edge(text, arguments) for text in node.input if not text.startswith("^"))
    # Arguments update nothing.
    controls = (text[1:] for text in node.input if text.startswith("^") and text[1:] not in arguments)
    return _Node(node.name, node.op, node.attr, edges, tuple(controls))


def _edge(text: str, arguments: Mapping[str, bytes]) -> tuple[str, str] | bytes:
    name, _, output = text.partition(":")
    return arguments.get(name) or (name, output or "0")


def _functions_in(attribute: Any) -> list[str]:
    """Return the names of the functions in an attribute."""
    kind = attribute.WhichOneof("value")
    functions = [attribute.func] if kind == "func" else attribute.list.func if kind == "list" else ()
    return [function.name for function in functions]


def _hash(*parts: bytes | str) -> bytes:
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        value = part.encode() if isinstance(part, str) else part
        state.update(len(value).to_bytes(8, "big") + value)
    return state.digest()


def _text_of(constant: _Node) -> str:
    value = compat.tensorflow().make_ndarray(constant.attributes["value"].tensor)
    if value.size == 1:
        return str(value.flat[0])
    text = " ".join(str(value).split())
    return f"{text[:_LONG]}{'...' if len(text) > _LONG else ''} ({value.dtype} {value.shape})"
