"""What `migrate scan` says of each file, and that `migrate convert` does the same: verdicts, places, first steps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from estimator_pipeline.migrate.code import Scan, convert, sarif_document, scan, summary, text
from estimator_pipeline.migrate.code.analysis.notebooks import code_of
from tests.migrate.test_convert import run
from tests.migrate.test_scan_reports import notebook

BODY = """
def model_fn(features, labels, mode):
    logits = tf.layers.dense(features['x'], 1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={'y': logits})
    loss = tf.losses.mean_squared_error(labels, logits)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
"""
TRAIN = """
estimator = tf.estimator.Estimator(model_fn, 'm')
estimator.train(lambda: DATA)
"""
FILES = {
    "layers.py": f"import tensorflow as tf\n{BODY}{TRAIN}",
    "stays.py": f"import tensorflow as tf\n{BODY}{TRAIN}\nestimator.train(input_fn=lambda: DATA, hooks=[Own()])\n",
    "made.py": "import tensorflow as tf\n\nmodel = tf.estimator.BaselineClassifier(NET)\n",
    "names.py": "import tensorflow as tf\nx = tf.log(1.)\n",
    "today.py": "import tensorflow as tf\nx = tf.math.log(1.)\n",
    "two.py": "import tensorflow as tf\n\nif 1:\n    print 'x'\n",
    "old.py": "import os\nprint 'x'\n",
    "plain.py": "def model_fn(x):\n    return x\n\n\ndef train(input_fn):\n    pass\n\n\ntrain(input_fn=model_fn)\n",
}
VERDICTS = {
    "layers.py": "keras",
    "stays.py": "estimator",
    "made.py": "estimator",
    "names.py": "renamed",
    "today.py": "unchanged",
    "two.py": "unreadable",
    "old.py": "no tensorflow",
    "plain.py": "no tensorflow",
    "book.ipynb": "keras",
    "empty.ipynb": "no tensorflow",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verdicts")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "book.ipynb").write_text(notebook("%matplotlib inline\nimport tensorflow as tf", BODY, TRAIN))
    (folder / "empty.ipynb").write_text(notebook("print 'x'"))
    return folder


@pytest.fixture(scope="module")
def found(program: Path) -> Scan:
    return scan(program)


def test_each_file_has_a_verdict(found):
    assert {path: one.verdict for path, one in found.verdicts.items()} == VERDICTS
    assert {word: count for word, count in found.document()["totals"].items() if count} == {
        word: list(VERDICTS.values()).count(word) for word in VERDICTS.values()
    }
    assert not [one for one in found.findings if one.path in ("old.py", "plain.py", "empty.ipynb")]


def test_the_conversion_does_what_the_scan_says(program, found):
    for made in convert(program, notes="none").files:
        verdict = found.verdicts[made.path]
        assert made.keras is (verdict.verdict == "keras"), made.path
        assert bool(made.kept_as_estimator) is (verdict.verdict == "estimator"), made.path
        names = made.path == "stays.py"  # an Estimator program with names of TensorFlow 1
        assert made.changed is (verdict.verdict in ("keras", "renamed") or names), made.path
        assert (made.kept_as_estimator or made.kept).endswith(verdict.why), made.path


def test_where_it_stops_is_a_line_of_the_users(program, found):
    for one in found.verdicts.values():
        if one.line:
            assert (program / one.at).read_text().splitlines()[one.line - 1].strip() == one.source != ""
    assert found.verdicts["made.py"].why == "line 3: tf.estimator.BaselineClassifier, which no rule converts"
    assert found.verdicts["two.py"].stops_at == "two.py:4" and found.verdicts["two.py"].source == "print 'x'"


def test_all_reports_say_the_same(found):
    document, told = found.document(), text(found)
    (run_of_sarif,) = sarif_document(found)["runs"]
    assert len(run_of_sarif["results"]) == len(document["findings"])
    for step in document["first"]:
        assert step in told
    for one in found.verdicts.values():
        if one.why:
            assert one.describe() in told


def test_what_to_do_first(found):
    steps = found.document()["first"]
    assert steps[0].startswith("make two.py readable: ")
    assert "converts 2 of 4 files with Estimators to Keras, renames 1 file to TensorFlow 2" in " ".join(steps)
    assert steps[-1].startswith("rewrite by hand what keeps 1 file from Keras, and compare with `parity`: ")


def test_the_summary_counts_files(program, tmp_path, capsys):
    made = convert(program)
    assert made.became == {"keras": 2, "of": 4}
    assert "To Keras: 2 of 4 files with Estimators; converted, not run\n" in summary(made)
    assert "  Estimator programs run as they are, with: estimator-pipeline exec FILE. " in summary(made)
    assert "    made.py:3: model = tf.estimator.BaselineClassifier(NET)\n" in summary(made)
    code, out, _ = run(["migrate", "convert", program, "--output", tmp_path / "out", "--json"], capsys)
    document = json.loads(out)
    assert code == 0 and document["run"] == "converted, not run" and document["became"]["keras"] == 2
    told = {one["path"]: one["verdict"] for one in document["files"]}
    assert {path: one["verdict"] for path, one in told.items()} == VERDICTS


def test_a_reason_is_told_in_the_names_and_lines_of_the_file_as_it_was(tmp_path):
    for name in ("model.py", "unused.py"):
        (tmp_path / name).write_text(f"import tensorflow as tf\nfrom tensorflow.contrib import layers\n{BODY}")
    (tmp_path / "task.py").write_text(
        "import tensorflow as tf\n\nimport model\n\n\ndef main():\n"
        "    own = tf.estimator.BaselineClassifier(\n        model.net())\n    own.train(model.data)\n"
        "    x = model.model_fn\n    tf.log(1.)\n"
    )
    said = scan(tmp_path).verdicts
    assert (said["task.py"].at, said["task.py"].line) == ("task.py", 7)
    assert said["task.py"].reason == "tf.estimator.BaselineClassifier, which no rule converts"
    assert said["unused.py"].why == "line 4: no Estimator of the program has this model_fn"
    assert said["model.py"].why == (
        "in the same program as task.py, line 7: tf.estimator.BaselineClassifier, which no rule converts"
    )


def test_a_name_that_went_over_several_lines(tmp_path):
    """It takes one line in the new text; what stands behind it is told, and written, where it was."""
    (tmp_path / "a.py").write_text(
        "import tensorflow as tf\nrate = (tf.\n  contrib.\n  layers.l2_regularizer(0.1))\nimport os\n\n"
        "own = tf.estimator.BaselineClassifier(NET)\nown.train(DATA)\n"
    )
    (only,) = scan(tmp_path).verdicts.values()
    assert (only.line, only.source) == (7, "own = tf.estimator.BaselineClassifier(NET)")
    (made,) = convert(tmp_path).files
    assert (
        "import tensorflow as tf\n\ntf.compat.v1.disable_v2_behavior()\nrate = (tf.keras.regularizers.l2(" in made.after
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("print 'x'", "a print statement of Python 2"),
        ("if x: print x", "a print statement of Python 2"),
        ("y = `x`", "backticks of Python 2"),
        ("exec 'x'", "an exec statement of Python 2"),
        ("raise ValueError, 'x'", "a raise statement of Python 2"),
        ("y = 0777", "an octal number of Python 2"),
        ("y = x <> 1", "the operator <> of Python 2"),
        ("y = 10L", "a long number of Python 2"),
        ("f = lambda (a, b): a", "Lambda expression parameters cannot be parenthesized"),
        ("try: f()\nexcept (A, B), e: pass", "an except clause of Python 2"),
        ("try: f()\nexcept A, e: pass", "an except clause of Python 2"),
    ],
)
def test_python_2_is_told_by_its_line(tmp_path, line, says):
    (tmp_path / "a.py").write_text(f"import tensorflow as tf\nx = 1\n{line}\n")
    (only,) = scan(tmp_path).verdicts.values()
    assert only.verdict == "unreadable" and says in only.why and only.source == line.splitlines()[-1]
    assert only.line == 2 + len(line.splitlines()) and only.why.startswith(f"line {only.line}: ")


# Notebooks ---------------------------------------------------------------------------------------------------


def test_files_that_a_notebook_writes(tmp_path):
    model = f"%%writefile trainer/model.py\nimport tensorflow as tf\n{BODY}"
    (tmp_path / "a.ipynb").write_text(
        notebook("%%writefile -a 'x.txt'\nx", model, f"%%writefile -a trainer/model.py\n{TRAIN}")
    )
    (tmp_path / "b.ipynb").write_text(notebook("%%writefile same.py\nimport tensorflow as tf\ntf.log(1)"))
    (tmp_path / "same.py").write_text("import tensorflow as tf\ntf.log(1)\n")
    found = scan(tmp_path)
    assert {path: one.verdict for path, one in found.verdicts.items()} == {
        "a.ipynb": "no tensorflow", "b.ipynb": "no tensorflow", "same.py": "renamed", "trainer/model.py": "keras",
    }  # fmt: skip
    places = {(one.cell, one.line): one.name for one in found.findings if one.path == "a.ipynb"}
    assert places[3, 5] == "tf.compat.v1.layers.dense" and places[4, 3].startswith("tf.estimator.Estimator")
    assert all(one.written == "trainer/model.py" for one in found.findings if one.path == "a.ipynb")
    assert "a.ipynb writes trainer/model.py, which becomes Keras" in text(found)
    lines = {key: value.splitlines() for key, value in found.texts.items()}
    assert "tf.layers.dense" in lines["a.ipynb#3"][4]


def test_a_conversion_writes_them(tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.ipynb").write_text(notebook(f"%%writefile m.py\nimport tensorflow as tf\n{BODY}{TRAIN}"))
    code, out, _ = run(["migrate", "convert", folder, "--output", tmp_path / "out"], capsys)
    assert code == 0 and "m.py: converted to Keras" in out
    assert "tf.keras.layers.Dense" in (tmp_path / "out" / "m.py").read_text()
    cell = json.loads((tmp_path / "out" / "a.ipynb").read_text())["cells"][1]
    assert cell["source"] == f"%%writefile m.py\n{(tmp_path / 'out' / 'm.py').read_text()}"
    code, out, _ = run(["migrate", "convert", folder, "--dry-run"], capsys)
    assert out.startswith("--- a/a.ipynb\n+++ b/a.ipynb\n") and "--- /dev/null\n+++ b/m.py\n" in out


def test_two_notebooks_that_write_a_file_of_one_name(tmp_path):
    for name, value in {"a": 1, "b": 2}.items():
        (tmp_path / f"{name}.ipynb").write_text(
            notebook(f"%%writefile ../m.py\nimport tensorflow as tf\ntf.log({value})")
        )
    assert {one.path: one.notebook for one in scan(tmp_path).verdicts.values() if one.notebook} == {
        "m.py": "a.ipynb", "b_files/m.py": "b.ipynb",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%%bash\npython train.py\n", "\n\n"),
        ("%bash\ngcloud ai-platform jobs submit\n", "\n\n"),
        ("%%sh\nls", "\n"),
        ("%%script python2\nprint 1", "\n"),
        ("%%writefile $DIR/x.py\nimport a", "\n"),
        ("!!ls\nx", "\n"),
        ("!python train.py\nx = 1", "\nx = 1"),
        ("%%time\nx = f()", "\nx = f()"),
        ("%time x = f()", "if 1: x = f()"),
        ("if a:\n    %timeit -n 3 f(x)", "if a:\n    if 1:        f(x)"),
        ("%timeit", ""),
        ("ls data\nx = 1", "\nx = 1"),
        ("ls = 3\nls == 4", "ls = 3\nls == 4"),
        ("cd = {}\ncd in x", "cd = {}\ncd in x"),
        ("rm -rf a/b", ""),
        ("model.train?", ""),
        ("!gcloud submit \\\n  --tier basic \\\n  --stream\nx = 1", "\n\n\nx = 1"),
        ("!ls {DIR}/*\n!ls {DIR}/*\nx = 1", "\n\nx = 1"),
        ("# a, b,\n!ls\nx = (1,\n  2)", "# a, b,\n\nx = (1,\n  2)"),
        ("#@title HTML\n%%html\n<b>x</b>", "\n\n"),
    ],
)
def test_lines_that_are_not_python(cell, code):
    told = re.sub(r"(?m) *#\x7f\d+$", "", code_of(notebook(cell).encode()).text)
    assert told.rstrip("\n") == code.rstrip("\n")


# What is gone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("est = tf.estimator\nm = est.BoostedTreesClassifier([], 1)", "tf.estimator.BoostedTreesClassifier"),
        ("from tensorflow.estimator import BoostedTreesRegressor as B\nB([], 1)", "tf.estimator.BoostedTreesRegressor"),
        ("from tensorflow.examples.tutorials.mnist import input_data", "tf.examples"),
        ("mnist = tf.examples.tutorials.mnist", "tf.examples"),
        ("types = tf.data.Dataset.range(3).batch(2).output_types", "output_types"),
    ],
)  # fmt: skip
def test_what_is_gone_is_by_hand(tmp_path, capsys, code, name):
    (tmp_path / "a.py").write_text(f"import tensorflow as tf\n{code}\n")
    (gone,) = {one.name for one in scan(tmp_path).findings if one.treatment == "manual"}
    assert gone == name
    assert run(["migrate", "scan", tmp_path, "--fail-on", "manual"], capsys)[0] == 1
    assert run(["migrate", "scan", tmp_path], capsys)[0] == 0


def test_a_data_set_of_tensorflow_1_has_its_types(tmp_path):
    (tmp_path / "a.py").write_text(
        "import tensorflow as tf\nx = tf.log(1)\nt = tf.data.Dataset.range(3).output_types\n"
    )
    assert not scan(tmp_path).count("manual")
