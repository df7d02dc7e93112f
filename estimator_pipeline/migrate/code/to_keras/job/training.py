"""Conversion of Estimator calls to `fit`, `evaluate`, `predict` and a SavedModel."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence

import libcst as cst

from estimator_pipeline.migrate.code.analysis.chains import root
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.syntax import dotted_of
from estimator_pipeline.migrate.code.to_keras.hooks import hooks
from estimator_pipeline.migrate.code.to_keras.job import canned
from estimator_pipeline.migrate.code.to_keras.job import evaluation as evaluating
from estimator_pipeline.migrate.code.to_keras.job import exports as exporting
from estimator_pipeline.migrate.code.to_keras.job import run_config as configuration
from estimator_pipeline.migrate.code.to_keras.job.datasets import format_dataset, format_take, has_parameter
from estimator_pipeline.migrate.code.to_keras.job.estimators import ConvertedJob
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED, SILENT_HOOKS
from estimator_pipeline.migrate.code.to_keras.model import warm_start as warm_starts
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["install"]


def install(reader: Rewriter, job: ConvertedJob) -> None:
    """Convert all uses of an Estimator.

    Raises:
        NotConvertible: a use has no counterpart in Keras.
    """
    _EstimatorUses(reader, job).install()


class _EstimatorUses:
    def __init__(self, reader: Rewriter, job: ConvertedJob) -> None:
        self.reader = reader
        self.job = job
        self.tf = reader.tf
        self.trains: list[tuple[cst.SimpleStatementLine, cst.BaseExpression]] = []
        self.early: dict[cst.CSTNode, str] = {}
        self.early_uses: set[cst.Name] = set()  # uses that do not need the model

    def install(self) -> None:
        reader, job = self.reader, self.job
        if job.folder and not job.folder.replace(".", "").replace("_", "").isalnum() and job.folder[0] not in "'\"":
            name = f"{job.name}_dir" if len(job.name) < 20 else "model_dir"
            self.folder_statement, job.folder = f"{name} = {job.folder}", name
        elif job.folder and not self._is_required(job.folder):
            name = "model_dir" if "." in job.folder else job.folder
            reader.needs.add("tempfile")
            self.folder_statement, job.folder = f"{name} = {job.folder} or tempfile.mkdtemp()", name
        else:
            self.folder_statement = ""
        for use in job.chains:
            self._convert_use(use)
        if not self.trains:
            raise NotConvertible("an Estimator that is not trained in this file", job.call)
        self._check_trained()
        if job.needs_inputs:
            reader.replaced[job.statement] = self._format_start()
            self._place_model()
            return
        assert job.make is not None
        begin, model_statement = self._format_start(), f"{job.model} = {job.make('')}"
        parts = self._format_in_scope(model_statement)
        indent = reader.indent(job.statement)
        if job.late:
            parts = [model_statement, begin]
            begin = ""

        def write() -> str:
            return f"\n{indent}".join(part for part in (begin, *parts) if part and part != REMOVED)

        reader.replaced[job.statement] = write

    def _check_trained(self) -> None:
        """Check that the model is trained before each use, as it does not load a checkpoint."""
        reader = self.reader
        branches: tuple[type, ...] = (cst.Else, cst.For, cst.While, cst.Try, cst.ExceptHandler, cst.IfExp)
        if not self.job.needs_inputs:  # other models are restored, see warm_starts.write_restore
            branches += (cst.If,)

        def parts(node: cst.CSTNode) -> set[tuple[cst.CSTNode, cst.CSTNode]]:
            """Return the branches around a node, each with its child that contains the node."""
            path = [node, *reader.tree.above(node)]
            return {(branch, path[at]) for at, branch in enumerate(path[1:]) if isinstance(branch, branches)}

        around = [parts(train) for train, _ in self.trains]
        for use, chain in self.job.chains.items():
            parent = self._find_parent(use)
            if not isinstance(parent, cst.Attribute) or parent.attr.value not in ("evaluate", "predict"):
                continue
            above = parts(chain)
            if reader.scope(chain) is reader.scope(self.job.call) and not any(trained <= above for trained in around):
                why = "an Estimator that is used where it may not have been trained, from its checkpoint"
                raise NotConvertible(why, chain)

    def _is_required(self, folder: str) -> bool:
        """Return whether a folder is a literal, or an option that is required or has a default."""
        if folder[0] in "'\"":
            return True
        name = folder.rpartition(".")[2]
        for call in self.reader.tree.calls:
            method = (dotted_of(call.func) or "").rpartition(".")[2]
            first = call.args[0].value if call.args else None
            if method not in ("add_argument", "DEFINE_string") or not isinstance(first, cst.SimpleString):
                continue
            if str(first.evaluated_value).removeprefix("--").replace("-", "_") != name:
                continue
            values = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
            default, required = values.get("default"), values.get("required")
            if method == "DEFINE_string" and call.args[1:] and call.args[1].keyword is None:
                default = call.args[1].value
            if isinstance(default, cst.SimpleString) or (isinstance(required, cst.Name) and required.value == "True"):
                return True
        return False

    def _format_start(self) -> str:
        job, lines = self.job, []
        statements = configuration.format_statements(self.reader, job.settings)
        if job.settings.statement is None:
            lines += statements
        else:
            text = f"\n{self.reader.indent(job.settings.statement)}".join(statements) or REMOVED
            self.reader.replaced[job.settings.statement] = text
        lines += [f"# Was {setting}" for setting in job.settings.dropped]
        if self.folder_statement:
            lines.append(self.folder_statement)
        statements = configuration.format_callbacks(self.reader, job.settings, job.folder, job.callbacks)
        if not statements:
            job.callbacks = ""
        indent = self.reader.indent(job.statement)
        return f"\n{indent}".join([*lines, *statements]) or REMOVED

    def _format_in_scope(self, statement: str) -> list[str]:
        """Return the statement that creates the model, in the scope of its strategy."""
        unit = self.reader.tree.module.default_indent
        if not self.job.settings.strategy:
            return ["with strategy.scope():", f"{unit}{statement}"] if self.job.settings.cluster else [statement]
        strategy = f"strategy = {self.job.settings.strategy} or {self.tf}.distribute.get_strategy()"
        return [strategy, "with strategy.scope():", f"{unit}{statement}"]

    # The model is created before the first statement that needs it

    def _place_model(self) -> None:
        reader, job = self.reader, self.job
        block = reader.tree.parents[job.statement]
        siblings = list(getattr(block, "body", ()))
        chains = [chain for use, chain in job.chains.items() if use not in self.early_uses]
        inside = [set(reader.tree.above(chain)) for chain in chains]
        first = next((sibling for sibling in siblings if any(sibling in above for above in inside)), None)
        if first is None or any(not any(sibling in above for sibling in siblings) for above in inside):
            raise NotConvertible("an Estimator that is used outside of the block that creates it", job.call)
        statement, function = self.trains[0]
        indent = reader.indent(first)
        lines, data = [], ""
        if job.needs_inputs:
            data = format_dataset(reader, function, "train")
            if statement is first:
                taken = {*reader.scope(job.call).around().names, *reader.tree.scope.names}
                name = "training" if "training" not in taken else "training_data"
                lines.append(f"{name} = {data}")
                self.early[statement] = data = name
            data = f"{reader.helper('model_inputs')}({data})"
        assert job.make is not None
        model_statement = f"{job.model} = {job.make(data)}"
        lines += self._format_in_scope(model_statement)
        lines += warm_starts.write_warm_start(reader, job)
        lines += warm_starts.write_restore(reader, job, block, [train for train, _ in self.trains])
        head = f"\n{indent}".join(lines) + f"\n{indent}"
        before = reader.replaced.get(first)

        def write() -> str:
            if before is not None:
                return head + (before if isinstance(before, str) else before())
            del reader.replaced[first]
            try:
                return head + reader.text(first)
            finally:
                reader.replaced[first] = write

        reader.replaced[first] = write

    # Uses

    def _convert_use(self, use: cst.Name) -> None:
        reader, job = self.reader, self.job
        parent = self._find_parent(use)
        if isinstance(parent, cst.Attribute):
            call = reader.tree.parents.get(parent)
            method = parent.attr.value
            if method == "model_dir" and job.folder:
                reader.replaced[parent] = job.folder
                self.early_uses.add(use)
                return
            if method == "eval_dir" and job.folder and isinstance(call, cst.Call) and call.func is parent:
                reader.replaced[call] = self._format_eval_dir(call)
                self.early_uses.add(use)
                return
            if isinstance(call, cst.Call) and call.func is parent:
                write = getattr(self, f"_{method}", None) if method in _METHODS else None
                if write is not None:
                    write(call)
                    return
            raise NotConvertible(f"{job.name}.{method} has no counterpart in Keras", parent)
        arg = parent
        call = reader.tree.parents.get(arg) if isinstance(arg, cst.Arg) else None
        if isinstance(call, cst.Call) and reader.called(call) == "tf.estimator.train_and_evaluate":
            evaluating.convert(self, call)
            return
        if isinstance(call, cst.Call) and reader.called(call) in hooks.STOPS:
            hooks.write_stop(reader, call)
            self.early_uses.add(use)
            return
        if job.changed and canned.is_add_metrics(reader, call, job.name):
            return
        if isinstance(call, cst.Call) and isinstance(arg, cst.Arg):
            functions = reader.functions(call.func)
            if len(functions) == 1 and isinstance(functions[0].node, cst.FunctionDef):
                self._convert_passed(call, arg, functions[0].node)
                return
        raise NotConvertible(f"the Estimator {job.name} is passed on", use)

    def _convert_passed(self, call: cst.Call, arg: cst.Arg, function: cst.FunctionDef) -> None:
        """Convert the uses in a function that gets the Estimator and does not train it."""
        reader = self.reader
        params = [param.name.value for param in function.params.params]
        name = arg.keyword.value if arg.keyword else params[call.args.index(arg)]
        calls = [other for other in reader.tree.calls if any(f.node is function for f in reader.functions(other.func))]
        if len(calls) != 1 or name not in params:
            raise NotConvertible(
                f"the Estimator {self.job.name} is passed to a function that is called several times", arg
            )
        chains: dict[cst.Name, cst.CSTNode] = {root(chain): chain for chain in reader.tree.chains
                  if root(chain).value == name and reader.home(root(chain)) == (function, name)}  # fmt: skip
        if self.job.model != self.job.name:
            reader.replaced[arg.value] = self.job.model
        inner = _EstimatorUses(
            reader, dataclasses.replace(self.job, name=name, model=name, chains=chains, callbacks="")
        )
        for use in chains:
            inner._convert_use(use)
        if inner.trains:
            raise NotConvertible(f"the Estimator {self.job.name} is trained in a function that it is passed to", arg)

    def _find_parent(self, use: cst.Name) -> cst.CSTNode | None:
        node = self.job.chains[use]
        if node is use:
            return self.reader.tree.parents.get(use)
        while isinstance(node, cst.Attribute) and node.value is not use:
            node = node.value
        return node

    def _train(self, call: cst.Call) -> None:
        reader = self.reader
        args = arguments(call, ("input_fn", "hooks", "steps", "max_steps", "saving_listeners"))
        statement = self._find_statement(call)
        train_hooks = hooks.read(reader, self.job, args)
        if train_hooks.stops:
            raise NotConvertible(
                "an early stopping hook that reads evaluations, in training without evaluation", train_hooks.stops[0]
            )
        if "input_fn" not in args:
            raise NotConvertible("a call of train without input_fn", call)
        function = args["input_fn"].value
        self.trains.append((statement, function))
        steps = args.get("steps") or args.get("max_steps")
        if "max_steps" in args and len(self.job.chains) > 1 and self._is_repeated(call):
            why = "an Estimator that is trained several times with max_steps, which may already be reached"
            raise NotConvertible(why, call)

        def write() -> str:
            text = reader.text(steps.value) if steps else "None"
            callbacks = [callback() for callback in train_hooks.callbacks]
            return self.format_fit(statement, function, "" if text == "None" else text, [], callbacks)

        reader.replaced[statement] = write

    def _is_repeated(self, call: cst.Call) -> bool:
        parents = [self._find_parent(use) for use in self.job.chains]
        trains = [parent for parent in parents if isinstance(parent, cst.Attribute) and parent.attr.value == "train"]
        return len(trains) > 1 or any(
            isinstance(parent, (cst.For, cst.While)) for parent in self.reader.tree.above(call)
        )

    def format_fit(
        self, statement: cst.CSTNode, function: cst.BaseExpression, steps: str, before: Sequence[str],
        behind: Sequence[str],
    ) -> str:  # fmt: skip
        """Return the call of `fit` and the statement that saves the weights afterwards.

        Args:
            steps: number of steps, as text; "" for all of the data.
            before: callbacks before those of the RunConfig.
            behind: callbacks after those of the RunConfig.
        """
        reader, job = self.reader, self.job
        data = self.early.get(statement) or format_dataset(reader, function, "train")
        if job.settings.strategy and has_parameter(reader, function, "input_context"):
            inner = format_dataset(reader, function, "train", context="context")
            data = f"strategy.distribute_datasets_from_function(lambda context: {inner})"
        elif job.settings.cluster:
            # Each worker reads its own input, in batches that are not split.
            inner = format_dataset(reader, function, "train")
            data = f"strategy.distribute_datasets_from_function(lambda _: {inner})"
        texts = [data]
        if steps:
            texts.append(f"steps_per_epoch={steps}")
        if before or behind:
            configured = [f"*{job.callbacks}"] if job.callbacks else []
            texts.append(f"callbacks=[{', '.join([*before, *configured, *behind])}]")
        elif job.callbacks:
            texts.append(f"callbacks={job.callbacks}")
        text = reader.call(f"{job.model}.fit", [*texts, "verbose=2"], statement)
        if job.folder:
            path = f"os.path.join({job.folder}, 'weights')"
            saved = f"{job.model}.save_weights({path})"
            if job.settings.is_distributed:
                reader.needs.add("keras_cluster")
                saved = f"keras_cluster.save_weights({job.model}, {path})"
            text += f"\n{reader.indent(statement)}{saved}"
        return text

    def _find_statement(self, call: cst.Call) -> cst.SimpleStatementLine:
        parent = self.reader.tree.parents.get(call)
        statement = self.reader.tree.parents.get(parent) if isinstance(parent, cst.Expr) else None
        if not isinstance(statement, cst.SimpleStatementLine):
            raise NotConvertible("the return value of train is used", call)
        return statement

    def _format_evaluate(self, function: cst.BaseExpression, steps: str, node: cst.CSTNode, verbose: int = 0) -> str:
        data = format_dataset(self.reader, function, "eval")
        data += format_take(steps)
        return self.reader.call(f"{self.job.model}.evaluate", [data, "return_dict=True", f"verbose={verbose}"], node)

    def reads_global_step(self) -> bool:
        """Whether the program reads it from the results of an evaluation: `['global_step']` or `{global_step}`."""
        texts = [node.value for node in ast.walk(ast.parse(self.reader.lines.text)) if isinstance(node, ast.Constant)]
        return any(isinstance(text, str) and (text == "global_step" or "{global_step" in text) for text in texts)

    def _evaluate(self, call: cst.Call) -> None:
        args = arguments(call, ("input_fn", "steps", "hooks", "checkpoint_path", "name"))
        self.check_hooks(args)
        if "checkpoint_path" in args or "input_fn" not in args:
            raise NotConvertible("an evaluation of a different checkpoint", call)
        steps = args.get("steps")

        def write() -> str:
            alone = isinstance(self.reader.tree.parents.get(call), cst.Expr)
            text = self.reader.text(steps.value) if steps else ""
            evaluated = self._format_evaluate(args["input_fn"].value, text, call, 2 if alone else 0)
            if self.reads_global_step() and not alone:
                evaluated = f"dict({evaluated}, global_step=int({self.job.model}.optimizer.iterations))"
            return evaluated

        self.reader.replaced[call] = write

    def _predict(self, call: cst.Call) -> None:
        args = arguments(call, ("input_fn", "predict_keys", "hooks", "checkpoint_path", "yield_single_examples"))
        self.check_hooks(args)
        rest = args.keys() - {"input_fn", "predict_keys", "hooks"}
        if rest - {"yield_single_examples"} or "input_fn" not in args or (
            rest and self.reader.source(args["yield_single_examples"].value) != "True"
        ):  # fmt: skip
            raise NotConvertible("a prediction of a different checkpoint, or of whole batches", call)
        if self.reader.called(self.job.call).endswith(".model_to_estimator"):
            raise NotConvertible("predictions of a Keras model, which an Estimator names by output layers", call)
        examples = self.reader.helper("examples")
        keys = args.get("predict_keys")

        def write() -> str:
            data = format_dataset(self.reader, args["input_fn"].value, "infer")
            behind = f", {self.reader.text(keys.value)}" if keys else ""
            predictions = f"{examples}({self.job.model}, {data}{behind})"
            alone = self.job.written is not None and self.job.written.answers_alone
            return f"(prediction['output'] for prediction in {predictions})" if alone else predictions

        self.reader.replaced[call] = write

    def check_hooks(self, args: dict[str, cst.Arg]) -> None:
        """Check that all hooks only log; there are no callbacks for other hooks here."""
        for element in hooks.elements(self.reader, args):
            hook = self.reader.value(element)
            if self.reader.called(hook) not in SILENT_HOOKS:
                raise NotConvertible(
                    "a hook of an evaluation or a prediction; only hooks of training become callbacks", element
                )
            hooks.drop(self.reader, element, hook)

    def _format_eval_dir(self, call: cst.Call) -> str:
        """Return the folder of an evaluation's files."""
        self.reader.needs.add("os")
        if not call.args:
            return f"os.path.join({self.job.folder}, 'eval')"
        return f"os.path.join({self.job.folder}, 'eval_' + {self.reader.text(call.args[0].value)})"

    def _export_saved_model(self, call: cst.Call) -> None:
        args = arguments(call, ("export_dir_base", "serving_input_receiver_fn", "assets_extra", "as_text",
                                 "checkpoint_path", "experimental_mode"))  # fmt: skip
        if args.keys() - {"export_dir_base", "serving_input_receiver_fn"} or len(args) < 2:
            raise NotConvertible("an export with further arguments", call)
        write = exporting.build_export_call(self.reader, args["serving_input_receiver_fn"].value, self.job)
        self.reader.replaced[call] = lambda: write(self.reader.text(args["export_dir_base"].value))

    _export_savedmodel = _export_saved_model

    def _get_variable_names(self, call: cst.Call) -> None:
        self.reader.replaced[call] = f"list({self._format_named_values(call)})"

    def _get_variable_value(self, call: cst.Call) -> None:
        name = self.reader.text(call.args[0].value) if call.args else ""
        self.reader.replaced[call] = f"{self._format_named_values(call)}[{name}]"

    def _format_named_values(self, call: cst.Call) -> str:
        if self.job.is_canned:
            return f"{self.job.model}.named_values()"
        if self.job.written is None:
            raise NotConvertible("variables by their names, which are different in Keras", call)
        return warm_starts.format_named_values(self.reader, self.job, call)


_METHODS = ("train", "evaluate", "predict", "export_saved_model", "export_savedmodel", "get_variable_names",
            "get_variable_value")  # fmt: skip
