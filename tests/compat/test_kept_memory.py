"""TensorFlow 2.21 replaces a setting of malloc when a process makes its first GeneratorDataset; it is set again."""

from __future__ import annotations

import re
import sys

import pytest

from estimator_pipeline.utils import allocator
from tests.support.processes import ROOT
from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = pytest.mark.skipif(allocator._glibc() is None, reason="another allocator")

# A test in this process, or a launcher, may have set them before.
UNSET = dict.fromkeys(allocator._OURS)

# 300 MiB in blocks of 1 MiB, for a moment, 10 times: more than the heap has grown to by luck.
EAGER = """
import resource, sys
import numpy as np
from estimator_pipeline import compat
from estimator_pipeline.utils import allocator

tf = compat.use_keras_3() if "keras3" in sys.argv else compat.install()
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
allocator.keep_memory()
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))))

def step():
    blocks = [np.ones(1 << 17) for _ in range(300)]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


@pytest.mark.parametrize("keras", ["keras2", pytest.param("keras3", marks=[pytest.mark.nightly, pytest.mark.keras_3])])
def test_a_distributed_dataset_in_eager_code(keras, run_python):
    """Keras, of both engines and of unchanged programs."""
    done = run_python(["-c", EAGER, keras], env=UNSET)
    # 300 MiB are 76,800 pages.
    assert int(done.stdout.split()[-1]) < 2000, done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("start", [[sys.executable], EXEC], ids=["called", "exec"])
def test_two_workers_keep_the_memory_of_a_step(start, programs, tmp_path):
    """The strategy's datasets in graphs, and tasks that are started without a launcher."""
    options = ["--call"] if start is not EXEC else []
    command = ["env", *(f"--unset={name}" for name in UNSET), *start, programs / "memory_of_a_step.py"]
    with Tasks(
        {"worker": 2}, [*command, tmp_path / "model", *options], tmp_path, env={"PYTHONPATH": str(ROOT)}
    ) as tasks:
        assert set(tasks.wait().values()) == {0}, tasks.tails()
        for name in tasks.processes:
            (faults,) = re.findall(r"page faults per step: (\d+)", tasks.log(name))
            # 300 MiB are 76,800 pages.
            assert int(faults) < 2000, tasks.tails()
