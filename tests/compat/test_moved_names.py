"""Names of tensorflow.python that moved are found where they were, on every TensorFlow; what is gone says so."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import threading

import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.moved_names import table as moved_names
from estimator_pipeline.compat.moved_names.table import GoneImportError, GoneModuleError, GoneNameError, MovedNamesTable

tf = compat.install()
table = moved_names.install()
PYTHON = "tensorflow.python"
MISSING = object()
HERE = tuple(map(int, tf.__version__.split(".")[:2]))


def version(text):
    return tuple(map(int, text.split(".")))


def module_of(name):
    """None where nothing of it is left."""
    try:
        return importlib.import_module(name)
    except GoneModuleError:
        return None


# The whole table --------------------------------------------------------------------------------------------


def test_every_name_that_moved_is_the_object_of_today():
    """All of them, by importing: the module, then the name; on each TensorFlow that the tests run on."""
    wrong, count = [], 0
    for name in table:
        module, entry = module_of(name), table[name]
        for old, homes in entry.homes.items():
            value = getattr(module, old, MISSING)
            found = [
                vars(home).get(new, home) is value
                for home, new in ((module_of(home), new) for home, new in homes if importlib.util.find_spec(home))
                if home is not None
            ]
            # What this TensorFlow still has at the old place is left as it is.
            kept = old in vars(module) and f"{name}.{old}" not in moved_names.used()
            if value is MISSING or not (kept or any(found)):
                wrong.append(f"{name}.{old}")
            count += 1
    assert not wrong
    assert count > 4000


def test_every_module_that_moved_as_a_whole_is_the_module_of_today():
    wrong = []
    for name in table:
        home = table[name].whole
        if home is not None and version(table[name].since) <= HERE:
            module = importlib.import_module(name)
            if module is not importlib.import_module(home) or module.__spec__.name != module.__name__:
                wrong.append(name)
    assert not wrong


def test_what_has_no_successor_is_in_no_module():
    """But where it was put back by other means, and where this TensorFlow is older than its end."""
    there = [
        f"{name}.{old}"
        for name in table
        for old, since in table[name].gone.items()
        if version(since) <= HERE and module_of(name) is not None and hasattr(module_of(name), old)
    ]
    assert there == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("util.nest.is_sequence", "util.nest.is_nested"),
        ("framework.ops.Tensor", "framework.tensor.Tensor"),
        ("framework.ops.IndexedSlices", "framework.indexed_slices.IndexedSlices"),
        ("ops.array_ops.stack", "ops.array_ops_stack.stack"),
        ("ops.array_ops.unstack", "ops.array_ops_stack.unstack"),
        ("ops.control_flow_ops.cond", "ops.cond.cond"),
        ("ops.control_flow_ops.while_loop", "ops.while_loop.while_loop"),
        ("ops.variable_scope.variable", "ops.variable_v1.VariableV1"),
        ("distribute.distribution_strategy_context.get_strategy", "distribute.distribute_lib.get_strategy"),
        ("training.training_ops.resource_apply_adam", "ops.gen_training_ops.resource_apply_adam"),
        ("training.gen_training_ops.apply_adam", "ops.gen_training_ops.apply_adam"),
        ("training.tracking.base.Trackable", "trackable.base.Trackable"),
        ("training.tracking.graph_view.ObjectGraphView", "checkpoint.graph_view.ObjectGraphView"),
        ("training.tracking.tracking.AutoTrackable", "trackable.autotrackable.AutoTrackable"),
        ("training.tracking.util.Checkpoint", "checkpoint.checkpoint.Checkpoint"),
        ("pywrap_tensorflow.NewCheckpointReader", "training.py_checkpoint_reader.NewCheckpointReader"),
    ],
)
def test_names_that_libraries_ask_for(old, new):
    module, _, name = old.rpartition(".")
    home, _, today = new.rpartition(".")
    space: dict[str, object] = {}
    exec(f"from {PYTHON}.{module} import {name} as it", space)
    assert space["it"] is getattr(importlib.import_module(f"{PYTHON}.{home}"), today)


def test_public_classes_of_keras_under_their_old_names():
    """What `isinstance` is asked about: the classes of tf.keras, not the copies that TensorFlow keeps."""
    from tensorflow.python.feature_column.dense_features_v2 import DenseFeatures
    from tensorflow.python.keras.applications.resnet import ResNet50
    from tensorflow.python.keras.preprocessing.sequence import pad_sequences

    assert DenseFeatures is tf.keras.layers.DenseFeatures
    assert ResNet50 is tf.keras.applications.ResNet50
    assert pad_sequences is tf.keras.preprocessing.sequence.pad_sequences


def test_the_linear_model_of_feature_columns():
    from tensorflow.python.feature_column.feature_column_v2 import LinearModel
    from tensorflow_estimator.python.estimator.canned import linear

    assert LinearModel is linear.LinearModel


def test_tensorflows_own_normalization_finds_its_layer():
    from tensorflow.python.layers import normalization

    assert normalization.BatchNormalization is tf.compat.v1.layers.BatchNormalization
    assert issubclass(normalization.BatchNormalization, tf.keras.layers.Layer)


def test_names_of_contrib_that_have_a_home(monkeypatch):
    """By import alone: programs tell TensorFlow 1 by the attribute, which is not there before."""
    monkeypatch.delattr(tf, "contrib", raising=False)
    for name in [name for name in sys.modules if f"{name}.".startswith("tensorflow.contrib.")]:
        monkeypatch.delitem(sys.modules, name)
    assert not hasattr(tf, "contrib")
    from tensorflow.contrib.estimator import InMemoryEvaluatorHook, add_metrics, stop_if_no_decrease_hook
    from tensorflow.contrib.rnn import LSTMCell

    assert stop_if_no_decrease_hook is tf.estimator.experimental.stop_if_no_decrease_hook
    assert InMemoryEvaluatorHook is tf.estimator.experimental.InMemoryEvaluatorHook
    assert LSTMCell is tf.compat.v1.nn.rnn_cell.LSTMCell
    assert tf.contrib.estimator.add_metrics is add_metrics is tf.estimator.add_metrics


# One object, looked up on first use --------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """`planted(table, {file: text})`: a package of TensorFlow's with these files, and the table for it."""

    def plant(text, files):
        for name, source in files.items():
            file = tmp_path / "planted_names" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            (file.parent / "__init__.py").touch()
            (tmp_path / "planted_names" / "__init__.py").touch()
            file.write_text(source)
        monkeypatch.setattr(moved_names, "ROOT", "planted_names")
        finder = moved_names._Finder(MovedNamesTable(text), "tf_keras.src")
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    yield plant
    for name in [name for name in sys.modules if name.split(".")[0] == "planted_names"]:
        del sys.modules[name]


def test_nothing_is_imported_before_it_is_asked_for(planted):
    planted(".old 2.3 > .home thing\n.lost 2.3 > .home thing other=thing\n", {"old.py": "", "home.py": "thing = []"})
    import planted_names.lost
    import planted_names.old

    assert "planted_names.home" not in sys.modules
    assert planted_names.old.thing is planted_names.lost.other is planted_names.lost.thing
    assert planted_names.old.thing is sys.modules["planted_names.home"].thing
    assert moved_names.used()["planted_names.lost.other"] == "planted_names.home.thing"


def test_nothing_is_replaced_that_is_there(planted):
    """A name, a module, and a `__getattr__` of the module's own."""
    own = (
        "thing = 1\ndef __getattr__(name):\n    if name == 'mine':\n        return 2\n    raise AttributeError(name)\n"
    )
    planted(
        ".old 2.3 > .home thing mine other\n.there 2.3 = .home\n.old 2.3 ! gone\n",
        {"old.py": own, "home.py": "thing = 'x'\nother = 'y'\n", "there.py": "it = 3\n"},
    )
    from planted_names import old, there

    assert (old.thing, old.mine, old.other, there.it) == (1, 2, "y", 3)
    assert old.__loader__.__class__.__name__ == old.__spec__.loader.__class__.__name__ == "SourceFileLoader"
    with pytest.raises(AttributeError, match=r"^gone$"):
        _ = old.gone


def test_a_module_below_one_that_is_another_today_is_not_loaded_twice(planted):
    planted(".old 2.3 = .new\n", {"new/inner.py": "class Thing: pass\n"})
    import planted_names.new.inner
    import planted_names.old.inner

    assert planted_names.old is planted_names.new
    assert planted_names.old.inner is planted_names.new.inner
    assert planted_names.old.inner.__name__ == "planted_names.new.inner"


def test_names_that_a_module_had_beside_those_that_went_with_it(planted):
    """Two old modules are one today; each knows what else it had."""
    planted(
        ".a 2.3 = .new\n.a 2.3 > .other x\n.b 2.3 = .new\n.b 2.3 > .other y\n.b 2.3 ! z\n",
        {"new.py": "n = 0\n", "other.py": "x = 1\ny = 2\n"},
    )
    from planted_names import a, b

    assert a is b and (a.n, a.x, b.y) == (0, 1, 2)
    with pytest.raises(GoneNameError, match=r"planted_names\.b\.z is gone since TensorFlow 2\.3"):
        _ = b.z


def test_the_first_home_that_is_there_counts(planted):
    planted(".old 2.3 > .newest thing\n.old 2.3 > .middle thing\n", {"old.py": "", "middle.py": "thing = 5\n"})
    from planted_names.old import thing

    assert thing == 5


def test_threads_get_one_object():
    module = importlib.import_module(f"{PYTHON}.ops.control_flow_ops")
    module.__dict__.pop("cond", None)
    start, found = threading.Barrier(8), []

    def ask():
        start.wait(60)
        found.append(module.cond)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8 and len(set(map(id, found))) == 1


# What is gone ------------------------------------------------------------------------------------------------


def test_from_import_of_what_is_gone():
    with pytest.raises(GoneImportError) as error:
        from tensorflow.python.framework.ops import RegisterShape  # noqa: F401
    assert isinstance(error.value, ImportError) and error.value.name == "RegisterShape"
    assert error.value.code == "tensorflow/removed-name" and error.value.hint
    assert error.value.message.startswith("tensorflow.python.framework.ops.RegisterShape ")


def test_attribute_that_is_gone():
    ops = importlib.import_module(f"{PYTHON}.framework.ops")
    with pytest.raises(GoneNameError, match=r"ops\.RegisterShape is gone since TensorFlow 2\.1") as error:
        _ = ops.RegisterShape
    assert isinstance(error.value, AttributeError) and error.value.obj is ops
    assert not hasattr(ops, "RegisterShape") and getattr(ops, "RegisterShape", 7) == 7
    # Errors cross processes.
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_module_that_is_gone():
    with pytest.raises(GoneModuleError, match=r"execution_callbacks is gone since TensorFlow 2.1") as error:
        importlib.import_module(f"{PYTHON}.eager.execution_callbacks")
    assert isinstance(error.value, ModuleNotFoundError)
    # The import system keeps a package's missing module to itself, and asks the package for the name.
    with pytest.raises(GoneImportError, match=r"execution_callbacks is gone since TensorFlow 2.1"):
        from tensorflow.python.eager import execution_callbacks  # noqa: F401


def test_names_that_never_were_are_told_as_ever():
    ops = importlib.import_module(f"{PYTHON}.framework.ops")
    with pytest.raises(AttributeError, match=r"^module 'tensorflow.python.framework.ops' has no attribute 'never'$"):
        _ = ops.never
    with pytest.raises(ImportError, match=r"^cannot import name 'never' from"):
        from tensorflow.python.framework.ops import never  # noqa: F401
    for name in ("training.tracking.nothing", "framework.nothing", "eager.profiler.nothing"):
        with pytest.raises(ModuleNotFoundError, match=r"^No module named"):
            importlib.import_module(f"{PYTHON}.{name}")


def test_status_lists_what_was_used():
    from tensorflow.python.util.nest import is_sequence  # noqa: F401

    status = compat.status()
    assert status.moved["tensorflow.python.util.nest.is_sequence"] == "tensorflow.python.util.nest.is_nested"
    assert "  moved name tensorflow.python.util.nest.is_sequence: tensorflow.python.util.nest.is_nested" in str(status)


# Written anew ------------------------------------------------------------------------------------------------


def test_eager_profiler(tmp_path):
    """As on 2.15, where it is TensorFlow's own: started, stopped, saved where TensorBoard looks."""
    from tensorflow.python.eager import profiler

    with pytest.raises(profiler.ProfilerNotRunningError):
        profiler.stop()
    profiler.start()
    with pytest.raises(profiler.ProfilerAlreadyRunningError):
        profiler.start()
    tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64])).numpy()
    result = profiler.stop()
    assert isinstance(result, bytes) and b"MatMul" in result
    with profiler.Profiler(str(tmp_path)):
        tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64])).numpy()
    (saved,) = (tmp_path / "plugins" / "profile").glob("*/*")
    assert b"MatMul" in saved.read_bytes()
    assert len(list(tmp_path.glob("events*.profile-empty"))) == 1
    client = importlib.import_module(f"{PYTHON}.eager.profiler_client")
    assert callable(client.start_tracing) and callable(client.monitor)
