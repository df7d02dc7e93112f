"""Input functions that record, count or check the batches of another one: in all else they are that one."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest

import estimator_pipeline as ep
from estimator_pipeline import compat, inputs
from estimator_pipeline.cluster import parse_tf_config
from estimator_pipeline.engines.estimator.evaluation import in_even_batches
from estimator_pipeline.engines.model_dir import run_identity
from estimator_pipeline.engines.recording import ledger
from estimator_pipeline.engines.recording.ledger import TaskLedger
from estimator_pipeline.engines.recording.step_recorder import recorded_batches
from estimator_pipeline.inputs import program_shards
from estimator_pipeline.inputs.ledger.writing import LedgerWriter
from estimator_pipeline.inputs.wrapping import at_step, is_addressable, wrap_input_fn
from estimator_pipeline.parity.models.input_fns import ComparedInputFn

tf = compat.install()

from tensorflow.python.util import function_utils  # noqa: E402  after install(), which chooses the Keras


def compared(input_fn):
    estimator = tf.estimator.Estimator(lambda features, mode: None)
    return ComparedInputFn(input_fn, name="input_fn", estimator=estimator, mode="train")


TWO_WORKERS = {"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}}
WRAPPERS = {
    "record": lambda input_fn, folder: recorded_batches(input_fn, lambda checksums: None),
    "ledger": lambda input_fn, folder: ledger._inspected(input_fn, LedgerWriter(folder, task="a:0", tasks=()), None),
    # Input functions of this package are never evened; their attributes are those of any other one.
    "even batches": lambda input_fn, folder: in_even_batches(
        wrap_input_fn(input_fn, lambda inner, *args, **kwargs: inner(*args, **kwargs)), 2
    ),
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
    assert {"at", "with_ledger", "start_step", "as_many_for_all", "identity"} <= set(attributes)
    for attribute in attributes:
        if attribute not in ("at", "with_ledger", "with_policy"):
            assert getattr(made, attribute) == getattr(input_fn, attribute), attribute
    assert not hasattr(made, "no_such_attribute")
    identities = [run_identity.of_inputs(each, seed=1, num_pipelines=2) for each in (made, input_fn)]
    assert identities[0] == identities[1]
    assert inspect.signature(made) == inspect.signature(input_fn)
    assert function_utils.fn_args(made) == ("input_context",)
    assert copy.copy(made).identity == input_fn.identity


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_starts_where_it_is_asked_to_and_the_input_function_stays_as_it_is(name, tmp_path):
    input_fn = by_number()
    made = WRAPPERS[name](input_fn, tmp_path)
    before = dict(vars(input_fn))
    other = at_step(made, 3)
    assert type(other) is type(made), "it still records, counts or checks"
    for each, first in ((other, 12), (made, 0), (at_step(other, 1), 4)):
        features, _ = next(iter(each()))
        assert features.numpy().tolist() == [*range(first, first + 4)]
        assert inspect.signature(each) == inspect.signature(input_fn)
    assert vars(input_fn) == before


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_ledger_gets_the_numbers_of_the_records_through_a_wrapper(name, tmp_path):
    input_fn = by_number()
    task = TaskLedger(tmp_path / "numbers", tf_config=parse_tf_config("{}"))
    recorded = task.input_fn(WRAPPERS[name](input_fn, tmp_path))
    task.writer.begin(0)
    for _ in recorded().take(2):
        task.writer.step()
    task.writer.end()
    ledgers = ep.ledger.read(tmp_path / "numbers")
    ids = [next(iter(ledgers.ids(step).values())) for step in (1, 2)]
    assert np.concatenate(ids).ravel().tolist() == [*range(8)]
    assert input_fn._ledger is None


# Those of programs whose input function takes no `input_context`.
WRAPPERS_OF_PROGRAMS = {name: wrapper for name, wrapper in WRAPPERS.items() if not name.startswith("compared")} | {
    "sharded": lambda input_fn, folder: program_shards._sharded(input_fn, parse_tf_config(TWO_WORKERS))
}


@pytest.mark.parametrize("name", WRAPPERS_OF_PROGRAMS)
def test_a_function_keeps_its_name_and_its_parameters(name, tmp_path):
    def read(params, mode=None):
        return tf.data.Dataset.from_tensor_slices(params["x"]).batch(2)

    made = WRAPPERS_OF_PROGRAMS[name](read, tmp_path)
    assert made.__name__ == "read" and not is_addressable(made) and at_step(made, 3) is made
    assert function_utils.fn_args(made) == ("params", "mode")
    assert [int(x) for batch in made(params={"x": [5, 6]}) for x in batch] == [5, 6]
