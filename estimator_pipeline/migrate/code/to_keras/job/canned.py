"""Conversion of canned Estimators to `keras_canned` models and of feature columns to `keras_columns`."""

from __future__ import annotations

from functools import partial
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.model_fn import losses_and_optimizers as arithmetic
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["ESTIMATOR", "NAMES", "convert_call", "convert_job", "find_factories", "install", "is_add_metrics"]

NAMES = tuple(
    f"tf.estimator.{name}"
    for name in ("DNNClassifier", "DNNRegressor", "LinearClassifier", "LinearRegressor",
                 "DNNLinearCombinedClassifier", "DNNLinearCombinedRegressor")
)  # fmt: skip
ESTIMATOR = "tf.estimator.Estimator"
_ADD_METRICS = "tf.estimator.add_metrics"
_OPTIMIZERS = ("optimizer", "dnn_optimizer", "linear_optimizer")
_LEFT_OUT = ("config", "input_layer_partitioner")
# Column function -> number of positional arguments that keras_columns supports.
_COLUMNS = {
    "numeric_column": 5, "bucketized_column": 2, "categorical_column_with_vocabulary_list": 5,
    "categorical_column_with_vocabulary_file": 6, "categorical_column_with_identity": 3,
    "categorical_column_with_hash_bucket": 3, "crossed_column": 3, "indicator_column": 1, "embedding_column": 4,
    "make_parse_example_spec": 1,
}  # fmt: skip
# TensorFlow 1 function that creates weights for columns -> the layer in keras_columns.
_IN_V1 = {"input_layer": "feature_layer", "linear_model": "linear_model"}
_UNKNOWN = ("ckpt_to_load_from", "tensor_name_in_ckpt", "max_norm", "use_safe_embedding_lookup")


def install(reader: Rewriter) -> None:
    """Register the conversion of feature columns."""
    for name in _COLUMNS:
        reader.calls[f"tf.feature_column.{name}"] = partial(_convert_column, reader, name)
    for name, layer in _IN_V1.items():
        reader.calls[f"tf.compat.v1.feature_column.{name}"] = partial(_convert_input_layer, reader, layer)
    reader.calls[_ADD_METRICS] = partial(_convert_add_metrics, reader)
    for module in ("tf.keras", "tf.compat.v1.keras"):
        reader.calls[f"{module}.layers.DenseFeatures"] = partial(_convert_dense_features, reader)
    for name in ("Adagrad", "Adam", "Ftrl", "SGD", "RMSprop"):
        reader.names[f"tf.compat.v1.keras.optimizers.{name}"] = f"{reader.tf}.keras.optimizers.legacy.{name}"


def _convert_column(reader: Rewriter, name: str, call: cst.Call) -> str:
    by_position = sum(arg.keyword is None for arg in call.args)
    for arg in call.args:
        if (arg.keyword and arg.keyword.value in _UNKNOWN) or arg.star or by_position > _COLUMNS[name]:
            raise NotConvertible(f"{reader.source(arg)} of {name}", arg)
    reader.needs.add("keras_columns")
    return f"keras_columns.{name}{reader.spliced(reader.span(call.func)[1], reader.span(call)[1], call.args)}"


def _convert_dense_features(reader: Rewriter, call: cst.Call) -> str:
    args = {arg.keyword.value if arg.keyword else "feature_columns": arg for arg in call.args}
    if args.keys() - {"feature_columns", "name"} or "feature_columns" not in args:
        raise NotConvertible("arguments of DenseFeatures without a counterpart in keras_columns", call)
    reader.needs.add("keras_columns")
    texts = [reader.text(args["feature_columns"].value)]
    texts += [f"name={reader.text(args['name'].value)}"] if "name" in args else []
    return reader.call("keras_columns.feature_layer", texts, call)


def _convert_input_layer(reader: Rewriter, layer: str, call: cst.Call) -> str:
    """Convert `input_layer(features, columns)` to a layer that is called with the features."""
    args = arguments(call, ("features", "feature_columns", "units", "sparse_combiner"))
    allowed = {"features", "feature_columns", *(("units", "sparse_combiner") if layer == "linear_model" else ())}
    for name, arg in args.items():
        if name not in allowed or arg.star:
            raise NotConvertible(f"{name or 'an argument'} of {reader.source(call.func)}", arg)
    if not {"features", "feature_columns"} <= args.keys():
        raise NotConvertible(f"arguments of {reader.source(call.func)} that cannot be determined", call)
    reader.needs.add("keras_columns")
    texts = [reader.text(args["feature_columns"].value)]
    texts += [f"{name}={reader.text(args[name].value)}" for name in ("units", "sparse_combiner") if name in args]
    return reader.call(f"keras_columns.{layer}", texts, call, f"({reader.text(args['features'].value)})")


def is_add_metrics(reader: Rewriter, node: cst.CSTNode | None, name: str) -> bool:
    """Return whether a value is `add_metrics` of the Estimator with this name."""
    args = arguments(node, ("estimator", "metric_fn")) if isinstance(node, cst.Call) else {}
    first = args["estimator"].value if "estimator" in args else None
    return reader.called(node) == _ADD_METRICS and isinstance(first, cst.Name) and first.value == name


def _convert_add_metrics(reader: Rewriter, call: cst.Call) -> str:
    args = arguments(call, ("estimator", "metric_fn"))
    functions = reader.functions(args["metric_fn"].value) if args.keys() == {"estimator", "metric_fn"} else []
    if len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef):
        raise NotConvertible("metrics of a function that is not defined in this file", call)
    function = functions[0].node
    uses = [chain for chain in reader.tree.chains if any(f.node is function for f in reader.functions(chain))]
    returned = reader.tree.scopes[function].returns
    params = {param.name.value for param in function.params.params}
    if len(uses) != 1 or len(returned) != 1 or not params <= {"features", "labels", "predictions"}:
        raise NotConvertible("a metric function that is used elsewhere or has other parameters", function.name)
    metrics_dict = reader.value(returned[0])
    metrics = []
    for element in metrics_dict.elements if isinstance(metrics_dict, cst.Dict) else ():
        key = element.key if isinstance(element, cst.DictElement) else None
        value = reader.value(element.value)
        if not isinstance(key, cst.SimpleString) or not isinstance(value, cst.Call):
            raise NotConvertible("metrics that are not a dict with literal keys", function.name)
        if reader.called(value).startswith(("tf.keras.metrics.", "tf.compat.v1.keras.metrics.")):
            metrics.append(
                f"{key.value}: {_convert_keras_metric(reader, element.value, value, str(key.evaluated_value))}"
            )
            continue
        metric_text, _, used = arithmetic.metric(reader, value, str(key.evaluated_value))
        metrics.append(f"{key.value}: {metric_text}")
        reader.replaced[value] = partial(_format_update, reader, value, str(key.evaluated_value), len(used))
    if not metrics:
        raise NotConvertible("metrics that are not a dict with literal keys", function.name)
    reader.needs.add("keras_canned")
    texts = [reader.text(args["estimator"].value), reader.text(args["metric_fn"].value), f"{{{', '.join(metrics)}}}"]
    return reader.call("keras_canned.add_metrics", texts, call)


def _convert_keras_metric(reader: Rewriter, name: cst.BaseExpression, call: cst.Call, key: str) -> str:
    """Return the call that creates a Keras metric, and replace its update by a tuple."""
    updates = [update for update in reader.tree.calls if isinstance(update.func, cst.Attribute)
               and update.func.attr.value == "update_state" and reader.value(update.func.value) is call]  # fmt: skip
    statements = [reader.statement_of(node) for node in (call, *updates)]
    if len(updates) != 1 or not isinstance(name, cst.Name) or None in statements:
        raise NotConvertible(f"the metric {key}, which is not updated exactly once", call)
    args = arguments(updates[0], ("y_true", "y_pred") if len(updates[0].args) > 1 else ("values",))
    texts = [reader.text(args[field].value) for field in ("y_true", "y_pred", "values") if field in args]
    if len(texts) != len(updates[0].args):
        raise NotConvertible(f"the update arguments of the metric {key}", updates[0])
    created, updated = (statement for statement in statements if statement is not None)
    reader.replaced[created] = REMOVED
    reader.replaced[updated] = f"{name.value} = ({', '.join(texts)}{',' if len(texts) == 1 else ''})"
    kept = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value)
            for arg in call.args if not (arg.keyword and arg.keyword.value == "name")]  # fmt: skip
    kind = reader.called(call).rpartition(".")[2]
    return f"{reader.tf}.keras.metrics.{kind}({', '.join([*kept, f'name={key!r}'])})"


def _format_update(reader: Rewriter, call: cst.Call, key: str, count: int) -> str:
    """Return the tuple of arguments that a metric is updated with."""
    text = arithmetic.metric(reader, call, key)[1]
    return f"({text})" if count > 1 else f"({text},)"


def convert_job(reader: Rewriter, job: Any) -> None:
    """Convert a canned Estimator or `model_to_estimator` to a Keras model.

    Raises:
        NotConvertible: this Estimator cannot be converted.
    """
    if reader.called(job.call) == "tf.keras.estimator.model_to_estimator":
        args = {arg.keyword.value if arg.keyword else "keras_model": arg for arg in job.call.args}
        if args.keys() - {"keras_model", "model_dir", "config", "checkpoint_format"} or "keras_model" not in args:
            raise NotConvertible("a Keras model that is read from a file, or that has a metric_names_map", job.call)
        text = reader.text(args["keras_model"].value)
    else:
        text = convert_call(reader, job.call, "", without=("model_dir",))
        job.is_canned = True
    job.make = lambda data: text
    job.needs_inputs = False


def find_factories(reader: Rewriter) -> dict[cst.FunctionDef, list[cst.Call]]:
    """Return functions that always return an Estimator, with the calls that create it."""
    factories = {}
    for function in reader.tree.functions:
        values = [
            _resolve_constructor(reader, node)
            for value in reader.tree.scopes[function].returns
            for node in _assigned_values(reader, value)
        ]
        calls = [node for node in values if isinstance(node, cst.Call) and reader.called(node) in (*NAMES, ESTIMATOR)]
        if calls and len(calls) == len(values):
            factories[function] = calls
    return factories


def _assigned_values(reader: Rewriter, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the values that branches assign to a name that is only returned."""
    bindings = reader.program.bindings(value.value, reader.scope(value)) if isinstance(value, cst.Name) else []
    uses = [chain for chain in reader.tree.chains if isinstance(chain, cst.Name) and isinstance(value, cst.Name)
            and reader.home(chain) == reader.home(value)]  # fmt: skip
    read = [chain for chain in uses if not isinstance(reader.tree.parents.get(chain), (cst.AssignTarget, cst.Return))]
    values = [binding.node for binding in bindings if isinstance(binding.node, cst.Call) and binding.kind == "value"]
    return [*values] if len(bindings) > 1 and len(values) == len(bindings) and not read else [value]


def _resolve_constructor(reader: Rewriter, value: cst.BaseExpression) -> cst.BaseExpression:
    """Return the call that creates an Estimator, within calls of `add_metrics`."""
    value = reader.value(value)
    while isinstance(value, cst.Call) and reader.called(value) == _ADD_METRICS and value.args:
        value = reader.value(value.args[0].value)
    return value


def convert_call(reader: Rewriter, call: cst.Call, folder: str, without: tuple[str, ...] = ()) -> str:
    """Return the call that creates the Keras model.

    Args:
        folder: model_dir of the RunConfig, as text.
        without: names of arguments to drop.
    """
    name = reader.called(call)
    if name not in NAMES:
        raise NotConvertible(f"{reader.source(call.func)} has no equivalent Keras model", call)
    texts: list[str] = []
    keywords: set[str] = set()
    of_v1 = reader.is_of_v1(call.func)
    for arg in call.args:
        keyword = arg.keyword.value if arg.keyword else ""
        keywords.add(keyword)
        if arg.star:
            raise NotConvertible("a canned Estimator whose arguments cannot be determined", arg)
        if keyword in (*_LEFT_OUT, *without):
            continue
        if of_v1 and (keyword == "loss_reduction" or (keyword in _OPTIMIZERS and isinstance(
            reader.value(arg.value), cst.SimpleString))):  # fmt: skip
            raise NotConvertible(
                f"{keyword} of a TensorFlow 1 canned Estimator, which has a different meaning in Keras", arg
            )
        if keyword == "warm_start_from":
            raise NotConvertible("a warm start: load the weights of a layer by its name before fit", arg)
        text = _convert_optimizer(reader, arg.value) if keyword in _OPTIMIZERS else reader.text(arg.value)
        texts.append(f"{keyword}={text}" if keyword else text)
    if of_v1:
        texts += _defaults_of_v1(reader, name, keywords)
    if folder and not {"model_dir", ""} & keywords:
        texts.append(f"model_dir={folder}")
    reader.needs.add("keras_canned")
    return reader.call(f"keras_canned.{name.rpartition('.')[2]}", texts, call)


def _defaults_of_v1(reader: Rewriter, name: str, keywords: set[str]) -> list[str]:
    """Return the arguments that keep the TensorFlow 1 defaults of a canned Estimator."""
    texts = []
    argument = "dnn_optimizer" if "Combined" in name else "optimizer" if "DNN" in name else ""
    if argument and argument not in keywords:
        texts.append(f"{argument}={reader.tf}.keras.optimizers.legacy.Adagrad(0.05)")
    return [*texts, "loss_reduction='sum'"]


def _convert_optimizer(reader: Rewriter, node: cst.BaseExpression) -> str:
    """Return the optimizer expression; a TensorFlow 1 optimizer becomes the Keras one."""
    inner = node.body if isinstance(node, cst.Lambda) else node
    if isinstance(inner, cst.Call) and reader.called(inner).startswith("tf.compat.v1.train."):
        rate = reader.value(inner.args[0].value) if inner.args else None
        scheduled = reader.called(rate) in arithmetic.SCHEDULES
        text = arithmetic.optimizer(reader, inner, scheduled=scheduled, clipping={})
        return f"lambda: {text}" if inner is not node else text
    return reader.text(node)
