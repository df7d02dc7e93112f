"""The rules, a file for each kind of construct; importing this package registers all of them."""

from __future__ import annotations

from estimator_pipeline.migrate.convert.rules import (
    activations,
    columns,
    contrib,
    dropout,
    embeddings,
    initializers,
    inputs,
    layers,
    logging,
    losses,
    metrics,
    normalization,
    optimizers,
    params,
    shapes,
    tensors,
    variables,
)

__all__ = ["activations", "columns", "contrib", "dropout", "embeddings", "initializers", "inputs", "layers", "logging",
           "losses", "metrics", "normalization", "optimizers", "params", "shapes", "tensors", "variables"]  # fmt: skip
