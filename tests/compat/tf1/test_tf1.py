"""`exec --tf1`: who gets TensorFlow 1's names, what they are, and what a program sees of it."""

from __future__ import annotations

import importlib.util
import sys
import textwrap

import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat import tf1
from estimator_pipeline.compat.tf1 import importers
from estimator_pipeline.compat.tf1.contrib import files
from estimator_pipeline.errors import CompatError

_EXEC = ["-m", "estimator_pipeline", "exec"]
NO_FILES = {files.VARIABLE: "/nowhere"}


SLIM = pytest.mark.skipif(importlib.util.find_spec("tf_slim") is None, reason="no tf-slim")


@pytest.fixture
def ran(run_warm, tmp_path):
    """`ran(text, *options)`: what came of a program."""

    def run(text, *options, env=None):
        program = tmp_path / "old.py"
        program.write_text(textwrap.dedent(text))
        return run_warm([*_EXEC, *options, program], cwd=tmp_path, env={**NO_FILES, **(env or {})})

    return run


_NAMES = """
    import importlib
    import sys
    import tensorflow as tf
    import tensorflow.compat.v1 as tf1
    import tensorflow.compat.v2 as tf2
    import tensorflow.contrib as contrib
    import tensorflow.contrib.rnn as rnn_of_import
    import tensorflow.keras.backend as K
    import tensorflow.python.util.nest
    from tensorflow import contrib as tfc, placeholder, estimator
    from tensorflow.contrib import rnn, tpu
    from tensorflow.contrib.learn.python.learn import learn_runner
    from tensorflow.contrib.framework.python.ops import arg_scope
    from tensorflow.contrib.rnn.python.ops import core_rnn_cell
    from tensorflow.contrib.tpu.proto import tpu_embedding_configuration_pb2
    from tensorflow.contrib.training.python.training.hparam import HParams
    from tensorflow.examples.tutorials.mnist import input_data
    from tensorflow.keras.layers import Dense
    from tensorflow.python.framework import ops
    import tensorflow_datasets

    real = sys.modules["tensorflow"]
    assert tf is not real and tf1 is tf and tf.compat.v1 is tf and tf2 is real.compat.v2
    assert placeholder is tf.placeholder is real.compat.v1.placeholder
    assert tf.function is real.function  # version 1 has none
    assert tf.__version__ == tf.VERSION == "1.15.5" and tf.version.VERSION == real.__version__ != tf.VERSION
    assert tf.train.AdamOptimizer is real.compat.v1.train.AdamOptimizer and not hasattr(tf, "no_such_name")
    assert estimator is tf.estimator is real.compat.v1.estimator and estimator.inputs.numpy_input_fn
    assert contrib is tfc is tf.contrib and rnn is rnn_of_import is tf.contrib.rnn
    assert not hasattr(real, "contrib")  # a library tells TensorFlow 1 by it
    assert rnn.GRUCell is core_rnn_cell.GRUCell is tf.nn.rnn_cell.GRUCell
    assert tf.contrib.learn.learn_runner.run is learn_runner.run
    assert HParams is tf.contrib.training.HParams and input_data.read_data_sets
    assert Dense is tf.keras.layers.Dense and K.learning_phase and ops.Tensor
    assert importlib.import_module("tensorflow.contrib.tpu") is tpu
    assert tensorflow_datasets.core.utils.py_utils and tf.contrib.tpu.TPUConfig
    assert "AdamWOptimizer" in dir(tf.contrib.opt) and "layers" in dir(tf.contrib)
    assert arg_scope is tf.contrib.framework.arg_scope is tf.contrib.slim.arg_scope and callable(arg_scope)
    assert "LSTMBlockFusedCell" in tf.contrib.rnn.__dict__ and tf.contrib.learn.datasets.DATASETS["mnist"]
    names = {}
    exec("from tensorflow.contrib.crf import *", names)
    assert names["crf_decode"] is tf.contrib.crf.crf_decode
    x = tf.placeholder(tf.float32, [None, 3])
    assert not tf.executing_eagerly() and x.shape[1].value == 3 and x.shape[0].value is None
    assert tf.reduce_sum(x, 1, keep_dims=True).shape.as_list() == [None, 1]
    assert tf.nn.dropout(x, keep_prob=0.5).shape[1] == tf.Dimension(3)

    @ops.RegisterShape("Gone")
    def shape_of(op):
        return op

    assert ops.register_dense_tensor_like_type(tf.Tensor) is None
    assert tf.Dimension(8 / 2).value == 4 and tf.TensorShape([None, 8 / 2]).as_list() == [None, 4]
    assert tf.get_variable("halves", [3, 8 / 2]).shape == [3, 4]
    lstm = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(64 / 2), tf.zeros([2, 3, 4]), dtype=tf.float32)
    assert lstm[0].shape == [2, 3, 32] and rnn.GRUCell(8 / 2)(tf.zeros([2, 3]), tf.zeros([2, 4]))[0].shape == [2, 4]
    for wrong in (1.5, float("nan")):
        try:
            tf.Dimension(wrong)
        except ValueError:
            pass
        else:
            raise AssertionError(wrong)
    resolvers = tf.distribute.cluster_resolver
    assert resolvers.TPUClusterResolver("", zone=None).get_master() == ""
    assert resolvers.TPUClusterResolver is tf.contrib.cluster_resolver.TPUClusterResolver
    assert resolvers.SimpleClusterResolver is real.distribute.cluster_resolver.SimpleClusterResolver
    assert tf.distribute.MirroredStrategy is real.compat.v1.distribute.MirroredStrategy
    square = tf.keras.Sequential([tf.keras.layers.Reshape([28, 28, 1], input_shape=(784,))])
    assert square(tf.placeholder(tf.float32, [None, 28, 28])).shape.as_list() == [None, 28, 28, 1]

    import collections, fractions, inspect, time
    import numpy as np
    assert inspect.getargspec(lambda a, b=1: 0).defaults == (1,)
    assert issubclass(dict, collections.Mapping) and fractions.gcd(6, 4) == 2 and time.clock() >= 0
    assert np.in1d([1], [1]).all() and np.lib.pad([1], 1, "constant").tolist() == [0, 1, 0]
    assert np.fromstring(np.arange(3, dtype=np.uint8).tostring(), np.uint8).tolist() == [0, 1, 2]
    assert np.fromstring("1 2", sep=" ").tolist() == [1, 2]
    import base64, threading, yaml
    assert base64.encodestring(b"a") == b"YQ==\\n" and not threading.Thread().isAlive()
    assert yaml.load("a: 1") == {"a": 1} == yaml.load("a: 1", Loader=yaml.SafeLoader)
    import pandas as pd
    frame = pd.DataFrame({"a": [1, 2], "b": [3., 4.]})
    assert frame.as_matrix().tolist() == [[1, 3], [2, 4]] and frame.as_matrix(["a"]).tolist() == [[1], [2]]
    assert frame.a.as_matrix().tolist() == [1, 2] and [name for name, _ in frame.iteritems()] == ["a", "b"]
    assert frame.append(frame).index.tolist() == [0, 1, 0, 1] and frame.append([frame, frame]).shape == (6, 2)
    row = frame.append({"a": 5, "b": 6}, ignore_index=True)
    assert row.values.tolist()[2] == [5, 6] and row.index.tolist() == [0, 1, 2] and row.b.dtype == float
    assert frame.append(pd.Series({"a": 5, "b": 6}, name=9)).index.tolist() == [0, 1, 9]
    assert frame.append([{"a": 5}]).shape == (3, 2) and frame.a.append(frame.b).tolist() == [1, 2, 3, 4]
    assert np.float is float and np.zeros(2, np.bool).dtype == bool and np.int(3.5) == 3
    import imp
    open("loaded.py", "w").write("import tensorflow as tf\\nx = tf.placeholder")
    assert imp.load_source("loaded", "loaded.py").x is tf.placeholder
    print("all")
"""


@SLIM
def test_names(ran):
    done = ran(_NAMES, "--tf1")
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr[-3000:]


_VARIABLES = """
    import numpy as np
    import tensorflow as tf

    dense = tf.keras.layers.Dense(2)
    dense.build((None, 2))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    ones, sums = tf.ones_initializer(), {"synchronization": tf.VariableSynchronization.ON_READ,
                                         "aggregation": tf.VariableAggregation.SUM}
    with strategy.scope():
        mirrored = tf.get_variable("mirrored", [3, 2], initializer=ones)
        summed = tf.get_variable("summed", [3, 2], initializer=ones, **sums)
    resource = tf.get_variable("resource", [3, 2], initializer=ones, use_resource=True)
    assert all(isinstance(each, tf.Variable) for each in (resource, dense.kernel, tf.Variable(1.0)))
    of_others = [tf.Variable(2 * each.initialized_value()) for each in (resource, dense.kernel, mirrored, summed)]
    print([each.shape.as_list() for each in of_others])
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), dense_shape=tf.constant([3, 2]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        print(session.run(of_others[2]).tolist())
        for each in (resource, mirrored, summed):
            each.set_shape([3, 2])
            each.load(np.zeros([3, 2]))
            for method in (each.scatter_add, each.batch_scatter_update):
                session.run(method(rows))
            for method in (each.scatter_nd_add, each.scatter_nd_sub, each.scatter_nd_add):
                session.run(method([[1]], [[2., 2.]]))
            session.run(each.scatter_nd_update([[2]], [[3., 3.]]))
            print(session.run([each.read_value(), each.sparse_read([2]), each.gather_nd([[1]])])[0].tolist(),
                  session.run(each.sparse_read([2])).tolist(), session.run(each.gather_nd([[1, 0]])).tolist())
    with strategy.scope():
        update = strategy.extended.call_for_each_replica(lambda: mirrored.scatter_nd_add([[0]], [[1., 1.]]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(update)
        print(session.run(mirrored.read_value()).tolist())
"""


def test_variables_have_the_methods_of_their_time(ran):
    """Those of Keras, of `use_resource=True` and of a strategy."""
    done = ran(_VARIABLES, "--tf1")
    assert done.stdout.splitlines() == [
        "[[3, 2], [2, 2], [3, 2], [3, 2]]",
        "[[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]",
        *["[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]] [[3.0, 3.0]] [2.0]"] * 3,
        "[[2.0, 2.0], [1.0, 1.0], [1.0, 1.0]]",
    ], done.stderr[-3000:]


_HINTS = """
    import sys, traceback
    import tensorflow as tf
    from estimator_pipeline.compat.moved_names import suggestions

    for program in sys.stdin.read().splitlines():
        try:
            exec(program, {"tf": tf})
        except Exception as error:
            print(suggestions.of(error, tf1=True), repr(getattr(error, "hint", None)), sep="; ")
"""
_IN_SESSIONS = "with --tf1 tensors have values in a session only: a program written for TensorFlow 2 runs without --tf1"


def test_a_program_of_tensorflow_2_is_led_back(ran):
    programs = {
        "tf.constant(1).numpy()": _IN_SESSIONS,
        "tf.Variable(1).numpy()": _IN_SESSIONS,
        "list(tf.data.Dataset.range(3))": _IN_SESSIONS,
        "float(tf.constant(1))": _IN_SESSIONS,
        "[each for each in tf.range(3)]": _IN_SESSIONS,
        "if tf.constant(1) > 0: pass": _IN_SESSIONS,
        "tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])]).compile('sgd')": _IN_SESSIONS,
        "tf.losses.MeanSquaredError()": "tf.losses.MeanSquaredError is of TensorFlow 2: a program written for",
        "tf.summary.create_file_writer('x')": "tf.summary.create_file_writer is of TensorFlow 2: a program",
        "tf.train.nothing": "None",
        "tf.reshape(tf.zeros([2, 3]), [4])": "None",
        # Names that tf.contrib never had need no files of it.
        "tf.contrib.layerz": "None; \"did you mean 'layers'?\"",
        "tf.contrib.layers.fully_conected": "None; \"did you mean 'fully_connected'?\"",
        "tf.contrib.no_such_package": "None; 'remove it from the program, or correct its name'",
        "tf.contrib.gan.gan_model": 'None; "it is the package tensorflow-gan: pip install --no-deps tensorflow-gan==',
        "tf.contrib.timeseries.ARRegressor": 'None; "estimator-pipeline contrib install',
    }
    done = ran(_HINTS.replace("sys.stdin.read()", repr("\n".join(programs))), "--tf1")
    lines = done.stdout.splitlines()
    assert len(lines) == len(programs), done.stderr[-3000:]
    for line, (program, hint) in zip(lines, programs.items(), strict=True):
        assert line.startswith(hint), (program, line)


def test_without_the_option_nothing_changes(ran):
    text = """
        import collections, inspect, tensorflow as tf
        print(hasattr(tf, "placeholder"), hasattr(tf, "contrib"), tf.executing_eagerly())
        print(hasattr(collections, "Mapping"))
    """
    assert ran(text).stdout == "False False True\nFalse\n"


def test_the_variable_asks_for_it_as_the_option_does(ran):
    text = "import os, tensorflow as tf\ntf.placeholder\nprint(os.environ['ESTIMATOR_PIPELINE_TF1'])"
    assert ran(text, env={tf1.VARIABLE: "1"}).stdout == ran(text, "--tf1").stdout == "1\n"
    done = ran(text, env={tf1.VARIABLE: "yes"})
    assert done.returncode == 2 and "ESTIMATOR_PIPELINE_TF1=yes is neither 1 nor 0" in done.stderr


def test_install_gives_it_to_a_program_of_its_own(run_warm, tmp_path):
    (tmp_path / "prog.py").write_text(
        "from estimator_pipeline import compat\ntf = compat.install(tf1=True)\nimport tensorflow\n"
        "print(tensorflow is tf, tf.placeholder(tf.float32).shape, compat.install() is not tf)\n"
        "print([step.name for step in compat.status().steps].count('tf1'), compat.install(tf1=True) is tf)\n"
    )
    done = run_warm([tmp_path / "prog.py"], cwd=tmp_path)
    assert done.stdout == "True <unknown> True\n1 True\n", done.stderr


def test_traceback_has_the_program_s_lines_alone(ran):
    text = """
        def load():
            import tensorflow.no_such_module

        try:
            load()
        except ImportError as error:
            raise RuntimeError("no luck") from error
    """
    done = ran(text, "--tf1")
    assert done.returncode == 1 and "estimator_pipeline" not in done.stderr
    assert "import tensorflow.no_such_module" in done.stderr and done.stderr.endswith("RuntimeError: no luck\n")


@pytest.mark.parametrize(
    ("statement", "error", "hint"),
    [
        (
            "from tensorflow.contrib.seq2seq import AttentionWrapper",
            "GoneImportError: tf.contrib.seq2seq.AttentionWrapper is not available [tensorflow/removed-name]",
            "estimator-pipeline contrib install installs TensorFlow 1.15.5's files of tf.contrib",
        ),
        (
            "import tensorflow as tf; tf.contrib.timeseries.ARRegressor",
            "GoneNameError: tf.contrib.timeseries.ARRegressor is not available [tensorflow/removed-name]",
            "estimator-pipeline contrib install installs TensorFlow 1.15.5's files of tf.contrib",
        ),
        (
            "import tensorflow.contrib.nothing",
            "GoneModuleError: No module named 'tensorflow.contrib.nothing'",
            "remove it from the program, or correct its name",
        ),
    ],
)
def test_a_name_that_is_nowhere(statement, error, hint, ran):
    done = ran(f"try:\n    pass\nfinally:\n    {statement}\n", "--tf1")
    assert done.returncode == 1
    assert error in done.stderr and f"hint: {hint}" in done.stderr


def test_programs_that_try_get_their_own_way(ran):
    text = """
        import tensorflow as tf
        try:
            from tensorflow.contrib.seq2seq import AttentionWrapper
        except ImportError:
            print("import")
        print(hasattr(tf.contrib.seq2seq, "AttentionWrapper"), getattr(tf.contrib, "nothing", None))
        try:
            import tensorflow.contrib.nothing
        except ModuleNotFoundError as error:
            print(error.name)
    """
    assert ran(text, "--tf1").stdout == "import\nFalse None\ntensorflow.contrib.nothing\n"


@pytest.mark.nightly
def test_a_spawned_child_has_it_too(run_python, tmp_path):
    text = """
        import multiprocessing

        def child(queue):
            import tensorflow as tf
            queue.put((tf.placeholder(tf.float32, [2]).shape[0].value, tf.contrib.training.HParams(a=1).a))

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(queue.get(timeout=60))
            process.join()
    """
    (tmp_path / "old.py").write_text(textwrap.dedent(text))
    done = run_python([*_EXEC, "--tf1", tmp_path / "old.py"])
    assert done.stdout == "(2, 1)\n", done.stderr


# Programs and libraries ------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """`package(name, text)`: the globals of a module of an installed package with that code."""
    compat.install()
    importers._is_program.cache_clear()
    importers._written_for_version_1.cache_clear()
    monkeypatch.setattr(importers, "_installed_below", lambda: (f"{tmp_path.resolve()}/",))
    monkeypatch.setattr(importers, "_programs", set())
    monkeypatch.syspath_prepend(tmp_path)

    def made(name, text):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "inner.py").write_text(text)
        return {"__name__": f"{name}.inner", "__file__": str(folder / "inner.py")}

    yield made
    importers._is_program.cache_clear()
    importers._written_for_version_1.cache_clear()


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("from tensorflow.contrib import layers", True),
        ("import tensorflow.contrib.slim as slim", True),
        ("from tensorflow import contrib", True),
        ("def f(tf):\n    return tf.contrib.layers.layer_norm(1)", True),
        ("import tensorflow as tf\ndef f(x):\n    return tf.diag_part(tf.to_float(x))", True),
        ("from tensorflow import placeholder", True),
        ("import tensorflow as tf\nv1 = tf.compat.v1\ndef f():\n    return v1.placeholder or tf.placeholder", False),
        ("import tensorflow as tf\ntry:\n    x = tf.placeholder\nexcept AttributeError:\n    x = None", False),
        ("import tensorflow as tf\ntf.function, tf.constant", False),
        ("tf = 3\ntf.placeholder", False),
        ("# as tf.contrib.layers had it\nx = 'tf.contrib.layers'", False),
        ("try:\n    from tensorflow.contrib import layers\nexcept ImportError:\n    layers = None", False),
        ("from contrib import x\nfrom .contrib import y", False),
        ("this is no Python: contrib", False),
    ],
)
def test_an_installed_package_that_was_written_for_tensorflow_1(text, old, package):
    assert importers.is_program(package("some_library", text)) is old


def test_who_is_a_program(package, tmp_path):
    assert importers.is_program({"__name__": "__main__"}) and importers.is_program({"__name__": "__mp_main__"})
    assert importers.is_program({"__name__": "mine", "__file__": "/elsewhere/mine.py"})
    assert importers.is_program({"x": 1}) and not importers.is_program(None)
    for name in ("tensorflow.python.framework.ops", "estimator_pipeline.compat", "tf_slim.layers", "json"):
        assert not importers.is_program({"__name__": name, "__file__": "/elsewhere/file.py"}), name
    assert importers.is_program({"__name__": "tensorflow.contrib.learn", "__file__": "/cache/learn.py"})
    module = package("run_by_name", "import tensorflow as tf\ntf.function")
    assert not importers.is_program(module)
    importers._is_program.cache_clear()
    importers.mark_program("run_by_name.inner")
    assert importers.is_program(module)


def test_a_wrong_value_of_the_variable(monkeypatch):
    for value, wanted in (("", False), ("0", False), ("1", True), ("true", True)):
        monkeypatch.setenv(tf1.VARIABLE, value)
        assert tf1.wanted() is wanted
    monkeypatch.setenv(tf1.VARIABLE, "maybe")
    with pytest.raises(CompatError) as error:
        tf1.wanted()
    assert error.value.code == "argument/bad-value"


# Python's own names --------------------------------------------------------------------------------------------------


def test_what_python_has_is_left_alone(monkeypatch):
    import inspect

    from estimator_pipeline.compat.tf1 import python_names

    monkeypatch.setattr(inspect, "getargspec", "its own", raising=False)
    python_names._give(inspect, "getargspec", python_names._getargspec)
    assert inspect.getargspec == "its own"
    spec = python_names._getargspec(lambda a, b=1, *c, **d: 0)
    assert tuple(spec) == (["a", "b"], "c", "d", (1,)) and spec.args == ["a", "b"]
    with pytest.raises(ValueError, match="keyword-only"):
        python_names._getargspec(lambda *, a: 0)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has imp")
def test_imp(tmp_path):
    from estimator_pipeline.compat.tf1 import python_names

    module = python_names._imp()
    with pytest.raises(ImportError):
        module.load_source("a", str(tmp_path / "a.txt"))


# The table of tf.contrib ---------------------------------------------------------------------------------------------

_ROWS = """
    import importlib.util
    from estimator_pipeline.compat.tf1 import contrib

    optional = {"tensorflow_gan"} | ({"tf_slim"} if importlib.util.find_spec("tf_slim") is None else set())
    table, wrong = contrib.names(), []
    for package, homes in table.homes.items():
        there = [home for home in homes if home.split(".")[0] not in optional]
        wrong += [f"{package} = {home}" for home in there if contrib._home(home) is None]
    for package, rows in table.rows.items():
        module = contrib.module(f"{contrib.ROOT}.{package}")
        for name, places in rows.items():
            value = getattr(module, name, None)
            wrong += [f"{package}.{name}"] if not any(contrib._attribute(*place) is value for place in places) else []
    assert contrib.module("tensorflow.examples.tutorials.mnist.input_data").read_data_sets
    print(len(table.rows), wrong)
"""


def test_every_row_of_the_table_leads_somewhere(ran):
    done = ran(_ROWS, "--tf1")
    count, _, wrong = done.stdout.partition(" ")
    assert wrong == "[]\n" and int(count) > 10, done.stderr[-3000:]
