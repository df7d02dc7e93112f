"""A migration in a process of its own, for one that has the other Keras: asked by JSON, answered by JSON.

    python -m estimator_pipeline.migrate.checkpoints.subprocess_main < asked.json

The last line of standard output is {"done": ...} or {"error": ...}.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(document: Any) -> dict[str, Any]:
    """Return what `migrate_checkpoint` gives for what was asked, as plain values."""
    from estimator_pipeline import compat
    from estimator_pipeline.errors import PipelineError
    from estimator_pipeline.migrate import migrate_checkpoint

    asked = {**document["asked"], **document["choices"]}
    source, to = asked.pop("source"), asked.pop("to")
    try:
        if to == "keras3":
            compat.use_keras_3()
        return {"done": migrate_checkpoint(source, to=to, **asked).to_dict()}
    except PipelineError as error:
        return {"error": error.to_dict()}


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
