"""`tf.contrib`, which TensorFlow 2.0 removed, for programs written for TensorFlow 1.

A name is looked up at its current location on first use, by the table `names.txt`. Most names are in TensorFlow or
tf-slim; others are reimplemented in the modules of this package. A name without a replacement raises an error with a
hint. All packages of tf.contrib and their modules (`contrib.x.python.y`) can be imported.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from estimator_pipeline.compat.bootstrap.import_aliases import spec_of
from estimator_pipeline.compat.moved_names import table as moved_names
from estimator_pipeline.compat.tf1.contrib import files
from estimator_pipeline.errors import CompatError

__all__ = ["EXAMPLES", "PACKAGE", "ROOT", "Contrib", "has_module", "install", "is_below", "module", "names", "packages"]

ROOT = "tensorflow.contrib"
# The name of the same package in this package: compat/contrib.py.
PACKAGE = "estimator_pipeline.compat.contrib"
# TensorFlow 1 also had this package; its names in the table begin with `examples`.
EXAMPLES = "tensorflow.examples"
_FILE = Path(__file__).with_name("names.txt")
_SLIM = "tf_slim"
# Packages of older releases that 1.15 no longer has.
_OLDER = frozenset(("ctc", "gan", "kfac", "linalg", "lite", "nccl", "ndlstm", "py2tf", "spectral"))
# Packages of tf.contrib that were a module: `from tensorflow.contrib.eager.python import tfe as eager`.
_SOURCES = {
    "eager": "eager.python.tfe",
    "optimizer_v2": "optimizer_v2.optimizer_v2_symbols",
    "receptive_field": "receptive_field.receptive_field_api",
    "recurrent": "recurrent.python.recurrent_api",
    "remote_fused_graph": "remote_fused_graph.pylib",
    "specs": "specs.python",
}
_NOWHERE = object()


class Names:
    """The table of `names.txt`.

    Attributes:
        homes: Package below tf.contrib -> modules in which its names are looked up.
        rows: Package -> name -> current (module, name).
    """

    def __init__(self, text: str) -> None:
        self.homes: dict[str, tuple[str, ...]] = {}
        self.rows: dict[str, dict[str, list[tuple[str, str]]]] = {}
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            package, mark, *words = line.split(" ")
            if mark == "=":
                self.homes[package] = tuple(words)
            else:
                home, *names = words
                rows = self.rows.setdefault(package, {})
                for name in names:
                    old, _, new = name.partition("=")
                    rows.setdefault(old, []).append((home, new or old))
        self.modules = {*self.homes, *self.rows}

    def homes_of(self, package: str) -> Iterator[str]:
        """Iterate over the modules in which the names of a package below tf.contrib are looked up."""
        above = package
        while above:
            if above in self.homes:
                below = package[len(above) :]
                # The modules of this package have no submodules.
                yield from (home + below for home in self.homes[above] if not below or not home.startswith("@"))
                return
            above = above.rpartition(".")[0]

    def is_above(self, package: str) -> bool:
        """Whether the table has an entry below a package."""
        return any(each.startswith(package + ".") for each in self.modules)


@functools.cache
def names() -> Names:
    return Names(_FILE.read_text(encoding="utf-8"))


@functools.cache
def modules_of_old() -> frozenset[str]:
    """Return the names, below `tensorflow.contrib`, of all its modules in TensorFlow 1.15."""
    every = set(_OLDER)
    for line in _FILE.with_name("modules.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            package, *modules = line.split(" ")
            every.update(modules if package == "." else (f"{package}.{each}" for each in modules))
    return frozenset(every)


@functools.cache
def public_names() -> dict[str, frozenset[str]]:
    """Return package below tf.contrib -> its public names in TensorFlow 1.15, for packages that list them."""
    lines = _FILE.with_name("public_names.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split(" ") for line in lines if not line.startswith("#"))
    return {package: frozenset(every) for package, *every in rows}


def packages() -> list[str]:
    return sorted(name for name in modules_of_old() if "." not in name)


@functools.cache
def _moved() -> moved_names.MovedNamesTable:
    return moved_names.read()


class Contrib(ModuleType):
    """A package or module of tf.contrib, whose names are looked up on first use."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{name} of TensorFlow 1; see estimator_pipeline.compat.tf1.contrib.")
        self.__path__: list[str] = []
        self.__file__ = str(_FILE)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        below, full = _below(self.__name__), f"{self.__name__}.{name}"
        value = module(full) if _below(full) in names().modules else _looked_up(below, name)
        if value is _NOWHERE:
            value = getattr(files.load(_SOURCES.get(below, below)), name, _NOWHERE)
        if value is _NOWHERE and has_module(full):
            value = module(full)
        if value is _NOWHERE and files.path_of(below) is None:
            # contrib.x has the names that a module of `contrib.x.python` defined.
            above, is_inner, _ = below.partition(".python")
            value = _looked_up(above, name) if is_inner else _NOWHERE
        if value is _NOWHERE:
            raise _gone(below, name, imported=moved_names.is_from_import(sys._getframe(1)), obj=self)
        if not files.is_loading():
            # A package that is still loading may define a name that one of its modules has.
            _attributes(self)[name] = value
        return value

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            # Code that iterates over a module's names, such as AutoGraph, gets all that can be resolved.
            for each in dir(self):
                with contextlib.suppress(Exception):
                    getattr(self, each)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets each submodule on its package, which may have a different object of that name.
        if not isinstance(value, Contrib):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        below = _below(self.__name__)
        every = {name for name in _attributes(self) if not name.startswith("_")} | set(names().rows.get(below, ()))
        if not below:
            every.update(packages())
        file = files.load(below)
        every.update(name for name in (vars(file) if file is not None else ()) if not name.startswith("_"))
        for home in names().homes_of(below):
            value = _home(home)
            if value is not None:
                every |= set(getattr(value, "__all__", ())) or {each for each in dir(value) if each[0] != "_"}
        return sorted(every)

    @property
    def __all__(self) -> list[str]:
        """For `from tensorflow.contrib.x import *`."""
        return dir(self)


def _attributes(module: Contrib) -> dict[str, Any]:
    """Return the names that have been looked up so far."""
    attributes: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return attributes


def module(name: str) -> ModuleType:
    """Return, and import if necessary, a module of tf.contrib, such as `"tensorflow.contrib.layers"`.

    Raises:
        GoneModuleError: TensorFlow 1 had no such package.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    if not has_module(name):
        error = moved_names.GoneModuleError(
            f"No module named {name!r}",
            code="tensorflow/removed-name",
            found=_never_had(name),
            hint=_did_you_mean(name.rpartition(".")[2], packages()) if name.count(".") == 2 else _UNKNOWN,
        )
        error.name = name
        raise error
    created = Contrib(name)
    created.__spec__ = importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)
    created.__loader__ = created.__spec__.loader
    sys.modules[name] = created
    return created


def is_below(name: str) -> bool:
    """Whether a module is tf.contrib or TensorFlow's examples, or below them."""
    return f"{name}.".startswith((f"{ROOT}.", f"{EXAMPLES}."))


def _below(name: str) -> str:
    """Return the name in the table: `"tensorflow.contrib.layers"` -> `"layers"`."""
    return f"{name}.".removeprefix(f"{PACKAGE}.").removeprefix("tensorflow.").removeprefix("contrib.").strip(".")


def has_module(name: str) -> bool:
    """Whether tf.contrib has a module, such as `"tensorflow.contrib.layers"`."""
    if name == ROOT:
        return True
    below = _below(name)
    if below in modules_of_old() or below in names().modules or names().is_above(below):
        return True
    if below.split(".")[0] not in modules_of_old():
        return False
    old = name.replace(PACKAGE, ROOT, 1)
    if old in _moved() or old in _moved().packages:
        return True
    return any(_is_module(home) for home in names().homes_of(below))


def install() -> None:
    """Install the finder, so that every importer can `import tensorflow.contrib.x`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not (is_below(fullname) or fullname.startswith(f"{PACKAGE}.")) or not has_module(fullname):
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _looked_up(package: str, name: str) -> Any:
    """Return the object of `contrib.PACKAGE.NAME`, or _NOWHERE."""
    for home, new in names().rows.get(package, {}).get(name, ()):
        value = _attribute(home, new)
        if value is not _NOWHERE:
            return value
    for home in names().homes_of(package):
        value = _attribute(home, name)
        if value is not _NOWHERE:
            return value
    for home, new in _moved()[f"{ROOT}.{package}"].homes.get(name, ()):
        value = _attribute(home, new)
        if value is not _NOWHERE:
            return value
    return _NOWHERE


def _attribute(home: str, name: str) -> Any:
    parent = _home(home)
    if parent is None:
        return _NOWHERE
    listed = getattr(parent, "__all__", None) if home.startswith("@") else None
    if listed is not None and name not in listed:
        return _NOWHERE
    value = getattr(parent, name, _NOWHERE)
    if value is _NOWHERE and not home.startswith(("v1", "v2", "@")) and _is_module(f"{home}.{name}"):
        return importlib.import_module(_full(f"{home}.{name}"))
    return value


def _home(home: str) -> Any:
    """Return the module of a HOME of the table, or None if it does not exist."""
    version, _, below = home.partition(".")
    if version in ("v1", "v2"):
        tf = sys.modules["tensorflow"]
        value: Any = tf.compat.v1 if version == "v1" else tf
        for part in filter(None, below.split(".")):
            value = getattr(value, part, None)
        return value
    try:
        return importlib.import_module(_full(home))
    except ModuleNotFoundError as error:
        if error.name is not None and f"{_full(home)}.".startswith(f"{error.name}."):
            return None
        raise


def _full(home: str) -> str:
    if home.startswith("@"):
        return f"{__name__}.{home[1:]}"
    return f"{moved_names.ROOT}{home}" if home.startswith(".") else home


def _is_module(home: str) -> bool:
    if home.startswith(("v1", "v2", "@")):
        return False
    try:
        return spec_of(_full(home)) is not None
    except CompatError:
        return False


_UNKNOWN = "remove it from the program, or correct its name"


def _gone(package: str, name: str, *, imported: bool, obj: ModuleType) -> CompatError:
    """Return the error for a name without a replacement, of the type that fits the statement."""
    from estimator_pipeline.compat.moved_names import suggestions

    full = f"{package}.{name}" if package else name
    shown = full if full.startswith("examples.") else f"contrib.{full}"
    message, first = f"tf.{shown} is not available", package.split(".")[0]
    slim = any(home.split(".")[0] == _SLIM for home in names().homes_of(package)) and spec_of(_SLIM) is None
    if not package:
        message, hint = _never_had(f"{ROOT}.{name}"), _did_you_mean(name, packages())
    elif name not in public_names().get(package, (name,)):
        message = f"TensorFlow 1.15's tf.contrib.{package} has no {name}"
        hint = _did_you_mean(name, public_names()[package])
    elif slim:
        hint = "pip install tf-slim"
    elif first in modules_of_old() - _OLDER and not files.installed():
        hint = f"estimator-pipeline contrib install installs TensorFlow {files.VERSION}'s files of tf.contrib"
    else:
        hint = suggestions.of_contrib(full)
    kind: type[CompatError] = moved_names.GoneImportError if imported else moved_names.GoneNameError
    error = kind(message, code="tensorflow/removed-name", hint=hint)
    error.name = name  # type: ignore[attr-defined]
    if imported:
        error.path = None  # type: ignore[attr-defined]
    else:
        error.obj = obj  # type: ignore[attr-defined]
    return error


def _never_had(name: str) -> str:
    """Return the sentence for a module that no TensorFlow 1 had: `"tensorflow.contrib.nothing"`."""
    above, _, last = name.removeprefix("tensorflow.").rpartition(".")
    return f"tf.{above} never had {last}"


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, cutoff=0.75)
    return f"did you mean {close[0]!r}?" if close else _UNKNOWN
