"""tools/moved_names: what becomes of a name, by the code of small planted trees; and the table it has written."""

from __future__ import annotations

import re
import sys

import pytest

from estimator_pipeline.compat.moved_names.table import FILE, MovedNamesTable
from tests.support.processes import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from moved_names import collecting, manual, page, table, trees
from moved_names.__main__ import PAGE

sys.path.remove(str(ROOT / "tools"))

FUNCTION = """
def {name}(values, axis=0):
    found = [value.take(axis) for value in values if value is not None]
    return sum(found) / max(len(found), 1)
"""
STAR = "from tensorflow.python.ops.old import *\n"
LAZY = "lib = LazyLoader('lib', globals(), 'tensorflow.python.lib')\n"
CLASS = """
{decorator}
class {name}(Base):
    def __init__(self, units, rate=0.5):
        self.units, self.rate = units, rate
        self.kernel, self.bias = None, None
    def call(self, inputs):
        return self.multiply(inputs, self.kernel) + self.bias * self.rate
"""


def plant(folder, versions, keras):
    """Trees of these files, each version `{module: text}` below tensorflow/python."""
    found = []
    for version, files in [*versions.items(), ("keras", keras)]:
        root = folder / version / ("tf_keras/src" if version == "keras" else "tensorflow/python")
        for name, text in files.items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            for above in file.relative_to(root).parents:
                if not (root / above / "__init__.py").exists():
                    (root / above / "__init__.py").touch()
        package = "tf_keras.src" if version == "keras" else "tensorflow.python"
        found.append(trees.read(folder / version, version, package))
    return found[:-1], found[-1]


@pytest.fixture
def became(tmp_path, monkeypatch):
    """`became(versions, keras={}, compiled=())` -> Names, of planted trees; the last but one is 2.15."""

    def follow(versions, keras=None, compiled=()):
        for one in ("NAMES", "MODULES"):
            monkeypatch.setattr(manual, one, {})
        return collecting.names(*plant(tmp_path, versions, keras or {"x.py": ""}), list(compiled))

    return follow


def home(names, dotted):
    module, _, name = f"tensorflow.python.{dotted}".rpartition(".")
    homes = [".".join(one) for one in table.homes_of(names, (module, name))]
    return homes[0].removeprefix("tensorflow.python.") if homes else None


def test_what_becomes_of_names(became):
    mean, other = FUNCTION.format(name="mean"), "\ndef unlike(a):\n    return {a: 1, 2: [3, 4, 5], 6: a.b.c.d.e}\n"
    names = became(
        {
            "2.14": {
                "ops/old.py": mean + "LIMIT = 3\nalias = mean\ndef here(): return 1\n",
                "ops/shows.py": STAR + "from tensorflow.python.ops.old import mean as m\n",
                "ops/lost.py": other,
                "ops/layer.py": CLASS.format(name="Layer", decorator="@tf_export(v1=['layers.Layer'])"),
            },
            "2.15": {
                "ops/old.py": "def here(): return 1\n",
                "ops/new.py": mean,
                "ops/shows.py": "",
                "ops/away.py": "def unlike(path):\n    return open(path).read()\n",
            },
            "2.16": {
                "ops/old.py": "def here(): return 1\n",
                "ops/newest.py": FUNCTION.format(name="average"),
                "ops/shows.py": "",
            },
        },
        keras={"layers/core.py": CLASS.format(name="Layer", decorator="@tf_export(v1=['layers.Layer'])")},
    )
    assert home(names, "ops.old.mean") == "ops.newest.average"
    assert [table.homes_of(names, ("tensorflow.python.ops.old", "mean"))[1][0]] == ["tensorflow.python.ops.new"]
    assert home(names, "ops.old.alias") == home(names, "ops.shows.m") == home(names, "ops.shows.mean")
    assert home(names, "ops.shows.here") == "ops.old.here"
    assert home(names, "ops.layer.Layer") == "tf_keras.src.layers.core.Layer"
    # A function of the same name and other code is not the same thing.
    assert home(names, "ops.lost.unlike") is None
    trace = names.traces["tensorflow.python.ops.lost", "unlike"]
    assert (trace.since, trace.how) == ("2.15", "gone")
    assert ("tensorflow.python.ops.old", "here") not in names.traces
    assert names.modules_gone["tensorflow.python.ops.layer"] == "2.15"


def test_bindings_that_are_no_definitions_here(became):
    """Lazy modules, names from outside, generated messages: there all the same, or none of the tree's."""
    names = became(
        {
            "2.14": {
                "a.py": LAZY + "get = lib.get\nimport numpy as np\n",
                "lib.py": FUNCTION.format(name="get"),
                "m_pb2.py": "Message = make()\n",
            },
            "2.15": {"lib.py": FUNCTION.format(name="get"), "a.py": "from tensorflow.python import _compiled as get\n"},
            "2.16": {"lib.py": FUNCTION.format(name="get"), "m_pb2.py": ""},
        }
    )
    assert home(names, "a.get") == "lib.get"
    assert {place[1] for place in names.traces} == {"get"}


def test_compiled_names_must_be_on_every_version(became):
    versions = {"2.14": {"pywrap_tensorflow.py": "def Both(): pass\ndef One(): pass\n"}}
    versions |= {"2.15": {"pywrap_tensorflow.py": ""}, "2.16": {"pywrap_tensorflow.py": ""}}
    one, two = {"tensorflow.python._a": ["Both", "One"]}, {"tensorflow.python._b": ["Both"]}
    names = became(versions, compiled=[one, two])
    places = table.homes_of(names, ("tensorflow.python.pywrap_tensorflow", "Both"))
    assert places == [("tensorflow.python._a", "Both"), ("tensorflow.python._b", "Both")]
    assert home(names, "pywrap_tensorflow.One") is None


def test_table_and_page(became):
    """A module whose names went together is that module; the others know where each of theirs is."""
    two = FUNCTION.format(name="mean") + CLASS.format(name="Layer", decorator="@other")
    names = became(
        {
            "2.14": {"old.py": two, "split.py": two.replace("mean", "median") + "def gone(): pass\n"},
            "2.15": {"new.py": two, "split.py": "", "medians.py": FUNCTION.format(name="median")},
            "2.16": {"new.py": two, "split.py": "", "medians.py": FUNCTION.format(name="median")},
        }
    )
    lines = [line for line in table.text(names).splitlines() if not line.startswith("#")]
    split = [".split 2.15 > .medians median", ".split 2.15 > .new Layer", ".split 2.15 ! gone"]
    assert lines == [".old 2.15 = .new", *split]
    text = page.text(names)
    assert "- 8 public names in the modules" in text and "- 4 of these resolve, 1 have no known successor" in text
    assert "| `old` | 2.15 | `tensorflow.python.new` |" in text


# The table as it is ------------------------------------------------------------------------------------------


def test_the_table_is_well_formed():
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 1000 and len(lines) == len(set(lines))
    for line in lines:
        assert re.fullmatch(r"[\w.]+ (1\.15|2\.\d{1,2}) ([=] [\w.]+|> [\w.]+( \w+(=\w+)?)+|!( \w+)+)", line), line
    read = MovedNamesTable(FILE.read_text())
    for module in read:
        entry = read[module]
        assert not set(entry.homes) & set(entry.gone), module
        assert entry.whole != module


def test_the_page_tells_what_the_table_has():
    """Both come of one run of the tool: the modules, and how many names are gone."""
    read, text = MovedNamesTable(FILE.read_text()), PAGE.read_text()
    for module in read:
        if read[module].whole:
            assert f"| `{module.removeprefix('tensorflow.python.')}` | {read[module].since} |" in text
    gone = sum(len(read[module].gone) for module in read)
    told = int(re.search(r"resolve, ([\d,]+) have no known successor", text)[1].replace(",", ""))
    # Some are not the table's: manual.NOT_BY_TABLE, and what the module of today has under the name for another thing.
    assert 0 <= told - gone < 100
