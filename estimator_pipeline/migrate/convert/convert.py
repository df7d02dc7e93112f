"""Conversion of a program from Estimators to Keras: read, plan, apply, verify; or the line that no rule converts.

A program is the files that make Estimators and the files of their model_fns, of the functions that these call, and of
the input functions. All of its files are converted, or none.
"""

from __future__ import annotations

import ast
import functools
import tokenize
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import libcst as cst

from estimator_pipeline.migrate.code.analysis.constructs import arguments
from estimator_pipeline.migrate.code.analysis.edits import Edit, Step, damaging_rule, keep_comments
from estimator_pipeline.migrate.code.analysis.name_resolution import FunctionOf, Program, Value
from estimator_pipeline.migrate.code.analysis.syntax import Tree, iter_nodes
from estimator_pipeline.migrate.convert.canned import write_canned
from estimator_pipeline.migrate.convert.estimators import ESTIMATOR, RUN_CONFIGS, EstimatorJob, read_estimators
from estimator_pipeline.migrate.convert.factories import Factory
from estimator_pipeline.migrate.convert.file_edits import FileEdits
from estimator_pipeline.migrate.convert.job import write_job
from estimator_pipeline.migrate.convert.keras_models import convert_names, model_of
from estimator_pipeline.migrate.convert.model import Model, write_model
from estimator_pipeline.migrate.convert.names import FileNames, Refused, calls_in, read_names
from estimator_pipeline.migrate.convert.program_files import ProgramFiles
from estimator_pipeline.migrate.convert.rest import Rest, is_reached, reached_nodes
from estimator_pipeline.migrate.convert.unresolved_names import unknown_names

__all__ = ["ProgramConversion", "FilePlan", "convert_programs", "model_fns", "plan"]

# Exceptions that a defect of a rule may raise: it must not take other programs with it.
_DEFECTS = (LookupError, AttributeError, TypeError, ValueError, AssertionError, RecursionError, cst.ParserSyntaxError)


@dataclass(frozen=True)
class FilePlan:
    """The edits that convert a file.

    Attributes:
        tree: the file.
        edits: the edits, in no order.
    """

    tree: Tree
    edits: tuple[Edit, ...]

    def apply(self) -> Step:
        """Return the converted text, as a step of edits."""
        text = self.tree.source.text
        return Step.of("keras", text, keep_comments(text, self.edits))


@dataclass(frozen=True)
class ProgramConversion:
    """What became of the files that make Estimators, and of those that they share.

    Attributes:
        mains: the files that make the Estimators.
        files: these and the files of their model_fns.
        steps: file -> the step that converts it; empty if the conversion is refused.
        refused: why.
    """

    mains: tuple[Tree, ...]
    files: tuple[Tree, ...]
    steps: Mapping[Tree, Step] = field(default_factory=dict)
    refused: Refused | None = None


def model_fns(program: Program, tree: Tree) -> list[FunctionOf]:
    """Return the model_fns of the Estimators that a file makes, where they are functions of the program."""
    names, functions = read_names(program, tree), []
    for call in tree.calls:
        arg = arguments(call, ("model_fn",)).get("model_fn") if names.name(call.func) == ESTIMATOR else None
        function = names.function(arg.value) if arg is not None else None
        if function is not None:
            functions.append(function)
    return functions


def convert_programs(program: Program, mains: Sequence[Tree]) -> list[ProgramConversion]:
    """Convert the files that make Estimators; those that share a file that changes, together.

    Args:
        program: all files.
        mains: the files that make an Estimator with a model_fn.
    """
    files = ProgramFiles(program, mains)
    waiting = files.groups()
    whole = [group for group in waiting if len(group) > 1]
    done: list[ProgramConversion] = []
    while waiting:
        group = waiting.pop(0)
        new = _converted(files, group)
        if new.refused is not None and group in whole:
            whole.remove(group)
            script = _refused_script(files, group)
            if script is None:
                waiting = [*((tree,) for tree in group), *waiting]
                continue
            new = replace(new, refused=script)
        user = {new.refused.user} if isinstance(new.refused, _UsedElsewhere) else set()
        others = [other for other in done if user & {*other.files} or not new.steps.keys().isdisjoint(other.steps)]
        later = [group for group in waiting if user & _files_of(program, group)]
        if others or later:
            joined = [*new.mains, *(tree for other in others for tree in other.mains), *(t for g in later for t in g)]
            done = [other for other in done if other not in others]
            waiting = [tuple(dict.fromkeys(joined)), *(group for group in waiting if group not in later)]
        else:
            done.append(new)
    return done


def _refused_script(of_program: ProgramFiles, group: Sequence[Tree]) -> Refused | None:
    """Return what no rule converts in the files that import several programs, which all run as they do."""
    alone = {tree for main in group for tree in of_program.of([main])}
    scripts = [tree for tree in of_program.of(group) if tree not in alone]
    names = read_names(of_program.program, group[0])
    reached = reached_nodes(names, scripts, (), ())
    try:
        for tree in scripts:
            rest = Rest(names.of(tree), functools.partial(is_reached, tree, reached=reached))
            rest.read(())
            if rest.removed:
                return Refused("a switch of TensorFlow 1, in a script of several programs", rest.removed[0])
    except Refused as refused:
        return refused
    return None


def _files_of(program: Program, mains: Sequence[Tree]) -> set[Tree]:
    return {*mains, *(function.tree for tree in mains for function in model_fns(program, tree))}


def _converted(of_program: ProgramFiles, mains: tuple[Tree, ...]) -> ProgramConversion:
    program = of_program.program
    files = tuple(dict.fromkeys([*mains, *_files_of(program, mains)]))
    try:
        steps = {file.tree: file.apply() for file in plan(of_program, mains)}
        for tree, step in steps.items():
            verify(tree, step)
    except Refused as refused:
        return ProgramConversion(mains, files, refused=refused)
    except _DEFECTS as error:
        program.reset()
        reason = f"the converter failed: {type(error).__name__}: {error}"
        return ProgramConversion(mains, files, refused=Refused(reason, mains[0].module))
    return ProgramConversion(mains, files, steps)


class _UsedElsewhere(Refused):
    """A function that would change, and that another file uses, too.

    Attributes:
        user: that file.
    """

    def __init__(self, node: cst.FunctionDef, user: Tree) -> None:
        super().__init__(f"{node.name.value}, which {user.source.path} uses, too", node)
        self.user = user


def plan(of_program: ProgramFiles, mains: Sequence[Tree]) -> list[FilePlan]:
    """Return the edits of each file of a program.

    Raises:
        Refused: no rule converts one of its constructs.
    """
    names = read_names(of_program.program, mains[0])
    jobs = [(used.tree, job) for tree in mains for used, job in read_estimators(names.of(tree))]
    if not jobs:
        raise Refused("no Estimator is made in this file", mains[0].module)
    return _Planner(names, of_program, mains, jobs).plan()


class _Planner:
    def __init__(
        self,
        names: FileNames,
        of_program: ProgramFiles,
        mains: Sequence[Tree],
        jobs: Sequence[tuple[Tree, EstimatorJob]],
    ) -> None:
        self.program, self.names, self.mains, self.jobs = names.program, names, mains, jobs
        self.of_program, self.files = of_program, of_program.of(mains)
        self.models = self.written_models()

    def plan(self) -> list[FilePlan]:
        for tree, job in self.jobs:
            if tree not in self.files:
                raise Refused(f"an Estimator that {tree.source.path} uses beside others", job.call)
        definitions = self.definitions()
        self.replaced: set[cst.CSTNode] = {node for nodes in definitions.values() for node in nodes}
        self.consumed = self.consumed_nodes()
        files = self.files
        uses = [(tree, use.call) for tree, job in self.jobs for use in job.uses]
        reached = reached_nodes(self.names, files, uses, self.replaced)
        rests = self.rests = {tree: self.rest(tree, reached) for tree in files}
        for tree in files if self.has_keras_models else ():
            rests[tree].required += [node for node in rests[tree].new if rests[tree].is_reached(node)]
        for model in self.models.values():
            for tree, needs in model.needs.items():
                rests[tree].needs |= needs
        for tree, job in self.jobs:
            alone = sum(other is tree for other, _ in self.jobs) == 1
            model = self.model_in(tree, job) if job.factory is None else self.of_factory(job.factory, tree, job)
            write_job(self.names.of(tree), rests, job, model, alone=alone)
            code = self.models[job.model_fn].code if isinstance(job.model_fn, cst.Call) else ()
            home = rests[self.home(tree, job)]
            home.code += [part for part in code if part not in home.code]
        self.check_definitions(definitions, rests)
        changed = {*self.mains, *definitions, *(tree for tree, _ in self.jobs)}
        for tree in files:
            is_ours = rests[tree].has_input_fn and self.of_program.is_imported_by(tree, files)
            changed |= {tree} if is_ours or rests[tree].functions else set()
        for tree in (tree for tree in files if tree not in changed and rests[tree].required):
            if not self.of_program.is_imported_by(tree, files):
                raise Refused(
                    "a name that TensorFlow has no longer, in a file of other programs", rests[tree].required[0]
                )
            changed.add(tree)
        plans = []
        for tree in sorted(changed, key=lambda tree: tree.source.path):
            names = self.names.of(tree)
            if not names.tf:
                raise Refused("a file that imports TensorFlow otherwise than by `import tensorflow as tf`", tree.module)
            if not tree.verbatim:
                raise Refused("a file that libcst does not reproduce", tree.module)
            self.check_names(tree, definitions.get(tree, {}))
            multi_worker = any(job.config.is_multi_worker for other, job in self.jobs if other is tree)
            edits = FileEdits(names).all(definitions.get(tree, {}), rests[tree], multi_worker=multi_worker)
            plans.append(FilePlan(tree, edits))
        return plans

    def written_models(self) -> dict[FunctionOf | cst.Call, Model]:
        functions = list(dict.fromkeys(job.model_fn for _, job in self.jobs if isinstance(job.model_fn, FunctionOf)))
        models: dict[FunctionOf | cst.Call, Model] = {}
        taken: Counter[tuple[Tree, str]] = Counter()
        for tree, job in self.jobs:
            if job.keras_model is not None:
                models[cst.ensure_type(job.model_fn, cst.Call)] = model_of(self.names.of(self.home(tree, job)), job)
            elif isinstance(job.model_fn, cst.Call) and job.model_fn not in models:
                home = self.home(tree, job)
                several = len({other.model_fn for used, other in self.jobs if self.home(used, other) is home}) > 1
                prefix = self.prefix(tree, job) if several else ""
                taken[home, prefix] += 1
                prefix += f"{taken[home, prefix]}_" if taken[home, prefix] > 1 else ""
                models[job.model_fn] = write_canned(self.names.of(home), job, prefix=prefix)
        for function in functions:
            node = cst.ensure_type(function.node, cst.FunctionDef)
            several = sum(other.tree is function.tree for other in functions) > 1
            stem = node.name.value.removesuffix("_fn").removesuffix("_model")
            distributed = any(job.config.strategy is not None for _, job in self.jobs if job.model_fn == function)
            models[function] = write_model(self.names.of(function.tree), node, prefix=f"{stem}_" if several else "",
                                           distributed=distributed)  # fmt: skip
        return models

    def home(self, tree: Tree, job: EstimatorJob) -> Tree:
        """Return the file that makes an Estimator, for the file that uses it."""
        return tree if job.factory is None else job.factory.names.tree

    def prefix(self, tree: Tree, job: EstimatorJob) -> str:
        """Return the start of the names of a canned Estimator's model."""
        if job.factory is not None:
            return f"{job.factory.node.name.value}_"
        assign = tree.parents.get(job.call)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
        if not isinstance(target, cst.Name):
            raise Refused("an Estimator without a name, beside others", job.call)
        return f"{target.value}_"

    def model_in(self, tree: Tree, job: EstimatorJob) -> Model:
        """Return a model by the names that the file of its Estimator has for its functions, and note the imports."""
        model = self.models[job.model_fn]
        if isinstance(job.model_fn, cst.Call) or job.model_fn.tree is tree:
            return model
        expression = job.args["model_fn"]
        if isinstance(expression, cst.Attribute):
            module = self.names.of(tree).text(expression.value)
            return replace(model, make=f"{module}.{model.make}",
                           predictions=model.predictions and f"{module}.{model.predictions}")  # fmt: skip
        scope = self.names.of(tree).scope(expression)
        bindings = self.program.bindings(cst.ensure_type(expression, cst.Name).value, scope)
        if not bindings and tree.scope.stars:
            return model
        if len(bindings) != 1 or bindings[0].kind != "from":
            raise Refused("a model_fn of another file that is not imported by its name", expression)
        others = {other.model_fn.tree for main, other in self.jobs
                  if main is tree and isinstance(other.model_fn, FunctionOf)}  # fmt: skip
        stem = job.model_fn.tree.source.path.rpartition("/")[2].removesuffix(".py")
        new = {name: f"{stem}_{name}" if len(others) > 1 else name for name in (model.make, model.predictions) if name}
        if not any(use.kind == "predict" for use in job.uses):
            new.pop(model.predictions, None)
        texts = [f"{name} as {local}" if local != name else name for name, local in new.items()]
        self.rests[tree].imported.setdefault(bindings[0].node, []).extend(texts)
        taken = next((local for local in new.values() if local in tree.scope.names), "")
        if taken:
            raise Refused(f"the name {taken}, which the conversion defines", expression)
        return replace(model, make=new[model.make], predictions=new.get(model.predictions, model.predictions))

    def of_factory(self, factory: Factory, tree: Tree, job: EstimatorJob) -> Model:
        """Return the model of a function that made an Estimator, for its caller, and note the edits of the function."""
        home, names, func = factory.names.tree, self.names.of(tree), job.call.func
        model, rest = self.model_in(home, replace(job, args=factory.args)), self.rests[home]
        params = [rest.text(factory.args["params"]) if "params" in factory.args else "{}"]
        makes = [factory.inputs, *(params if model.takes_params else []), *(rest.text(node) for node in model.passed)]
        call = f"{model.make}({', '.join(makes)})" if job.keras_model is None else rest.text(job.keras_model)
        rest.new |= factory.edits(call, rest.text, inputs=job.keras_model is None)
        rest.removed += [node for node in factory.statements if node not in rest.removed]
        predictions = model.predictions
        predicts = any(use.kind in ("predict", "export") or use.exporters for use in job.uses)
        if tree is not home and isinstance(func, cst.Attribute):
            predictions = predictions and f"{names.text(func.value)}.{predictions}"
        elif tree is not home and predictions and predicts:
            (binding,) = self.program.bindings(cst.ensure_type(func, cst.Name).value, names.scope(func))
            imported = names.text(binding.node).rstrip(", ")
            self.rests[tree].imported.setdefault(binding.node, []).extend([imported, predictions])
        return replace(model, make=names.text(func), predictions=predictions, takes_params=False,
                       passed=factory.passed(job.call))  # fmt: skip

    def definitions(self) -> dict[Tree, dict[cst.FunctionDef, Sequence[cst.BaseStatement]]]:
        """Return file -> function -> the definitions that replace it."""
        written: dict[Tree, dict[cst.FunctionDef, Sequence[cst.BaseStatement]]] = defaultdict(dict)
        for tree, job in self.jobs:
            written[self.home(tree, job)].update({function: [] for function in job.metric_fns.values()})
        for function, model in self.models.items():
            if isinstance(function, cst.Call):
                continue
            written[function.tree][cst.ensure_type(function.node, cst.FunctionDef)] = model.code
            for helper, new in model.helpers.items():
                node = cst.ensure_type(helper.node, cst.FunctionDef)
                if self.names.text(new) != self.names.text(node) or helper.tree is function.tree:
                    written[helper.tree][node] = [
                        new.with_changes(leading_lines=[], decorators=new.decorators[len(node.decorators) :])
                    ]
        return dict(written)

    def rest(self, tree: Tree, reached: set[cst.CSTNode]) -> Rest:
        rest = Rest(self.names.of(tree), functools.partial(is_reached, tree, reached=reached))
        if self.has_keras_models:
            convert_names(rest.names, rest, self.replaced)
        rest.read(self.replaced | self.consumed)
        return rest

    @property
    def has_keras_models(self) -> bool:
        return any(job.keras_model is not None for _, job in self.jobs)

    def consumed_nodes(self) -> set[cst.CSTNode]:
        """Return the calls and statements of Estimators, which the job replaces: their arguments are read apart."""
        nodes: set[cst.CSTNode] = set()
        for tree, estimator in self.jobs:
            names = self.names.of(tree)
            nodes |= {estimator.call.func, *estimator.unread, *self.models[estimator.model_fn].consumed}
            nodes |= {getattr(use.call, "func", use.call) for use in estimator.uses}
            parts = [estimator.call, *estimator.statements, *(use.call for use in estimator.uses)]
            if (factory := estimator.factory) is not None:
                nodes |= {factory.call.func, *factory.statements}
                parts.append(factory.call)
            for call in calls_in(*parts):
                if names.name(call.func).startswith("tf.estimator.") or names.name(call.func) in RUN_CONFIGS:
                    nodes.add(call.func)
        return nodes

    # Checks

    def check_definitions(
        self, definitions: Mapping[Tree, Mapping[cst.FunctionDef, object]], rests: Mapping[Tree, Rest]
    ) -> None:  # fmt: skip
        """Check that nothing else uses the functions that are rewritten."""
        models: set[cst.CSTNode] = {function.node for function in self.models if isinstance(function, FunctionOf)}
        models |= {node for _, job in self.jobs for node in job.metric_fns.values()}
        factories = {job.factory.node for _, job in self.jobs if job.factory is not None}
        gone = models | factories
        for model in self.models.values():
            gone |= {helper.node for helper, new in model.helpers.items()
                     if _parameters(helper.node) != _parameters(new)}  # fmt: skip
        rewritten: set[cst.FunctionDef] = factories | {node for nodes in definitions.values() for node in nodes}
        rewritten |= {function for rest in rests.values() for function in rest.functions}
        for tree in self.program.trees.values():
            for place, values in self.uses(tree, {node.name.value for node in rewritten}):
                forbidden: Set[cst.CSTNode] = rewritten
                if tree in rests:
                    forbidden = models if isinstance(place, cst.ImportAlias) else gone
                for value in values:
                    if isinstance(value, FunctionOf) and value.node in forbidden:
                        raise _UsedElsewhere(cst.ensure_type(value.node, cst.FunctionDef), tree)
        for tree, nodes in definitions.items():
            listed = {str(node.evaluated_value) for binding in tree.scope.names.get("__all__", ())
                      for node in iter_nodes(binding.node) if isinstance(node, cst.SimpleString)}  # fmt: skip
            for node in nodes:
                if node in gone and node.name.value in listed:
                    raise Refused(f"{node.name.value}, which __all__ lists", node)

    def uses(self, tree: Tree, functions: Set[str]) -> Iterator[tuple[cst.CSTNode, Sequence[Value]]]:
        """Yield the places outside of what is rewritten that have the name of a function, and what they are."""
        models = {job.args_made.get("model_fn") for used, job in self.jobs if self.home(used, job) is tree}
        models |= {node for main, job in self.jobs if main is tree for node in (job.call.func, *job.metric_fns)}
        local = set(functions)
        for alias, binding in tree.imports:
            if binding.kind == "from" and binding.name in functions:
                local |= {name for name, bindings in binding.scope.names.items() if binding in bindings}
                if tree not in self.rests or alias not in self.rests[tree].imported:
                    yield alias, tuple(self.program.bound(binding, binding.name))
        for chain in tree.chains:
            for part in _parts(chain):
                name = part.attr.value if isinstance(part, cst.Attribute) else part.value
                if name not in local or part in models or isinstance(tree.parents.get(chain), cst.ImportAlias):
                    continue
                if not any(above in self.replaced for above in (chain, *tree.above(chain))):
                    yield part, self.names.of(tree).meaning(part)

    def check_names(self, tree: Tree, definitions: Mapping[cst.FunctionDef, object]) -> None:
        """Check that a file has no other use of the names that the conversion defines."""
        inside = {node for function in definitions for node in (function, *iter_nodes(function))}
        scopes = ((tree.module, tree.scope), *tree.scopes.items())
        called = {name for model in self.models.values() for name in model.needs.get(tree, ())}
        taken = {name: bindings[0].node or scope.node for node, scope in scopes
                 for name, bindings in scope.names.items() if node not in inside or name in called}  # fmt: skip
        models = [model for function, model in self.models.items()
               if isinstance(function, FunctionOf) and function.tree is tree]  # fmt: skip
        models += [self.models[job.model_fn] for used, job in self.jobs
                   if self.home(used, job) is tree and isinstance(job.model_fn, cst.Call)]  # fmt: skip
        defined = {name for model in models for name in (model.make, model.predictions) if name}
        for name in (*self.rests[tree].needs, *defined):
            if name in taken and name != "os":
                raise Refused(f"the name {name}, which the conversion defines", taken[name])


def verify(tree: Tree, step: Step) -> None:
    """Check the converted text, so that a defect of a rule cannot break a file.

    Raises:
        Refused: the text is not valid Python, has a name that is not defined, or differs outside of the edits.
    """
    if not tree.source.keeps_cells(step.after):
        raise Refused("a notebook whose cells cannot be identified in the converted text", tree.module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(step.after)
        except SyntaxError as error:
            raise Refused(f"the converted text is not valid Python: {error}", tree.module) from error
    unknown = sorted(unknown_names(step.after) - unknown_names(step.before))
    if unknown:
        raise Refused(f"{unknown[0]}, which would be undefined after the conversion", tree.module)
    try:
        damaged = damaging_rule(step.before, step.after, [step])
    except tokenize.TokenError as error:
        raise Refused(f"the converted text cannot be read: {error}", tree.module) from error
    if damaged:
        raise Refused("a rule would change code that it does not convert", tree.module)


def _parts(chain: cst.Attribute | cst.Name) -> Iterator[cst.Attribute | cst.Name]:
    """Yield a dotted name and those that it starts with: `a.b.c`, `a.b`, `a`."""
    yield chain
    if isinstance(chain, cst.Attribute) and isinstance(chain.value, (cst.Attribute, cst.Name)):
        yield from _parts(chain.value)


def _parameters(node: cst.CSTNode) -> tuple[str, ...]:
    return tuple(param.name.value for param in node.params.params) if isinstance(node, cst.FunctionDef) else ()
