"""Input functions that record, count or check the batches of another one: in all else they are that one."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest

from estimator_pipeline import compat, inputs
from estimator_pipeline.engines.keras.multi_step import noting_endless
from estimator_pipeline.engines.lifecycle.even_batches import in_even_batches
from estimator_pipeline.engines.model_dir import run_identity
from estimator_pipeline.engines.recording import ledger
from estimator_pipeline.engines.recording.step_recorder import recorded_batches
from estimator_pipeline.inputs.ledger.writing import LedgerWriter
from estimator_pipeline.inputs.wrapping import wrap_input_fn
from estimator_pipeline.parity.models.input_fns import ComparedInputFn

tf = compat.install()

from tensorflow.python.util import function_utils  # noqa: E402  after install(), which chooses the Keras


def compared(input_fn):
    estimator = tf.estimator.Estimator(lambda features, mode: None)
    return ComparedInputFn(input_fn, name="input_fn", estimator=estimator, mode="train")


WRAPPERS = {
    "record": lambda input_fn, folder: recorded_batches(input_fn, lambda checksums: None),
    "ledger": lambda input_fn, folder: ledger._inspected(input_fn, LedgerWriter(folder, task="a:0", tasks=()), None),
    "endless": lambda input_fn, folder: noting_endless(input_fn, lambda is_endless: None),
    # Input functions of this package are never evened; their attributes are those of any other one.
    "even batches": lambda input_fn, folder: in_even_batches(wrap_input_fn(input_fn, input_fn), 2),
    "compared, Estimator": lambda input_fn, folder: compared(input_fn).for_estimator(),
    "compared, Keras": lambda input_fn, folder: compared(input_fn).for_keras(),
}


def by_number(**options):
    ids = np.arange(24)
    return inputs.from_arrays((ids, ids), global_batch_size=4, shuffle=False, **options).train_input_fn


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_has_every_attribute_of_the_input_function(name, tmp_path):
    input_fn = by_number(shard_policy="hint")
    made = WRAPPERS[name](input_fn, tmp_path)
    assert made is not input_fn
    attributes = [attribute for attribute in dir(input_fn) if not attribute.startswith("_")]
    assert {"start_step", "ledger", "identity"} <= set(attributes)
    for attribute in attributes:
        assert getattr(made, attribute) == getattr(input_fn, attribute), attribute
    assert not hasattr(made, "no_such_attribute")
    identities = [run_identity.of_inputs(each, seed=1, num_pipelines=2) for each in (made, input_fn)]
    assert identities[0] == identities[1]
    assert inspect.signature(made) == inspect.signature(input_fn)
    assert function_utils.fn_args(made) == ("input_context",)
    assert copy.copy(made).identity == input_fn.identity


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_an_engine_sets_reaches_the_input_function(name, tmp_path):
    input_fn = by_number()
    made = WRAPPERS[name](input_fn, tmp_path)
    made.start_step, made.ledger = 3, None
    features, _ = next(iter(made()))
    assert features.numpy().tolist() == [12, 13, 14, 15]
    assert input_fn.start_step == 3 and "ledger" in vars(input_fn)


@pytest.mark.parametrize("name", ["record", "ledger", "endless", "even batches"])
def test_a_function_keeps_its_name_and_its_parameters(name, tmp_path):
    def read(params, mode=None):
        return tf.data.Dataset.from_tensor_slices(params["x"]).batch(2)

    made = WRAPPERS[name](read, tmp_path)
    assert made.__name__ == "read" and not hasattr(made, "start_step")
    assert function_utils.fn_args(made) == ("params", "mode")
    assert [int(x) for batch in made(params={"x": [5, 6]}) for x in batch] == [5, 6]
