"""Runs a legacy program unchanged under compat, the way `python` itself would run it.

What a program can see is kept: `sys.argv`, `sys.path[0]`, `__main__` with its `__file__`, the exit code, and
tracebacks that show the program's own lines and none of ours.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Callable, Sequence

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError


def run_script(path: str, args: Sequence[str] = ()) -> int:
    """Runs a file (or a directory or zip file with a `__main__.py`) as `python path args…`.

    Returns:
        The exit code that the process should end with.

    Raises:
        ConfigError: there is no such file.
    """
    if not os.path.exists(path):
        raise ConfigError(
            f"the program {path!r} does not exist",
            found=f"working directory {os.getcwd()}",
            mend="give the path of a Python file, or -m MODULE for an importable module",
        )
    compat.install()
    sys.argv = [path, *args]
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        return _guarded(lambda: runpy.run_path(path, run_name="__main__"))
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    return _guarded(lambda: _exec_file(path))


def run_module(name: str, args: Sequence[str] = ()) -> int:
    """Runs an importable module or package as `python -m name args…`. Returns the exit code."""
    compat.install()
    sys.argv = [name, *args]
    sys.path[0] = os.getcwd()
    # The function behind `python -m` itself: unlike `run_module` it leaves `__main__` in place afterwards, so that
    # `atexit` handlers, threads and pickles of the program still find it.
    return _guarded(lambda: runpy._run_module_as_main(name))  # type: ignore[attr-defined]


def _exec_file(path: str) -> None:
    with io.open_code(os.path.abspath(path)) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __spec__=None, __cached__=None)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _guarded(program: Callable[[], object]) -> int:
    try:
        program()
    except SystemExit as end:
        return _exit_code(end)
    except KeyboardInterrupt:
        _show(*_own_lines())
        return 130
    except BaseException:
        _show(*_own_lines())
        return 1
    return 0


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _own_lines():
    """The current exception, with the traceback's frames of this module and of runpy cut off at its top."""
    kind, error, traceback = sys.exc_info()
    ours = {__file__, runpy.__file__}
    cut = traceback
    while cut is not None and (
        cut.tb_frame.f_code.co_filename in ours or cut.tb_frame.f_code.co_filename.startswith("<frozen runpy")
    ):
        cut = cut.tb_next
    # All of it ours: a file that does not compile. The error itself names the program's line.
    return kind, error, cut


def _show(kind, error, traceback) -> None:
    error.__traceback__ = traceback
    sys.excepthook(kind, error, traceback)
