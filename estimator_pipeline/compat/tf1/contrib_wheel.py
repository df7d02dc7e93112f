"""Installation of TensorFlow 1.15's files of tf.contrib into the user's cache, from its wheel."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from estimator_pipeline.compat.tf1.contrib import files
from estimator_pipeline.errors import CompatError
from estimator_pipeline.utils import io_errors

__all__ = ["FILES", "LICENCE", "install"]

# The number of files, and the digest of their names and contents in the order of the names.
FILES = 851
DIGEST = "d5784281b37bcf7ab0051e3d554fb919fa3c2ff12d98513b595f8d4b4bef9498"
LICENCE = "Apache License 2.0, https://www.apache.org/licenses/LICENSE-2.0: Copyright The TensorFlow Authors"
_INSIDE = "tensorflow_core/contrib/"
_SECS = 1800


def install(wheel: Path | None = None) -> Path:
    """Extract the Python files of tf.contrib from the wheel of TensorFlow 1.15.5.

    Args:
        wheel: The wheel's file; None: pip downloads it (110 MB) without installing it.

    Returns:
        The folder with the files.

    Raises:
        CompatError: pip cannot download it, or the file is not that wheel.
    """
    if wheel is not None:
        return _unpacked(wheel)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check",
            "--only-binary", ":all:", "--python-version", "37", "--implementation", "cp", "--abi", "cp37m",
            "--platform", "manylinux2010_x86_64", "--dest", folder, f"tensorflow=={files.VERSION}",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECS, check=False)
            lines, failed = done.stderr.strip().splitlines(), done.returncode != 0
        except (OSError, subprocess.TimeoutExpired) as error:
            lines, failed = [str(error)], True
        wheels = sorted(Path(folder).glob("tensorflow-*.whl"))
        if failed or not wheels:
            raise CompatError(
                f"pip could not download tensorflow {files.VERSION}",
                code="tensorflow/not-installed",
                found=lines[-1] if lines else "pip printed no error",
                hint="without a package index, get the wheel "
                f"tensorflow-{files.VERSION}-cp37-cp37m-manylinux2010_x86_64.whl elsewhere, and pass it with --wheel",
            )
        return _unpacked(wheels[0])


def _unpacked(wheel: Path) -> Path:
    target = files.folder()
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(name for name in archive.namelist() if name.startswith(_INSIDE) and name.endswith(".py"))
            contents = {name[len(_INSIDE) :]: archive.read(name) for name in names}
    except (OSError, zipfile.BadZipFile) as error:
        raise CompatError(
            f"the wheel {wheel} cannot be read",
            code=io_errors.code_of(error),
            found=str(error),
            hint=f"pass the wheel of tensorflow {files.VERSION}",
        ) from error
    actual = digest(contents)
    if actual != DIGEST:
        raise CompatError(
            f"the wheel {wheel} is not the one of tensorflow {files.VERSION}",
            code="file/unreadable",
            found=f"{len(contents)} files of tf.contrib with the SHA-256 {actual}; expected {FILES} with {DIGEST}",
            hint=f"pass the published wheel of tensorflow {files.VERSION}",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".contrib-", dir=target.parent))
    try:
        for name, content in contents.items():
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        unfinished.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        os.replace(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    files.installed.cache_clear()
    return target


def digest(contents: dict[str, bytes]) -> str:
    """Return the SHA-256 of files: path -> content."""
    whole = hashlib.sha256()
    for name in sorted(contents):
        whole.update(f"{name}\0{len(contents[name])}\0".encode())
        whole.update(contents[name])
    return whole.hexdigest()
