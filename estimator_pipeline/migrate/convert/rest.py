"""The rest of a program: names of TensorFlow 1 outside of what is rewritten, and what the program reaches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import libcst as cst

from estimator_pipeline.migrate.code import catalogue
from estimator_pipeline.migrate.code.analysis.name_resolution import ClassOf, FunctionOf, Outside
from estimator_pipeline.migrate.code.analysis.syntax import Binding, Tree, children, iter_nodes
from estimator_pipeline.migrate.convert import allowed
from estimator_pipeline.migrate.convert.flags import is_flags, read_flags
from estimator_pipeline.migrate.convert.names import FileNames, Refused
from estimator_pipeline.migrate.convert.rule import SETUP, Call, Rule, rule_of
from estimator_pipeline.migrate.convert.rules import activations
from estimator_pipeline.migrate.convert.rules.columns import COLUMNS, column_class

__all__ = ["Rest", "is_reached", "reached_nodes"]

_MODE_KEYS = {"TRAIN": "'train'", "EVAL": "'eval'", "PREDICT": "'infer'"}
_GONE = ("tf.estimator", "tf.contrib", "tf.compat.v1.estimator", "tensorflow_estimator", "estimator_pipeline.compat")
_SWITCHES = ("disable_v2_behavior", "disable_eager_execution", "enable_eager_execution", "enable_v2_behavior")
_CLEAR = "summary.FileWriterCache.clear"  # of the writers of an Estimator's events
_PRIVATE_KERAS = ("tensorflow.python.keras", "tensorflow.contrib.keras")
_KERAS_MODULES = ("", "activations", "applications", "backend", "callbacks", "constraints", "datasets", "initializers",
                  "layers", "losses", "metrics", "models", "optimizers", "preprocessing", "regularizers",
                  "utils")  # fmt: skip
# Names of V1 that are the same for a program of datasets and Keras.
_FILES = {
    "GFile": "GFile", "FastGFile": "GFile", "Open": "GFile", "Exists": "exists", "MakeDirs": "makedirs",
    "MkDir": "mkdir", "Glob": "glob", "ListDirectory": "listdir", "IsDirectory": "isdir", "Remove": "remove",
    "DeleteRecursively": "rmtree", "Rename": "rename", "Copy": "copy", "Stat": "stat", "Walk": "walk",
}  # fmt: skip
_FILE_KEYWORDS = {"filename": "path", "dirname": "path", "oldpath": "src", "oldname": "src", "newpath": "dst",
                  "newname": "dst", "in_order": "topdown"}  # fmt: skip
_SAME = {
    "data.": "data.", **{f"gfile.{old}": f"io.gfile.{new}" for old, new in _FILES.items()}, "io.gfile.": "io.gfile.",
    "parse_single_example": "io.parse_single_example", "__version__": "__version__",
    "keras.datasets.": "keras.datasets.", "keras.utils.": "keras.utils.",
    "keras.preprocessing.": "keras.preprocessing.",
    "parse_example": "io.parse_example", "decode_csv": "io.decode_csv", "decode_raw": "io.decode_raw",
}  # fmt: skip


def reached_nodes(
    names: FileNames, files: Iterable[Tree], jobs: Iterable[tuple[Tree, cst.CSTNode]], without: Collection[cst.CSTNode]
) -> set[cst.CSTNode]:
    """Return the functions and classes that the top levels of files reach, directly or through each other.

    Args:
        jobs: file and place of the uses of Estimators, whose functions another program may call.
        without: definitions and statements that the conversion replaces.
    """
    roots = {above: tree for tree, node in jobs for above in tree.above(node)
             if isinstance(above, (cst.FunctionDef, cst.ClassDef))}  # fmt: skip
    reached: set[cst.CSTNode] = set(roots)
    waiting: list[tuple[Tree, cst.CSTNode]] = [(tree, node) for tree in files for node in tree.module.body
                                               if not isinstance(node, (cst.FunctionDef, cst.ClassDef))]  # fmt: skip
    waiting += [(tree, node.body) for node, tree in roots.items()]
    while waiting:
        tree, node = waiting.pop()
        for inner in _inside(node, without):
            if inner not in tree.where or not isinstance(inner, (cst.Name, cst.Attribute)):
                continue
            for value in names.of(tree).meaning(inner):
                if isinstance(value, (FunctionOf, ClassOf)) and value.node not in reached:
                    reached.add(value.node)
                    waiting.append((value.tree, value.node.body))
    return reached


def is_reached(tree: Tree, node: cst.CSTNode, reached: Collection[cst.CSTNode]) -> bool:
    """Return whether a node runs: it is not in the body of a function that nothing reaches."""
    below, bodies = node, list[cst.CSTNode]()
    for above in tree.above(node):
        if isinstance(above, cst.FunctionDef) and above.body is below:
            bodies.append(above)
        elif isinstance(above, cst.ClassDef) and bodies:
            bodies.append(above)  # a method
        below = above
    return not bodies or bodies[-1] in reached or bodies[0] in reached


def _inside(node: cst.CSTNode, without: Collection[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    if node in without:
        return
    yield node
    for child in children(node):
        yield from _inside(child, without)


class Rest:
    """The changes of a file outside of the definitions that are rewritten.

    `read` finds those of names; who converts an Estimator's job adds its statements.

    Attributes:
        new: expression -> its new text.
        before: statement -> the lines that come before it.
        replaced: statement -> the lines that replace it.
        until: replaced statement -> the statements behind it that its new lines replace, too.
        removed: statements that are not needed any more.
        imported: alias of an import -> the names to import instead.
        code: functions to add behind the imports.
        needs: names of helpers, and `os`.
        functions: the input functions that return something else than before.
        imports: imports of names that TensorFlow has no longer, and that no code uses any more.
        required: names that run with the program and that TensorFlow has no longer.
        has_input_fn: whether an Estimator's input_fn is a function of the file.
    """

    def __init__(self, names: FileNames, is_reached: Callable[[cst.CSTNode], bool]) -> None:
        self.names = names
        self.is_reached = is_reached
        self.chains: frozenset[cst.CSTNode] = frozenset(names.tree.chains)
        self.new: dict[cst.CSTNode, str] = {}
        self.removed: list[cst.CSTNode] = []
        self.functions: list[cst.FunctionDef] = []
        self.imports: list[cst.ImportAlias] = []
        self.has_input_fn = False
        self.required: list[cst.CSTNode] = []
        self.replaced: dict[cst.CSTNode, list[str]] = {}
        self.before: dict[cst.CSTNode, list[str]] = {}
        self.until: dict[cst.CSTNode, Sequence[cst.CSTNode]] = {}
        self.needs: set[str] = set()
        self.imported: dict[cst.CSTNode, list[str]] = {}
        self.code: list[cst.BaseStatement] = []

    def read(self, without: Collection[cst.CSTNode]) -> None:
        """Find the new text of each name.

        Args:
            without: nodes that the conversion replaces as a whole.

        Raises:
            Refused: code that the program reaches has a name that needs an Estimator or TensorFlow 1.
        """
        tree = self.names.tree
        self._flags()
        self._read(tree.chains, without)
        if self.names.v1_import is not None:
            self._keep_v1(without)
        for alias, binding in tree.imports:
            self._import_keras(alias)
            if isinstance(alias, cst.ImportAlias) and self._is_gone(binding):
                if self._is_used(alias, binding, without):
                    raise Refused(f"{self.names.text(alias)}, which cannot be imported any more", alias)
                self.imports.append(alias)
                self.required.append(alias)

    def write(self, node: cst.CSTNode, text: str) -> None:
        """Note the new text of an expression.

        Raises:
            Refused: it has another already.
        """
        if self.new.setdefault(node, text) != text:
            raise Refused("a function that uses several Estimators in different ways", node)

    def read_inside(self, node: cst.CSTNode, without: Collection[cst.CSTNode] = ()) -> None:
        """Find the new text of the names in a node that `read` left out."""
        self._read([inner for inner in iter_nodes(node) if inner in self.chains], without)

    def _read(self, chains: Iterable[cst.CSTNode], without: Collection[cst.CSTNode]) -> None:
        tree = self.names.tree
        for node in chains:
            if any(above in without or above in self.new for above in (node, *tree.above(node))):
                continue
            full = self.names.name(node)
            if is_flags(full) or (
                not full.startswith(
                    (
                        "tf.compat.v1",
                        "tf.estimator",
                        "tf.contrib",
                        "tf_slim",
                        "tf.feature_column",
                        "tf.distribute.",
                    )
                )
                and rule_of(full, SETUP) is None
            ):  # of TensorFlow 2, and the same in Keras 2 and Keras 3
                continue
            if isinstance(tree.parents.get(node), cst.ImportAlias) or self.names.is_variable(node):
                continue
            if any(isinstance(above, cst.Annotation) for above in tree.above(node)):
                if full.startswith(("tf.estimator.", "tf.contrib.")):  # not there when Python evaluates it
                    self.new[node] = repr(self.names.text(node))
                continue
            assert isinstance(node, cst.BaseExpression)
            known = len(self.new) + len(self.removed)
            self._name(node, full, without)
            if full.startswith(_GONE) and len(self.new) + len(self.removed) > known and self.is_reached(node):
                self.required.append(node)

    def _import_keras(self, alias: cst.CSTNode) -> None:
        """Import Keras from where it is public: `tensorflow.python.keras` is an older copy, which tf.keras rejects."""
        statement = self.names.tree.parents.get(alias)
        for node in (getattr(statement, "module", None), getattr(alias, "name", None)):
            text = self.names.text(node) if node is not None else ""
            home = next((home for home in _PRIVATE_KERAS if f"{text}.".startswith(f"{home}.")), None)
            if node is not None and home is not None:
                if text.removeprefix(home).lstrip(".") not in _KERAS_MODULES:
                    raise Refused(f"{text}, which cannot be imported any more", alias)
                self.new[node] = f"tensorflow.keras{text.removeprefix(home)}"
                self.required.append(alias)

    def _is_gone(self, binding: Binding) -> bool:
        """Return whether an import is of a module that TensorFlow has no longer, or of this package's replacement."""
        values = self.names.program.bound(binding, binding.name)
        names = [catalogue.spell(value.dotted) for value in values if isinstance(value, Outside)]
        return bool(names) and all(name.startswith(_GONE) for name in names)

    def _is_used(self, alias: cst.ImportAlias, binding: Binding, without: Collection[cst.CSTNode]) -> bool:
        """Return whether code that remains uses an import."""
        names, tree = self.names, self.names.tree
        for name in (name for name, bindings in binding.scope.names.items() if binding in bindings):
            for place in names.places(name):
                above = (place, *tree.above(place))
                if alias in above or binding not in names.program.bindings(name, names.scope(place)):
                    continue
                if not any(node in without or node in self.new for node in above):
                    return True
        return False

    def _keep_v1(self, without: Collection[cst.CSTNode]) -> None:
        """Write `tf.compat.v1.x` for each `tf.x` of V1 that remains: `tf` becomes TensorFlow 2."""
        tree = self.names.tree
        for node in tree.chains:
            text = self.names.text(node)
            if not text.startswith(f"{self.names.tf}.") or not self.names.name(node).startswith("tf.compat.v1."):
                continue
            if not any(above in without or above in self.new for above in (node, *tree.above(node))):
                self.new[node] = f"{self.names.tf}.compat.v1{text.removeprefix(self.names.tf)}"

    def _written(self, rule: Rule, call: cst.Call, full: str, without: Collection[cst.CSTNode]) -> str:
        """Return what a rule writes for a call, with the new names in its arguments."""
        refused: list[Refused] = []
        for chain in (node for arg in call.args for node in iter_nodes(arg) if node in self.chains):
            try:
                self._read([chain], without)
            except Refused as refusal:
                refused.append(refusal)
        texts = {arg.value: self.text(arg.value) for arg in call.args}
        written = rule(Call(call, full, SETUP, self.names, texts, self.needs))
        for reason in refused:
            if self.names.text(reason.node) in written:
                raise reason
        return written

    def _flags(self) -> None:
        flags = read_flags(self.names)
        self.new |= flags.new
        self.removed += flags.removed
        if flags.imports:
            imports = [node for node in self.names.tree.module.body if isinstance(node, cst.SimpleStatementLine)
                       and isinstance(node.body[0], (cst.Import, cst.ImportFrom))]  # fmt: skip
            tensorflow = next((node for node in imports if "tensorflow" in self.names.text(node)), None)
            if tensorflow is None:
                raise Refused("flags in a file whose import of TensorFlow has a condition", self.names.tree.module)
            self.before[tensorflow] = flags.imports

    def _name(self, node: cst.BaseExpression, full: str, without: Collection[cst.CSTNode]) -> None:
        tree, tf = self.names.tree, self.names.tf
        parent = tree.parents.get(node)
        below = full.removeprefix("tf.compat.v1.")
        if full.startswith(("tf.estimator.ModeKeys.", "tf.compat.v1.estimator.ModeKeys.")):
            self.new[node] = _MODE_KEYS[full.rpartition(".")[2]]
        elif below in (*_SWITCHES, _CLEAR) and isinstance(parent, cst.Call):
            expression = tree.parents.get(parent)
            statement = tree.parents.get(expression) if isinstance(expression, cst.Expr) else None
            if isinstance(statement, cst.SimpleStatementLine):
                self.removed.append(statement)
                if below == _CLEAR:
                    self.before[statement] = [f"# Without a counterpart in fit: {self.names.text(parent)}"]
        elif full in COLUMNS and isinstance(parent, cst.Call) and parent.func is node:
            self.new[node] = column_class(Call(parent, full, SETUP, self.names, {}, self.needs))
        elif isinstance(parent, cst.Call) and parent.func is node and (rule := rule_of(full, SETUP)) is not None:
            try:
                self.new[parent] = self._written(rule, parent, full, without)
            except Refused:
                if self.is_reached(node):
                    raise
        elif (home := next((home for home in _SAME if below.startswith(home)), None)) is not None and (
            home != _SAME[home] or catalogue.v1_names().get(below) != ""
        ):  # fmt: skip
            for arg in parent.args if home.startswith("gfile.") and isinstance(parent, cst.Call) else ():
                if arg.star == "**":
                    raise Refused(f"** of {full}, whose keywords have other names", node)
                if arg.keyword is not None and (new := _FILE_KEYWORDS.get(arg.keyword.value)) is not None:
                    self.new[arg.keyword] = "pattern" if home == "gfile.Glob" else new
            self.new[node] = f"{tf}.{_SAME[home]}{below.removeprefix(home)}"
        elif full.startswith("tf.distribute.") and full.endswith("Strategy"):  # of TensorFlow 2, as Keras takes it
            self.new[node] = f"{tf}.{full.removeprefix('tf.')}"
        elif self.is_unused_alias(node, without):
            self.removed.append(tree.parents[tree.parents[node]])
        elif full == "tf.compat.v1.set_random_seed":
            self.new[node] = f"{tf}.random.set_seed"
        elif isinstance(parent, cst.Arg) and (function := activations.function(full, tf)):
            self.new[node] = function
        elif (new := allowed.name(full, SETUP, tf)) is not None:
            self.new[node] = new or self.names.text(node)
        elif self.is_reached(node) and full.startswith(("tf.estimator.", "tf.compat.v1.", "tf.contrib.", "tf_slim.",
                                                        "tf.feature_column.")):  # fmt: skip
            raise Refused(full, node)

    def is_unused_alias(self, node: cst.CSTNode, without: Collection[cst.CSTNode]) -> bool:
        """Return whether a statement is `losses = tf.losses`, and only replaced code uses the name."""
        tree = self.names.tree
        assign = tree.parents.get(node)
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1 or assign.value is not node:
            return False
        target = assign.targets[0].target
        if not isinstance(target, cst.Name) or not isinstance(tree.parents.get(assign), cst.SimpleStatementLine):
            return False
        for place in self.names.places(target.value):
            bindings = self.names.program.bindings(place.value, self.names.scope(place))
            is_read = place is not target and any(binding.node is node for binding in bindings)
            if is_read and not any(above in without for above in (place, *tree.above(place))):
                return False
        return True

    def text(self, node: cst.CSTNode, more: Mapping[cst.CSTNode, str] | None = None) -> str:
        """Return the text of a node with the new names, and with `more` nodes replaced."""
        new = {**self.new, **(more or {})}
        if node in new:
            return new[node]

        class Fill(cst.CSTTransformer):
            def on_visit(self, node: cst.CSTNode) -> bool:
                return node not in new

            def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
                return cst.parse_expression(new[original_node]) if original_node in new else updated_node

        return self.names.text(node.visit(Fill()))  # type: ignore[arg-type]
