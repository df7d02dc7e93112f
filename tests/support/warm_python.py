"""Runs Python programs in copies of a process that has imported TensorFlow and called `compat.install()`.

An interpreter that imports TensorFlow takes seconds, a copy of one (fork) some hundredths. The process that is copied
has done nothing else: no operation, no session, so that no thread of TensorFlow's is there that a copy would lack. What
depends on how an interpreter starts or in what order it imports, or sets variables that TensorFlow reads at its import,
needs a fresh one: `run_python`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import types
import warnings
from collections.abc import Mapping, Sequence

_LENGTH = 8


class WarmPython:
    """The process that is copied; started by the first call."""

    def __init__(self, environ: Mapping[str, str], cwd: str) -> None:
        self._ours, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=dict(environ), cwd=cwd)
        theirs.close()

    def run(
        self, args: Sequence[str], environ: Mapping[str, str], cwd: str, stdin: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run([sys.executable, *args])` gives; raises TimeoutExpired, and nothing of it is left."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(os.fdopen(os.memfd_create(name), "w+b")) for name in ("in", "out", "err")]
            files[0].write(stdin.encode())
            files[0].seek(0)
            request = pickle.dumps((list(args), dict(environ), cwd))
            socket.send_fds(self._ours, [len(request).to_bytes(_LENGTH, "big")], [file.fileno() for file in files])
            self._ours.sendall(request)
            pid = self._number(60)
            try:
                code = self._number(timeout)
            except TimeoutError:
                os.killpg(pid, signal.SIGKILL)
                self._number(60)
                raise subprocess.TimeoutExpired([sys.executable, *args], timeout) from None
            for file in files:
                file.seek(0)
            out, err = (file.read().decode() for file in files[1:])
        return subprocess.CompletedProcess([sys.executable, *args], code, out, err)

    def _number(self, timeout: float) -> int:
        self._ours.settimeout(timeout)
        return int.from_bytes(_exactly(self._ours, _LENGTH), "big", signed=True)

    def close(self) -> None:
        self._ours.close()  # it ends when nobody can ask any more
        self._process.wait(30)


def _exactly(sock: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = sock.recv(count - len(got))
        if not more:
            raise EOFError
        got += more
    return got


def _serve(sock: socket.socket) -> list[str] | None:
    """The arguments of a program, in a copy; None in the process itself, when nobody asks any more."""
    while True:
        head, fds, _, _ = socket.recv_fds(sock, _LENGTH, 3)
        if not head:
            return None
        args, environ, cwd = pickle.loads(_exactly(sock, int.from_bytes(head, "big")))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads: they are at nothing
            pid = os.fork()
        if pid == 0:
            os.setsid()
            sock.close()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            os.environ.clear()
            os.environ.update(environ)
            os.chdir(cwd)
            random.seed()
            sys.modules["numpy"].random.seed()
            return args
        for fd in fds:
            os.close(fd)
        sock.sendall(pid.to_bytes(_LENGTH, "big"))
        _, status = os.waitpid(pid, 0)
        sock.sendall(os.waitstatus_to_exitcode(status).to_bytes(_LENGTH, "big", signed=True))


def _run(args: list[str]) -> None:
    """As `python ARGS` does: `-c TEXT`, `-m MODULE` or a file, and its arguments."""
    import runpy

    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    sys.argv = args
    if args[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    elif args[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *args[2:]]
        exec(compile(args[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(args[0])))
        main.__file__ = args[0]
        with open(args[0], "rb") as file:
            code = compile(file.read(), args[0], "exec")
        exec(code, main.__dict__)


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        own = os.path.dirname(os.path.abspath(__file__))
        sys.path[:] = [path for path in sys.path if os.path.abspath(path) != own]
        sys.path.insert(0, os.getcwd())
        from estimator_pipeline import compat

        compat.install()
        del sys.path[0]
        gc.collect()
        gc.freeze()
        args = _serve(sock)
    if args is not None:
        _run(args)


if __name__ == "__main__":
    main()
