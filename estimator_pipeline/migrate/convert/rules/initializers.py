"""Initializers: `tf.truncated_normal_initializer(stddev=0.1)` -> `TruncatedNormal(stddev=0.1)`.

Names and arguments are equal except for defaults: V1's normal initializers have a standard deviation of 1, Keras's of
0.05 (tests/migrate/test_equals.py, `init-*`), so that V1's default is written.
"""

from __future__ import annotations

from estimator_pipeline.migrate.convert.rule import NETWORK, SETUP, Call, rule

__all__ = ["initializer"]

# V1 name -> (Keras class, parameters, V1 defaults that Keras does not share).
_INITIALIZERS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "variance_scaling_initializer": ("VarianceScaling", ("scale", "mode", "distribution", "seed"), {}),
    "glorot_uniform_initializer": ("GlorotUniform", ("seed",), {}),
    "glorot_normal_initializer": ("GlorotNormal", ("seed",), {}),
    "truncated_normal_initializer": ("TruncatedNormal", ("mean", "stddev", "seed"), {"stddev": "1.0"}),
    "random_normal_initializer": ("RandomNormal", ("mean", "stddev", "seed"), {"stddev": "1.0"}),
    "random_uniform_initializer": (
        "RandomUniform", ("minval", "maxval", "seed"), {"minval": "0.0", "maxval": "1.0"}),
    "orthogonal_initializer": ("Orthogonal", ("gain", "seed"), {}),
    "constant_initializer": ("Constant", ("value",), {}),
    "zeros_initializer": ("Zeros", (), {}),
    "ones_initializer": ("Ones", (), {}),
}  # fmt: skip


@rule(*(f"tf.compat.v1.{name}" for name in _INITIALIZERS), at=(NETWORK, SETUP))
@rule(
    *(
        f"tf.{name}"
        for name in (
            "zeros_initializer",
            "ones_initializer",
            "constant_initializer",
            "random_normal_initializer",
            "random_uniform_initializer",
        )
    ),
    at=(NETWORK, SETUP),
)
def initializer(call: Call) -> str:
    """Write the class of Keras; those of TensorFlow 2 are the same by another name, with its defaults."""
    of_v1 = call.name.startswith("tf.compat.v1.")
    keras, parameters, defaults = _INITIALIZERS[call.name.rpartition(".")[2]]
    args = call.args(*parameters, "dtype") if of_v1 or keras == "Constant" else call.args(*parameters)
    args.pop("dtype", None)
    texts = {parameter: call.text(value) for parameter, value in args.items()}
    written = {**{name: value for name, value in defaults.items() if of_v1 and name not in texts}, **texts}
    options = [value if position == 0 and parameter in ("scale", "value") else f"{parameter}={value}"
               for position, (parameter, value) in enumerate(written.items())]  # fmt: skip
    return f"{call.tf}.keras.initializers.{keras}({', '.join(options)})"
