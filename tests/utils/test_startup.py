"""What TensorFlow loads is not looked at by the collector; what a program makes is."""

from __future__ import annotations

import gc
import json

import pytest

from estimator_pipeline.utils import startup
from estimator_pipeline.utils.process_state import STATE

PROGRAM = """
import gc, json, weakref
from estimator_pipeline import compat

class Mine:
    pass

def garbage():
    mine = Mine()
    mine.me = mine
    return weakref.ref(mine)

before = garbage()
compat.install()
after = garbage()
gc.collect()
print(json.dumps([gc.isenabled(), gc.get_freeze_count(), before() is None, after() is None]))
"""


@pytest.fixture
def ours(monkeypatch):
    return lambda own: monkeypatch.setattr(STATE, "is_command", own)


def test_nothing_is_collected_in_the_block(ours):
    ours(False)
    frozen = gc.get_freeze_count()
    with startup.loading():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() == frozen


def test_the_collector_is_on_again_after_a_failed_import(ours):
    ours(False)
    with pytest.raises(ModuleNotFoundError), startup.loading():
        raise ModuleNotFoundError("tensorflow")
    assert gc.isenabled()


def test_a_program_that_works_without_the_collector_goes_on_so(ours):
    ours(False)
    gc.disable()
    try:
        with startup.loading():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_process_of_ours_passes_over_what_it_has_loaded(ours):
    ours(True)
    with startup.loading():
        kept = [[] for _ in range(100)]
    try:
        assert gc.get_freeze_count() > len(kept)
    finally:
        gc.unfreeze()


@pytest.mark.nightly
def test_a_programs_own_garbage_is_collected_in_either(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_python(["-m", "estimator_pipeline", "exec", program])
    enabled, frozen, *collected = json.loads(done.stdout)
    assert enabled and frozen > 100_000 and collected == [True, True], done.stderr[-2000:]
    done = run_python([program])
    assert json.loads(done.stdout) == [True, 0, True, True], done.stderr[-2000:]
