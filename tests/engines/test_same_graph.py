"""What a training graph says of its model and its optimizer."""

from __future__ import annotations

import pytest

from estimator_pipeline import compat
from estimator_pipeline.engines.core.rendezvous import same_graph

tf = compat.install()
v1 = tf.compat.v1


def facts(optimizer, *, width=4, batch=8):
    with tf.Graph().as_default() as graph:
        data = tf.data.Dataset.from_tensors([[1.0, 2.0]] * batch).repeat()
        x = v1.data.make_one_shot_iterator(data).get_next()
        kernel = v1.get_variable("kernel", [2, width])
        scale = v1.get_variable("scale", [], initializer=v1.ones_initializer())
        step = v1.train.get_or_create_global_step()
        optimizer(step).minimize(tf.reduce_sum((x @ kernel) ** 2) * scale * 0.125, step)
        return same_graph.facts_of(graph)


def sgd(step):
    return v1.train.GradientDescentOptimizer(0.1)


def test_the_same_graph_twice():
    assert facts(sgd) == facts(sgd)


def test_variables_updates_numbers_batches():
    found = facts(lambda step: v1.train.MomentumOptimizer(0.1, 0.9))
    assert found["trainable variables"] == {"kernel:0": "float32 (2, 4)", "scale:0": "float32 ()"}
    assert found["updates by the optimizer"] == {"ResourceApplyMomentum": 2}
    assert found["numbers of the optimizer"] == [0.1, 0.9], "none of the loss, which a gradient is made of"
    assert found["batches"] == [["float32 (8, 2)"]]


@pytest.mark.parametrize("rates", [(0.1, 0.2), (1e-3, 1e-4)])
def test_the_constants_of_a_schedule(rates):
    one, other = (
        facts(lambda step, rate=rate: v1.train.AdamOptimizer(v1.train.exponential_decay(rate, step, 10, 0.5)))
        for rate in rates
    )
    assert rates[0] in one["numbers of the optimizer"] and rates[1] in other["numbers of the optimizer"]
    assert {name for name in one if one[name] != other[name]} == {"numbers of the optimizer"}


def test_another_width_and_another_batch():
    assert {n for n, value in facts(sgd).items() if value != facts(sgd, width=5)[n]} == {"trainable variables"}
    assert {n for n, value in facts(sgd).items() if value != facts(sgd, batch=4)[n]} == {"batches"}
