"""Steps that a TensorFlow server refuses by chance: "The same RunGraph (Worker) request was received twice"."""

from __future__ import annotations

import threading

import pytest

from estimator_pipeline import compat

tf = compat.install()
v1 = tf.compat.v1

REFUSED = "From /job:worker/replica:0/task:0:\nThe same RunGraph (Worker) request was received twice. step_id: 7"


@pytest.fixture
def session():
    with tf.Graph().as_default(), v1.Session() as made:
        yield made


def failing(monkeypatch, session, *messages, kind=tf.errors.AbortedError):
    """TensorFlow's call below `run` fills its buffer for metadata and fails with each of these in turn; gives calls."""
    left, calls, below = list(messages), [], session._call_tf_sessionrun

    def call(*args):
        calls.append(args)
        values = below(*args)  # TensorFlow rejects a buffer that is filled already
        if left:
            raise kind(None, None, left.pop(0))
        return values

    monkeypatch.setattr(session, "_call_tf_sessionrun", call)
    return calls


def test_a_refused_step_is_run_again(session, monkeypatch):
    one = tf.constant(1)
    for times in (1, 2):
        calls = failing(monkeypatch, session, *[REFUSED] * times)
        metadata = v1.RunMetadata()
        assert session.run(one, run_metadata=metadata) == 1
        assert len(calls) == times + 1
        monkeypatch.undo()


def test_a_step_that_is_refused_each_time_fails(session, monkeypatch):
    one = tf.constant(1)
    calls = failing(monkeypatch, session, *[REFUSED] * 10)
    with pytest.raises(tf.errors.AbortedError, match="received twice"):
        session.run(one)
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("message", "kind"), [("Step 7", tf.errors.AbortedError), (REFUSED, tf.errors.UnavailableError)]
)
def test_any_other_error_is_raised_at_once(message, kind, session, monkeypatch):
    one = tf.constant(1)
    calls = failing(monkeypatch, session, message, kind=kind)
    with pytest.raises(kind):
        session.run(one)
    assert len(calls) == 1


@pytest.mark.nightly  # some ten seconds of steps until one is refused
def test_a_server_refuses_a_step(logged):
    """Of 600,000 steps none is refused with a probability of 1 in 100,000."""
    server = v1.train.Server.create_local_server()
    failures: list[BaseException] = []

    def refused():
        return "it is run again" in logged.text

    with tf.Graph().as_default() as graph:
        number = v1.placeholder(tf.float32, [])
        more = number + 1.0
        with v1.Session(server.target, graph=graph) as session:

            def steps():
                try:
                    for i in range(150_000):
                        assert session.run(more, {number: float(i)}, run_metadata=v1.RunMetadata()) == i + 1
                        if i % 100 == 0 and (refused() or failures):
                            return
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=steps) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not failures
    assert refused()
