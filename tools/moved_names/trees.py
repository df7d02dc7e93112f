"""Top-level names of the Python files of one TensorFlow (or tf_keras), read without importing anything."""

from __future__ import annotations

import ast
import contextlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Not for programs: tests, and code that only generates or checks TensorFlow's files.
_SKIPPED = ("testdata", "tests", "kernel_tests", "benchmarks", "integration_test", "api")


@dataclass(frozen=True)
class Definition:
    """A class, function or value in the module that defines it.

    Attributes:
        module, name: its place.
        kind: "class", "function" or "value".
        arguments: names of the arguments of a function, or of a class's `__init__`.
        words: the words of its code, without docstrings, which a move leaves unchanged.
        exports: the public names from its decorators, such as `v1 nn.rnn_cell.LSTMCell`.
    """

    module: str
    name: str
    kind: str
    arguments: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    exports: frozenset[str] = frozenset()

    @property
    def place(self) -> tuple[str, str]:
        return self.module, self.name


@dataclass
class Tree:
    """All modules of one version.

    Attributes:
        version: the version of the package.
        modules: module -> name -> its value: a Definition, ("name", module, name) for an import, or
            ("module", module).
        stars: module -> modules from which it imports `*`.
        listed: module -> its `__all__`, if it has one that can be read.
        allowed: module -> names that it declares public with `_allowed_symbols` or `@@NAME`, if it does.
    """

    version: str
    modules: dict[str, dict[str, object]] = field(default_factory=dict)
    stars: dict[str, list[str]] = field(default_factory=dict)
    listed: dict[str, frozenset[str]] = field(default_factory=dict)
    allowed: dict[str, frozenset[str]] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)

    def find(self, module: str, name: str, seen: frozenset = frozenset()) -> Definition | str | None:
        """Return the definition or the name of the module that `module.name` is; None if this tree has neither."""
        if (module, name) in seen or module not in self.modules:
            return None
        seen = seen | {(module, name)}
        bound = self.modules[module].get(name)
        if isinstance(bound, Definition):
            return bound
        if isinstance(bound, tuple):
            if bound[0] == "module":
                return bound[1] if bound[1] in self.modules else None
            _, home, inner = bound
            definition = self.find(home, inner, seen)
            if definition is None and f"{home}.{inner}" in self.modules:
                return f"{home}.{inner}"
            return definition
        if not name.startswith("_"):
            for star in self.stars.get(module, ()):
                if star in self.listed and name not in self.listed[star]:
                    continue
                definition = self.find(star, name, seen)
                if definition is not None:
                    return definition
        return None

    def names(self, module: str, seen: frozenset = frozenset()) -> set[str]:
        """Return all names that the module has, including those from `import *`."""
        result = set(self.modules.get(module, ()))
        for star in self.stars.get(module, ()):
            if star not in seen:
                names = self.names(star, seen | {module})
                result |= {n for n in names if n in self.listed.get(star, names) and not n.startswith("_")}
        return result

    def definitions(self) -> dict[tuple[str, str], Definition]:
        return {
            (module, name): bound
            for module, names in self.modules.items()
            for name, bound in names.items()
            if isinstance(bound, Definition)
        }

    def with_(self, other: Tree) -> Tree:
        """Return both trees as one."""
        return Tree(
            self.version,
            self.modules | other.modules,
            self.stars | other.stars,
            self.listed | other.listed,
            self.allowed | other.allowed,
            self.packages | other.packages,
        )


def read(root: Path, version: str, package: str, *, shown_as: str | None = None, beside: Sequence[str] = ()) -> Tree:
    """Return the tree below `root/package` (dotted), with its modules named as if the package were `shown_as`.

    `beside`: other packages whose names it imports and that are followed, too.
    """
    tree = Tree(version)
    top = root.joinpath(*package.split("."))
    for file in sorted(top.rglob("*.py")):
        parts = file.relative_to(top).with_suffix("").parts
        if any(part in _SKIPPED or part.endswith("_test") for part in parts):
            continue
        is_package = parts[-1] == "__init__"
        parts = parts[:-1] if is_package else parts
        module = ".".join((shown_as or package, *parts))
        tree.modules[module] = {}
        if is_package:
            tree.packages.add(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                parsed = ast.parse(file.read_text(encoding="utf-8"))
            except SyntaxError:
                continue
        reader = _Reader(tree, module, is_package, {package: shown_as or package}, beside)
        reader.read_docstring(ast.get_docstring(parsed) or "")
        reader.block(parsed.body)
    return tree


class _Reader:
    def __init__(
        self, tree: Tree, module: str, is_package: bool, renames: dict[str, str], beside: Sequence[str] = ()
    ) -> None:
        self.tree, self.module, self.is_package = tree, module, is_package
        self.renames, self.known = renames, (*renames.values(), *beside)
        self.names = tree.modules[module]

    def read_docstring(self, text: str) -> None:
        """Read `@@NAME` of a TensorFlow 1 docstring, which removes all other names from the module."""
        names = frozenset(re.findall(r"^@@(\w+)", text, re.M))
        if names:
            self.tree.allowed[self.module] = names

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.bind(node.name, self.define(node, node.name, "function", _arguments(node)))
        elif isinstance(node, ast.ClassDef):
            init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
            self.bind(node.name, self.define(node, node.name, "class", _arguments(init) if init else ()))
        elif isinstance(node, ast.ImportFrom):
            self.import_from(node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                home = self.shown(alias.name)
                if alias.asname and home.startswith(self.known):
                    self.bind(alias.asname, ("module", home))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in [target] if isinstance(target, ast.Name) else getattr(target, "elts", []):
                    if isinstance(name, ast.Name) and node.value is not None:
                        self.assign(name.id, node.value, whole=name is target)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.names.pop(target.id, None)
        else:
            for part in ("body", "orelse", "finalbody", "handlers"):
                for inner in getattr(node, part, []):
                    self.block(inner.body) if isinstance(inner, ast.ExceptHandler) else self.statement(inner)

    def bind(self, name: str, bound: object) -> None:
        # The first definition counts: those in an `else` or `except` are for other platforms.
        if isinstance(self.names.get(name), Definition) and not isinstance(bound, Definition):
            return
        self.names[name] = bound

    def assign(self, name: str, value: ast.expr, *, whole: bool) -> None:
        if name in ("__all__", "_allowed_symbols"):
            public = self.tree.listed if name == "__all__" else self.tree.allowed
            with contextlib.suppress(ValueError, TypeError):
                public[self.module] = public.get(self.module, frozenset()) | frozenset(ast.literal_eval(value))
            return
        target = self.alias(value) if whole else None
        self.bind(name, target or self.define(value, name, "value"))

    def alias(self, value: ast.expr) -> object:
        """Return the target of `name = other` and `name = module.other`."""
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Call) and len(value.args) == 1:
                return self.alias(value.args[0])  # tf_export(...)(other)
            called = value.func.id if isinstance(value.func, ast.Name) else getattr(value.func, "attr", "")
            if called.endswith("LazyLoader") and isinstance(value.args[-1], ast.Constant):
                return ("module", self.shown(value.args[-1].value))
        if isinstance(value, ast.Name) and value.id in self.names:
            return ("name", self.module, value.id)
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
            bound = self.names.get(value.value.id)
            if isinstance(bound, tuple):
                home = bound[1] if bound[0] == "module" else f"{bound[1]}.{bound[2]}"
                return ("name", home, value.attr)
        return None

    def import_from(self, node: ast.ImportFrom) -> None:
        home = node.module or ""
        if node.level:
            parts = self.module.split(".")
            cut = node.level - (1 if self.is_package else 0)
            home = ".".join(parts[: len(parts) - cut] + ([node.module] if node.module else []))
        home = self.shown(home)
        if not home.startswith(self.known):
            return
        for alias in node.names:
            if alias.name == "*":
                self.tree.stars.setdefault(self.module, []).append(home)
            else:
                self.bind(alias.asname or alias.name, ("name", home, alias.name))

    def shown(self, module: str) -> str:
        for package, shown_as in self.renames.items():
            if module == package or module.startswith(package + "."):
                return shown_as + module[len(package) :]
        return module

    def define(self, node: ast.AST, name: str, kind: str, arguments: tuple[str, ...] = ()) -> Definition:
        exports = frozenset(_exports(node))
        return Definition(self.module, name, kind, arguments, _words(node, name), exports)


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    args = node.args
    return tuple(arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs))


def _words(node: ast.AST, name: str) -> frozenset[str]:
    """Return the names, attributes and constants of the code, without docstrings and imports."""
    words: list[str] = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            words.append(inner.id)
        elif isinstance(inner, ast.Attribute):
            words.append("." + inner.attr)
        elif isinstance(inner, ast.arg):
            words.append(inner.arg)
        elif isinstance(inner, ast.Constant) and not (isinstance(inner.value, str) and len(inner.value) > 60):
            words.append(repr(inner.value))
        elif isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and inner.name != name:
            words.append("def " + inner.name)
    return frozenset(words)


def _exports(node: ast.AST) -> list[str]:
    exports = []
    for decorator in getattr(node, "decorator_list", []):
        if not isinstance(decorator, ast.Call):
            continue
        called = decorator.func.id if isinstance(decorator.func, ast.Name) else getattr(decorator.func, "attr", "")
        if called not in ("tf_export", "keras_export"):
            continue
        names = [arg.value for arg in decorator.args if isinstance(arg, ast.Constant)]
        v1_values = [keyword.value for keyword in decorator.keywords if keyword.arg == "v1"]
        v1_names = [e.value for value in v1_values for e in getattr(value, "elts", []) if isinstance(e, ast.Constant)]
        exports += [f"v2 {name}" for name in names]
        exports += [f"v1 {name}" for name in (v1_names if v1_values else names)]
    return exports
