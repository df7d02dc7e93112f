"""`tf.contrib.rnn`: cells and functions that `tf.compat.v1.nn` does not have, with their old variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_rnn_ops

__all__ = [
    "FusedRNNCell",
    "FusedRNNCellAdaptor",
    "LSTMBlockCell",
    "LSTMBlockFusedCell",
    "LayerNormBasicLSTMCell",
    "TimeReversedFusedRNN",
    "stack_bidirectional_dynamic_rnn",
]

_v1: Any = tf.compat.v1
_cells: Any = _v1.nn.rnn_cell


class FusedRNNCell:
    """A network for whole sequences: inputs [time, batch, size] -> (outputs, final state)."""


class LSTMBlockFusedCell(_v1.layers.Layer, FusedRNNCell):
    """An LSTM for whole sequences in one operation. Variables: "kernel", "bias", and the peepholes' "w_?_diag".

    Args:
        num_units: The size of the state.
        forget_bias: Added to the forget gate's bias.
        cell_clip: The bound of the cell's state; None: no bound.
        use_peephole: Whether gates depend on the cell's state.
        reuse: Whether the variables exist.
        dtype: The dtype of the variables.
        name: The layer's name.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        reuse: bool | None = None,
        dtype: Any = None,
        name: str = "lstm_fused_cell",
    ) -> None:
        super().__init__(_reuse=reuse, name=name, dtype=dtype)
        self._num_units, self._forget_bias, self._use_peephole = num_units, forget_bias, use_peephole
        self._cell_clip = -1 if cell_clip is None else cell_clip

    @property
    def num_units(self) -> int:
        return self._num_units

    def build(self, input_shape: Any) -> None:
        size = tf.TensorShape(input_shape).as_list()[2]
        self._kernel = self.add_weight("kernel", [size + self._num_units, self._num_units * 4])
        self._bias = self.add_weight("bias", [self._num_units * 4], initializer=_v1.zeros_initializer())
        if self._use_peephole:
            self._diagonals = {gate: self.add_weight(f"w_{gate}_diag", [self._num_units]) for gate in ("i", "f", "o")}
        self.built = True

    def call(self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None) -> Any:
        """Run the LSTM.

        Args:
            inputs: [time, batch, size], or a list of [batch, size].
            initial_state: (cell, output), each [batch, num_units]; zeros by default.
            dtype: The dtype of the zeros.
            sequence_length: [batch]: after it outputs are 0 and the state is unchanged.

        Returns:
            Outputs, [time, batch, num_units] or a list, and the final LSTMStateTuple.
        """
        is_list = isinstance(inputs, list)
        inputs = tf.stack(inputs) if is_list else inputs
        time, batch = tf.shape(inputs)[0], tf.shape(inputs)[1]
        if initial_state is None:
            zeros = tf.zeros([batch, self._num_units], dtype or inputs.dtype)
            initial_state = (zeros, zeros)
        cell, output = initial_state
        none = tf.zeros([self._num_units], cell.dtype)
        gates = self._diagonals if self._use_peephole else dict.fromkeys("ifo", none)
        longest = time if sequence_length is None else tf.reduce_max(sequence_length)
        results = gen_rnn_ops.block_lstm(
            seq_len_max=tf.cast(longest, tf.int64),
            x=inputs,
            cs_prev=cell,
            h_prev=output,
            w=self._kernel,
            wci=gates["i"],
            wcf=gates["f"],
            wco=gates["o"],
            b=self._bias,
            forget_bias=self._forget_bias,
            cell_clip=self._cell_clip,
            use_peephole=self._use_peephole,
        )
        cells, outputs = results[1], results[6]
        if sequence_length is None:
            state = _cells.LSTMStateTuple(cells[-1], outputs[-1])
        else:
            mask = tf.transpose(tf.sequence_mask(sequence_length, time, dtype=outputs.dtype))
            outputs = outputs * mask[:, :, tf.newaxis]
            at = tf.stack([tf.cast(sequence_length, tf.int32), tf.range(batch)], axis=1)
            state = _cells.LSTMStateTuple(
                tf.gather_nd(tf.concat([cell[tf.newaxis], cells], 0), at),
                tf.gather_nd(tf.concat([output[tf.newaxis], outputs], 0), at),
            )
        return (tf.unstack(outputs) if is_list else outputs), state


class LSTMBlockCell(_cells.BasicLSTMCell):
    """`BasicLSTMCell` under a different name, with the same arithmetic and variables."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Any = None,
        reuse: bool | None = None,
        name: str = "lstm_cell",
    ) -> None:
        if cell_clip is not None or use_peephole:
            raise ValueError("LSTMBlockCell with cell_clip or use_peephole: use tf.nn.rnn_cell.LSTMCell")
        super().__init__(num_units, forget_bias=forget_bias, dtype=dtype, reuse=reuse, name=name)


class FusedRNNCellAdaptor(FusedRNNCell):
    """A cell of `tf.nn.rnn_cell` as a network for whole sequences.

    Args:
        cell: The cell.
        use_dynamic_rnn: Whether to loop over time in the graph; otherwise it is unrolled.
    """

    def __init__(self, cell: Any, use_dynamic_rnn: bool = False) -> None:
        self._cell, self._dynamic = cell, use_dynamic_rnn

    def __call__(
        self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None, scope: Any = None
    ) -> Any:
        is_list = isinstance(inputs, list)
        options = {"initial_state": initial_state, "dtype": dtype, "sequence_length": sequence_length, "scope": scope}
        if not self._dynamic:
            outputs, state = _v1.nn.static_rnn(self._cell, inputs if is_list else tf.unstack(inputs), **options)
            return (outputs if is_list else tf.stack(outputs)), state
        outputs, state = _v1.nn.dynamic_rnn(
            self._cell, tf.stack(inputs) if is_list else inputs, time_major=True, **options
        )
        return (tf.unstack(outputs) if is_list else outputs), state


class TimeReversedFusedRNN(FusedRNNCell):
    """A network for reversed sequences, each within its length, with reversed outputs."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def __call__(
        self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None, scope: Any = None
    ) -> Any:
        options = {} if scope is None else {"scope": scope}
        outputs, state = self._cell(
            _reversed(inputs, sequence_length), initial_state, dtype=dtype, sequence_length=sequence_length, **options
        )
        return _reversed(outputs, sequence_length), state


def _reversed(values: Any, lengths: Any) -> Any:
    if isinstance(values, list):
        if lengths is None:
            return values[::-1]
        return tf.unstack(_reversed(tf.stack(values), lengths))
    if lengths is None:
        return tf.reverse(values, [0])
    return tf.reverse_sequence(values, lengths, seq_axis=0, batch_axis=1)


class LayerNormBasicLSTMCell(_cells.RNNCell):
    """An LSTM cell with layer normalization of its gates and state, and dropout of state updates.

    Args:
        num_units: The size of the state.
        forget_bias: Added to the forget gate.
        input_size: Not used.
        activation: The activation of the state.
        layer_norm: Whether to normalize; otherwise the cell has a bias.
        norm_gain: The initial scale of a normalization.
        norm_shift: The initial offset of a normalization.
        dropout_keep_prob: The probability of keeping an update.
        dropout_prob_seed: The seed of the dropout.
        reuse: Whether the variables exist.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: Any = None,
        activation: Any = tf.tanh,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: Any = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: bool | None = None,
    ) -> None:
        super().__init__(_reuse=reuse)
        self._num_units, self._forget_bias, self._activation = num_units, forget_bias, activation
        self._layer_norm, self._gain, self._shift = layer_norm, norm_gain, norm_shift
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self) -> Any:
        return _cells.LSTMStateTuple(self._num_units, self._num_units)

    @property
    def output_size(self) -> int:
        return self._num_units

    def _normalized(self, value: Any, scope: str) -> Any:
        if not self._layer_norm:
            return value
        size, dtype = [value.shape.as_list()[-1]], value.dtype
        with _v1.variable_scope(scope):
            gamma = _v1.get_variable("gamma", size, dtype, _v1.constant_initializer(self._gain))
            beta = _v1.get_variable("beta", size, dtype, _v1.constant_initializer(self._shift))
        mean, variance = tf.nn.moments(value, [-1], keepdims=True)
        # The epsilon of tf.contrib.layers.layer_norm.
        return tf.nn.batch_normalization(value, mean, variance, beta, gamma, 1e-12)

    def call(self, inputs: Any, state: Any) -> Any:
        cell, output = state
        both = tf.concat([inputs, output], 1)
        units = 4 * self._num_units
        gates = tf.matmul(both, _v1.get_variable("kernel", [both.shape.as_list()[1], units], both.dtype))
        if not self._layer_norm:
            gates = tf.nn.bias_add(gates, _v1.get_variable("bias", [units], both.dtype))
        gate, new, forget, out = tf.split(gates, 4, axis=1)
        gate, new = self._normalized(gate, "input"), self._activation(self._normalized(new, "transform"))
        forget, out = self._normalized(forget, "forget"), self._normalized(out, "output")
        if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
            new = tf.nn.dropout(new, rate=1 - self._keep_prob, seed=self._seed)
        cell = self._normalized(cell * tf.sigmoid(forget + self._forget_bias) + tf.sigmoid(gate) * new, "state")
        output = self._activation(cell) * tf.sigmoid(out)
        return output, _cells.LSTMStateTuple(cell, output)


def stack_bidirectional_dynamic_rnn(
    cells_fw: list[Any],
    cells_bw: list[Any],
    inputs: Any,
    initial_states_fw: list[Any] | None = None,
    initial_states_bw: list[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> Any:
    """Stack bidirectional RNN layers, each with both outputs of the previous layer as inputs.

    Returns:
        The last layer's concatenated outputs, and the final forward and backward states of each layer.

    Raises:
        ValueError: There are no cells, or different numbers of forward and backward cells.
    """
    if not cells_fw or not isinstance(cells_fw, list) or not isinstance(cells_bw, list):
        raise ValueError("cells_fw and cells_bw must be lists of RNNCells (one per layer).")
    if len(cells_fw) != len(cells_bw):
        raise ValueError("Forward and Backward cells must have the same depth.")
    forward, backward = [], []
    with _v1.variable_scope(scope or "stack_bidirectional_rnn"):
        for index, (cell_fw, cell_bw) in enumerate(zip(cells_fw, cells_bw, strict=True)):
            with _v1.variable_scope(f"cell_{index}"):
                outputs, (state_fw, state_bw) = _v1.nn.bidirectional_dynamic_rnn(
                    cell_fw,
                    cell_bw,
                    inputs,
                    sequence_length=sequence_length,
                    initial_state_fw=initial_states_fw[index] if initial_states_fw else None,
                    initial_state_bw=initial_states_bw[index] if initial_states_bw else None,
                    dtype=dtype,
                    parallel_iterations=parallel_iterations,
                    swap_memory=swap_memory,
                    time_major=time_major,
                )
                inputs = tf.concat(outputs, 2)
            forward.append(state_fw)
            backward.append(state_bw)
    return inputs, tuple(forward), tuple(backward)
