"""The same programs with the same seeds: the losses of 2.15, step by step, on every later TensorFlow.

tests/records/seeded_losses.json is what TensorFlow 2.15 printed; to record it anew, with 2.15 installed:

    python tests/support/seeded_losses.py > tests/records/seeded_losses.json
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support import seeded_losses
from tests.support.surface_data import tf  # settles the process's devices, as all tests here do

# Relative, of each loss. TensorFlow 2.15.1 and 2.21 gave 12 of the 13 programs the same losses to the last bit on one
# processor, and the recurrent one 2.2e-7 apart. With other instruction sets (oneDNN held to AVX2 or SSE4.1, or off)
# the same wheels came to 4.5e-7 from the record: kernels that add float32 numbers in another order. Ten times that.
TOLERANCE = 5e-6

SYMBOLS = {
    "DNNClassifier": "tf.estimator.DNNClassifier",
    "V1 DNNClassifier": "tf.compat.v1.estimator.DNNClassifier",
    "LinearRegressor": "tf.estimator.LinearRegressor",
    "DNNLinearCombinedClassifier": "tf.estimator.DNNLinearCombinedClassifier",
    "model_fn": "tf.estimator.Estimator",
    "RNNClassifier": "tf.estimator.experimental.RNNClassifier",
    "KMeans": "tf.compat.v1.estimator.experimental.KMeans",
}


def programs():
    for name in seeded_losses.PROGRAMS:
        symbols = [symbol for prefix, symbol in SYMBOLS.items() if name.startswith(prefix)]
        yield pytest.param(name, marks=pytest.mark.symbols(*symbols) if symbols else ())


@pytest.fixture(scope="module")
def recorded(records):
    return json.loads((records / "seeded_losses.json").read_text())


@pytest.mark.gate("LinearRegressor", "model_fn, V1 layers, V1 optimizer", "model_fn, Keras layers, Keras optimizer")
@pytest.mark.filterwarnings("ignore:`tf.layers:UserWarning")  # on each use of V1's layers
@pytest.mark.parametrize("name", list(programs()))
def test_same_losses(name, recorded):
    assert tf is seeded_losses.tf
    found = seeded_losses.losses(name)
    assert len(found) == len(recorded[name]) == seeded_losses.STEPS
    np.testing.assert_allclose(found, recorded[name], rtol=TOLERANCE, atol=0)


def test_the_record_would_notice(recorded):
    """Each program is in the record, and every step moves its loss by much more than the tolerance."""
    assert recorded.keys() == seeded_losses.PROGRAMS.keys()
    for name, losses in recorded.items():
        moves = np.abs(np.diff(losses)) / np.abs(losses[:-1])
        assert np.median(moves) > 20 * TOLERANCE or name == "KMeans", name  # KMeans settles after a few steps
        assert np.ptp(losses) > 0.001 * losses[0], name
