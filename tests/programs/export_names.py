"""Prints the names under which TensorFlow's own look-ups know each public symbol of tf.estimator, as JSON.

    python export_names.py > FILE
"""

import json
import types

import tensorflow as tf
from tensorflow.python.util import tf_export

OTHERS = {
    "tf.nn.relu": tf.nn.relu,
    "tf.train.Checkpoint": tf.train.Checkpoint,
    "tf.compat.v1.train.Saver": tf.compat.v1.train.Saver,
    "subclass": type("Mine", (tf.estimator.Estimator,), {}),
    "subclass of v1": type("Mine", (tf.compat.v1.estimator.Estimator,), {}),
}


def symbols(name, module, seen=()):
    for attribute in sorted(dir(module)):
        value = getattr(module, attribute)
        if attribute.startswith("_") or not callable(value) and not isinstance(value, types.ModuleType):
            continue
        if isinstance(value, types.ModuleType):
            if value not in seen:
                yield from symbols(name + "." + attribute, value, (*seen, module))
        else:
            yield name + "." + attribute, value


def names(symbol):
    return {
        "v1": tf_export.get_v1_names(symbol),
        "v2": tf_export.get_v2_names(symbol),
        "canonical": tf_export.get_canonical_name_for_symbol(symbol),
        "canonical of estimator": tf_export.get_canonical_name_for_symbol(symbol, api_name="estimator"),
        "found by name": [
            name
            for name in tf_export.get_v1_names(symbol) + tf_export.get_v2_names(symbol)
            if tf_export.get_symbol_from_name(name) is symbol
        ],
    }


def main():
    found = dict(OTHERS)
    found.update(symbols("tf.estimator", tf.estimator))
    found.update(symbols("tf.compat.v1.estimator", tf.compat.v1.estimator))
    print("{")
    print(",\n".join("%s: %s" % (json.dumps(path), json.dumps(names(value))) for path, value in found.items()))
    print("}")


main()
