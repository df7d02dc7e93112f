"""Resolution of names of `tensorflow.python` that moved, from their old names.

Libraries for tf.estimator import private names. Some five thousand of those in TensorFlow 1.15 to 2.15 have moved or
were removed. The table `moved_names.txt` has the new name of each; `tools/moved_names` writes it by comparing all
versions. The table is used as follows:

- a removed module is imported as its successor, if it has one, or as an empty module that resolves its names;
- packages of tf.contrib, of which little has a successor, are handled in the same way;
- the `__getattr__` of a module resolves a missing name on first use, to the current object;
- a name without a successor raises an error with the version that removed it. It is an ImportError or AttributeError as
  before, so that a program's `try` and `except` work.

Existing names are not replaced, and nothing is imported before it is used. Except for the names of modules, the table
is parsed when the first name is looked up.

Private use: names of the table, and `tf_keras.legacy_tf_layers`, which TensorFlow's `python.layers` imports by that old
name on every version.
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
# Only names that belonged to a different package, or do so now. The attribute `tf.contrib` exists only after an import
# of the package: programs detect TensorFlow 1 by it.
CONTRIB = "tensorflow.contrib"
_LAYERS = "tf_keras.legacy_tf_layers"
_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


class GoneNameError(CompatError, AttributeError):
    """Raised for a name that TensorFlow removed without a replacement."""


class GoneImportError(CompatError, ImportError):
    """Raised for such a name by `from MODULE import NAME`."""


class GoneModuleError(CompatError, ModuleNotFoundError):
    """Raised for a module that TensorFlow removed without a replacement."""


@dataclass(frozen=True)
class MovedName:
    """The table's entry of an old module.

    Attributes:
        whole: The new module; None if its names are in several modules, or if the module still exists.
        since: The first TensorFlow version without the module (if `whole` is set), or without the first of its names.
        homes: Name -> new (module, name) pairs, in the order in which they are tried.
        gone: Name -> the first TensorFlow version without it, for names without a successor.
    """

    whole: str | None = None
    since: str = ""
    homes: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)


class MovedNamesTable:
    """The parsed table: old module -> `MovedName`. A line is parsed when its module is looked up.

    Args:
        text: The text of the file.
        keras: The package that is `tf.keras` in this process, for which the file has `keras`.
    """

    def __init__(self, text: str, *, keras: str = "tf_keras.src") -> None:
        self._keras = keras
        self._lines: dict[str, list[str]] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                module, _, rest = line.partition(" ")
                self._lines.setdefault(self._full(module), []).append(rest)
        self._entries: dict[str, MovedName] = {}
        # The parent of a removed module may be removed too; it becomes an empty package.
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
        """Return the entry of a module; an empty entry if the table has none."""
        if module not in self._entries:
            self._entries[module] = self._read(self._lines.get(module, []))
        return self._entries[module]

    def is_gone(self, module: str) -> bool:
        """Whether a removed module has neither a successor nor names with successors."""
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
            first, mark, *words = line.split(" ")
            since = since or first
            if mark == "=":
                whole = self._full(words[0])
            elif mark == ">":
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
    """Return the new names of all names that this process has used by an old name."""
    with _lock:
        return dict(sorted(_used.items()))


def _note(old: str, new: str) -> None:
    with _lock:
        _used.setdefault(old, new)


def install() -> MovedNamesTable:
    """Install and return the table in this process, after TensorFlow was imported."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder.table
    table, keras = read(), f"{_keras_package()}.src"
    for name in {*table, *table.packages}:
        module = sys.modules.get(name)
        if module is not None:
            _teach(module, name, table)
    # First in the list: by a package's `__path__` the ordinary finder would load second copies of its modules.
    sys.meta_path.insert(0, _Finder(table, keras))
    return table


def installed() -> bool:
    """Whether `install` was called in this process."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def read() -> MovedNamesTable:
    """Read the table for this process, in which TensorFlow has been imported."""
    return MovedNamesTable(FILE.read_text(encoding="utf-8"), keras=f"{_keras_package()}.src")


def _keras_package() -> str:
    """Return the package that is `tf.keras`: keras or, not always on 2.15, tf_keras."""
    return sys.modules["tensorflow"].keras.layers.Layer.__module__.split(".")[0]


def _teach(module: types.ModuleType, old: str, table: MovedNamesTable) -> None:
    """Let a module resolve the table's names of `old` that it does not have itself."""
    known: list[str] | None = module.__dict__.get("__moved_names__")
    if known is not None:
        if old not in known:
            known.append(old)
        return
    olds = [old]
    original: Callable[[str], Any] | None = module.__dict__.get("__getattr__")

    def __getattr__(name: str) -> Any:
        if not name.startswith("__"):
            for place in olds:
                value = _looked_up(table[place], place, name)
                if value is not _NOWHERE:
                    return module.__dict__.setdefault(name, value)
        if original is not None:
            return original(name)
        for place in olds:
            if name in table[place].gone:
                raise _gone(place, name, table[place].gone[name])
            if table.is_gone(f"{place}.{name}") and is_from_import(sys._getframe(1)):
                # The import system has tried the submodule, and suppressed its error.
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
    """Return the error for a name without a successor, of the type that fits the statement."""
    message = f"{module}.{name} is gone since TensorFlow {since}, and has no replacement"
    hint = _hint(since)
    # `from module import name` replaces an AttributeError by a generic error, but not an ImportError.
    if is_from_import(sys._getframe(2)):
        error: CompatError = GoneImportError(message, code="tensorflow/removed-name", hint=hint)
        error.path = None  # type: ignore[attr-defined]
    else:
        error = GoneNameError(message, code="tensorflow/removed-name", hint=hint)
        error.obj = sys.modules.get(module)  # type: ignore[attr-defined]
    error.name = name  # type: ignore[attr-defined]
    return error


def _hint(since: str) -> str:
    major, minor = map(int, since.split("."))
    before = f", or run the program on TensorFlow {major}.{minor - 1}" if (major, minor) > versions.OLDEST else ""
    return f"remove it from the program{before}"


def is_from_import(frame: types.FrameType) -> bool:
    """Whether a frame is at the name look-up of a `from … import …` statement."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return 0 <= at < len(code) and code[at] == _IMPORT_FROM


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of the modules of the table and of `tf_keras.legacy_tf_layers` only."""

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
        spec = self._there(fullname, path)
        if spec is not None:
            if spec.loader is not None:
                spec.loader = _TeachingLoader(spec.loader, self.table)
            return spec
        entry = self.table[fullname]
        if entry.whole is not None:
            spec = _alias(fullname, entry.whole, self.table)
            if spec is not None:
                return spec
        package = fullname in self.table.packages
        if entry.homes or package:
            return importlib.machinery.ModuleSpec(fullname, _NamesLoader(self.table), is_package=package)
        error = GoneModuleError(
            f"the module {fullname} is gone since TensorFlow {entry.since}, and has no replacement",
            code="tensorflow/removed-name",
            hint=_hint(entry.since),
        )
        error.name = fullname
        raise error

    def _there(self, fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the module, if this TensorFlow has it."""
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if parent is not None and parent.__name__ != fullname.rpartition(".")[0]:
            return None  # the parent is an alias, and its path would load modules twice
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
    """Loads the successor of a module, which then also resolves the names of the old one."""

    def __init__(self, old: str, home: str, table: MovedNamesTable | None) -> None:
        super().__init__(home)
        self.old, self.table = old, table

    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        _note(self.old, self.target)
        if self.table is not None:
            _teach(module, self.old, self.table)


class _NamesLoader(importlib.abc.Loader):
    """Loads a module that has only the names of the table."""

    def __init__(self, table: MovedNamesTable) -> None:
        self.table = table

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        _teach(module, module.__name__, self.table)


class _TeachingLoader(importlib.abc.Loader):
    """Loads a module with its original loader, and then lets it resolve removed names."""

    def __init__(self, original: importlib.abc.Loader, table: MovedNamesTable) -> None:
        self.original, self.table = original, table

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.original.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # Restored, for code that reads the module's source or resources.
        module.__loader__ = self.original
        if module.__spec__ is not None:
            module.__spec__.loader = self.original
        self.original.exec_module(module)
        _teach(module, module.__name__, self.table)
