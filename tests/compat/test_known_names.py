"""The line below the traceback of a program that fails on a name: what is known of it, or nothing."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.moved_names import suggestions as known_names
from estimator_pipeline.errors import CompatError

tf = compat.install()


@pytest.fixture
def told(tmp_path, monkeypatch):
    """`told(program)`: what is told of the error with which a program ends."""
    # As in a process in which nobody has asked for tf.contrib yet.
    monkeypatch.delattr(tf, "contrib", raising=False)
    monkeypatch.setattr(
        sys, "meta_path", [finder for finder in sys.meta_path if "contrib" not in type(finder).__module__]
    )
    for name in [name for name in sys.modules if f"{name}.".startswith("tensorflow.contrib.")]:
        monkeypatch.delitem(sys.modules, name)

    def run(program):
        file = tmp_path / "legacy.py"
        file.write_text(program)
        with pytest.raises((ImportError, AttributeError, NameError, SyntaxError, TypeError, RuntimeError)) as error:
            exec(compile(program, file, "exec"), {"__name__": "__main__"})
        return known_names.of(error.value)

    return run


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (
            "import tensorflow.contrib.slim as slim",
            "tf.contrib.slim is gone since TensorFlow 2.0: it is the package tf-slim",
        ),
        (
            "from tensorflow.contrib import layers",
            "tf.contrib.layers is gone since TensorFlow 2.0: its layers and arg_scope",
        ),
        ("import tensorflow as tf\nh = tf.contrib.training.HParams(a=1)", "tf.contrib.training.HParams is gone"),
        ("import tensorflow.contrib as c\nc.training.HParams(a=1)", "tf.contrib.training is gone since TensorFlow 2.0"),
        ("from tensorflow.contrib.estimator import forward_features", "tf.contrib.estimator.forward_features is gone"),
        ("import tensorflow as tf\ntf.contrib", "tf.contrib is gone since TensorFlow 2.0: what of it has a home today"),
        ("import tensorflow as tf\ntf.placeholder", "tf.placeholder is tf.compat.v1.placeholder since TensorFlow 2.0"),
        (
            "from tensorflow.train import AdamOptimizer",
            "tf.train.AdamOptimizer is tf.compat.v1.train.AdamOptimizer since",
        ),
        ("from tensorflow import Session", "tf.Session is tf.compat.v1.Session since TensorFlow 2.0"),
        ("import tensorflow as tf\ntf.estimator.inputs", "tf.estimator.inputs is tf.compat.v1.estimator.inputs since"),
        (
            "import tensorflow as tf\ntf.data.Dataset.range(3).make_one_shot_iterator()",
            "TensorFlow 2 removed make_one_shot_iterator: tf.compat.v1.data.make_one_shot_iterator(dataset) does it",
        ),
        (
            "import tensorflow.examples.tutorials.mnist",
            "tensorflow.examples is not installed: TensorFlow 2.0 removed its",
        ),
        ("from collections import Mapping", "Python 3.10 removed collections.Mapping: it is collections.abc.Mapping"),
        ("import numpy as np\nnp.int(3)", "np.int: NumPy 1.24 or 2.0 removed it; `exec --tf1` gives it back"),
        ("import numpy as np\nnp.float", "np.float: NumPy 1.24 or 2.0 removed it; `exec --tf1` gives it back"),
        (
            "import pandas as pd\npd.DataFrame({'a': [1]}).as_matrix()",
            "pandas 1.0 to 2.0 removed as_matrix; `exec --tf1` gives it back",
        ),
        ("x = 1\nprint 'x'", "line 2 has a print statement of Python 2: pip install fissix; python -m fissix -w "),
        ("try:\n    pass\nexcept OSError, e:\n    pass", "line 3 has an except clause of Python 2: pip install fissix"),
        ("reload(1)", "reload is of Python 2: pip install fissix; python -m fissix -w "),
        ("unicode('x')", "unicode is of Python 2: pip install fissix"),
        ("import cPickle", "cPickle is of Python 2: pip install fissix"),
        ("from itertools import izip", "izip is of Python 2: pip install fissix"),
        ("{}.has_key(1)", "has_key is of Python 2: pip install fissix"),
        ("import sys\nsys.setdefaultencoding('utf8')", "sys.setdefaultencoding: Python 3 has none"),
        ("if 1:\n        x = 1\n\ty = 2", "Python 2 allowed it: replace tabs by spaces, as `expand -t 8 "),
        (
            "import tensorflow as tf\ntf.estimator.BoostedTreesClassifier",
            "tensorflow-estimator 2.15 has no BoostedTreesClassifier: the package tensorflow-decision-forests",
        ),
        ("import time\ntime.clock()", "time.clock: Python 3.8 removed it: time.perf_counter takes its place"),
        (
            "import tensorflow.compat.v1 as tf\ntf.contrib.layers.batch_norm",
            "tf.contrib.layers.batch_norm is gone since TensorFlow 2.0: its layers and arg_scope",
        ),
        ("import tensorflow as tf\ntf.metrics.accuracy", "tf.metrics.accuracy is tf.compat.v1.metrics.accuracy since"),
        (
            "import tensorflow as tf\ntf.losses.sparse_softmax_cross_entropy",
            "tf.losses.sparse_softmax_cross_entropy is tf.compat.v1.losses.sparse_softmax_cross_entropy since",
        ),
        (
            "from tensorflow.contrib.tensorboard.plugins import projector",
            "tf.contrib.tensorboard.plugins.projector is gone since TensorFlow 2.0: the projector is",
        ),
        (
            "import types\nhub = types.ModuleType('tensorflow_hub')\nhub.Module",
            "tensorflow-hub 0.16 removed hub.Module: pip install --no-deps 'tensorflow-hub<0.16'",
        ),
        ("import tensorflow as tf\ntf.zeros([2, 3]).shape[1].value", "TensorFlow 2 has numbers, not Dimension objects"),
        (
            "import tensorflow as tf\ntf.reduce_sum(tf.zeros([2]), keep_dims=True)",
            "TensorFlow 2 has another name for the argument keep_dims",
        ),
        (
            "import tensorflow as tf\ntf.nn.dropout(tf.zeros([2]), keep_prob=0.5)",
            "TensorFlow 2 has another name for the argument keep_prob",
        ),
        (
            "import tensorflow.compat.v1 as tf\ntf.placeholder(tf.float32)",
            "TensorFlow 2 runs operations at once, outside of a graph",
        ),
    ],
)
def test_what_is_known(program, says, told):
    line = told(program)
    assert line is not None and line.startswith(says)
    assert "\n" not in line
    # A program of that time is led to what runs it as a whole.
    of_tensorflow = says.startswith(("tf.", "TensorFlow 2 "))
    assert line.endswith(" runs unchanged with `estimator-pipeline exec --tf1`") == of_tensorflow


def test_nobody_is_told_to_install_what_is_there(monkeypatch):
    for spec, told in ((None, True), ("found", False)):
        monkeypatch.setattr(known_names.importlib.util, "find_spec", lambda name, spec=spec: spec)
        assert ("pip install tf-slim" in known_names.of_contrib("slim.conv2d")) is told
        assert "{" not in known_names.of_contrib("layers.conv2d")


def test_under_tf1_nobody_is_sent_there():
    error = AttributeError("no", name="placeholder", obj=tf)
    assert known_names.of(error, tf1=True) + known_names._TF1 == known_names.of(error)


@pytest.mark.parametrize(
    "program",
    [
        "import no_such_package",
        "from os import no_such_name",
        "import tensorflow as tf\ntf.no_such_name",
        "from tensorflow.python.framework.ops import no_such_name",
        "(3).no_such_name",
        "no_such_name",
        "x ==",
        "import numpy as np\nnp.no_such_name",
        "import pandas as pd\npd.no_such_name",
        # These say all by themselves.
        "from tensorflow.python.framework.ops import RegisterShape",
        "import tensorflow.python.eager.execution_callbacks",
    ],
)
def test_of_what_nothing_is_known(program, told):
    assert told(program) is None


def test_other_errors():
    for error in (
        ValueError("tf.contrib"),
        KeyError("contrib"),
        CompatError("what"),
        ImportError("tf.contrib"),
        SystemExit(1),
    ):
        assert known_names.of(error) is None


@pytest.mark.keras_3
def test_keras_3_beside(told):
    import keras

    has_no = f"the package keras is Keras {keras.__version__} here, which has no "
    line = told("from keras.preprocessing.text import Tokenizer")
    assert line == f"{has_no}keras.preprocessing.text; Keras 2 is tf_keras, as tf_keras.preprocessing.text"
    importlib.import_module("tf_keras.preprocessing.text")
    assert told("from keras.utils import np_utils") == f"{has_no}keras.utils.np_utils; Keras 2 is tf_keras"


@pytest.mark.parametrize("name", sorted(filter(None, known_names._CONTRIB)))
def test_what_takes_the_place_of_contrib_is_there(name):
    """Every public name that a line about tf.contrib gives."""
    import re

    for dotted in re.findall(r"\btf\.([a-zA-Z_.0-9]+[a-zA-Z0-9_])", known_names._CONTRIB[name]):
        found = tf
        for part in dotted.split("."):
            found = getattr(found, part)


# As exec prints it -------------------------------------------------------------------------------------------


@pytest.fixture
def executed(run_python, tmp_path):
    """What came of `exec` of a program with names that are gone or moved, by its options and arguments."""
    program = tmp_path / "old.py"
    program.write_text(
        "import sys\n"
        "if 'contrib' in sys.argv:\n"
        "    from tensorflow.contrib import slim\n"
        "from tensorflow.python.util.nest import is_sequence\n"
        "print('ran', is_sequence([]))\n"
    )
    return lambda *options, of=(): run_python(["-m", "estimator_pipeline", "exec", *options, program, *of])


def test_exec_prints_it_below_the_traceback(executed):
    done = executed(of=["contrib"])
    assert done.returncode == 1
    *_, error, line = done.stderr.splitlines()
    assert error.startswith("ImportError: cannot import name 'slim' from 'tensorflow.contrib'")
    assert line.startswith(
        "estimator-pipeline: tf.contrib.slim is gone since TensorFlow 2.0: it is the package tf-slim"
    )


@pytest.mark.nightly
def test_exec_without_the_patch_says_what_would_find_the_name(executed):
    """Without an error there is no line."""
    done = executed()
    assert (done.returncode, done.stdout) == (0, "ran True\n") and "estimator-pipeline:" not in done.stderr
    done = executed("--patches=-moved-names")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "estimator-pipeline: tensorflow.python.util.nest.is_sequence moved: it is tensorflow.python.util.nest.is_nested"
        " today; the patch moved-names, which is off, resolves it"
    )


def test_a_cluster_without_a_chief(monkeypatch):
    cluster = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(ValueError, match="chief") as error:
        tf.estimator.RunConfig()
    assert "a cluster has a chief: launch --chief" in (known_names.of(error.value) or "")
