"""The list of tools/planted_faults.py fits the code of today. Whether the tests notice them, the tool itself tells."""

from __future__ import annotations

import collections
import sys

from tests.support.processes import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import planted_faults


def test_every_fault_can_be_planted():
    faults = planted_faults.read()
    assert {fault.name: why for fault in faults if (why := fault.misfit())} == {}
    assert len({fault.name for fault in faults}) == len(faults) >= 60
    assert min(collections.Counter(fault.room for fault in faults).values()) >= 5
    assert all(fault.find != fault.put for fault in faults)
