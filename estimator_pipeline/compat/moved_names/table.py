"""Names of `tensorflow.python` that moved, looked up where they are today, by whoever asks for them at the old place.

Libraries for tf.estimator import private names. Of those that TensorFlow 1.15 to 2.15 had, some five thousand are no
longer where they were. The table `moved_names.txt` says where each is now; `tools/moved_names` writes it, by comparing
the trees of all versions. Here it is put to use:

- a module that is gone is imported as the module of today, where it is one, else as an empty one that knows its names;
- the same goes for packages of tf.contrib, of which little has a home;
- a name that a module has lost is looked up by the module's `__getattr__`, on first use, and is the object of today;
- what has no successor gets one error that says since when it is gone. It is an ImportError or AttributeError as ever,
  so that a program's own `try` and `except` choose as they did.

Nothing that is there is replaced, and nothing is imported before it is asked for. The table is read when the first name
is looked up, save for the names of the modules.

Private use: names of the table, and `tf_keras.legacy_tf_layers`, which TensorFlow's own `python.layers` asks for by
that old name on every version.
"""

from __future__ import annotations

import dis
import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator_pipeline.compat.bootstrap import import_aliases as aliases
from estimator_pipeline.compat.bootstrap import versions
from estimator_pipeline.errors import CompatError

__all__ = [
    "GoneImportError",
    "GoneModuleError",
    "GoneNameError",
    "MovedName",
    "MovedNamesTable",
    "install",
    "installed",
    "is_from_import",
    "read",
    "used",
]

FILE = Path(__file__).with_name("moved_names.txt")
ROOT = "tensorflow.python"
# Of it, only what was another package's then, or is today. As an attribute, `tf.contrib`, it is not there before
# somebody has imported it: programs tell TensorFlow 1 by it.
CONTRIB = "tensorflow.contrib"
_LAYERS = "tf_keras.legacy_tf_layers"
_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


class GoneNameError(CompatError, AttributeError):
    """A name that TensorFlow no longer has, and that nothing stands for."""


class GoneImportError(CompatError, ImportError):
    """The same, where `from MODULE import NAME` asked for it."""


class GoneModuleError(CompatError, ModuleNotFoundError):
    """A module that TensorFlow no longer has, and that nothing stands for."""


@dataclass(frozen=True)
class MovedName:
    """What the table says of one module of old.

    Attributes:
        whole: the module of today that it is, None where its names are in several, or where it is still there.
        since: the first TensorFlow without the module (where `whole` is given), or without the first of its names.
        homes: name -> (module, name) of today, in the order in which they are tried.
        gone: name -> the first TensorFlow without it, of names without a successor.
    """

    whole: str | None = None
    since: str = ""
    homes: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)


class MovedNamesTable:
    """The table of a file: module of old -> :class:`MovedName`. A line is taken apart when its module is asked for.

    Args:
        text: of the file.
        keras: the package that `tf.keras` is in this process, by which `keras` in the file is meant.
    """

    def __init__(self, text: str, *, keras: str = "tf_keras.src") -> None:
        self._keras = keras
        self._lines: dict[str, list[str]] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                module, _, rest = line.partition(" ")
                self._lines.setdefault(self._full(module), []).append(rest)
        self._entries: dict[str, MovedName] = {}
        # What lies above a module that is gone may be gone as well: an empty package then.
        self.packages = {
            ".".join(parts[:depth])
            for parts in (module.split(".") for module in self._lines)
            for depth in range(2, len(parts))
        }

    def __contains__(self, module: str) -> bool:
        return module in self._lines

    def __iter__(self):
        return iter(self._lines)

    def __getitem__(self, module: str) -> MovedName:
        """An empty entry for a module that is not in the table."""
        if module not in self._entries:
            self._entries[module] = self._read(self._lines.get(module, []))
        return self._entries[module]

    def is_gone(self, module: str) -> bool:
        """Whether a module that this TensorFlow does not have is neither another one today nor knows a name."""
        entry = self[module]
        return module in self and not (entry.whole or entry.homes or module in self.packages)

    def _full(self, module: str) -> str:
        if module.startswith("."):
            return ROOT + (module if len(module) > 1 else "")
        return self._keras + module[len("keras") :] if module == "keras" or module.startswith("keras.") else module

    def _read(self, lines: list[str]) -> MovedName:
        whole, since = None, ""
        homes: dict[str, list[tuple[str, str]]] = {}
        gone: dict[str, str] = {}
        for line in lines:
            first, what, *words = line.split(" ")
            since = since or first
            if what == "=":
                whole = self._full(words[0])
            elif what == ">":
                home = self._full(words[0])
                for word in words[1:]:
                    old, _, new = word.partition("=")
                    homes.setdefault(old, []).append((home, new or old))
            else:
                gone |= dict.fromkeys(words, first)
        return MovedName(whole, since, {name: tuple(places) for name, places in homes.items()}, gone)


_lock = threading.Lock()
_used: dict[str, str] = {}


def used() -> dict[str, str]:
    """Old name -> where it is today, of all that this process has asked for by an old name."""
    with _lock:
        return dict(sorted(_used.items()))


def _note(old: str, new: str) -> None:
    with _lock:
        _used.setdefault(old, new)


def install() -> MovedNamesTable:
    """Puts the table to use in this process, in which TensorFlow has been imported. Returns it."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder.table
    table, keras = read(), f"{_keras_package()}.src"
    for name in {*table, *table.packages}:
        module = sys.modules.get(name)
        if module is not None:
            _teach(module, name, table)
    # First: a package's `__path__` would lead the ordinary finder to a second copy of what lies below it.
    sys.meta_path.insert(0, _Finder(table, keras))
    return table


def installed() -> bool:
    """Whether :func:`install` was called in this process."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def read() -> MovedNamesTable:
    """The table as it is for this process. TensorFlow has been imported."""
    return MovedNamesTable(FILE.read_text(encoding="utf-8"), keras=f"{_keras_package()}.src")


def _keras_package() -> str:
    """What `tf.keras` is: on 2.15 that need not be tf_keras."""
    return sys.modules["tensorflow"].keras.layers.Layer.__module__.split(".")[0]


def _teach(module: types.ModuleType, old: str, table: MovedNamesTable) -> None:
    """Has a module look up the names that the table has for `old`, after those that it has itself."""
    known: list[str] | None = module.__dict__.get("__moved_names__")
    if known is not None:
        if old not in known:
            known.append(old)
        return
    olds = [old]
    own: Callable[[str], Any] | None = module.__dict__.get("__getattr__")

    def __getattr__(name: str) -> Any:
        if not name.startswith("__"):
            for place in olds:
                value = _looked_up(table[place], place, name)
                if value is not _NOWHERE:
                    return module.__dict__.setdefault(name, value)
        if own is not None:
            return own(name)
        for place in olds:
            if name in table[place].gone:
                raise _gone(place, name, table[place].gone[name])
            if table.is_gone(f"{place}.{name}") and is_from_import(sys._getframe(1)):
                # The import system has looked for the module, and keeps what it heard to itself.
                raise _gone(place, name, table[f"{place}.{name}"].since)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)

    module.__dict__.update(__moved_names__=olds, __getattr__=__getattr__)


_NOWHERE = object()


def _looked_up(entry: MovedName, old: str, name: str) -> Any:
    for home, new in entry.homes.get(name, ()):
        try:
            module = importlib.import_module(home)
        except ImportError:
            continue
        value = getattr(module, new, _NOWHERE)
        if value is not _NOWHERE:
            _note(f"{old}.{name}", f"{home}.{new}")
            return value
    return _NOWHERE


def _gone(module: str, name: str, since: str) -> CompatError:
    """The error of a name without a successor, of the kind that the asking statement is prepared for."""
    what = f"{module}.{name} is gone since TensorFlow {since}, and nothing stands for it"
    hint = _hint(since)
    # `from module import name` turns an AttributeError into a message of its own, and lets an ImportError through.
    if is_from_import(sys._getframe(2)):
        error: CompatError = GoneImportError(what, code="tensorflow/removed-name", hint=hint)
        error.path = None  # type: ignore[attr-defined]
    else:
        error = GoneNameError(what, code="tensorflow/removed-name", hint=hint)
        error.obj = sys.modules.get(module)  # type: ignore[attr-defined]
    error.name = name  # type: ignore[attr-defined]
    return error


def _hint(since: str) -> str:
    major, minor = map(int, since.split("."))
    before = f", or run the program on TensorFlow {major}.{minor - 1}" if (major, minor) > versions.OLDEST else ""
    return f"take it out of the program{before}"


def is_from_import(frame: types.FrameType) -> bool:
    """Whether the statement at which a frame stands is `from … import …`, behind the import itself."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return 0 <= at < len(code) and code[at] == _IMPORT_FROM


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of the table, and of `tf_keras.legacy_tf_layers`; answers for nothing else."""

    def __init__(self, table: MovedNamesTable, keras: str) -> None:
        self.table = table
        self.layers = f"{keras}.legacy_tf_layers"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == _LAYERS or fullname.startswith(_LAYERS + "."):
            return _alias(fullname, self.layers + fullname[len(_LAYERS) :])
        if not f"{fullname}.".startswith((f"{ROOT}.", f"{CONTRIB}.")):
            return None
        if fullname not in self.table and fullname not in self.table.packages:
            return self._below_an_alias(fullname)
        found = self._there(fullname, path)
        if found is not None:
            if found.loader is not None:
                found.loader = _TeachingLoader(found.loader, self.table)
            return found
        entry = self.table[fullname]
        if entry.whole is not None:
            found = _alias(fullname, entry.whole, self.table)
            if found is not None:
                return found
        package = fullname in self.table.packages
        if entry.homes or package:
            return importlib.machinery.ModuleSpec(fullname, _NamesLoader(self.table), is_package=package)
        error = GoneModuleError(
            f"the module {fullname} is gone since TensorFlow {entry.since}, and nothing stands for it",
            code="tensorflow/removed-name",
            hint=_hint(entry.since),
        )
        error.name = fullname
        raise error

    def _there(self, fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """The module itself, where this TensorFlow has it."""
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if parent is not None and parent.__name__ != fullname.rpartition(".")[0]:
            return None  # below another module's old name: its path leads to what must not be loaded twice
        return importlib.machinery.PathFinder.find_spec(fullname, path)

    def _below_an_alias(self, fullname: str) -> importlib.machinery.ModuleSpec | None:
        above, _, name = fullname.rpartition(".")
        parent = sys.modules.get(above)
        if parent is None or parent.__name__ == above or above not in self.table:
            return None
        return _alias(fullname, f"{parent.__name__}.{name}")


def _alias(old: str, home: str, table: MovedNamesTable | None = None) -> importlib.machinery.ModuleSpec | None:
    spec = aliases.spec_of(home)
    if spec is None:
        return None
    loader = _AliasLoader(old, home, table)
    return importlib.machinery.ModuleSpec(old, loader, is_package=spec.submodule_search_locations is not None)


class _AliasLoader(aliases.AliasLoader):
    """The module of today itself, which learns the names that only the old one had."""

    def __init__(self, old: str, home: str, table: MovedNamesTable | None) -> None:
        super().__init__(home)
        self.old, self.table = old, table

    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        _note(self.old, self.target)
        if self.table is not None:
            _teach(module, self.old, self.table)


class _NamesLoader(importlib.abc.Loader):
    """A module with nothing but the names of the table."""

    def __init__(self, table: MovedNamesTable) -> None:
        self.table = table

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        _teach(module, module.__name__, self.table)


class _TeachingLoader(importlib.abc.Loader):
    """A module's own loader, after which the module learns the names that it has lost."""

    def __init__(self, own: importlib.abc.Loader, table: MovedNamesTable) -> None:
        self.own, self.table = own, table

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # As it would be without us, for whoever asks the module for its source or resources.
        module.__loader__ = self.own
        if module.__spec__ is not None:
            module.__spec__.loader = self.own
        self.own.exec_module(module)
        _teach(module, module.__name__, self.table)
