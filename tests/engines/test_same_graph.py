"""What a training graph says of its model and its optimizer."""

from __future__ import annotations

import pytest

from estimator_pipeline import compat
from estimator_pipeline.cluster import parse_tf_config
from estimator_pipeline.engines.core.rendezvous import same_graph, same_job
from estimator_pipeline.errors import OtherJobError

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


# -- the operations of the loss ---------------------------------------------------------------------------------------


def built(loss_of=lambda x, y: tf.reduce_mean((dense(x) - y) ** 2), *, before=None, rows=8):
    """A graph with one call of a model_fn; `before` adds operations of an input."""
    with tf.Graph().as_default() as graph:
        if before is not None:
            before()
        data = tf.data.Dataset.from_tensors(([[1.0, 2.0]] * rows, [[1.0]] * rows)).repeat()
        x, y = v1.data.make_one_shot_iterator(data).get_next()
        step = v1.train.get_or_create_global_step()
        loss = loss_of(x, y)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return graph, [same_graph.Replica((x, y), loss)]


def operations(*args, **options):
    return same_graph.operations_of(*built(*args, **options))


def dense(x, units=1, name="dense", activation=None):
    kernel = v1.get_variable(f"{name}/kernel", [x.shape[1], units])
    return x @ kernel if activation is None else activation(x @ kernel)


def of_terms(names):
    """The sum of terms in an order that each process may choose."""

    def loss(x, y):
        kernels = {name: v1.get_variable(name, [2, 1]) for name in sorted(set(names))}
        terms = [tf.reduce_sum(x @ kernels[name]) for name in names]
        return terms[0] + terms[1] + terms[2] + tf.add_n([tf.nn.l2_loss(kernels[name]) for name in names])

    return loss


def masked(seed=None):
    return lambda x, y: tf.reduce_mean((v1.nn.dropout(dense(x), rate=0.5, seed=seed) - y) ** 2)


def stateless(number):
    def loss(x, y):
        noise = tf.random.stateless_uniform([8, 1], seed=[number, v1.train.get_global_step()])
        return tf.reduce_mean((dense(x) * noise - y) ** 2)

    return loss


def with_function(factor, name):
    """A while loop and a conditional, whose bodies are functions of the graph."""

    def loss(x, y):
        def body(i, total):
            return i + 1, total * factor

        value = tf.reduce_mean((dense(x) - y) ** 2)
        _, value = tf.while_loop(lambda i, _: i < 3, body, [0, value], name=name)
        return tf.cond(value > 1.0, lambda: value, lambda: value * factor)

    return loss


def v1_loop(factor):
    def loss(x, y):
        with tf.Graph().as_default():
            pass
        v1.disable_control_flow_v2()
        try:
            return with_function(factor, "loop")(x, y)
        finally:
            v1.enable_control_flow_v2()

    return loss


def with_messages(x, y):
    """A loss that is also printed, checked and summarized."""
    loss = tf.reduce_mean((dense(x) - y) ** 2)
    v1.summary.scalar("loss", loss * 2.0)
    with tf.control_dependencies([v1.assert_less(loss, 1e9), tf.print("loss", loss * 3.0)]):
        return v1.Print(tf.identity(loss), [loss * 4.0], "loss of the chief: ")


def scaled(factor):
    return lambda x, y: factor * tf.reduce_mean((dense(x) - y) ** 2)


SAME = {
    "operations of an input": ({}, {"before": lambda: [tf.constant(float(i)) * 2.0 for i in range(9)]}),
    "data": ({}, {"before": lambda: tf.data.Dataset.range(3).map(lambda i: i * 7)}),
    "seeds": ({"loss_of": masked(1)}, {"loss_of": masked(2)}),
    "seed of the operation's number": ({"loss_of": masked()}, {"loss_of": masked(), "before": lambda: tf.zeros([])}),
    "seeds of stateless operations": ({"loss_of": stateless(1)}, {"loss_of": stateless(2)}),
    "order of a sum": ({"loss_of": of_terms("abc")}, {"loss_of": of_terms("cab")}),
    "names of functions": ({"loss_of": with_function(2.0, "a")}, {"loss_of": with_function(2.0, "b")}),
    "loops of TensorFlow 1": ({"loss_of": v1_loop(2.0)}, {"loss_of": v1_loop(2.0), "before": lambda: tf.zeros([])}),
    "summaries, messages and assertions": ({}, {"loss_of": with_messages}),
}
DIFFERENT = {
    "a factor": ({"loss_of": scaled(1.0)}, {"loss_of": scaled(1.5)}),
    "a factor or none": ({}, {"loss_of": scaled(1.0)}),
    "an activation": (
        {"loss_of": lambda x, y: tf.reduce_mean((dense(x, activation=tf.nn.relu) - y) ** 2)},
        {"loss_of": lambda x, y: tf.reduce_mean((dense(x, activation=tf.nn.tanh) - y) ** 2)},
    ),
    "the body of a loop": ({"loss_of": with_function(2.0, "a")}, {"loss_of": with_function(3.0, "a")}),
    "the body of a loop of TensorFlow 1": ({"loss_of": v1_loop(2.0)}, {"loss_of": v1_loop(3.0)}),
}


@pytest.mark.parametrize("case", SAME)
def test_what_may_differ(case):
    first, other = SAME[case]
    assert operations(**first) == operations(**first), "the same code twice"
    assert operations(**first) == operations(**other)


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_must_not_differ(case):
    first, other = DIFFERENT[case]
    assert operations(**first) == operations(**first)
    assert operations(**first) != operations(**other)


FACTOR = (
    "operations of the loss.number 1.0: 1 on worker:0, not given on worker:1; "
    "operations of the loss.number 1.5: not given on worker:0, 1 on worker:1"
)


def tasks_of(monkeypatch, *graphs):
    """The comparison of tasks with these graphs, each in a separate thread."""
    import threading

    jobs = {"worker": [f"w{i}:1" for i in range(len(graphs))]}
    barrier, exchanged, errors = threading.Barrier(len(graphs)), {}, {}

    def exchange(about, value, tf_config, *, timeout):
        exchanged.setdefault(about, {})[str(tf_config.task)] = value
        barrier.wait(60)
        return {task: exchanged[about][task] for task in sorted(exchanged[about])}

    def run(index, graph, replicas):
        config = parse_tf_config({"cluster": jobs, "task": {"type": "worker", "index": index}})
        try:
            same_graph.compare(graph, replicas, config, timeout=60)
        except OtherJobError as error:
            errors[index] = error

    monkeypatch.setattr(same_job, "exchange", exchange)
    threads = [threading.Thread(target=run, args=(i, *each)) for i, each in enumerate(graphs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_each_task_reports_the_operations_and_the_numbers(monkeypatch):
    errors = tasks_of(monkeypatch, built(scaled(1.0)), built(scaled(1.5)), built(scaled(1.0)))
    assert sorted(errors) == [0, 1, 2]
    for error in errors.values():
        assert error.found == FACTOR and error.exit_code == 2


def test_a_difference_that_is_intended_is_a_warning(monkeypatch, warnings):
    monkeypatch.setenv("ESTIMATOR_PIPELINE_DIFFERENT_GRAPHS", "1")
    errors = tasks_of(monkeypatch, built(scaled(1.0)), built(scaled(1.5)))
    assert not errors and FACTOR in str(warnings)


def test_an_operation_that_only_one_task_has(monkeypatch):
    first = built(lambda x, y: tf.reduce_mean((dense(x, activation=tf.nn.relu, name="a") - y) ** 2))
    other = built(lambda x, y: tf.reduce_mean((dense(x, activation=tf.nn.tanh, name="a") - y) ** 2))
    errors = tasks_of(monkeypatch, first, other)
    assert "operations of the loss.Relu: 1 on worker:0, not given on worker:1" in errors[0].found
    assert "operations of the loss.Tanh: not given on worker:0, 1 on worker:1" in errors[0].found


def test_the_number_of_the_task_may_be_in_the_graph(monkeypatch):
    def of_task(number, factor=1.0):
        def loss(x, y):
            mine = tf.one_hot(tf.constant(number, name="mine"), 3)
            return tf.reduce_sum(mine) * factor * tf.reduce_mean((dense(x) - y) ** 2)

        return built(loss)

    errors = tasks_of(monkeypatch, of_task(0), of_task(1), of_task(2))
    assert not errors
    errors = tasks_of(monkeypatch, of_task(0), of_task(1), of_task(2, factor=3.0))
    assert sorted(errors) == [0, 1, 2] and "number 3.0: not given on worker:0, 1 on worker:2" in errors[0].found


def test_batches_of_other_shapes_are_not_compared(monkeypatch, warnings):
    """The mean of a batch of another size has another divisor."""
    errors = tasks_of(monkeypatch, built(rows=8), built(rows=4))
    assert not errors and "batches" in str(warnings)
