"""Rejection of programs that an earlier version converted to Keras: what they import from here no longer exists.

`migrate convert` writes programs that import nothing of this package. This module ends the process, since plain python
would print a traceback and exit with code 1.
"""

from __future__ import annotations

import sys

from estimator_pipeline.errors import ConfigError

_ERROR = ConfigError(
    "this program was converted to Keras by an earlier version of estimator-pipeline, whose helpers were removed",
    code="migrate/outdated-conversion",
    found="an import of estimator_pipeline.models.keras_runtime",
    hint="convert again from the original program: estimator-pipeline migrate convert ORIGINAL --output DIR; or run "
    "the original as it is: estimator-pipeline exec ORIGINAL",
)
print(f"error: {_ERROR}", file=sys.stderr, flush=True)
raise SystemExit(_ERROR.exit_code) from _ERROR
