"""Parameters of an `input_fn` and a `model_fn`, which Estimator passes by name."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from estimator_pipeline.testing.report import ComplianceFinding

__all__ = ["INPUT_FN", "MODEL_FN", "check_parameters", "describe", "parameters", "unfilled"]

# The parameters that Estimator passes.
INPUT_FN = ("mode", "params", "config", "input_context")
MODEL_FN = ("features", "labels", "mode", "params", "config")
# Common wrong names that are too different from the correct ones for fuzzy matching.
_ALIASES = {"context": "input_context", "ctx": "input_context", "hparams": "params", "run_config": "config"}


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the positional parameters that Estimator sees, without those that a partial has bound.

    Keyword-only parameters, `**kwargs` and parameters that a decorator hides are invisible to Estimator.
    """
    if isinstance(function, functools.partial):
        inner = parameters(function.func)[len(function.args) :]
        return tuple(name for name in inner if name not in function.keywords)
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = function.__call__  # type: ignore[operator]
    names = inspect.getfullargspec(function).args
    return tuple(names[1:] if inspect.ismethod(function) and names else names)


def describe(function: Callable[..., Any]) -> str:
    """Format a function as `name(its, parameters)` for messages."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    try:
        return f"{name}{inspect.signature(function)}"
    except (TypeError, ValueError):
        return name


def check_parameters(function: Callable[..., Any], known: Sequence[str], *, kind: str) -> None:
    """Raise ComplianceFinding for a parameter that Estimator cannot pass or does not see."""
    text = describe(function)
    allowed = ", ".join(known)
    try:
        seen = parameters(function)
        signature = inspect.signature(function).parameters
        bound = inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError) as error:
        raise ComplianceFinding(
            f"{text} has no signature to read: {error}", hint=f"write it as a plain function of {allowed}"
        )
    for name, parameter in signature.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not named or _is_bound(function, name):
            continue
        if name in known and name not in seen:
            why = "is keyword-only" if name in bound else "is hidden by a decorator"
            raise ComplianceFinding(
                f"Estimator never passes the parameter {name} of {text}: it {why}",
                hint=f"make {name} a plain positional parameter of the outermost function",
            )
        if name in known:
            continue
        meant = _meant(name, [other for other in known if other not in signature])
        if meant:
            reads = ", and every pipeline reads all the data" if meant == "input_context" else ""
            raise ComplianceFinding(
                f"{text} has a parameter {name}, which Estimator does not know; it looks like {meant}. "
                f"Estimator passes arguments only by name, so {meant} is never passed{reads}",
                hint=f"rename {name} to {meant} (the names are {allowed})",
            )
        if parameter.default is parameter.empty and name in seen:
            raise ComplianceFinding(
                f"{text} requires the parameter {name}, which Estimator does not pass",
                hint=f"bind it with functools.partial or give it a default; {kind} may take {allowed}",
            )


def unfilled(function: Callable[..., Any], known: Sequence[str]) -> list[str]:
    """Return the parameters without a default that Estimator does not pass, so that the call fails."""
    seen = parameters(function)
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY, parameter.POSITIONAL_ONLY)
        and not (name in known and name in seen)
    ]


def _is_bound(function: Callable[..., Any], name: str) -> bool:
    return isinstance(function, functools.partial) and name in function.keywords


def _meant(name: str, free: Sequence[str]) -> str | None:
    if _ALIASES.get(name) in free:
        return _ALIASES[name]
    (match,) = difflib.get_close_matches(name.lower(), free, n=1, cutoff=0.8) or (None,)
    return match
