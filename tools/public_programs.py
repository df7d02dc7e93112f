"""Runner that scans, converts and runs public Estimator programs on generated data.

    python tools/public_programs.py CHECKOUTS [--list FILE] [--only NAME ...] [--parity]
                                    [--to both|estimator|keras] [--python FILE] [--json FILE] [--keep DIR]

tools/public_programs.yaml lists the programs: repository, commit, files, arguments, and how to generate the data, since
no data set is downloaded. CHECKOUTS has a checkout of each repository, as OWNER+NAME or OWNER/NAME. A program whose
checkout or package is missing is skipped with a message.

The output has one line per program: whether `migrate scan` reads it; `estimator`, whether it runs under `exec` after
`migrate convert --to estimator`; `keras`, how many of its files with Estimators are converted to Keras, and `runs`,
whether plain python, or the one of `--python`, runs the result; with `--parity`, whether the unchanged program and the
result train, evaluate and predict the same, see tools/public_parity.py. The totals and the reasons for unconverted
files follow. The exit code is 1 if the list has an error; it does not depend on the results of the programs.

The repository has no code of the programs. Each program is copied to a temporary folder before anything is written;
notebooks become scripts, and Python 2 code goes through 2to3.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import gzip
import importlib.util
import io
import json
import os
import pickle
import random
import re
import shlex
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import public_parity
import yaml

LIST = Path(__file__).with_suffix(".yaml")
KERAS = "keras"
TARGETS = ("estimator", KERAS)
SECONDS = 120  # for one run of a program
WRAPPER = "_with_stub.py"
PREDICT = "def predict(model, data, predictions"  # of converted programs
# Names that IPython defines in a notebook.
NOTEBOOK = """\
import builtins, types
builtins.display = print
builtins.get_ipython = lambda: types.SimpleNamespace(system=lambda *args: None, system_raw=lambda *args: None)
"""

# A number, a product or power of numbers, or a quoted string.
_NUMBER = r"-?\d[\d_.]*(?:e-?\d+)?(?:\s*\*{1,2}\s*\d[\d_.]*)*"
_LITERAL = rf"(?:{_NUMBER}|'[^'\n]*'|\"[^\"\n]*\"|None\b|True\b|False\b)"
_ERROR = re.compile(r"^\s*[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Warning|Exit|NotFound|OutOfRange)\b.*")
# A loss in the log of a training or in the output of a program.
_LOSS = re.compile(r"\bloss\b\W{0,6}\d", re.IGNORECASE)
_AT_LINE = re.compile(r"^line \d+: ")
_PLACE = re.compile(r"\S+\.py(?:, line \d+)?: ")
_ONE_PROGRAM = re.compile(r"^in the same program as [^;]*; ")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of the list.

    Attributes:
        name: the name in the output.
        repository, commit: its source.
        folder: the converted folder or single file, relative to the checkout.
        main: the script or notebook, relative to `folder`; or `-m MODULE`.
        argv: its arguments in shell syntax; `{work}` is replaced by the working folder, as in every text.
        files: patterns of the files of `folder` that belong to it; all files by default.
        cwd: the directory in which it runs, relative to `folder`.
        env: environment variables.
        packages: imported packages that may be missing.
        python2: whether it goes through 2to3 first.
        tf1: whether it runs under `exec --tf1`, as the docs advise for tf.contrib.
        trains: whether a run must write a checkpoint or print a loss.
        constants: NAME -> value that replaces the literal in `NAME = LITERAL`; `put: VALUE` replaces any expression
            of an assignment on one line.
        paths: quoted text -> replacement, for paths that are literals in the program.
        data: the data that are generated before it runs; see `KINDS`.
        stub: code, or names of code in the list, that runs before the program in its process.
        note: a note for readers.
    """

    name: str
    repository: str
    commit: str
    folder: str
    main: str
    argv: str = ""
    files: Sequence[str] = ()
    cwd: str = "."
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    packages: Sequence[str] = ()
    python2: bool = False
    tf1: bool = False
    trains: bool = True
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    data: Sequence[Mapping[str, Any]] = ()
    stub: Sequence[str] = ()
    note: str = ""


@dataclasses.dataclass
class Result:
    """The result of a program; a text is "ok", the reason for a failure, or "" if it was not tried."""

    name: str
    repository: str
    tf1: bool = False
    left_out: str = ""
    scan: str = ""
    estimator: str = ""
    keras: dict[str, str] = dataclasses.field(default_factory=dict)
    runs: str = ""
    parity: str = ""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    output: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def converted(self) -> int:
        """The number of its files that were converted to Keras."""
        return sum(state == KERAS for state in self.keras.values())


def read(path: Path) -> tuple[list[Program], dict[str, str]]:
    """Return the programs of a list, and the code that their stubs name."""
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))
    programs = [Program(**entry) for entry in listed["programs"]]
    twice = [name for name, count in collections.Counter(program.name for program in programs).items() if count > 1]
    if twice:
        raise SystemExit(f"{path}: {', '.join(twice)}: more than once")
    stubs = listed if path == LIST else yaml.safe_load(LIST.read_text(encoding="utf-8"))
    return programs, {**stubs["stubs"], **listed.get("stubs", {})}


# Data


def _draw(kind: Any, draw: random.Random) -> Any:
    """Draw a value: between two numbers, one of several texts, or the value itself for anything else."""
    if isinstance(kind, list):
        if len(kind) == 2 and all(isinstance(bound, (int, float)) for bound in kind):
            integers = all(isinstance(bound, int) for bound in kind)
            return draw.randint(*kind) if integers else round(draw.uniform(*kind), 4)
        return draw.choice(kind)
    return kind


def _columns(columns: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names with their kinds; `C{1..26}` are 26 names of one kind."""
    for name, kind in columns.items():
        match = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}(.*)", str(name))
        if match is None:
            yield str(name), kind
            continue
        before, first, last, behind = match.groups()
        for number in range(int(first), int(last) + 1):
            yield f"{before}{number}{behind}", kind


def _csv(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    columns = list(_columns(entry["columns"]))
    separator = entry.get("separator", ",")
    lines = [separator.join(name for name, _ in columns)] if entry.get("header") else []
    for _ in range(entry.get("rows", 64)):
        lines.append(separator.join(str(_draw(kind, draw)) for _, kind in columns))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _libsvm(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    fields, features = entry["fields"], entry["features"]
    lines = []
    for _ in range(entry.get("rows", 64)):
        ids = sorted(draw.sample(range(1, features), fields))
        label = _draw(entry.get("label", [0, 1]), draw)
        lines.append(" ".join([str(label), *(f"{index}:{draw.random():.4f}" for index in ids)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _text(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    lines = entry.get("lines")
    if lines is None:
        words, (least, most) = entry["words"], entry.get("length", [3, 8])
        lines = [" ".join(draw.choices(words, k=draw.randint(least, most))) for _ in range(entry.get("rows", 64))]
    path.write_text("\n".join(str(line) for line in lines) + "\n", encoding="utf-8")


def _array(entry: Mapping[str, Any], draw: random.Random) -> np.ndarray:
    numbers = np.random.default_rng(draw.getrandbits(32))
    low, high = entry["of"]
    if isinstance(low, float) or isinstance(high, float):
        drawn = numbers.uniform(low, high, entry["shape"])
    else:
        drawn = numbers.integers(low, high, entry["shape"], endpoint=True)
    return drawn.astype(entry.get("type", drawn.dtype))


def _npz(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    arrays: dict[str, Any] = {name: _array(of, draw) for name, of in entry["arrays"].items()}
    np.savez(path, **arrays)


def _npy(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    np.save(path, _array(entry, draw))


def _json(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    path.write_text(json.dumps(entry["value"]), encoding="utf-8")


def _mnist(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    """Write the four files of MNIST to a folder."""
    path.mkdir(parents=True, exist_ok=True)
    for prefix, rows in (("train", entry.get("rows", 256)), ("t10k", entry.get("test", 64))):
        images = _array({"of": [0, 255], "shape": [rows, 28, 28], "type": "uint8"}, draw)
        labels = _array({"of": [0, 9], "shape": [rows], "type": "uint8"}, draw)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = np.array([0x800 + array.ndim, *array.shape], ">i4").tobytes()
            with gzip.open(path / f"{prefix}-{kind}-ubyte.gz", "wb") as file:
                file.write(head + array.tobytes())
            if entry.get("unpacked"):
                (path / f"{prefix}-{kind}-ubyte").write_bytes(head + array.tobytes())


def _cifar10(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    """Write the files of CIFAR-10 to a folder, binary or pickled; `pickled` is the type of the keys, text or bytes."""
    path.mkdir(parents=True, exist_ok=True)
    rows = entry.get("rows", 64)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        labels = _array({"of": [0, 9], "shape": [rows, 1], "type": "uint8"}, draw)
        images = _array({"of": [0, 255], "shape": [rows, 3072], "type": "uint8"}, draw)
        if entry.get("pickled"):
            content: dict[Any, Any] = {"data": images, "labels": labels[:, 0].tolist()}
            if entry["pickled"] == "bytes":
                content = {name.encode(): value for name, value in content.items()}
            (path / name).write_bytes(pickle.dumps(content, protocol=2))
        else:
            (path / f"{name}.bin").write_bytes(np.concatenate([labels, images], axis=1).tobytes())


def _images(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    """Write images; `path` has the placeholders `{label}` and `{number}`."""
    for label in entry.get("labels", [""]):
        for number in range(entry.get("rows", 4)):
            file = Path(str(path).replace("{label}", str(label)).replace("{number}", str(number)))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_encoded(file.suffix, entry["size"], draw, most=entry.get("most", 255)))


def _encoded(suffix: str, size: Sequence[int], draw: random.Random, most: int = 255) -> bytes:
    import tensorflow as tf

    image = _array({"of": [0, most], "shape": size, "type": "uint8"}, draw)
    return (tf.io.encode_png if suffix == ".png" else tf.io.encode_jpeg)(image).numpy()


def _tfrecord(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    """Write Examples: a feature is `int`, `float` or `words` with its values, or `png` or `jpeg` with its size.

    `size` is the number of values, or the two bounds between which it is drawn.
    """
    import tensorflow as tf

    def feature(of: Mapping[str, Any]) -> tf.train.Feature:
        size = _draw(of.get("size", 1), draw)
        if "int" in of:
            return tf.train.Feature(
                int64_list=tf.train.Int64List(value=[int(_draw(of["int"], draw)) for _ in range(size)])
            )
        if "float" in of:
            numbers = [float(_draw(of["float"], draw)) for _ in range(size)]
            return tf.train.Feature(float_list=tf.train.FloatList(value=numbers))
        if "raw" in of:
            content = [_array({"of": [0, 255], "shape": of["raw"], "type": "uint8"}, draw).tobytes()]
        elif "words" in of:
            content = [str(_draw(of["words"], draw)).encode() for _ in range(size)]
        else:
            ((kind, shape),) = of.items()
            content = [_encoded(f".{kind}", shape, draw)]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=content))

    with tf.io.TFRecordWriter(str(path), options=entry.get("compression", "")) as writer:
        for _ in range(entry.get("rows", 64)):
            features = {name: feature(of) for name, of in _columns(entry["features"])}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def _python(path: Path, entry: Mapping[str, Any], draw: random.Random) -> None:
    """Run code of the list that writes other data; it can use `work`, `draw`, `np`, `os` and `json`."""
    exec(entry["code"], {"work": str(path), "draw": draw, "np": np, "os": os, "json": json})


KINDS: dict[str, Callable[[Path, Mapping[str, Any], random.Random], None]] = {
    "csv": _csv,
    "libsvm": _libsvm,
    "text": _text,
    "npz": _npz,
    "npy": _npy,
    "json": _json,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "images": _images,
    "tfrecord": _tfrecord,
    "python": _python,
}


def make_data(program: Program, work: Path) -> None:
    """Generate the data of a program, deterministically."""
    for number, entry in enumerate(program.data):
        paths = entry.get("path", ".")
        for path in paths if isinstance(paths, list) else [paths]:
            target = work / path
            if "{" not in path:
                target.parent.mkdir(parents=True, exist_ok=True)
            KINDS[entry["kind"]](target, entry, random.Random(f"{program.name} {number} {path}"))


# Programs


def checkout(checkouts: Path, program: Program) -> Path | None:
    """Return the checkout of a program's repository."""
    owner, name = program.repository.split("/")
    for path in (checkouts / f"{owner}+{name}", checkouts / owner / name):
        if (path / program.folder).exists():
            return path
    return None


def commit(path: Path) -> str:
    """Return the commit of a checkout, from its history or from its file `.commit`."""
    if (path / ".commit").is_file():
        return (path / ".commit").read_text().split()[0]
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=path, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip()


def copy(source: Path, program: Program, target: Path) -> None:
    """Copy the files of a program."""
    origin = source / program.folder
    if origin.is_file():
        target.mkdir(parents=True)
        shutil.copy2(origin, target)
        return
    if not program.files:
        shutil.copytree(origin, target, ignore=shutil.ignore_patterns(".git", ".ipynb_checkpoints", "*_test.py"))
        return
    for pattern in program.files:
        for path in origin.glob(pattern):
            if path.is_file():
                (target / path.relative_to(origin)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target / path.relative_to(origin))


def script(notebook: Path) -> Path:
    """Replace a notebook by a script with its code cells, and write its `%%writefile` files."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))
    cells = cells["cells"] if "cells" in cells else [cell for sheet in cells["worksheets"] for cell in sheet["cells"]]
    parts = []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        text = cell.get("source", cell.get("input", ""))
        text = text if isinstance(text, str) else "".join(text)
        first, _, rest = text.lstrip().partition("\n")
        if first.startswith("%%writefile"):
            path = notebook.parent / first.split()[-1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rest, encoding="utf-8")
        elif not first.startswith(("%%", "%bash")):
            parts.append(_without_magics(text))
        elif first.startswith(("%%time", "%%capture")):
            parts.append(_without_magics(rest))
    path = notebook.with_name(re.sub(r"\W+", "_", notebook.stem).strip("_") + ".py")
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    notebook.unlink()
    return path


def _without_magics(text: str) -> str:
    line = r"(?:[^\n\\]|\\\n|\\.)*"
    text = re.sub(rf"(?m)^(?:[%!]{line}|\?.*|[\w.]+\?{{1,2}}[ \t]*|\w+ ?= ?[!%]{line})$", "", text)
    # A block may have no other statement.
    return re.sub(rf"(?m)^([ \t]+)(?:[%!]{line}|\w+ ?= ?[!%]{line})$", r"\1pass", text)


def to_python_3(path: Path) -> None:
    """Run 2to3 on a file. Indentation that mixes tabs and blanks, which Python 2 allows, becomes blanks."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from lib2to3 import refactor

    with contextlib.redirect_stderr(io.StringIO()):
        tool = refactor.RefactoringTool(refactor.get_fixers_from_package("lib2to3.fixes"))
        text = re.sub(r"(?m)^[ \t]+", lambda margin: margin[0].expandtabs(8), path.read_text(encoding="utf-8"))
        path.write_text(str(tool.refactor_string(text + "\n", path.name)), encoding="utf-8")


def adjust(program: Program, folder: Path, work: Path) -> None:
    """Replace constants and paths of a program by the values of the list."""
    for path in folder.rglob("*.py"):
        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            continue
        before = text
        for name, value in program.constants.items():
            target, old = rf"(?<![\w.'\"]){re.escape(name)}\s*=\s*", _LITERAL
            if isinstance(value, dict):
                value, target, old = value["put"], rf"(?m:^)[ \t]*{re.escape(name)}[ \t]*=[ \t]*", ".+"
            put = repr(value.replace("{work}", str(work)) if isinstance(value, str) else value)
            text = re.sub(f"({target}){old}", lambda match: match[1] + put, text)  # noqa: B023
        for old, new in program.paths.items():
            for quote in "'\"":
                text = text.replace(f"{quote}{old}{quote}", f"{quote}{new.replace('{work}', str(work))}{quote}")
        if text != before:
            path.write_bytes(text.encode("utf-8"))


def stage(program: Program, folder: Path, work: Path) -> str:
    """Prepare the copy of a program for conversion, and return its main script."""
    main = program.main
    if main.startswith("-m "):
        for notebook in folder.glob("*.ipynb"):  # which writes the module
            script(notebook)
    elif main.endswith(".ipynb"):
        main = script(folder / main).relative_to(folder).as_posix()
        for other in folder.rglob("*.ipynb"):
            other.unlink()
    if program.python2:
        for path in folder.rglob("*.py"):
            to_python_3(path)
    adjust(program, folder, work)
    return main


def prepare(program: Program, folder: Path, work: Path, converted: Any = None) -> None:
    """Write a program, where it is converted its conversion, with its other files and its data."""
    from estimator_pipeline.migrate.code.write import write

    if converted is not None:
        write(converted, work)
    for path in folder.rglob("*"):
        target = work / path.relative_to(folder)
        if path.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    make_data(program, work)


def stub_code(program: Program, stubs: Mapping[str, str], work: Path) -> str:
    """Return the code that runs before a program."""
    parts = [NOTEBOOK] if program.main.endswith(".ipynb") else []
    parts += [stubs.get(stub, stub) for stub in program.stub]
    return "\n".join(parts).replace("{work}", str(work))


def wrap(code: str, work: Path, cwd: Path) -> None:
    """Write the script that runs a stub, and then the program as `__main__`."""
    (work / "_stub.py").write_text(code, encoding="utf-8")
    (cwd / WRAPPER).write_text(
        "import runpy, sys\n"
        f"exec(compile(open({str(work / '_stub.py')!r}).read(), '_stub.py', 'exec'), {{}})\n"
        "sys.argv = sys.argv[1:]\n"
        "if sys.argv[0] == '-m':\n"
        "    sys.argv = sys.argv[1:]\n"
        "    sys.path[0] = ''\n"
        "    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
        "else:\n"
        "    __file__ = sys.argv[0]\n"
        "    sys.path[0] = __import__('os').path.dirname(__import__('os').path.abspath(__file__))\n"
        "    exec(compile(open(__file__, encoding='utf-8').read(), __file__, 'exec', dont_inherit=True))\n",
        encoding="utf-8",
    )


def command(
    program: Program, main: str, work: Path, stubs: Mapping[str, str], first: str = ""
) -> tuple[list[str], Path]:  # fmt: skip
    """Return the arguments of the interpreter, and the working directory; `first` is code that runs first."""
    cwd = work / program.cwd
    argv = [argument.replace("{work}", str(work)) for argument in shlex.split(program.argv)]
    script_words = main.split() if main.startswith("-m ") else [os.path.relpath(work / main, cwd)]
    code = "\n".join(filter(None, [first, stub_code(program, stubs, work)]))
    if not code:
        return [*script_words, *argv], cwd
    wrap(code, work, cwd)
    return [WRAPPER, *script_words, *argv], cwd


def run(words: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> tuple[int, str]:
    """Run a command in a new process group, which is killed at the end; return its exit code and output."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            words, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read()


def environment(program: Program, work: Path) -> dict[str, str]:
    """Return the environment of a run, which uses the same estimator_pipeline as this process."""
    import estimator_pipeline

    home = Path(estimator_pipeline.__file__).resolve().parents[1]
    (work / "_tmp").mkdir(exist_ok=True)
    defaults = {
        "CUDA_VISIBLE_DEVICES": "-1",
        "MPLBACKEND": "Agg",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH")])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TMPDIR": str(work / "_tmp"),
    }
    explicit = {name: str(value).replace("{work}", str(work)) for name, value in program.env.items()}
    if "PYTHONPATH" in explicit:
        explicit["PYTHONPATH"] = os.pathsep.join([explicit["PYTHONPATH"], defaults["PYTHONPATH"]])
    return {**os.environ, **defaults, **explicit}


def last_error(code: int, output: str) -> str:
    """Return the line of a program's output with the error."""
    if code == -signal.SIGKILL:
        return f"more than {SECONDS} s"
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line) and not line.lstrip().startswith("File ")]
    return (errors or lines or [""])[-1].strip() or f"exit code {code}"


def has_trained(work: Path, output: str) -> bool:
    """Return whether a run wrote a checkpoint or printed a loss."""
    return any(work.rglob("*.index")) or any(work.rglob("checkpoint")) or _LOSS.search(output) is not None


def try_estimator(program: Program, folder: Path, main: str, work: Path, stubs: Mapping[str, str]) -> tuple[str, str]:
    """Convert a program but keep its Estimators, run it under `exec`; return "ok" or the error, and the output."""
    from estimator_pipeline.migrate.code import convert

    try:
        converted = convert(folder, to="estimator")
    except Exception as error:
        return f"the converter fails: {type(error).__name__}: {error}", ""
    prepare(program, folder, work, converted)
    words, cwd = command(program, main, work, stubs)
    options = ["--tf1"] if program.tf1 else []
    code, output = run(
        [sys.executable, "-m", "estimator_pipeline", "exec", *options, *words], cwd, environment(program, work)
    )
    if code:
        return last_error(code, output), output
    if program.trains and not has_trained(work, output):
        return "it exits without training", output
    return "ok", output


def try_keras(
    program: Program, folder: Path, main: str, work: Path, stubs: Mapping[str, str], python: str
) -> tuple[dict[str, str], str, str]:
    """Convert a program to Keras, and run it if any of its files was converted.

    Returns:
        For each file with Estimators KERAS or the reason why it was not converted; "ok" or the error of
        the run; its output.
    """
    from estimator_pipeline.migrate.code import convert

    try:
        converted = convert(folder)
    except Exception as error:
        return {main: f"the converter fails: {type(error).__name__}: {error}"}, "", ""
    files = {
        file.path: KERAS if file.keras else file.kept_as_estimator or file.kept
        for file in converted.files
        if file.keras or file.kept_as_estimator or file.kept
    }
    if KERAS not in files.values():
        return files, "", ""
    prepare(program, folder, work, converted)
    words, cwd = command(program, main, work, stubs)
    code, output = run([python, *words], cwd, environment(program, work))
    return files, last_error(code, output) if code else "ok", output


def try_parity(
    program: Program, original: Path, scratch: Path, stubs: Mapping[str, str], python: str = sys.executable
) -> tuple[str, str]:  # fmt: skip
    """Compare the run of a program with that of its conversion; return the summary and the output.

    Args:
        original: the program, unchanged.
        python: the interpreter that runs the conversion.
    """
    from estimator_pipeline.migrate.code import convert

    records, output = scratch / "parity", ""
    for target, watch in (("estimator", "watch_estimators"), ("keras", "watch_models")):
        folder, work = scratch / f"parity-{target}-source", scratch / f"parity-{target}"
        shutil.copytree(original, folder)
        main = stage(program, folder, work)
        first = (
            f"import builtins, sys; sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})\n"
            f"import public_parity; builtins.recorded = public_parity.{watch}({str(records)!r})"
        )
        if target == "estimator":
            prepare(program, folder, work)
            words, cwd = command(program, main, work, stubs, first)
            options = ["--tf1"] if program.tf1 or is_tensorflow_1(folder) else []
            words = [sys.executable, "-m", "estimator_pipeline", "exec", *options, *words]
        else:
            prepare(program, folder, work, convert(folder))
            for path in work.rglob("*.py"):
                text = path.read_text(encoding="utf-8")
                path.write_text(text.replace(f"\n{PREDICT}", f"\n@recorded\n{PREDICT}"), encoding="utf-8")
            words, cwd = command(program, main, work, stubs, first)
            words = [python, *words]
        code, printed = run(words, cwd, environment(program, work))
        output += printed
        if code or not (records / f"{target}.recorded").exists():
            return f"{target}: {last_error(code, printed) if code else 'it trains nothing'}", output
    _, summary = public_parity.compare(records)
    return summary, output


def is_tensorflow_1(folder: Path) -> bool:
    """Return whether a program has names that only TensorFlow 1 has."""
    from estimator_pipeline.migrate.code import convert

    switch = "disable_v2_behavior()"
    return any(switch in file.after.replace(file.before, "") for file in convert(folder, to="estimator").files)


def examine(
    program: Program, checkouts: Path, stubs: Mapping[str, str], to: str, scratch: Path, *, parity: bool = False,
    python: str = sys.executable,
) -> Result:  # fmt: skip
    """Scan, convert and run one program."""
    from estimator_pipeline.migrate.code import scan

    result = Result(program.name, program.repository, program.tf1)
    source = checkout(checkouts, program)
    needed = [*program.packages, *(["lib2to3"] if program.python2 else [])]  # Python 3.13 has none
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if source is None:
        result.left_out = "no checkout"
    elif commit(source) != program.commit:
        result.left_out = f"the checkout is of {commit(source)[:8] or 'no commit'}, not of {program.commit[:8]}"
    elif missing:
        result.left_out = f"{', '.join(missing)}: not installed"
    if source is None or result.left_out:
        return result
    original = scratch / "original"
    copy(source, program, original)
    try:
        scan(original)
        result.scan = "ok"
    except Exception as error:
        result.scan = f"{type(error).__name__}: {error}"
    for target in TARGETS if to == "both" else (to,):
        started, folder, work = time.monotonic(), scratch / f"{target}-source", scratch / target
        shutil.copytree(original, folder)
        main = stage(program, folder, work)
        if target == "estimator":
            result.estimator, result.output[target] = try_estimator(program, folder, main, work, stubs)
        else:
            result.keras, result.runs, result.output[target] = try_keras(program, folder, main, work, stubs, python)
        if parity and result.runs == "ok":
            result.parity, result.output["parity"] = try_parity(program, original, scratch, stubs, python)
        result.seconds[target] = round(time.monotonic() - started, 1)
    return result


# The report


def _short(text: str, width: int = 110) -> str:
    text = " ".join("".join(character if character in string.printable else "?" for character in text).split())
    return text if len(text) <= width else text[: width - 1] + "~"


def line(result: Result) -> str:
    """Return the output line of a program."""
    if result.left_out:
        return f"{result.name:34} left out: {result.left_out}"
    keras = f"{result.converted} of {len(result.keras)}" if result.keras else "-"
    cells = [f"{result.name:34}", f"scan {result.scan}"]
    cells += [f"estimator{' --tf1' if result.tf1 else ''} {_short(result.estimator)}"] if result.estimator else []
    cells += [f"keras {keras}"] if result.keras else []
    cells += [f"runs {_short(result.runs)}"] if result.runs else []
    cells += [f"parity {_short(result.parity)}"] if result.parity else []
    cells += [f"{sum(result.seconds.values()):.0f} s"]
    return "  ".join(cells)


def reason(message: str) -> str:
    """Return the reason why a file was not converted, without places and names of the file."""
    message = _PLACE.sub("", _ONE_PROGRAM.sub("", _AT_LINE.sub("", message)))
    return re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"", "...", message)


def totals(results: Sequence[Result]) -> list[str]:
    """Return the lines of the totals."""

    def share(part: int, whole: int) -> str:
        return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")

    tried = [result for result in results if not result.left_out]
    lines = [f"{len(tried)} programs of {len({result.repository for result in tried})} repositories"]
    lines.append(f"scanned: {share(sum(result.scan == 'ok' for result in tried), len(tried))}")
    estimators = [result for result in tried if result.estimator]
    if estimators:
        run = [result for result in estimators if result.estimator == "ok"]
        under = sum(result.tf1 for result in run)
        lines.append(f"estimator, runs: {share(len(run), len(estimators))} programs, {under} of them under --tf1")
    of_keras = [result for result in tried if result.keras]
    if of_keras:
        files = sum(len(result.keras) for result in of_keras)
        count = sum(result.converted for result in of_keras)
        lines.append(f"keras: {share(count, files)} files with Estimators become Keras layers,")
        states = [state for result in of_keras for state in result.keras.values()]
        converted = [result for result in of_keras if result.converted]
        whole = [result for result in converted if result.converted == len(result.keras)]
        lines.append(f"       {share(len(whole), len(of_keras))} programs with all their files")
        lines.append(f"keras, runs: {share(sum(result.runs == 'ok' for result in converted), len(converted))} programs")
        compared = [result for result in converted if result.parity]
        if compared:
            equal = sum(result.parity.startswith("equal") for result in compared)
            lines.append(f"parity: {share(equal, len(compared))} of these")
        reasons = collections.Counter(reason(state) for state in states if state != KERAS)
        if reasons:
            lines += ["", "files  remain Estimator programs because"]
            lines += [f"{count:5}  {_short(text, 160)}" for text, count in reasons.most_common()]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", type=Path, metavar="CHECKOUTS")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="the programs")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these programs")
    parser.add_argument("--to", choices=("both", *TARGETS), default="both")
    parser.add_argument("--parity", action="store_true", help="compare the training of programs that run as Keras")
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="the interpreter of Keras programs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results, with the end of each output")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the files and runs in DIR")
    options = parser.parse_args()
    programs, stubs = read(options.list)
    unknown = set(options.only) - {program.name for program in programs}
    if unknown:
        print(f"{options.list}: no {', '.join(sorted(unknown))}", file=sys.stderr)
        return 1
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        for program in programs:
            if options.only and program.name not in options.only:
                continue
            scratch = (options.keep.resolve() if options.keep else Path(temporary)) / program.name
            shutil.rmtree(scratch, ignore_errors=True)
            checkouts = options.checkouts.resolve()
            results.append(examine(program, checkouts, stubs, options.to, scratch, parity=options.parity,
                                   python=options.python))  # fmt: skip
            print(line(results[-1]), flush=True)
            if not options.keep:
                shutil.rmtree(scratch, ignore_errors=True)
            if options.json:
                _write_json(options.json, results)
    print("", *totals(results), sep="\n")
    return 0


def _write_json(path: Path, results: Sequence[Result]) -> None:
    documents = [dataclasses.asdict(result) for result in results]
    for document in documents:
        document["output"] = {name: text[-4000:] for name, text in document["output"].items()}
    path.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
