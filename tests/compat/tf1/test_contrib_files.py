"""TensorFlow 1.15's own files of tf.contrib: how they are brought, checked and run."""

from __future__ import annotations

import textwrap
import zipfile

import pytest
from typer.testing import CliRunner

from estimator_pipeline.cli import main as cli
from estimator_pipeline.compat.tf1 import contrib_wheel
from estimator_pipeline.compat.tf1.contrib import files, modules_of_old
from estimator_pipeline.errors import CompatError

_EXEC = ["-m", "estimator_pipeline", "exec", "--tf1"]


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with two files of tf.contrib, that passes for the one; it is installed to tmp_path/cache."""
    contents = {"__init__.py": b"", "crf/__init__.py": b"x = 1\n"}
    path = tmp_path / "tensorflow.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"tensorflow_core/contrib/{name}", content)
        archive.writestr("tensorflow_core/contrib/crf/_crf.so", b"not wanted")
        archive.writestr("tensorflow_core/python/x.py", b"not wanted")
    monkeypatch.setattr(contrib_wheel, "DIGEST", contrib_wheel.digest(contents))
    monkeypatch.delenv(files.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files.installed.cache_clear()
    yield path
    files.installed.cache_clear()


def test_install_takes_the_python_files_alone(wheel, tmp_path):
    assert not files.installed()
    done = CliRunner().invoke(cli.app, ["contrib", "install", "--wheel", str(wheel)], catch_exceptions=False)
    folder = tmp_path / "cache/estimator_pipeline/tensorflow-1.15.5/contrib"
    assert done.exit_code == 0 and str(folder) in done.stdout and "Apache License 2.0" in done.stdout
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert found == ["__init__.py", "crf/__init__.py"] and files.installed()
    # Once more, over what is there; nothing else is left beside it.
    (folder / "crf/__init__.py").write_text("changed")
    assert contrib_wheel.install(wheel) == folder == files.folder()
    assert (folder / "crf/__init__.py").read_text() == "x = 1\n"
    assert [path.name for path in folder.parent.iterdir()] == ["contrib"]


def test_another_wheel_is_refused(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(contrib_wheel, "DIGEST", "0" * 64)
    with pytest.raises(CompatError) as error:
        contrib_wheel.install(wheel)
    assert error.value.code == "file/unreadable" and "2 files of tf.contrib" in error.value.found
    (tmp_path / "no.whl").write_bytes(b"no zip")
    for path, code in ((tmp_path / "no.whl", "file/unreadable"), (tmp_path / "none.whl", "file/not-found")):
        with pytest.raises(CompatError) as error:
            contrib_wheel.install(path)
        assert error.value.code == code
    assert not (tmp_path / "cache").exists()


def test_where_pip_finds_nothing(wheel, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(CompatError) as error:
        contrib_wheel.install()
    assert error.value.code == "tensorflow/not-installed" and "--wheel" in error.value.hint


def test_modules_of_old():
    found = modules_of_old()
    assert {"layers", "seq2seq.python.ops.helper", "gan"} <= found and len(found) > 800


_FILES = {
    "__init__.py": "raise AssertionError('never run: it imports everything')",
    "recurrent/__init__.py": "",
    "recurrent/python/recurrent_api.py": """
        from tensorflow.contrib.recurrent.python.ops.functional_rnn import *
        from tensorflow.python.util.all_util import remove_undocumented
        remove_undocumented(__name__, [])
    """,
    "recurrent/python/__init__.py": "",
    "recurrent/python/ops/__init__.py": "",
    "recurrent/python/ops/functional_rnn.py": """
        import tensorflow as tf
        from tensorflow.contrib.layers.python.layers import layers as contrib_layers
        from tensorflow.contrib.recurrent.ops import gen_recurrent_ops
        from tensorflow.contrib.util import loader
        from tensorflow.no_such_package import thing
        from tensorflow.python.framework import ops, no_such_module
        from tensorflow.python.ops.array_ops import concat, no_such_name
        from tensorflow.python.platform import resource_loader

        _library = loader.load_op_library(resource_loader.get_path_to_datafile("_no.so"))

        class Subclass(no_such_name):
            pass

        def functional_rnn(x):
            return concat([tf.to_float(x), x], 0)

        def by_operation():
            return gen_recurrent_ops.recurrent(1)

        def by_library():
            return _library.run(1)
    """,
    "recurrent/ops/gen_recurrent_ops.py": "raise AssertionError('never run')",
    # A module of a package that imports the package, which has the module's names.
    "factorization/__init__.py": "from tensorflow.contrib.learn.python.learn.estimators import DNNClassifier",
    "learn/__init__.py": "from tensorflow.contrib.learn.python.learn import *",
    "learn/python/__init__.py": "from tensorflow.contrib.learn.python.learn import *",
    "learn/python/learn/__init__.py": """
        from tensorflow.contrib.learn.python.learn.estimators import *
        from tensorflow.contrib.learn.python.learn.monitors import *
    """,
    "learn/python/learn/estimators/__init__.py": """
        from tensorflow.contrib.learn.python.learn.estimators.dnn import DNNClassifier
    """,
    "learn/python/learn/estimators/dnn.py": """
        from tensorflow.contrib.learn.python.learn import monitors as monitor_lib

        class DNNClassifier:
            pass
    """,
    "learn/python/learn/monitors.py": "",
    "eager/__init__.py": "",
    "eager/python/__init__.py": "",
    "eager/python/tfe.py": "from tensorflow.contrib.eager.python import metrics",
    "eager/python/metrics.py": "Mean = 'mean'",
}


@pytest.mark.nightly
def test_a_file_runs_on_today_s_tensorflow(run_warm, tmp_path):
    """Names of it, deep and from its package; what it imports and is gone raises when it is used, not before."""
    for name, text in _FILES.items():
        path = tmp_path / "contrib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    (tmp_path / "prog.py").write_text(
        textwrap.dedent(
            """
            import tensorflow as tf
            from tensorflow.contrib import recurrent
            from tensorflow.contrib.recurrent.python.ops import functional_rnn
            from tensorflow.contrib.recurrent.python.ops.functional_rnn import Subclass

            assert recurrent.functional_rnn is functional_rnn.functional_rnn is tf.contrib.recurrent.functional_rnn
            assert Subclass is recurrent.Subclass and recurrent.functional_rnn.__module__ == functional_rnn.__name__
            print(recurrent.functional_rnn(tf.zeros([2])).shape, "functional_rnn" in dir(recurrent))
            for use in (recurrent.by_operation, recurrent.by_library):
                try:
                    use()
                except Exception as error:
                    print(type(error).__name__, error.args[0].split(" [")[0].split("/")[-1])
            print(hasattr(recurrent, "nothing"))
            print(tf.contrib.factorization.DNNClassifier is tf.contrib.learn.DNNClassifier)
            import tensorflow.contrib.eager as tfe
            print(tfe.metrics.Mean, tfe.Variable.__name__)
            for package in (tf.contrib.learn, tf.contrib.learn.datasets):
                print(hasattr(package, "nothing"))
            """
        )
    )
    done = run_warm([*_EXEC, tmp_path / "prog.py"], cwd=tmp_path, env={files.VARIABLE: str(tmp_path / "contrib")})
    assert done.stdout.splitlines() == [
        "(4,) True",
        "CompatError tensorflow.contrib.recurrent.ops.gen_recurrent_ops.recurrent is required here, and does not exist",
        "CompatError _no.so.run is required here, and does not exist",
        "False",
        "True",
        "mean ResourceVariable",
        "False",
        "False",
    ], done.stderr[-3000:]
