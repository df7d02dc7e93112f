"""A repository is read program by program: the same in one process or several, and with a cache or without."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from estimator_pipeline.cli.migrate import reading
from estimator_pipeline.migrate.code import convert, scan
from estimator_pipeline.migrate.code.analysis import import_graph
from estimator_pipeline.migrate.code.others import Others, holds, merged
from estimator_pipeline.migrate.code.repository import repository, results_cache
from estimator_pipeline.migrate.code.repository.processes import Processes
from estimator_pipeline.migrate.code.repository.repository import read_code

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
    return [part.paths for part in read_code(root).parts]


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


def _documents(root: Path, **options) -> tuple[str, list]:
    made = convert(root, **options)
    return json.dumps(scan(root, **options).document()), [made.document(), [one.after for one in made.files]]


def test_processes_give_what_one_gives(folder, monkeypatch):
    """It takes seconds, for two processes start."""
    monkeypatch.setattr(repository, "_LINES_FOR_A_PROCESS", 1)
    started: list[int] = []
    start = Processes.__init__

    def counted(self, count, first):
        started.append(count)
        start(self, count, first)

    monkeypatch.setattr(Processes, "__init__", counted)
    serial, parallel = convert(folder), convert(folder, jobs=2)
    assert started == [2]
    assert parallel.document() == serial.document()
    assert [one.after for one in parallel.files] == [one.after for one in serial.files]


def test_a_process_that_is_killed_costs_no_result(folder, monkeypatch):
    monkeypatch.setattr(repository, "_LINES_FOR_A_PROCESS", 1)
    start = Processes.__init__

    def killed(self, count, first):
        start(self, count, first)
        for process in self._all:
            process.kill()

    expected = scan(folder).document()
    monkeypatch.setattr(Processes, "__init__", killed)
    assert scan(folder, jobs=2).document() == expected


def test_a_result_of_the_cache_is_that_of_the_files(folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = _documents(folder, cache=cache)
    assert first == _documents(folder)
    monkeypatch.setattr(repository, "Worker", None)  # nothing is read any more
    assert _documents(folder, cache=cache) == first


def test_a_change_of_a_file_is_a_change_of_its_program_alone(folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    scan(folder, cache=cache)
    (folder / "one" / "one_data.py").write_text(HELPER + "import tensorflow as tf\ntf.app.run()\n")
    read = []
    answer = repository.Worker.answer
    monkeypatch.setattr(
        repository.Worker,
        "answer",
        lambda self, sources, *rest: read.append([one.path for one in sources]) or answer(self, sources, *rest),
    )
    found = scan(folder, cache=cache)
    assert read == [["common.py", "one/one_data.py", "one/train.py"]]
    assert found.document() == scan(folder).document()


@pytest.mark.parametrize("content", [b"", b"no zlib", b"x\x9c\x03\x00\x00\x00\x00\x01", None])
def test_a_cache_that_cannot_be_read_is_none(folder, tmp_path, content):
    cache = tmp_path / "cache"
    expected = scan(folder, cache=cache).document()
    for path in cache.iterdir():
        if content is None:
            path.unlink()
            path.mkdir()
        else:
            path.write_bytes(content)
    assert scan(folder, cache=cache).document() == expected


def test_a_cache_that_cannot_be_written_is_none(folder, tmp_path):
    (tmp_path / "file").write_text("")
    assert scan(folder, cache=tmp_path / "file" / "cache").document() == scan(folder).document()


def test_the_cache_keeps_to_its_size(tmp_path):
    results = results_cache.ResultsCache(tmp_path, most_bytes=100)
    for number in range(20):
        results.put(str(number), {"told": {}, "asked": {}, "findings": []})
    results.trim()
    assert 0 < sum(one.stat().st_size for one in tmp_path.iterdir()) <= 100


def test_the_key_is_that_of_contents_and_options():
    source = import_graph.SourceFile("a.py", "x = 1\n")
    one = results_cache.key("scan", {}, "p", (), [source])
    assert one == results_cache.key("scan", {}, "p", (), [import_graph.SourceFile("a.py", "x = 1\n")])
    assert one != results_cache.key("convert", {}, "p", (), [source])
    assert one != results_cache.key("scan", {"to": "keras"}, "p", (), [source])
    assert one != results_cache.key("scan", {}, "p", ("b",), [source])
    assert one != results_cache.key("scan", {}, "p", (), [import_graph.SourceFile("a.py", "x = 2\n")])


def test_an_answer_holds_until_others_tell_otherwise():
    asking, telling = Others(), Others()
    assert not asking.any("old", False) and telling.any("old", True)
    assert holds(asking.asked, merged([asking.reported]))
    assert not holds(asking.asked, merged([asking.reported, telling.reported]))
    assert Others(merged([telling.reported])).any("old", False)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch):
    monkeypatch.setattr(reading, "_BAR_SECS", 0)
    out = _Terminal()
    with reading.progress_on(out) as tell:
        tell(1, 2)
    assert out.getvalue() == f"\r[{'#' * 15}{' ' * 15}] 1 of 2 files\r\x1b[K"


def test_without_a_terminal_lines_are_rare(monkeypatch):
    out = io.StringIO()
    with reading.progress_on(out) as tell:
        tell(1, 2)
    assert out.getvalue() == ""
    monkeypatch.setattr(reading, "_LINE_SECS", 0)
    with reading.progress_on(out) as tell:
        tell(1, 2000)
    assert out.getvalue() == "1 of 2,000 files\n"


def test_where_nothing_is_told_nothing_is():
    with reading.progress_on(_Terminal(), quiet=True) as tell:
        assert tell is None


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
        "--no-cache",
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
        return "subprocess_main" in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False
