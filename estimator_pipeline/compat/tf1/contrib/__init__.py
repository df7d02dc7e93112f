"""`tf.contrib`, which TensorFlow 2.0 removed, for programs written for TensorFlow 1.

A name is looked up where it is today, when it is first used: `names.txt` says where. Most are TensorFlow's own or
tf-slim's; what has no home is written anew in the modules beside this one. What is nowhere raises an error that says
what helps. Every package of tf.contrib can be imported, and so can the modules below it (`contrib.x.python.y`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from estimator_pipeline.compat.bootstrap.import_aliases import spec_of
from estimator_pipeline.compat.moved_names import table as moved_names
from estimator_pipeline.compat.tf1.contrib import files
from estimator_pipeline.errors import CompatError

__all__ = ["EXAMPLES", "PACKAGE", "ROOT", "Contrib", "has_module", "install", "is_below", "module", "names", "packages"]

ROOT = "tensorflow.contrib"
# The same by an import of this package: compat/contrib.py.
PACKAGE = "estimator_pipeline.compat.contrib"
# What else TensorFlow 1 had in its package; in the table it begins with this word.
EXAMPLES = "tensorflow.examples"
_FILE = Path(__file__).with_name("names.txt")
_SLIM = "tf_slim"
# Packages that older releases had and 1.15 no longer has.
_OLDER = frozenset(("gan", "kfac", "lite", "nccl", "ndlstm"))
_NOWHERE = object()


class Names:
    """The table of `names.txt`.

    Attributes:
        homes: package below tf.contrib -> modules in which its names are looked up.
        rows: package -> name -> (module, name) of today.
    """

    def __init__(self, text: str) -> None:
        self.homes: dict[str, tuple[str, ...]] = {}
        self.rows: dict[str, dict[str, list[tuple[str, str]]]] = {}
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            package, what, *words = line.split(" ")
            if what == "=":
                self.homes[package] = tuple(words)
            else:
                home, *names = words
                rows = self.rows.setdefault(package, {})
                for name in names:
                    old, _, new = name.partition("=")
                    rows.setdefault(old, []).append((home, new or old))
        self.modules = {*self.homes, *self.rows}

    def homes_of(self, package: str) -> Iterator[str]:
        """The modules in which the names of a package or module below tf.contrib are looked up."""
        above = package
        while above:
            if above in self.homes:
                below = package[len(above) :]
                # What is beside this file has no modules below it.
                yield from (home + below for home in self.homes[above] if not below or not home.startswith("@"))
                return
            above = above.rpartition(".")[0]

    def is_above(self, package: str) -> bool:
        """Whether there is a row for something below it."""
        return any(each.startswith(package + ".") for each in self.modules)


@functools.cache
def names() -> Names:
    return Names(_FILE.read_text(encoding="utf-8"))


@functools.cache
def modules_of_old() -> frozenset[str]:
    """Every module of tf.contrib in TensorFlow 1.15, by its name below `tensorflow.contrib`."""
    found = set(_OLDER)
    for line in _FILE.with_name("modules.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            package, *modules = line.split(" ")
            found.update(modules if package == "." else (f"{package}.{each}" for each in modules))
    return frozenset(found)


def packages() -> list[str]:
    return sorted(name for name in modules_of_old() if "." not in name)


@functools.cache
def _moved() -> moved_names.MovedNamesTable:
    return moved_names.read()


class Contrib(ModuleType):
    """A package or module of tf.contrib, whose names are looked up when they are asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{name} of TensorFlow 1, by names: see estimator_pipeline.compat.tf1.contrib.")
        self.__path__: list[str] = []
        self.__file__ = str(_FILE)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        below, full = _below(self.__name__), f"{self.__name__}.{name}"
        value = module(full) if _below(full) in names().modules else _looked_up(below, name)
        if value is _NOWHERE:
            value = getattr(files.load(below), name, _NOWHERE)
        if value is _NOWHERE and has_module(full):
            value = module(full)
        if value is _NOWHERE and files.path_of(below) is None:
            # What a module of `contrib.x.python` defined, contrib.x has.
            above, found, _ = below.partition(".python")
            value = _looked_up(above, name) if found else _NOWHERE
        if value is _NOWHERE:
            raise _gone(below, name, imported=moved_names.is_from_import(sys._getframe(1)), obj=self)
        if not files.is_loading():
            # A package that is being loaded may yet define a name that one of its modules has.
            _own(self)[name] = value
        return value

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            # Whoever goes through a module's names, as AutoGraph does, gets all of them but those that fail.
            for each in dir(self):
                with contextlib.suppress(Exception):
                    getattr(self, each)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets each module on its package, where another thing may have the name.
        if not isinstance(value, Contrib):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        below = _below(self.__name__)
        found = {name for name in _own(self) if not name.startswith("_")} | set(names().rows.get(below, ()))
        if not below:
            found.update(packages())
        file = files.load(below)
        found.update(name for name in (vars(file) if file is not None else ()) if not name.startswith("_"))
        for home in names().homes_of(below):
            value = _home(home)
            if value is not None:
                found |= set(getattr(value, "__all__", ())) or {each for each in dir(value) if each[0] != "_"}
        return sorted(found)

    @property
    def __all__(self) -> list[str]:
        """For `from tensorflow.contrib.x import *`."""
        return dir(self)


def _own(module: Contrib) -> dict[str, Any]:
    """What has been looked up so far."""
    found: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return found


def module(name: str) -> ModuleType:
    """The module of tf.contrib with a name such as `"tensorflow.contrib.layers"`, imported when it must be.

    Raises:
        GoneModuleError: TensorFlow 1 had no such package.
    """
    found = sys.modules.get(name)
    if found is not None:
        return found
    if not has_module(name):
        error = moved_names.GoneModuleError(
            f"No module named {name!r}",
            code="tensorflow/removed-name",
            found=f"a program for TensorFlow 1 asks for it; the packages of tf.contrib are {', '.join(packages())}"
            if name.count(".") == 2
            else "a program for TensorFlow 1 asks for it",
            hint="see docs/guides/tf1.md",
        )
        error.name = name
        raise error
    found = Contrib(name)
    found.__spec__ = importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)
    found.__loader__ = found.__spec__.loader
    sys.modules[name] = found
    return found


def is_below(name: str) -> bool:
    """Whether a module's name is that of tf.contrib or of what is below it, or of TensorFlow's examples."""
    return f"{name}.".startswith((f"{ROOT}.", f"{EXAMPLES}."))


def _below(name: str) -> str:
    """`"tensorflow.contrib.layers"` -> `"layers"`, as the table has it."""
    return f"{name}.".removeprefix(f"{PACKAGE}.").removeprefix("tensorflow.").removeprefix("contrib.").strip(".")


def has_module(name: str) -> bool:
    """Whether there is a module of tf.contrib with a name such as `"tensorflow.contrib.layers"`."""
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
    """Has `import tensorflow.contrib.x` find it, whoever asks and however."""
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
    """The object of `contrib.PACKAGE.NAME`, or _NOWHERE."""
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
    """The module that a HOME of the table stands for, None where there is none."""
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


def _gone(package: str, name: str, *, imported: bool, obj: ModuleType) -> CompatError:
    """The error of a name that is nowhere, of the kind that the asking statement is prepared for."""
    from estimator_pipeline.compat.moved_names import suggestions

    full = f"{package}.{name}" if package else name
    what = full if full.startswith("examples.") else f"contrib.{full}"
    slim = any(home.split(".")[0] == _SLIM for home in names().homes_of(package)) and spec_of(_SLIM) is None
    if slim:
        hint = "pip install tf-slim"
    elif package.split(".")[0] in modules_of_old() and not files.installed():
        hint = f"estimator-pipeline contrib install brings TensorFlow {files.VERSION}'s own files of tf.contrib"
    else:
        hint = suggestions.of_contrib(full)
    kind: type[CompatError] = moved_names.GoneImportError if imported else moved_names.GoneNameError
    error = kind(f"tf.{what} is not there", code="tensorflow/removed-name", hint=hint)
    error.name = name  # type: ignore[attr-defined]
    if imported:
        error.path = None  # type: ignore[attr-defined]
    else:
        error.obj = obj  # type: ignore[attr-defined]
    return error
