"""A repository is read program by program: the same in one process or several."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from estimator_pipeline.cli.migrate import reading
from estimator_pipeline.migrate.code import convert, repository, scan
from estimator_pipeline.migrate.code.others import Others, holds, merged
from estimator_pipeline.migrate.code.repository import read_code

PROGRAM = """import tensorflow as tf
import {helper}

def model_fn(features, labels, mode):
    x = tf.layers.dense(features["x"], 1)
    loss = tf.losses.mean_squared_error(labels, x)
    train_op = tf.train.AdamOptimizer().minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, predictions=x, loss=loss, train_op=train_op)

tf.estimator.Estimator(model_fn).train({helper}.data, steps=2)
"""
HELPER = "import numpy as np\n\ndef data():\n    return {'x': np.zeros(3)}, np.zeros(3)\n"


@pytest.fixture
def folder(tmp_path):
    """Two programs and their helpers, one of TensorFlow 2, a file of all, one of none."""
    root = tmp_path / "code"
    for name in ("one", "two"):
        (root / name).mkdir(parents=True)
        (root / name / "train.py").write_text(PROGRAM.format(helper=f"{name}_data") + "import common\n")
        (root / name / f"{name}_data.py").write_text(HELPER)
    # Read for the last part of a name alone, which a file of TensorFlow has, too.
    (root / "common.py").write_text("from json import train\n\ndef say():\n    print('hello')\n")
    (root / "new.py").write_text("import tensorflow as tf\nloss = tf.losses.mean_squared_error([1.], [2.])\n")
    (root / "other.py").write_text("import json\n")
    return root


def _programs(root: Path) -> list[tuple[str, ...]]:
    return read_code(root).parts


def test_programs_that_do_not_meet_are_read_by_themselves(folder):
    assert _programs(folder) == [
        ("new.py",),
        ("common.py", "one/train.py"),
        ("common.py", "two/train.py"),
    ]
    assert len(read_code(folder).without) == 3


@pytest.mark.parametrize(
    "first",
    ["import b", "from b import x", "import b as c", "from . import b", "from b import *",
     "def f():\n    try:\n        import b\n    except ImportError:\n        pass"],
)  # fmt: skip
def test_an_import_of_any_form_joins_files(tmp_path, first):
    (tmp_path / "a.py").write_text(f"{first}\nimport tensorflow as tf\n")
    (tmp_path / "b.py").write_text("import tensorflow as tf\nx = tf\n")
    assert _programs(tmp_path) == [("a.py", "b.py")]


def test_a_package_that_is_had_as_a_whole_brings_all_within_it(tmp_path):
    (tmp_path / "package" / "deep").mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "deep" / "net.py").write_text("import tensorflow as tf\n")
    (tmp_path / "a.py").write_text("import package\nimport tensorflow\npackage.deep.net.tf.layers.dense\n")
    assert _programs(tmp_path) == [("a.py", "package/deep/net.py")]


def test_a_module_of_python_is_no_file_of_the_same_name(tmp_path):
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "time.py").write_text("import tensorflow as tf\n")
    (tmp_path / "a.py").write_text("import time\nimport tensorflow as tf\n")
    assert _programs(tmp_path) == [("a.py",), ("utils/time.py",)]


def test_one_program_of_tensorflow_1_tells_all_what_a_name_means(folder):
    """`tf.losses.mean_squared_error` of new.py, which by itself is Keras's."""
    assert [one.spelled for one in scan(folder / "new.py").findings] == []
    assert "tf.losses.mean_squared_error" in [one.spelled for one in scan(folder).findings if one.path == "new.py"]


def test_a_file_that_two_programs_use_in_two_ways_makes_one_of_them(tmp_path):
    (tmp_path / "data.py").write_text("from json import b\n" + HELPER.replace("def data", "def rows"))
    (tmp_path / "a.py").write_text(PROGRAM.format(helper="data").replace(".data,", ".rows,"))
    (tmp_path / "b.py").write_text("import tensorflow as tf\nimport data\n")
    assert len(_programs(tmp_path)) == 2
    found = [one for one in scan(tmp_path).findings if one.path == "data.py"]
    assert [one.name for one in found] == ["input_fn"]


def test_processes_give_what_one_gives(folder, monkeypatch):
    """It takes seconds, for two processes start."""
    monkeypatch.setattr(repository, "_LINES_FOR_A_PROCESS", 1)
    started: list[int] = []
    read = repository._Run._read_in_processes
    monkeypatch.setattr(
        repository._Run,
        "_read_in_processes",
        lambda self, waiting, count: started.append(count) or read(self, waiting, count),
    )
    serial, parallel = convert(folder), convert(folder, jobs=2)
    assert started[0] == 2
    assert parallel.document() == serial.document()
    assert [one.after for one in parallel.files] == [one.after for one in serial.files]


def test_a_process_that_is_killed_costs_no_result(folder, monkeypatch):
    monkeypatch.setattr(repository, "_LINES_FOR_A_PROCESS", 1)
    expected = scan(folder).document()
    monkeypatch.setattr(repository, "_exit_with_pipe", os._exit)
    assert scan(folder, jobs=2).document() == expected


def test_an_answer_holds_until_others_tell_otherwise():
    asking, telling = Others(), Others()
    assert not asking.any("old", False) and telling.any("old", True)
    assert holds(asking.asked, merged([asking.reported]))
    assert not holds(asking.asked, merged([asking.reported, telling.reported]))
    assert Others(merged([telling.reported])).any("old", False)


def test_a_terminal_gets_a_bar(monkeypatch):
    out = io.StringIO()
    out.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    with reading.progress_on() as progress:
        progress(1, 2)
    assert "1/2" in out.getvalue()


def test_without_a_terminal_nothing_is_shown(capsys):
    with reading.progress_on() as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_ends_with_all_files(folder):
    told = []
    scan(folder, progress=lambda done, files: told.append((done, files)))
    assert told[-1] == (5, 5) and told == sorted(told)


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)])
def test_no_process_outlives_an_interrupt(tmp_path, sent):
    """Also where it is killed, and cannot end its own. It takes seconds, for three processes start."""
    for name in ("one", "two"):
        body = "".join(f"x{n} = tf.layers.dense(x, {n})\n" for n in range(4_100))
        (tmp_path / f"{name}.py").write_text(f"import tensorflow as tf\nx = None\n{body}")
    command = [
        sys.executable,
        "-m",
        "estimator_pipeline",
        "migrate",
        "scan",
        str(tmp_path),
        "--jobs",
        "2",
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(one or os.getcwd() for one in sys.path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as asking:
        children: list[str] = []
        while len(children) < 2 and asking.poll() is None:
            time.sleep(0.05)
            children = Path(f"/proc/{asking.pid}/task/{asking.pid}/children").read_text().split()
        asking.send_signal(sent)
    for _ in range(200):
        if not any(_runs(child) for child in children):
            break
        time.sleep(0.05)
    assert children and not any(_runs(child) for child in children)


def _runs(process: str) -> bool:
    try:
        return "multiprocessing" in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False
