"""Notebooks are converted cell by cell: lines of IPython, other cells, outputs and metadata stay as they are."""

from __future__ import annotations

import json

import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.code import convert, diff, scan, summary
from estimator_pipeline.migrate.code.analysis.notebooks import code_of, joined, restored, split
from tests.migrate.test_convert import run
from tests.migrate.test_scan_reports import notebook

MODEL_FN = """def model_fn(features, labels, mode):
    logits = tf.layers.dense(features['x'], 1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={'y': logits})
    loss = tf.losses.mean_squared_error(labels, logits)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)"""
CELLS = (
    "%matplotlib inline\nimport sys",
    "%%time\nimport tensorflow as tf\nif sys.argv:\n    !ls",
    "%%bash\nls -l\n\n\n\n\necho 1",
    "def input_fn():\n"
    "    data = tf.data.Dataset.range(64).map(lambda i: ({'x': [tf.to_float(i) / 64.]}, [tf.to_float(i % 7)]))\n"
    "    return data.batch(8)",
    MODEL_FN,
    "files = !ls\nestimator = tf.estimator.Estimator(model_fn, 'model')\nestimator.train(input_fn)",
    "estimator?\n%time result = estimator.evaluate(input_fn)\nprint('loss', result['loss'] > 0)",
)
RUN_CELLS = """import json, re
for cell in json.load(open('book.ipynb'))['cells']:
    if cell['cell_type'] == 'code' and not cell['source'].startswith('%%bash'):
        text = re.sub(r'(?m)^( *)%time (?=.)', r'\\1', cell['source'])
        text = re.sub(r'(?m)^( *)(?:[!%].*|\\w+\\?|\\w+ = !.*)$', r'\\1pass', text)
        exec(text, globals())
"""


def of(text):
    """The code of each code cell of a notebook."""
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def book(folder, *cells, **options):
    folder.mkdir(exist_ok=True)
    (folder / "book.ipynb").write_text(notebook(*cells))
    (made,) = convert(folder / "book.ipynb", **options).files
    assert made.verdict.verdict == scan(folder).verdicts["book.ipynb"].verdict or options
    return made


@pytest.mark.parametrize(
    "cell",
    [
        "%matplotlib inline\nx = 1",
        "%%time\nx = f()",
        "# title\n%%time\n# of it\nx = f()\n",
        "x = !ls -l\ny = %pwd",
        "if x:\n    !ls\n    %time f(x)\n%timeit -n 3 f(x)",
        "!pip install \\\n  a \\\n  b\nx = 1",
        "f?\n?f\nf.g??",
        "ls data\nrm -rf a/b",
        "text = '''\n%s\n!ls\n'''\n%time f(text)",
        "!ls\r\nx = 1\r\n",
        "print('%s'\n      % x)",
        "x = 1",
        "",
        "\n\n",
    ],
)
def test_a_cell_comes_back_as_it_was(cell):
    code = code_of(notebook("a = 1", cell, "b = 1").encode())
    assert code.text == joined(code.cells) and split(code.cells, code.text) == code.cells
    (one,) = [one for one in code.cells if one.number == 3]
    assert restored(one, one.text) == cell
    if cell.strip():
        made = restored(one, one.text + "more = 1\n")
        assert made.split("\n") == [*cell.removesuffix("\n").split("\n"), "more = 1", *[""] * cell.endswith("\n")]


@pytest.mark.parametrize(
    "cell", ["%%bash\nls\n", "%bash\nls", "%%writefile a.txt\nx", "x = '\x7f'", "#\x7fcell\n#\x7f9"]
)
def test_what_is_not_python_is_left_alone(cell):
    code = code_of(notebook(cell, "!ls").encode())
    one = code.cells[0]
    assert not one.text.strip() and restored(one, "\n") == cell and restored(one, "x = 1\n") is None


def test_cells_that_cannot_be_told_are_no_cells():
    code = code_of(notebook("!ls\nx = 1", "%%time\ny = 2", "%time f()").encode())
    lines = code.text.splitlines(keepends=True)
    for at in (0, 2, 3, 5):  # a line of IPython, or what is between two cells
        assert split(code.cells, "".join(lines[:at] + lines[at + 1 :])) is None
    assert split(code.cells, code.text.replace("y = 2", "z = 1\ny = 2")) is not None
    assert split(code.cells, code.text.replace("#\x7f1\ny", "z = 1\n#\x7f1\ny")) is None  # %%time has to be first
    assert split(code.cells, code.text.replace("f()", "f(\n)")) is None  # %time takes one line


def test_names_of_tensorflow_1_in_one_cell_and_the_import_in_another(tmp_path):
    made = book(tmp_path, "!pip install x\nimport os", "import tensorflow as tf", "%%bash\nls", "x = tf.log(1.)")
    assert made.verdict.verdict == "renamed" and not made.kept
    assert of(made.after) == [
        "!pip install x\nimport os",
        "import tensorflow as tf\n\ntf.compat.v1.disable_v2_behavior()",
        "%%bash\nls",
        "x = tf.math.log(1.)",
    ]
    places = [(one.cell, one.line, one.column, one.after) for one in made.changes]
    assert places == [(3, 1, 1, "tf.compat.v1.disable_v2_behavior()"), (5, 1, 5, "tf.math.log")]
    assert "  book.ipynb:cell 5:1:5  tf.log -> tf.math.log" in summary(convert(tmp_path))


@pytest.mark.parametrize(("to", "verdict"), [("estimator", "renamed"), ("keras", "keras")])
def test_a_notebook_of_an_estimator(tmp_path, to, verdict):
    made = book(tmp_path, *CELLS, to=to)
    cells = of(made.after)
    assert made.verdict.verdict == verdict and len(cells) == len(CELLS)
    assert cells[2] == CELLS[2] and cells[0].startswith("%matplotlib inline\nimport ")
    assert cells[1].startswith("%%time\nimport tensorflow as tf\n") and cells[1].endswith("\nif sys.argv:\n    !ls")
    assert "files = !ls\n" in cells[5] and cells[6].startswith("estimator?\n%time result = ")
    assert "\x7f" not in made.after
    if to == "estimator":
        assert cells[0].endswith("import estimator_pipeline\n\nestimator_pipeline.compat.install()\n\nimport sys")
        assert "\ntf.compat.v1.disable_v2_behavior()\n" in cells[1]
        assert cells[5].endswith("tf.compat.v1.estimator.Estimator(model_fn, 'model')\nestimator.train(input_fn)")
    else:
        assert cells[0] == "%matplotlib inline\nimport os\nimport sys"
        assert "estimator" not in cells[4] and "model.fit(" in cells[5]
        assert "\n%time result = dict(model.evaluate(" in cells[6]


def test_training_that_is_timed(tmp_path):
    """What a line magic runs takes one line; what comes before it is in lines of its own."""
    made = book(tmp_path, *CELLS[:5], "model = tf.estimator.Estimator(model_fn, 'model')\n%time model.train(input_fn)")
    assert made.keras and of(made.after)[5].splitlines()[-2:] == [
        "save = checkpoints(model, os.path.join('model', \"keras\"))",
        "%time model.fit(training, callbacks=[CountSteps(), save, tf.keras.callbacks.TensorBoard('model')], verbose=2)",
    ]


@pytest.mark.parametrize("to", ["estimator", "keras"])
def test_it_runs(tmp_path, run_warm, to):
    """Each target is trained and evaluated, cell by cell: that the cells' order is kept only a run shows."""
    made = book(tmp_path, *CELLS, to=to)
    assert made.keras is (to == "keras")
    (tmp_path / "book.ipynb").write_text(made.after)
    (tmp_path / "cells.py").write_text(RUN_CELLS)
    done = run_warm([tmp_path / "cells.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loss True"


def test_a_notebook_that_stays_an_estimator_program(tmp_path):
    """It has no `exec` that would give it its Estimators."""
    made = book(tmp_path, "import tensorflow as tf", "own = tf.estimator.BaselineClassifier(NET)")
    assert made.verdict.verdict == "estimator" and made.verdict.stops_at == "book.ipynb:cell 3:1"
    assert made.verdict.source == "own = tf.estimator.BaselineClassifier(NET)"
    start = "import estimator_pipeline\n\nestimator_pipeline.compat.install()\n\n"
    assert of(made.after)[0] == f"{start}import tensorflow as tf"
    assert not book(tmp_path, *of(made.after)).changed


def test_a_cell_that_cannot_be_read(tmp_path):
    cells = ["import tensorflow as tf", "x = 1\nprint 'a'", "y = tf.log(1.)"]
    made = book(tmp_path, *cells)
    assert of(made.after)[1] == cells[1] and of(made.after)[2] == "y = tf.math.log(1.)"
    (left,) = made.left
    assert (left.cell, left.line) == (3, 2) and "a print statement of Python 2" in left.reason
    made = book(tmp_path, *CELLS, "print estimator.evaluate(input_fn)")
    assert made.verdict.verdict == "estimator" and made.verdict.stops_at == "book.ipynb:cell 9:1"
    assert made.verdict.source == "print estimator.evaluate(input_fn)"
    made = book(tmp_path, "import tensorflow as tf\nprint 'a'")  # nothing of it can be read
    assert made.verdict.verdict == "unreadable" and made.verdict.stops_at == "book.ipynb:cell 2:2"
    assert made.verdict.source == "print 'a'" and not made.changed


def test_outputs_and_all_else(tmp_path):
    """Cells that change lose their outputs; all else stays, and so does the layout of the JSON."""
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# tf.log é\n", "x"]},
        {"cell_type": "code", "execution_count": 1, "id": "b", "metadata": {"x": 1}, "outputs": [{"a": "b"}],
         "source": ["import tensorflow as tf"]},
        {"cell_type": "code", "execution_count": 2, "id": "c", "metadata": {}, "outputs": [{"a": "c"}],
         "source": ["print(1)\n", "print(2)"]},
        {"cell_type": "code", "execution_count": 3, "id": "d", "metadata": {}, "outputs": [{"a": "d"}],
         "source": ["x = tf.log(1.)\n", "y = 'é'"]},
    ]  # fmt: skip
    document = {"cells": cells, "metadata": {"kernelspec": {"language": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    for options, ends in (({"indent": 1, "ensure_ascii": False}, "\n"), ({"indent": 2}, ""), ({"indent": "\t"}, "\n"),
                          ({"separators": (",", ":")}, "")):  # fmt: skip
        text = json.dumps(document, **options) + ends
        (tmp_path / "book.ipynb").write_text(text, encoding="utf-8")
        (made,) = convert(tmp_path).files
        after = json.loads(made.after)
        assert made.before == text and json.dumps(after, **options) + ends == made.after
        assert [after["cells"][at] for at in (0, 2)] == [cells[at] for at in (0, 2)]
        assert after | {"cells": cells} == document
        first, last = after["cells"][1], after["cells"][3]
        assert last == cells[3] | {
            "execution_count": None,
            "outputs": [],
            "source": ["x = tf.math.log(1.)\n", "y = 'é'"],
        }
        assert first["source"][-1] == "tf.compat.v1.disable_v2_behavior()" and first["outputs"] == []
        assert "+" in diff(convert(tmp_path))


def test_a_byte_order_mark_stays(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    content = notebook("import tensorflow as tf\ntf.log(1)").encode()
    (tmp_path / "in" / "book.ipynb").write_bytes(b"\xef\xbb\xbf" + content)
    assert run(["migrate", "convert", tmp_path / "in", "--output", tmp_path / "out"], capsys)[0] == 0
    content = (tmp_path / "out" / "book.ipynb").read_bytes()
    assert content.startswith(b"\xef\xbb\xbf") and b"tf.math.log(1)" in content


def test_a_file_that_a_cell_writes_is_written_by_it_as_it_is_converted(tmp_path):
    (tmp_path / "book.ipynb").write_text(notebook("# 1\n%%writefile m.py\nimport tensorflow as tf\ntf.log(1)", "x"))
    files = {one.path: one for one in convert(tmp_path).files}
    assert of(files["book.ipynb"].after)[0] == f"# 1\n%%writefile m.py\n{files['m.py'].after.rstrip()}"


def test_a_model_is_named_by_words_of_the_notebooks_name(tmp_path):
    """Where it needs a class: a loss that `compile` does not describe."""
    cells = [cell.replace("loss = ", "loss = 2.0 * ") for cell in CELLS]
    (tmp_path / "03.1 - a model.ipynb").write_text(notebook(*cells))
    (made,) = convert(tmp_path).files
    assert made.keras and "class AModelModel(tf.keras.Model):" in of(made.after)[4]


def test_parity_takes_no_notebook(tmp_path):
    from estimator_pipeline.parity.models.conversion import check_proof

    (tmp_path / "proof.py").write_text("")
    with pytest.raises(ConfigError) as found:
        check_proof(tmp_path / "proof.py", tmp_path / "book.ipynb")
    assert found.value.code == "argument/not-applicable"
