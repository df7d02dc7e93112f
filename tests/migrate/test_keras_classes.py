"""Classes that come from tf.estimator.Estimator: what becomes of them, and which are declined."""

from __future__ import annotations

import pytest

from estimator_pipeline.migrate.code import convert
from estimator_pipeline.migrate.code.to_keras import convert_file as conversion

# What becomes Keras as a whole, and what declines a file.

PROGRAM = """import tensorflow as tf


def spec_of(mode, logits, labels, rate):
    loss = tf.compat.v1.losses.mean_squared_error(labels, logits)
    train_op = tf.compat.v1.train.AdamOptimizer(rate).minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, {'y': logits}, loss, train_op)


class Deep(tf.estimator.Estimator):
    \"\"\"A network, and how it is tried.

    Two lines more.
    \"\"\"

    def __init__(self, units, rate=0.1, activation=tf.nn.relu, model_dir=None, config=None):
        \"\"\"Makes it.\"\"\"
        width = 2 * units

        def _model_fn(features, labels, mode, params):
            # Two layers.
            net = self._hidden(features['x'], width, activation)
            logits = tf.compat.v1.layers.dense(net, params['outputs'], name='logits')
            return spec_of(mode, logits, labels, rate)

        super().__init__(_model_fn, model_dir=model_dir, config=config, params={'outputs': 1})

    # The first layer.
    def _hidden(self, x, width, activation):
        return tf.compat.v1.layers.dense(x, width, activation, name=self._name(0))

    @staticmethod
    def _name(at):
        return 'hidden_%d' % at

    def tried(self, at, text='''a
  b'''):
        return at, text, self.evaluate(input_fn)


def input_fn():
    return tf.data.Dataset.from_tensors(({'x': [[1.]]}, [[2.]])).repeat(9)


def main():
    deep = Deep(4, activation=tf.nn.tanh, model_dir='model')
    deep.train(input_fn, steps=100)
    print(deep.tried(1))


if __name__ == '__main__':
    main()
"""


@pytest.fixture(autouse=True)
def defects_are_raised(monkeypatch):
    monkeypatch.setattr(conversion, "DEFECTS", ())


def converted(tmp_path, change: dict[str, str] | None = None):
    text = PROGRAM
    for before, after in (change or {}).items():
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "old.py").write_text(text)
    (made,) = convert(tmp_path / "old.py").files
    return made


def test_the_class_is_the_model(tmp_path):
    """Its methods stay methods; what it was made with goes to what makes it, and only what it needs."""
    made = converted(tmp_path)
    assert made.keras and not made.left and not made.unchanged, made.kept_as_estimator
    for text in (
        'class Deep(tf.keras.Model):\n    """A network, and how it is tried.\n\n    Two lines more.\n    """\n',
        "    # The first layer.\n    @staticmethod\n    def _hidden(x, width, activation):\n"
        "        return tf.keras.layers.Dense(width, activation, name=Deep._name(0))(x)\n",
        "    def tried(self, at, text='''a\n  b'''):\n"
        "        return at, text, self.evaluate(input_fn(), return_dict=True, verbose=0)\n",
        "def make_deep(features, params, units, rate=0.1, activation=tf.nn.relu):\n",
        "    width = 2 * units\n    # Two layers.\n    net = Deep._hidden(features['x'], width, activation)\n",
        "    model = make_deep(model_inputs(training), {'outputs': 1}, units=4, activation=tf.nn.tanh)\n",
        "    print(model.tried(1))\n",
    ):
        assert text in made.after, made.after
    assert "functools" not in made.after and "ep_class" not in made.after


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"class Deep(": "class Base(tf.estimator.Estimator):\n    pass\n\n\nclass Deep("},
         "line 11: a subclass of Estimator with members other than methods"),
        ({"def input_fn": "class Deeper(Deep):\n    pass\n\n\ndef input_fn"}, "of another subclass of Estimator"),
        ({"class Deep(tf": "@final\nclass Deep(tf"}, "with several bases, or inside another block"),
        ({"    # The first": "    depth = 1\n\n    # The first"}, "with members other than methods"),
        ({"def __init__": "def set_up"}, "without its own __init__"),
        ({"def tried": "def evaluate"}, "a method evaluate of a subclass of Estimator"),
        ({"    def tried": "    @property\n    def tried"}, "a method tried of a subclass of Estimator"),
        ({"config=None)": "**options)", "config=config, ": ""}, "has a decorator, *args, **kwargs"),
        ({"width = 2 * units": "self.width = 2 * units"}, "does more than pass on its model_fn"),
        ({"width = 2 * units": "units = 2 * units"}, "assigns a name several times"),
        ({"super().__init__(_model_fn": "super().__init__(spec_of"}, "is not defined in its __init__"),
        ({"'outputs': 1}": "'outputs': width}"}, "width, which Deep computes for its base class"),
        ({"params={'outputs': 1}": "**{}"}, "whose arguments for its base class are not known statically"),
        ({"params['outputs']": "self.params['outputs']"}, "other than methods"),
        ({"labels, rate)\n\n        super": "labels, self)\n\n        super"},
         "that passes on its Estimator"),
        ({"Deep(4, ": "Deep(*[4], "}, "arguments of Deep that are not known statically"),
        ({"Deep(4, ": "Deep("}, "arguments of Deep that are not known statically"),
        ({"print(deep.": "print(isinstance(deep, Deep), deep."}, "in other ways than by calling it"),
        ({"print(deep.tried(1))": "print(map(deep.tried, [1]))"}, "deep.tried has no counterpart"),
        ({"print(deep.tried(1))": "print(deep._hidden(1, 2, 3))"}, "that is also called on the Estimator"),
        ({"print(deep.tried(1))": "print(Deep.tried(deep, 1))"}, "that is not called on an object"),
        ({"self.evaluate(input_fn)": "self.train(input_fn)"}, "the return value of train is used"),
        ({"2 * units": "units", "model_dir=model_dir": "model_dir='a' * units", "Deep(4": "Deep(len('a')"},
         "units, which Deep uses in several places"),
    ],
)  # fmt: skip
def test_classes_that_are_declined(tmp_path, change, reason):
    made = converted(tmp_path, change)
    assert not made.keras and made.before == made.after
    assert reason in made.kept_as_estimator and "ep_class" not in made.kept_as_estimator, made.kept_as_estimator
