"""Rejection of programs that 0.1.0 converted to Keras models that call the program's model_fn.

Such a model needed tf.estimator, trained in one process, and had no layers, so it was no Keras program. This module is
what those programs import as `keras_model_fn`. It ends the process, since plain python would print a traceback and exit
with code 1.
"""

from __future__ import annotations

import sys

from estimator_pipeline.errors import ConfigError

_ERROR = ConfigError(
    "this program is a conversion by estimator-pipeline 0.1.0 that keeps its model_fn, and keras_model_fn was removed",
    code="migrate/outdated-conversion",
    found="an import of estimator_pipeline.models.keras_runtime.model_fn",
    hint="convert again from the original program: estimator-pipeline migrate convert ORIGINAL --output DIR; or run "
    "the original as it is: estimator-pipeline exec ORIGINAL",
)
print(f"error: {_ERROR}", file=sys.stderr, flush=True)
raise SystemExit(_ERROR.exit_code) from _ERROR
