"""From train_and_evaluate to `fit` with a callback that evaluates, exports and ends training early."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.chains import root
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.hooks import hooks
from estimator_pipeline.migrate.code.to_keras.job import exports as exporting
from estimator_pipeline.migrate.code.to_keras.job.datasets import dataset, take
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["write"]

_EXPORTERS = {
    "tf.estimator.BestExporter": ("name", "serving_input_receiver_fn", "event_file_pattern", "compare_fn",
                                  "assets_extra", "as_text", "exports_to_keep"),
    "tf.estimator.FinalExporter": ("name", "serving_input_receiver_fn", "assets_extra", "as_text"),
    "tf.estimator.LatestExporter": ("name", "serving_input_receiver_fn", "assets_extra", "as_text",
                                    "exports_to_keep"),
}  # fmt: skip
# An evaluation keeps its results by itself, and where that is was said for them.
_LEFT_OUT = ("event_file_pattern", "serving_input_receiver_fn")
_SECONDS = ("throttle_secs", "start_delay_secs")


def write(life: Any, call: cst.Call) -> None:
    """Lets a reader write a call of train_and_evaluate.

    Args:
        life: of the Estimator: what is done with it.

    Raises:
        NotConvertible: something of its specifications that Keras has no counterpart for.
    """
    reader: Rewriter = life.reader
    given = arguments(call, ("estimator", "train_spec", "eval_spec"))
    comments: list[str] = []
    train = _spec(reader, given["train_spec"].value, "tf.estimator.TrainSpec", comments)
    evaluation = _spec(reader, given["eval_spec"].value, "tf.estimator.EvalSpec", comments)
    found = hooks.read(reader, life.job, train)
    life.check_hooks(evaluation)
    parent = reader.tree.parents.get(call)
    statement = reader.tree.parents.get(parent) if parent is not None else None
    if not isinstance(parent, (cst.Expr, cst.Assign)) or not isinstance(statement, cst.SimpleStatementLine):
        raise NotConvertible("train_and_evaluate within another expression", call)
    function = train["input_fn"].value
    life.trains.append((statement, function))
    for stop in found.stops:
        _check_folder(reader, life.job, stop, evaluation)
    exporters = _exporters(reader, life.job, evaluation)
    taken = {*reader.scope(life.job.call).around().names, *reader.tree.scope.names}
    name = "evaluation" if "evaluation" not in taken else f"{life.job.name}_evaluation"
    reader.needs.add("keras_evaluation")

    def write() -> str:
        text = reader.text(train["max_steps"].value) if "max_steps" in train else ""
        told = [_data(reader, evaluation), f"every_steps={life.job.settings.save_steps or '1000'}"]
        if "name" in evaluation:
            told.append(f"name={reader.text(evaluation['name'].value)}")
        if life.job.folder:
            told.append(f"folder={life.job.folder}")
        if exporters is not None:
            told.append(f"exporters={exporters()}")
        if found.stops:
            told.append(f"stop=[{', '.join(reader.text(one) for one in found.stops)}]")
        waits = _seconds(reader, evaluation)
        lines = [*comments, f"# Was {', '.join(waits)}: every checkpoint is evaluated"] if waits else [*comments]
        lines.append(f"{name} = " + reader.call("keras_evaluation.Evaluation", told, statement))
        callbacks = [one() for one in found.callbacks]
        lines.append(life.fit(statement, function, "" if text == "None" else text, [name], callbacks))
        if isinstance(parent, cst.Assign):
            targets = "".join(f"{reader.source(target.target)} = " for target in parent.targets)
            several = isinstance(parent.targets[-1].target, cst.Tuple)
            pair = f"{name}.result, {name}.exports"
            lines.append(targets + (pair if several else f"({pair})"))
        return f"\n{reader.indent(statement)}".join(lines)

    reader.replaced[statement] = write


def _data(reader: Rewriter, spec: dict[str, cst.Arg]) -> str:
    """Return what gives the data set of an evaluation: a function without arguments."""
    text = dataset(reader, spec["input_fn"].value, "eval")
    steps = reader.text(spec["steps"].value) if "steps" in spec else "100"  # the default of EvalSpec
    text += take(steps)
    return text[:-2] if text[:-2].isidentifier() and text.endswith("()") else f"lambda: {text}"


def _seconds(reader: Rewriter, spec: dict[str, cst.Arg]) -> list[str]:
    """Return what an evaluation waited for."""
    told = [(name, " ".join(reader.source(spec[name].value).split())) for name in _SECONDS if name in spec]
    return [f"{name}={value}" for name, value in told if value not in ("0", "0.0", "None")]


def _spec(reader: Rewriter, node: cst.BaseExpression, name: str, comments: list[str]) -> dict[str, cst.Arg]:
    """Return the fields of a specification; what is said of them is added to the comments."""
    call = reader.value(node)
    if reader.called(call) != name or not isinstance(call, cst.Call) or any(arg.star for arg in call.args):
        raise NotConvertible(f"a {name.rpartition('.')[2]} that is not made in this file", node)
    if isinstance(node, cst.Name):
        statement = reader.statement_of(call)
        _only(reader, node, call)
        if isinstance(statement, cst.SimpleStatementLine):
            reader.replaced[statement] = REMOVED
            comments += reader.comments(call, [arg.value for arg in call.args])
    return arguments(call, catalogue.row(name).fields)


def _only(reader: Rewriter, name: cst.Name, call: cst.Call) -> None:
    """`eval_spec.input_fn` elsewhere is what the specification was given."""
    given = arguments(call, catalogue.row(reader.called(call)).fields)
    for chain in reader.tree.chains:
        first = root(chain)
        if first.value != name.value or reader.home(first) != reader.home(name) or chain is name:
            continue
        if isinstance(chain, cst.Attribute) and chain.value is first and chain.attr.value in given:
            reader.meant[chain] = given[chain.attr.value].value
            reader.replaced[chain] = partial(reader.text, given[chain.attr.value].value)
            continue
        raise NotConvertible(f"{name.value} is used for more than train_and_evaluate", chain)


def _exporters(reader: Rewriter, job: Any, spec: dict[str, cst.Arg]) -> Callable[[], str] | None:
    """Return what writes the argument `exporters`; the exporters are written where they are made."""
    if "exporters" not in spec or reader.source(spec["exporters"].value) == "None":
        return None
    given = spec["exporters"].value
    node = reader.value(given)
    several = isinstance(node, (cst.List, cst.Tuple))
    nodes = [one.value for one in node.elements] if isinstance(node, (cst.List, cst.Tuple)) else [node]
    for one in nodes:
        call = reader.value(one)
        fields = _EXPORTERS.get(reader.called(call))
        if fields is None or not isinstance(call, cst.Call) or any(arg.star for arg in call.args):
            raise NotConvertible("an exporter that is not made in this file", one)
        if not job.folder:
            raise NotConvertible("an exporter of an Estimator without a model_dir", one)
        reader.replaced[call] = _exporter(reader, job, call, arguments(call, fields))
    return lambda: reader.text(given) if several else f"[{reader.text(given)}]"


def _exporter(reader: Rewriter, job: Any, call: cst.Call, given: dict[str, cst.Arg]) -> Callable[[], str]:
    kind = reader.called(call).rpartition(".")[2]
    for name in ("assets_extra", "as_text"):
        if name in given and reader.source(given[name].value) not in ("None", "False"):
            raise NotConvertible(f"{name} of {kind}", given[name])
    if "serving_input_receiver_fn" not in given:
        raise NotConvertible(f"a {kind} without what it is asked by", call)
    write = exporting.helper(reader, given["serving_input_receiver_fn"].value, job)

    def text() -> str:
        told = [reader.text(given["name"].value) if "name" in given else "'best_exporter'"]
        export = write("folder")
        plain = export.endswith(f"({job.model}, folder)") and export.partition("(")[0].isidentifier()
        told.append(export.partition("(")[0] if plain else f"lambda {job.model}, folder: {export}")
        for name, now in (("compare_fn", "compare"), ("exports_to_keep", "exports_to_keep")):
            if name in given:
                told.append(f"{now}={reader.text(given[name].value)}")
        return reader.call(f"keras_evaluation.{kind}", told, call)

    return text


def _check_folder(reader: Rewriter, job: Any, stop: cst.BaseExpression, spec: dict[str, cst.Arg]) -> None:
    """A hook that stops looks at the evaluation of a name, by its folder: that of the EvalSpec has to be it."""
    call = reader.value(stop)
    assert isinstance(call, cst.Call)
    given = arguments(call, hooks.STOPS[reader.called(call)])
    name = reader.source(spec["name"].value) if "name" in spec else "None"
    folder = reader.source(given["eval_dir"].value) if "eval_dir" in given else "None"
    alike = {"None", f"{job.name}.eval_dir()"} if name == "None" else {f"{job.name}.eval_dir({name})"}
    if folder not in alike:
        raise NotConvertible("a hook that stops by an evaluation of another name than that of the EvalSpec", call)
