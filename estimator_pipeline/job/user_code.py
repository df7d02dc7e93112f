"""Loading and calling of user functions: "package.module:function" or "path/to/file.py:function".

A file is loaded as `python FILE.py` would run it. Its folder is first on the import path, so that it can import the
files beside it; the folder remains there, because functions may import when they are called. Modules are searched in
the working directory, too. Errors in user code are reported with file and line, without a traceback.
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
from estimator_pipeline.utils.process_state import STATE

__all__ = [
    "call_function",
    "describe_error",
    "describe_type",
    "load_function",
    "own_code",
    "place_in",
    "refusal_in",
    "require_no_arguments",
]

# Marks of an operation in TensorFlow's messages, and of the stack from the tracing of a function.
_OPERATION, _TRACED = "[[{{node", "in user code:"
# A line of such a stack.
_FRAME = re.compile(r'File "(.+)", line (\d+)')


def load_function(reference: str, *, field: str) -> Callable[..., Any]:
    """Load a function from "package.module:function" or "path/to/file.py:function".

    Args:
        reference: The module or file and the function; a relative path starts at the working directory.
        field: The field or option of the reference, for messages.

    Raises:
        ConfigError: The module, file or function does not exist, or the module cannot be loaded.
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
    loaded: Callable[..., Any] = function
    return loaded


def require_no_arguments(function: Callable[..., Any], *, reference: str, field: str) -> None:
    """Reject a function that cannot be called without arguments.

    Args:
        function: From `load_function`.
        reference: The reference to the function.
        field: The field or option of the reference.

    Raises:
        ConfigError: The function requires arguments.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(
            f"{field}: {reference} is called without arguments: {error}",
            code="job/bad-function",
            found=f"{reference.rpartition(':')[2]}{inspect.signature(function)}",
            hint="give each parameter a default, or name a function without parameters",
        ) from error
    except ValueError:
        pass  # a function in C without a known signature


def call_function(function: Callable[..., Any], *, reference: str, field: str) -> Any:
    """Call a user function without arguments; report its errors with file and line.

    Args:
        function: From `load_function`.
        reference: The reference to the function.
        field: The field or option of the reference.

    Raises:
        ConfigError: The function requires arguments, or raises.
    """
    require_no_arguments(function, reference=reference, field=field)
    with own_code(f"{field}: {reference}"):
        return function()


@contextlib.contextmanager
def own_code(
    name: str,
    *,
    kind: Callable[[Exception], type[PipelineError]] | None = None,
    code: str = "job/bad-function",
    fails: Callable[[], str] = lambda: "fails",
    hint: str = "correct it there",
) -> Iterator[None]:
    """Run a block of user code, and report its errors with file and line.

    Args:
        name: Name of the code in messages.
        kind: Returns the class of the error for an exception; None for ConfigError.
        code: The error code.
        fails: Returns the verb of the message, such as "fails"; called after a failure.
        hint: The hint of the error.

    Raises:
        ConfigError: The block has raised; or the error of `kind`.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        error_class = ConfigError if kind is None else kind(error)
        message = f"{name} {fails()}: {describe_error(error)}"
        raise error_class(message, code=code, found=place_in(error), hint=hint) from error


def describe_error(error: BaseException) -> str:
    """Return an exception in one line: its type and the start of its message; see `error_lines.described`."""
    return described(type(error).__name__, str(error))


def refusal_in(error: BaseException) -> ConfigError | None:
    """Return the ConfigError that AutoGraph has wrapped, as it does with errors of unknown constructors."""
    inner = error.__context__
    while inner is not None and _TRACED in str(error) and not isinstance(inner, ConfigError):
        inner = inner.__context__
    return inner if isinstance(inner, ConfigError) and _TRACED in str(error) else None


def describe_type(value: Any) -> str:
    """Return the type of a value with an article: "a list", "an Estimator"; "nothing" for None."""
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def place_in(error: BaseException) -> str | None:
    """Return the file and line of user code that raised an exception, or None.

    It is the last line that belongs neither to this package nor to an installed library. For an exception of an
    operation, or of the tracing of a function, the stack is in TensorFlow's message.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}" + (f": {error.text.strip()}" if error.text else "")
    message = str(error)
    if any(mark in message for mark in (_OPERATION, _TRACED)):
        inner = [(file, line) for file, line in _FRAME.findall(message) if not _is_installed(file)]
        if inner:
            return f"{inner[-1][0]}, line {inner[-1][1]}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_installed(frame.filename)]
    if not frames:
        return None
    last = frames[-1]
    return f"{last.filename}, line {last.lineno}" + (f": {last.line}" if last.line else "")


def _is_installed(filename: str) -> bool:
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # AutoGraph's generated files are temporary; TensorFlow's message names the original file.
    libraries = ("site-packages", "dist-packages", "__autograph_generated_file")
    return filename.startswith(("<", os.path.dirname(os.__file__), ours)) or any(part in filename for part in libraries)


def _file(where: str, *, field: str) -> ModuleType:
    if not os.path.isfile(where):
        reason = "is not a file" if os.path.exists(where) else "does not exist"
        raise ConfigError(
            f"{field}: the file {where!r} {reason}", code="job/bad-function", found=f"working directory {os.getcwd()}"
        )
    path = os.path.realpath(where)
    status = os.stat(path)
    stamp = (status.st_mtime_ns, status.st_size)
    known = STATE.user_modules.get(path)
    folder, stem = os.path.dirname(path), os.path.splitext(os.path.basename(path))[0]
    _come_first(folder)
    if known is not None and known[0] == stamp:
        return known[1]
    claimed = _claim_beside(path, field=field)
    there = sys.modules.get(stem)
    # If a different file or a library has this name, the file gets a distinct name, under which its classes are found.
    name = stem if there is None or _file_of(there) == path else f"{stem} of {folder}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _LoadErrors(where, field=field):
            spec.loader.exec_module(module)
    except BaseException:
        # Remove the incomplete module.
        sys.modules.pop(name, None)
        if there is not None and name == stem:
            sys.modules[name] = there
        raise
    STATE.user_modules[path] = stamp, module
    STATE.user_imports.update(claimed)
    return module


def _module(where: str, *, field: str) -> ModuleType:
    # `python` searches the working directory, where programs usually are; an installed command does not.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with _LoadErrors(where, field=field):
            return importlib.import_module(where)
    except ConfigError as failure:
        error = failure.__cause__
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if not missing or not (where == error.name or where.startswith(f"{error.name}.")):  # type: ignore[union-attr]
            raise
        raise ConfigError(
            f"{field}: the module {where!r} cannot be found",
            code="job/bad-function",
            found=f"working directory {os.getcwd()}",
            hint="install it, start the job in its folder, or write path/to/file.py:function",
        ) from error


class _LoadErrors:
    """A context manager that reports the errors of loading user code as one message."""

    def __init__(self, where: str, *, field: str) -> None:
        self._where, self._field = where, field

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, SystemExit):
            raise ConfigError(
                f"{self._field}: {self._where} exits the process when it is loaded",
                code="job/bad-function",
                found=place_in(error),
                hint='move the code of the program under `if __name__ == "__main__":`',
            ) from error
        if not isinstance(error, Exception) or isinstance(error, PipelineError):
            return
        import_failed = isinstance(error, ImportError)
        raise ConfigError(
            f"{self._field}: {self._where} cannot be loaded: {describe_error(error)}",
            code="job/bad-function",
            found=place_in(error),
            hint="install what it imports, or put it beside the file" if import_failed else "correct it there",
        ) from error


def _come_first(folder: str) -> None:
    if sys.path[:1] != [folder]:
        # Moved, not inserted again: functions of two folders are often loaded in turn.
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]


def _claim_beside(path: str, *, field: str) -> dict[str, str]:
    """Reject a file that imports a module from its folder if a different module of that name is loaded.

    A process has one module of each name. The second file would silently use the module of the first.
    """
    claimed = dict(_imported_beside(path, set()))
    for name, lies in claimed.items():
        there = sys.modules.get(name)
        other = _file_of(there) if there is not None else STATE.user_imports.get(name)
        if other is not None and other != lies:
            raise ConfigError(
                f"{field}: {path} imports {name!r}, and a different module of that name is loaded",
                code="job/bad-function",
                found=f"beside it {lies}; loaded {other}",
                hint="rename one of the two, or put each into a separate package",
            )
    return claimed


def _imported_beside(path: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, path) of the modules that a file imports from its folder, recursively."""
    seen.add(path)
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return  # loading the file reports the error
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
