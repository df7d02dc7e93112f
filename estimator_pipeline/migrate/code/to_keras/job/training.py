"""From an Estimator's life to `fit`, `evaluate`, `predict` and a SavedModel."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import libcst as cst

from estimator_pipeline.migrate.code.analysis.chains import root
from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.to_keras.hooks import hooks
from estimator_pipeline.migrate.code.to_keras.job import canned
from estimator_pipeline.migrate.code.to_keras.job import evaluation as evaluating
from estimator_pipeline.migrate.code.to_keras.job import exports as exporting
from estimator_pipeline.migrate.code.to_keras.job import run_config as configuration
from estimator_pipeline.migrate.code.to_keras.job.datasets import dataset, take, takes
from estimator_pipeline.migrate.code.to_keras.job.estimators import ConvertedJob
from estimator_pipeline.migrate.code.to_keras.markers import REMOVED, SILENT_HOOKS
from estimator_pipeline.migrate.code.to_keras.model import warm_start as warm_starts
from estimator_pipeline.migrate.code.to_keras.rewriter import NotConvertible, Rewriter

__all__ = ["install"]


def install(reader: Rewriter, job: ConvertedJob) -> None:
    """Lets a reader write all that is done with an Estimator.

    Raises:
        NotConvertible: something that Keras has no counterpart for.
    """
    _Life(reader, job).install()


class _Life:
    def __init__(self, reader: Rewriter, job: ConvertedJob) -> None:
        self.reader = reader
        self.job = job
        self.tf = reader.tf
        self.trains: list[tuple[cst.SimpleStatementLine, cst.BaseExpression]] = []
        self.early: dict[cst.CSTNode, str] = {}
        self.early_uses: set[cst.Name] = set()  # for which no model is needed

    def install(self) -> None:
        reader, job = self.reader, self.job
        if job.folder and not job.folder.replace(".", "").replace("_", "").isalnum() and job.folder[0] not in "'\"":
            name = f"{job.name}_dir" if len(job.name) < 20 else "model_dir"
            self.folder_statement, job.folder = f"{name} = {job.folder}", name
        elif job.folder and not self._is_there(job.folder):
            name = "model_dir" if "." in job.folder else job.folder
            reader.needs.add("tempfile")
            self.folder_statement, job.folder = f"{name} = {job.folder} or tempfile.mkdtemp()", name
        else:
            self.folder_statement = ""
        for use in job.chains:
            self._use(use)
        if not self.trains:
            raise NotConvertible("an Estimator that is not trained in this file", job.call)
        self._check_trained()
        if job.needs_inputs:
            reader.replaced[job.statement] = self._begin()
            self._place_the_model()
            return
        assert job.make is not None
        begin, made = self._begin(), f"{job.model} = {job.make('')}"
        parts = self._in_scope(made)
        indent = reader.indent(job.statement)
        if job.late:
            parts = [made, begin]
            begin = ""

        def write() -> str:
            return f"\n{indent}".join(one for one in (begin, *parts) if one and one != REMOVED)

        reader.replaced[job.statement] = write

    def _check_trained(self) -> None:
        """Whether the model was trained wherever it is used: an Estimator would have a checkpoint to load."""
        reader = self.reader
        branches: tuple[type, ...] = (cst.Else, cst.For, cst.While, cst.Try, cst.ExceptHandler, cst.IfExp)
        if not self.job.needs_inputs:  # others are restored, see warm_starts
            branches += (cst.If,)

        def parts(node: cst.CSTNode) -> set[tuple[cst.CSTNode, cst.CSTNode]]:
            """Return the branches around a node, each with the part of it that the node is in."""
            path = [node, *reader.tree.above(node)]
            return {(one, path[at]) for at, one in enumerate(path[1:]) if isinstance(one, branches)}

        around = [parts(train) for train, _ in self.trains]
        for use, chain in self.job.chains.items():
            parent = self._parent(use)
            if not isinstance(parent, cst.Attribute) or parent.attr.value not in ("evaluate", "predict"):
                continue
            above = parts(chain)
            if reader.scope(chain) is reader.scope(self.job.call) and not any(one <= above for one in around):
                why = "an Estimator that is used where it may not have been trained: it has a checkpoint"
                raise NotConvertible(why, chain)

    def _is_there(self, folder: str) -> bool:
        """Whether a folder is never None: an option that is required, or has a default."""
        if folder[0] in "'\"":
            return True
        name = folder.rpartition(".")[2].replace("_", "[-_]")
        said = re.findall(
            rf"(?:add_argument\(\s*['\"]--|DEFINE_string\(\s*['\"]){name}['\"]([^\n]*)", self.reader.lines.text
        )
        given = (one for one in said if re.search(r"required=True|default=['\"]|^, ['\"]", one))
        return next(given, None) is not None

    def _begin(self) -> str:
        job, lines = self.job, []
        told = configuration.lines(self.reader, job.settings)
        if job.settings.node is not None:  # what is said of its arguments
            node = job.settings.node
            told = [*self.reader.comments(node, [arg.value for arg in node.args]), *told]
        if job.settings.statement is None:
            lines += told
        else:
            said = f"\n{self.reader.indent(job.settings.statement)}".join(told) or REMOVED
            self.reader.replaced[job.settings.statement] = said
        lines += [f"# Was {one}" for one in job.settings.dropped]
        if self.folder_statement:
            lines.append(self.folder_statement)
        told = configuration.configure(self.reader, job.settings, job.folder, job.callbacks)
        if not told:
            job.callbacks = ""
        indent = self.reader.indent(job.statement)
        return f"\n{indent}".join([*lines, *told]) or REMOVED

    def _in_scope(self, made: str) -> list[str]:
        """Return the statement that makes the model, in the scope of its strategy, if it has one."""
        unit = self.reader.tree.module.default_indent
        if not self.job.settings.strategy:
            return ["with strategy.scope():", f"{unit}{made}"] if self.job.settings.cluster else [made]
        given = f"strategy = {self.job.settings.strategy} or {self.tf}.distribute.get_strategy()"
        return [given, "with strategy.scope():", f"{unit}{made}"]

    # Where the model is made: before the first statement that needs it

    def _place_the_model(self) -> None:
        reader, job = self.reader, self.job
        block = reader.tree.parents[job.statement]
        siblings = list(getattr(block, "body", ()))
        chains = [chain for use, chain in job.chains.items() if use not in self.early_uses]
        inside = [set(reader.tree.above(chain)) for chain in chains]
        first = next((one for one in siblings if any(one in above for above in inside)), None)
        if first is None or any(not any(one in above for one in siblings) for above in inside):
            raise NotConvertible("an Estimator that is used outside of the block that makes it", job.call)
        statement, function = self.trains[0]
        indent = reader.indent(first)
        lines, data = [], ""
        if job.needs_inputs:
            data = dataset(reader, function, "train")
            if statement is first:
                taken = {*reader.scope(job.call).around().names, *reader.tree.scope.names}
                name = "training" if "training" not in taken else "training_data"
                lines.append(f"{name} = {data}")
                self.early[statement] = data = name
            reader.needs.add("model_inputs")
            data = f"model_inputs({data})"
        assert job.make is not None
        made = f"{job.model} = {job.make(data)}"
        lines += self._in_scope(made)
        lines += warm_starts.after(reader, job)
        lines += warm_starts.restored(reader, job, block, [one for one, _ in self.trains])
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

    def _use(self, use: cst.Name) -> None:
        reader, job = self.reader, self.job
        parent = self._parent(use)
        if isinstance(parent, cst.Attribute):
            call = reader.tree.parents.get(parent)
            method = parent.attr.value
            if method == "model_dir" and job.folder:
                reader.replaced[parent] = job.folder
                self.early_uses.add(use)
                return
            if method == "eval_dir" and job.folder and isinstance(call, cst.Call) and call.func is parent:
                reader.replaced[call] = self._eval_dir(call)
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
            evaluating.write(self, call)
            return
        if isinstance(call, cst.Call) and reader.called(call) in hooks.STOPS:
            hooks.write_stop(reader, call)
            self.early_uses.add(use)
            return
        if job.changed and canned.adds_metrics(reader, call, job.name):
            return
        if isinstance(call, cst.Call) and isinstance(arg, cst.Arg):
            functions = reader.functions(call.func)
            if len(functions) == 1 and isinstance(functions[0].node, cst.FunctionDef):
                self._hand_on(call, arg, functions[0].node)
                return
        raise NotConvertible(f"the Estimator {job.name} is handed on", use)

    def _hand_on(self, call: cst.Call, arg: cst.Arg, function: cst.FunctionDef) -> None:
        """A function that gets the Estimator, and neither trains nor makes it."""
        reader = self.reader
        params = [one.name.value for one in function.params.params]
        name = arg.keyword.value if arg.keyword else params[call.args.index(arg)]
        calls = [one for one in reader.tree.calls if any(f.node is function for f in reader.functions(one.func))]
        if len(calls) != 1 or name not in params:
            raise NotConvertible(f"the Estimator {self.job.name} is handed on to a function of several uses", arg)
        chains: dict[cst.Name, cst.CSTNode] = {root(chain): chain for chain in reader.tree.chains
                  if root(chain).value == name and reader.home(root(chain)) == (function, name)}  # fmt: skip
        if self.job.model != self.job.name:
            reader.replaced[arg.value] = self.job.model
        inner = _Life(reader, dataclasses.replace(self.job, name=name, model=name, chains=chains, callbacks=""))
        for use in chains:
            inner._use(use)
        if inner.trains:
            raise NotConvertible(f"the Estimator {self.job.name} is trained in a function that gets it", arg)

    def _parent(self, use: cst.Name) -> cst.CSTNode | None:
        node = self.job.chains[use]
        if node is use:
            return self.reader.tree.parents.get(use)
        while isinstance(node, cst.Attribute) and node.value is not use:
            node = node.value
        return node

    def _train(self, call: cst.Call) -> None:
        reader = self.reader
        given = arguments(call, ("input_fn", "hooks", "steps", "max_steps", "saving_listeners"))
        statement = self._statement(call)
        found = hooks.read(reader, self.job, given)
        if found.stops:
            raise NotConvertible(
                "a hook that stops by evaluations, where there are none while it trains", found.stops[0]
            )
        if "input_fn" not in given:
            raise NotConvertible("a call of train without input_fn", call)
        function = given["input_fn"].value
        self.trains.append((statement, function))
        steps = given.get("steps") or given.get("max_steps")
        if "max_steps" in given and len(self.job.chains) > 1 and self._is_repeated(call):
            why = "an Estimator that is trained several times, until a step that it may have come to"
            raise NotConvertible(why, call)

        def write() -> str:
            text = reader.text(steps.value) if steps else "None"
            callbacks = [one() for one in found.callbacks]
            return self.fit(statement, function, "" if text == "None" else text, [], callbacks)

        reader.replaced[statement] = write

    def _is_repeated(self, call: cst.Call) -> bool:
        parents = [self._parent(use) for use in self.job.chains]
        trains = [one for one in parents if isinstance(one, cst.Attribute) and one.attr.value == "train"]
        return len(trains) > 1 or any(isinstance(one, (cst.For, cst.While)) for one in self.reader.tree.above(call))

    def fit(
        self, statement: cst.CSTNode, function: cst.BaseExpression, steps: str, before: Sequence[str],
        behind: Sequence[str],
    ) -> str:  # fmt: skip
        """Return the call of `fit`, and what saves the weights behind it.

        Args:
            steps: their number, as text; "" for all of the data.
            before: the callbacks that go before those of the configuration.
            behind: those that go behind them.
        """
        reader, job = self.reader, self.job
        data = self.early.get(statement) or dataset(reader, function, "train")
        if job.settings.strategy and takes(reader, function, "input_context"):
            inner = dataset(reader, function, "train", context="context")
            data = f"strategy.distribute_datasets_from_function(lambda context: {inner})"
        elif job.settings.cluster:
            # What each worker reads is its own, and its batches are whole.
            inner = dataset(reader, function, "train")
            data = f"strategy.distribute_datasets_from_function(lambda _: {inner})"
        told = [data]
        if steps:
            told.append(f"steps_per_epoch={steps}")
        if before or behind:
            own = [f"*{job.callbacks}"] if job.callbacks else []
            told.append(f"callbacks=[{', '.join([*before, *own, *behind])}]")
        elif job.callbacks:
            told.append(f"callbacks={job.callbacks}")
        text = reader.call(f"{job.model}.fit", [*told, "verbose=2"], statement)
        if job.folder:
            path = f"os.path.join({job.folder}, 'weights')"
            saved = f"{job.model}.save_weights({path})"
            if job.settings.is_distributed:
                reader.needs.add("keras_cluster")
                saved = f"keras_cluster.save_weights({job.model}, {path})"
            text += f"\n{reader.indent(statement)}{saved}"
        return text

    def _statement(self, call: cst.Call) -> cst.SimpleStatementLine:
        parent = self.reader.tree.parents.get(call)
        statement = self.reader.tree.parents.get(parent) if isinstance(parent, cst.Expr) else None
        if not isinstance(statement, cst.SimpleStatementLine):
            raise NotConvertible("what train returns is used", call)
        return statement

    def _evaluated(self, function: cst.BaseExpression, steps: str, node: cst.CSTNode, verbose: int = 0) -> str:
        data = dataset(self.reader, function, "eval")
        data += take(steps)
        return self.reader.call(f"{self.job.model}.evaluate", [data, "return_dict=True", f"verbose={verbose}"], node)

    def asks_for_the_step(self) -> bool:
        return (
            re.search(r"(?<!get_)(?<!create_)\bglobal_step\b(?! ?=|\))(?=['\"}])", self.reader.lines.text) is not None
        )

    def _evaluate(self, call: cst.Call) -> None:
        given = arguments(call, ("input_fn", "steps", "hooks", "checkpoint_path", "name"))
        self.check_hooks(given)
        if "checkpoint_path" in given or "input_fn" not in given:
            raise NotConvertible("an evaluation of another checkpoint", call)
        steps = given.get("steps")

        def write() -> str:
            alone = isinstance(self.reader.tree.parents.get(call), cst.Expr)
            text = self.reader.text(steps.value) if steps else ""
            found = self._evaluated(given["input_fn"].value, text, call, 2 if alone else 0)
            if self.asks_for_the_step() and not alone:
                found = f"dict({found}, global_step=int({self.job.model}.optimizer.iterations))"
            return found

        self.reader.replaced[call] = write

    def _predict(self, call: cst.Call) -> None:
        given = arguments(call, ("input_fn", "predict_keys", "hooks", "checkpoint_path", "yield_single_examples"))
        self.check_hooks(given)
        rest = given.keys() - {"input_fn", "predict_keys", "hooks"}
        if rest - {"yield_single_examples"} or "input_fn" not in given or (
            rest and self.reader.source(given["yield_single_examples"].value) != "True"
        ):  # fmt: skip
            raise NotConvertible("a prediction of another checkpoint, or of whole batches", call)
        self.reader.needs.add("examples")
        keys = given.get("predict_keys")

        def write() -> str:
            data = dataset(self.reader, given["input_fn"].value, "infer")
            behind = f", {self.reader.text(keys.value)}" if keys else ""
            found = f"examples({self.job.model}, {data}{behind})"
            alone = self.job.written is not None and self.job.written.answers_alone
            return f"(one['output'] for one in {found})" if alone else found

        self.reader.replaced[call] = write

    def check_hooks(self, given: dict[str, cst.Arg]) -> None:
        """Declines hooks that do something, where there is no callback for them."""
        for one in hooks.elements(self.reader, given):
            hook = self.reader.value(one)
            if self.reader.called(hook) not in SILENT_HOOKS:
                raise NotConvertible("a hook of an evaluation or a prediction: Keras has callbacks of fit", one)
            hooks.drop(self.reader, one, hook)

    def _eval_dir(self, call: cst.Call) -> str:
        """Where the files of an evaluation are."""
        self.reader.needs.add("os")
        if not call.args:
            return f"os.path.join({self.job.folder}, 'eval')"
        return f"os.path.join({self.job.folder}, 'eval_' + {self.reader.text(call.args[0].value)})"

    def _export_saved_model(self, call: cst.Call) -> None:
        given = arguments(call, ("export_dir_base", "serving_input_receiver_fn", "assets_extra", "as_text",
                                 "checkpoint_path", "experimental_mode"))  # fmt: skip
        if given.keys() - {"export_dir_base", "serving_input_receiver_fn"} or len(given) < 2:
            raise NotConvertible("an export with further arguments", call)
        write = exporting.helper(self.reader, given["serving_input_receiver_fn"].value, self.job)
        self.reader.replaced[call] = lambda: write(self.reader.text(given["export_dir_base"].value))

    _export_savedmodel = _export_saved_model

    def _get_variable_names(self, call: cst.Call) -> None:
        self.reader.replaced[call] = f"list({self._named_values(call)})"

    def _get_variable_value(self, call: cst.Call) -> None:
        name = self.reader.text(call.args[0].value) if call.args else ""
        self.reader.replaced[call] = f"{self._named_values(call)}[{name}]"

    def _named_values(self, call: cst.Call) -> str:
        if self.job.is_canned:
            return f"{self.job.model}.named_values()"
        if self.job.written is None:
            raise NotConvertible("variables by their names; those of Keras are others", call)
        return warm_starts.named(self.reader, self.job, call)


_METHODS = ("train", "evaluate", "predict", "export_saved_model", "export_savedmodel", "get_variable_names",
            "get_variable_value")  # fmt: skip
