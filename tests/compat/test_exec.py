"""`estimator-pipeline exec`: a program cannot tell that it was not `python` that started it.

Wherever a program needs no tf.estimator, the same program is run by `python` too, and the two must agree.
"""

from __future__ import annotations

import json
import sys
import textwrap
import zipfile

import pytest
from typer.testing import CliRunner

from estimator_pipeline import compat
from estimator_pipeline.cli import main as cli
from estimator_pipeline.compat.script_runner import children, runner

_EXEC = ["-m", "estimator_pipeline", "exec"]


@pytest.fixture
def both(run_python, tmp_path):
    """Runs `python ARGS` and `exec ARGS` in the same folder with the same input."""

    def run(*args, **options):
        options.setdefault("cwd", tmp_path)
        return run_python(args, **options), run_python([*_EXEC, *args], **options)

    return run


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def _agree(plain, executed):
    assert (executed.returncode, executed.stdout) == (plain.returncode, plain.stdout), executed.stderr


# What the program sees --------------------------------------------------------------------------------


@pytest.mark.gate("file")
@pytest.mark.parametrize("form", ["file", "module", "package", "directory", "zip"])
def test_program_sees_what_python_shows_it(form, both, tmp_path, programs):
    """argv with options of its own, `__main__`, `__file__`, sys.path[0], stdin, pickles, atexit, spawned children."""
    text = (programs / "main_is_mine.py").read_text()
    for name in ("prog.py", "inner/script.py", "pack/__main__.py", "folder/__main__.py"):
        _write(tmp_path / name, text)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.write(tmp_path / "prog.py", "__main__.py")
    given = {
        "file": ["inner/script.py", "--flag", "-m", "x", "--help", "--", "spawn"],
        "module": ["-m", "prog", "--flag", "-m", "x", "spawn"],
        "package": ["-m", "pack", "--help"],
        "directory": ["folder", "--version"],
        "zip": ["packed.zip", "a b"],
    }[form]
    plain, executed = both(*given, stdin="typed in")
    assert plain.returncode == 0 and "at exit True 5" in plain.stdout, plain.stderr
    assert ("spawned [2, 4]" in plain.stdout) == ("spawn" in given)
    _agree(plain, executed)


@pytest.mark.nightly
def test_app_of_absl_with_flags_and_exit_code(both, programs):
    plain, executed = both(programs / "app_with_flags.py", "--steps=3", "--name", "x", "rest")
    assert plain.stdout == "main ['rest'] 3 x\nat exit __main__\n" and plain.returncode == 3
    _agree(plain, executed)


@pytest.mark.nightly
def test_app_of_tensorflow_1(run_python, programs):
    """tf.compat.v1.app.run() takes `main` from `__main__`; here tf.compat.v1 is the program's `tf`."""
    done = run_python([*_EXEC, programs / "app_of_tensorflow.py", "--steps", "7", "--model_dir", "/m"], timeout=120)
    assert (done.returncode, done.stdout) == (0, "main /m 7 False\n"), done.stderr


def test_the_log_has_each_line_once_and_none_of_tensorflow_s_start(run_python, tmp_path):
    """absl adds its handler to the root logger in `app.run`; a process, since the lines come from C++."""
    program = _write(
        tmp_path / "program.py",
        """
        import tensorflow as tf

        def main(_):
            tf.estimator.EvalSpec(lambda: None)
            tf.logging.warning("of the program")
            assert tf.constant(1).numpy() == 1

        # Raises an error if anything has created TensorFlow's context before.
        tf.enable_eager_execution(config=tf.ConfigProto(intra_op_parallelism_threads=1))
        tf.app.run(main)
        """,
    )
    done = run_python([*_EXEC, "--tf1", program], timeout=120)
    assert done.returncode == 0 and done.stderr.splitlines() == ["WARNING:tensorflow:of the program"], done.stderr


# How it ends --------------------------------------------------------------------------------------------

_RAISES = """
    import sys

    def inner():
        return {}["missing"]

    def outer():
        try:
            inner()
        except KeyError as error:
            raise RuntimeError("no such luck") from error

    print("before", flush=True)
    outer()
"""

_OWN_HOOK = """
    import sys

    def hook(kind, error, traceback):
        print("hook", kind.__name__, error, traceback.tb_frame.f_code.co_name, traceback.tb_next)

    sys.excepthook = hook
    raise ValueError("mine")
"""


@pytest.mark.gate("raises")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("import sys; sys.exit(-1)", 255),
        ("import sys; sys.exit('the text')", 1),
        (_RAISES, 1),
        (_OWN_HOOK, 1),
        ("x = 1\nprint('never'\n", 1),
    ],
    ids=["exit -1", "exit text", "raises", "own hook", "no syntax"],
)
def test_exit_code_and_traceback_are_python_s(body, code, both, tmp_path):
    _write(tmp_path / "prog.py", body)
    plain, executed = both("prog.py")
    assert plain.returncode == code
    _agree(plain, executed)
    # TensorFlow may have said something before; the program's own words, traceback included, come last, unchanged.
    assert executed.stderr.endswith(plain.stderr)
    assert "estimator_pipeline" not in executed.stderr


@pytest.fixture
def in_this_process(monkeypatch):
    """`run_script` leaves nothing of the program in this process."""
    monkeypatch.setattr(compat, "install", lambda patches, tf1: None)
    monkeypatch.setattr(children, "reach", lambda environ: None)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in {"__main__", "__mp_main__"} & sys.modules.keys():
        monkeypatch.setitem(sys.modules, name, sys.modules[name])


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [("", 0, ""), ("0", 0, ""), ("3", 3, ""), ("-1", 255, ""), ("'the text'", 1, "the text\n")],
)
def test_what_a_program_gives_to_exit(given, code, says, in_this_process, tmp_path, capsys):
    """The same, in this process."""
    path = _write(tmp_path / "prog.py", f"import sys\nsys.exit({given})\n")
    assert (runner.run_script(str(path)), capsys.readouterr().err) == (code, says)


def test_warnings_of_this_package_are_events_for_the_launcher(in_this_process, monkeypatch, tmp_path):
    """Also those of a program that trains with Keras, and so with no engine of this package."""
    monkeypatch.setenv("ESTIMATOR_PIPELINE_PROGRESS", str(tmp_path / "progress"))
    text = "import logging\nlogging.getLogger('tensorflow.estimator_pipeline').warning('records twice')\n"
    assert runner.run_script(str(_write(tmp_path / "prog.py", text))) == 0
    (event,) = map(json.loads, (tmp_path / "progress").read_text().splitlines())
    assert (event["event"], event["text"]) == ("warning", "records twice")


def test_interrupt_ends_as_a_shell_sees_it(run_python, tmp_path):
    _write(tmp_path / "prog.py", "def work():\n    raise KeyboardInterrupt\n\nwork()\n")
    done = run_python([*_EXEC, "prog.py"], cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr.rstrip().endswith("KeyboardInterrupt") and "in work" in done.stderr
    assert "estimator_pipeline" not in done.stderr


@pytest.mark.nightly
def test_traceback_of_a_module_begins_with_its_own_line(run_python, tmp_path):
    _write(tmp_path / "mod.py", "def work():\n    raise ValueError('mine')\n\nwork()\n")
    done = run_python([*_EXEC, "-m", "mod"], cwd=tmp_path)
    assert done.returncode == 1
    traceback = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert traceback[1] == f'  File "{tmp_path}/mod.py", line 4, in <module>'
    assert traceback[-1] == "ValueError: mine" and "runpy" not in done.stderr


@pytest.mark.nightly
def test_module_that_is_not_there(both):
    plain, executed = both("-m", "no_such_module")
    assert plain.returncode == executed.returncode == 1
    assert executed.stderr.endswith(plain.stderr) and "No module named no_such_module" in plain.stderr


# What it starts ------------------------------------------------------------------------------------------


_STARTS = """
    import os
    import subprocess
    import sys

    command = [sys.executable, *sys.argv[1:]]
    print(subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout, end="")
"""
_CHILD = """
    import sys
    print("sitecustomize" in sys.modules and getattr(sys.modules["sitecustomize"], "MINE", None), sys.path[0])
    import tensorflow as tf
    print(tf.estimator.Estimator.__name__, sys.modules["estimator_pipeline.compat"].status().steps[0].name)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("mine", [True, False])
def test_a_process_that_the_program_starts_has_tf_estimator(mine, run_python, tmp_path, native):
    """By subprocess; and a sitecustomize of the user's own is run as ever."""
    _write(tmp_path / "prog.py", _STARTS)
    _write(tmp_path / "inner/child.py", _CHILD)
    env = {}
    if mine:
        _write(tmp_path / "site/sitecustomize.py", "MINE = 'mine'")
        env["PYTHONPATH"] = str(tmp_path / "site")
    done = run_python([*_EXEC, "prog.py", "inner/child.py"], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.split(" ")[1] == str(tmp_path / "inner") and (first.split(" ")[0] == "mine") is mine
    assert second.startswith("Estimator") and second.endswith("keras-symbols" if native else "keras-resolved")


@pytest.mark.nightly
@pytest.mark.parametrize("variables", [{}, {"ESTIMATOR_PIPELINE_TF1": "1"}], ids=["2", "1"])
def test_a_command_of_ours_that_the_program_starts(variables, run_python, tmp_path):
    """`exec` within `exec`, once more, with TensorFlow 1's names: nothing is installed twice at once."""
    _write(tmp_path / "prog.py", _STARTS)
    _write(tmp_path / "child.py", "import tensorflow as tf\nprint(hasattr(tf, 'placeholder'), tf.estimator.Estimator)")
    done = run_python([*_EXEC, "prog.py", *_EXEC, "prog.py", "child.py"], cwd=tmp_path, env=variables)
    assert done.stdout.startswith(f"{bool(variables)} <class"), done.stderr


def test_a_process_without_this_package_is_left_alone(run_python, tmp_path):
    """Another Python, or one that imports nothing: it starts as ever, and loads nothing of ours."""
    environ: dict[str, str] = {"PYTHONPATH": str(tmp_path)}
    children.reach(environ)
    children.reach(environ)
    assert environ["PYTHONPATH"].split(":") == [children.FOLDER, str(tmp_path)]
    text = "import sys; print([name for name in sys.modules if name.startswith('estimator_pipeline')], sys.path[1])"
    done = run_python(["-c", text], env=environ)
    assert (done.stdout, done.stderr) == (f"[] {tmp_path}\n", "")
    done = run_python(
        ["-S", "-c", "import sitecustomize; import sys; print(len(sys.meta_path))"], env=environ, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("3\n", "")
    left = {children.VARIABLE: "0"}
    children.reach(left)
    assert left == {children.VARIABLE: "0"}


# What it refuses, and how it reads its own arguments -------------------------------------------------------


def _refused(run_python, *args, **options):
    done = run_python([*_EXEC, *args], **options)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("error:") == 1, done.stderr
    assert "Traceback" not in done.stderr and "hint: " in done.stderr
    return done.stderr


def test_missing_file_is_one_message(run_python, tmp_path):
    message = _refused(run_python, "prog.py", "--flag", cwd=tmp_path)
    assert "'prog.py' does not exist" in message and str(tmp_path) in message


@pytest.mark.since_2_16
def test_tf_keras_of_another_version_is_one_message(run_python, tmp_path):
    _write(tmp_path / "prog.py", "print('never')")
    info = tmp_path / "fake" / "tf_keras-2.14.0.dist-info"
    _write(info / "METADATA", "Metadata-Version: 2.1\nName: tf-keras\nVersion: 2.14.0\n")
    message = _refused(run_python, "prog.py", cwd=tmp_path, env={"PYTHONPATH": str(info.parent)})
    assert "found: tf-keras 2.14.0" in message and "pip install 'tf-keras==" in message


@pytest.mark.parametrize(
    ("given", "called"),
    [
        (["p.py"], ("script", "p.py", [])),
        (["p.py", "--help"], ("script", "p.py", ["--help"])),
        (["p.py", "--flag", "-m", "x", "--", "y"], ("script", "p.py", ["--flag", "-m", "x", "--", "y"])),
        (["--", "p.py", "-x"], ("script", "p.py", ["-x"])),
        (["-m", "mod"], ("module", "mod", [])),
        (["-m", "mod", "-m", "x", "--help"], ("module", "mod", ["-m", "x", "--help"])),
        (["-mmod", "a"], ("module", "mod", ["a"])),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_what_belongs_to_the_program(given, called, monkeypatch):
    seen = []
    monkeypatch.setattr(runner, "run_script", lambda path, args, patches, tf1: seen.append(("script", path, args)) or 5)
    monkeypatch.setattr(runner, "run_module", lambda name, args, patches, tf1: seen.append(("module", name, args)) or 5)
    result = CliRunner().invoke(cli.app, ["exec", *given])
    assert seen == [called] and result.exit_code == 5


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "exec needs a program"),
        (["-m"], "exec -m needs a module"),
        (["--verbose", "p.py"], "has no option '--verbose'"),
    ],
)
def test_arguments_that_cannot_be(given, says, monkeypatch):
    monkeypatch.setattr(runner, "run_script", lambda *_: pytest.fail("ran"))
    result = CliRunner().invoke(cli.app, ["exec", *given])
    assert result.exit_code == 2 and says in result.output


@pytest.mark.parametrize("option", ["--patches", "--repairs"])
def test_patches_by_the_new_and_the_old_option(option, monkeypatch):
    """Submitted scripts hold the old one."""
    seen = []
    monkeypatch.setattr(runner, "run_script", lambda path, args, patches, tf1: seen.append(patches) or 0)
    assert CliRunner().invoke(cli.app, ["exec", f"{option}=-sigterm", "p.py"]).exit_code == 0
    assert seen == ["-sigterm"]


def test_help_is_of_exec_itself():
    result = CliRunner().invoke(cli.app, ["exec", "--help"])
    assert result.exit_code == 0 and "Run a program that uses tf.estimator" in result.output
