"""Running an unchanged legacy program with compat, like `python` does.

The program sees the same environment: `sys.argv`, `sys.path[0]`, `__main__` with its `__file__`, the exit code, and
tracebacks without frames of this package.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Callable, Sequence

from estimator_pipeline import compat
from estimator_pipeline.compat import tf1
from estimator_pipeline.compat.bootstrap import start_lines
from estimator_pipeline.compat.moved_names import suggestions as known_names
from estimator_pipeline.compat.script_runner import children
from estimator_pipeline.compat.tf1 import importers
from estimator_pipeline.errors import (
    ClusterError,
    ConfigError,
    DiskError,
    OtherJobError,
    PreemptedError,
    ProgramInputError,
    TaskFailedError,
    WaitError,
)
from estimator_pipeline.progress.task_events import TaskEvents
from estimator_pipeline.utils import io_errors
from estimator_pipeline.utils.logger import forward_warnings


def install(patches: str | None, *, tf1: bool = False) -> None:
    """Call `compat.install` without the lines that TensorFlow writes at its start."""
    with start_lines.hidden():
        compat.install(patches, tf1=tf1)


def run_script(path: str, args: Sequence[str] = (), *, patches: str | None = None, tf1: bool = False) -> int:
    """Run a file (or a directory or zip file with a `__main__.py`) as `python path args…`.

    Args:
        path: The file, directory or zip file.
        args: The program's arguments.
        patches: As for `compat.install`.
        tf1: Whether the program is written for TensorFlow 1, as for `compat.install`.

    Returns:
        The exit code for the process.

    Raises:
        ConfigError: There is no such file.
    """
    if not os.path.exists(path):
        raise ConfigError(
            f"the program {path!r} does not exist",
            code="file/not-found",
            found=f"working directory {os.getcwd()}",
            hint="pass the path of a Python file, or -m MODULE for an importable module",
        )
    install(patches, tf1=tf1)
    children.reach(os.environ)
    sys.argv = [path, *args]
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        _first_on_path(os.path.abspath(path))
        return _guarded(lambda: _run_as_main("__main__", alter_argv=False))
    _first_on_path(os.path.dirname(os.path.realpath(path)))
    return _guarded(lambda: _exec_file(os.path.abspath(path)))


def run_module(name: str, args: Sequence[str] = (), *, patches: str | None = None, tf1: bool = False) -> int:
    """Run an importable module or package as `python -m name args…`, and return the exit code."""
    install(patches, tf1=tf1)
    if tf1:
        importers.mark_program(name)
    children.reach(os.environ)
    sys.argv = [name, *args]
    _first_on_path(os.getcwd())
    return _guarded(lambda: _run_as_main(name))


def _first_on_path(folder: str) -> None:
    """Replace the first entry of `sys.path` with the program's folder, except with `python -P`."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _new_main() -> types.ModuleType:
    """Create an empty `__main__` that remains: `atexit`, threads and pickles use it later."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:
        # Set by multiprocessing, which TensorFlow imports: children pickle objects under this name.
        sys.modules["__mp_main__"] = main
    return main


def _run_as_main(name: str, **options: bool) -> None:
    _new_main()
    # The function behind `python -m` and `python FOLDER`: unlike the public functions of runpy it does not
    # remove `__main__` afterwards.
    runpy._run_module_as_main(name, **options)  # type: ignore[attr-defined]


def _exec_file(path: str) -> None:
    main = _new_main()
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __loader__=loader, __spec__=None, __cached__=None)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _guarded(program: Callable[[], object]) -> int:
    try:
        with forward_warnings(TaskEvents(os.environ).warned):
            program()
    except SystemExit as end:
        return _exit_code(end)
    except KeyboardInterrupt:
        _show(*_own_lines())
        return 130
    except (ClusterError, DiskError, OtherJobError, PreemptedError, ProgramInputError, WaitError) as error:
        # The program is not at fault, and a traceback would add nothing.
        print(f"error: {error}", file=sys.stderr)
        _report(error)
        return error.exit_code
    except BaseException as error:
        if (plain := io_errors.explained(error)) is not None:
            # TensorFlow's traceback lists each graph node twice, and the program is not at fault.
            print(f"error: {plain}", file=sys.stderr)
            _report(plain)
            return plain.exit_code
        _show(*_own_lines())
        _report(error)
        return 1
    return 0


def _report(error: BaseException) -> None:
    """Report the error to the launcher, unless it is a consequence of a failure that is already reported."""
    if not isinstance(error, TaskFailedError):
        TaskEvents(os.environ).raised(error)


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _own_lines():
    """Return the current exception, without traceback frames of this module, runpy and the import statement."""
    kind, error, traceback = sys.exc_info()
    ours = {__file__, runpy.__file__}
    _without_imports(error)
    traceback = None if error is None else error.__traceback__
    cut = traceback
    while cut is not None and (
        cut.tb_frame.f_code.co_filename in ours or cut.tb_frame.f_code.co_filename.startswith("<frozen runpy")
    ):
        cut = cut.tb_next
    # None is left if the file does not compile. The error itself names the program's line.
    return kind, error, cut


def _without_imports(error: BaseException | None) -> None:
    """Remove the frames of the import statement, which --tf1 replaces, from a traceback and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        before, traceback = None, error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == importers.__file__:
                if before is None:
                    error.__traceback__ = traceback.tb_next
                else:
                    before.tb_next = traceback.tb_next
            else:
                before = traceback
            traceback = traceback.tb_next
        error = error.__cause__ or error.__context__


def _show(kind, error, traceback) -> None:
    error.__traceback__ = traceback
    sys.excepthook(kind, error, traceback)
    known = known_names.of(error, tf1=tf1.enabled())
    if known:
        print(f"estimator-pipeline: {known}", file=sys.stderr)
