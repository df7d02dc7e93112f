"""What `migrate scan` finds: by which spellings, over which modules, with which certainty."""

from __future__ import annotations

import textwrap

import pytest

from estimator_pipeline.migrate.code import scan


def scanned(folder, files):
    """The scan of files: path -> text."""
    if isinstance(files, str):
        files = {"program.py": files}
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
    return scan(folder)


def names(found, path=None):
    return [one.name for one in found.findings if path is None or one.path == path]


def one(found, name):
    (finding,) = [each for each in found.findings if each.name == name]
    return finding


# Spellings ---------------------------------------------------------------------------------------------------

RUN_CONFIG = "tf.estimator.RunConfig"


@pytest.mark.parametrize(
    "text",
    [
        "import tensorflow as tf\nc = tf.estimator.RunConfig()\n",
        "import tensorflow\nc = tensorflow.estimator.RunConfig()\n",
        "import tensorflow.compat.v1 as tf\nc = tf.estimator.RunConfig()\n",
        "import tensorflow.compat.v2 as tf\nc = tf.estimator.RunConfig()\n",
        "import tensorflow.compat.v1\nc = tensorflow.compat.v1.estimator.RunConfig()\n",
        "from tensorflow import estimator\nc = estimator.RunConfig()\n",
        "from tensorflow import estimator as est\nc = est.RunConfig()\n",
        "from tensorflow.estimator import RunConfig as RC\nc = RC()\n",
        "import tensorflow.compat.v1.estimator as e\nc = e.RunConfig()\n",
        "import tensorflow.estimator\nc = tensorflow.estimator.RunConfig()\n",
        "from tensorflow.estimator import *\nc = RunConfig()\n",
        "from tensorflow import *\nc = estimator.RunConfig()\n",
        "from tensorflow.compat import v1\nc = v1.estimator.RunConfig()\n",
        "import tensorflow as tf\nest = tf.estimator\nc = est.RunConfig()\n",
        "import tensorflow as tf\nest = tf.estimator\nMake = est.RunConfig\nc = Make()\n",
        "import tensorflow as tf\nc = getattr(tf.estimator, 'RunConfig')()\n",
        "import tensorflow as tf\nc = getattr(tf, 'estimator').RunConfig()\n",
        "try:\n  import tensorflow.compat.v1 as tf\nexcept ImportError:\n  import tensorflow as tf\n"
        "c = tf.estimator.RunConfig()\n",
        "if True:\n  import tensorflow as tf\nelse:\n  tf = None\nc = tf.estimator.RunConfig()\n",
        "def f():\n  import tensorflow as tf\n  return tf.estimator.RunConfig()\n",
        "import tensorflow as tf\nclass A:\n  def __init__(self):\n    self.tf = tf.estimator\n"
        "  def f(self):\n    return self.tf.RunConfig()\n",
        "from tensorflow_estimator import estimator\nc = estimator.RunConfig()\n",
        "from tensorflow_estimator.python.estimator.api._v2 import estimator\nc = estimator.RunConfig()\n",
        "from tensorflow.python.estimator.run_config import RunConfig\nc = RunConfig()\n",
        "from tensorflow.contrib.learn import RunConfig\nc = RunConfig()\n",
        "import tensorflow as tf\nc = [tf.estimator.RunConfig() for tf_ in range(1)]\n",
        "import tensorflow as tf\nf = lambda: tf.estimator.RunConfig()\n",
        "import tensorflow as tf\ndef f(c: tf.estimator.RunConfig): pass\n",
        "import tensorflow as tf\ndef f(c=tf.estimator.RunConfig()): pass\n",
        "import tensorflow as tf\nwith open(tf.estimator.RunConfig().model_dir) as f: pass\n",
        "import tensorflow as tf\nif (c := tf.estimator.RunConfig()): pass\n",
        "import tensorflow as tf\nx = f'{tf.estimator.RunConfig().model_dir}'\n",
    ],
)
def test_every_spelling_is_one_name(tmp_path, text):
    found = scanned(tmp_path, text)
    assert [name for name in names(found) if name == RUN_CONFIG], names(found)


@pytest.mark.parametrize(
    "text",
    [
        "class tf:\n  class estimator:\n    RunConfig = int\nc = tf.estimator.RunConfig()  # tensorflow\n",
        "import tensorflow as tf\ndef f(tf):\n  return tf.estimator.RunConfig()\n",
        "import tensorflow as tf\nc = [tf.estimator.RunConfig() for tf in range(3)]\n",
        "from somewhere.tensorflow import estimator\nc = estimator.RunConfig()\n",
        "# tf.estimator.RunConfig\nimport tensorflow\n'tf.estimator.RunConfig()'\n",
        "import tensorflow as tf\nx = tf.nn.relu(tf.keras.layers.Dense(3)(y))\nz = tf.data.Dataset.range(3)\n",
        "import tensorflow as tf\nloss = tf.losses.mean_squared_error(a, b)\nm = tf.metrics.Mean()\n",
        "estimator.fit(x)\nmodel.train()\nmodel.evaluate(x)\nprint('tensorflow')\n",
    ],
)
def test_what_is_no_construct_is_not_found(tmp_path, text):
    assert names(scanned(tmp_path, text)) == []


def test_names_that_a_module_of_the_code_base_hands_on(tmp_path):
    files = {
        "pkg/__init__.py": "",
        "pkg/common.py": """
            import tensorflow as tf
            from tensorflow.estimator import TrainSpec
            Spec = tf.estimator.EstimatorSpec
        """,
        "pkg/again.py": "from .common import *\nfrom .common import tf as tensor\n",
        "pkg/deep/__init__.py": "from ..common import Spec as Deep\n",
        "pkg/deep/relative.py": "from .. import common\na = common.tf.estimator.RunConfig()\n",
        "pkg/deep/star.py": "from pkg.again import *\nb = TrainSpec(f)\nc = tf.estimator.RunConfig()\n",
        "pkg/absolute.py": "import pkg.again as p\nfrom pkg.deep import Deep\n"
        "d = p.tensor.estimator.RunConfig()\nDeep(1)\n",
        "script.py": "import pkg.common\ne = pkg.common.Spec(1)\n",
        "unrelated.py": "import os\nprint(os.getcwd())\n",
    }
    found = scanned(tmp_path, files)
    assert RUN_CONFIG in names(found, "pkg/deep/relative.py")
    assert names(found, "pkg/deep/star.py")[:2] == ["tf.estimator.TrainSpec", "tf.estimator.TrainSpec.input_fn"]
    assert RUN_CONFIG in names(found, "pkg/deep/star.py")
    assert {RUN_CONFIG, "tf.estimator.EstimatorSpec"} <= set(names(found, "pkg/absolute.py"))
    assert "tf.estimator.EstimatorSpec" in names(found, "script.py")
    # Handed on, and not used where it is imported: the import is the construct.
    assert one(found, "tf.estimator.TrainSpec.input_fn").path == "pkg/deep/star.py"
    assert "tf.estimator.TrainSpec" in names(found, "pkg/common.py")
    assert found.without == 2  # pkg/__init__.py and unrelated.py


def test_imports_in_a_circle_end(tmp_path):
    files = {
        "a.py": "from b import *\nfrom b import x\nimport tensorflow as tf\ny = x\n",
        "b.py": "from a import *\nfrom a import y\nx = y\nz = tf.estimator.RunConfig()\n",
    }
    assert RUN_CONFIG in names(scanned(tmp_path, files), "b.py")


TF = "import tensorflow as tf\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"plots.py": f"{TF}from plots import figure\nfigure(tf.estimator.Estimator)\n"}, ["tf.estimator.Estimator"]),
        (
            {
                "a.py": f"{TF}from b import tool\ntool(tf.estimator.Estimator)\n",
                "b.py": f"{TF}from a import tool\nEP = tf.estimator.Estimator\n",
            },
            ["tf.estimator.Estimator"] * 2,
        ),
        (
            {
                "pkg/__init__.py": "from . import nets\n",
                "pkg/nets.py": f"{TF}make = tf.estimator.DNNClassifier\n",
                "train.py": f"{TF}from pkg import nets\nmodel = nets.make([8], [])\n",
            },
            ["tf.estimator.DNNClassifier"] * 2,
        ),
    ],
    ids=["itself", "each-other", "package"],
)
def test_modules_that_import_from_each_other_end(tmp_path, files, found):
    assert names(scanned(tmp_path, files)) == found


def test_names_of_a_programs_own_are_converted_where_they_are_given(tmp_path):
    text = f"{TF}make = tf.train.AdamOptimizer if True else tf.train.AdagradOptimizer\ntrain = make(0.1)\n"
    found = scanned(tmp_path, text)
    assert found.count("automatic") == len(found.findings) == 3


def test_a_function_that_returns_itself_ends(tmp_path):
    found = scanned(tmp_path, "import tensorflow as tf\ndef f(): return f()\nf().train(input_fn=g)\nx = x or tf\n")
    assert names(found) == ["tf.estimator.Estimator.train"]


def test_what_can_be_reached_on_many_ways_is_asked_once(tmp_path):
    """Forty functions, each of which calls the one before twice: 2 to the 40 ways, and circles beside them."""
    lines = "".join(f"def f{n}(): return f{n - 1}() or f{n - 1}() or g{n}()\n" for n in range(1, 41))
    lines += "".join(f"def g{n}(): return g{n % 40 + 1}() or f{n}()\n" for n in range(1, 41))
    text = f"import tensorflow as tf\ndef f0(): return tf.estimator.Estimator(m)\n{lines}f40().train(x)\n"
    found = scanned(tmp_path, text)
    assert one(found, "tf.estimator.Estimator.train").certainty == "resolved"


def test_circles_of_data_sets_and_conditions_end(tmp_path):
    lines = "".join(f"  d = d.map(f{n})\n" for n in range(40))
    text = (
        f"import tensorflow as tf\ndef model_fn(features, labels, mode):\n  d = labels\n{lines}"
        "  d.make_one_shot_iterator()\n  training = not training\n  a = not b\n  b = not a\n"
        "  if training or a: return tf.estimator.EstimatorSpec(mode)\n"
    )
    found = scanned(tmp_path, text)
    assert one(found, "tf.estimator.EstimatorSpec").details["modes"] == ["train", "eval", "predict"]
    assert one(found, "make_one_shot_iterator").certainty == "by name"


# Treatments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "treatment", "says"),
    [
        ("import tensorflow as tf\ntf.layers.dense(x, 1)\n", "tf.compat.v1.layers.dense", "automatic",
         "writes tf.compat.v1.layers.dense"),
        ("from tensorflow.layers import dense\ndense(x, 1)\n", "tf.compat.v1.layers.dense", "manual",
         "TensorFlow 2 has no tf.layers.dense"),
        ("import tensorflow.compat.v1 as tf\ntf.layers.dense(x, 1)\n", "tf.compat.v1.layers.dense",
         "unchanged", "runs"),
        ("import tensorflow as tf\ntf.log(x)\n", "tf.compat.v1.log", "automatic", "writes tf.math.log"),
        ("import tensorflow as tf\ntf.train.SessionRunHook()\n", "tf.estimator.SessionRunHook", "automatic",
         "writes tf.estimator.SessionRunHook"),
        ("import tensorflow as tf\ntf.estimator.SessionRunHook()\n", "tf.estimator.SessionRunHook",
         "unchanged", "runs"),
        ("import tensorflow as tf\ntf.contrib.tpu.TPUEstimator()\n", "tf.compat.v1.estimator.tpu.TPUEstimator",
         "automatic", "writes tf.compat.v1.estimator.tpu.TPUEstimator"),
        ("import tensorflow as tf\ntf.contrib.crf.crf_decode()\n", "tf.contrib.crf.crf_decode", "automatic",
         "writes contrib.crf.crf_decode"),
        ("import tensorflow as tf\ntf.contrib.ffmpeg.decode()\n", "tf.contrib.ffmpeg.decode", "manual",
         "tf.contrib was removed"),
        ("from tensorflow.contrib import slim\n", "tf.contrib.slim", "automatic", "writes import tf_slim as slim"),
        ("from tensorflow.contrib import slim\nslim.conv2d(x)\n", "tf.contrib.slim.conv2d", "automatic", "tf_slim"),
        ("from tensorflow.contrib import seq2seq\nseq2seq.BasicDecoder(x)\n", "tf.contrib.seq2seq.BasicDecoder",
         "manual", "tf.contrib was removed"),
        ("import tensorflow as tf\ntf.estimator.inputs.numpy_input_fn(x)\n",
         "tf.compat.v1.estimator.inputs.numpy_input_fn", "automatic", "tf.compat.v1.estimator.inputs.numpy_input_fn"),
        ("import tensorflow as tf\ntf.layers.dense(x, 1)\ntf.summary.scalar('a', x)\n",
         "tf.compat.v1.summary.scalar", "automatic", "writes tf.compat.v1.summary.scalar"),
        ("import tensorflow as tf\ntf.summary.scalar('a', x)\n", "tf.compat.v1.summary.scalar", "unchanged", "runs"),
        ("import tensorflow as tf\ntf.get_variable('a')\ntf.losses.mean_squared_error(a, b)\n",
         "tf.compat.v1.losses.mean_squared_error", "automatic", "tf.compat.v1.losses.mean_squared_error"),
        ("from tensorflow.layers import dense\nfrom tensorflow.losses import mean_squared_error\n"
         "mean_squared_error(a, b)\n",
         "tf.compat.v1.losses.mean_squared_error", "manual", "a different meaning"),
        ("import tensorflow as tf\ntf.log(tf.data.Dataset.range(3).make_one_shot_iterator())\n",
         "make_one_shot_iterator", "automatic", "writes tf.compat.v1.data.Dataset"),
        ("try:\n  import tensorflow as tf\n  f = tf.log\nexcept AttributeError:\n  f = tf.math.log\n",
         "tf.compat.v1.log", "unchanged", "only reached on a TensorFlow version that has it"),
        ("import tensorflow as tf\nif tf.__version__ < '2':\n  f = tf.log(x)\nelse:\n  f = tf.math.log(x)\n",
         "tf.compat.v1.log", "unchanged", "only reached on a TensorFlow version that has it"),
        ("from tensorflow.python.estimator.canned import head\n", "tensorflow.python.estimator.canned.head",
         "unchanged",
         "runs"),
        ("from tensorflow.python.ops import array_ops\n", "tensorflow.python.ops.array_ops", "unchanged", "runs"),
        ("from tensorflow.python.ops import long_gone_ops\n", "tensorflow.python.ops.long_gone_ops", "manual",
         "a private module"),
        ("import tensorflow as tf\ntf.data.Dataset.range(3).map(f).make_one_shot_iterator()\n",
         "make_one_shot_iterator", "automatic", "writes tf.compat.v1.data.Dataset"),
        ("import tensorflow as tf\nf(tf.compat.v1.data)\nd.make_one_shot_iterator()\n",
         "make_one_shot_iterator", "manual", "do not have this method"),
        ("import tensorflow.compat.v1 as tf\nd = tf.data.Dataset.range(3)\nd = d.batch(2)\n"
         "d.make_one_shot_iterator()\n",
         "tf.compat.v1.data.make_one_shot_iterator", "unchanged", "runs"),
        ("import tensorflow as tf\ntf.contrib.training.HParams(a=1)\n", "tf.contrib.training.HParams",
         "automatic", "writes contrib.training.HParams"),
        ("import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\n", "tf.compat.v1.disable_v2_behavior",
         "unchanged",
         "runs"),
    ],
)  # fmt: skip
def test_treatment(tmp_path, text, name, treatment, says):
    finding = one(scanned(tmp_path, text), name)
    assert finding.treatment == treatment and says in finding.reason
    assert finding.treatment != "manual" or finding.keep or "contrib" in finding.name or "contrib" in finding.spelled


def test_what_to_write_to_keep_it(tmp_path):
    finding = one(scanned(tmp_path, "from tensorflow import *\nlog(x)\n"), "tf.compat.v1.log")
    assert finding.keep == "tf.compat.v1.log, or: import tensorflow.compat.v1 as tf"
    assert (finding.successor, finding.write) == ("tf.math.log", "tf.math.log(...)")


# Fields, modes, functions, classes --------------------------------------------------------------------------


def test_fields_by_position_and_by_name(tmp_path):
    found = scanned(
        tmp_path,
        """
        import tensorflow as tf
        config = tf.estimator.RunConfig("dir", 1, save_checkpoints_secs=60, **more)
        config = config.replace(keep_checkpoint_max=3)
        spec = tf.estimator.EvalSpec(lambda: data, None, throttle_secs=1)
        est = tf.estimator.Estimator(f, params=p)
        """,
    )
    fields = [name for name in names(found) if name.count(".") == 3]
    assert fields == [
        "tf.estimator.RunConfig.model_dir",
        "tf.estimator.RunConfig.tf_random_seed",
        "tf.estimator.RunConfig.save_checkpoints_secs",
        "tf.estimator.RunConfig.replace",
        "tf.estimator.RunConfig.keep_checkpoint_max",
        "tf.estimator.EvalSpec.input_fn",
        "tf.estimator.EvalSpec.steps",
        "tf.estimator.EvalSpec.throttle_secs",
        "tf.estimator.Estimator.model_fn",
        "tf.estimator.Estimator.params",
    ]


MODES = """
import tensorflow as tf
M = tf.estimator.ModeKeys
def model_fn(features, labels, mode, params):
    training = mode == M.TRAIN
    if mode == M.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=features)          # predict
    loss = params["weight"] * features + params.get("bias") + params.scale
    if not training:
        return tf.estimator.EstimatorSpec(mode, loss=loss)                     # eval
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=op)       # train
tf.estimator.Estimator(model_fn)
def other_fn(features, labels, mode):
    if mode in (M.TRAIN, M.EVAL):
        spec = tf.estimator.EstimatorSpec(mode, loss=1)                        # train eval
    elif mode == "infer":
        spec = tf.estimator.EstimatorSpec(mode, predictions=1)                 # predict
    else:
        raise ValueError
    a = tf.estimator.EstimatorSpec(M.EVAL)                                     # eval
    b = tf.estimator.EstimatorSpec(mode) if mode != M.TRAIN else None          # eval predict
    return tf.estimator.EstimatorSpec(mode)                                    # train eval predict
"""


def test_modes_of_each_spec(tmp_path):
    found = scanned(tmp_path, MODES)
    lines = MODES.splitlines()
    specs = [each for each in found.findings if each.name == "tf.estimator.EstimatorSpec"]
    assert len(specs) == 8
    for spec in specs:
        wanted = lines[spec.line - 1].partition("# ")[2].split()
        assert spec.details["modes"] == wanted, lines[spec.line - 1]
    first, second = (each for each in found.findings if each.name == "model_fn")
    assert first.details["modes"] == ["train", "eval", "predict"]
    assert (first.certainty, second.certainty) == ("resolved", "by name")


@pytest.mark.parametrize(
    ("handed", "function"),
    [
        ("tf.estimator.TrainSpec(make)", "make"),
        ("tf.estimator.TrainSpec(input_fn=lambda: make(1))", "make"),
        ("tf.estimator.EvalSpec(lambda: tf.data.Dataset.range(3))", "lambda"),
        ("tf.estimator.EvalSpec(functools.partial(make, 1))", "make"),
        ("tf.estimator.EvalSpec(partial(make, n=1))", "make"),
        ("tf.estimator.EvalSpec(factory(1))", "inner"),
        ("a, b = pair(); est.train(b)", "second"),
        ("est.train(Pipeline().read)", "read"),
        ("est.evaluate(Pipeline.fixed)", "fixed"),
        ("est.predict(make if x else None)", "make"),
        ("unknown.train(input_fn=make)", "make"),
        ("Own().train(make)", "make"),
        ("build().train(make)", "make"),
        ("tf.estimator.LinearClassifier([]).train(make)", "make"),
        ("tf.keras.estimator.model_to_estimator(m).train(make)", "make"),
        ("self_like = Holder(); self_like.est.train(make)", "make"),
    ],
)
def test_input_functions_are_followed(tmp_path, handed, function):
    found = scanned(
        tmp_path,
        f"""
        import functools
        from functools import partial
        import tensorflow as tf

        def make(n=0): return tf.data.Dataset.range(n)
        def factory(n):
            def inner(): return make(n)
            return inner
        def pair():
            def first(): return 1
            def second(): return 2
            return first, second
        class Pipeline:
            def read(self): return make()
            @staticmethod
            def fixed(): return make()
        class Own(tf.estimator.Estimator): pass
        def build(): return Own()
        class Holder:
            def __init__(self): self.est = tf.estimator.Estimator(None)
        est = tf.estimator.Estimator(None)
        {handed}
        """,
    )
    (finding,) = [each for each in found.findings if each.name == "input_fn"]
    assert finding.details["function"] == function
    assert finding.certainty == ("by use" if handed.startswith("unknown") else "resolved")


def test_functions_that_nobody_hands_over(tmp_path):
    found = scanned(
        tmp_path,
        """
        import tensorflow as tf
        def cnn_model_fn(features, labels, mode): return part(features, labels, mode)
        def build(features, labels, mode, params): return tf.estimator.EstimatorSpec(mode)
        def part(features, labels, mode): return features
        def create_estimator_spec(features, mode, logits, labels): return tf.estimator.EstimatorSpec(mode)
        def train_input_fn(): return 1
        def make_input_fn(path):
            return lambda: path
        def serving_input_receiver_fn(): return 1
        def test_input_fn(): assert train_input_fn()
        """,
    )
    told = [(each.name, each.details["function"]) for each in found.findings if each.certainty == "by name"]
    assert told == [
        ("model_fn", "cnn_model_fn"),
        ("model_fn", "build"),
        ("input_fn", "train_input_fn"),
        ("input_fn", "lambda"),
        ("serving_input_receiver_fn", "serving_input_receiver_fn"),
    ]


def test_model_functions_of_a_class_that_is_an_estimator(tmp_path):
    found = scanned(
        tmp_path,
        """
        import tensorflow as tf
        class Base(tf.estimator.Estimator):
            def __init__(self, units):
                def build(features, labels, mode): return tf.estimator.EstimatorSpec(mode)
                super().__init__(model_fn=build, model_dir="d")
        class Derived(Base):
            def go(self):
                self.train(read)
                return self.export_saved_model("e", serve)
        def read(): return 1
        def serve(): return tf.estimator.export.ServingInputReceiver(1, 2)
        Derived(1).evaluate(read)
        """,
    )
    classes = [each.details["class"] for each in found.findings if each.name.endswith("subclass")]
    assert classes == ["Base", "Derived"]
    assert one(found, "model_fn").details["function"] == "build" and one(found, "model_fn").certainty == "resolved"
    assert one(found, "input_fn").details["function"] == "read" and one(found, "input_fn").certainty == "resolved"
    assert one(found, "serving_input_receiver_fn").details["function"] == "serve"


def test_own_hooks_exporters_and_listeners(tmp_path):
    found = scanned(
        tmp_path,
        """
        import tensorflow as tf
        class Base(tf.train.SessionRunHook):
            def begin(self): pass
        class Mine(Base):
            def after_run(self, context, values): pass
        class Timed(tf.estimator.LoggingTensorHook): pass
        class After(tf.estimator.CheckpointSaverListener): pass
        class Export(tf.estimator.Exporter): pass
        class Opt(tf.compat.v1.train.Optimizer): pass
        class Layer(tf.keras.layers.Layer): pass
        """,
    )
    told = [(each.name, each.details["class"], each.treatment) for each in found.findings]
    assert told == [
        ("SessionRunHook subclass", "Base", "automatic"),  # tf.train.SessionRunHook is TensorFlow 1's name
        ("SessionRunHook subclass", "Mine", "automatic"),
        ("SessionRunHook subclass", "Timed", "unchanged"),
        ("CheckpointSaverListener subclass", "After", "unchanged"),
        ("Exporter subclass", "Export", "unchanged"),
        ("Optimizer subclass", "Opt", "unchanged"),
    ]


@pytest.mark.parametrize("text", ["os.environ['TF_CONFIG'] = json.dumps(c)", "c = os.environ.get('TF_CONFIG', '{}')"])
def test_tf_config(tmp_path, text):
    found = scanned(tmp_path, f"import json, os\n{text}\n")
    assert [each.name for each in found.findings] == ["TF_CONFIG"]


def test_positions_are_those_of_the_name(tmp_path):
    text = "import tensorflow as tf\n\nx = (tf.estimator\n     .RunConfig(model_dir='ä',\n   tf_random_seed=1))\n"
    found = scanned(tmp_path, text)
    places = [(each.line, each.column, each.end_line, each.end_column) for each in found.findings]
    assert places == [(3, 6, 4, 16), (4, 17, 4, 26), (5, 4, 5, 18)]


def test_each_place_once_and_in_order(tmp_path):
    """A code base scanned twice gives the same, and no place has one name twice."""
    found = scanned(tmp_path, {"b.py": MODES, "a.py": MODES, "a/c.py": MODES})
    keys = [(each.path, each.line, each.column, each.name) for each in found.findings]
    assert keys == sorted(set(keys)) and found.document() == scan(tmp_path).document()
