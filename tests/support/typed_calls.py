"""Calls of the public names for `make lint`, which checks their types: an ignored error that is absent is an error."""

from __future__ import annotations

from typing_extensions import assert_type

import estimator_pipeline as ep
from estimator_pipeline import inputs
from estimator_pipeline.engines.core.result import TrainResult
from estimator_pipeline.job import Job

assert_type(inputs.from_tfds("digits", global_batch_size=64, shuffle=False, scale=1 / 16), inputs.Inputs)
assert_type(ep.inputs.from_partition("folder", global_batch_size=64).train_input_fn, inputs.InputFn)
assert_type(ep.load_job("job.yaml").job, Job)
assert_type(ep.train_and_evaluate(None, None, None), TrainResult)

inputs.from_tfds("digits", shuffle=False)  # type: ignore[call-arg]
inputs.from_tfrecord("a", features={}, global_batch_size="64")  # type: ignore[arg-type]
inputs.from_csv("a.csv", global_batch_size=64, epoch=1)  # type: ignore[call-arg]
inputs.from_arrays(global_batch_size=64, shuffle=None)  # type: ignore[arg-type]
inputs.from_partition("folder", global_batch_sise=64)  # type: ignore[call-arg]
ep.bild_model_fn  # type: ignore[attr-defined]  # noqa: B018
