"""`migrate convert`: golden conversions, what stays byte for byte, notes on what is left, what is written and when."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
from pathlib import Path

import pytest

from estimator_pipeline.cli import main
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.code import convert, diff, scan
from estimator_pipeline.migrate.code.analysis.edits import Edit, Lines, apply

HERE = Path(__file__).resolve().parent
# Programs of the corpus, with the names that they had in TensorFlow 1; conversions/ has what they are converted to.
GOLDEN = ("mnist_tf1", "ads_v1_canned", "demand_rnn")
OLD = "import tensorflow as tf\nx = tf.log(1.)\n"


def of_tensorflow_1(name: str) -> str:
    """A program of the corpus as it was before it was moved to tensorflow.compat.v1."""
    text = (HERE / "corpus" / f"{name}.py").read_text(encoding="utf-8")
    text, count = re.subn("^import tensorflow.compat.v1 as tf$", "import tensorflow as tf", text, flags=re.MULTILINE)
    assert count == 1
    return text.replace("tf.disable_v2_behavior()\n", "")


def converted(tmp_path: Path, text: str, **options) -> str:
    (tmp_path / "one.py").write_text(text, encoding="utf-8", newline="")
    (made,) = convert(tmp_path / "one.py", **options).files
    ast.parse(made.after)
    return made.after


def run(arguments, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main.app([str(one) for one in arguments], prog_name="estimator-pipeline")
    printed = capsys.readouterr()
    return ended.value.code or 0, printed.out, printed.err


# Whole programs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """`golden(NAME)`: what the program with old names is converted to, once."""
    return functools.cache(lambda name: converted(tmp_path_factory.mktemp(name), of_tensorflow_1(name), to="estimator"))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(golden, name):
    """To accept a change: migrate convert --to estimator the program with old names, and copy it to conversions/."""
    assert golden(name) == (HERE / "conversions" / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GOLDEN)
def test_a_converted_program_has_nothing_left_that_does_not_run(golden, tmp_path, name):
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(of_tensorflow_1(name))
    after.write_text(golden(name))
    old, new = scan(before), scan(after)
    assert old.count("automatic") > 10 and old.count("manual") == 0
    # What is automatic still is what goes to Keras.
    assert new.count("manual") == 0 and convert(after, to="estimator").files[0].after == after.read_text()
    # Nothing was lost on the way: the switch of behaviour is the one that is new.
    lost = len(old.findings) - len(new.findings)
    assert lost == -1 and [one.name for one in new.findings if one.kind == "behavior"] == [
        "tf.compat.v1.disable_v2_behavior"
    ]


@pytest.mark.gate("left-manual", "left-all", "left-none", "mnist_tf1-all")
@pytest.mark.parametrize("notes", ["manual", "all", "none"])
@pytest.mark.parametrize("name", [*GOLDEN, "left"])
def test_converting_twice_changes_nothing(tmp_path, name, notes):
    text = LEFT if name == "left" else of_tensorflow_1(name)
    once = converted(tmp_path, text, notes=notes)
    assert once != text and converted(tmp_path, once, notes=notes) == once


@pytest.mark.nightly
def test_programs_of_today_are_not_touched():
    """Of the corpus, which runs unchanged, not a byte changes where its Estimators are to stay."""
    made = convert(HERE / "corpus", to="estimator")
    assert len(made.files) > 20 and not made.changed and not any(one.changes for one in made.files)


# Names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # gone, with a name of today for the same object
        ("tf.log(x)", "tf.math.log(x)"),
        ("tf.random_normal([1])", "tf.random.normal([1])"),
        ("tf.train.SessionRunHook", "tf.estimator.SessionRunHook"),
        # gone but for compat.v1
        ("tf.layers.dense(x, 1)", "tf.compat.v1.layers.dense(x, 1)"),
        ("tf.to_float(x)", "tf.compat.v1.to_float(x)"),
        ("tf.estimator.inputs.numpy_input_fn(x)", "tf.compat.v1.estimator.inputs.numpy_input_fn(x)"),
        # there, for another thing
        ("tf.losses.mean_squared_error(a, b)", "tf.compat.v1.losses.mean_squared_error(a, b)"),
        ("tf.summary.scalar('a', x)", "tf.compat.v1.summary.scalar('a', x)"),
        ("tf.estimator.DNNClassifier([1], c)", "tf.compat.v1.estimator.DNNClassifier([1], c)"),
        ("tf.data.Dataset.range(3).make_one_shot_iterator()",
         "tf.compat.v1.data.Dataset.range(3).make_one_shot_iterator()"),
        ("tf.nn.dropout(x, 0.5)", "tf.compat.v1.nn.dropout(x, 0.5)"),
        # there, and the same by these arguments
        ("tf.reduce_mean(x, axis=1)", "tf.reduce_mean(x, axis=1)"),
        ("tf.reduce_mean(x, keep_dims=True)", "tf.compat.v1.reduce_mean(x, keep_dims=True)"),
        ("tf.argmax(x, 1)", "tf.argmax(x, 1)"),
        ("tf.argmax(x, dimension=1)", "tf.compat.v1.argmax(x, dimension=1)"),
        ("tf.squeeze(x, [1])", "tf.squeeze(x, [1])"),
        ("tf.squeeze(x, squeeze_dims=[1])", "tf.compat.v1.squeeze(x, squeeze_dims=[1])"),
        ("tf.reduce_sum(*a)", "tf.compat.v1.reduce_sum(*a)"),
        ("f = tf.reduce_sum", "f = tf.compat.v1.reduce_sum"),
        ("tf.constant(1, shape=[2])", "tf.compat.v1.constant(1, shape=[2])"),
        # there, and the same object
        ("tf.nn.relu(tf.matmul(a, b))", "tf.nn.relu(tf.matmul(a, b))"),
        ("tf.estimator.RunConfig('m')", "tf.estimator.RunConfig('m')"),
        ("tf.estimator.ModeKeys.TRAIN", "tf.estimator.ModeKeys.TRAIN"),
        # a module by itself, and by getattr
        ("losses = tf.losses", "losses = tf.compat.v1.losses"),
        ("getattr(tf.train, 'AdamOptimizer')(1)", "getattr(tf.compat.v1.train, 'AdamOptimizer')(1)"),
        # contrib
        ("tf.contrib.rnn.GRUCell(3)", "tf.compat.v1.nn.rnn_cell.GRUCell(3)"),
        ("tf.contrib.layers.xavier_initializer()", "tf.compat.v1.glorot_uniform_initializer()"),
        ("tf.contrib.layers.l2_regularizer(0.1)", "tf.keras.regularizers.l2(0.5 * 0.1)"),
        ("tf.contrib.layers.l2_regularizer(a + b)", "tf.keras.regularizers.l2(0.5 * (a + b))"),
        ("tf.contrib.layers.l2_regularizer((a + b))", "tf.keras.regularizers.l2((0.5 * (a + b)))"),
        ("tf.contrib.data.map_and_batch(f, 2)", "tf.data.experimental.map_and_batch(f, 2)"),
        ("tf.contrib.learn.ModeKeys.INFER", "tf.estimator.ModeKeys.PREDICT"),
        ("tf.contrib.framework.nest.is_sequence(x)", "tf.nest.is_nested(x)"),
        ("tf.contrib.ffmpeg.decode_audio(x)", None),
        # what Python and NumPy have dropped
        ("import numpy as np\nx = np.float(np.product(a))", "import numpy as np\nx = float(np.prod(a))"),
        ("import numpy as np\nint = 3\nx = np.int(1)", None),
        ("import collections\nx = collections.Mapping", "import collections\nx = collections.abc.Mapping"),
        ("from collections import Mapping, Set", "from collections.abc import Mapping, Set"),
        ("from collections import Mapping, OrderedDict", None),
        # over several lines, with comments inside
        ("tf.layers.dense(  # wide\n    x,\n\n    1)", "tf.compat.v1.layers.dense(  # wide\n    x,\n\n    1)"),
        ("(tf\n .layers\n .dense)(x, 1)", "(tf.compat.v1.layers.dense)(x, 1)"),
    ],
)  # fmt: skip
def test_names(tmp_path, before, after):
    """In a file that is known for one of TensorFlow 1 by its first line."""
    head, new_head = OLD, OLD.replace("tf.log", "tf.math.log")
    found = converted(tmp_path, f"{head}{before}\n", notes="none")
    assert found == f"{new_head}{after or before}\n"


_PACKAGE = "from estimator_pipeline.compat import contrib"


@pytest.mark.parametrize(
    ("before", "after", "imports"),
    [
        # tf-slim's, TF-GAN's, and what estimator_pipeline alone has: by an import behind the others
        ("tf.contrib.layers.fully_connected(x, 3)", "tf_slim.layers.fully_connected(x, 3)", ["import tf_slim"]),
        ("tf.contrib.layers.l2_regularizer(scale=0.1)", "tf_slim.l2_regularizer(scale=0.1)", ["import tf_slim"]),
        ("tf.contrib.slim.nets.vgg.vgg_16(x)", "tf_slim.nets.vgg.vgg_16(x)", ["import tf_slim"]),
        ("tf.contrib.gan.GANModel", "tensorflow_gan.GANModel", ["import tensorflow_gan"]),
        ("tf.contrib.training.HParams(a=1)", "contrib.training.HParams(a=1)", [_PACKAGE]),
        ("learn = tf.contrib.learn", "learn = contrib.learn", [_PACKAGE]),
        ("contrib = tf.contrib.learn.Experiment", "contrib = tf_contrib.learn.Experiment",
         [f"{_PACKAGE} as tf_contrib"]),
        ("def f(contrib, tf_contrib):\n  tf.contrib.training.HParams()", None, []),
        ("tf.contrib.crf.crf_decode(tf.contrib.layers.linear(x, 2))",
         "contrib.crf.crf_decode(tf_slim.layers.linear(x, 2))", [_PACKAGE, "import tf_slim"]),
        # imports, where they stand
        ("from tensorflow.contrib import slim", "import tf_slim as slim", []),
        ("import tensorflow.contrib.slim as slim", "import tf_slim as slim", []),
        ("from tensorflow.contrib.slim import nets", "from tf_slim import nets", []),
        ("from tensorflow.contrib.rnn import GRUCell, LSTMCell as Cell",
         "from tensorflow.compat.v1.nn.rnn_cell import GRUCell, LSTMCell as Cell", []),
        ("from tensorflow.contrib.rnn import GRUCell, LSTMBlockCell",
         "from estimator_pipeline.compat.contrib.rnn import GRUCell, LSTMBlockCell", []),
        ("from tensorflow.contrib.framework.nest import is_sequence",
         "from tensorflow.nest import is_nested as is_sequence", []),
        ("from tensorflow.contrib import layers, rnn", "from estimator_pipeline.compat.contrib import layers, rnn", []),
        ("from tensorflow.contrib.learn.python.learn import learn_runner",
         "from estimator_pipeline.compat.contrib.learn.python.learn import learn_runner", []),
        ("import tensorflow.contrib.layers as layers", "import estimator_pipeline.compat.contrib.layers as layers", []),
        ("from tensorflow import contrib", "from estimator_pipeline.compat import contrib", []),
        ("import tensorflow.contrib as c", "import estimator_pipeline.compat.contrib as c", []),
        ("from tensorflow.contrib import ffmpeg", None, []),
        ("from tensorflow.contrib.rnn import GRUCell, PhasedLSTMCell", None, []),
        ("import tensorflow.contrib", None, []),
    ],
)  # fmt: skip
def test_what_has_no_home_in_tensorflow(tmp_path, before, after, imports):
    """Converted again nothing changes."""
    found = converted(tmp_path, f"{OLD}{before}\n", notes="none")
    head = OLD.replace("tf.log", "tf.math.log").splitlines()
    assert found.splitlines() == [head[0], *imports, *head[1:], *(after or before).splitlines()]
    if after is not None:
        assert converted(tmp_path, found, notes="none") == found


def test_imports_where_a_file_does_not_begin_with_imports(tmp_path):
    head = '#!/usr/bin/python\n"""Doc."""\n'
    late = f'{head}__author__ = "me"\nimport tensorflow as tf\ntf.contrib.slim.flatten(x)\n'
    assert converted(tmp_path, late, notes="none").splitlines()[-3:] == [
        "import tensorflow as tf", "import tf_slim", "tf_slim.flatten(x)"
    ]  # fmt: skip
    inside = f"{head}# Of f.\ndef f(x):\n  import tensorflow as tf\n  return tf.contrib.slim.flatten(x)\n"
    found = converted(tmp_path, inside, notes="none").splitlines()
    assert found[:2] == head.splitlines() and found.index("import tf_slim") < found.index("def f(x):")


def test_contrib_in_a_program_of_compat_v1(tmp_path):
    text = "import tensorflow.compat.v1 as tf\nc = tf.contrib.rnn.GRUCell(2)\nh = tf.contrib.training.HParams()\n"
    assert converted(tmp_path, text, notes="none").splitlines() == [
        "import tensorflow.compat.v1 as tf", _PACKAGE, "c = tf.nn.rnn_cell.GRUCell(2)", "h = contrib.training.HParams()"
    ]  # fmt: skip


def test_names_of_a_file_of_today_are_not_guessed_at(tmp_path):
    for text in (
        "import tensorflow as tf\ny = tf.argmax(x, 1, name='a')\nz = tf.losses.mean_squared_error(a, b)\n",
        "import tensorflow.compat.v1 as tf\ny = tf.layers.dense(x)\n",
        "try:\n  import tensorflow.compat.v1 as tf\nexcept ImportError:\n  import tensorflow as tf\ntf.log(x)\n",
        "import tensorflow as tf\ntry:\n  f = tf.log\nexcept AttributeError:\n  f = tf.math.log\n",
        "import tensorflow as tf\nif tf.__version__ < '2':\n  f = tf.log\n",
    ):
        assert converted(tmp_path, text) == text


def test_a_half_moved_file(tmp_path):
    """With names that TensorFlow 2 lacks it ran on TensorFlow 1 alone, whose 1.13 to 1.15 have tf.compat.v1 as well."""
    text = OLD + "tf.compat.v1.layers.dense(x, 1)\ntf.summary.scalar('a', 1)\ntf.nn.dropout(x, rate=0.1)\n"
    after = text.replace("tf.log", "tf.math.log").replace("tf.summary", "tf.compat.v1.summary")
    assert converted(tmp_path, text, notes="none") == after.replace("tf.nn", "tf.compat.v1.nn")


def test_imports_of_names(tmp_path):
    text = "from tensorflow import layers as L, nn\nL.dense(nn.relu(x), 1)\n"
    assert converted(tmp_path, text) == text.replace("tensorflow import", "tensorflow.compat.v1 import")
    for left in ("from tensorflow.layers import dense\ndense(x, 1)\n", "from tensorflow import *\nlog(x)\n"):
        assert converted(tmp_path, left, notes="none") == left
        assert convert(tmp_path / "one.py").files[0].left


def test_a_class_is_converted_by_its_base(tmp_path):
    (tmp_path / "base.py").write_text("import tensorflow as tf\nclass Base(tf.train.SessionRunHook):\n  pass\n")
    (tmp_path / "mine.py").write_text("from base import Base\nclass Mine(Base):\n  pass\n")
    found = scan(tmp_path)
    assert [one.treatment for one in found.findings] == ["automatic", "automatic"]
    base, mine = convert(tmp_path).files
    assert "class Base(tf.estimator.SessionRunHook):" in base.after and not mine.changed


# The switch of behaviour -------------------------------------------------------------------------------------

_RUN = "\nif __name__ == '__main__':\n  tf.app.run()\n"


@pytest.mark.parametrize(
    ("head", "after"),
    [
        ('"""Doc."""\nimport os\nimport tensorflow as tf\n\nA = 1\n',
         '"""Doc."""\nimport os\nimport tensorflow as tf\n\nif __name__ == "__main__":\n'
         "    tf.compat.v1.disable_v2_behavior()\n\nA = 1\n"),
        ("import tensorflow\nimport os  # last\n# of A\nA = tensorflow.log(1.)\nimport tensorflow as tf\n",
         "import tensorflow\nimport os  # last\n\nif __name__ == \"__main__\":\n"
         "    tensorflow.compat.v1.disable_v2_behavior()\n# of A\n"
         "A = tensorflow.math.log(1.)\nimport tensorflow as tf\n"),
        ("import tensorflow as tf\ntf.enable_eager_execution()\n",
         "import tensorflow as tf\ntf.compat.v1.enable_eager_execution()\n"),
    ],
)  # fmt: skip
def test_the_module_that_is_run_says_that_it_is_one_of_tensorflow_1(tmp_path, head, after):
    assert converted(tmp_path, head + _RUN) == after + _RUN.replace("tf.app", "tf.compat.v1.app")


@pytest.mark.parametrize("end", ["def work():\n    tf.log(1.)\nwork()\n", "work().train(input_fn)\n"])
def test_a_script_says_it(tmp_path, end):
    assert "tf.compat.v1.disable_v2_behavior()" in converted(tmp_path, OLD + end)


def test_what_files_of_tensorflow_1_alone_import(tmp_path):
    """Names that both have are TensorFlow 1's there, through files without TensorFlow; tests do not count."""
    texts = {
        "model.py": f"{OLD}from ops import scope\nimport shared\n",
        "ops/__init__.py": "from ops.scopes import *\n",
        "ops/scopes.py": "import tensorflow as tf\nscope = tf.name_scope\n",
        "ops/scopes_test.py": "import tensorflow as tf\nimport ops.scopes\n",
        "shared.py": "import tensorflow as tf\nscope = tf.name_scope\n",
        "of_2.py": "import tensorflow as tf\nimport shared\n",
        "moved.py": "import tensorflow as tf\nscope = tf.name_scope, tf.compat.v1.layers\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    after = {one.path: one.after for one in convert(tmp_path, to="estimator").files}
    assert after["ops/scopes.py"].endswith("scope = tf.compat.v1.name_scope\n")
    assert after["shared.py"] == texts["shared.py"] and after["moved.py"] == texts["moved.py"]


def test_iterators_of_other_files(tmp_path):
    """A function takes data sets of either TensorFlow."""
    text = f"{OLD}import reading\nit = (reading.read()\n  .batch(2)) \\\n  .make_one_shot_iterator()\n"
    text += "data = tf.data.Dataset.range(3)\ndata = data.take_while(f)\nit = data.make_initializable_iterator()\n"
    after = converted(tmp_path, text)
    assert "it = tf.compat.v1.data.make_one_shot_iterator((reading.read()\n  .batch(2)))\n" in after
    assert "it = tf.compat.v1.data.make_initializable_iterator(data)\n" in after


_CANNED = "import tensorflow as tf\ne = tf.estimator.DNNRegressor([5], columns)\n"


@pytest.mark.parametrize(
    ("text", "is_of_1"),
    [
        ("it = data.make_one_shot_iterator()\n", True),
        ("data = tf.data.Dataset.range(3)\nit = data.batch(2).make_initializable_iterator()\n", True),
        ("it = tf.compat.v1.data.make_one_shot_iterator(data)\n", False),
        ("data = tf.compat.v1.data.Dataset.range(3)\nit = data.make_one_shot_iterator()\n", False),
        ("data = read(tf.compat.v1.data)\nit = data.make_one_shot_iterator()\n", False),
        ("class A:\n  def make_one_shot_iterator(self): pass\n\nit = A().make_one_shot_iterator()\n", False),
        ("if version < 2:\n  it = data.make_one_shot_iterator()\n", False),
    ],
)
def test_a_method_of_datasets_that_only_tensorflow_1_has(tmp_path, text, is_of_1):
    """It shows of which TensorFlow an Estimator is that both have."""
    after = converted(tmp_path, _CANNED + text, to="estimator", notes="none")
    assert ("tf.compat.v1.estimator.DNNRegressor" in after) == is_of_1 and (after != _CANNED + text) == is_of_1


@pytest.mark.parametrize(
    ("iterator", "optimizer"),
    [
        ("data.make_one_shot_iterator()", "Adagrad(0.05)"),
        ("tf.compat.v1.data.make_one_shot_iterator(data)", "Adagrad()"),
    ],
)
def test_a_canned_estimator_beside_a_file_of_tensorflow_1(tmp_path, iterator, optimizer):
    reads = f"def read():\n    data = tf.data.Dataset.range(3)\n    return {iterator}.get_next()\n"
    (tmp_path / "reading.py").write_text(f"import tensorflow as tf\n\n{reads}")
    (tmp_path / "job.py").write_text(
        "import tensorflow as tf\nfrom reading import read\n"
        "columns = [tf.feature_column.numeric_column('x')]\n"
        "model = tf.estimator.DNNRegressor([5], columns)\nmodel.train(read, steps=3)\n"
    )
    after = {file.path: file.after for file in convert(tmp_path).files}["job.py"]
    assert f"optimizer=tf.keras.optimizers.{optimizer}" in after


def test_tensorflow_by_another_file(tmp_path):
    """`tf` is that of nets.py and data.py, which the file has as a whole."""
    texts = {
        "nets.py": OLD, "data.py": OLD,
        "train.py": "from nets import *\nfrom data import *\n\nif __name__ == '__main__':\n    tf.app.run()\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    for to in ("estimator", "keras"):
        after = {one.path: one.after for one in convert(tmp_path, to=to).files}["train.py"]
        assert after.endswith("tf.compat.v1.app.run()\n") and "    tf.compat.v1.disable_v2_behavior()\n" in after, to


def test_tostring_of_arrays(tmp_path):
    after = converted(tmp_path, OLD + "a = x.tostring()\nb = etree.tostring(x)\n")
    assert "a = x.tobytes()\nb = etree.tostring(x)\n" in after


def test_other_modules_do_not_say_it(tmp_path):
    assert "disable" not in converted(tmp_path, OLD)


def test_each_program_of_a_folder_says_it_for_itself(tmp_path):
    """Scripts without `__main__` too, but not what others import."""
    trains = f"{OLD}estimator.train(input_fn)\n"
    texts = {
        "script.py": trains,
        "main.py": f"{OLD}import library\n{_RUN}",
        "library.py": trains,
        "eager.py": f"{OLD}tf.enable_eager_execution()\n{_RUN}",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    after = {one.path: one.after for one in convert(tmp_path, to="estimator").files}
    assert {name for name, text in after.items() if "disable_v2_behavior" in text} == {"script.py", "main.py"}


# Bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_are_kept(tmp_path, newline):
    text = f"import os\n\nimport tensorflow as tf\nx = '''a\nb'''\ny = tf.log(1.)\ntf.contrib.ffmpeg.f()\n{_RUN}"
    after = converted(tmp_path, text.replace("\n", newline))
    assert set(re.findall(r"\r\n|\r|\n", after)) == {newline}
    assert after.replace(newline, "\n") == converted(tmp_path, text)


@pytest.mark.parametrize(
    "content",
    [
        "# -*- coding: latin-1 -*-\nimport tensorflow as tf\nx = tf.log(1.)  # gr\xf6\xdfe\n".encode("latin-1"),
        "import tensorflow as tf\nx = tf.log(1.)  # größe \U0001f600 ab \n".encode(),
        b"\xef\xbb\xbfimport tensorflow as tf\nx = tf.log(1.)\n",
        b"import tensorflow as tf\n\x0c\nx = 1;  y = tf.log(1.) ;\n\tz = 1\n".replace(b"\tz", b"z"),
        b"import tensorflow as tf\nif x:\n\ty = tf.log( 1. )",
    ],
)
def test_bytes_are_kept(tmp_path, capsys, content):
    """Encoding, byte order mark, tabs, form feeds, a last line without an end."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.py").write_bytes(content)
    assert run(["migrate", "convert", tmp_path / "in", "--output", tmp_path / "out"], capsys)[0] == 0
    assert (tmp_path / "out" / "one.py").read_bytes() == content.replace(b"tf.log", b"tf.math.log")


def test_a_text_that_libcst_does_not_keep_is_left_alone(tmp_path):
    """Line ends of CR alone within a string."""
    text = OLD.replace("\n", "\r") + "y = '''a\rb'''\r"
    assert converted(tmp_path, text) == text
    (made,) = convert(tmp_path / "one.py").files
    assert made.kept == "libcst does not reproduce it byte for byte" and len(made.left) == 1


def test_edits():
    assert apply("abc", [Edit(1, 1, "x"), Edit(1, 1, "y"), Edit(1, 2, "B"), Edit(3, 3, "!")]) == "axyBc!"
    with pytest.raises(ValueError, match="two edits overlap at 1"):
        apply("abc", [Edit(0, 2, ""), Edit(1, 3, "")])
    lines = Lines("a\r\nb\rc\nd")
    assert lines.starts == [0, 3, 5, 7] and [lines.newline(one) for one in (1, 2, 3, 4)] == ["\r\n", "\r", "\n", "\r\n"]


# Notes -------------------------------------------------------------------------------------------------------

LEFT = '''import tensorflow as tf

def f(x):
  """Doc.

  # estimator_pipeline: not a note, but a text.
  """
  # ours
  if x:
    pass
  elif tf.contrib.ffmpeg.g(x):  # behind
    y = (1 +
         tf.contrib.ffmpeg.h(x) + tf.contrib.ffmpeg.h(x))
  return tf.log(x) ; z = tf.contrib.ffmpeg.i(a=1)
'''


def test_what_is_left_has_a_note_above_its_statement(tmp_path):
    lines = converted(tmp_path, LEFT).splitlines()
    at = [number for number, line in enumerate(lines) if line.lstrip().startswith("# estimator_pipeline: tf.contrib")]
    assert len(at) == 3  # one for the two calls of h in one statement
    said = [" ".join(line.strip().removeprefix("# estimator_pipeline: ") for line in lines[n : n + 3]) for n in at]
    assert all(one.startswith("tf.contrib") and "does not run: tf.contrib was removed in" in one for one in said)
    # Of code nothing has changed but the one name.
    kept = [line for line in lines if "# estimator_pipeline:" not in line or "not a note" in line]
    assert kept == LEFT.replace("tf.log", "tf.math.log").splitlines()
    assert all(len(line) <= 100 for line in lines)


def test_notes_on_all_and_on_nothing(tmp_path):
    text = "import tensorflow as tf\n\nconfig = tf.estimator.RunConfig('m')\n"
    assert converted(tmp_path, text) == text == converted(tmp_path, text, notes="none")
    told = converted(tmp_path, text, notes="all")
    note = "# estimator_pipeline: tf.estimator.RunConfig is unchanged: it runs under compat. In Keras:"
    assert note in told
    assert converted(tmp_path, told, notes="none") == text


def test_a_note_goes_when_the_construct_is_gone(tmp_path):
    told = converted(tmp_path, "import tensorflow as tf\nx = tf.contrib.ffmpeg.g(1)\n")
    assert "# estimator_pipeline" in told
    assert converted(tmp_path, told.replace("tf.contrib.ffmpeg.g", "g")) == "import tensorflow as tf\nx = g(1)\n"


# The command -------------------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path) -> Path:
    folder = tmp_path / "trainer"
    (folder / "models").mkdir(parents=True)
    (folder / "old.py").write_text(OLD + "tf.contrib.ffmpeg.g(x)\n")
    (folder / "models" / "plain.py").write_text("print(1)\n")
    (folder / "models" / "two.py").write_bytes(b"import tensorflow as tf\nprint 'a', tf.log(1)\n")
    cell = {"cell_type": "code", "source": "import tensorflow as tf\ntf.log(1)"}
    (folder / "book.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
    (folder / "run").write_text("#!/usr/bin/env python\nimport tensorflow as tf\ntf.log(1)\n")
    (folder / "run").chmod(0o755)
    (folder / "data.csv").write_text("1,2\n")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_command(program, tmp_path, capsys):
    before = files_of(program)
    code, out, err = run(["migrate", "convert", program, "--output", tmp_path / "new" / "out"], capsys)
    assert code == 0 and err == ""
    after = files_of(tmp_path / "new" / "out")
    assert files_of(program) == before and os.listdir(tmp_path / "new") == ["out"]
    assert set(after) == set(before) - {"data.csv"}
    assert {name for name in after if after[name] != before[name]} == {"book.ipynb", "old.py", "run"}
    assert os.access(tmp_path / "new" / "out" / "run", os.X_OK)
    assert out.startswith(f"{program}: 4 changes in 3 of 5 files; 2 manual, 0 unchanged\n")
    for line in ("  old.py:2:5  tf.log -> tf.math.log",
                 "  old.py:3:1  manual: tf.contrib.ffmpeg.g: tf.contrib was removed",
                 "  book.ipynb:cell 1:2:1  tf.log -> tf.math.log",
                 "models/two.py: copied unchanged: it cannot be read"):  # fmt: skip
        assert line in out


def test_json(program, tmp_path, capsys):
    code, out, _ = run(["migrate", "convert", program, "--output", tmp_path / "out", "--json"], capsys)
    document = json.loads(out)
    assert code == 0 and document["schema"] == "estimator-pipeline/migrate-convert/2"
    assert (document["changes"], document["manual"], document["unchanged"]) == (4, 2, 0)
    assert document["output"] == str(tmp_path / "out") and [one["path"] for one in document["files"]] == sorted(
        set(files_of(program)) - {"data.csv"}
    )
    (old,) = [one for one in document["files"] if one["path"] == "old.py"]
    assert old["changes"] == [
        {"line": 2, "column": 5, "before": "tf.log", "after": "tf.math.log", "rule": "tensorflow-1-name", "cell": None}
    ]
    assert old["manual"][0]["name"] == "tf.contrib.ffmpeg.g" and old["manual"][0]["successor"]


def test_a_dry_run_prints_a_diff_and_writes_nothing(program, tmp_path, capsys):
    before = files_of(tmp_path)
    code, out, err = run(["migrate", "convert", program, "--dry-run"], capsys)
    assert code == 0 and files_of(tmp_path) == before and "4 changes" in err
    assert out == diff(convert(program))
    assert "--- a/old.py\n+++ b/old.py\n" in out and "-x = tf.log(1.)\n+x = tf.math.log(1.)\n" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trainer"], "--output is missing"),
        (["nowhere", "--output", "out"], "nowhere: no such file or folder"),
        (["trainer", "--output", "there"], "--output there already exists"),
        (["trainer", "--output", "trainer"], "--output trainer: this folder contains the program"),
        (["trainer", "--output", "trainer/out"], "--output trainer/out: this folder contains the program"),
        (["trainer/models", "--output", "trainer", "--overwrite"], "this folder contains the program"),
        (["trainer/old.py", "--output", "trainer", "--overwrite"], "this folder contains the program"),
        (["trainer", "--output", "there/file"], "--output there/file is not a folder"),
        (["trainer", "--output", "there/file/out"], "the program cannot be written"),
        (["trainer", "--output", "out", "--notes", "some"], "notes 'some': unknown value"),
    ],
)
def test_bad_input(program, tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    before = files_of(tmp_path)
    code, out, err = run(["migrate", "convert", *arguments], capsys)
    assert (code, out) == (2, "") and says in err and "Traceback" not in err
    assert files_of(tmp_path) == before


def test_overwrite_replaces_files_and_keeps_others(program, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("old.py", "mine.txt"):
        (out / name).write_text("mine")
    assert run(["migrate", "convert", program, "--output", out, "--overwrite"], capsys)[0] == 0
    assert (out / "mine.txt").read_text() == "mine" and "tf.math.log" in (out / "old.py").read_text()


def test_nothing_of_a_new_folder_is_left_when_writing_fails(program, tmp_path, monkeypatch):
    from estimator_pipeline.migrate.code import write as writing

    made, real = convert(program), writing._write

    def full(one, *rest):
        if one.path == "run":
            raise OSError(28, "No space left on device", "run")
        real(one, *rest)

    monkeypatch.setattr(writing, "_write", full)
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match="No space left on device"):
        writing.write(made, tmp_path / "out")
    assert files_of(tmp_path) == before and os.listdir(tmp_path) == ["trainer"]


def test_what_cannot_be_read_afterwards_is_not_written(program, monkeypatch):
    """A defect of a rule costs the conversion of a file, not the file."""
    from estimator_pipeline.migrate.code.renames import tf1_names

    monkeypatch.setattr(tf1_names, "_successor", lambda name, *rest: "no name")
    made = {one.path: one for one in convert(program).files}["old.py"]
    assert not made.changed and not made.changes and made.kept.startswith("the converted code cannot be parsed")
