"""The programs of tests/migrate/corpus run unchanged under exec, and are what their table says."""

from __future__ import annotations

import json
import os
import re
import runpy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
PROGRAMS: dict[str, dict[str, Any]] = YAML(typ="safe").load((CORPUS / "programs.yaml").read_text())


def write(name: str, folder: Path) -> Path:
    """Of corpus_data.py; most tests of this file need nothing of what it imports."""
    return runpy.run_path(str(HERE / "corpus_data.py"))["write"](name, folder)


def sources(name: str) -> dict[str, list[str]]:
    """The lines of each file of a program, by its path within the corpus."""
    path = CORPUS / PROGRAMS[name]["file"]
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return {str(file.relative_to(CORPUS)): file.read_text(encoding="utf-8").splitlines() for file in files}


def command(name: str, folder: Path) -> list[str]:
    """What comes after `exec`."""
    program = PROGRAMS[name]
    places = {"data": folder / "data" / program["data"], "model": folder / "models" / name}
    return [str(argument).format(**places) for argument in program["command"]]


class Output(NamedTuple):
    """Of a program: its exit code, None where its time was up, and what it wrote."""

    code: int | None
    text: str


# The program that test_exec_gives_the_same runs once more.
ALONE = "wine_keras_layers"


@pytest.fixture(scope="module")
def chosen(request) -> list[str]:
    """The programs whose results the tests of this run ask for, and no others."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params["name"] for item in items if item.originalname == "test_a_program_learns"}
    asked |= {ALONE for item in items if item.originalname == "test_exec_gives_the_same"}
    return [name for name in PROGRAMS if name in asked]


@pytest.fixture(scope="module")
def folder(chosen, tmp_path_factory) -> Path:
    """A folder with the data sets."""
    folder = tmp_path_factory.mktemp("corpus")
    for name in sorted({PROGRAMS[name]["data"] for name in chosen}):
        write(name, folder / "data" / name)
    return folder


@pytest.fixture(scope="module")
def outputs(chosen, folder, run_warm) -> dict[str, Output]:
    """What became of each program. They are run two at a time, each as under exec."""
    (folder / "models").mkdir()
    asked = [
        {"arguments": command(name, folder), "folder": str(CORPUS), "output": f"{folder}/{name}.log", "timeout": 200}
        for name in chosen
    ]
    environ = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_warm([HERE / "corpus_process.py", 2], environ, timeout=540, stdin=json.dumps(asked))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    codes = json.loads(done.stdout.splitlines()[-1])
    return {
        name: Output(code, Path(each["output"]).read_text())
        for name, each, code in zip(chosen, asked, codes, strict=True)
    }


def measured(name: str, text: str) -> float:
    found = re.findall(PROGRAMS[name]["metric"]["prints"], text)
    assert found, text[-2000:]
    return float(found[-1])


@pytest.mark.gate("house_prices")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_learns(outputs, folder, name):
    """Its metric is beyond the bound, and the bound beyond chance; it exports where it says so."""
    program, (code, text) = PROGRAMS[name], outputs[name]
    assert code == 0, text[-4000:]
    metric, found = program["metric"], measured(name, text)
    if "at_least" in metric:
        assert metric["chance"] < metric["at_least"] <= found
    else:
        assert found <= metric["at_most"] < metric["chance"]
    if "exports" in program:
        assert [*(folder / "models" / name / program["exports"]).glob("*/saved_model.pb")]
    assert [*(folder / "models" / name).rglob("model.ckpt-*.index")]


@pytest.mark.nightly
@pytest.mark.slow
def test_exec_gives_the_same(outputs, folder, run_python):
    """A program's own process under `exec` and its fork in the runner come to the same number."""
    name = ALONE
    program = command(name, folder / "alone")
    program = [argument.replace(f"{folder}/alone/data", f"{folder}/data") for argument in program]
    environ = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_python(["-m", "estimator_pipeline", "exec", *program], environ, cwd=CORPUS)
    assert done.returncode == 0, done.stderr[-4000:]
    assert measured(name, done.stdout) == measured(name, outputs[name].text)


def anchors(name: str) -> list[tuple[str, str, str, int]]:
    """(kind, full name, file, line) of everything that the table says of a program."""
    program, found = PROGRAMS[name], []
    for kind in ("constructs", "same", "methods", "other"):
        for what, lines in (program.get(kind) or {}).items():
            places = lines if isinstance(lines, dict) else {program["file"]: lines}
            found += [(kind, what, file, line) for file, numbers in places.items() for line in numbers]
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_line_of_the_table_is_right(name):
    files, found = sources(name), anchors(name)
    for kind, what, file, line in found:
        text = files[file][line - 1]
        if kind in ("constructs", "same"):
            assert re.search(rf"\b{what.rpartition('.')[2]}\b", text), f"{file}:{line} has no {what}: {text}"
        elif kind == "methods":
            assert re.search(rf"\.{what.rpartition('.')[2]}\(", text), f"{file}:{line} has no {what}: {text}"
        else:
            assert text.strip() and not text.strip().startswith("#"), f"{file}:{line} is empty: {what}"
    assert len(found) >= 10
    for kind in ("constructs", "methods"):
        said = [place for each, *place in found if each == kind]
        # A line may use a name twice: then it stands twice.
        for what, file, line in said:
            used = len(re.findall(rf"\b{what.rpartition('.')[2]}\b", files[file][line - 1]))
            assert said.count([what, file, line]) <= used, (what, file, line)


MODULES = {"tf.estimator", "tf.compat.v1", "tf.compat.v1.layers", "tf.compat.v1.train", "tf.feature_column"}


def test_no_construct_is_missing():
    """Whatever is written out in full in a program is in the table: aliases are the table's own knowledge."""
    full = re.compile(
        r"(?<![\w.])tf\.(?:estimator|compat\.v1|feature_column|distribute|keras\.(?:estimator|optimizers))\b[\w.]*"
    )
    for name in PROGRAMS:
        table = {(what, file, line) for kind, what, file, line in anchors(name) if kind in ("constructs", "same")}
        for file, lines in sources(name).items():
            text = "\n".join(lines)
            v1 = "import tensorflow.compat.v1 as tf\n" in text or "tf_compat import" in text
            assert not v1 or "tf.compat" not in text
            # What a docstring says is no construct.
            code = re.sub(r'""".*?"""', lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
            for number, line in enumerate(code.splitlines(), 1):
                for found in full.findall(line.partition("#")[0]):
                    whole = "tf.compat.v1" + found[2:] if v1 else found
                    # A method of a class is written after its name.
                    held = {(whole, file, number), (whole.rpartition(".")[0], file, number)}
                    assert held & table or whole in MODULES, f"{file}:{number}: {whole} is not in the table"


def test_the_table_and_the_folder_agree():
    files = {program["file"].partition("/")[0] for program in PROGRAMS.values()}
    there = {path.name for path in CORPUS.iterdir() if not path.name.startswith(("__", "."))}
    assert files | {"programs.yaml"} == there


def test_a_data_set_is_the_same_each_time(tmp_path):
    for name in ("census", "tickets"):
        first, second = (write(name, tmp_path / str(i)) for i in range(2))
        for file in os.listdir(first):
            assert (first / file).read_bytes() == (second / file).read_bytes()
