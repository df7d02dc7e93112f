"""Feature columns: `tf.feature_column.numeric_column("x")` -> `NumericColumn("x")`, a class of `column_helpers.py`.

The class takes the same arguments, so that loops and lists of columns stay as they are. `input_layer(features, c)`
becomes `dense_columns(features, c)`. Features are dense: a file that reads sparse ones is refused.
"""

from __future__ import annotations

import libcst as cst

from estimator_pipeline.migrate.code.analysis.syntax import iter_nodes
from estimator_pipeline.migrate.convert.model_fn import parameters
from estimator_pipeline.migrate.convert.names import Refused, names_read
from estimator_pipeline.migrate.convert.rule import NETWORK, SETUP, Call, rule

__all__ = ["COLUMNS", "LAYERS", "column_class"]

# Function of tf.feature_column -> (class of column_helpers.py, parameters, how many of them it takes by position).
_COLUMNS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "numeric_column": ("NumericColumn", ("key", "shape", "default_value", "dtype", "normalizer_fn"), 5),
    "bucketized_column": ("BucketizedColumn", ("source_column", "boundaries"), 2),
    "categorical_column_with_vocabulary_list": (
        "VocabularyColumn", ("key", "vocabulary_list", "dtype", "default_value", "num_oov_buckets"), 5),
    "categorical_column_with_vocabulary_file": (
        "VocabularyFileColumn",
        ("key", "vocabulary_file", "vocabulary_size", "dtype", "default_value", "num_oov_buckets"), 3),
    "categorical_column_with_identity": ("IdentityColumn", ("key", "num_buckets", "default_value"), 3),
    "categorical_column_with_hash_bucket": ("HashedColumn", ("key", "hash_bucket_size", "dtype"), 3),
    "crossed_column": ("CrossedColumn", ("keys", "hash_bucket_size", "hash_key"), 3),
    "indicator_column": ("IndicatorColumn", ("categorical_column",), 1),
    "embedding_column": (
        "EmbeddingColumn", ("categorical_column", "dimension", "combiner", "initializer", "trainable"), 4),
}  # fmt: skip
_MODULES = ("tf.feature_column.", "tf.compat.v1.feature_column.")
COLUMNS = {f"{module}{name}": row for module in _MODULES for name, row in _COLUMNS.items()}
"""Full name of a function -> its row."""
LAYERS = tuple(f"tf.compat.v1.feature_column.{name}" for name in ("input_layer", "linear_model"))
"""Functions that make variables."""


def column_class(call: Call) -> str:
    """Return the class that replaces the function of a call.

    Raises:
        Refused: the class does not take an argument of the call.
    """
    name, parameters, by_position = COLUMNS[call.name]
    args = call.args(*parameters)
    if sum(arg.keyword is None for arg in call.node.args) > by_position:
        raise Refused(f"the arguments of {call.name}", call.node)
    if name not in ("NumericColumn", "BucketizedColumn"):
        for chain in call.names.tree.chains:
            if call.names.name(chain).endswith("VarLenFeature"):
                raise Refused("a sparse feature, of a program with categorical columns", chain)
    if name == "EmbeddingColumn":
        for other in call.names.tree.calls:
            if call.names.name(other.func) == "tf.compat.v1.train.MomentumOptimizer":
                raise Refused("MomentumOptimizer of an embedding: Keras moves rows that a batch does not read", other)
    if "normalizer_fn" in args:
        _check_normalizer(call, args["normalizer_fn"])
    call.needs.add(name)
    return name


def _check_normalizer(call: Call, node: cst.BaseExpression) -> None:
    """Check that a normalizer only computes with operators, which tensors of Keras have, too.

    Not with products: Keras 3 takes its own product with a number for that of a sparse tensor.
    """
    if call.is_constant(node, "None"):
        return
    function = call.names.function(node)
    if function is None or function.tree is not call.names.tree:
        raise call.refuse("normalizer_fn", node)
    values = set(parameters(function.node))
    for inner in iter_nodes(function.node.body):
        of_python = isinstance(inner, cst.Call) and call.names.name(inner.func).startswith(("math.", "numpy."))
        if isinstance(inner, (cst.Call, cst.Multiply)) and not (of_python and not names_read(inner) & values):
            raise call.refuse("normalizer_fn", node)


@rule(*COLUMNS, at=(NETWORK, SETUP))
def column(call: Call) -> str:
    name = column_class(call)
    texts = [(f"{arg.keyword.value}=" if arg.keyword else "") + call.text(arg.value) for arg in call.node.args]
    return f"{name}({', '.join(texts)})"


@rule(LAYERS[0], at=(NETWORK,))
def input_layer(call: Call) -> str:
    """`input_layer(features, columns)` -> `dense_columns(features, columns)`."""
    args = call.args("features", "feature_columns")
    call.needs.add("dense_columns")
    return f"dense_columns({', '.join(_texts(call, args))})"


@rule(LAYERS[1], at=(NETWORK,))
def linear_model(call: Call) -> str:
    """`linear_model(features, columns)` -> `linear_columns(features, columns)`."""
    args = call.args("features", "feature_columns", "units", "sparse_combiner")
    call.needs.add("linear_columns")
    return f"linear_columns({', '.join(_texts(call, args))})"


def _texts(call: Call, args: dict[str, cst.BaseExpression]) -> list[str]:
    if not args.keys() >= {"features", "feature_columns"}:
        raise Refused(f"the arguments of {call.name}", call.node)
    options = [f"{name}={call.text(value)}" for name, value in args.items() if name in ("units", "sparse_combiner")]
    return [call.text(args["features"]), call.text(args["feature_columns"]), *options]


@rule("tf.keras.layers.DenseFeatures", "tf.compat.v1.keras.layers.DenseFeatures", at=(NETWORK,))
def dense_features(call: Call) -> str:
    """`DenseFeatures(columns)(features)`, or one call of a name for it: `(lambda features: dense_columns(...))`."""
    args = call.args("feature_columns", "name")
    tree = call.names.tree
    parent = tree.parents.get(call.node)
    users = [parent] if isinstance(parent, cst.Call) and parent.func is call.node else call.users()
    in_loop = any(isinstance(above, cst.For) for user in users for above in tree.above(user or call.node))
    if len(users) != 1 or not isinstance(users[0], cst.Call) or in_loop or "feature_columns" not in args:
        raise Refused("a DenseFeatures that is not called once", call.node)
    call.needs.add("dense_columns")
    return f"(lambda features: dense_columns(features, {call.text(args['feature_columns'])}))"
