"""What an exported model of a job takes, and how that becomes the model's features: `input.serving`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.input_fn import parsed_examples
from estimator_pipeline.job import Job
from estimator_pipeline.job.user_code import call_function, describe_type, load_function

__all__ = ["Serving", "serving_of"]

_FIELD = "input.serving"
_HINT = (
    "return a tf.TensorSpec of one record for each name, {'x': tf.TensorSpec([4], tf.float32)}; or these and a "
    "function that returns the model's features from the tensors"
)


@dataclasses.dataclass(frozen=True)
class Serving:
    """The inputs of an exported model.

    Attributes:
        specs: Name -> `tf.TypeSpec` of one record (no batch axis); None: unknown.
        transform: Its `bind(tf)` has `served(tensors)`, which returns the model's features, and `resources`; None: the
            tensors are the features.
        single: Whether the model takes the only tensor, not a dictionary.
        parse_examples: Returns the tensors of serialized `tf.Example` records; None: unknown.
    """

    specs: Mapping[str, Any] | None
    transform: Any
    single: bool
    parse_examples: Callable[[Any], dict[str, Any]] | None


class _Converter:
    """The transformation of a user's function."""

    resources: tuple[Any, ...] = ()

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self.served = function

    def bind(self, tf: ModuleType) -> _Converter:
        return self


def serving_of(job: Job, data: Any) -> Serving:
    """Return the inputs of the job's exports: those of `input.serving`, or the features of its data.

    Args:
        job: The job.
        data: Its data; None: `input.serving` is set.

    Raises:
        ConfigError: The function does not exist, fails, or returns something else.
    """
    reference = job.input.serving
    if reference is None:
        return Serving(data.serving_spec, data.transform, data.single_feature is not None, data.parse_examples)
    tf = compat.tensorflow()
    specs = call_function(load_function(reference, field=_FIELD), reference=reference, field=_FIELD)
    convert = None
    if isinstance(specs, tuple) and len(specs) == 2 and callable(specs[1]):
        specs, convert = specs
    single = not isinstance(specs, Mapping)
    named = {"features": specs} if single else dict(specs)
    wrong = {name: spec for name, spec in named.items() if not isinstance(spec, tf.TensorSpec | tf.SparseTensorSpec)}
    if wrong or not named:
        name = next(iter(wrong), None)
        raise ConfigError(
            f"{_FIELD}: {reference} does not return the inputs of the export",
            code="model/bad-function",
            found=f"{name}: {describe_type(wrong[name])}" if name else "no inputs",
            hint=_HINT,
        )
    return Serving(
        named,
        None if convert is None else _Converter(convert),
        single and convert is None,
        lambda records: parsed_examples(tf, records, named, optional=False),
    )
