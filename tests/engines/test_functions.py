"""Functions of one's own by their place: found, loaded once as `python FILE.py` would, and what goes wrong told."""

from __future__ import annotations

import os
import sys

import pytest

from estimator_pipeline.errors import ConfigError, InputError
from estimator_pipeline.job.user_code import call_function, describe_error, load_function, place_in, refusal_in


@pytest.fixture(autouse=True)
def _imports_as_they_were(monkeypatch):
    """What a test loads is of no other test's program."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def refused(reference):
    with pytest.raises(ConfigError) as error:
        load_function(reference, field="model.function")
    assert "Traceback" not in str(error.value)
    return error.value


# What is imported from where ------------------------------------------------------------------------------------


def test_a_file_imports_what_lies_beside_it_also_when_it_is_called(tmp_path):
    write(
        tmp_path / "sib",
        own_m="import own_beside\n\ndef at_once():\n    return own_beside.WHO\n\n"
        "def later():\n    import own_lazy\n    return own_lazy.WHO\n",
        own_beside="WHO = 'beside'\n",
        own_lazy="WHO = 'lazy'\n",
    )
    at_once = load_function(f"{tmp_path}/sib/own_m.py:at_once", field="f")
    later = load_function(f"{tmp_path}/sib/own_m.py:later", field="f")
    assert sys.path[0] == str(tmp_path / "sib") and sys.path.count(sys.path[0]) == 1
    assert (at_once(), later()) == ("beside", "lazy")
    assert at_once.__globals__ is later.__globals__, "a program is loaded once"


def test_a_relative_file_begins_at_the_working_directory(tmp_path, monkeypatch):
    write(tmp_path / "sib", own_r="import own_next\n\ndef f():\n    return own_next.WHO\n", own_next="WHO = 'next'\n")
    monkeypatch.chdir(tmp_path)
    assert load_function("sib/own_r.py:f", field="f")() == "next"
    assert sys.path[0] == str(tmp_path / "sib")


def test_a_link_is_followed_as_python_does(tmp_path):
    write(tmp_path / "real", own_l="import own_linked\n\ndef f():\n    return 1\n", own_linked="")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "own_l.py").symlink_to(tmp_path / "real" / "own_l.py")
    assert load_function(f"{tmp_path}/links/own_l.py:f", field="f")() == 1


def test_a_module_of_the_working_directory(tmp_path, monkeypatch):
    """Also for an installed command, whose own folder is the first on the path."""
    write(tmp_path / "own_pkg", __init__="", mod="def f():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/bin", *(one for one in sys.path if one not in ("", os.getcwd()))])
    assert load_function("own_pkg.mod:f", field="f")() == 3


def test_two_files_of_one_name_in_two_folders(tmp_path):
    first = write(tmp_path / "a", own_same="class K:\n    pass\n\ndef f():\n    return 'a', K\n")
    second = write(tmp_path / "b", own_same="class K:\n    pass\n\ndef f():\n    return 'b', K\n")
    loaded = [load_function(f"{folder}/own_same.py:f", field="f") for folder in (first, second, first)]
    told = [function() for function in loaded]
    assert [name for name, _ in told] == ["a", "b", "a"] and loaded[0] is loaded[2]
    for name, kind in told:
        # Whatever looks a class's module up finds the one that it is from.
        assert sys.modules[kind.__module__].f()[0] == name


def test_two_modules_of_one_name_beside_two_files(tmp_path):
    """A process has one module of a name: the second file would work with the first one's."""
    a = write(tmp_path / "a", own_first="import own_shared\n\ndef f(): ...\n", own_shared="WHO = 'a'\n")
    b = write(
        tmp_path / "b",
        own_second="import own_between\n\ndef f(): ...\n",
        own_between="def g():\n    import own_shared\n",
        own_shared="WHO = 'b'\n",
    )
    load_function(f"{a}/own_first.py:f", field="f")
    error = refused(f"{b}/own_second.py:f")
    assert "imports 'own_shared', and a different module of that name is loaded" in error.what
    assert f"beside it {b}/own_shared.py; loaded {a}/own_shared.py" == error.found
    # One that is imported later counts as well.
    c = write(tmp_path / "c", own_third="def f():\n    import own_later\n", own_later="")
    d = write(tmp_path / "d", own_fourth="import own_later\n\ndef f(): ...\n", own_later="")
    load_function(f"{c}/own_third.py:f", field="f")
    assert "imports 'own_later'" in refused(f"{d}/own_fourth.py:f").what


def test_a_file_with_the_name_of_a_library(tmp_path):
    import json

    write(tmp_path, json="def f():\n    return 'own'\n")
    assert load_function(f"{tmp_path}/json.py:f", field="f")() == "own"
    assert sys.modules["json"] is json


def test_a_file_that_was_changed_is_loaded_anew(tmp_path):
    write(tmp_path, own_changed="def f():\n    return 1\n")
    reference = f"{tmp_path}/own_changed.py:f"
    assert load_function(reference, field="f")() == 1
    write(tmp_path, own_changed="def f():\n    return 'two'\n")
    assert load_function(reference, field="f")() == "two"


def test_a_method_of_a_class(tmp_path):
    write(tmp_path, own_class="class Data:\n    @staticmethod\n    def f():\n        return 5\n")
    assert load_function(f"{tmp_path}/own_class.py:Data.f", field="f")() == 5


# What goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax", 2),
        ("import own_not_there\n", "ModuleNotFoundError: No module named 'own_not_there'", 1),
        ("from os import nothing_such\n", "ImportError: cannot import name 'nothing_such'", 1),
        ("\n\n1 / 0\n", "ZeroDivisionError: division by zero", 3),
        ("import json\n\njson.loads('{')\n", "JSONDecodeError: Expecting property name", 3),
        ("def g():\n    raise ValueError('two\\nlines')\n\ng()\n", "ValueError: two", 2),
        ("raise ValueError\n", "ValueError", 1),
    ],
)
def test_an_error_in_a_file_is_one_message_with_its_line(tmp_path, text, what, line):
    write(tmp_path, own_wrong=text)
    error = refused(f"{tmp_path}/own_wrong.py:f")
    assert error.what.startswith(f"model.function: {tmp_path}/own_wrong.py cannot be loaded: {what}")
    assert error.found.startswith(f"{tmp_path}/own_wrong.py, line {line}: ") and "\n" not in error.found
    assert error.exit_code == 2 and error.__cause__ is not None
    assert "own_wrong" not in sys.modules, "what is half loaded is nobody's module"


def test_an_error_in_a_module_beside_it_is_told_where_it_is(tmp_path, monkeypatch):
    write(tmp_path, own_outer="import own_inner\n", own_inner="x = 1\nundefined\n")
    assert refused(f"{tmp_path}/own_outer.py:f").found == f"{tmp_path}/own_inner.py, line 2: undefined"
    monkeypatch.chdir(tmp_path)
    error = refused("own_outer:f")
    assert error.what == "model.function: own_outer cannot be loaded: NameError: name 'undefined' is not defined"


def test_a_program_that_ends_the_process(tmp_path):
    write(tmp_path, own_exits="import sys\nsys.exit(2)\n")
    error = refused(f"{tmp_path}/own_exits.py:f")
    assert "exits the process when it is loaded" in error.what and "line 2" in error.found and "__main__" in error.hint


def test_a_message_of_this_package_stays_as_it_is(tmp_path):
    write(tmp_path, own_told="from estimator_pipeline.errors import InputError\nraise InputError('no data')\n")
    with pytest.raises(InputError, match=r"^no data$"):
        load_function(f"{tmp_path}/own_told.py:f", field="f")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nothing", "'nothing' does not name a function"),
        (":f", "':f' does not name a function"),
        ("own.py:", "'own.py:' does not name a function"),
        ("gone.py:f", "the file 'gone.py' does not exist"),
        ("folder.py:f", "the file 'folder.py' is not a file"),
        ("own_gone.mod:f", "the module 'own_gone.mod' cannot be found"),
        ("own.py:g", "own.py has no function 'g'"),
        ("own.py:f.g", "own.py has no function 'f.g'"),
        ("own.py:VALUE", "own.py has no function 'VALUE'"),
    ],
)
def test_a_place_where_nothing_is(tmp_path, monkeypatch, reference, says):
    write(tmp_path, own="VALUE = 1\n\ndef f(): ...\n")
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)
    error = refused(reference)
    assert error.code == "job/bad-function" and f"model.function: {says}" in error.what
    assert reference != "own.py:g" or error.found == "functions: f"


def test_functions_that_are_called(tmp_path):
    write(
        tmp_path,
        own_called="def good(a=1, **more):\n    return a\n\ndef needs(a, b=2):\n    return a\n\n"
        "def raises():\n    return {}['key']\n\nclass Made:\n    pass\n",
    )

    def call(name):
        reference = f"{tmp_path}/own_called.py:{name}"
        return call_function(load_function(reference, field="f"), reference=reference, field="keras.callbacks")

    assert call("good") == 1 and type(call("Made")).__name__ == "Made"
    with pytest.raises(ConfigError) as error:
        call("needs")
    assert str(error.value).startswith(f"keras.callbacks: {tmp_path}/own_called.py:needs is called without arguments: ")
    assert error.value.found == "needs(a, b=2)"
    with pytest.raises(ConfigError) as error:
        call("raises")
    assert "raises fails: KeyError: 'key'" in error.value.what
    assert error.value.found == f"{tmp_path}/own_called.py, line 8: return {{}}['key']"


def test_a_place_that_is_nobodys():
    assert place_in(ValueError("never raised")) is None


def test_what_autograph_has_made_is_nobodys_place(tmp_path):
    """Of a function that it has written anew the place is the line that calls it."""
    path = tmp_path / "__autograph_generated_file1a2b.py"
    path.write_text("def tf__call():\n    raise ValueError('shapes')\n")
    code = compile(path.read_text(), str(path), "exec")
    names = {}
    exec(code, names)
    with pytest.raises(ValueError, match="shapes") as raised:
        names["tf__call"]()
    place = place_in(raised.value)
    assert place is not None and "autograph" not in place and "test_functions.py" in place


TRACED = """in user code:

    File "/home/me/train.py", line 58, in <lambda>  *
        lambda number: tf.data.Dataset.range(tf.where(number == 40, 2, 1))
    File "/usr/lib/python3/site-packages/keras/layer.py", line 3, in call
        else:

    ValueError: count: Tensor conversion requested dtype int64 for Tensor with dtype int32
"""


def test_a_refusal_that_autograph_has_made_an_error_of_its_own_of():
    def wrapped(text):
        try:
            try:
                raise ConfigError("a list is no model")
            except ConfigError as inner:
                raise KeyError("on the way") from inner
        except KeyError:
            raise RuntimeError(text)

    for text, refused in [(TRACED, "a list is no model"), ("of another kind", "None")]:
        with pytest.raises(RuntimeError) as raised:
            wrapped(text)
        assert str(refusal_in(raised.value)) == refused
    assert refusal_in(ValueError(TRACED)) is None


def test_what_was_raised_while_a_function_was_traced():
    """TensorFlow's message begins with the stack; the place is the last one that is somebody's own."""
    error = ValueError(TRACED)
    expected = "ValueError: count: Tensor conversion requested dtype int64 for Tensor with dtype int32"
    assert describe_error(error) == expected
    assert place_in(error) == "/home/me/train.py, line 58"
    assert describe_error(ValueError("in user code:\n\n    and nothing of the kind")) == "ValueError: in user code:"
    assert describe_error(ValueError("in user code:\n\n    KeyError: 'age'\n")) == "KeyError: 'age'", "without a stack"
