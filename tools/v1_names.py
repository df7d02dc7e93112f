"""What `migrate scan` has to know of TensorFlow: names of V1 alone, and private modules. Written from installed ones.

    python tools/v1_names.py               catalogue/v1_names.txt, from the TensorFlow that is installed
    python tools/v1_names.py --check       whether the file holds for this TensorFlow too; exit code 1 where not
    python tools/v1_names.py --shared      catalogue/shared_names.txt: names of both, as two things; modules with a dot
    python tools/v1_names.py --modules SITE_PACKAGES SITE_PACKAGES
                                           catalogue/private_modules.txt: modules of tensorflow.python in all of them

A line is `NAME` or `NAME = SUCCESSOR`: `tf.compat.v1.NAME` is there, `tf.NAME` is not, and `tf.SUCCESSOR` is the very
same object, where there is one. Names of Keras are left out: tf.keras is the same package under both; so are those of
tf.summary, which TensorFlow 2 has in another package.
"""

from __future__ import annotations

import inspect
import sys
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "estimator_pipeline/migrate/code/catalogue"
FILE, MODULES, SHARED = FOLDER / "v1_names.txt", FOLDER / "private_modules.txt", FOLDER / "shared_names.txt"
# tf.summary of TensorFlow 2 is TensorBoard's, which need not be there.
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
    """Dotted name -> object, of all that is public below a module."""
    found: dict[str, Any] = {}
    for name in sorted(dir(root)):
        full = prefix + name
        if name.startswith("_") or full in LEFT_OUT or name in LEFT_OUT:
            continue
        try:
            value = getattr(root, name)
        except Exception:  # a lazy module that this installation cannot load
            continue
        if not isinstance(value, types.ModuleType):
            found[full] = value
        elif (value.__name__.startswith("tensorflow") or full == "nn.rnn_cell") and id(value) not in above:
            found |= public(value, full + ".", (*above, id(root)))
    return found


def has(root: Any, name: str) -> bool:
    """Whether a dotted name is there, be it in a package of Keras."""
    try:
        for part in name.split("."):
            root = getattr(root, part)
    except Exception:
        return False
    return True


def lines() -> list[str]:
    from estimator_pipeline import compat

    tf = compat.install()
    one, two = public(tf.compat.v1), public(tf)
    by_object: dict[int, str] = {}
    for name, value in sorted(two.items(), key=lambda item: (item[0].count("."), len(item[0]), item[0])):
        if callable(value) and "protobuf" not in name:
            by_object.setdefault(id(value), name)
    found = []
    for name, value in sorted(one.items()):
        if name not in two and name not in SUMMARIES and not has(tf, name):
            same = by_object.get(id(value))
            found.append(f"{name} = {same}" if same else name)
    return found


def is_alike(one: Any, other: Any) -> bool:
    """Whether two functions differ by their decorators alone."""
    if inspect.isclass(one) or not callable(one):
        return False
    try:
        return inspect.signature(one) == inspect.signature(other) and one.__doc__ == other.__doc__
    except (TypeError, ValueError):
        return False


def _is_a_value(one: Any, other: Any) -> bool:
    return isinstance(one, (int, str, float, tuple)) and one == other


def shared(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Names that both have, as two things; and all modules of the old one, with a dot behind."""
    found = []
    for name in sorted(dir(old)):
        if name.startswith("_") or name in ("compat", "contrib", "tf_decorator"):
            continue
        try:
            one = getattr(old, name)
        except Exception:  # a lazy module that this installation cannot load
            continue
        other, full = getattr(new, name, None), prefix + name
        if isinstance(one, types.ModuleType):
            if one.__name__.startswith(("tensorflow", "tf_keras", "keras")) or name == "keras":
                found += [full + ".", *shared(one, other, full + ".")]
        elif other is not None and other is not one and not is_alike(one, other) and not _is_a_value(one, other):
            found.append(full)
    return found


def modules(packages: Path) -> set[str]:
    """Return the modules of tensorflow.python in a folder of installed packages, without that prefix."""
    found = set()
    home = packages / "tensorflow" / "python"
    for path in home.rglob("*"):
        if path.suffix in (".py", ".so") and "__pycache__" not in path.parts and not path.stem.endswith("_test"):
            name = ".".join(path.relative_to(home).with_suffix("").parts).split(".cpython")[0]
            found.add(name.removesuffix(".__init__"))
    return found - {"__init__"}


def main() -> int:
    if sys.argv[1:2] == ["--modules"]:
        common = set.intersection(*(modules(Path(one)) for one in sys.argv[2:]))
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
