"""Files of a program that are converted to Keras, each by itself, and what others use of them."""

from __future__ import annotations

import pytest

from estimator_pipeline.migrate.code import convert
from estimator_pipeline.migrate.code.to_keras import convert_file as conversion

PROGRAM = """import tensorflow as tf

RATE = 0.1


def network(x, training):
    return tf.compat.v1.layers.dropout(x, 0.5, training=training)


def model_fn(features, labels, mode, params):
    net = network(features['x'], mode == tf.estimator.ModeKeys.TRAIN)
    logits = tf.compat.v1.layers.dense(net, 3, name='logits')
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = tf.compat.v1.train.AdamOptimizer(RATE).minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, {'logits': logits}, loss, train_op)


def main():
    estimator = tf.estimator.Estimator(model_fn, 'a')
    estimator.train(lambda: DATA)
"""


@pytest.fixture(autouse=True)
def defects_are_raised(monkeypatch):
    monkeypatch.setattr(conversion, "DEFECTS", ())


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("from old import model_fn\n", "model_fn, which other.py uses from it"),
        ("import old\nold.network(1, True)\n", "network, which other.py uses from it"),
        ("from old import RATE, main\nmain()\n", ""),
    ],
)
def test_a_file_that_others_take_of(tmp_path, other, reason):
    """It stays as it is where another file needs what would be gone or called otherwise."""
    (tmp_path / "old.py").write_text(PROGRAM)
    (tmp_path / "other.py").write_text("import tensorflow as tf\n" + other)
    made = {one.path: one for one in convert(tmp_path, to="keras-layers").files}
    assert made["old.py"].keras is not bool(reason) and reason in made["old.py"].kept_as_estimator


def test_names_that_all_lists(tmp_path):
    (tmp_path / "old.py").write_text(f"__all__ = ['main', 'model_fn']\n{PROGRAM}")
    (made,) = convert(tmp_path, to="keras-layers").files
    assert made.kept_as_estimator == "line 11: model_fn, which __all__ of old.py lists"


def test_a_program_of_several_files_stays(tmp_path):
    """Neither its model_fn nor the file that creates the Estimator; each names its line."""
    (tmp_path / "model.py").write_text(PROGRAM.partition("def main")[0])
    (tmp_path / "task.py").write_text(
        "import tensorflow as tf\nfrom model import model_fn\n\n"
        "estimator = tf.estimator.Estimator(model_fn, 'a')\nestimator.train(lambda: DATA)\n"
    )
    made = {one.path: one for one in convert(tmp_path, to="keras-layers").files}
    assert not any(one.changed for one in made.values())
    assert made["model.py"].kept_as_estimator == "line 10: no Estimator is created in this file"
    assert made["task.py"].kept_as_estimator == "line 4: a model_fn that is not a function of this file"


def test_a_network_of_another_file_is_not_taken_for_keras(tmp_path):
    """Its layers are those of TensorFlow 1."""
    (tmp_path / "net.py").write_text(
        "import tensorflow as tf\n\n\ndef network(x, training):\n    return tf.compat.v1.layers.dense(x, 4)\n"
    )
    start, end = PROGRAM.index("def network"), PROGRAM.index("def model_fn")
    (tmp_path / "task.py").write_text("from net import network\n" + PROGRAM[:start] + PROGRAM[end:])
    made = {one.path: one for one in convert(tmp_path, to="keras-layers").files}
    assert not any(one.changed for one in made.values()), made["task.py"].after
