"""Build of the wheel and the source distribution in dist/, with checks, and a test of the wheel in a new environment.

    python tools/release.py

Checks: `twine check --strict`; each tracked file of the packages is in both distributions; CHANGELOG.md has a dated
section for the version; each extra can be resolved for this Python; the installed wheel trains a job. Publish manually
with `twine upload dist/*`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TIMEOUT = 900
PYTHONS = ROOT / "tools" / "pythons.txt"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return the standard output of a command; exit if it fails."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with {done.returncode}", done.stdout[-3000:] + done.stderr[-3000:])
    return done.stdout


def fail(message: str, found: object) -> None:
    raise SystemExit(f"error: {message}\n  found: {found}")


def package_version() -> str:
    text = (ROOT / "estimator_pipeline" / "utils" / "version.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def check_changelog(number: str) -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        fail(
            f"CHANGELOG.md has no section '## [{number}] - YYYY-MM-DD'", re.findall(r"^## .*$", text, re.MULTILINE)[:3]
        )


def check_files(wheel: Path, sdist: Path) -> None:
    tracked = run("git", "ls-files", "estimator_pipeline", "model_fns").split()
    with zipfile.ZipFile(wheel) as archive:
        missing = sorted(set(tracked) - set(archive.namelist()))
    if missing:
        fail(f"{wheel.name} lacks files of the packages; name them in package_data of setup.py", missing)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = sorted({*tracked, "README.md", "LICENSE", "CHANGELOG.md", "setup.py"} - names)
    if missing:
        fail(f"{sdist.name} lacks files; name them in MANIFEST.in", missing)


def install(python: Path | str, *arguments: str | Path) -> None:
    run(python, ROOT / "tools" / "install_packages.py", *arguments)


def check_extras(wheel: Path, python: Path, extras: Sequence[str]) -> None:
    """Resolve each extra without installing it."""
    for extra in extras:
        install(python, "--dry-run", f"{wheel}[{extra}]")


def wheels() -> dict[str, list[str]]:
    """Return TensorFlow minor version -> the Python versions that it has wheels for."""
    lines = PYTHONS.read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {tensorflow: pythons for tensorflow, *pythons in rows}


def extras() -> list[str]:
    """Return the extras that this Python can install."""
    source = (ROOT / "setup.py").read_text(encoding="utf-8")
    section = source.partition("extras_require")[2].partition("entry_points")[0]
    plain = re.findall(r'^        "(\w+)": \[', section, re.MULTILINE)
    tensorflows = [tensorflow for tensorflow, pythons in wheels().items() if PYTHON in pythons]
    return [*(f"tf{tensorflow.replace('.', '-')}" for tensorflow in tensorflows), *plain]


def try_wheel(wheel: Path, folder: Path, number: str) -> None:
    """Install the wheel in a fresh environment, away from the sources, and train a job."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    minor = version("tensorflow").split(".")[1]
    install(python, f"{wheel}[tf2-{minor}]")
    command = folder / "venv" / "bin" / "estimator-pipeline"
    shown = run(command, "--version", cwd=folder).split()
    if number not in shown:
        fail("the installed command has a different version", shown)
    shutil.copy(ROOT / "legacy_configs" / "single.yaml", folder / "job.yaml")
    settings = ["--set", "train.max_steps=5", "--set", f"run.model_dir={folder / 'run'}"]
    run(command, "train", "job.yaml", *settings, cwd=folder)
    check_extras(wheel, python, extras())


def main() -> int:
    number = package_version()
    check_changelog(number)
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    check_files(wheel, sdist)
    with tempfile.TemporaryDirectory() as name:
        try_wheel(wheel, Path(name), number)
    print(f"{wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)}: checked, installed, a job trained")
    return 0


if __name__ == "__main__":
    sys.exit(main())
