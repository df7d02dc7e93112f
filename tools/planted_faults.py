"""Mutation test of `make test`: each fault is planted, and the test file that must fail is run.

    python tools/planted_faults.py [NAME ...]

Without names it plants all faults of tools/planted_faults.yaml, two at a time, in about five minutes on two cores. The
exit code is 1 if more than `MAY_BE_MISSED` are missed, or if the text of a fault is no longer in the code.

A fault is planted in a copy of the working tree, with an environment whose package is that copy: processes that a test
starts have the fault, too. The working tree does not change.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import os
import queue
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
FAULTS = Path(__file__).with_suffix(".yaml")
MAY_BE_MISSED = 3
TOGETHER = 2
SECONDS = 240  # for one file; the timeout of a single test is shorter


@dataclasses.dataclass(frozen=True)
class Fault:
    """A text that occurs once in a file, its replacement, and the test file that must fail.

    `cases` selects tests of that file, like pytest's -k.
    """

    name: str
    room: str
    file: str
    find: str
    put: str
    test: str
    cases: str = ""

    def misfit(self) -> str | None:
        """Return the reason why it cannot be planted, or None."""
        if not (ROOT / self.test).is_file():
            return f"there is no {self.test}"
        count = (ROOT / self.file).read_text().count(self.find) if (ROOT / self.file).is_file() else 0
        return None if count == 1 else f"its text is {count} times in {self.file}"


def read() -> list[Fault]:
    """Return all faults of the list."""
    return [Fault(**entry) for entry in YAML(typ="safe").load(FAULTS.read_text())]


class Copy:
    """A copy of the working tree, and an environment like this one whose package is the copy."""

    def __init__(self, folder: Path) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, stdout=-1
        )
        self.root = folder / "copy"
        for name in listed.stdout.decode().split("\0"):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        venv.create(folder / "venv")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (folder / "venv" / "lib" / version / "site-packages" / "copy.pth").write_text(
            "\n".join([str(self.root), *site.getsitepackages()]) + "\n"
        )
        self.python = folder / "venv" / "bin" / "python"
        self.moment = time.time()  # of the last change of a file
        with contextlib.suppress(FileNotFoundError):  # the command, as a script of the copy's environment
            script = Path(sys.executable).with_name("estimator-pipeline").read_text()
            (self.python.parent / "estimator-pipeline").write_text(script.replace(sys.executable, str(self.python)))
            (self.python.parent / "estimator-pipeline").chmod(0o755)

    def run(self, fault: Fault) -> tuple[int | None, str]:
        """Run the test file with the fault; return (pytest's exit code or None after the time limit, its output)."""
        path = self.root / fault.file
        before = path.read_text()
        self._write(path, before.replace(fault.find, fault.put))
        command = [str(self.python), "-m", "pytest", "-q", "-x", "--tb=short", "--timeout=100", "-p", "no:xdist",
                   "-p", "no:cacheprovider", "-m", "not nightly", fault.test]  # fmt: skip
        command += ["-k", fault.cases] if fault.cases else []
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(
            command, cwd=self.root, env=environ, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=SECONDS)
            return process.returncode, out
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """Write a file with a new modification time: Python detects stale bytecode by time in seconds and size."""
        path.write_text(text)
        self.moment += 10
        os.utime(path, (self.moment, self.moment))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant; all by default")
    names = parser.parse_args().names
    faults = read()
    if unknown := set(names) - {fault.name for fault in faults}:
        parser.error(f"no fault is called {', '.join(map(repr, sorted(unknown)))}; see {FAULTS.name}")
    chosen = [fault for fault in faults if not names or fault.name in names]
    missed, unfit, began = [], [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        copies: queue.Queue[Copy] = queue.Queue()
        for number in range(TOGETHER):
            copies.put(Copy(Path(folder) / str(number)))

        def plant(fault: Fault) -> tuple[Fault, int | None, str, float]:
            if why := fault.misfit():
                return fault, -1, why, 0.0
            copy, started = copies.get(), time.monotonic()
            try:
                return fault, *copy.run(fault), time.monotonic() - started
            finally:
                copies.put(copy)

        for fault, code, out, seconds in pool.map(plant, chosen):
            # Only a failed test notices the fault; a file that cannot be collected or has no selected tests does not.
            verdict = "noticed" if code == 1 else "MISSED" if code == 0 else "UNFIT"
            print(f"{verdict:8}{seconds:5.0f} s  {fault.room}: {fault.name} ({fault.test})", flush=True)
            if code == 0:
                missed.append(fault)
            elif code != 1:
                unfit.append(fault)
                print("\n".join(f"    {line}" for line in out.splitlines()[-12:]), flush=True)
    noticed = len(chosen) - len(missed) - len(unfit)
    print(f"{noticed} of {len(chosen)} faults noticed, in {time.monotonic() - began:.0f} s")
    return 1 if unfit or len(missed) > MAY_BE_MISSED else 0


if __name__ == "__main__":
    sys.exit(main())
