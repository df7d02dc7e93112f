"""`compat.install()`: tf.estimator and its old paths, in processes of their own, as it changes the process."""

from __future__ import annotations

import json
import re
import textwrap

import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.bootstrap import tpu_stubs as absent
from estimator_pipeline.compat.bootstrap import versions
from estimator_pipeline.errors import CompatError

_EXEC = ["-m", "estimator_pipeline", "exec"]


@pytest.fixture
def run_code(run_python):
    """Runs lines of Python in a process of their own and gives back what they printed."""

    def run(code, *, ok=True, **options):
        done = run_python(["-c", textwrap.dedent(code)], **options)
        assert (done.returncode == 0) == ok, done.stderr
        return done.stdout if ok else done.stderr

    return run


# What it gives back ---------------------------------------------------------------------------------


# What the programs named behind it print follows, a line of JSON each.
_INSTALL_AND_RUN = """
import contextlib, io, json, runpy, sys
from estimator_pipeline import compat
before = compat.status()
assert not before.installed and before.keras is None and "tensorflow" not in sys.modules
tf = compat.install()
assert tf is sys.modules["tensorflow"]
first, finders, estimator = compat.status(), list(sys.meta_path), tf.estimator
assert compat.install() is tf
assert compat.status() == first and sys.meta_path == finders and tf.estimator is estimator
import tensorflow
assert tensorflow is tf and first.installed and first.tensorflow == tf.__version__
print(json.dumps("checked\\n"))
for program in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(program, run_name="__main__")
    print(json.dumps(out.getvalue()))
"""


@pytest.fixture(scope="module")
def printed(run_python, programs):
    """`printed(name)`: what was said of the install and by each of two programs, all in one process."""
    names = ("old_paths", "export_names")
    done = run_python(["-c", _INSTALL_AND_RUN, *(programs / f"{name}.py" for name in names)])
    assert done.returncode == 0, done.stderr
    return dict(zip(("install", *names), map(json.loads, done.stdout.splitlines()), strict=True)).get


def test_every_old_path_leads_to_the_same_objects(printed):
    assert printed("old_paths") == "checked\n"


@pytest.mark.nightly
@pytest.mark.only_2_15
def test_old_paths_are_those_of_2_15(run_python, programs):
    """The same program without us: what it checks is true of TensorFlow's own tf.estimator."""
    done = run_python([programs / "old_paths.py"])
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr


@pytest.mark.only_2_15
def test_tf_keras_does_not_take_the_place_of_keras(run_python):
    """TensorFlow 2.15 imports it by itself, for a SavedModel with an optimizer."""
    code = (
        "from estimator_pipeline import compat; tf = compat.install(); import tf_keras; "
        "from tensorflow.python.util import tf_export; found = tf_export.get_symbol_from_name('keras.Sequential'); "
        "assert found is tf.keras.Sequential is not tf_keras.Sequential, found; print('checked')"
    )
    done = run_python(["-c", code])
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr[-2000:]


def test_export_names_are_those_of_2_15(printed, records):
    """Recorded by `python tests/programs/export_names.py > tests/records/export_names.json` on TensorFlow 2.15."""
    recorded = json.loads((records / "export_names.json").read_text())
    assert json.loads(printed("export_names")) == recorded
    assert len(recorded) > 100
    assert (
        recorded["tf.estimator.RunConfig"]["v1"] == recorded["tf.estimator.RunConfig"]["v2"] == ["estimator.RunConfig"]
    )
    assert recorded["subclass"]["v2"] == []


@pytest.mark.nightly
@pytest.mark.since_2_16
def test_alias_is_the_module_itself(run_code):
    """A setting made through one path is seen through the other, and the module keeps its own identity."""
    out = run_code(
        """
        from estimator_pipeline import compat
        tf = compat.install()
        import tensorflow.python.estimator.canned.head as old
        import tensorflow_estimator.python.estimator.canned.head as new
        from tensorflow.python.estimator.canned import head as attribute
        assert old is new is attribute
        assert new.__name__ == new.__spec__.name == "tensorflow_estimator.python.estimator.canned.head"
        assert tf.estimator.__spec__.name == tf.estimator.__name__
        import importlib, sys
        assert importlib.reload(new) is sys.modules[new.__name__]
        import tensorflow.python.distribute.estimator_training as glue
        assert glue.__name__ == "estimator_pipeline.compat.internals.distribute_coordinator"
        from tensorflow.python.tpu import error_handling, tpu_config, tpu_context, tpu_estimator, util
        assert tpu_config.TPUConfig is tf.compat.v1.estimator.tpu.TPUConfig
        try:
            import tensorflow.python.estimator.no_such_module
        except ModuleNotFoundError as error:
            print(error.name)
        """
    )
    assert out == "tensorflow.python.estimator.no_such_module\n"


def test_install_is_idempotent_and_gives_tensorflow(printed):
    assert printed("install") == "checked\n"


@pytest.mark.nightly
@pytest.mark.since_2_16
def test_status_says_what_was_done(run_code):
    out = run_code(
        """
        import os
        from estimator_pipeline import compat
        compat.install()
        status = compat.status()
        assert os.environ["TF_USE_LEGACY_KERAS"] == "1"
        assert status.estimator == "estimator_pipeline" and status.keras.startswith("tf_keras 2.")
        print([step.name for step in status.steps])
        print(status)
        """
    )
    first, text = out.split("\n", 1)
    # Needed where tf_keras 2.16 to 2.18 meets Python 3.12 alone.
    seeds = "'keras-seeds', " if "keras-seeds" in first else ""
    assert first == (
        f"['legacy-keras', 'keras-resolved', {seeds}'export-table', 'aliases', 'tpu-embedding', 'input-checkpoints', "
        "'attributes']"
    )
    assert "tf.estimator: estimator_pipeline" in text and "  aliases: " in text


@pytest.mark.nightly
@pytest.mark.since_2_16
def test_no_thread_meets_a_lazy_module_of_keras(run_code):
    """Touched first from two threads at once, one recurses for ever; a model_fn under a coordinator runs in one."""
    run_code(
        """
        import sys, threading
        from estimator_pipeline import compat
        tf = compat.install()
        from estimator_pipeline.compat import lazy_loaders
        loaders = [object.__getattribute__(one, "__dict__") for one in lazy_loaders._loaders()]
        assert loaders and all(own["_tfll_initialized"] for own in loaders)
        v1, problems, made = tf.compat.v1, [], []
        threading.excepthook = lambda args: problems.append(args.exc_value)
        def build():
            with tf.Graph().as_default():
                y = v1.layers.dense(v1.placeholder(tf.float32, [4, 3]), 2)
                v1.nn.rnn_cell.GRUCell(3).zero_state(4, tf.float32)
                tf.losses.MeanSquaredError()(y, y), tf.metrics.Mean(), tf.optimizers.SGD(), tf.initializers.Zeros()
                made.append(y)
        threads = [threading.Thread(target=build) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not problems and len(made) == 4, problems
        assert "keras" not in sys.modules, "that is Keras 3"
        """
    )


@pytest.mark.only_2_15
def test_harmless_on_2_15(run_code):
    run_code(
        """
        import os, sys
        from estimator_pipeline import compat
        before, finders = dict(os.environ), list(sys.meta_path)
        tf = compat.install()  # the environment asks for no patches
        status = compat.status()
        assert status.installed and status.estimator == "tensorflow"
        assert [step.name for step in status.steps] == ["keras-symbols"]
        assert status.keras.startswith("keras 2.15")
        assert "TF_USE_LEGACY_KERAS" not in os.environ
        assert not any(type(f).__module__.startswith("estimator_pipeline") for f in sys.meta_path)
        assert "estimator_pipeline.compat.internals.distribute_coordinator" not in sys.modules
        import tensorflow.python.distribute.estimator_training as glue
        assert glue.__name__ == "tensorflow.python.distribute.estimator_training"
        """,
        env={"ESTIMATOR_PIPELINE_PATCHES": "none"},
    )


@pytest.mark.nightly
def test_install_from_many_threads_at_once(run_code):
    out = run_code(
        """
        import threading
        from estimator_pipeline import compat
        found = []
        threads = [threading.Thread(target=lambda: found.append(compat.install())) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(len(found), len(set(map(id, found))), found[0].estimator.Estimator.__name__)
        """
    )
    assert out == "4 1 EstimatorV2\n"


@pytest.mark.nightly
@pytest.mark.since_2_16
def test_child_process_of_a_program_gets_the_same_keras(run_code):
    out = run_code(
        """
        import subprocess, sys
        from estimator_pipeline import compat
        compat.install()
        child = "import tensorflow as tf; print(tf.keras.layers.Dense.__module__)"
        sys.stdout.write(subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True).stdout)
        """
    )
    assert out.startswith("tf_keras.")


# What trains with it ---------------------------------------------------------------------------------


@pytest.mark.nightly
def test_canned_estimators_with_feature_columns_train_in_a_worker_thread(run_python, programs, tmp_path):
    """Lazy loaders that were first touched in a thread ended in a RecursionError."""
    done = run_python([*_EXEC, programs / "dnn_in_a_thread.py", tmp_path])
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["v1", "20"], ["v2", "20"]]
    assert all("'accuracy'" in line[2] for line in lines)


@pytest.mark.nightly
def test_e7_model_to_estimator_trains_evaluates_and_predicts(run_python, programs, tmp_path):
    done = run_python([*_EXEC, programs / "keras_to_estimator.py", tmp_path])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["steps 1 61", "better True", "predictions 64 (1,)"]


# What is gone for good ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(absent.MODULES))
def test_stand_in_imports_and_complains_on_use(name):
    module = absent.AbsentModule(name, absent.MODULES[name])
    stand_in = module.Something
    assert stand_in is module.Something and not isinstance(3, stand_in)
    assert issubclass(type("Sub", (stand_in,), {}), stand_in)
    for use in (lambda: stand_in(1, key=2), lambda: stand_in.CONSTANT):
        with pytest.raises(CompatError) as caught:
            use()
        assert f"{name}.Something" in str(caught.value) and "run this program on TensorFlow 2.15" in str(caught.value)
    with pytest.raises(AttributeError):
        _ = module.__wrapped__


@pytest.mark.nightly
@pytest.mark.since_2_16
def test_tpu_names_of_a_program_for_cpu(run_code):
    out = run_code(
        """
        from estimator_pipeline import compat
        tf = compat.install()
        from tensorflow.python.tpu import session_support, tpu_embedding
        from tensorflow.python.tpu.tpu_embedding_gradient import get_gradients_through_dummy_table_variables
        import tensorflow.python.tpu.tpu_embedding as dotted
        assert dotted is tpu_embedding
        try:
            tpu_embedding.TPUEmbedding({}, {}, 1, "training")
        except compat.CompatError as error:
            print(error)
        """.replace("compat.CompatError", "__import__('estimator_pipeline').errors.CompatError")
    )
    assert out.splitlines()[0].startswith("tensorflow.python.tpu.tpu_embedding.TPUEmbedding was used")


# What it refuses ----------------------------------------------------------------------------------------


def _message(run_code, before, **options):
    """The one message that install() raises after the lines `before`."""
    code = f"""
import sys
from estimator_pipeline import compat
from estimator_pipeline.compat import versions
from estimator_pipeline.errors import CompatError
{textwrap.dedent(before)}
try:
    compat.install()
except CompatError as error:
    print(error)
    assert not compat.status().installed
else:
    sys.exit("install() did not refuse")
"""
    return run_code(code, **options)


def _installed(**changes):
    """Lines that make the metadata of this Python say something else."""
    return f"""
real, changes = versions.installed, {changes!r}
versions.installed = lambda name: changes[name.replace("-", "_")] if name.replace("-", "_") in changes else real(name)
"""


# TensorFlow as far as install() looks at it, which need not be imported for this.
_STAND_IN = """
import importlib.util
sys.modules["tensorflow"] = importlib.util.module_from_spec(importlib.util.find_spec("tensorflow"))
sys.modules["tensorflow"]._tf_uses_legacy_keras = False
sys.modules["tensorflow.keras"] = sys.modules["tensorflow"]
"""


@pytest.mark.gate("stand-in")
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(_STAND_IN, id="stand-in"),
        "from tensorflow.keras import layers",
        "import tensorflow as tf; tf.keras.layers",
        "import tensorflow as tf; tf.losses.MeanSquaredError",
        "import tensorflow.compat.v1 as tf; tf.keras.layers",
    ],
)
@pytest.mark.since_2_16
def test_too_late_after_keras_3_was_used(first, run_code):
    message = _message(run_code, first)
    used = re.search(r"found: (.*) was used before", message)[1]
    assert used in ("tensorflow.keras", "tf.keras", "tf.losses", "tf.compat.v1.keras"), message
    assert "restart Python" in message and "estimator-pipeline exec" in message


# Each process also has a different order of imports.
@pytest.mark.gate("isort")
@pytest.mark.parametrize(
    ("first", "after"),
    [
        pytest.param("import keras, tf_keras", "", id="isort"),
        pytest.param("import tensorflow.compat.v1", "os.environ['TF_USE_LEGACY_KERAS'] = '1'", id="variable"),
    ],
)
@pytest.mark.since_2_16
def test_tensorflow_may_be_imported_before(first, after, run_code):
    """All that the import decides by Keras 3 is as if the variable had been set before."""
    code = f"""
import os, sys
before = dict(os.environ)
import estimator_pipeline
from estimator_pipeline import compat
assert not compat.status().installed and dict(os.environ) == before and "tensorflow" not in sys.modules
{first}
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow import keras, losses
{after}
assert compat.install() is tf
import tf_keras
assert keras.layers.Dense is tf.keras.layers.Dense is tf.compat.v2.keras.layers.Dense is tf_keras.layers.Dense
assert losses.MeanSquaredError is tf_keras.losses.MeanSquaredError and tf1.layers.dense and tf1.nn.rnn_cell.LSTMCell
from tensorflow.keras import backend
from tensorflow.compat.v1.keras import layers
assert "tf_keras" in backend.__file__ and "tf_keras" in layers.__file__
paths = [entry for module in (tf, tf1, tf.compat.v2, tf1.nn) for entry in module.__path__]
assert not [path for path in paths if "/keras/api/" in path], paths
try:
    compat.use_keras_3()
except estimator_pipeline.errors.CompatError as error:
    print(error.code)
print(tf.estimator.Estimator.__name__, tf1.estimator.Estimator.__name__)
print("keras-choice" in [step.name for step in compat.status().steps], os.environ["TF_USE_LEGACY_KERAS"])
"""
    assert run_code(code) == "tensorflow/wrong-keras\nEstimatorV2 Estimator\nTrue 1\n"


@pytest.mark.nightly
@pytest.mark.since_2_16
def test_not_too_late_with_legacy_keras_chosen_before(run_code):
    out = run_code(
        """
        import tensorflow as tf
        import tensorflow.compat.v1 as tf1
        from estimator_pipeline import compat
        assert compat.install() is tf
        print(tf.estimator.Estimator.__name__, tf1.estimator.Estimator.__name__)
        """,
        env={"TF_USE_LEGACY_KERAS": "1"},
    )
    assert out == "EstimatorV2 Estimator\n"


@pytest.mark.parametrize(
    ("changes", "found", "hint"),
    [
        ({"tf_keras": None}, "no tf-keras", "pip install 'tf-keras=={minor}.*'"),
        ({"tf_keras": "2.15.1"}, "tf-keras 2.15.1", "pip install 'tf-keras=={minor}.*'"),
        ({"tensorflow_estimator": None}, "no tensorflow-estimator", "pip install 'tensorflow-estimator==2.15.*'"),
        ({"tensorflow_estimator": "2.14.0"}, "tensorflow-estimator 2.14.0", "tensorflow-estimator==2.15.*"),
    ],
)
@pytest.mark.since_2_16
def test_packages_that_do_not_fit(changes, found, hint, run_code):
    message = _message(run_code, _installed(**changes) + "\nassert 'tensorflow' not in sys.modules")
    minor = ".".join(versions.tensorflow_version().split(".")[:2])
    assert f"found: {found}" in message and hint.format(minor=minor) in message


@pytest.mark.since_2_16
def test_metadata_is_what_python_would_import(run_code, tmp_path):
    """The same through a distribution that stands first on the path, as a forgotten `pip install --target` does."""
    info = tmp_path / "tf_keras-2.20.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tf-keras\nVersion: 2.14.0\n")
    message = _message(run_code, "", env={"PYTHONPATH": str(tmp_path)})
    assert "found: tf-keras 2.14.0" in message


@pytest.mark.only_2_15
def test_2_15_with_the_variable_set_and_no_tf_keras(run_code):
    message = _message(run_code, _installed(tf_keras=None), env={"TF_USE_LEGACY_KERAS": "1"})
    assert "TF_USE_LEGACY_KERAS=1 is set, and tf-keras is not installed" in message
    assert "unset TF_USE_LEGACY_KERAS" in message


@pytest.mark.only_2_15
def test_2_15_beside_keras_3(run_code):
    message = _message(run_code, _installed(keras="3.4.0"))
    assert "Keras 3.4.0 is installed with TensorFlow 2.15" in message and "pip install 'keras==2.15.*'" in message


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (_installed(tensorflow="2.14.1"), "TensorFlow 2.14.1 is older than what estimator_pipeline supports"),
        (
            _installed(**dict.fromkeys((n.replace("-", "_") for n in versions.TENSORFLOW_DISTRIBUTIONS), None)),
            "TensorFlow is not installed in this Python",
        ),
    ],
    ids=["too old", "none"],
)
def test_tensorflow_that_is_not_there(lines, says, run_code):
    message = _message(run_code, lines + "\nassert 'tensorflow' not in sys.modules")
    assert message.startswith(says) and "supported" in message and "2.15 to 2.21" in message


def test_versions_are_read_to_the_minor():
    assert versions.minor("2.21.0rc1") == (2, 21) and versions.minor("2.9") == (2, 9)
    with pytest.raises(CompatError, match="cannot be read"):
        versions.minor("nightly")


# What it costs not to use it -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        "import estimator_pipeline",
        "from estimator_pipeline import compat, errors, cluster; compat.status()",
        "import estimator_pipeline.launch, estimator_pipeline.compat.script_runner.runner",
        "import sys; sys.argv = ['x', '--help']\n"
        "from estimator_pipeline.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code",
        "import sys; sys.argv = ['x', '--version']\n"
        "from estimator_pipeline.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code",
    ],
    ids=["package", "floor 0 and 1", "launch", "--help", "--version"],
)
def test_imports_nothing_heavy(lines, run_code):
    """The half second of `--help` is made of imports: none of these may come back."""
    heavy = ("tensorflow", "tensorflow_estimator", "keras", "tf_keras", "numpy", "pandas", "sklearn", "google")
    out = run_code(lines + "\nimport sys; print('\\nLOADED', *{name.split('.')[0] for name in sys.modules})")
    loaded = out[out.index("LOADED") :].split()[1:]
    assert "estimator_pipeline" in loaded
    assert not set(heavy) & set(loaded)


def test_public_names_are_all_there():
    import estimator_pipeline

    assert set(compat.__all__) == {
        "Patch",
        "Status",
        "InstallStep",
        "install",
        "keras_generation",
        "status",
        "tensorflow",
        "use_keras_3",
    }
    assert {"compat", "errors"} <= set(dir(estimator_pipeline))
