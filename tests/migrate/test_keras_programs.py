"""Programs of several files to Keras: all of their files, or none."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from estimator_pipeline.migrate.code import convert
from estimator_pipeline.migrate.code.to_keras import convert_file as conversion
from estimator_pipeline.migrate.code.write import write
from estimator_pipeline.testing import assert_parity
from tests.support.processes import tensorflow_with_three_cpus

# What becomes Keras as a whole, and what declines a file.

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
tf = tensorflow_with_three_cpus()

FILES = {
    "__init__.py": "",
    "layers.py": """import tensorflow as tf

UNITS = 16


def hidden(x, units=UNITS):
    return tf.compat.v1.layers.dense(x, units, tf.nn.relu, name='hidden')
""",
    "model.py": '''"""The network."""
import tensorflow as tf

from .layers import UNITS, hidden

DEFAULTS = {'rate': 0.05}


def model_fn(features, labels, mode, params):
    """A network."""
    logits = tf.compat.v1.layers.dense(hidden(features['x'], UNITS), 3, name='logits')
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={'logits': logits})
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    accuracy = tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, 1))
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={'accuracy': accuracy})
    train_op = tf.compat.v1.train.MomentumOptimizer(params['rate'], 0.9).minimize(
        loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def serving_input_fn():
    x = tf.compat.v1.placeholder(tf.float32, [None, 4], name='x')
    return tf.estimator.export.ServingInputReceiver({'x': x}, {'x': x})
''',
    "inputs.py": """import numpy as np
import tensorflow as tf


def arrays(count):
    rng = np.random.RandomState(3)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    return {'x': x}, x[:, :3].argmax(1).astype(np.int32)


def train_input_fn(batch_size):
    x, y = arrays(300)
    return tf.compat.v1.estimator.inputs.numpy_input_fn(x, y, batch_size, num_epochs=None, shuffle=False)


def eval_input_fn():
    return tf.data.Dataset.from_tensor_slices(arrays(60)).batch(20)


def main():
    print(arrays(3))


if __name__ == '__main__':
    main()
""",
    "task.py": '''"""The task."""
import argparse

import tensorflow as tf

from . import model
from .inputs import train_input_fn, eval_input_fn  # both


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument('--job-dir', required=True)
    args = parser.parse_args(argv)
    estimator = tf.estimator.Estimator(model.model_fn, args.job_dir, params=model.DEFAULTS)
    estimator.train(train_input_fn(20), steps=50)
    estimator.export_saved_model(args.job_dir, model.serving_input_fn)
    return estimator.evaluate(eval_input_fn)


if __name__ == '__main__':
    print(main())
''',
}


@pytest.fixture(autouse=True)
def defects_are_raised(monkeypatch):
    monkeypatch.setattr(conversion, "DEFECTS", ())


def program(folder: Path, change: dict[str, dict[str, str]] | None = None, **more: str) -> Path:
    """Writes the program; `change` is what is other in a file."""
    folder.mkdir()
    for name, text in FILES.items():
        for before, after in (change or {}).get(name, {}).items():
            assert before in text
            text = text.replace(before, after)
        (folder / name).write_text(text)
    for name, text in more.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def texts(folder: Path) -> dict[str, str]:
    made = convert(folder)
    said = {one.path: one.kept_as_estimator for one in made.files if one.kept_as_estimator}
    assert not said, said
    assert {one.path for one in made.files if one.keras} == {"layers.py", "model.py", "inputs.py", "task.py"}
    assert not any(one.left or one.unchanged for one in made.files)
    return {one.path: one.after for one in made.files}


def test_each_file_has_its_part(tmp_path):
    made = texts(program(tmp_path / "trainer"))
    assert made["layers.py"] == FILES["layers.py"].replace(
        "tf.compat.v1.layers.dense(x, units, tf.nn.relu, name='hidden')",
        "tf.keras.layers.Dense(units, tf.nn.relu, name='hidden')(x)",
    )
    for line in ("from .layers import UNITS, hidden\n", "class TrainerModel(tf.keras.Model):\n", "import os\n"):
        assert line in made["model.py"], made["model.py"]
    assert made["inputs.py"].count("def batches(") == 1 and "def batches(" not in made["model.py"]
    for line in (
        "import argparse\nimport os\n\nimport tensorflow as tf\n\nfrom . import model\n"
        "from .inputs import train_input_fn, eval_input_fn  # both\n",
        "    estimator = model.make_model(model_inputs(training), model.DEFAULTS)\n",
        "    model.export_model(estimator, args.job_dir)\n",
        "    return estimator.evaluate(eval_input_fn(), return_dict=True, verbose=0)\n",
    ):
        assert line in made["task.py"], made["task.py"]
    assert made["task.py"].count("def model_inputs(") == 1 and "def model_inputs(" not in made["model.py"]
    assert "of_file" not in "".join(made.values())


@pytest.mark.parametrize(
    ("imports", "calls", "written"),
    [
        ("from .model import model_fn, DEFAULTS as D, serving_input_fn",
         {"model.model_fn": "model_fn", "model.DEFAULTS": "D", "model.serving_input_fn": "serving_input_fn"},
         ["from .model import DEFAULTS, export_model, make_model\n", "model = make_model(", "), DEFAULTS)\n"]),
        ("from trainer import model", {}, ["from trainer import model\n", "estimator = model.make_model("]),
        ("import trainer.model as model", {}, ["import trainer.model as model\n"]),
        ("from trainer.model import model_fn as model_function\nfrom . import model",
         {"model.model_fn": "model_function"},
         ["from . import model\n", "estimator = model.make_model("]),
    ],
)  # fmt: skip
def test_ways_to_import(tmp_path, imports, calls, written):
    """The model is asked for where the model_fn was."""
    made = texts(program(tmp_path / "trainer", {"task.py": {"from . import model": imports, **calls}}))
    for line in written:
        assert line in made["task.py"], made["task.py"]
    assert "model_fn" not in made["task.py"]


@pytest.mark.nightly
def test_it_trains_as_before(tmp_path, monkeypatch):
    """The same weights and slots after every step, and metrics, by the modules as they are written."""
    before = program(tmp_path / "flowers_before")
    made = convert(before)
    write(made, tmp_path / "flowers_after")
    monkeypatch.syspath_prepend(str(tmp_path))
    tf.keras.utils.set_random_seed(3)
    try:
        old = {name: importlib.import_module(f"flowers_before.{name}") for name in ("model", "inputs")}
        new = {name: importlib.import_module(f"flowers_after.{name}") for name in ("model", "inputs", "task")}
        results = new["task"].main(["--job-dir", str(tmp_path / "job")])
        assert results["accuracy"] > 0.5 and list((tmp_path / "job").glob("*/saved_model.pb"))
        tf.keras.backend.clear_session()
        model = new["model"].make_model(
            new["task"].model_inputs(new["inputs"].train_input_fn(20)), new["model"].DEFAULTS
        )
        found = assert_parity(
            estimator=tf.estimator.Estimator(old["model"].model_fn, params=old["model"].DEFAULTS),
            model=model,
            input_fn=lambda: old["inputs"].eval_input_fn().repeat(),
            eval_input_fn=old["inputs"].eval_input_fn,
            steps=20,
        )
        assert len(found.steps) == 20 and {"loss", "accuracy"} <= set(found.metrics.names)
        for ours, theirs in zip(new["inputs"].train_input_fn(20).take(3), batches_of(old["inputs"]), strict=True):
            np.testing.assert_array_equal(ours[0]["x"], theirs[0])
            np.testing.assert_array_equal(ours[1], theirs[1])
    finally:
        for name in [name for name in sys.modules if name.startswith("flowers_")]:
            del sys.modules[name]


def batches_of(inputs) -> list:
    """What the program's own input function gives, by its queue."""
    with tf.Graph().as_default():
        x, y = inputs.train_input_fn(20)()
        with tf.compat.v1.train.MonitoredSession() as session:
            return [session.run((x["x"], y)) for _ in range(3)]


def test_a_class_of_estimators_in_a_file_of_its_own(tmp_path):
    """What imports the class imports what makes the model."""
    text = (Path(__file__).resolve().parent / "corpus" / "ticket_router.py").read_text()
    data, router, main = (text.index(one) for one in ("TEAMS =", "class TicketRouter(", "def main():"))
    folder = tmp_path / "router"
    folder.mkdir()
    heads = {
        "data": "import abc\nimport json\nimport os\n\nimport numpy as np\nimport tensorflow as tf\n\n",
        "router": "import tensorflow as tf\n\nfrom .data import CHANNELS, TEAMS\n\n\n",
        "main": "import argparse\nimport os\n\nimport tensorflow as tf\n\nfrom .data import TicketPipeline\n"
                "from .router import TicketRouter\n\n\n",
    }  # fmt: skip
    for (name, head), (start, end) in zip(heads.items(), ((data, router), (router, main), (main, None)), strict=True):
        (folder / f"{name}.py").write_text(head + text[start:end].rstrip() + "\n")
    converted = convert(folder)
    made = {one.path: one.after for one in converted.files}
    assert all(one.keras and not one.left + one.unchanged for one in converted.files)
    for name, part in {
        "router.py": "import os\nimport time\n\nimport tensorflow as tf\n\nfrom .data import CHANNELS, TEAMS\n\n"
                     "from estimator_pipeline.models.keras_runtime import heads as keras_heads\n\n\n"
                     "class TicketRouter(tf.keras.Model):\n",
        "main.py": "from .data import TicketPipeline\nfrom .router import make_ticket_router\n\n"
                   "from estimator_pipeline.models.keras_runtime import warm_start as keras_weights\n\n\n"
                   "def model_inputs(data):\n",
        "data.py": text[data:router].rstrip() + "\n",
    }.items():  # fmt: skip
        assert part in made[name], made[name]
    assert all(text.endswith("\n") and not text.endswith("\n\n") for text in made.values())


def test_names_that_several_files_have(tmp_path):
    """Each file keeps its own; one that hides a module's name is told apart."""
    made = texts(program(
        tmp_path / "trainer",
        {"layers.py": {"UNITS = 16": "UNITS = 16\nmain = model = 3"},
         "model.py": {"DEFAULTS = {'rate': 0.05}": "DEFAULTS = {'rate': 0.05}\n\n\ndef main():\n    print(DEFAULTS)"}},
    ))  # fmt: skip
    assert "main = model = 3\n" in made["layers.py"] and "def main():\n    print(DEFAULTS)\n" in made["model.py"]
    assert "def main():\n    print(arrays(3))\n" in made["inputs.py"] and "def main(argv=None):\n" in made["task.py"]


TENSORFLOW_1 = {
    "__init__.py": "",
    "util.py": "def clip(x):\n  return min(x, 3)\n",
    "data/__init__.py": "",
    "data/digits.py": """import os.path

import tensorflow as tf
from ..util import clip

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_integer("batch", 32, "")


def train_input():
  data = tf.data.Dataset.from_tensors(({"x": [1.] * clip(64)}, 1))
  return data.repeat().batch(FLAGS.batch).make_one_shot_iterator().get_next()
""",
    "model.py": """from __future__ import absolute_import

import os
import tensorflow as tf
from app.util import clip

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_integer("width", 32, "")


def cnn_model_fn(features, labels, mode):
  net = tf.layers.dense(features["x"], clip(FLAGS.width), name="hidden")
  logits = tf.layers.dense(net, 10, name="logits")
  loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
  train_op = tf.train.AdamOptimizer(0.1).minimize(loss, global_step=tf.train.get_global_step())
  return tf.estimator.EstimatorSpec(mode, {"logits": logits}, loss, train_op)
""",
    "main.py": """import tensorflow as tf

from app.data import digits
from app.model import cnn_model_fn

flags = tf.app.flags
flags.DEFINE_string("model_dir", "/tmp/x", "")
FLAGS = flags.FLAGS


def main(_):
  est = tf.estimator.Estimator(cnn_model_fn, model_dir=FLAGS.model_dir)
  est.train(digits.train_input, steps=10)


if __name__ == "__main__":
  tf.app.run()
""",
}


def test_a_program_of_tensorflow_1(tmp_path):
    """Folders, flags in each of its files, one file that is imported in two ways; what has no constructs stays."""
    for name, text in TENSORFLOW_1.items():
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / name).write_text(text)
    made = {one.path: one for one in convert(tmp_path / "app").files}
    assert {name for name, one in made.items() if one.keras} == {"data/digits.py", "model.py", "main.py"}, made
    assert not made["util.py"].changed
    for name, text in {
        "data/digits.py": "import os.path\n\nfrom absl import flags\nimport tensorflow as tf\n"
                          "from ..util import clip\n\nFLAGS = flags.FLAGS\nflags.DEFINE_integer(\"batch\", 32, \"\")\n",
        "model.py": "import os\nfrom absl import flags\nimport tensorflow as tf\nfrom app.util import clip\n",
        "main.py": "import os\n\nfrom absl import app, flags\nimport tensorflow as tf\n\nfrom app.data import digits\n"
                   "from app.model import make_cnn_model\n",
    }.items():  # fmt: skip
        assert text in made[name].after, made[name].after
    assert "  return data.repeat().batch(FLAGS.batch)\n" in made["data/digits.py"].after
    assert 'clip(FLAGS.width), name="hidden")(features["x"])' in made["model.py"].after


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("from old import model_fn\n", "model_fn, which other.py uses from it"),
        ("import old\nold.network(1, True)\n", "network, which other.py uses from it"),
        ("from old import RATE, main\nmain()\n", ""),
    ],
)
def test_a_file_that_others_take_of(tmp_path, other, reason):
    """What is one program by itself stays as it is where another file needs what would be gone or called otherwise."""
    body = FILES["model.py"].partition("def model_fn")[2].partition("def serving_input_fn")[0]
    called = "network(features['x'], mode == tf.estimator.ModeKeys.TRAIN)"
    for before, after in {"hidden(features['x'], UNITS)": called, "params['rate']": "RATE", ", params)": ")"}.items():
        body = body.replace(before, after)
    (tmp_path / "old.py").write_text(
        "import tensorflow as tf\n\nRATE = 0.1\n\n\ndef network(x, training):\n"
        "    return tf.compat.v1.layers.dropout(x, 0.5, training=training)\n\n\ndef model_fn"
        + body
        + "def main():\n    estimator = tf.estimator.Estimator(model_fn, 'a')\n    estimator.train(lambda: DATA)\n"
    )
    (tmp_path / "other.py").write_text("import tensorflow as tf\n" + other)
    made = {one.path: one for one in convert(tmp_path).files}
    assert made["old.py"].keras is not bool(reason) and reason in made["old.py"].kept_as_estimator


@pytest.mark.parametrize(
    ("change", "more", "reason"),
    [
        ({"task.py": {"from . import model\n": "from .model import *\n", "model.": ""}}, {}, "or with `*`"),
        ({"task.py": {"    parser = ": "    from . import layers\n    parser = "}}, {},
         "inside a function or a condition"),
        ({"task.py": {"import tensorflow as tf\n": "from .layers import tf\n"}}, {}, "tf, a part of TensorFlow"),
        ({"task.py": {"import tensorflow as tf": "import tensorflow.compat.v1 as tf"}}, {}, "in several ways"),
        ({"task.py": {"model.DEFAULTS": "vars(model)['DEFAULTS']"}}, {}, "the module model is used as a value"),
        ({"task.py": {"args = parser": "hidden = args = parser"}, "model.py": {"DEFAULTS =": "D = DEFAULTS ="}},
         {}, ""),
        ({"task.py": {"args = parser": "model_fn = args = parser"}}, {}, "model_fn of another file, where model_fn is"),
        ({"model.py": {"'accuracy': accuracy}": "'accuracy': accuracy}, scaffold=SCAFFOLD"}}, {},
         "in the same program as layers.py, model.py, inputs.py; model.py, line 17: scaffold of the EstimatorSpec"),
        ({"inputs.py": {"shuffle=False": "shuffle=False, target_column='x'"}}, {}, "inputs.py, line 13: target_column"),
        ({}, {"other": "import tensorflow as tf\nfrom .model import model_fn\n"},
         "model_fn, which other.py uses from it"),
        ({}, {"other": "import tensorflow as tf\nfrom . import model\nprint(model.serving_input_fn)\n"},
         "serving_input_fn, which other.py uses from it"),
        ({"model.py": {"DEFAULTS = ": "__all__ = ['model_fn']\nDEFAULTS = "}}, {},
         "model_fn, which __all__ of model.py"),
        ({"task.py": {"from . import model\n": "from . import layers, model\n"}}, {}, "an import of several files"),
        ({"model.py": {"from .layers import UNITS, hidden": "from . import layers\nfrom .layers import hidden\n"
                       "UNITS = layers.tf"}}, {}, "tf, which a file re-exports from a different file"),
        ({"inputs.py": {"def main": "def model_fn"}}, {}, "model_fn, which several files define differently"),
        ({"inputs.py": {"import numpy as np": "import numpy.random as np"},
          "task.py": {"import argparse": "import argparse\nimport numpy as np"}}, {},
         "np, which files of the program import"),
    ],
)  # fmt: skip
def test_programs_that_are_declined(tmp_path, change, more, reason):
    """As a whole, with the file and the line."""
    folder = program(tmp_path / "trainer", change, **more)
    made = convert(folder)
    said = {one.path: one.kept_as_estimator for one in made.files if one.kept_as_estimator}
    if not reason:
        assert not said
        return
    assert not any(one.keras or one.changed for one in made.files)
    assert {"task.py", "model.py"} <= said.keys()
    assert any(reason in f"{path}: {text.partition(': ')[2]}" or reason in text for path, text in said.items()), said


def test_a_file_that_needs_none_of_its_imports_any_more(tmp_path):
    """What it needs now stands in their place."""
    (tmp_path / "model.py").write_text(
        "import tensorflow as tf\n\n\ndef make(folder):\n"
        "    return tf.estimator.LinearRegressor([tf.feature_column.numeric_column('x')], folder)\n"
    )
    (tmp_path / "task.py").write_text(
        "import tensorflow as tf\n\nimport model\n\nestimator = model.make('m')\nestimator.train(lambda: DATA)\n"
    )
    made = {one.path: one for one in convert(tmp_path).files}
    assert made["model.py"].keras and made["task.py"].keras, made["task.py"].kept_as_estimator
    assert made["model.py"].after.startswith(
        "from estimator_pipeline.models.keras_runtime import canned as keras_canned"
    )
