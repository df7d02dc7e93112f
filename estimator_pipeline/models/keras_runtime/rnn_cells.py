"""The RNN cells of `tf.compat.v1.nn.rnn_cell` as cells of `tf.keras.layers.RNN`, and `dynamic_rnn`.

The cells of Keras have the same equations, but different variables. These cells have the variables of TensorFlow 1: one
kernel for the concatenated input and state, the gates of an LSTM in the order input, new value, forget, output, those
of a GRU in the order reset, update. So weights trained with one can be used with the other. Sources: Hochreiter and
Schmidhuber 1997 with the forget gate of Gers et al. 1999; Cho et al. 2014, equations of the appendix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_pipeline import compat
from estimator_pipeline.errors import ConfigError

__all__ = ["DropoutWrapper", "GRUCell", "LSTMCell", "MultiRNNCell", "dynamic_rnn"]


def LSTMCell(num_units: int, forget_bias: float = 1.0, initializer: Any = None, name: str | None = None) -> Any:
    """Return an LSTM cell; its state is [cell state, output]."""
    return _classes()["LSTMCell"](num_units, forget_bias, initializer, name=name)


def GRUCell(num_units: int, kernel_initializer: Any = None, name: str | None = None) -> Any:
    """Return a GRU cell that applies the reset gate before the product with the kernel."""
    return _classes()["GRUCell"](num_units, kernel_initializer, name=name)


def DropoutWrapper(cell: Any, output_keep_prob: float = 1.0) -> Any:
    """Return a cell with dropout on its outputs, but not on its states, in training."""
    return _classes()["DropoutCell"](cell, output_keep_prob)


def MultiRNNCell(cells: Sequence[Any]) -> Any:
    """Return a cell that stacks several cells."""
    return compat.tensorflow().keras.layers.StackedRNNCells(list(cells))


def dynamic_rnn(
    cell: Any, inputs: Any, sequence_length: Any = None, initializer: Any = None, name: str | None = None
) -> tuple[Any, Any]:
    """Run a cell over time, from a zero state.

    Args:
        cell: A cell of this module.
        inputs: [batch, time, k].
        sequence_length: The number of steps of each example, [batch]. After them, outputs are 0 and the state is
            unchanged.
        initializer: The initializer of kernels without an explicit one.
        name: The name of the layer.

    Returns:
        (outputs [batch, time, units], the last states as a list).

    Raises:
        ConfigError: `cell` is not a cell of this module.
    """
    tf = compat.tensorflow()
    kinds: Any = tuple(_classes().values())
    for part in getattr(cell, "cells", [cell]):
        if not isinstance(part, kinds):
            raise ConfigError(
                f"dynamic_rnn with a cell {type(part).__name__}",
                code="argument/bad-value",
                hint="use cells of estimator_pipeline.models.keras_runtime.rnn_cells, or tf.keras.layers.RNN for the "
                "cells of Keras",
            )
        if part.kernel_initializer is None:
            part.kernel_initializer = initializer
    layer = tf.keras.layers.RNN(
        cell, return_sequences=True, return_state=True, zero_output_for_mask=True, name=name
    )  # fmt: skip
    options = {}
    if sequence_length is not None:
        options["mask"] = tf.sequence_mask(sequence_length, tf.shape(inputs)[1])
    outputs, *states = layer(inputs, **options)
    return outputs, states


@functools.cache
def _classes() -> Mapping[str, Callable[..., Any]]:
    tf = compat.tensorflow()
    layer = tf.keras.layers.Layer

    class LSTMCell(layer):  # type: ignore[misc,valid-type]
        """An LSTM with sigmoid gates and tanh for new values."""

        def __init__(self, units: int, forget_bias: float, initializer: Any, **options: Any) -> None:
            super().__init__(**options)
            self.units, self.forget_bias, self.kernel_initializer = units, forget_bias, initializer
            self.state_size, self.output_size = [units, units], units

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(
                name="kernel", shape=[shape[-1] + self.units, 4 * self.units],
                initializer=self.kernel_initializer or "glorot_uniform",
            )  # fmt: skip
            self.bias = self.add_weight(name="bias", shape=[4 * self.units], initializer="zeros")
            super().build(shape)

        def call(self, inputs: Any, states: Any) -> Any:
            memory, output = states
            gates = tf.matmul(tf.concat([inputs, output], axis=1), self.kernel) + self.bias
            input_gate, new, forget_gate, output_gate = tf.split(gates, 4, axis=1)
            memory = tf.sigmoid(forget_gate + self.forget_bias) * memory + tf.sigmoid(input_gate) * tf.tanh(new)
            output = tf.sigmoid(output_gate) * tf.tanh(memory)
            return output, [memory, output]

    class GRUCell(layer):  # type: ignore[misc,valid-type]
        """A GRU whose gates have an initial bias of 1."""

        def __init__(self, units: int, initializer: Any, **options: Any) -> None:
            super().__init__(**options)
            self.units, self.kernel_initializer = units, initializer
            self.state_size = self.output_size = units

        def build(self, shape: Any) -> None:
            width, first = shape[-1] + self.units, self.kernel_initializer or "glorot_uniform"
            self.gates_kernel = self.add_weight(name="gates/kernel", shape=[width, 2 * self.units], initializer=first)
            self.gates_bias = self.add_weight(name="gates/bias", shape=[2 * self.units], initializer="ones")
            self.kernel = self.add_weight(name="candidate/kernel", shape=[width, self.units], initializer=first)
            self.bias = self.add_weight(name="candidate/bias", shape=[self.units], initializer="zeros")
            super().build(shape)

        def call(self, inputs: Any, states: Any) -> Any:
            state = states[0] if isinstance(states, list | tuple) else states
            gates = tf.sigmoid(tf.matmul(tf.concat([inputs, state], axis=1), self.gates_kernel) + self.gates_bias)
            reset, update = tf.split(gates, 2, axis=1)
            new = tf.tanh(tf.matmul(tf.concat([inputs, reset * state], axis=1), self.kernel) + self.bias)
            state = update * state + (1 - update) * new
            return state, [state]

    class DropoutCell(layer):  # type: ignore[misc,valid-type]
        """A cell with a different dropout mask at each step."""

        def __init__(self, cell: Any, keep: float) -> None:
            super().__init__()
            self.cell, self.keep = cell, keep
            self.state_size, self.output_size = cell.state_size, cell.output_size

        @property
        def kernel_initializer(self) -> Any:
            return self.cell.kernel_initializer

        @kernel_initializer.setter
        def kernel_initializer(self, initializer: Any) -> None:
            self.cell.kernel_initializer = initializer

        def call(self, inputs: Any, states: Any, training: bool | None = None) -> Any:
            outputs, states = self.cell(inputs, states)
            return (tf.nn.dropout(outputs, 1 - self.keep) if training else outputs), states

    return {"LSTMCell": LSTMCell, "GRUCell": GRUCell, "DropoutCell": DropoutCell}
