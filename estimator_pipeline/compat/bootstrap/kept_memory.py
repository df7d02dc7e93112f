"""Memory settings of `utils.allocator` stay in effect after TensorFlow has replaced one.

TensorFlow 2.21 calls `mallopt(M_MMAP_THRESHOLD, 128 KiB)` when it constructs the first GeneratorDataset kernel of a
process (`ApplyPython311MemoryPatch` in tensorflow/core/kernels/data/generator_dataset_op.cc; its log line names
M_TRIM_THRESHOLD by mistake). Every distributed dataset has such a kernel, and so has `Dataset.from_generator`. From
then on each tensor of 128 KiB or more that the heap has no room for is mapped and unmapped, with a page fault for each
4 KiB: some 6,000 in a step of a small CNN on two workers. TensorFlow 2.15 to 2.20 do not have the call.

So the settings are repeated

* in eager code, after each operation GeneratorDataset, which constructs its kernel at once;
* in graphs, after the first run of each monitored session, by which the session's input has been created.

Constructing such a kernel in advance would use up the one call, but needs a session or an eager context. The first of
either fixes the number of TensorFlow's threads for the whole process, and an eager context rejects a later
`MultiWorkerMirroredStrategy` ("Collective ops must be configured at program startup").

Private use: `gen_dataset_ops.generator_dataset`, which TensorFlow's own datasets call, and
`monitored_session._HookedSession`, whose `run` each step of a monitored session calls (unchanged from 2.15 to 2.21).
"""

from __future__ import annotations

import functools
from typing import Any

from estimator_pipeline.utils import allocator


def keep() -> None:
    """Repeat the settings wherever TensorFlow may have replaced them, from now on. Call it once."""
    import tensorflow as tf
    from tensorflow.python.ops import gen_dataset_ops
    from tensorflow.python.training import monitored_session

    create, run = gen_dataset_ops.generator_dataset, monitored_session._HookedSession.run

    @functools.wraps(create)
    def create_and_keep(*args: Any, **kwargs: Any) -> Any:
        dataset = create(*args, **kwargs)
        if tf.executing_eagerly():
            allocator.set_again()
        return dataset

    @functools.wraps(run)
    def run_and_keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        values = run(self, *args, **kwargs)
        if not hasattr(self, "_estimator_pipeline_ran"):
            self._estimator_pipeline_ran = True
            allocator.set_again()
        return values

    gen_dataset_ops.generator_dataset = create_and_keep
    monitored_session._HookedSession.run = run_and_keep
