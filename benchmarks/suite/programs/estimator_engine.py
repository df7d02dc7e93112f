"""Training with the Estimator engine of this package, as in its README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.suite import work
from benchmarks.suite.clock import Clock

STRATEGIES = {"workers": "multi_worker_mirrored", "ps": "parameter_server"}


def inputs_of(spec: Mapping[str, Any], model: work.BenchModel, **options: Any) -> Any:
    """Return the data from `inputs.from_tfrecord`."""
    from pathlib import Path

    from estimator_pipeline import inputs

    images = model.data == "images"
    folder = Path(spec["data"])
    return inputs.from_tfrecord(
        train=work.files_of(folder, model.data),
        eval=work.files_of(folder, model.data, "eval"),
        features=work.feature_texts(model.data),
        features_key="image" if images else None,
        scale=1 / 255 if images else None,
        **options,
    )


def make_estimator(spec: Mapping[str, Any], model: work.BenchModel) -> Any:
    """Return the Estimator."""
    import estimator_pipeline as ep
    import model_fns

    tf = ep.compat.install()
    optimizer = {"name": "sgd", "learning_rate": work.LEARNING_RATE}
    config = ep.build_run_config(
        spec["model_dir"],
        train_distribute=STRATEGIES.get(spec["kind"], "none"),
        save_checkpoints_steps=spec["checkpoint_steps"],
    )
    model_fn = model_fns.model_fn(model.name, params=model.params, optimizer=optimizer, metrics=["accuracy"])
    return tf.estimator.Estimator(model_fn, config=config)


def run(spec: Mapping[str, Any]) -> None:
    """Train; `measures.training` writes the spec."""
    import estimator_pipeline as ep

    tf = ep.compat.install()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    model = work.MODELS[spec["model"]]
    estimator = make_estimator(spec, model)
    # With parameter servers each worker has a separate batch.
    together = spec["workers"] if spec["kind"] == "workers" else 1
    data = inputs_of(spec, model, global_batch_size=work.BATCH * together, eval_batch_size=work.BATCH, seed=1)
    clock = Clock(spec["out"], last=spec["steps"], warm=spec["warm"], facts={"batch": work.BATCH})
    ep.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(data.train_input_fn, max_steps=spec["steps"], hooks=[clock.hook()]),
        tf.estimator.EvalSpec(data.eval_input_fn, steps=1),
        steps_per_execution=work.STEPS_PER_EXECUTION,
    )
