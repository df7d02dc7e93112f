"""Whether the tests of `make test` notice faults: each is planted, and the one file that must fail is run.

    python tools/planted_faults.py [NAME ...]

Without names all of tools/planted_faults.yaml, two at a time: some five minutes on two cores. Exit code 1 where more
than `MAY_BE_MISSED` go unnoticed, or one no longer fits the code that it is to be planted in.

A fault is planted in a copy of the working tree, and in an environment whose package is that copy: a test that starts
processes starts them with the fault as well. The working tree is never touched.
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
SECONDS = 240  # for one file; a test that hangs in it has less


@dataclasses.dataclass(frozen=True)
class Fault:
    """A text of a file that occurs once, what is put in its place, and the file of tests that must fail.

    `cases` chooses tests of that file, as pytest's -k does.
    """

    name: str
    room: str
    file: str
    find: str
    put: str
    test: str
    cases: str = ""

    def misfit(self) -> str | None:
        """Why it cannot be planted."""
        if not (ROOT / self.test).is_file():
            return f"there is no {self.test}"
        count = (ROOT / self.file).read_text().count(self.find) if (ROOT / self.file).is_file() else 0
        return None if count == 1 else f"its text is {count} times in {self.file}"


def read() -> list[Fault]:
    """All faults of the list."""
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
        """(pytest's exit code, None where the time was up; what it printed) of the file with the fault in it."""
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
        """Seconds apart from the last change: bytecode is known to be old by them, and by the length."""
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
            # A failed test notices it; a file that cannot be collected, or none of it chosen, proves nothing.
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
