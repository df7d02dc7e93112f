"""The Keras model of a model_fn: `make_model`, `predictions`, and a class where `compile` does not describe the loss.

A loss of Keras of the labels and the only output, with metrics of the same, become arguments of `compile`: the model
is a plain functional model, which loads everywhere. Any other loss or metric becomes a method of a model class.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.edits import PLACE
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf
from estimator_pipeline.migrate.code.analysis.syntax import Tree, iter_nodes
from estimator_pipeline.migrate.convert import rules  # noqa: F401  the rules register themselves
from estimator_pipeline.migrate.convert.learning_rate import LearningRate, global_steps, read_learning_rate
from estimator_pipeline.migrate.convert.model_fn import (
    ModelFnSource,
    Statement,
    check_scope,
    key_of,
    needed,
    parameters,
    read_model_fn,
)
from estimator_pipeline.migrate.convert.names import (
    EVAL,
    PREDICT,
    TRAIN,
    FileNames,
    Refused,
    calls_in,
    changed_by,
    names_bound,
    names_read,
)
from estimator_pipeline.migrate.convert.rewrite import CodeRewriter
from estimator_pipeline.migrate.convert.rule import NETWORK, SETUP, TENSORS, Call
from estimator_pipeline.migrate.convert.rules import dropout, losses, optimizers
from estimator_pipeline.migrate.convert.rules.layers import parameters_of
from estimator_pipeline.migrate.convert.rules.metrics import Metric, argument_of_argmax, metric
from estimator_pipeline.migrate.convert.split import Parts, is_global_step, split
from estimator_pipeline.migrate.convert.train_op import TrainOp, read_train_op

__all__ = ["Model", "statement", "write_model"]


_OF_DICTS = frozenset(dir(dict))
_Line = cst.BaseStatement | cst.EmptyLine


@dataclass(frozen=True)
class Model:
    """A written model.

    Attributes:
        code: its functions and classes, in order.
        make: the name of the function that makes it.
        predictions: the name of the function of its predictions; "" where PREDICT returns none.
        takes_params: whether `make` takes the params of the Estimator.
        helpers: functions of the program that it calls -> their text after the conversion.
        needs: file -> the names of helpers that its code uses.
        passed: the user's expressions that `make` takes behind the inputs, of a canned Estimator or a function's call.
        consumed: the other expressions in that call.
        of_examples: the argument of `export` for the signatures of a canned Estimator; "" for a model_fn.
        restores_rates: whether the Estimator's checkpoints have learning rates: those of optimizers of Keras.
    """

    code: tuple[cst.BaseStatement, ...]
    make: str
    predictions: str
    takes_params: bool
    helpers: Mapping[FunctionOf, cst.FunctionDef]
    needs: Mapping[Tree, Set[str]]
    passed: tuple[cst.BaseExpression | cst.Arg, ...] = ()
    consumed: frozenset[cst.BaseExpression] = frozenset()
    of_examples: str = ""
    restores_rates: bool = False


@dataclass(frozen=True)
class _Optimizer:
    """The statements before an optimizer, the expression that makes it, and the class of its learning rate."""

    setup: list[_Line]
    text: str
    schedule: cst.ClassDef | None = None


def write_model(names: FileNames, function: cst.FunctionDef, *, prefix: str, distributed: bool) -> Model:
    """Return the Keras model of a model_fn.

    Args:
        names: the meanings of the file's expressions.
        function: the model_fn.
        prefix: the start of the new names, "" where the file has only this model_fn: `NAME_make_model`.
        distributed: whether a strategy of several replicas trains it.

    Raises:
        Refused: a statement of it has no replacement.
    """
    model_fn = read_model_fn(names, function)
    train_op = read_train_op(names, model_fn)
    if distributed and train_op.per_replica is not None:
        raise Refused("gradients that V1 clips or computes on each replica, Keras on their sum", train_op.per_replica)
    return _Writer(names, model_fn, train_op, split(names, model_fn, train_op), prefix, distributed).model()


def statement(text: str) -> cst.BaseStatement:
    """Return a statement from its text."""
    return cst.parse_statement(text)


class _Writer:
    def __init__(
        self, names: FileNames, model_fn: ModelFnSource, train_op: TrainOp, parts: Parts, prefix: str, distributed: bool
    ) -> None:
        self.names, self.model_fn, self.train_op, self.parts = names, model_fn, train_op, parts
        self.distributed, self.tf = distributed, names.tf
        self.make, self.predictions_name = f"{prefix}make_model", f"{prefix}make_predictions"
        words = re.split(r"[^A-Za-z0-9]+", names.tree.source.path.rpartition("/")[2].rpartition(".")[0])
        stem = "".join(word.capitalize() for word in words).lstrip("0123456789")
        self.class_name = f"{prefix.title().replace('_', '')}{stem or 'Converted'}Model"
        tensors = frozenset({model_fn.features}).union(*(step.defines for step in parts.network))
        self.needs_of: dict[Tree, set[str]] = defaultdict(set)
        self.network = CodeRewriter(names, NETWORK, tensors=tensors, needs=self.needs_of[names.tree],
                                    learning_phase=parts.learning_phase)  # fmt: skip
        self.tensors, self.setup = self.network.at(TENSORS, parts.inline), self.network.at(SETUP)

    def model(self) -> Model:
        network = self.network_lines()
        metrics = {key: metric(self.tensors.call(call), key) for key, call in self.parts.metric_calls.items()}
        loss, stock = self.stock_loss(), [self.stock_metric(keras_metric) for keras_metric in metrics.values()]
        by_compile = loss is not None and all(stock) and not self.unadded_regularizers()
        predictions = self.predictions()
        model_class = None if by_compile else self.model_class(metrics)
        optimizer = self.optimizer()
        make = self.make_function(network, optimizer, loss if by_compile else None, stock, model_class)
        code = [part for part in (optimizer.schedule, model_class, make, predictions) if part is not None]
        return Model(tuple(code), self.make, self.predictions_name if predictions else "", bool(self.model_fn.params),
                     self.helpers(), dict(self.needs_of))  # fmt: skip

    # What compile describes

    def is_labels(self, node: cst.BaseExpression | None) -> bool:
        changed = any(self.model_fn.labels in step.defines for step in self.model_fn.steps)
        if isinstance(node, cst.Call) and self.names.name(node.func) in ("tf.cast", "tf.compat.v1.cast"):
            dtype = arguments(node, ("x", "dtype")).get("dtype")
            if dtype is not None and self.names.name(dtype.value).endswith((".int32", ".int64")):
                node = node.args[0].value  # the losses and metrics of Keras accept classes of any integer type
        return isinstance(node, cst.Name) and node.value == self.model_fn.labels and not changed

    def is_output(self, node: cst.BaseExpression | None) -> bool:
        """Return whether an expression is the only output of the network."""
        while isinstance(node, cst.Subscript):
            node = self.model_fn.item(node, EVAL)
        changed = {name for step in (*self.parts.loss, *self.parts.metrics) for name in step.defines}
        is_output = isinstance(node, cst.Name) and node.value == self.parts.outputs[0] and node.value not in changed
        return len(self.parts.outputs) == 1 and (node in self.parts.inline or is_output)

    def stock_loss(self) -> str | None:
        """Return the loss of `compile`; None where it does not describe the loss."""
        node = self.model_fn.resolve(self.train_op.loss, TRAIN)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            sides = [self.model_fn.resolve(side, TRAIN) for side in (node.left, node.right)]
            others = [side for side in sides if not self.is_regularization_loss(side)]
            node = others[0] if len(others) == 1 else node
        if not isinstance(node, cst.Call):
            return None
        labels, logits, text = None, None, f"{self.tf}.keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
        if self.names.name(node.func) in ("tf.reduce_mean", "tf.compat.v1.reduce_mean") and len(node.args) == 1:
            inner = self.model_fn.resolve(node.args[0].value, TRAIN)
            full = self.names.name(inner.func) if isinstance(inner, cst.Call) else ""
            if isinstance(inner, cst.Call) and full.endswith("nn.sparse_softmax_cross_entropy_with_logits"):
                args = {arg.keyword.value: arg.value for arg in inner.args if arg.keyword}
                labels, logits = args.get("labels"), args.get("logits")
        elif self.names.name(node.func) in losses.LOSSES and (known := losses.stock(self.tensors.call(node))):
            labels, logits, text = known
        return text if self.is_labels(labels) and self.is_output(logits) else None

    def is_regularization_loss(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is the sum of the regularizers' losses, which `compile` adds."""
        if isinstance(node, cst.Call) and len(node.args) == 1:
            is_sum = node.func.value == "sum" if isinstance(node.func, cst.Name) else (
                self.names.name(node.func).rpartition(".")[2] in ("add_n", "reduce_sum"))  # fmt: skip
            node = self.model_fn.resolve(node.args[0].value, TRAIN) if is_sum else node
        return losses.is_regularization(self.names, node)

    def unadded_regularizers(self) -> bool:
        """Return whether layers have regularizers that the loss does not add: `compile` would add them."""
        nodes = (*(step.node for step in self.parts.loss), self.train_op.loss)
        adds = any(losses.is_regularization(self.names, call) for call in calls_in(*nodes))
        regularized = any(name.endswith("_regularizer") and names.text(arg.value) != "None"
                          for call, names in self.parts.calls
                          for name, arg in arguments(call, parameters_of(names.name(call.func))).items())  # fmt: skip
        return regularized and not adds

    def stock_metric(self, keras_metric: Metric) -> str:
        """Return the metric of `compile`; "" where it does not describe the metric."""
        if len(keras_metric.values) != 2 or not self.is_labels(keras_metric.values[0]):
            return ""
        value = self.model_fn.resolve(keras_metric.values[1], EVAL)
        has_rows = isinstance(value, cst.Call) and ".layers." in self.names.name(value.func)
        if keras_metric.stock and self.is_output(keras_metric.values[1]) and (has_rows or not keras_metric.of_rows):
            return keras_metric.keras
        if ".Accuracy(" in keras_metric.keras and isinstance(value, cst.Call):
            argument = argument_of_argmax(self.tensors.call(value))
            if argument is not None and self.is_output(argument):
                return keras_metric.keras.replace(".Accuracy(", ".SparseCategoricalAccuracy(")
        return ""

    # Statements

    def place(self, offset: int) -> cst.EmptyLine:
        """Return the place of the comments before an offset, for `edits.keep_comments`."""
        return cst.EmptyLine(comment=cst.Comment(PLACE.format(offset)))

    def all_lines(self, steps: Iterable[Statement], rewriter: CodeRewriter) -> list[_Line]:
        return [line for step in steps for line in self.lines(step.node, rewriter)]

    def lines(self, node: cst.CSTNode, rewriter: CodeRewriter) -> list[_Line]:
        """Return a statement after the conversion below its place; those of `with tf.name_scope` without it."""
        place = self.place(rewriter.names.span(node)[0])
        if isinstance(node, cst.With):
            for item in node.items:
                check_scope(rewriter.names, item)
            return [place, *(line for inner in node.body.body for line in self.lines(inner, rewriter))]
        if isinstance(node, cst.BaseSmallStatement):
            return [place, self.line(node, rewriter.node(node), rewriter.names)]
        if isinstance(node, (cst.For, cst.If)):
            return [place, self.compound(node, rewriter)]
        if isinstance(node, cst.SimpleStatementLine):
            return [place] if _names_modes(rewriter.names, node) else [place, rewriter.node(node)]
        if isinstance(node, cst.FunctionDef):
            return [place, self.local_function(node, rewriter)]
        raise Refused(f"a statement `{type(node).__name__.lower()}` in a model_fn", node)

    def line(self, node: cst.CSTNode, new: cst.BaseSmallStatement, names: FileNames) -> cst.SimpleStatementLine:
        """Return a line of a new small statement, with the comment behind the user's."""
        above = names.tree.parents[node]
        assert isinstance(above, (cst.SimpleStatementLine, cst.SimpleStatementSuite))
        line = cst.SimpleStatementLine([new.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
        return line if node is not above.body[-1] else line.with_changes(trailing_whitespace=above.trailing_whitespace)

    def local_function(self, node: cst.FunctionDef, rewriter: CodeRewriter) -> cst.FunctionDef:
        """Return a function inside of a function after the conversion, where it is defined."""
        if node.decorators or node.asynchronous is not None:
            raise Refused("a function with decorators in a model_fn", node)
        for call in rewriter.names.tree.calls:
            function = rewriter.names.function(call.func)
            if function is not None and function.node is node:
                rewriter.node(call)  # finds the parameters that carry the mode
        return self.without_modes(node, self.function_of(node, rewriter))

    def function_of(self, node: cst.FunctionDef, rewriter: CodeRewriter) -> cst.FunctionDef:
        """Return a function of the program after the conversion."""
        tensors = rewriter.tensors | {*parameters(node)} | names_bound(node.body)
        inner = replace(rewriter, tensors=tensors)
        return node.with_changes(params=self.parameters(node.params, rewriter), body=self.block(node.body, inner))

    def compound(self, node: cst.For | cst.If, rewriter: CodeRewriter) -> cst.BaseStatement:
        """Return a loop or condition on Python values, with its body rewritten."""
        if isinstance(node, cst.For):
            if node.orelse is not None:
                raise Refused("a loop with else", node)
            return node.with_changes(iter=rewriter.node(node.iter), body=self.block(node.body, rewriter))
        modes = rewriter.names.modes_of(node.test)
        if modes is not None:
            inside = node.body.body[0] if len(node.body.body) == 1 and node.orelse is None else None
            small = inside.body[0] if isinstance(inside, cst.SimpleStatementLine) and len(inside.body) == 1 else None
            if small is None or modes != {TRAIN} or rewriter.place != NETWORK:
                raise Refused("a part of the network that depends on the mode", node)
            return self.train_only(small, rewriter)
        orelse = node.orelse
        if isinstance(orelse, cst.If):
            orelse = cst.ensure_type(self.compound(orelse, rewriter), cst.If)
        elif orelse is not None:
            orelse = orelse.with_changes(body=self.block(orelse.body, rewriter))
        return node.with_changes(test=rewriter.node(node.test), body=self.block(node.body, rewriter), orelse=orelse)

    def block(self, body: cst.BaseSuite, rewriter: CodeRewriter) -> cst.BaseSuite:
        """Return the statements of a block after the conversion, also those behind a colon."""
        block = body if isinstance(body, cst.IndentedBlock) else cst.IndentedBlock([])
        return block.with_changes(body=_joined(line for inner in body.body for line in self.lines(inner, rewriter)))

    def train_only(self, node: cst.CSTNode, rewriter: CodeRewriter) -> cst.BaseStatement:
        """Return `x = Dropout(rate)(x)` for the statement `x = tf.nn.dropout(x, keep)` that runs in training."""
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
            call = rewriter.call(node.value)
            if call.name in ("tf.nn.dropout", "tf.compat.v1.nn.dropout", "tf.compat.v1.layers.dropout"):
                text = dropout.nn_dropout(call) if ".nn." in call.name else dropout.dropout(call)
                new = cst.parse_expression(text.replace(", training=True)", ")"))
                return self.line(node, node.with_changes(value=new), rewriter.names)
        raise Refused("a part of the network that is in training only", node)

    def network_lines(self) -> list[_Line]:
        lines: list[_Line] = []
        for step in self.parts.network:
            if step.modes == {TRAIN}:
                lines += [self.place(self.names.span(step.node)[0]), self.train_only(step.node, self.network)]
            else:
                lines += self.lines(step.node, self.network)
        lines += [statement(f"{name} = {self.network.text(node)}") for node, name in self.parts.inline.items()]
        unwritten = [*(self.names.text(step.node) for step in self.parts.logged),
                     *(f"{name}={self.names.text(value)}" for name, value in self.parts.unwritten.items())]  # fmt: skip
        if unwritten:
            texts = [line.rstrip() for text in unwritten for line in text.strip().splitlines()]
            lines += _comments(
                "fit prints and TensorBoard logs the loss and the metrics. Without a counterpart in the model:",
                *(f"    {line}" for line in texts if not line.lstrip().startswith("#")),
            )
        return lines

    # Functions

    def function(self, header: str, doc: str, lines: Sequence[_Line]) -> cst.FunctionDef:
        """Return a function of statements, with the file's indentation."""
        function = cst.parse_statement(f"{header}\n    pass\n")
        assert isinstance(function, cst.FunctionDef)
        body = [statement(f'"""{doc}"""')] if doc else []
        return function.with_changes(body=cst.IndentedBlock([*body, *_joined(lines)]))

    def make_function(
        self, network: list[_Line], optimizer: _Optimizer, loss: str | None,
        metrics: list[str], model_class: cst.ClassDef | None,
    ) -> cst.FunctionDef:  # fmt: skip
        features, params, outputs = self.model_fn.features, self.model_fn.params, self.parts.outputs
        taken = {name for step in self.model_fn.steps for name in step.defines | step.uses}
        fresh = {name: f"keras_{name}" if name in taken else name for name in ("inputs", "model")}
        changes = self.changes_features
        inputs, model = fresh["inputs"] if changes else features, fresh["model"]
        lines = _comments(*(self.model_fn.function.get_docstring() or "").splitlines())
        if changes:
            copied = f"dict({inputs})" if self.changes_items(features) else inputs
            lines.append(statement(f"{features} = {copied}"))
        out = outputs[0] if len(outputs) == 1 else f"{{{', '.join(f'{name!r}: {name}' for name in outputs)}}}"
        read = self.features_read()
        taken_inputs = read or (inputs if model_class else f"{self.tf}.nest.flatten({inputs})")
        passed = ", ".join([taken_inputs, out, *([params] if params and model_class else [])])
        kind = self.class_name if model_class else f"{self.tf}.keras.Model"
        lines += [*network, statement(f"{model} = {kind}({passed})"), *optimizer.setup]
        compiled = [f"optimizer={optimizer.text}"]
        compiled += [f"loss={loss}"] if loss else []
        compiled += [f"metrics=[{', '.join(metrics)}]"] if loss and metrics else []
        line = f"{model}.compile({', '.join(compiled)})"
        several = f"{model}.compile(\n" + "".join(f"    {item},\n" for item in compiled) + ")"
        lines += [self.place(self.names.span(self.model_fn.function)[1]),
                  statement(line if len(line) < 100 else several), statement(f"return {model}")]  # fmt: skip
        header = f"def {self.make}({', '.join([inputs, *([params] if params else [])])}):"
        doc = f"Return the compiled model for the inputs `{inputs}`, as returned by `model_inputs`."
        return self.function(header, doc, lines)

    @property
    def changes_features(self) -> bool:
        return any(self.model_fn.features in step.defines for step in self.model_fn.steps)

    def features_read(self) -> str:
        """Return the list of the features that the network reads by their keys; "" where it takes them otherwise.

        A model of these takes data with more features: those of the loss, which predictions and exports do not have.
        Of a dict with more features than a model of a dict has, Keras 3 takes the first ones.
        """
        nodes = {inner for node in (*(step.node for step in self.parts.network), *self.parts.inline)
                 for inner in iter_nodes(node)}  # fmt: skip
        keys: dict[str, str] = {}
        for name in self.names.places(self.model_fn.features) if not self.changes_features else ():
            if name in nodes:
                item = self.names.tree.parents.get(name)
                if not isinstance(item, cst.Subscript) or not key_of(item):
                    return ""
                keys[key_of(item)] = self.names.text(item)
        return f"[{', '.join(keys.values())}]" if keys else ""

    def changes_items(self, name: str) -> bool:
        """Return whether the model_fn changes the items of a dict: `x["a"] = 1`, `x.pop("a")`."""
        nodes = [inner for step in self.model_fn.steps if name in step.defines for inner in iter_nodes(step.node)]
        targets = [node.target for node in nodes if isinstance(node, (cst.AssignTarget, cst.AugAssign))]
        items = {self.names.text(target.value) for target in targets if isinstance(target, cst.Subscript)}
        return name in items | {changed_by(node) for node in nodes if isinstance(node, cst.Call)}

    def optimizer(self) -> _Optimizer:
        """Return the optimizer, and its learning rate."""
        op, setup = self.train_op, self.parts.setup
        rate = read_learning_rate(self.names, self.model_fn, op, setup)
        outputs = {self.model_fn.features, self.model_fn.labels, *self.parts.outputs}
        for step in (*(step for step in setup if step not in self.parts.network), *rate.steps):
            if step.uses & outputs:
                raise Refused("an optimizer that depends on a batch", step.node)
        values = [value for value in op.values if value is not op.decay]
        if rate.is_written and isinstance(op.optimizer, cst.Call):
            values = [arg.value for arg in op.optimizer.args if arg.value is not rate.rate] + list(op.clipping.values())
        wanted = {name for value in values for name in names_read(value)}
        steps = [step for step in needed(setup, wanted) if step not in self.parts.network]
        lines = self.all_lines([step for step in steps if not is_global_step(self.names, step)], self.setup)
        if isinstance(op.optimizer, cst.Name):
            if op.clipping:
                raise Refused("clipping, with an optimizer that a condition chooses", op.optimizer)
            self.check_embeddings(op.optimizer)
            return _Optimizer(lines, op.optimizer.value)
        if op.clipping or not optimizers.is_dense_alike(op.name):
            self.check_embeddings(op.optimizer)
        schedule, new_rate = self.schedule(rate) if rate.is_written else (None, "")
        new = {arg.value: new_rate if rate.is_written and arg.value is rate.rate else self.setup.text(arg.value)
               for arg in op.optimizer.args}  # fmt: skip
        call = Call(op.optimizer, op.name, SETUP, self.names, new, self.network.needs)
        text = optimizers.write(call, scheduled=rate.changes)
        limits = ", ".join(f"{name}={self.setup.text(value)}" for name, value in op.clipping.items())
        if limits:
            text = f"{text[:-1]}{'' if text.endswith('()') else ', '}{limits})"
        return _Optimizer(lines, text, schedule)

    def check_embeddings(self, node: cst.CSTNode) -> None:
        """Check that no gradient is sparse: V1 leaves the rows as they are that a batch does not have."""
        if any("embedding" in names.name(call.func).lower() for call, names in self.parts.calls):
            raise Refused("an embedding, whose sparse gradient this optimizer treats otherwise in Keras", node)

    def schedule(self, rate: LearningRate) -> tuple[cst.ClassDef, str]:
        """Return the class of a learning rate that the model_fn computes from the step, and the text that makes one."""
        op, params, name = self.train_op, self.model_fn.params, f"{self.class_name.removesuffix('Model')}LearningRate"
        assert rate.rate is not None
        nodes = [rate.rate, *(step.node for step in rate.steps), *([op.decay] if op.decay is not None else [])]
        calls: list[cst.CSTNode] = [*global_steps(self.names, nodes)]
        aliases = {step.target for step in rate.steps if step.value in calls}
        taken = {name for step in rate.steps for name in step.defines} - aliases
        at = "step" if "step" not in taken and params != "step" else "iteration"
        rewriter = self.network.at(TENSORS, dict.fromkeys(calls, at))
        lines: list[_Line] = [statement(f"{at} = {self.tf}.cast({at}, {self.tf}.int64)")]
        uses = {name for node in nodes for name in names_read(node)}
        with_params = params if params in uses else ""
        lines += [statement(f"{params} = self.{params}")] if with_params else []
        lines += self.all_lines(
            [step for step in rate.steps if not (step.target == at and step.value in calls)], rewriter
        )
        value = rewriter.text(rate.rate)
        if isinstance(op.decay, cst.Lambda):
            first, second = (param.name.value for param in op.decay.params.params)
            lines.append(statement(f"{first} = {value}"))
            lines += [statement(f"{second} = {at}")] if second != at else []
            value = rewriter.text(op.decay.body)
        elif op.decay is not None:
            function = self.names.function(op.decay)
            if function is None or not isinstance(function.node, cst.FunctionDef):
                raise Refused("a learning_rate_decay_fn that is not a function of the program", op.decay)
            self.network.helpers.setdefault(function, TENSORS)
            value = f"{self.names.text(op.decay)}({value}, {at})"
        lines.append(statement(f"return {self.tf}.cast({value}, {self.tf}.float32)"))
        methods: list[cst.BaseStatement] = [self.function(f"def __call__(self, {at}):", "", lines)]
        if not with_params:
            methods.append(statement("def get_config(self):\n    return {}\n"))
        else:
            saved, loaded = self.saved_params()
            start = statement(f"def __init__(self, {params}):\n    self.{params} = {params}\n")
            methods = [start, *methods, statement(f'def get_config(self):\n    return {{"{params}": {saved}}}\n')]
            if "Hyperparameters" in loaded:
                methods.append(statement(f"@classmethod\ndef from_config(cls, config):\n    return cls({loaded})\n"))
        schedule = self.class_of(name, "optimizers.schedules.LearningRateSchedule", "learning rate", methods)
        return schedule, f"{name}({with_params})"

    def class_of(self, name: str, base: str, subject: str, methods: Iterable[cst.BaseStatement]) -> cst.ClassDef:
        """Return a class of Keras with methods, an empty line before each, which a saved model finds again."""
        header = cst.parse_statement(
            f"@{self.tf}.keras.utils.register_keras_serializable()\nclass {name}({self.tf}.keras.{base}):\n"
            f'    """The {subject} of {self.model_fn.function.name.value}."""\n')  # fmt: skip
        assert isinstance(header, cst.ClassDef)
        spaced = [method.with_changes(leading_lines=[cst.EmptyLine(indent=False)]) for method in methods]  # type: ignore[attr-defined]
        return header.with_changes(body=header.body.with_changes(body=[*header.body.body, *spaced]))

    def predictions(self) -> cst.FunctionDef | None:
        value = self.model_fn.argument(PREDICT, "predictions")
        if value is None:
            return None
        features, steps, outputs = self.model_fn.features, self.parts.predictions, self.parts.outputs
        if self.model_fn.params in names_read(value).union(*(step.uses for step in steps)):
            raise Refused("predictions that depend on params", value)
        copies = self.changes_items(features) and any(features in step.defines for step in steps)
        lines: list[_Line] = [statement(f"{features} = dict({features})")] if copies else []
        if len(outputs) > 1:
            lines.append(statement(f"{', '.join(outputs)} = {', '.join(f'outputs[{name!r}]' for name in outputs)}"))
        lines += [*self.all_lines(steps, self.tensors), self.place(self.names.span(value)[0])]
        lines.append(statement(f"return {self.tensors.text(value)}"))
        header = f"def {self.predictions_name}({features}, {outputs[0] if len(outputs) == 1 else 'outputs'}):"
        doc = f"Return what {self.model_fn.function.name.value} predicted, for features and outputs of the model."
        return self.function(header, doc, lines)

    def model_class(self, metrics: Mapping[str, Metric]) -> cst.ClassDef:
        params = self.model_fn.params
        self.network.needs |= {"saved_inputs", "loaded_inputs", "BatchMean"}
        attributes = {key: re.sub(r"\W", "_", f"{key}_metric") for key in metrics}
        value, config = self.saved_params() if params else ("", "")
        by_keys = bool(self.features_read())
        inputs = "self.inputs" if by_keys else "self.inputs if self.by_name else self.inputs[0]"
        saved = f'{{"inputs": saved_inputs({inputs}){f", {params!r}: {value}" if params else ""}}}'
        loaded = f'loaded_inputs(config["inputs"]){f", {config}" if params else ""}'
        start = [
            f"def __init__(self, inputs, outputs{f', {params}' if params else ''}):",
            f"    super().__init__({'inputs' if by_keys else f'{self.tf}.nest.flatten(inputs)'}, outputs)",
            *([] if by_keys else ["    self.by_name = isinstance(inputs, dict)"]),
            *([f"    self.{params} = {params}"] if params else []),
            '    self.mean_loss = BatchMean(name="loss")',
            *(f"    self.{attributes[key]} = {keras_metric.keras}" for key, keras_metric in metrics.items()),
        ]
        return self.class_of(self.class_name, "Model", "loss and the metrics", [
            statement("\n".join(start) + "\n"),
            self.compute_loss(),
            self.compute_metrics(metrics, attributes),
            statement(f"def get_config(self):\n    return {saved}\n"),
            statement(f"@classmethod\ndef from_config(cls, config):\n    return {self.make}({loaded})\n"),
        ])  # fmt: skip

    def saved_params(self) -> tuple[str, str]:
        """Return how a class saves its params, and how it gets them back: a dict, or an object with attributes."""
        params, needs = self.model_fn.params, self.network.needs
        for call, names in self.parts.calls:
            args = arguments(call, parameters_of(names.name(call.func)))
            if params and "activation" in args and _root(args["activation"].value) == params:
                raise Refused("an activation of params, which a saved model does not have", args["activation"])
        is_object = any(isinstance(above := self.names.tree.parents.get(name), cst.Attribute)
                        and above.attr.value not in _OF_DICTS for name in self.names.places(params)
                        if self.model_fn.function in self.names.tree.above(name))  # fmt: skip
        saved, loaded = f"vars(self.{params})" if is_object else f"dict(self.{params})", f"config[{params!r}]"
        if needs & {"dense_columns", "linear_columns"}:
            needs |= {"saved_columns", "loaded_columns"}
            saved, loaded = f"saved_columns({saved})", f"loaded_columns({loaded})"
        needs |= {"Hyperparameters"} if is_object else set()
        return saved, f"Hyperparameters(**{loaded})" if is_object else loaded

    def of_batch(self, steps: Sequence[Statement], values: Sequence[cst.BaseExpression], more: str = "") -> list[_Line]:
        """Return statements in a method, below the names of features, labels, outputs and params.

        Args:
            values: the expressions behind them.
            more: the parameters of the method beside those of every one.

        Raises:
            Refused: a parameter of the method hides a variable of the program that the statements read.
        """
        parts, model_fn, nodes = self.parts, self.model_fn, (*(step.node for step in steps), *values)
        reads = {node: names_read(node, parts.inline) for node in nodes}
        known = {model_fn.features, model_fn.labels, model_fn.params, *parts.outputs}
        known = known.union(*(step.defines for step in (*steps, *parts.network)))
        for node, read in reads.items():
            if hidden := sorted(read & {"x", "y", "y_pred", "sample_weight", "self", more} - known):
                raise Refused(f"{hidden[0]}, a name that a method of Keras has for something else", node)
        inside = {inner for node in nodes for inner in iter_nodes(node)}
        used = frozenset(name for node, name in parts.inline.items() if node in inside).union(*reads.values())
        names = {name: f"dict({value})" if self.changes_items(name) else value
                 for name, value in ((model_fn.features, "x"), (model_fn.labels, "y"))}  # fmt: skip
        single = len(parts.outputs) == 1
        if single or used & set(parts.outputs):
            names |= {name: "y_pred" if single else f"y_pred[{name!r}]" for name in parts.outputs}
        names[model_fn.params] = f"self.{model_fn.params}"
        chosen = {name: value for name, value in names.items() if name in used}
        first = [statement(f"{', '.join(chosen)} = {', '.join(chosen.values())}")] if chosen else []
        return [*first, *self.all_lines(steps, self.tensors)]

    def check_reductions(self) -> None:
        """Check for several replicas that V1 divides the loss by their number: not where its last loss is a sum."""
        for call in calls_in(*(step.node for step in self.parts.loss), self.train_op.loss):
            for full, arg in ((self.names.name(arg.value), arg) for arg in call.args if arg.keyword is not None):
                if full.startswith("tf.compat.v1.losses.Reduction.") and full.rpartition(".")[2] not in losses.MEANS:
                    raise Refused("a loss other than a mean, which V1 does not divide by the number of replicas", arg)

    def compute_loss(self) -> cst.FunctionDef:
        steps, value = self.parts.loss, self.train_op.loss
        if self.distributed:
            self.check_reductions()
        lines, name = self.of_batch(steps, [value], "training"), "loss"
        if isinstance(value, cst.Name):
            name = value.value
        else:
            lines.append(statement(f"loss = {self.tensors.text(value)}"))
        lines.append(statement(f"self.mean_loss.update_state({name})"))
        divided = f"{name} / self.distribute_strategy.num_replicas_in_sync  # their gradients are summed"
        lines.append(statement(f"return {divided if self.distributed else name}"))
        header = "def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):"
        return self.function(header, "", lines)

    def compute_metrics(self, metrics: Mapping[str, Metric], attributes: Mapping[str, str]) -> cst.FunctionDef:
        lines = self.of_batch(self.parts.metrics, [value for each in metrics.values() for value in each.values])
        for key, keras_metric in metrics.items():
            self.network.needs |= {"as_rows"} if keras_metric.of_rows else set()
            arguments = keras_metric.update.format(*(self.tensors.text(value) for value in keras_metric.values))
            lines.append(statement(f"self.{attributes[key]}.update_state({arguments})"))
        lines.append(statement("return self.get_metrics_result()"))
        return self.function("def compute_metrics(self, x, y, y_pred, sample_weight=None):", "", lines)

    # Helpers of the file

    def helpers(self) -> dict[FunctionOf, cst.FunctionDef]:
        """Return the functions that the model calls, rewritten, without the parameters that carry the mode."""
        written: dict[FunctionOf, cst.FunctionDef] = {}
        while waiting := [function for function in self.network.helpers if function not in written]:
            function = waiting[0]
            node = cst.ensure_type(function.node, cst.FunctionDef)
            written[function] = node
            place = self.network.helpers[function]
            rewriter = replace(self.network, names=self.names.of(function.tree), place=place, replaced={},
                               tensors=frozenset(), needs=self.needs_of[function.tree])  # fmt: skip
            decorators = list(node.decorators)
            if function in self.network.registered:
                if place == NETWORK or not rewriter.names.tf:
                    raise Refused("a function in a layer, which a saved model does not find again", node)
                decorator = cst.parse_expression(f"{rewriter.names.tf}.keras.utils.register_keras_serializable()")
                decorators.append(cst.Decorator(decorator))
            written[function] = self.function_of(node, rewriter).with_changes(decorators=decorators)
        outer = {self.model_fn.function, *(function.node for function in written)}
        return {function: self.without_modes(function.node, new) for function, new in written.items()
                if outer.isdisjoint(function.tree.above(function.node))}  # fmt: skip

    def parameters(self, node: cst.Parameters, rewriter: CodeRewriter) -> cst.Parameters:
        """Return parameters with their defaults after the conversion."""
        new = [param.with_changes(default=rewriter.node(param.default)) if param.default is not None else param
               for param in node.params]  # fmt: skip
        return node.with_changes(params=new)

    def without_modes(self, node: cst.CSTNode, new: cst.FunctionDef) -> cst.FunctionDef:
        gone = {name for function, name in self.names.flags if function is node}
        if not gone:
            return new
        kept = [param for param in new.params.params if param.name.value not in gone]
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return new.with_changes(params=new.params.with_changes(params=kept))


def _names_modes(names: FileNames, line: cst.SimpleStatementLine) -> bool:
    """Return whether a line is `training = mode == TRAIN`, the only assignment of that name."""
    assign = line.body[0]
    if len(line.body) > 1 or not isinstance(assign, cst.Assign) or len(assign.targets) > 1:
        return False
    target = assign.targets[0].target
    return isinstance(target, cst.Name) and not isinstance(assign.value, cst.Name) and (
        len(names.program.bindings(target.value, names.scope(target))) == 1
        and names.modes_of(assign.value) is not None
    )  # fmt: skip


def _root(node: cst.BaseExpression) -> str:
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _comments(*lines: str) -> list[_Line]:
    return [cst.EmptyLine(comment=cst.Comment(f"# {line}".rstrip())) for line in lines]


def _joined(lines: Iterable[_Line]) -> list[cst.BaseStatement]:
    """Return statements with their empty lines above them, and the comments among these lines."""
    joined: list[cst.BaseStatement] = []
    above: list[cst.EmptyLine] = []
    for line in lines:
        if isinstance(line, cst.EmptyLine):
            above.append(line)
            continue
        blank = [empty for empty in line.leading_lines if empty.comment is None]  # type: ignore[attr-defined]
        joined.append(line.with_changes(leading_lines=[*blank, *above]))
        above = []
    return joined
