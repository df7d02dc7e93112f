"""Generator of the name lists of `migrate scan`: V1-only names and private modules of the installed TensorFlow.

    python tools/v1_names.py               catalogue/v1_names.txt, from the installed TensorFlow
    python tools/v1_names.py --check       compare the file with this TensorFlow; exit code 1 if they differ
    python tools/v1_names.py --shared      catalogue/shared_names.txt: names of different objects in V1 and V2;
                                           modules end with a dot
    python tools/v1_names.py --modules SITE_PACKAGES SITE_PACKAGES
                                           catalogue/private_modules.txt: modules of tensorflow.python in all of them

A line is `NAME` or `NAME = SUCCESSOR`: `tf.compat.v1.NAME` exists, `tf.NAME` does not, and `tf.SUCCESSOR` is the same
object, if there is one. Names of Keras are left out, because tf.keras is the same package in V1 and V2, and names of
tf.summary, which TensorFlow 2 has in a different package.
"""

from __future__ import annotations

import inspect
import sys
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "estimator_pipeline/migrate/code/catalogue"
FILE, MODULES, SHARED = FOLDER / "v1_names.txt", FOLDER / "private_modules.txt", FOLDER / "shared_names.txt"
# tf.summary of TensorFlow 2 needs TensorBoard, which may be missing.
SUMMARIES = ("summary.audio", "summary.histogram", "summary.image", "summary.scalar", "summary.text")
LEFT_OUT = (
    "keras",
    "compat",
    "raw_ops",
    "lite",
    "test",
    "python",
    "core",
    "tools",
    "tf_decorator",
    "experimental.numpy",
)


def public(root: Any, prefix: str = "", above: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return dotted name -> object for all public names below a module."""
    values: dict[str, Any] = {}
    for name in sorted(dir(root)):
        full = prefix + name
        if name.startswith("_") or full in LEFT_OUT or name in LEFT_OUT:
            continue
        try:
            value = getattr(root, name)
        except Exception:  # a lazy module that this installation cannot load
            continue
        if not isinstance(value, types.ModuleType):
            values[full] = value
        elif (value.__name__.startswith("tensorflow") or full == "nn.rnn_cell") and id(value) not in above:
            values |= public(value, full + ".", (*above, id(root)))
    return values


def has(root: Any, name: str) -> bool:
    """Return whether a dotted name exists, including names of Keras packages."""
    try:
        for part in name.split("."):
            root = getattr(root, part)
    except Exception:
        return False
    return True


def lines() -> list[str]:
    """Return the lines of v1_names.txt."""
    from estimator_pipeline import compat

    tf = compat.install()
    v1_names, v2_names = public(tf.compat.v1), public(tf)
    by_object: dict[int, str] = {}
    for name, value in sorted(v2_names.items(), key=lambda item: (item[0].count("."), len(item[0]), item[0])):
        if callable(value) and "protobuf" not in name:
            by_object.setdefault(id(value), name)
    result = []
    for name, value in sorted(v1_names.items()):
        if name not in v2_names and name not in SUMMARIES and not has(tf, name):
            same = by_object.get(id(value))
            result.append(f"{name} = {same}" if same else name)
    return result


def is_alike(old: Any, new: Any) -> bool:
    """Return whether two functions differ only in their decorators."""
    if inspect.isclass(old) or not callable(old):
        return False
    try:
        return inspect.signature(old) == inspect.signature(new) and old.__doc__ == new.__doc__
    except (TypeError, ValueError):
        return False


def _is_same_value(old: Any, new: Any) -> bool:
    return isinstance(old, (int, str, float, tuple)) and old == new


def shared(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Return the names with different objects in both, and all modules of the old one, with a dot at the end."""
    names = []
    for name in sorted(dir(old)):
        if name.startswith("_") or name in ("compat", "contrib", "tf_decorator"):
            continue
        try:
            old_value = getattr(old, name)
        except Exception:  # a lazy module that this installation cannot load
            continue
        new_value, full = getattr(new, name, None), prefix + name
        if isinstance(old_value, types.ModuleType):
            if old_value.__name__.startswith(("tensorflow", "tf_keras", "keras")) or name == "keras":
                names += [full + ".", *shared(old_value, new_value, full + ".")]
        elif new_value is None or new_value is old_value:
            continue
        elif not is_alike(old_value, new_value) and not _is_same_value(old_value, new_value):
            names.append(full)
    return names


def modules(packages: Path) -> set[str]:
    """Return the modules of tensorflow.python in a folder of installed packages, without that prefix."""
    names = set()
    home = packages / "tensorflow" / "python"
    for path in home.rglob("*"):
        if path.suffix in (".py", ".so") and "__pycache__" not in path.parts and not path.stem.endswith("_test"):
            name = ".".join(path.relative_to(home).with_suffix("").parts).split(".cpython")[0]
            names.add(name.removesuffix(".__init__"))
    return names - {"__init__"}


def main() -> int:
    if sys.argv[1:2] == ["--modules"]:
        common = set.intersection(*(modules(Path(packages)) for packages in sys.argv[2:]))
        MODULES.write_text("\n".join(sorted(common)) + "\n", encoding="utf-8")
        return 0
    if sys.argv[1:] == ["--shared"]:
        from estimator_pipeline import compat

        tf = compat.install()
        SHARED.write_text("\n".join(shared(tf.compat.v1, tf)) + "\n", encoding="utf-8")
        return 0
    if sys.argv[1:] != ["--check"]:
        FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
        return 0
    missing = sorted(set(FILE.read_text(encoding="utf-8").splitlines()) ^ set(lines()))
    print("\n".join(missing))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
