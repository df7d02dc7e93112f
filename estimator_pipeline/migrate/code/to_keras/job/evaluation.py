"""Conversion of train_and_evaluate to `fit` with an evaluation callback."""

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
from estimator_pipeline.migrate.code.to_keras.job.datasets import format_dataset, format_take
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["convert"]

_EXPORTERS = {
    "tf.estimator.BestExporter": ("name", "serving_input_receiver_fn", "event_file_pattern", "compare_fn",
                                  "assets_extra", "as_text", "exports_to_keep"),
    "tf.estimator.FinalExporter": ("name", "serving_input_receiver_fn", "assets_extra", "as_text"),
    "tf.estimator.LatestExporter": ("name", "serving_input_receiver_fn", "assets_extra", "as_text",
                                    "exports_to_keep"),
}  # fmt: skip
_SECONDS = ("throttle_secs", "start_delay_secs")


def convert(writer: Any, call: cst.Call) -> None:
    """Convert a call of train_and_evaluate.

    Args:
        writer: converter of the uses of the Estimator.

    Raises:
        NotConvertible: a field of the specs has no counterpart in Keras.
    """
    reader: Rewriter = writer.reader
    args = arguments(call, ("estimator", "train_spec", "eval_spec"))
    train = _read_spec(reader, args["train_spec"].value, "tf.estimator.TrainSpec")
    evaluation = _read_spec(reader, args["eval_spec"].value, "tf.estimator.EvalSpec")
    train_hooks = hooks.read(reader, writer.job, train)
    writer.check_hooks(evaluation)
    parent = reader.tree.parents.get(call)
    statement = reader.tree.parents.get(parent) if parent is not None else None
    if not isinstance(parent, (cst.Expr, cst.Assign)) or not isinstance(statement, cst.SimpleStatementLine):
        raise NotConvertible("train_and_evaluate within another expression", call)
    function = train["input_fn"].value
    writer.trains.append((statement, function))
    for stop in train_hooks.stops:
        _check_folder(reader, writer.job, stop, evaluation)
    exporters = _convert_exporters(reader, writer.job, evaluation)
    taken = {*reader.scope(writer.job.call).around().names, *reader.tree.scope.names}
    name = "evaluation" if "evaluation" not in taken else f"{writer.job.name}_evaluation"
    reader.needs.add("keras_evaluation")

    def write() -> str:
        text = reader.text(train["max_steps"].value) if "max_steps" in train else ""
        texts = [_format_data_function(reader, evaluation), f"every_steps={writer.job.settings.save_steps or '1000'}"]
        if "name" in evaluation:
            texts.append(f"name={reader.text(evaluation['name'].value)}")
        if writer.job.folder:
            texts.append(f"folder={writer.job.folder}")
        if exporters is not None:
            texts.append(f"exporters={exporters()}")
        if train_hooks.stops:
            texts.append(f"stop=[{', '.join(reader.text(stop) for stop in train_hooks.stops)}]")
        waits = _format_delays(reader, evaluation)
        lines = [f"# Was {', '.join(waits)}: every checkpoint is evaluated"] if waits else []
        lines.append(f"{name} = " + reader.call("keras_evaluation.Evaluation", texts, statement))
        callbacks = [callback() for callback in train_hooks.callbacks]
        lines.append(writer.format_fit(statement, function, "" if text == "None" else text, [name], callbacks))
        if isinstance(parent, cst.Assign):
            targets = "".join(f"{reader.source(target.target)} = " for target in parent.targets)
            several = isinstance(parent.targets[-1].target, cst.Tuple)
            pair = f"{name}.result, {name}.exports"
            lines.append(targets + (pair if several else f"({pair})"))
        return f"\n{reader.indent(statement)}".join(lines)

    reader.replaced[statement] = write


def _format_data_function(reader: Rewriter, spec: dict[str, cst.Arg]) -> str:
    """Return a callable for the dataset of an evaluation, as text."""
    text = format_dataset(reader, spec["input_fn"].value, "eval")
    steps = reader.text(spec["steps"].value) if "steps" in spec else "100"  # the default of EvalSpec
    text += format_take(steps)
    return text[:-2] if text[:-2].isidentifier() and text.endswith("()") else f"lambda: {text}"


def _format_delays(reader: Rewriter, spec: dict[str, cst.Arg]) -> list[str]:
    """Return the nonzero delays of an EvalSpec, as `name=value`."""
    values = [(name, " ".join(reader.source(spec[name].value).split())) for name in _SECONDS if name in spec]
    return [f"{name}={value}" for name, value in values if value not in ("0", "0.0", "None")]


def _read_spec(reader: Rewriter, node: cst.BaseExpression, name: str) -> dict[str, cst.Arg]:
    """Return the fields of a spec, and remove its statement."""
    call = reader.value(node)
    if reader.called(call) != name or not isinstance(call, cst.Call) or any(arg.star for arg in call.args):
        raise NotConvertible(f"a {name.rpartition('.')[2]} that is not created in this file", node)
    if isinstance(node, cst.Name):
        statement = reader.statement_of(call)
        _replace_field_reads(reader, node, call)
        if isinstance(statement, cst.SimpleStatementLine):
            reader.replaced[statement] = REMOVED
    return arguments(call, catalogue.row(name).fields)


def _replace_field_reads(reader: Rewriter, name: cst.Name, call: cst.Call) -> None:
    """Replace reads like `eval_spec.input_fn` by the arguments of the spec."""
    args = arguments(call, catalogue.row(reader.called(call)).fields)
    for chain in reader.tree.chains:
        first = root(chain)
        if first.value != name.value or reader.home(first) != reader.home(name) or chain is name:
            continue
        if isinstance(chain, cst.Attribute) and chain.value is first and chain.attr.value in args:
            reader.resolved[chain] = args[chain.attr.value].value
            reader.replaced[chain] = partial(reader.text, args[chain.attr.value].value)
            continue
        raise NotConvertible(f"{name.value} is also used outside of train_and_evaluate", chain)


def _convert_exporters(reader: Rewriter, job: Any, spec: dict[str, cst.Arg]) -> Callable[[], str] | None:
    """Convert the exporters, and return a function that writes the argument `exporters`."""
    if "exporters" not in spec or reader.source(spec["exporters"].value) == "None":
        return None
    exporters = spec["exporters"].value
    node = reader.value(exporters)
    several = isinstance(node, (cst.List, cst.Tuple))
    nodes = [element.value for element in node.elements] if isinstance(node, (cst.List, cst.Tuple)) else [node]
    for exporter in nodes:
        call = reader.value(exporter)
        fields = _EXPORTERS.get(reader.called(call))
        if fields is None or not isinstance(call, cst.Call) or any(arg.star for arg in call.args):
            raise NotConvertible("an exporter that is not created in this file", exporter)
        if not job.folder:
            raise NotConvertible("an exporter of an Estimator without a model_dir", exporter)
        reader.replaced[call] = _convert_exporter(reader, job, call, arguments(call, fields))
    return lambda: reader.text(exporters) if several else f"[{reader.text(exporters)}]"


def _convert_exporter(reader: Rewriter, job: Any, call: cst.Call, args: dict[str, cst.Arg]) -> Callable[[], str]:
    kind = reader.called(call).rpartition(".")[2]
    for name in ("assets_extra", "as_text"):
        if name in args and reader.source(args[name].value) not in ("None", "False"):
            raise NotConvertible(f"{name} of {kind}", args[name])
    if "serving_input_receiver_fn" not in args:
        raise NotConvertible(f"a {kind} without a serving_input_receiver_fn", call)
    write = exporting.build_export_call(reader, args["serving_input_receiver_fn"].value, job)

    def text() -> str:
        texts = [reader.text(args["name"].value) if "name" in args else "'best_exporter'"]
        export = write("folder")
        plain = export.endswith(f"({job.model}, folder)") and export.partition("(")[0].isidentifier()
        texts.append(export.partition("(")[0] if plain else f"lambda {job.model}, folder: {export}")
        for name, now in (("compare_fn", "compare"), ("exports_to_keep", "exports_to_keep")):
            if name in args:
                texts.append(f"{now}={reader.text(args[name].value)}")
        return reader.call(f"keras_evaluation.{kind}", texts, call)

    return text


def _check_folder(reader: Rewriter, job: Any, stop: cst.BaseExpression, spec: dict[str, cst.Arg]) -> None:
    """Check that an early stopping hook reads the evaluation of this EvalSpec."""
    call = reader.value(stop)
    assert isinstance(call, cst.Call)
    args = arguments(call, hooks.STOPS[reader.called(call)])
    name = reader.source(spec["name"].value) if "name" in spec else "None"
    folder = reader.source(args["eval_dir"].value) if "eval_dir" in args else "None"
    alike = {"None", f"{job.name}.eval_dir()"} if name == "None" else {f"{job.name}.eval_dir({name})"}
    if folder not in alike:
        raise NotConvertible("an early stopping hook whose eval_dir is not that of the EvalSpec", call)
