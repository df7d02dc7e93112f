"""Exports that follow each other at once: each is named after its second, and TensorFlow sleeps until that is over."""

from __future__ import annotations

import itertools
import time
import types

import pytest


@pytest.fixture
def quick_stamps(monkeypatch):
    """The clock that names exports is a second further at each look."""
    from tensorflow.python.saved_model.model_utils import export_utils

    seconds = itertools.count(int(time.time()))
    monkeypatch.setattr(export_utils, "time", types.SimpleNamespace(time=lambda: next(seconds), sleep=lambda _: None))
