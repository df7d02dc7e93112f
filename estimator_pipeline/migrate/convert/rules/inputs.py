"""Input functions of arrays: `tf.estimator.inputs.numpy_input_fn(...)` -> `numpy_input_fn(...)` of program_helpers.py.

The records, batches and end are the same; `shuffle=True` draws another order. The capacity of the queue, which has no
counterpart, changes nothing else.
"""

from __future__ import annotations

from estimator_pipeline.migrate.convert.names import Refused
from estimator_pipeline.migrate.convert.rule import SETUP, Call, rule

__all__ = ["ARRAY_INPUTS", "input_fn_of_arrays", "one_shot_iterator"]

ARRAY_INPUTS = ("numpy_input_fn", "pandas_input_fn")
"""The helpers that return an input function."""
_NAMES = tuple(f"tf.{module}estimator.inputs.{name}" for module in ("", "compat.v1.") for name in ARRAY_INPUTS)


@rule(*_NAMES, at=(SETUP,))
def input_fn_of_arrays(call: Call) -> str:
    helper = call.name.rpartition(".")[2]
    call.needs.add(helper)
    more = ("target_column",) if helper == "pandas_input_fn" else ()
    args = call.args("x", "y", "batch_size", "num_epochs", "shuffle", "queue_capacity", "num_threads", *more)
    if "x" not in args or "shuffle" not in args:
        raise Refused(f"{call.name} without {'shuffle' if 'x' in args else 'x'}", call.node)
    if "num_threads" in args and not call.is_constant(args["num_threads"], "1"):
        raise call.refuse("num_threads", args["num_threads"])
    names = [name for name in ("x", "y", "batch_size", "num_epochs", "shuffle") if name in args]
    written = [f"{name}={call.text(args[name])}" for name in names]
    return f"{helper}({', '.join(written)})"


@rule("tf.compat.v1.data.make_one_shot_iterator", at=(SETUP,))
def one_shot_iterator(call: Call) -> str:
    """`data.make_one_shot_iterator()` outside of an input function, in a program that executes eagerly."""
    return f"iter({call.text(call.args('dataset')['dataset'])})"
