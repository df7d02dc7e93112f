"""Programs of several files: which files change together, and what keeps all of them as they are."""

from __future__ import annotations

import pytest

from estimator_pipeline.migrate.code import convert
from tests.migrate.convert.programs import program

LAYERS = """\
import tensorflow as tf


def block(x, units, training):
    x = tf.square(tf.layers.dense(x, units))
    return tf.layers.dropout(x, 0.2, training=training)
"""
NETWORK = 'net = block(features["x"], 8, mode == tf.estimator.ModeKeys.TRAIN)\nlogits = tf.layers.dense(net, 3)'
MODEL, _, REST = program(NETWORK=NETWORK).partition("\n\ndef input_fn")
MODEL = MODEL.replace("import tensorflow as tf\n", "import tensorflow as tf\n\nfrom layers import block\n", 1)
DATA = """\
import tensorflow as tf


def input_fn():
    data = tf.data.Dataset.from_tensor_slices(({"x": [[1.0, 2.0]]}, [1])).repeat().batch(2)
    return data.make_one_shot_iterator().get_next()
"""
TASK = f"""\
import tensorflow as tf

from data import input_fn
from model import model_fn

{REST[REST.index("def main") - 1 :]}"""
FILES = {"layers.py": LAYERS, "model.py": MODEL, "data.py": DATA, "task.py": TASK}


@pytest.fixture
def convert_files(tmp_path):
    """`convert_files({path: text})`: {path: the converted file}."""

    def convert_files(files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
        return {file.path: file for file in convert(tmp_path).files}

    return convert_files


def test_a_program_of_four_files(convert_files):
    files = convert_files(FILES)
    assert all(file.keras for file in files.values()), [file.kept_as_estimator for file in files.values()]
    assert (
        "from model import make_model\n" in files["task.py"].after
        and "def make_model(features" in files["model.py"].after
    )
    assert "    return data\n" in files["data.py"].after and "get_next" not in files["data.py"].after
    assert "def block(x, units):" in files["layers.py"].after and "net = block(features[" in files["model.py"].after
    # A file has the helpers that its own code calls.
    assert "def operation(" in files["layers.py"].after and "def operation(" not in files["model.py"].after
    assert "def model_inputs(" in files["task.py"].after
    assert not any("estimator" in file.after or "compat" in file.after for file in files.values())


def test_it_runs(convert_files, tmp_path, run_python):
    for path, file in convert_files(FILES).items():
        (tmp_path / path).write_text(file.after)
    done = run_python([tmp_path / "task.py"], cwd=tmp_path)
    assert done.returncode == 0 and "'global_step': 4" in done.stdout, done.stderr[-3000:]


IMPORTS = [
    ("from model import model_fn as net_fn", "net_fn", "from model import make_model\n", "make_model("),
    ("import model", "model.model_fn", "import model\n", "model.make_model("),
    ("import model as m", "m.model_fn", "import model as m\n", "m.make_model("),
    ("from model import *", "model_fn", "from model import *\n", "make_model("),
    ("from model import (\n    block,\n    model_fn,\n)", "model_fn", "    block,\n    make_model,\n)", "make_model("),
]


@pytest.mark.parametrize(("statement", "name", "written", "call"), IMPORTS)
def test_an_import_of_the_model(convert_files, statement, name, written, call):
    task = TASK.replace("from model import model_fn", statement).replace("Estimator(model_fn,", f"Estimator({name},")
    after = convert_files({**FILES, "task.py": task})["task.py"].after
    assert written in after and f" = {call}model_inputs(training)" in after, after


def test_predictions_are_imported_where_they_are_used(convert_files):
    task = TASK.replace("    print(", "    print(list(estimator.predict(input_fn)))\n    print(")
    after = convert_files({**FILES, "task.py": task})["task.py"].after
    assert "from model import make_model, make_predictions\n" in after and "input_fn(), make_predictions)" in after


def test_two_programs_that_share_a_model(convert_files):
    files = convert_files({**FILES, "again.py": TASK.replace("steps=4", "steps=7")})
    assert all(file.keras for file in files.values())
    assert "steps_per_epoch=7" in files["again.py"].after and "steps_per_epoch=4" in files["task.py"].after


def test_two_programs_that_share_layers(convert_files):
    """Each has a model_fn of its own: neither can be converted without the other."""
    other = {"model2.py": MODEL, "task2.py": TASK.replace("from model import", "from model2 import")}
    assert all(file.keras for file in convert_files({**FILES, **other}).values())
    files = convert_files({**FILES, **other, "model2.py": MODEL.replace("loss, tf.train.get_global_step()", "loss")})
    assert not any(file.keras for file in files.values())
    assert "model2.py" in files["task2.py"].kept_as_estimator


# What else is in the folder, or is different in one of the files -> the file that is named, and the reason.
STAYS = [
    ({"show.py": "from model import model_fn\n\nprint(model_fn)\n"}, "model.py", "model_fn, which show.py uses, too"),
    ({"show.py": "import layers\n\nlayers.block(1, 2, True)\n"}, "layers.py", "block, which show.py uses, too"),
    ({"show.py": "import data\n\nx, y = data.input_fn()\n"}, "data.py", "input_fn, which show.py uses, too"),
    ({"task.py": TASK.replace("    print(", "    print(model_fn)\n    print(")}, "model.py", "model_fn, which task.py"),
    ({"model.py": f'__all__ = ["model_fn"]\n{MODEL}'}, "model.py", "model_fn, which __all__ lists"),
    ({"layers.py": LAYERS.replace("tf.square", "tf.assign")}, "layers.py", "tf.assign"),
    ({"data.py": DATA.replace("get_next()", "get_next()[0]")}, "data.py", "tensors of an iterator"),
    ({"data.py": f"{DATA}\n\ntf.Session()\n"}, "data.py", "tf.Session"),
    ({"task.py": TASK.replace("(model_fn,", "(functools.partial(model_fn, mode='train'),").replace(
        "import tensorflow", "import functools\nimport tensorflow", 1)}, "task.py", "not one function of the program"),
]  # fmt: skip


@pytest.mark.parametrize(("different", "path", "reason"), STAYS)
def test_what_keeps_all_files_as_they_are(convert_files, different, path, reason):
    files = convert_files({**FILES, **different})
    assert not any(file.keras for file in files.values())
    named = files["task.py"].kept_as_estimator
    assert reason in named, named
    assert path == "task.py" or f"in the same program as {path}, line" in named, named


def test_a_file_that_another_program_uses_stays_as_it_is(convert_files):
    """`tf.compat.v1.data` of TensorFlow 2 is enough for the converted program, and the other may need it."""
    data = DATA.replace("tf.data.Dataset", "tf.compat.v1.data.Dataset").replace(
        "data.make_one_shot_iterator().get_next()", "data"
    )
    files = convert_files({**FILES, "data.py": data, "other.py": "import data\n\nprint(data.input_fn())\n"})
    assert files["task.py"].keras and not files["data.py"].keras and "compat.v1.data.Dataset" in files["data.py"].after
    files = convert_files({**FILES, "data.py": data, "other.py": ""})
    assert "    data = tf.data.Dataset" in files["data.py"].after


def test_a_file_without_functions_of_the_job_that_names_a_mode(convert_files):
    """It changes, too: `tf.estimator` is gone; a file that another program uses keeps both as they are."""
    more = "import tensorflow as tf\n\n\ndef is_training(mode):\n    return mode == tf.estimator.ModeKeys.TRAIN\n"
    task = TASK.replace("from data", "from modes import is_training\nfrom data").replace(
        "    print(", "    print(is_training('train'))\n    print("
    )
    files = convert_files({**FILES, "modes.py": more, "task.py": task})
    assert "    return mode == 'train'\n" in files["modes.py"].after, files["task.py"].kept_as_estimator
    files = convert_files({**FILES, "modes.py": more, "task.py": task, "show.py": "import modes\n"})
    assert "modes.py, line 5: a name that TensorFlow has no longer" in files["task.py"].kept_as_estimator


def test_a_mode_that_one_call_leaves_out_stays(convert_files):
    layers = LAYERS.replace("training):", "training=False):")
    model = MODEL.replace("    logits =", "    net = block(net, 4)\n    logits =")
    files = convert_files({**FILES, "layers.py": layers, "model.py": model})
    assert "training, which depends on the mode in another call" in files["task.py"].kept_as_estimator


def test_the_files_that_import_the_program_belong_to_it(convert_files):
    """A script that calls what makes the Estimator, with a name that no rule converts."""
    task = FILES["task.py"].partition("\n\nif __name__")[0]
    script = "import tensorflow as tf\n\nimport task\n\n{}\ntask.main()\n"
    files = convert_files({**FILES, "task.py": task, "run.py": script.format("print(tf.Session)")})
    assert not any(file.keras for file in files.values())
    assert "run.py, line 5: tf.Session" in files["task.py"].kept_as_estimator
    files = convert_files({**FILES, "task.py": task, "run.py": script.format("print(tf.estimator.ModeKeys.EVAL)")})
    assert files["run.py"].keras and "print('eval')" in files["run.py"].after


def test_a_script_of_two_programs(convert_files):
    """One of them stays, so that the script does; the other becomes Keras."""
    other = program(NETWORK='logits = tf.layers.dense(features["x"], 3)\ntf.assign(logits, logits)')
    files = convert_files(
        {**FILES, "other.py": other, "run.py": "import other\nimport task\n\nother.main()\ntask.main()\n"}
    )
    assert files["task.py"].keras and not files["other.py"].keras, files["task.py"].kept_as_estimator
    for line, reason in (("print(tf.Session)", "tf.Session"), ("tf.disable_v2_behavior()", "a switch of TensorFlow 1")):
        script = f"import tensorflow as tf\nimport other\nimport task\n\n{line}\nother.main()\ntask.main()\n"
        files = convert_files({**FILES, "other.py": other, "run.py": script})
        assert f"in the same program as run.py, line 5: {reason}" in files["task.py"].kept_as_estimator


@pytest.mark.parametrize("imported", ["from model import build", "import model"])
def test_a_function_of_another_file_that_makes_the_estimator(convert_files, imported):
    factory = "def build(folder, rate):\n    return tf.estimator.Estimator(model_fn, folder, params={'rate': rate})\n"
    task = f"import tensorflow as tf\n\n{imported}\n\nestimator = <build>('m', 0.1)\nestimator.train(DATA, steps=4)\n"
    task += "for row in estimator.predict(DATA):\n    print(row)\n"
    task = task.replace("DATA", "lambda: tf.data.Dataset.from_tensors(({'x': [[1.0, 2.0]]}, [1])).repeat()")
    of_file = "model." if imported == "import model" else ""
    files = convert_files({"layers.py": LAYERS, "model.py": f"{MODEL}\n\n{factory}",
                           "task.py": task.replace("<build>", f"{of_file}build")})  # fmt: skip
    assert "def build(inputs, rate):\n    return make_model(inputs, {'rate': rate})\n" in files["model.py"].after
    after = files["task.py"].after
    assert f" = {of_file}build(model_inputs(training), 0.1)\n" in after, files["task.py"].kept_as_estimator
    assert f"{of_file}make_predictions)" in after
    assert imported.replace("build", "build, make_predictions") in after
