"""Codes of errors: each error has one, each is explained, and docs/reference/errors.md has them all."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from estimator_pipeline import errors
from estimator_pipeline.errors import ConfigError, PipelineError, PortError
from estimator_pipeline.errors.codes import AREAS, CODES
from estimator_pipeline.inputs.ledger.report import KINDS
from tests.support.command_line import call

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "estimator_pipeline").rglob("*.py"), *(ROOT / "model_fns").rglob("*.py")]
# Kinds without a code of their own that are defined elsewhere.
OTHERS = dict.fromkeys(("GoneNameError", "GoneImportError", "GoneModuleError", "KindUnavailableError"))


def _tool():
    spec = importlib.util.spec_from_file_location("error_codes", ROOT / "tools" / "error_codes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _nodes() -> list[tuple[str, ast.AST]]:
    return [
        (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.Constant | ast.Assign | ast.keyword)
    ]


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    for place, node in _nodes():
        if isinstance(node, ast.Call):
            yield place, getattr(node.func, "id", getattr(node.func, "attr", "")), node


def test_every_error_has_a_code():
    kinds = {
        name: kind.code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, PipelineError)
    } | OTHERS
    without, count = [], 0
    for place, name, call_ in _calls():
        if name in kinds:
            count += 1
            # One without a name is the dict of another process's error.
            given = {keyword.arg for keyword in call_.keywords}
            if kinds[name] is None and not given & {"code", None}:
                without.append(place)
    assert not without, "an error without code="
    assert count > 600, "the search finds nothing"


def test_each_code_is_in_the_table_and_each_of_the_table_is_given():
    given, texts = {}, set()
    for place, node in _nodes():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "errors/codes.py" not in place:
            texts.add(node.value)
        value = None
        if (isinstance(node, ast.keyword) and node.arg == "code") or (
            isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "code"
        ):
            value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and "/" in value.value:
            given[value.value] = place
    assert not {code: place for code, place in given.items() if code not in CODES}
    assert len(given) > 60 and set(CODES) <= texts


def test_the_table_of_codes():
    assert list(CODES) == sorted(CODES, key=lambda code: code.partition("/")[::2]) and len(CODES) <= 90
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*/[a-z]+(-[a-z]+)*", code) for code in CODES)
    assert {code.partition("/")[0] for code in CODES} == set(AREAS)
    assert all(entry.meaning.endswith(".") and entry.action.endswith(".") for entry in CODES.values())


def test_the_page_has_them_all():
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert text == _tool().render(), "`make messages` writes it"
    assert all(f"### {code}\n" in text for code in CODES)


def test_findings_have_names_that_the_page_has():
    """The names of a ledger's and of parity's findings, as the source gives them."""
    ledger, parity = set(), set()
    for place, name, call_ in _calls():
        first = call_.args[0] if call_.args else None
        if name == "find" and "inputs/ledger/" in place and isinstance(first, ast.Constant) and len(call_.args) == 2:
            ledger.add(first.value)
        if name == "ParityFinding":
            given = next(keyword.value for keyword in call_.keywords if keyword.arg == "name")
            parity |= {given.value} if isinstance(given, ast.Constant) else set()
    assert ledger and ledger <= set(KINDS)
    assert len(parity) >= 8 and parity <= dict(_tool().parity_names()).keys()


def test_an_error_keeps_its_code():
    error = ConfigError("no such thing", code="job/bad-value", found="this", hint="that")
    assert str(error) == "no such thing [job/bad-value]\n  found: this\n  hint: that"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.to_dict()) == (ConfigError, error.to_dict())
    assert ConfigError.from_dict(error.to_dict()).to_dict() == error.to_dict()
    assert PortError("taken").code == "cluster/port-in-use"
    # What a user's own program raises.
    assert str(ConfigError("mine")) == "mine" and ConfigError("mine").code is None


@pytest.mark.parametrize("code", CODES)
def test_each_is_explained(code):
    done = call("explain", f"[{code}]")
    assert done.returncode == 0 and done.stdout.startswith(f"{code}\n") and "What to do: " in done.stdout


def test_all_are_listed():
    done = call("explain")
    assert all(code in done.stdout for code in CODES)
    assert max(map(len, done.stdout.splitlines())) <= 100
