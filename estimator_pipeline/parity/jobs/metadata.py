"""Metadata of a comparison as plain values: the job as it was trained, and the tolerances."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline.job import Job
from estimator_pipeline.job.tolerances import Tolerances
from estimator_pipeline.parity.models.arguments import InputFns
from estimator_pipeline.parity.models.input_fns import name_of
from estimator_pipeline.utils.arrays import BIT_EQUAL
from estimator_pipeline.utils.text import counted

__all__ = ["about", "of_program"]


def about(
    path: str | os.PathLike[str], job: Job, *, engines: Sequence[str], settings: Sequence[str], tolerances: Tolerances
) -> dict[str, Any]:
    """Return the metadata of a job's comparison, by name.

    Args:
        path: the job file.
        job: the job as it was trained.
        engines: the two engines.
        settings: requested changes to the job file.
        tolerances: allowed differences; initial values must be bit-equal.
    """
    data = job.input.model_dump()
    return {
        "job": os.fspath(path),
        "settings": list(settings),
        "engines": list(engines),
        "workers": job.cluster.num_training_tasks,
        "steps": job.train.max_steps,
        "model": job.model.name or job.model.function,
        "optimizer": _words(job.model.optimizer.model_dump()),
        "strategy": job.run.train_distribute,
        "global_batch_size": data.get("global_batch_size"),
        "run.seed": job.run.seed,
        "input.seed": data.get("seed"),
        "tolerances": {
            "initial values": str(BIT_EQUAL),
            **tolerances.described(),
        },
    }


def of_program(
    estimator: Any,
    model: Any,
    *,
    options: Mapping[str, Any],
    steps: int,
    input_fns: InputFns,
    mapping: Mapping[str, str],
    metric_names: Mapping[str, str],
    predictions: Mapping[str, str],
    tolerances: Tolerances,
) -> dict[str, Any]:
    """Return the metadata of a program's comparison, by name.

    Args:
        estimator: its Estimator.
        model: the Keras model.
        options: options of the Estimator's optimizer, from its graph; see `_of_optimizers`.
        steps: number of requested steps.
        input_fns: input functions of both.
        mapping: Keras weight -> the Estimator's variable.
        metric_names: Keras metric -> the Estimator's.
        predictions: Keras output -> the Estimator's key.
        tolerances: allowed differences; initial values must be bit-equal.
    """
    # A canned Estimator is identified by its class, a plain one by its model_fn.
    model_fn = getattr(estimator, "_model_fn", None)
    plain = type(estimator).__name__.startswith("Estimator")
    strategies = {"estimator": estimator.config.train_distribute, "keras": model.distribute_strategy}
    return {
        "engines": ["estimator", "keras"],
        "estimator": _called("model_fn", name_of(model_fn))
        if plain and model_fn is not None
        else type(estimator).__name__,
        "model": _called(type(model).__name__, model.name),
        "optimizer": _of_optimizers(options, model.optimizer),
        "strategy": {engine: _strategy(strategy) for engine, strategy in strategies.items()},
        "steps": int(steps),
        "tf_random_seed": estimator.config.tf_random_seed,
        **{name: name_of(function) for name, function in input_fns.functions.items()},
        **({} if input_fns.eval_steps is None else {"eval_steps": int(input_fns.eval_steps)}),
        "mapping": [f"{name}: {value}" for name, value in mapping.items()],
        "metric_names": [f"{name}: {value}" for name, value in metric_names.items()],
        "predictions": [f"{output}: {key}" for output, key in predictions.items()],
        "tolerances": {"initial values": str(BIT_EQUAL), **tolerances.described()},
    }


def _of_optimizers(options: Mapping[str, Any], optimizer: Any) -> dict[str, str]:
    """Return both optimizers of a program in words, each with its settings.

    Args:
        options: options from the Estimator's graph; see `estimator_pipeline.parity.graph_facts.GraphFacts.options`.
            Empty: unknown, and left out.
        optimizer: the Keras optimizer.
    """
    words = {"keras": _optimizer(optimizer)}
    if not options:
        return words
    settings = {name: value if isinstance(value, bool) else f"{value:g}" for name, value in options.items()
            if name != "kind"}  # fmt: skip
    if "learning_rate" not in settings:
        settings["learning_rate"] = "by a schedule"
    return {"estimator": _words({"name": options["kind"], **settings}), **words}


def _called(kind: str, name: str) -> str:
    """Return kind and name, as `Sequential mnist`; a name that repeats the kind is left out."""
    return (
        kind
        if re.sub(r"_\d+$", "", name).replace("_", "").lower() == kind.replace("_", "").lower()
        else (f"{kind} {name}")
    )


# Settings of a Keras optimizer that do not affect its arithmetic, or only together with a different one.
_NO_ARITHMETIC = ("jit_compile", "is_legacy_optimizer")
# Settings of a job's optimizer that disable something.
_NOTHING = (("warmup_steps", 0), ("warmup_from", 0.0), ("gradient_accumulation_steps", 1))
_OF_AVERAGES = ("use_ema", "ema_momentum", "ema_overwrite_frequency")


def _optimizer(optimizer: Any) -> str:
    """Return class and settings of a Keras optimizer, including those of a schedule."""
    try:
        settings = dict(optimizer.get_config())
    except NotImplementedError:  # its schedule is a function
        settings = {}
    left = ("name", *_NO_ARITHMETIC, *(() if settings.get("use_ema") else _OF_AVERAGES))
    settings = {name: value for name, value in settings.items() if name not in left}
    return _words({"name": type(optimizer).__name__, **_plain(settings)})


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without unset ones, floats with the digits of a float32."""
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and "class_name" in value:
            plain[name] = {"name": value["class_name"], **_plain(value.get("config") or {})}
        elif isinstance(value, Mapping):
            plain[name] = _plain(value)
        elif isinstance(value, bool | str | int):
            plain[name] = value
        elif value is not None:
            plain[name] = f"{float(value):.6g}" if hasattr(value, "__float__") else str(value)
    return plain


def _strategy(strategy: Any) -> str:
    # The default strategy counts as none.
    kind = "none" if strategy is None else type(strategy).__name__
    if kind in ("none", "_DefaultDistributionStrategy"):
        return "none"
    return f"{kind}, {counted(strategy.num_replicas_in_sync, 'replica')}"


def _words(section: Mapping[str, Any]) -> str:
    """`name: adam`, `learning_rate: 0.01` -> "adam, learning_rate 0.01"; unset values are left out."""
    rest = dict(section)
    head = rest.pop("name", None) or rest.pop("kind", None)
    words = [] if head is None else [str(head)]
    for name, value in rest.items():
        if isinstance(value, Mapping):
            words += [f"{name} ({_words(value)})"] if value else []
        elif value not in (None, [], ()) and (name, value) not in _NOTHING:
            words.append(f"{name} {value}")
    return ", ".join(words)
