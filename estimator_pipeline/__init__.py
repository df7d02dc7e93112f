"""tf.estimator jobs on today's TensorFlow: run unchanged, built well, spread over TF_CONFIG workers.

The public names, each imported when it is first used, so that `import estimator_pipeline` costs next to nothing and
imports no TensorFlow:

================== =====================================================================================
`compat`           `compat.install()` gives TensorFlow its `tf.estimator` back; `compat.status()`
`inputs`           `input_fn` factories: `from_tfds`, `from_tfrecord`, `from_csv`, `from_arrays`
`build_model_fn`   a `model_fn` from a function that builds Keras layers
`build_run_config` a `RunConfig` from names: strategies, communication, threads
`train_and_evaluate` every task of a cluster, with a result on each
`cluster`          TF_CONFIG: `parse_tf_config`, `from_environ`, `build_tf_config`
`load_job`         a job file, validated
`errors`           what can go wrong, each with its mend
================== =====================================================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> (module, attribute); no attribute: the module itself.
_PUBLIC: dict[str, tuple[str, str | None]] = {
    "cluster": ("estimator_pipeline.cluster", None),
    "compat": ("estimator_pipeline.compat", None),
    "errors": ("estimator_pipeline.errors", None),
    "inputs": ("estimator_pipeline.inputs", None),
    "load_job": ("estimator_pipeline.job", "load_job"),
    "build_model_fn": ("estimator_pipeline.model_fn", "build_model_fn"),
    "build_run_config": ("estimator_pipeline.run_config", "build_run_config"),
    "train_and_evaluate": ("estimator_pipeline.engines.estimator", "train_and_evaluate"),
    "TrainResult": ("estimator_pipeline.engines.result", "TrainResult"),
}

__all__ = [
    "TrainResult",
    "__version__",
    "build_model_fn",
    "build_run_config",
    "cluster",
    "compat",
    "errors",
    "inputs",
    "load_job",
    "train_and_evaluate",
]

if TYPE_CHECKING:
    from estimator_pipeline import cluster, compat, errors, inputs
    from estimator_pipeline.engines.estimator import train_and_evaluate
    from estimator_pipeline.engines.result import TrainResult
    from estimator_pipeline.job import load_job
    from estimator_pipeline.model_fn import build_model_fn
    from estimator_pipeline.run_config import build_run_config


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = importlib.import_module(module)
    if attribute is not None:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
