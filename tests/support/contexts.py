"""A task's context without a cluster of processes."""

from __future__ import annotations

import dataclasses
from typing import Any

from estimator_pipeline.cluster import from_environ
from estimator_pipeline.engines.core.context import TaskContext, build_context
from estimator_pipeline.engines.core.options import TrainOptions
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity


def task_context(model_dir: Any, *, environ: Any = (), options: Any = None, **fields: Any) -> TaskContext:
    """The context of the task that `environ` describes, with any of its fields replaced."""
    environ = dict(environ)
    context = build_context(
        str(model_dir),
        tf_config=from_environ(environ),
        environ=environ,
        options=options or TrainOptions(),
        input_fn=None,
        max_steps=fields.pop("max_steps", None),
        strategy=None,
        eval_spec=fields.pop("eval_spec", None),
        checkpoint_steps=None,
        identity=lambda input_fn: RunIdentity(fixed={"seed": 1}),
    )
    return dataclasses.replace(context, **fields)
