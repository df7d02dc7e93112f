"""Averages of the weights, which a train_op keeps and a Scaffold puts in their place to be evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code.analysis import modes
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter, names_in

__all__ = ["Averages", "find", "keeps_its_saver", "methods"]

_V1 = "tf.compat.v1.train."
_AVERAGES = (f"{_V1}ExponentialMovingAverage", "tf.train.ExponentialMovingAverage")
_ALL = ("tf.compat.v1.trainable_variables",)
_STEPS = ("tf.compat.v1.train.get_global_step", "tf.compat.v1.train.get_or_create_global_step")


@dataclass
class Averages:
    """The averages of a model_fn.

    Attributes:
        calls: the call that makes them, and the one that moves them.
        text: what makes them for the model; `params` is known there.
        evaluated: whether the model is evaluated with them.
    """

    calls: tuple[cst.Call, cst.Call]
    text: str
    evaluated: bool


def find(reader: Rewriter, function: cst.FunctionDef, steps: set[str], scaffold: Any) -> Averages | None:
    """Return the averages of a model_fn; None where it keeps none.

    Args:
        steps: names of the global step in it.
        scaffold: the scaffold of the EstimatorSpec for evaluation, if it has one.

    Raises:
        NotConvertible: they are kept of other variables than all, or otherwise than after each step.
    """
    calls = [call for call in reader.tree.calls if function in set(reader.tree.above(call))]
    makers = [call for call in calls if reader.called(call) in _AVERAGES]
    if not makers:
        return None
    maker = makers[0]
    moved = [call for call in calls if _method(reader, call, maker) == "apply"]
    if len(makers) != 1 or len(moved) != 1:
        raise NotConvertible("averages of the weights that are not moved in one place", maker)
    (move,) = moved
    others = {_method(reader, call, maker) for call in calls} - {"", "apply", "variables_to_restore"}
    if others:
        raise NotConvertible(f"{sorted(others)[0]} of the averages of the weights", maker)
    given = arguments(move, ("var_list",))
    if given and (reader.called(given["var_list"].value) not in _ALL or given["var_list"].value.args):  # type: ignore[attr-defined]
        raise NotConvertible("averages of some of the weights", move)
    if not any(_waits(reader, above) for above in reader.tree.above(move)):
        raise NotConvertible("averages that do not wait for the step of the optimizer", move)
    condition = _condition(reader, function, move)
    text = f"keras_averages.Averages(self.trainable_variables, {_told(reader, maker, steps)})"
    if condition:
        text += f" if {condition} else None"
    restored = _restored(reader, function, maker, scaffold)
    if restored is not None and restored != condition:
        raise NotConvertible("averages that are kept in other cases than they are evaluated in", maker)
    reader.needs.add("keras_averages")
    return Averages((maker, move), text, restored is not None)


def _method(reader: Rewriter, call: cst.Call, maker: cst.Call) -> str:
    """Return the method of the averages that a call is of; "" of other calls."""
    func = call.func
    if isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name) and reader.value(func.value) is maker:
        return func.attr.value
    return ""


def _waits(reader: Rewriter, node: cst.CSTNode) -> bool:
    """Whether a statement waits for what an optimizer gives."""
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


def methods(writer: Any) -> list[str]:
    """Return the methods of a model that keep averages of the weights, and evaluate them.

    Args:
        writer: of the model.
    """
    if writer.averages is None:
        return []
    step = ["found = super().train_step(data)", "keras_averages.update(self.averages, self.optimizer.iterations)",
            "return found"]  # fmt: skip
    found = [writer.method("def train_step(self, data):", step)]
    if writer.averages.evaluated:
        lines = [
            '"""Evaluates the averages in place of the weights."""',
            f"with keras_averages.in_place(self.averages):\n{writer.unit}return super().evaluate(*data, **options)",
        ]
        found.append(writer.method("def evaluate(self, *data, **options):", lines))
    return found


def _condition(reader: Rewriter, function: cst.FunctionDef, node: cst.CSTNode) -> str:
    """In what cases a statement is run, besides those of the mode; "" where always."""
    found = []
    below = node
    for above in reader.tree.above(node):
        if above is function:
            break
        if isinstance(above, cst.If):
            of_mode = modes._condition(reader.program, reader.tree, above.test, reader.scope(above.test)) is not None
            if not of_mode:
                known = {"params", *reader.tree.scope.names}
                if below is not above.body or not set(names_in(above.test)) <= known:
                    raise NotConvertible("averages of the weights in cases that the model does not know", above.test)
                found.append(reader.text(above.test))
        elif isinstance(above, (cst.For, cst.While, cst.Try)):
            raise NotConvertible("averages of the weights within another statement", node)
        below = above
    return " and ".join(found[::-1])


def _told(reader: Rewriter, maker: cst.Call, steps: set[str]) -> str:
    given = arguments(maker, ("decay", "num_updates", "zero_debias", "name"))
    if "decay" not in given or given.keys() - {"decay", "num_updates", "name"} or (
        not set(names_in(given["decay"].value)) <= {"params", *reader.tree.scope.names}
    ):  # fmt: skip
        raise NotConvertible("averages of the weights whose decay cannot be told", maker)
    text = reader.text(given["decay"].value)
    if "num_updates" not in given:
        return text
    count = given["num_updates"].value
    if reader.called(count) not in _STEPS and not (isinstance(count, cst.Name) and count.value in steps):
        raise NotConvertible("averages of the weights that count otherwise than in steps", given["num_updates"])
    return f"{text}, by_step=True"


def _restored(reader: Rewriter, function: cst.FunctionDef, maker: cst.Call, scaffold: Any) -> str | None:
    """In what cases the averages are evaluated in place of the weights; None where never."""
    if scaffold is None or reader.source(scaffold) == "None":
        return None
    values = [scaffold]
    if isinstance(scaffold, cst.Name):
        values = [one.node for one in reader.program.bindings(scaffold.value, reader.scope(scaffold))]
    chosen = [one for one in values if not (isinstance(one, cst.Name) and one.value == "None")]
    if len(chosen) == 1:
        saver = _saver(reader, chosen[0])
        given = arguments(saver, ("var_list",)) if saver is not None else {}
        names = given["var_list"].value if given.keys() == {"var_list"} else None
        if isinstance(names, cst.Call) and _method(reader, names, maker) == "variables_to_restore":
            return _condition(reader, function, chosen[0])
    raise NotConvertible("scaffold of the EstimatorSpec for eval", scaffold)


def _saver(reader: Rewriter, node: Any) -> cst.Call | None:
    """Return the Saver of a Scaffold that has nothing else."""
    if reader.called(node) not in (f"{_V1}Scaffold", "tf.estimator.Scaffold"):
        return None
    given = {arg.keyword.value if arg.keyword else "" for arg in node.args}
    saver = reader.value(node.args[0].value) if given == {"saver"} else None
    return saver if isinstance(saver, cst.Call) and reader.called(saver) == f"{_V1}Saver" else None


def keeps_its_saver(reader: Rewriter, node: cst.BaseExpression) -> bool:
    """Whether a Scaffold only says how many checkpoints of all variables are kept: BackupAndRestore keeps one."""
    saver = _saver(reader, reader.value(node))
    return saver is not None and {arg.keyword.value if arg.keyword else "" for arg in saver.args} <= {
        "max_to_keep", "keep_checkpoint_every_n_hours", "name", "sharded", "save_relative_paths"}  # fmt: skip
