"""Functions of one's own, by their place: "package.module:function" or "path/to/file.py:function".

A file is loaded as `python FILE.py` would run it: its folder comes first on the import path, so that it imports what
lies beside it, and stays there, for functions import when they are called. A module is looked for where the process was
started as well. What goes wrong in somebody's own code is told with its file and line, without a traceback.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import operator
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from estimator_pipeline.errors import ConfigError, PipelineError
from estimator_pipeline.progress.error_lines import described

__all__ = [
    "call_function",
    "load_function",
    "own_code",
    "place_in",
    "refusal_in",
    "require_no_arguments",
    "told",
    "type_told",
]

# How TensorFlow marks an operation in its messages, and a stack that it kept while it traced a function.
_OPERATION, _TRACED = "[[{{node", "in user code:"
# A line of such a stack.
_FRAME = re.compile(r'File "(.+)", line (\d+)')
# Path -> what it was when it was loaded (time and size), and the module: a program is run once, however many of its
# functions are named. One that was changed since is loaded anew.
_loaded: dict[str, tuple[tuple[int, int], ModuleType]] = {}
# Name of a module that lies beside a loaded file, and is imported by it -> where it lies.
_beside: dict[str, str] = {}


def load_function(reference: str, *, field: str) -> Callable[..., Any]:
    """The function behind "package.module:function" or "path/to/file.py:function".

    Args:
        reference: its place; a relative path begins at the working directory.
        field: the field or option that named it, for messages.

    Raises:
        ConfigError: no such module, file or function; or the module cannot be loaded, with the file and the line.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise ConfigError(
            f"{field}: {reference!r} does not name a function",
            code="job/bad-function",
            hint="write the module or file, a colon, and the function's name: path/to/file.py:function",
        )
    module = _file(where, field=field) if where.endswith(".py") else _module(where, field=field)
    try:
        function = operator.attrgetter(name)(module)
    except AttributeError:
        function = None
    if not callable(function):
        public = [n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_")]
        raise ConfigError(
            f"{field}: {where} has no function {name!r}",
            code="job/bad-function",
            found=f"functions: {', '.join(public) or 'none'}",
        )
    found: Callable[..., Any] = function
    return found


def require_no_arguments(function: Callable[..., Any], *, reference: str, field: str) -> None:
    """Refuses a function that cannot be called without arguments.

    Args:
        function: from :func:`load_function`.
        reference: its place.
        field: the field or option that named it.

    Raises:
        ConfigError: it wants arguments.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(
            f"{field}: {reference} is called without arguments: {error}",
            code="job/bad-function",
            found=f"{reference.rpartition(':')[2]}{inspect.signature(function)}",
            hint="give each parameter a default, or name a function without any",
        ) from error
    except ValueError:
        pass  # one written in C, whose parameters nobody knows


def call_function(function: Callable[..., Any], *, reference: str, field: str) -> Any:
    """Calls a function of one's own without arguments; what goes wrong in it is told with its file and line.

    Args:
        function: from :func:`load_function`.
        reference: its place.
        field: the field or option that named it.

    Raises:
        ConfigError: it wants arguments, or raises.
    """
    require_no_arguments(function, reference=reference, field=field)
    with own_code(f"{field}: {reference}"):
        return function()


@contextlib.contextmanager
def own_code(
    what: str,
    *,
    kind: Callable[[Exception], type[PipelineError]] | None = None,
    code: str = "job/bad-function",
    fails: Callable[[], str] = lambda: "fails",
    hint: str = "correct it there",
) -> Iterator[None]:
    """A block that runs somebody's own code: what goes wrong in it is told with its file and line.

    Args:
        what: how messages name it.
        kind: which error it is, told from the exception; None: bad input, whatever it was.
        code: the code of that error.
        fails: what messages say of it; asked for where it has failed.
        hint: what messages advise.

    Raises:
        ConfigError: the block has raised, or that which `kind` names.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        found = ConfigError if kind is None else kind(error)
        raise found(f"{what} {fails()}: {told(error)}", code=code, found=place_in(error), hint=hint) from error


def told(error: BaseException) -> str:
    """An exception in a line: its type, and what it says first; see :func:`error_lines.described`."""
    return described(type(error).__name__, str(error))


def refusal_in(error: BaseException) -> ConfigError | None:
    """The ConfigError that AutoGraph has made an error of its own of, as of any whose arguments it does not know."""
    inner = error.__context__
    while inner is not None and _TRACED in str(error) and not isinstance(inner, ConfigError):
        inner = inner.__context__
    return inner if isinstance(inner, ConfigError) and _TRACED in str(error) else None


def type_told(value: Any) -> str:
    """What a value is, in words: "a list", "an Estimator"; None is nothing."""
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def place_in(error: BaseException) -> str | None:
    """The file and line of somebody's own code at which an exception came up; None: there is none.

    The last line that is neither this package's nor an installed library's counts, for it is the one to look at. The
    stack of what came up in an operation, or while a function was traced, is in TensorFlow's message.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}" + (f": {error.text.strip()}" if error.text else "")
    said = str(error)
    if any(mark in said for mark in (_OPERATION, _TRACED)):
        inner = [(file, line) for file, line in _FRAME.findall(said) if not _is_installed(file)]
        if inner:
            return f"{inner[-1][0]}, line {inner[-1][1]}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_installed(frame.filename)]
    if not frames:
        return None
    last = frames[-1]
    return f"{last.filename}, line {last.lineno}" + (f": {last.line}" if last.line else "")


def _is_installed(filename: str) -> bool:
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # What autograph makes of a function is nobody's file; it is gone, and TensorFlow's message has the real one.
    libraries = ("site-packages", "dist-packages", "__autograph_generated_file")
    return filename.startswith(("<", os.path.dirname(os.__file__), ours)) or any(one in filename for one in libraries)


def _file(where: str, *, field: str) -> ModuleType:
    if not os.path.isfile(where):
        what = "is no file" if os.path.exists(where) else "does not exist"
        raise ConfigError(
            f"{field}: the file {where!r} {what}", code="job/bad-function", found=f"working directory {os.getcwd()}"
        )
    path = os.path.realpath(where)
    status = os.stat(path)
    stamp = (status.st_mtime_ns, status.st_size)
    known = _loaded.get(path)
    folder, stem = os.path.dirname(path), os.path.splitext(os.path.basename(path))[0]
    _come_first(folder)
    if known is not None and known[0] == stamp:
        return known[1]
    claimed = _claim_beside(path, field=field)
    there = sys.modules.get(stem)
    # Another file of this name, or a library: this one has a name of its own, by which its classes are found.
    name = stem if there is None or _file_of(there) == path else f"{stem} of {folder}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _Told(where, field=field):
            spec.loader.exec_module(module)
    except BaseException:
        # What is half loaded is nobody's module.
        sys.modules.pop(name, None)
        if there is not None and name == stem:
            sys.modules[name] = there
        raise
    _loaded[path] = stamp, module
    _beside.update(claimed)
    return module


def _module(where: str, *, field: str) -> ModuleType:
    # As `python` itself would find it: programs lie where the job is started. (An installed command's own folder is
    # first there, or nothing of the kind.)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with _Told(where, field=field):
            return importlib.import_module(where)
    except ConfigError as refused:
        error = refused.__cause__
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if not missing or not (where == error.name or where.startswith(f"{error.name}.")):  # type: ignore[union-attr]
            raise
        raise ConfigError(
            f"{field}: the module {where!r} cannot be found",
            code="job/bad-function",
            found=f"working directory {os.getcwd()}",
            hint="install it, or start the job where it lies, or write path/to/file.py:function",
        ) from error


class _Told:
    """A block that loads somebody's code: what it raises becomes one message."""

    def __init__(self, where: str, *, field: str) -> None:
        self._where, self._field = where, field

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, SystemExit):
            raise ConfigError(
                f"{self._field}: {self._where} ends the process when it is loaded",
                code="job/bad-function",
                found=place_in(error),
                hint='put what only the program itself does under `if __name__ == "__main__":`',
            ) from error
        if not isinstance(error, Exception) or isinstance(error, PipelineError):
            return
        lacking = isinstance(error, ImportError)
        raise ConfigError(
            f"{self._field}: {self._where} cannot be loaded: {told(error)}",
            code="job/bad-function",
            found=place_in(error),
            hint="install what it imports, or put it beside it" if lacking else "correct it there",
        ) from error


def _come_first(folder: str) -> None:
    if sys.path[:1] != [folder]:
        # In one place alone: it stays, and two functions are often loaded in turn.
        sys.path[:] = [folder, *(one for one in sys.path if one != folder)]


def _claim_beside(path: str, *, field: str) -> dict[str, str]:
    """Refuses a file that imports a module from beside it, where another module of that name is in its place.

    A process has one module of a name. The second file would silently work with what belongs to the first.
    """
    claimed = dict(_imported_beside(path, set()))
    for name, lies in claimed.items():
        there = sys.modules.get(name)
        other = _file_of(there) if there is not None else _beside.get(name)
        if other is not None and other != lies:
            raise ConfigError(
                f"{field}: {path} imports {name!r}, and another module of that name is loaded",
                code="job/bad-function",
                found=f"beside it {lies}; loaded {other}",
                hint="give one of the two another name, or put each into a package of its own",
            )
    return claimed


def _imported_beside(path: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """(name, path) of the modules in a file's folder that it imports, wherever in it, and these in turn."""
    seen.add(path)
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return  # whoever loads it tells what is wrong
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    folder = os.path.dirname(path)
    for name in sorted(names):
        for lies in (os.path.join(folder, f"{name}.py"), os.path.join(folder, name, "__init__.py")):
            if os.path.isfile(lies) and lies not in seen:
                yield name, os.path.realpath(lies)
                yield from _imported_beside(lies, seen)


def _file_of(module: ModuleType) -> str | None:
    path = getattr(module, "__file__", None)
    return os.path.realpath(path) if path else None
