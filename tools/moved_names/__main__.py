"""Search for the names of `tensorflow.python` that were moved or removed since TensorFlow 1.15.

    python tools/moved_names --pythons .venv/bin/python .venv-2.15/bin/python

downloads a wheel of each minor version (some 4 GB, a few minutes; kept in --work), reads its Python files without
importing anything, follows each name from version to version, prints a summary, and writes

    estimator_pipeline/compat/moved_names/moved_names.txt    the table that `compat` reads
    docs/reference/moved-names.md                          the counts by package

`--check` writes nothing; its exit code is 1 if a file would change. `--show NAME` prints the history of all names that
end with NAME; an empty NAME prints all.
Each interpreter of --pythons has a TensorFlow installed, and lists the names of its compiled modules, which have no
source. Without an interpreter, such names count as removed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from moved_names import collecting, page, table, trees

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "estimator_pipeline/compat/moved_names/moved_names.txt"
PAGE = ROOT / "docs/reference/moved-names.md"
# Version -> a Python that it has wheels for. 2.0 has no wheel without GPU code; its moves are visible in 2.1.
VERSIONS = {"1.15": "3.7", "2.1": "3.7", "2.2": "3.7", "2.3": "3.7"}
VERSIONS |= {f"2.{minor}": "3.8" for minor in range(4, 14)} | {f"2.{minor}": "3.11" for minor in range(14, 22)}
OLDEST = next(iter(VERSIONS))
# The folders of a wheel that are read.
BELOW = ("tensorflow/python/", "tf_keras/src/", "tensorflow_estimator/")
BELOW += ("tensorflow_core/python/", "tensorflow_core/contrib/")  # of 1.15
PLATFORMS = ("manylinux2010_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_27_x86_64")


def fetch(package: str, version: str, python: str, work: Path) -> Path:
    """Return the folder with the package's Python files, after downloading it with pip if it is missing."""
    folder = work / f"{package}-{version}"
    if folder.is_dir():
        return folder
    wheels = work / f"wheel-{package}-{version}"
    options = ["--no-deps", "--only-binary=:all:", "--python-version", python, "-q", "-d", str(wheels)]
    options += [word for platform in PLATFORMS for word in ("--platform", platform)]
    print(f"downloading {package} {version}", flush=True)
    subprocess.run([sys.executable, "-m", "pip", "download", *options, f"{package}=={version}.*"], check=True)
    (wheel,) = wheels.glob("*.whl")
    partial = work / f"{folder.name}.partial"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial, [n for n in archive.namelist() if n.startswith(BELOW) and n.endswith(".py")])
    wheel.unlink()
    partial.rename(folder)
    return folder


def read(key: str, work: Path) -> trees.Tree:
    """Return the tree of a version, or of `keras`, `estimator` or `contrib`."""
    if key == "keras":
        return trees.read(fetch("tf_keras", "2.21", "3.11", work), key, "tf_keras.src")
    if key == "estimator":
        return trees.read(fetch("tensorflow_estimator", "2.15", "3.11", work), key, "tensorflow_estimator")
    version = OLDEST if key == "contrib" else key
    folder = fetch("tensorflow_cpu", version, VERSIONS[version], work)
    core = "tensorflow_core" if (folder / "tensorflow_core/python").is_dir() else "tensorflow"
    if key != "contrib":
        return trees.read(folder, version, f"{core}.python", shown_as="tensorflow.python")
    packages = ("tensorflow.python", "tensorflow.contrib", "tensorflow_estimator")
    tree = trees.read(folder, key, f"{core}.python", shown_as="tensorflow.python", beside=packages)
    tree = tree.with_(trees.read(folder, key, f"{core}.contrib", shown_as="tensorflow.contrib", beside=packages))
    estimator = fetch("tensorflow_estimator", version, VERSIONS[version], work)
    return tree.with_(trees.read(estimator, key, "tensorflow_estimator", beside=packages))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "runs/moved-names", help="where wheels are unpacked")
    parser.add_argument("--pythons", type=Path, nargs="*", default=[Path(sys.executable)], metavar="PYTHON")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--show", metavar="NAME")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    wanted = [*VERSIONS, "keras", "contrib", "estimator"]
    with ProcessPoolExecutor() as processes:
        *versions, keras, contrib, estimator = processes.map(read, wanted, [options.work] * len(wanted))
    compiled = [collecting.compiled_names(python) for python in options.pythons]
    names = collecting.names(versions, keras, compiled, contrib, estimator)
    if options.show is not None:
        for place, trace in names.traces.items():
            if ".".join(place).endswith(options.show):
                print(
                    ".".join(place),
                    f"gone since {trace.since};",
                    trace.how,
                    *sorted(set(map(".".join, trace.homes.values()))),
                )
        return 0
    texts = {TABLE: table.text(names), PAGE: page.text(names)}
    print(page.summary(names))
    changed = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in changed:
        print("changes:" if options.check else "written:", path.relative_to(ROOT))
        if not options.check:
            path.write_text(texts[path])
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
