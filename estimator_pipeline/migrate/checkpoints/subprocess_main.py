"""A migration in a subprocess, for a parent process with the other Keras. Request and answer are JSON.

    python -m estimator_pipeline.migrate.checkpoints.subprocess_main < request.json

The last line of standard output is {"done": ...} or {"error": ...}.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(document: Any) -> dict[str, Any]:
    """Run `migrate_checkpoint`; return its result or error as plain values."""
    from estimator_pipeline import compat
    from estimator_pipeline.errors import PipelineError
    from estimator_pipeline.migrate import migrate_checkpoint

    arguments = {**document["request"], **document["choices"]}
    source, to = arguments.pop("source"), arguments.pop("to")
    try:
        if to == "keras3":
            compat.use_keras_3()
        return {"done": migrate_checkpoint(source, to=to, **arguments).to_dict()}
    except PipelineError as error:
        return {"error": error.to_dict()}


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
