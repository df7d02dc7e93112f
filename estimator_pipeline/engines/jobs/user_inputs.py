"""User-defined input functions of a job file, with checks of what they return."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError
from estimator_pipeline.job import FunctionInput, Job
from estimator_pipeline.job.user_code import describe_type, load_function, own_code

__all__ = ["UserInputs"]


class UserInputs:
    """Training and evaluation data of a job with `source: function`. The number of records is unknown.

    Args:
        job: The job.
        labelled: Returns whether the model is trained on labels; called when an input function is.

    Raises:
        ConfigError: A function does not exist, or cannot be called with the required arguments.
    """

    features_spec = None
    single_feature = None
    num_train_records = None
    num_classes = None

    def __init__(self, job: Job, *, labelled: Callable[[], bool]) -> None:
        section = job.input
        assert isinstance(section, FunctionInput)
        self._params = dict(section.params)
        self._engine, self._labelled = job.run.engine, labelled
        self.train_input_fn = self._bound(section.train, field="input.train", to_the_end=False)
        self.eval_input_fn = self._bound(section.eval, field="input.eval", to_the_end=job.eval.steps is None)

    def _bound(self, reference: str, *, field: str, to_the_end: bool) -> Callable[..., Any]:
        function = load_function(reference, field=field)
        signature = inspect.signature(function)
        name = f"{reference.rpartition(':')[2]}{signature}"
        if "input_context" not in signature.parameters:
            raise ConfigError(
                f"{field}: {reference} has no parameter `input_context`",
                code="data/bad-input-fn",
                found=name,
                hint="add `input_context=None` and shard by it: without it every worker reads the same records",
            )
        try:
            signature.bind(input_context=None, **self._params)
        except TypeError as error:
            raise ConfigError(
                f"{field}: {reference} cannot be called with input.params: {error}",
                code="data/bad-input-fn",
                found=f"{name}; input.params: {', '.join(self._params) or 'none'}",
                hint="give input.params the names of its parameters, for training and evaluation alike",
            ) from error

        # TensorFlow passes the context by the parameter's name, and not to a function that has only **kwargs.
        def input_fn(input_context: Any = None) -> Any:
            with own_code(f"{field}: {reference}", kind=_failure, code="data/bad-input-fn"):
                data = function(input_context=input_context, **self._params)
            self._check(data, f"{field}: {reference}", to_the_end=to_the_end)
            return data

        return input_fn

    def _check(self, data: Any, who: str, *, to_the_end: bool) -> None:
        tf = compat.tensorflow()
        labelled, pair = self._labelled(), isinstance(data, tuple) and len(data) == 2
        hint = "return a tf.data.Dataset of (features, labels)"
        if isinstance(data, tf.data.Dataset):
            spec = data.element_spec
            if labelled and not (isinstance(spec, tuple) and len(spec) == 2):
                raise ConfigError(
                    f"{who} gives no labels" if not isinstance(spec, tuple) else f"{who} gives other than two things",
                    code="data/bad-input-fn",
                    found=f"elements {_short(spec)}",
                    hint=f"{hint}; weights of records go into them, see input.weight_key",
                )
            if to_the_end and tf.executing_eagerly() and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
                raise ConfigError(
                    f"{who} gives data without an end, and an evaluation reads to the end",
                    code="data/endless",
                    found="a dataset that is repeated forever, and eval.steps null",
                    hint="leave repeat() out of it, or set eval.steps",
                )
            return
        if self._engine != "estimator":
            raise ConfigError(
                f"{who} returns {describe_type(data)}, and the engine {self._engine} reads a tf.data.Dataset",
                code="data/bad-input-fn",
                found=_short(data),
                hint=hint,
            )
        if not (pair if labelled else pair or tf.is_tensor(data) or isinstance(data, Mapping)):
            raise ConfigError(
                f"{who} returns {describe_type(data)}", code="data/bad-input-fn", found=_short(data), hint=hint
            )
        if to_the_end and _never_ends(data):
            raise ConfigError(
                f"{who} gives the same tensors again and again, and an evaluation reads to the end",
                code="data/endless",
                found="constant tensors, and eval.steps null",
                hint=f"{hint}, or set eval.steps",
            )


def _failure(error: Exception) -> type[PipelineError]:
    """Return ConfigError for bad input, TaskFailedError if a retry may succeed, such as after a lost file system."""
    tf = compat.tensorflow()
    lasting = (FileNotFoundError, tf.errors.NotFoundError, tf.errors.InvalidArgumentError)
    passing = (OSError, MemoryError, tf.errors.OpError)
    return TaskFailedError if isinstance(error, passing) and not isinstance(error, lasting) else ConfigError


def _never_ends(data: Any) -> bool:
    """Return whether tensors depend only on constants, so that they never run out of records."""
    tf = compat.tensorflow()
    tensors = [tensor for tensor in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(tensor)]
    if tf.executing_eagerly():
        return True
    seen, waiting = set(), [tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if operation.op_def.is_stateful:
            return False
        if operation not in seen:
            seen.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
    return True


def _short(value: Any) -> str:
    """Return the value in one line; tensors as dtype and shape."""
    tf = compat.tensorflow()
    with contextlib.suppress(TypeError, ValueError):  # a structure without order, such as a dict of mixed keys
        value = tf.nest.map_structure(lambda leaf: _TensorText(leaf) if tf.is_tensor(leaf) else leaf, value)
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


class _TensorText:
    def __init__(self, tensor: Any) -> None:
        self._text = f"{tensor.dtype.name} {tensor.shape}"

    def __repr__(self) -> str:
        return self._text
