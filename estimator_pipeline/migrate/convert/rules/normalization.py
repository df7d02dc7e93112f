"""`tf.layers.batch_normalization(x, training=training)` -> `tf.keras.layers.BatchNormalization()(x)`.

V1 moves the statistics by the operations of UPDATE_OPS, Keras in `fit`. `train_op.py` checks that the program runs
those operations; a program that does not never moves its statistics, which Keras cannot do.
"""

from __future__ import annotations

from estimator_pipeline.migrate.convert.rule import NETWORK, Call, rule
from estimator_pipeline.migrate.convert.rules.dropout import training

__all__ = ["BATCH_NORMALIZATION", "batch_normalization"]

BATCH_NORMALIZATION = "tf.compat.v1.layers.batch_normalization"
_SAME = ("axis", "momentum", "epsilon", "center", "scale", "beta_initializer", "gamma_initializer",
         "moving_mean_initializer", "moving_variance_initializer", "beta_regularizer", "gamma_regularizer",
         "beta_constraint", "gamma_constraint")  # fmt: skip


@rule(BATCH_NORMALIZATION, at=(NETWORK,))
def batch_normalization(call: Call) -> str:
    args = call.args("inputs", *_SAME, "training", "trainable", "name", "reuse", "renorm", "renorm_clipping",
                     "renorm_momentum", "fused", "virtual_batch_size", "adjustment")  # fmt: skip
    for parameter in ("trainable", "reuse", "renorm", "renorm_clipping", "virtual_batch_size", "adjustment"):
        plain = ("None", "True") if parameter == "trainable" else ("None", "False")
        if parameter in args and not call.is_constant(args[parameter], *plain):
            raise call.refuse(parameter, args[parameter])
    options = call.options({name: args[name] for name in (*_SAME, "name") if name in args})
    layer = f"{call.tf}.keras.layers.BatchNormalization({', '.join(options)})"
    return f"{layer}({call.text(args['inputs'])}{training(call, args)})"
