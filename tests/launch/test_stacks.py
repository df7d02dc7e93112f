"""The line of the author's own code comes first of what a hung task has written down."""

from __future__ import annotations

import pytest

from estimator_pipeline.launch.local.outcome import Failure
from estimator_pipeline.launch.stacks.frames import _OURS, user_lines, waiting_line

_SITE = "/venv/lib/python3.11/site-packages"
_TF = f"{_SITE}/tensorflow/python"
_STD = "/usr/lib/python3.11"


def _thread(*frames, head="Thread 0x00007f2f37fff6c0"):
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join([f"{head} (most recent call first):", *lines, ""])


_CALLED = (
    (f"{_TF}/data/ops/from_generator_op.py", 198, "generator_py_func"),
    (f"{_TF}/ops/script_ops.py", 269, "__call__"),
)
_WAITS = _thread(
    (f"{_TF}/client/session.py", 1483, "_call_tf_sessionrun"),
    (f"{_TF}/client/session.py", 977, "run"),
    ("/home/me/train.py", 15, "<module>"),
    head="Current thread 0x00007f2fc2a4fb80",
)
_IDLE = _thread((f"{_STD}/threading.py", 327, "wait"), ("/home/me/logging.py", 3, "work"))


@pytest.mark.parametrize(
    ("threads", "lines"),
    [
        # A generator of the input, while another thread idles and the main one waits for the step.
        ([_IDLE, _thread(("/home/me/data.py", 5, "slow"), *_CALLED), _WAITS], ["/home/me/data.py, line 5, in slow"]),
        (
            [
                _thread((f"{_STD}/socket.py", 718, "readinto"), (f"{_SITE}/urllib3/a.py", 1, "get"),
                        ("/home/me/data.py", 7, "fetch"), ("/home/me/data.py", 12, "records"), *_CALLED),
                _WAITS,
            ],
            ["/home/me/data.py, line 7, in fetch, which has called readinto of socket.py"],
        ),
        # What is installed, or of this package: the function that TensorFlow has called.
        (
            [_thread((f"{_STD}/socket.py", 7, "recv"), (f"{_OURS}inputs/sharding.py", 9, "fetch"), *_CALLED), _WAITS],
            [f"{_OURS}inputs/sharding.py, line 9, in fetch, which has called recv of socket.py"],
        ),
        # A hook in the main thread.
        (
            [_IDLE, _thread(("/home/me/hooks.py", 4, "after_run"), (f"{_TF}/training/monitored_session.py", 9, "run"),
                            ("/home/me/train.py", 15, "<module>"))],
            ["/home/me/hooks.py, line 4, in after_run"],
        ),
        ([_IDLE, _WAITS], []),
    ],
)  # fmt: skip
def test_the_line_that_is_looked_for(tmp_path, threads, lines):
    log = tmp_path / "worker-0.log"
    before = "an earlier launch\nFatal Python error: Aborted\n\n" + _thread(("/old.py", 1, "old"), *_CALLED)
    log.write_text(
        before + "step 5\nFatal Python error: Aborted\n\n" + "\n".join(threads) + "\nExtension modules: a, b\n"
    )
    assert list(user_lines(log, offset=len(before))) == lines
    log.write_text("no stacks")
    assert user_lines(log) == () == user_lines(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("main", "line"),
    [
        (_WAITS, "_call_tf_sessionrun of session.py, line 1483, called by /home/me/train.py, line 15, in <module>"),
        (
            _thread((f"{_STD}/threading.py", 3, "wait"), (f"{_OURS}engines/core/rendezvous/files.py", 9, "look")),
            f"wait of threading.py, line 3, called by {_OURS}engines/core/rendezvous/files.py, line 9, in look",
        ),
        # A step of a job file.
        (
            _thread((f"{_TF}/client/session.py", 1483, "run"), (f"{_OURS}engines/estimator/engine.py", 9, "run")),
            "run of session.py, line 1483",
        ),
    ],
)
def test_where_the_main_thread_waits(main, line):
    assert waiting_line(_IDLE + "\n" + main) == line
    assert waiting_line("no stacks") == ""


def test_it_stands_before_the_last_lines_of_the_log(tmp_path):
    failure = Failure(
        "worker:0",
        None,
        tmp_path / "log",
        ("a", "b"),
        "made no step for 5.0 s",
        where=("worker:0 is at x.py, line 1, in f",),
    )
    assert failure.text().splitlines()[:3] == [
        "worker:0 made no step for 5.0 s.",
        "worker:0 is at x.py, line 1, in f.",
        f"The last lines of {tmp_path / 'log'}:",
    ]
    assert failure.document()["where"] == ["worker:0 is at x.py, line 1, in f"]
