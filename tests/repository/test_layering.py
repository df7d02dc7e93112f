"""The floors of the house: imports go down only, and private TensorFlow lives in compat/ alone.

The floors are those of docs/architecture.md. The checker reads the code, so an import inside a function counts as
one at the top; and it is itself tested on violations planted for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "estimator_pipeline"

# Module or package, within estimator_pipeline -> floor; the longest name that fits counts. A new module has
# to be named here: the test fails for one that is not.
FLOORS = {
    "arguments": 0,
    "best_results": 0,
    "durable": 0,
    "errors": 0,
    "io_errors": 0,
    "log": 0,
    "seams": 0,
    "startup": 0,
    "system_limits": 0,
    "allocator": 0,
    "cluster": 0,
    "job": 0,
    "launch": 0,
    "ledger": 0,
    "inputs.order": 0,
    "inputs.plan": 0,
    "inputs.describe": 0,
    "inputs.files": 0,
    "inputs.options": 0,
    "inputs.records": 0,
    "compat": 1,
    "inputs": 2,
    "accumulation": 2,
    "callbacks": 2,
    "event_files": 2,
    "heads": 2,
    "histograms": 2,
    "keras3_optimizers": 2,
    "keras_averages": 2,
    "keras_canned": 2,
    "keras_cells": 2,
    "keras_cluster": 2,
    "keras_columns": 2,
    "keras_evaluation": 2,
    "keras_heads": 2,
    "keras_model": 2,
    "keras_optimizers": 2,
    "keras_variables": 2,
    "keras_names": 2,
    "keras_refusals": 2,
    "keras_weights": 2,
    "label_checks": 2,
    "loss_scale": 2,
    "model_fn": 2,
    "moving_averages": 2,
    "replica_means": 2,
    "optimizers": 2,
    "outputs": 2,
    "run_config": 2,
    "strategies": 2,
    "weight_decay": 2,
    "weighting": 2,
    "engines": 3,
    "doctor": 4,
    "parity": 4,
    "migrate": 4,
    "migrate.config": 0,
    "reports": 4,
    "testing": 4,
    "cli": 5,
    "__main__": 5,
}
COMPAT = 1
# What floor 0 must never bring in, at any depth. (NumPy is no such thing: order.py is arithmetic on arrays.)
HEAVY = ("tensorflow", "tensorflow_estimator", "tensorflow_datasets", "keras", "tf_keras", "model_fns")
MAX_LINES = 500
# Below this package's own public names: the part of it that a model may use.
MODEL_API = {"errors", "compat.install", "compat.status"}


def floor_of(module: str) -> int | None:
    """The floor of `estimator_pipeline.x.y`, None for the package itself (lazy, it belongs to none)."""
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        found = FLOORS.get(".".join(parts[:length]))
        if found is not None:
            return found
    return None


def imports_of(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere in the file; `from a import b` gives `a.b`.

    Names asked for by `importlib.import_module("…")` and `__import__("…")` count, where they are plain text.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:keep], *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def is_within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def is_private(name: str) -> bool:
    """Whether an import reaches past the public face of TensorFlow, Keras or the estimator package."""
    if is_within(name, "tensorflow.python", "tensorflow.core", "tensorflow._api", "tensorflow_estimator"):
        return True
    return is_within(name, "tf_keras", "keras") or (name.startswith("tensorflow.") and "._" in name)


def public_names(init: ast.Module) -> dict[str, str]:
    """Public name -> module behind it, from the table in estimator_pipeline/__init__.py."""
    for node in init.body:
        target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
        if isinstance(target, ast.Name) and target.id == "_PUBLIC":
            return {name: module for name, (module, _) in ast.literal_eval(node.value).items()}
    raise AssertionError("estimator_pipeline/__init__.py has no table _PUBLIC")


def check_file(path: str, text: str) -> Iterator[str]:
    """What is wrong with one file, a line each. `path` is relative to the repository."""
    module = path.removesuffix(".py").replace("/", ".")
    is_package = module.endswith(".__init__")
    module = module.removesuffix(".__init__")
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield f"{path}:1: has no docstring"
    lines = text.count("\n") + 1
    if lines > MAX_LINES:
        yield f"{path}:1: has {lines} lines; more than {MAX_LINES} want to be two files"
    if is_within(module, "model_fns"):
        yield from _check_model(path, tree, module, is_package)
    elif module != PACKAGE:
        yield from _check_floor(path, tree, module, is_package)


def _check_floor(path: str, tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    own = floor_of(module)
    if own is None:
        yield f"{path}:1: is on no floor; name it in FLOORS"
        return
    for line, name in imports_of(tree, module, is_package):
        if own == 0 and is_within(name, *HEAVY):
            yield f"{path}:{line}: floor 0 imports {name}"
        elif own != COMPAT and is_private(name):
            yield f"{path}:{line}: imports {name}; only compat/ may"
        other = floor_of(name) if is_within(name, PACKAGE) else None
        if other is not None and other > own:
            yield f"{path}:{line}: floor {own} imports {name} of floor {other}"


def _check_model(path: str, tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    allowed = set(public_names(ast.parse((ROOT / PACKAGE / "__init__.py").read_text()))) | MODEL_API
    for line, name in imports_of(tree, module, is_package):
        if is_private(name) or is_within(name, "tensorflow"):
            yield f"{path}:{line}: imports {name}; a model takes TensorFlow from compat.install()"
        if is_within(name, PACKAGE) and name != PACKAGE:
            inner = name.removeprefix(PACKAGE + ".")
            if inner not in allowed and inner.split(".")[0] != "errors":
                yield f"{path}:{line}: imports {name}, which is not public"
    for node in ast.walk(tree):
        # What is reached through the package instead of imported.
        dotted = _dotted(node)
        if (
            dotted
            and dotted.startswith(f"{PACKAGE}.")
            and dotted.split(".")[1] not in {a.split(".")[0] for a in allowed}
        ):
            yield f"{path}:{node.lineno}: uses {dotted}, which is not public"
        if dotted and dotted.startswith("compat.") and dotted.count(".") == 1 and dotted not in MODEL_API:
            yield f"{path}:{node.lineno}: uses {dotted}; of compat a model uses install() and status()"


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return base and f"{base}.{node.attr}"
    return None


def check(files: Mapping[str, str]) -> list[str]:
    return [problem for path, text in sorted(files.items()) for problem in check_file(path, text)]


def _files() -> dict[str, str]:
    found = [*(ROOT / PACKAGE).rglob("*.py"), *(ROOT / "model_fns").rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in found}


# The house ------------------------------------------------------------------------------------------------


def test_the_house_keeps_its_floors():
    files = _files()
    assert len(files) > 40
    problems = check(files)
    assert not problems, "\n".join(problems)


def test_every_floor_that_is_named_is_lived_on():
    """A name in FLOORS that no module bears would let a misspelt rule pass for a kept one."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in _files()}
    planned = {"parity", "reports"}
    missing = [name for name in FLOORS if name not in planned and f"{PACKAGE}.{name}" not in modules]
    assert not missing


def test_public_names_come_from_modules_that_exist():
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in _files()}
    public = public_names(ast.parse((ROOT / PACKAGE / "__init__.py").read_text()))
    assert len(public) > 5 and set(public.values()) <= modules


def test_floors_0_and_1_run_without_tensorflow(run_python):
    """What the code says holds when it runs: importing a module also runs the packages that it is in."""
    modules = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in _files()]
    low = [name for name in modules if name.startswith(f"{PACKAGE}.") and floor_of(name) in (0, 1)]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    done = run_python(["-c", code + "print(*{name.split('.')[0] for name in sys.modules})", *low])
    assert done.returncode == 0, done.stderr
    assert len(low) > 20 and not set(HEAVY) & set(done.stdout.split())


# The checker itself ------------------------------------------------------------------------------------------

_DOC = '"""A module."""\n'


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("cluster/new.py", "import tensorflow as tf\n", "floor 0 imports tensorflow"),
        ("cluster/new.py", "def f():\n    import tensorflow\n", "floor 0 imports tensorflow"),
        ("launch/new.py", "from tensorflow_datasets import load\n", "floor 0 imports tensorflow_datasets.load"),
        ("job/new.py", "import importlib\nimportlib.import_module('tf_keras')\n", "floor 0 imports tf_keras"),
        ("job/new.py", "import model_fns.cnn\n", "floor 0 imports model_fns.cnn"),
        ("errors.py", "from estimator_pipeline import compat\n", "floor 0 imports estimator_pipeline.compat of floor 1"),
        ("cluster/new.py", "from estimator_pipeline.inputs import InputFn\n", "of floor 2"),
        ("cluster/new.py", "from ..inputs import arrays\n", "floor 0 imports estimator_pipeline.inputs.sources.arrays of floor 2"),
        ("cluster/__init__.py", "from ..engines import job\n", "of floor 3"),
        ("inputs/order.py", "from estimator_pipeline.inputs.source import tensorflow\n", "of floor 2"),
        ("inputs/order.py", "from . import sources\n", "floor 0 imports estimator_pipeline.inputs.source of floor 2"),
        ("compat/new.py", "def f():\n    from estimator_pipeline import model_fn\n", "floor 1 imports"),
        ("compat/new.py", "import estimator_pipeline.engines.jobs.estimator\n", "of floor 3"),
        ("run_config.py", "from estimator_pipeline.engines import job\n", "floor 2 imports"),
        ("engines/new.py", "import estimator_pipeline.cli.main\n", "floor 3 imports"),
        ("engines/new.py", "if True:\n    from tensorflow.python.eager import context\n", "only compat/ may"),
        ("engines/new.py", "import tensorflow_estimator\n", "only compat/ may"),
        ("model_fn.py", "import tf_keras\n", "only compat/ may"),
        ("model_fn.py", "from tf_keras.src.engine import base_layer\n", "only compat/ may"),
        ("cli/new.py", "__import__('tensorflow.python')\n", "only compat/ may"),
        ("somewhere.py", "", "is on no floor"),
        ("cli/new.py", "x = 1\n" * 501, "want to be two files"),
    ],
)  # fmt: skip
def test_checker_finds(path, text, says):
    (problem,) = check({f"{PACKAGE}/{path}": _DOC + text})
    assert says in problem and problem.startswith(f"{PACKAGE}/{path}:")


def test_checker_finds_a_module_without_a_docstring():
    assert check({f"{PACKAGE}/errors.py": "X = 1\n"}) == [f"{PACKAGE}/errors.py:1: has no docstring"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import tensorflow as tf\n", "takes TensorFlow from compat.install()"),
        ("from tensorflow.python.ops import nn\n", "takes TensorFlow from compat.install()"),
        (
            "from estimator_pipeline.models.heads import Head\n",
            "estimator_pipeline.models.heads.Head, which is not public",
        ),
        ("from estimator_pipeline.compat import coordinator\n", "which is not public"),
        ("from estimator_pipeline import heads\n", "which is not public"),
        ("import estimator_pipeline\nh = estimator_pipeline.models.heads\n", "uses estimator_pipeline.models.heads"),
        ("from estimator_pipeline import compat\ncompat.coordinator.bind_to_task()\n", "uses compat.coordinator"),
    ],
)
def test_checker_finds_in_a_model(text, says):
    (problem,) = check({"model_fns/new.py": _DOC + text})
    assert says in problem


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{PACKAGE}/compat/new.py", "from tensorflow.python.eager import context\nimport tensorflow_estimator\n"),
        (f"{PACKAGE}/engines/new.py", "from estimator_pipeline.launch import progress\nimport tensorflow as tf\n"),
        (f"{PACKAGE}/inputs/order.py", "from estimator_pipeline.errors import InputError\nimport numpy as np\n"),
        (f"{PACKAGE}/cli/new.py", "from estimator_pipeline.engines.jobs.estimator import run_job\n"),
        (f"{PACKAGE}/cluster/new.py", "from . import spec\nfrom .tasks import Task\n"),
        ("model_fns/new.py", "from estimator_pipeline import compat, errors\ntf = compat.install()\n"),
        ("model_fns/new.py", "from estimator_pipeline.compat import install\n"),
        ("model_fns/new.py", "import estimator_pipeline\nestimator_pipeline.build_model_fn(None)\n"),
    ],
)
def test_checker_lets_pass(path, text):
    assert check({path: _DOC + text}) == []
