"""Canned Estimators as the models of `keras_canned`, feature columns as those of `keras_columns`."""

from __future__ import annotations

from functools import partial
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.model_fn import losses_and_optimizers as arithmetic
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["ESTIMATOR", "NAMES", "adds_metrics", "factories", "install", "model", "write"]

NAMES = tuple(
    f"tf.estimator.{name}"
    for name in ("DNNClassifier", "DNNRegressor", "LinearClassifier", "LinearRegressor",
                 "DNNLinearCombinedClassifier", "DNNLinearCombinedRegressor")
)  # fmt: skip
ESTIMATOR = "tf.estimator.Estimator"
_ADD_METRICS = "tf.estimator.add_metrics"
_OPTIMIZERS = ("optimizer", "dnn_optimizer", "linear_optimizer")
_LEFT_OUT = ("config", "input_layer_partitioner")
# Column -> how many of its arguments there are.
_COLUMNS = {
    "numeric_column": 5, "bucketized_column": 2, "categorical_column_with_vocabulary_list": 5,
    "categorical_column_with_vocabulary_file": 6, "categorical_column_with_identity": 3,
    "categorical_column_with_hash_bucket": 3, "crossed_column": 3, "indicator_column": 1, "embedding_column": 4,
    "make_parse_example_spec": 1,
}  # fmt: skip
# Function of V1 that makes weights for columns -> the layer of keras_columns.
_IN_V1 = {"input_layer": "feature_layer", "linear_model": "linear_model"}
_UNKNOWN = ("ckpt_to_load_from", "tensor_name_in_ckpt", "max_norm", "use_safe_embedding_lookup")


def install(reader: Rewriter) -> None:
    """Lets a reader write feature columns."""
    for name in _COLUMNS:
        reader.calls[f"tf.feature_column.{name}"] = partial(_column, reader, name)
    for name, layer in _IN_V1.items():
        reader.calls[f"tf.compat.v1.feature_column.{name}"] = partial(_on_columns, reader, layer)
    reader.calls[_ADD_METRICS] = partial(_add_metrics, reader)
    for module in ("tf.keras", "tf.compat.v1.keras"):
        reader.calls[f"{module}.layers.DenseFeatures"] = partial(_features, reader)
    for name in ("Adagrad", "Adam", "Ftrl", "SGD", "RMSprop"):
        reader.names[f"tf.compat.v1.keras.optimizers.{name}"] = f"{reader.tf}.keras.optimizers.legacy.{name}"


def _column(reader: Rewriter, name: str, call: cst.Call) -> str:
    by_position = sum(arg.keyword is None for arg in call.args)
    for arg in call.args:
        if (arg.keyword and arg.keyword.value in _UNKNOWN) or arg.star or by_position > _COLUMNS[name]:
            raise NotConvertible(f"{reader.source(arg)} of {name}", arg)
    reader.needs.add("keras_columns")
    return f"keras_columns.{name}{reader.spliced(reader.span(call.func)[1], reader.span(call)[1], call.args)}"


def _features(reader: Rewriter, call: cst.Call) -> str:
    given = {arg.keyword.value if arg.keyword else "feature_columns": arg for arg in call.args}
    if given.keys() - {"feature_columns", "name"} or "feature_columns" not in given:
        raise NotConvertible("arguments of DenseFeatures that have no counterpart in keras_columns", call)
    reader.needs.add("keras_columns")
    told = [reader.text(given["feature_columns"].value)]
    told += [f"name={reader.text(given['name'].value)}"] if "name" in given else []
    return reader.call("keras_columns.feature_layer", told, call)


def _on_columns(reader: Rewriter, layer: str, call: cst.Call) -> str:
    """`input_layer(features, columns)`: a layer of the columns, called with the features."""
    given = arguments(call, ("features", "feature_columns", "units", "sparse_combiner"))
    allowed = {"features", "feature_columns", *(("units", "sparse_combiner") if layer == "linear_model" else ())}
    for one, arg in given.items():
        if one not in allowed or arg.star:
            raise NotConvertible(f"{one or 'an argument'} of {reader.source(call.func)}", arg)
    if not {"features", "feature_columns"} <= given.keys():
        raise NotConvertible(f"the arguments of {reader.source(call.func)} cannot be told", call)
    reader.needs.add("keras_columns")
    told = [reader.text(given["feature_columns"].value)]
    told += [f"{one}={reader.text(given[one].value)}" for one in ("units", "sparse_combiner") if one in given]
    return reader.call(f"keras_columns.{layer}", told, call, f"({reader.text(given['features'].value)})")


def adds_metrics(reader: Rewriter, node: cst.CSTNode | None, name: str) -> bool:
    """Whether a value is the Estimator of a name with further metrics."""
    given = arguments(node, ("estimator", "metric_fn")) if isinstance(node, cst.Call) else {}
    first = given["estimator"].value if "estimator" in given else None
    return reader.called(node) == _ADD_METRICS and isinstance(first, cst.Name) and first.value == name


def _add_metrics(reader: Rewriter, call: cst.Call) -> str:
    given = arguments(call, ("estimator", "metric_fn"))
    functions = reader.functions(given["metric_fn"].value) if given.keys() == {"estimator", "metric_fn"} else []
    if len(functions) != 1 or not isinstance(functions[0].node, cst.FunctionDef):
        raise NotConvertible("metrics of a function that is not one of this file", call)
    function = functions[0].node
    uses = [one for one in reader.tree.chains if any(f.node is function for f in reader.functions(one))]
    returned = reader.tree.scopes[function].returns
    params = {one.name.value for one in function.params.params}
    if len(uses) != 1 or len(returned) != 1 or not params <= {"features", "labels", "predictions"}:
        raise NotConvertible("a function of metrics that is used elsewhere, or asks for more", function.name)
    told = reader.value(returned[0])
    metrics = []
    for element in told.elements if isinstance(told, cst.Dict) else ():
        key = element.key if isinstance(element, cst.DictElement) else None
        value = reader.value(element.value)
        if not isinstance(key, cst.SimpleString) or not isinstance(value, cst.Call):
            raise NotConvertible("metrics that are no dict of literals", function.name)
        if reader.called(value).startswith(("tf.keras.metrics.", "tf.compat.v1.keras.metrics.")):
            metrics.append(f"{key.value}: {_of_keras(reader, element.value, value, str(key.evaluated_value))}")
            continue
        made, _, used = arithmetic.metric(reader, value, str(key.evaluated_value))
        metrics.append(f"{key.value}: {made}")
        reader.replaced[value] = partial(_told, reader, value, str(key.evaluated_value), len(used))
    if not metrics:
        raise NotConvertible("metrics that are no dict of literals", function.name)
    reader.needs.add("keras_canned")
    kept = [reader.text(given["estimator"].value), reader.text(given["metric_fn"].value), f"{{{', '.join(metrics)}}}"]
    return reader.call("keras_canned.add_metrics", kept, call)


def _of_keras(reader: Rewriter, name: cst.BaseExpression, call: cst.Call, key: str) -> str:
    """Return a metric of Keras that the function makes and updates: it says what it is updated with."""
    updates = [one for one in reader.tree.calls if isinstance(one.func, cst.Attribute)
               and one.func.attr.value == "update_state" and reader.value(one.func.value) is call]  # fmt: skip
    statements = [reader.statement_of(one) for one in (call, *updates)]
    if len(updates) != 1 or not isinstance(name, cst.Name) or None in statements:
        raise NotConvertible(f"the metric {key}, which is not updated in one place", call)
    given = arguments(updates[0], ("y_true", "y_pred") if len(updates[0].args) > 1 else ("values",))
    told = [reader.text(given[one].value) for one in ("y_true", "y_pred", "values") if one in given]
    if len(told) != len(updates[0].args):
        raise NotConvertible(f"what the metric {key} is updated with", updates[0])
    made, updated = (one for one in statements if one is not None)
    reader.replaced[made] = REMOVED
    reader.replaced[updated] = f"{name.value} = ({', '.join(told)}{',' if len(told) == 1 else ''})"
    kept = [f"{arg.keyword.value}={reader.text(arg.value)}" if arg.keyword else reader.text(arg.value)
            for arg in call.args if not (arg.keyword and arg.keyword.value == "name")]  # fmt: skip
    kind = reader.called(call).rpartition(".")[2]
    return f"{reader.tf}.keras.metrics.{kind}({', '.join([*kept, f'name={key!r}'])})"


def _told(reader: Rewriter, call: cst.Call, key: str, count: int) -> str:
    """Return what a metric is updated with."""
    text = arithmetic.metric(reader, call, key)[1]
    return f"({text})" if count > 1 else f"({text},)"


def write(reader: Rewriter, job: Any) -> None:
    """Lets a canned Estimator's model be made.

    Raises:
        NotConvertible: it is one that cannot be converted.
    """
    if reader.called(job.call) == "tf.keras.estimator.model_to_estimator":
        given = {arg.keyword.value if arg.keyword else "keras_model": arg for arg in job.call.args}
        if given.keys() - {"keras_model", "model_dir", "config", "checkpoint_format"} or "keras_model" not in given:
            raise NotConvertible("a Keras model from a file, or with names of its own for its metrics", job.call)
        text = reader.text(given["keras_model"].value)
    else:
        text = model(reader, job.call, "", without=("model_dir",))
        job.is_canned = True
    job.make = lambda data: text
    job.needs_inputs = False


def factories(reader: Rewriter) -> dict[cst.FunctionDef, list[cst.Call]]:
    """Functions that give an Estimator whichever way they end, with the calls that make it."""
    found = {}
    for function in reader.tree.functions:
        values = [
            _maker(reader, one) for value in reader.tree.scopes[function].returns for one in _given(reader, value)
        ]
        calls = [one for one in values if isinstance(one, cst.Call) and reader.called(one) in (*NAMES, ESTIMATOR)]
        if calls and len(calls) == len(values):
            found[function] = calls
    return found


def _given(reader: Rewriter, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what a name is given by the branches of a function that returns it, and does nothing else with it."""
    bindings = reader.program.bindings(value.value, reader.scope(value)) if isinstance(value, cst.Name) else []
    uses = [one for one in reader.tree.chains if isinstance(one, cst.Name) and isinstance(value, cst.Name)
            and reader.home(one) == reader.home(value)]  # fmt: skip
    read = [one for one in uses if not isinstance(reader.tree.parents.get(one), (cst.AssignTarget, cst.Return))]
    given = [one.node for one in bindings if isinstance(one.node, cst.Call) and one.kind == "value"]
    return [*given] if len(bindings) > 1 and len(given) == len(bindings) and not read else [value]


def _maker(reader: Rewriter, value: cst.BaseExpression) -> cst.BaseExpression:
    """Return what makes the Estimator that an expression gives, perhaps with further metrics."""
    value = reader.value(value)
    while isinstance(value, cst.Call) and reader.called(value) == _ADD_METRICS and value.args:
        value = reader.value(value.args[0].value)
    return value


def model(reader: Rewriter, call: cst.Call, folder: str, without: tuple[str, ...] = ()) -> str:
    """The call that makes the Keras model, without some arguments; `folder` is the model_dir of its RunConfig."""
    name = reader.called(call)
    if name not in NAMES:
        raise NotConvertible(f"{reader.source(call.func)} has no Keras model of its arithmetic here", call)
    kept: list[str] = []
    given: set[str] = set()
    of_v1 = reader.is_of_v1(call.func)
    for arg in call.args:
        keyword = arg.keyword.value if arg.keyword else ""
        given.add(keyword)
        if arg.star:
            raise NotConvertible("a canned Estimator whose arguments cannot be told", arg)
        if keyword in (*_LEFT_OUT, *without):
            continue
        if of_v1 and (keyword == "loss_reduction" or (keyword in _OPTIMIZERS and isinstance(
            reader.value(arg.value), cst.SimpleString))):  # fmt: skip
            raise NotConvertible(f"{keyword} of a canned Estimator of V1: it means something else in Keras", arg)
        if keyword == "warm_start_from":
            raise NotConvertible("a warm start: load the weights of a layer by its name before fit", arg)
        text = _optimizer(reader, arg.value) if keyword in _OPTIMIZERS else reader.text(arg.value)
        kept.append(f"{keyword}={text}" if keyword else text)
    if of_v1:
        kept += _defaults_of_v1(reader, name, given)
    if folder and not {"model_dir", ""} & given:
        kept.append(f"model_dir={folder}")
    reader.needs.add("keras_canned")
    return reader.call(f"keras_canned.{name.rpartition('.')[2]}", kept, call)


def _defaults_of_v1(reader: Rewriter, name: str, given: set[str]) -> list[str]:
    """Return what a canned Estimator of V1 takes where nothing is said, and one of TensorFlow 2 does not."""
    found = []
    asked = "dnn_optimizer" if "Combined" in name else "optimizer" if "DNN" in name else ""
    if asked and asked not in given:
        found.append(f"{asked}={reader.tf}.keras.optimizers.legacy.Adagrad(0.05)")
    return [*found, "loss_reduction='sum'"]


def _optimizer(reader: Rewriter, node: cst.BaseExpression) -> str:
    """Return what makes the optimizer; one of V1 becomes that of Keras."""
    inner = node.body if isinstance(node, cst.Lambda) else node
    if isinstance(inner, cst.Call) and reader.called(inner).startswith("tf.compat.v1.train."):
        rate = reader.value(inner.args[0].value) if inner.args else None
        scheduled = reader.called(rate) in arithmetic.SCHEDULES
        made = arithmetic.optimizer(reader, inner, scheduled=scheduled, clipping={})
        return f"lambda: {made}" if inner is not node else made
    return reader.text(node)
