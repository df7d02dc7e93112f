"""tf.estimator jobs on today's TensorFlow: run unchanged, built well, spread over TF_CONFIG workers.

The public names, each imported when it is first used, so that `import estimator_pipeline` costs next to nothing and
imports no TensorFlow:

================== =====================================================================================
`compat`           `compat.install()` gives TensorFlow its `tf.estimator` back; `compat.status()`
`inputs`           `input_fn` factories: `from_tfds`, `from_tfrecord`, `from_csv`, `from_arrays`
`build_model_fn`   a `model_fn` from a function that builds Keras layers
`build_run_config` a `RunConfig` from names: strategies, communication, threads
`train_and_evaluate` every task of a cluster, with a result on each
`callbacks`        for `Model.fit` on several workers: checkpoints of the chief, the learning rate
`cluster`          TF_CONFIG: `parse_tf_config`, `from_environ`, `build_tf_config`
`doctor`           what is wrong with a job before it starts: `examine`
`ledger`           which records each worker consumed at which step: `read`, `check`
`migrate`          a program to Keras: `migrate_checkpoint`, `migrate_export`, `code`, `config`
`load_job`         a job file: its Estimator, its data, its model, predictions
`testing`          `check_input_fn`, `check_model_fn`: checks for a team's own code
`errors`           what can go wrong, each with a hint
================== =====================================================================================
"""

from __future__ import annotations

from estimator_pipeline.utils import lazy
from estimator_pipeline.utils.version import __version__

_PUBLIC = {
    "averaged_weights": "estimator_pipeline.models.optimizers.moving_averages:averaged_weights",
    "callbacks": "estimator_pipeline.models.callbacks",
    "cluster": "estimator_pipeline.cluster",
    "compat": "estimator_pipeline.compat",
    "doctor": "estimator_pipeline.doctor",
    "errors": "estimator_pipeline.errors",
    "inputs": "estimator_pipeline.inputs",
    "ledger": "estimator_pipeline.inputs.ledger",
    "migrate": "estimator_pipeline.migrate",
    "load_job": "estimator_pipeline.engines.jobs.loaded:load_job",
    "build_keras_model": "estimator_pipeline.models.keras_model:build_keras_model",
    "load_keras_model": "estimator_pipeline.models.keras_model:load_keras_model",
    "save_keras_model": "estimator_pipeline.models.keras_model:save_keras_model",
    "build_model_fn": "estimator_pipeline.models.model_fn:build_model_fn",
    "build_run_config": "estimator_pipeline.distribute.run_config:build_run_config",
    "train_and_evaluate": "estimator_pipeline.engines.estimator.backend:train_and_evaluate",
    "testing": "estimator_pipeline.testing",
    "keras_batches": "estimator_pipeline.models.outputs:keras_batches",
    "Output": "estimator_pipeline.models.outputs:Output",
    "TrainOptions": "estimator_pipeline.engines.core.options:TrainOptions",
    "TrainResult": "estimator_pipeline.engines.core.result:TrainResult",
}

__all__ = [
    "Output",
    "TrainOptions",
    "TrainResult",
    "__version__",
    "averaged_weights",
    "build_keras_model",
    "build_model_fn",
    "build_run_config",
    "callbacks",
    "cluster",
    "compat",
    "doctor",
    "errors",
    "inputs",
    "keras_batches",
    "ledger",
    "load_job",
    "load_keras_model",
    "migrate",
    "save_keras_model",
    "testing",
    "train_and_evaluate",
]

__getattr__, __dir__ = lazy.attach(__name__, _PUBLIC)
