"""Resolution of imports to the files of a code base, from file paths only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

__all__ = ["Modules", "within"]

_OUTSIDE = ("tensorflow", "tensorflow_estimator", "tensorflow_core", "keras", "tf_keras", "absl")


class Modules:
    """The modules of a code base by path without suffix; a folder is a module without a file.

    Args:
        paths: the paths of all files, relative to the root, with slashes.
        package: the name of the root folder, which imports may use as a package name.
    """

    def __init__(self, paths: Iterable[str], package: str = "") -> None:
        paths = list(paths)
        self.package = package
        self.files = {path.rsplit(".", 1)[0]: path for path in paths if path.endswith((".py", ".pyw"))}
        self._folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        # Without this index, each import would search all files of the repository.
        self._by_last: dict[str, list[str]] = {}
        for name in self.files:
            whole = name.removesuffix("/__init__")
            self._by_last.setdefault(whole.rpartition("/")[2], []).append(whole)
        self._known: dict[tuple[str, str, int], str | None] = {}

    def at(self, path: str) -> str | None:
        """Return the module or folder at a path, or None."""
        path = path.removeprefix("./")
        package = "__init__" if path in ("", ".") else f"{path}/__init__"
        for name in (path, package):
            if name in self.files:
                return name
        return path if path in self._folders else None

    def named(self, dotted: str, level: int, file: str) -> str | None:
        """Return the module that a file imports; "" for a missing relative one, None for one outside."""
        key = (file, dotted, level)
        if key not in self._known:
            self._known[key] = self._named(dotted, level, PurePosixPath(file))
        return self._known[key]

    def below(self, name: str) -> Iterator[str]:
        """Return all modules below a package or folder."""
        start = within(name, "")
        return (other for other in self.files if other.startswith(start) and other != name)

    def _named(self, dotted: str, level: int, file: PurePosixPath) -> str | None:
        here = file.parent
        parts = dotted.split(".") if dotted else []
        if level:
            for _ in range(level - 1):
                here = here.parent
            return self.at("/".join([*here.parts, *parts]) or ".") or ""
        if not parts or parts[0] in _OUTSIDE:
            return None
        for folder in (here, *here.parents):
            module = self._other("/".join([*folder.parts, *parts]), file)
            if module is not None:
                return module
        # A package in a subfolder: src/package. `import time` means the standard library.
        tail = "/" + "/".join(parts)
        named = () if parts[0] in sys.stdlib_module_names else self._by_last.get(parts[-1], ())
        fits = [name for name in named if name.endswith(tail)]
        if len(fits) == 1 and (module := self._other(fits[0], file)) is not None:
            return module
        return self.at("/".join(parts[1:])) if parts[0] == self.package else None

    def _other(self, path: str, file: PurePosixPath) -> str | None:
        """Return the module at a path; None for the file itself: `import plots` in plots.py is an installed package."""
        name = self.at(path)
        return None if self.files.get(name or "") == str(file) and file.stem != "__init__" else name


def within(path: str, name: str) -> str:
    """Return the path of a name within a package or a folder."""
    folder = "" if path == "__init__" else path.removesuffix("/__init__")
    return f"{folder}/{name}" if folder not in ("", ".") else name
