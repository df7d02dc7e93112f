"""The floors of the house: imports go down only, in no circle, and private TensorFlow lives in compat/ alone.

The floors are those of docs/architecture.md. The checker reads the code, so an import inside a function counts as
one at the top, and so does one under TYPE_CHECKING; and it is itself tested on violations planted for it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "estimator_pipeline"

# The rooms of each floor, the lowest first. Those of one floor do not import each other.
FLOORS = (
    ("errors",),
    ("utils",),
    ("cluster",),
    ("progress",),
    ("compat", "job"),
    ("distribute", "inputs", "launch"),
    ("models",),
    ("engines",),
    ("doctor", "migrate", "parity", "results"),
    ("testing",),
    ("cli",),
    ("__main__",),
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# What never brings in TensorFlow, at any depth. (NumPy is no such thing: the sampler is arithmetic on arrays.)
WITHOUT_TENSORFLOW = (
    "errors",
    "utils",
    "cluster",
    "progress",
    "job",
    "launch",
    "inputs.describe",
    "inputs.ledger",
    "inputs.options",
    "inputs.sampler",
    "inputs.sharding",
    "inputs.sources.paths",
    "inputs.sources.index_cache",
    "inputs.sources.tfrecord_index",
    "migrate.code",
    "migrate.configs",
    "results",
)
HEAVY = ("tensorflow", "tensorflow_estimator", "tensorflow_datasets", "keras", "tf_keras", "model_fns")
# Below this package's own public names: the part of it that a model may use.
MODEL_API = {"errors", "compat.install", "compat.status"}
# Programs of other people, which are data here.
# Names that look like those of modules, and are none.
_NO_MODULES = {f"{PACKAGE}.command", f"{PACKAGE}.cli.sample", f"{PACKAGE}.x"}
_FOREIGN = ("tests/migrate/corpus/",)
_DOTTED = re.compile(rf"\b{PACKAGE}(?:\.[A-Za-z_]\w*)+")
_IMPORT = re.compile(rf"\bfrom ({PACKAGE}(?:\.\w+)*) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)")


def room_of(name: str) -> str | None:
    """The room of `estimator_pipeline.x.y`; None for the package itself, and for what is not of it."""
    parts = name.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def is_without_tensorflow(module: str) -> bool:
    return is_within(module, *(f"{PACKAGE}.{name}" for name in WITHOUT_TENSORFLOW))


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
            return {name: where.partition(":")[0] for name, where in ast.literal_eval(node.value).items()}
    raise AssertionError("estimator_pipeline/__init__.py has no table _PUBLIC")


def check_file(path: str, text: str) -> Iterator[str]:
    """What is wrong with one file, a line each. `path` is relative to the repository."""
    module = path.removesuffix(".py").replace("/", ".")
    is_package = module.endswith(".__init__")
    module = module.removesuffix(".__init__")
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield f"{path}:1: has no docstring"
    if is_within(module, "model_fns"):
        yield from _check_model(path, tree, module, is_package)
    elif module != PACKAGE:
        yield from _check_floor(path, tree, module, is_package)


def _check_floor(path: str, tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    own = room_of(module)
    if own not in FLOOR_OF:
        yield f"{path}:1: is in no room; name it in FLOORS"
        return
    for line, name in imports_of(tree, module, is_package):
        if is_without_tensorflow(module) and is_within(name, *HEAVY):
            yield f"{path}:{line}: imports {name}, and is to do without TensorFlow"
        elif own != "compat" and is_private(name):
            yield f"{path}:{line}: imports {name}; only compat/ may"
        other = room_of(name)
        if other in FLOOR_OF and other != own and FLOOR_OF[other] >= FLOOR_OF[own]:
            higher = "a higher floor" if FLOOR_OF[other] > FLOOR_OF[own] else "the same floor"
            yield f"{path}:{line}: {own} imports {name} of {higher}"


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


def _module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def circles(files: Mapping[str, str]) -> list[list[str]]:
    """Modules that import each other, however long the way round is (Tarjan's strongly connected components)."""
    modules = {_module_of(path): path for path in files}
    arrows: dict[str, list[str]] = {}
    for module, path in modules.items():
        names = imports_of(ast.parse(files[path]), module, path.endswith("__init__.py"))
        found = (_longest(name, modules) for _, name in names)
        arrows[module] = sorted({other for other in found if other is not None and other != module})
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for other in arrows[module]:
            if other not in numbers:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == numbers[module]:
            components.append(stack[(at := stack.index(module)) :])
            del stack[at:]

    for module in modules:
        if module not in numbers:
            visit(module)
    return [sorted(component) for component in components if len(component) > 1]


def _longest(name: str, modules: Iterable[str]) -> str | None:
    """The module that `a.b.c` is, or is of."""
    parts = name.split(".")
    return next((known for n in range(len(parts), 0, -1) if (known := ".".join(parts[:n])) in modules), None)


# The house ------------------------------------------------------------------------------------------------


def test_the_house_keeps_its_floors():
    files = _files()
    assert len(files) > 40
    problems = check(files)
    assert not problems, "\n".join(problems)


def test_nothing_is_imported_in_a_circle():
    assert circles(_files()) == []


def test_an_engine_imports_no_other_engine():
    """Each has a task's roles and its library; what two share is in `core` or `keras_common`."""
    engines, shared = ("estimator", "keras", "keras3"), ("core", "keras_common", "model_dir", "recording")
    wrong = [
        (path, other)
        for folder in (*engines, *shared)
        for path in (ROOT / PACKAGE / "engines" / folder).rglob("*.py")
        for other in engines
        if other != folder
        and re.search(rf"^\s*(from|import) {PACKAGE}\.engines\.{other}\b", path.read_text(), re.MULTILINE)
    ]
    assert wrong == []


def test_tf_config_is_read_where_a_process_is_entered():
    """By commands, their events, functions that a program calls, and trainings of a program, which may set it."""
    readers = re.compile(rf"from {PACKAGE}\.cluster(?:\.spec)? import .*\bfrom_environ\b")
    assert {path for path, text in _files().items() if readers.search(text)} == {
        f"{PACKAGE}/{path}"
        for path in (
            "cli/predict.py", "cli/train.py", "cluster/environments/tf_config.py", "cluster/proxies.py", "distribute/run_config.py",
            "engines/estimator/backend.py", "engines/estimator/legacy.py", "engines/jobs/loaded.py", "engines/jobs/run.py",
            "engines/recording/ledger.py", "inputs/program_shards.py", "models/callbacks.py", "progress/task_events.py",
        )
    }  # fmt: skip


def test_no_two_classes_have_one_name():
    """What a search finds is the one that is meant. Names with an underscore are their module's own."""
    classes = Counter(
        node.name
        for path, text in _files().items()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in classes.items() if count > 1]


def test_every_room_that_is_named_is_there():
    """A name in FLOORS that no module bears would let a misspelt rule pass for a kept one."""
    modules = {_module_of(path) for path in _files()}
    assert not [name for name in (*FLOOR_OF, *WITHOUT_TENSORFLOW) if f"{PACKAGE}.{name}" not in modules]


def test_public_names_come_from_modules_that_exist():
    modules = {_module_of(path) for path in _files()}
    public = public_names(ast.parse((ROOT / PACKAGE / "__init__.py").read_text()))
    assert len(public) > 5 and set(public.values()) <= modules


def test_every_import_and_every_name_of_a_module_leads_somewhere():
    """In the code, its strings and its tests: `mock.patch("estimator_pipeline...")`, `python -m`, tables of names."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, capture_output=True)
    if listed.returncode != 0:
        pytest.skip("no checkout")
    known = {path: _names_in(ast.parse(text)) for path, text in _files().items()}
    modules = {_module_of(path): path for path in known}
    lost = []
    for path in listed.stdout.decode().split():
        if path.startswith(_FOREIGN) or path == "tests/repository/test_layering.py" or not (ROOT / path).exists():
            continue
        for line, name in _named_in(ast.parse((ROOT / path).read_text())):
            module = _longest(name, modules)
            rest = name.removeprefix(f"{module}.").split(".")[0]
            if name in _NO_MODULES or is_within(name, f"{PACKAGE}.compat.contrib"):
                continue  # names of tf.contrib, which are looked up
            if module is None or (name != module and rest not in known[modules[module]]):
                lost.append(f"{path}:{line}: {name}")
    assert not lost, "\n".join(lost)


def _named_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and is_within(node.module or "", PACKAGE):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if is_within(alias.name, f"{PACKAGE}"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((node.lineno, name) for name in _DOTTED.findall(node.value))
            # A program in a text.
            for package, names in _IMPORT.findall(node.value):
                yield from ((node.lineno, f"{package}.{name.split()[0]}") for name in names.split(", "))


def _names_in(tree: ast.Module) -> set[str]:
    """What a module may have: names that it binds anywhere, and text that is a name, as in the tables of faces."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)
    return names


def test_what_does_without_tensorflow_runs_without_it(run_python):
    """What the code says holds when it runs: importing a module also runs the packages that it is in."""
    low = [
        name
        for name in map(_module_of, _files())
        if is_without_tensorflow(name) or (is_within(name, f"{PACKAGE}.compat") and not _is_of_contrib(name))
    ]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    done = run_python(["-c", code + "print(*{name.split('.')[0] for name in sys.modules})", *low])
    assert done.returncode == 0, done.stderr
    assert len(low) > 20 and not set(HEAVY) & set(done.stdout.split())


def _is_of_contrib(name: str) -> bool:
    """Whether a module stands for one of tf.contrib: it is code for TensorFlow, imported when a program asks for it."""
    contrib = f"{PACKAGE}.compat.tf1.contrib"
    return (
        is_within(name, contrib) and name not in (contrib, f"{contrib}.files")
    ) or name == f"{PACKAGE}.compat.contrib"


# The checker itself ------------------------------------------------------------------------------------------

_DOC = '"""A module."""\n'


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("cluster/new.py", "import tensorflow as tf\n", "imports tensorflow, and is to do without"),
        ("cluster/new.py", "def f():\n    import tensorflow\n", "imports tensorflow, and is to do without"),
        ("launch/new.py", "from tensorflow_datasets import load\n", "imports tensorflow_datasets.load, and"),
        ("job/new.py", "import importlib\nimportlib.import_module('tf_keras')\n", "imports tf_keras, and"),
        ("job/new.py", "import model_fns.cnn\n", "imports model_fns.cnn, and"),
        ("errors.py", "from estimator_pipeline import compat\n", "errors imports estimator_pipeline.compat of a higher floor"),
        ("cluster/new.py", "from estimator_pipeline.inputs import InputFn\n", "of a higher floor"),
        ("cluster/new.py", "from ..inputs import source\n", "cluster imports estimator_pipeline.inputs.source of a higher floor"),
        ("cluster/__init__.py", "from ..engines import jobs\n", "of a higher floor"),
        ("inputs/sampler.py", "import tensorflow\n", "imports tensorflow, and"),
        ("launch/new.py", "from estimator_pipeline.inputs import sampler\n", "of the same floor"),
        ("compat/new.py", "def f():\n    from estimator_pipeline import models\n", "compat imports"),
        ("compat/new.py", "import estimator_pipeline.engines.jobs.run\n", "of a higher floor"),
        ("models/new.py", "from estimator_pipeline.engines import jobs\n", "models imports"),
        ("engines/new.py", "import estimator_pipeline.cli.main\n", "engines imports"),
        ("engines/new.py", "if True:\n    from tensorflow.python.eager import context\n", "only compat/ may"),
        ("engines/new.py", "import tensorflow_estimator\n", "only compat/ may"),
        ("models/model_fn.py", "import tf_keras\n", "only compat/ may"),
        ("models/model_fn.py", "from tf_keras.src.engine import base_layer\n", "only compat/ may"),
        ("cli/new.py", "__import__('tensorflow.python')\n", "only compat/ may"),
        ("somewhere.py", "", "is in no room"),
    ],
)  # fmt: skip
def test_checker_finds(path, text, says):
    (problem,) = check({f"{PACKAGE}/{path}": _DOC + text})
    assert says in problem and problem.startswith(f"{PACKAGE}/{path}:")


def test_checker_finds_a_circle():
    a, b, c = (f"from {PACKAGE}.utils import {other}\n" for other in ("b", "c", "a"))
    files = {f"{PACKAGE}/utils/{name}.py": text for name, text in (("a", a), ("b", b), ("c", c), ("d", a))}
    assert circles(files) == [[f"{PACKAGE}.utils.{name}" for name in "abc"]]


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
        ("from estimator_pipeline.compat import delegates\n", "which is not public"),
        ("from estimator_pipeline import models\n", "which is not public"),
        ("import estimator_pipeline\nh = estimator_pipeline.models\n", "uses estimator_pipeline.models"),
        ("from estimator_pipeline import compat\ncompat.delegates.own_model_dir()\n", "uses compat.delegates"),
    ],
)
def test_checker_finds_in_a_model(text, says):
    (problem,) = check({"model_fns/new.py": _DOC + text})
    assert says in problem


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{PACKAGE}/compat/new.py", "from tensorflow.python.eager import context\nimport tensorflow_estimator\n"),
        (f"{PACKAGE}/engines/new.py", "from estimator_pipeline.progress import task_events\nimport tensorflow as tf\n"),
        (f"{PACKAGE}/inputs/sampler.py", "from estimator_pipeline.errors import InputError\nimport numpy as np\n"),
        (f"{PACKAGE}/cli/new.py", "from estimator_pipeline.engines.jobs.run import run_job\n"),
        (f"{PACKAGE}/cluster/new.py", "from . import spec\nfrom .tasks import Task\n"),
        ("model_fns/new.py", "from estimator_pipeline import compat, errors\ntf = compat.install()\n"),
        ("model_fns/new.py", "from estimator_pipeline.compat import install\n"),
        ("model_fns/new.py", "import estimator_pipeline\nestimator_pipeline.build_model_fn(None)\n"),
    ],
)
def test_checker_lets_pass(path, text):
    assert check({path: _DOC + text}) == []
