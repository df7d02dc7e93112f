"""Classes that come from tf.estimator.Estimator: what becomes of them, and which are declined."""

from __future__ import annotations

import functools

import pytest

from estimator_pipeline.migrate import code as migrate_code
from estimator_pipeline.migrate.code.to_keras import convert_file as conversion

# What becomes Keras as a whole, and what declines a file.
convert = functools.partial(migrate_code.convert, to="keras-layers")

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
         "line 11: a class of Estimators with more than methods"),
        ({"def input_fn": "class Deeper(Deep):\n    pass\n\n\ndef input_fn"}, "comes from another class of Estimators"),
        ({"class Deep(tf": "@final\nclass Deep(tf"}, "with further bases, or within another block"),
        ({"    # The first": "    depth = 1\n\n    # The first"}, "with more than methods"),
        ({"def __init__": "def set_up"}, "without a model_fn of its own"),
        ({"def tried": "def evaluate"}, "a method evaluate of a class of Estimators"),
        ({"    def tried": "    @property\n    def tried"}, "a method tried of a class of Estimators"),
        ({"config=None)": "**options)", "config=config, ": ""}, "that takes any arguments"),
        ({"width = 2 * units": "self.width = 2 * units"}, "does more than to hand its model_fn on"),
        ({"width = 2 * units": "units = 2 * units"}, "gives a name several values"),
        ({"super().__init__(_model_fn": "super().__init__(spec_of"}, "is no function of its __init__"),
        ({"'outputs': 1}": "'outputs': width}"}, "width, which Deep works out and hands its Estimator"),
        ({"params={'outputs': 1}": "**{}"}, "whose arguments cannot be told"),
        ({"params['outputs']": "self.params['outputs']"}, "for more than methods"),
        ({"labels, rate)\n\n        super": "labels, self)\n\n        super"},
         "that hands on the Estimator that it belongs to"),
        ({"Deep(4, ": "Deep(*[4], "}, "what Deep is made with cannot be told"),
        ({"Deep(4, ": "Deep("}, "what Deep is made with cannot be told"),
        ({"print(deep.": "print(isinstance(deep, Deep), deep."}, "a class of Estimators that is more than called"),
        ({"print(deep.tried(1))": "print(map(deep.tried, [1]))"}, "deep.tried has no counterpart"),
        ({"print(deep.tried(1))": "print(deep._hidden(1, 2, 3))"}, "model_fn that is called of the Estimator"),
        ({"print(deep.tried(1))": "print(Deep.tried(deep, 1))"}, "that is not called of an object"),
        ({"self.evaluate(input_fn)": "self.train(input_fn)"}, "the return value of train is used"),
        ({"2 * units": "units", "model_dir=model_dir": "model_dir='a' * units", "Deep(4": "Deep(len('a')"},
         "units, which Deep hands on in several places"),
    ],
)  # fmt: skip
def test_classes_that_are_declined(tmp_path, change, reason):
    made = converted(tmp_path, change)
    assert not made.keras and made.before == made.after
    assert reason in made.kept_as_estimator and "ep_class" not in made.kept_as_estimator, made.kept_as_estimator
