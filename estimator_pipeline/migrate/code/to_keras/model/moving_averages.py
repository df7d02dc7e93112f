"""Conversion of exponential moving averages (EMA) of the weights, with which a Scaffold evaluates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis import modes
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["Averages", "find_averages", "format_methods", "keeps_its_saver"]

_V1 = "tf.compat.v1.train."
_AVERAGES = (f"{_V1}ExponentialMovingAverage", "tf.train.ExponentialMovingAverage")
_ALL = ("tf.compat.v1.trainable_variables",)
_STEPS = ("tf.compat.v1.train.get_global_step", "tf.compat.v1.train.get_or_create_global_step")


@dataclass
class Averages:
    """The moving averages of a model_fn.

    Attributes:
        calls: the call of ExponentialMovingAverage, and the call of its `apply`.
        text: expression that creates the averages within the model, which may read `params`.
        evaluated: whether evaluation uses the averages.
    """

    calls: tuple[cst.Call, cst.Call]
    text: str
    evaluated: bool


def find_averages(reader: Rewriter, function: cst.FunctionDef, steps: set[str], scaffold: Any) -> Averages | None:
    """Return the moving averages of a model_fn; None if there are none.

    Args:
        steps: names of the global step in the model_fn.
        scaffold: scaffold of the EstimatorSpec for evaluation, or None.

    Raises:
        NotConvertible: the averages do not cover all variables, or are not updated after each step.
    """
    calls = [call for call in reader.tree.calls if function in set(reader.tree.above(call))]
    makers = [call for call in calls if reader.called(call) in _AVERAGES]
    if not makers:
        return None
    maker = makers[0]
    moved = [call for call in calls if _called_method(reader, call, maker) == "apply"]
    if len(makers) != 1 or len(moved) != 1:
        raise NotConvertible("averages of the weights that are not updated exactly once", maker)
    (move,) = moved
    others = {_called_method(reader, call, maker) for call in calls} - {"", "apply", "variables_to_restore"}
    if others:
        raise NotConvertible(f"{sorted(others)[0]} of the averages of the weights", maker)
    args = arguments(move, ("var_list",))
    if args and (reader.called(args["var_list"].value) not in _ALL or args["var_list"].value.args):  # type: ignore[attr-defined]
        raise NotConvertible("averages of only some of the weights", move)
    if not any(_has_dependency(reader, above) for above in reader.tree.above(move)):
        raise NotConvertible("averages that are not updated after the step of the optimizer", move)
    condition = _format_condition(reader, function, move)
    text = f"keras_averages.Averages(self.trainable_variables, {_format_decay(reader, maker, steps)})"
    if condition:
        text += f" if {condition} else None"
    restored = _restore_condition(reader, function, maker, scaffold)
    if restored is not None and restored != condition:
        raise NotConvertible("averages that are updated and evaluated under different conditions", maker)
    reader.needs.add("keras_averages")
    return Averages((maker, move), text, restored is not None)


def _called_method(reader: Rewriter, call: cst.Call, maker: cst.Call) -> str:
    """Return the method of the averages that is called; "" for other calls."""
    func = call.func
    if isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name) and reader.value(func.value) is maker:
        return func.attr.value
    return ""


def _has_dependency(reader: Rewriter, node: cst.CSTNode) -> bool:
    """Return whether a statement has a control dependency on the step of an optimizer."""
    for item in node.items if isinstance(node, cst.With) else ():
        if reader.called(item.item) in ("tf.control_dependencies", "tf.compat.v1.control_dependencies"):
            return any(_is_step(reader, name, node) for name in names_in(item.item))
    return False


def _is_step(reader: Rewriter, name: str, at: cst.CSTNode) -> bool:
    for binding in reader.program.bindings(name, reader.scope(at)):
        method = binding.node.func if isinstance(binding.node, cst.Call) else None
        if isinstance(method, cst.Attribute) and method.attr.value in ("minimize", "apply_gradients"):
            return True
    return False


def format_methods(writer: Any) -> list[str]:
    """Return the methods of a model that update and evaluate averages of the weights.

    Args:
        writer: converter of the model_fn.
    """
    if writer.averages is None:
        return []
    step = ["logs = super().train_step(data)", "keras_averages.update(self.averages, self.optimizer.iterations)",
            "return logs"]  # fmt: skip
    texts = [writer.format_method("def train_step(self, data):", step)]
    if writer.averages.evaluated:
        lines = [
            '"""Evaluate with the averages of the weights."""',
            f"with keras_averages.in_place(self.averages):\n{writer.unit}return super().evaluate(*data, **options)",
        ]
        texts.append(writer.format_method("def evaluate(self, *data, **options):", lines))
    return texts


def _format_condition(reader: Rewriter, function: cst.FunctionDef, node: cst.CSTNode) -> str:
    """Return the condition of a statement in addition to the mode, or ""."""
    conditions = []
    below = node
    for above in reader.tree.above(node):
        if above is function:
            break
        if isinstance(above, cst.If):
            of_mode = modes.condition(reader.program, reader.tree, above.test, reader.scope(above.test)) is not None
            if not of_mode:
                known = {"params", *reader.tree.scope.names}
                if below is not above.body or not set(names_in(above.test)) <= known:
                    raise NotConvertible(
                        "averages of the weights under a condition that the model cannot evaluate", above.test
                    )
                conditions.append(reader.text(above.test))
        elif isinstance(above, (cst.For, cst.While, cst.Try)):
            raise NotConvertible("averages of the weights within a loop or try statement", node)
        below = above
    return " and ".join(conditions[::-1])


def _format_decay(reader: Rewriter, maker: cst.Call, steps: set[str]) -> str:
    args = arguments(maker, ("decay", "num_updates", "zero_debias", "name"))
    if "decay" not in args or args.keys() - {"decay", "num_updates", "name"} or (
        not set(names_in(args["decay"].value)) <= {"params", *reader.tree.scope.names}
    ):  # fmt: skip
        raise NotConvertible("averages of the weights whose decay cannot be determined", maker)
    text = reader.text(args["decay"].value)
    if "num_updates" not in args:
        return text
    count = args["num_updates"].value
    if reader.called(count) not in _STEPS and not (isinstance(count, cst.Name) and count.value in steps):
        raise NotConvertible("averages of the weights whose num_updates is not the global step", args["num_updates"])
    return f"{text}, by_step=True"


def _restore_condition(reader: Rewriter, function: cst.FunctionDef, maker: cst.Call, scaffold: Any) -> str | None:
    """Return the condition on which the averages are evaluated; None if they never are."""
    if scaffold is None or reader.source(scaffold) == "None":
        return None
    values = [scaffold]
    if isinstance(scaffold, cst.Name):
        values = [binding.node for binding in reader.program.bindings(scaffold.value, reader.scope(scaffold))]
    chosen = [value for value in values if not (isinstance(value, cst.Name) and value.value == "None")]
    if len(chosen) == 1:
        saver = _find_saver(reader, chosen[0])
        args = arguments(saver, ("var_list",)) if saver is not None else {}
        names = args["var_list"].value if args.keys() == {"var_list"} else None
        if isinstance(names, cst.Call) and _called_method(reader, names, maker) == "variables_to_restore":
            return _format_condition(reader, function, chosen[0])
    raise NotConvertible("scaffold of the EstimatorSpec for eval", scaffold)


def _find_saver(reader: Rewriter, node: Any) -> cst.Call | None:
    """Return the Saver of a Scaffold that has no other arguments."""
    if reader.called(node) not in (f"{_V1}Scaffold", "tf.estimator.Scaffold"):
        return None
    keywords = {arg.keyword.value if arg.keyword else "" for arg in node.args}
    saver = reader.value(node.args[0].value) if keywords == {"saver"} else None
    return saver if isinstance(saver, cst.Call) and reader.called(saver) == f"{_V1}Saver" else None


def keeps_its_saver(reader: Rewriter, node: cst.BaseExpression) -> bool:
    """Return whether a Scaffold only sets which checkpoints are kept."""
    saver = _find_saver(reader, reader.value(node))
    return saver is not None and {arg.keyword.value if arg.keyword else "" for arg in saver.args} <= {
        "max_to_keep", "keep_checkpoint_every_n_hours", "name", "sharded", "save_relative_paths"}  # fmt: skip
