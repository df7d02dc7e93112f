"""What `install()` and `exec` leave out of the log, and all that remains in it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import estimator_pipeline
from estimator_pipeline.compat.bootstrap import log_lines


@pytest.fixture
def logger():
    """TensorFlow's logger, without handlers and filters."""
    log = logging.getLogger("tensorflow")
    handlers, filters, level, propagate = list(log.handlers), list(log.filters), log.level, log.propagate
    log.handlers[:], log.filters[:], log.propagate = [], [], True
    log.setLevel(logging.INFO)
    yield log
    log.handlers[:], log.filters[:], log.propagate = handlers, filters, propagate
    log.setLevel(level)


# Deprecations -------------------------------------------------------------------------------------------

_TEXT = "From %s:%d: %s (from %s) is deprecated and will be removed.\nInstructions for updating:\n%s"
_OF_USER = "/home/me/model_code.py"
_OURS = str(Path(estimator_pipeline.__file__).parent / "engines" / "jobs" / "runner.py")
_LAYERS = "`tf.layers.dense` is deprecated and will be removed in a future version."


@pytest.mark.parametrize(
    ("shown", "level", "text"),
    [
        (False, "warning", (_TEXT, _OURS, 73, "Estimator.__init__", "estimator", "Use it otherwise.")),
        (False, "warning", (_TEXT, _OF_USER, 7, "EvalSpec.__new__", "tensorflow_estimator", "Use tf.keras instead.")),
        (False, "warning", (_TEXT, _OF_USER, 7, "numeric_column", "tensorflow.python.feature_column.feature_column_v2",
                            "Use Keras preprocessing layers instead, either directly or via the `...` utility.")),
        (True, "warning", (_TEXT, _OF_USER, 7, "to_float", "tensorflow.python.ops", "Use `tf.cast` instead.")),
        (True, "warning", (f"Restoring from {_OURS}: is deprecated",)),
        (True, "warning", ("Use tf.keras instead.",)),
        (True, "error", (_TEXT, _OURS, 73, "an option", "tensorflow_estimator", "Use tf.keras instead.")),
    ],
)  # fmt: skip
def test_deprecations_of_what_install_restores_are_hidden(shown, level, text, logger):
    """The advice is what the program's author has decided against, or is for the author of a library."""
    records, handler = [], logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    with warnings.catch_warnings():
        log_lines.hide_deprecations()
    getattr(logger, level)(*text)
    assert len(records) == shown


def test_python_warnings_of_tf_layers_are_hidden_where_the_program_has_no_filter(logger):
    with warnings.catch_warnings(record=True) as records:
        warnings.resetwarnings()
        log_lines.hide_deprecations()
        warnings.warn(_LAYERS, stacklevel=1)
        warnings.warn("`tf.train.thing` is deprecated", stacklevel=1)
        assert [str(record.message) for record in records] == ["`tf.train.thing` is deprecated"]
        warnings.resetwarnings()
        warnings.simplefilter("always")
        log_lines.hide_deprecations()
        warnings.warn(_LAYERS, stacklevel=1)
        assert len(records) == 2


# Each line once -----------------------------------------------------------------------------------------

_OF_PACKAGE, _OF_THE_PROGRAM = "WARNING:tensorflow.estimator_pipeline:of ours", "WARNING:mine:of the program"


@pytest.fixture
def console(logger, capsys):
    """`console(handler)`: what two loggers write, with TensorFlow's handler and this one of the root logger."""
    from absl import logging as absl_logging

    absl_handler = absl_logging.get_absl_handler()
    filters, stream = list(absl_handler.filters), absl_handler.python_handler.stream

    def lines(handler, *, with_handler=True):
        if with_handler:
            logger.addHandler(_handler())
        log_lines.show_once()
        logging.root.addHandler(handler)
        try:
            logging.getLogger("tensorflow.estimator_pipeline").warning("of ours")
            logging.getLogger("mine").warning("of the program")
        finally:
            logging.root.removeHandler(handler)
        return capsys.readouterr().err.splitlines()

    yield lines
    absl_handler.filters[:], absl_handler.python_handler.stream = filters, stream


def _handler(form=logging.BASIC_FORMAT, level=logging.NOTSET, stream=None):
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(logging.Formatter(form))
    handler.setLevel(level)
    return handler


def test_a_later_root_handler_does_not_repeat_the_line_and_its_format_counts(console):
    assert console(_handler("mine: %(message)s")) == ["mine: of ours", "mine: of the program"]


@pytest.mark.parametrize("with_handler", [True, False])
def test_absl_s_handler_does_not_repeat_it(with_handler, console):
    from absl import logging as absl_logging

    handler = absl_logging.get_absl_handler()
    handler.python_handler.stream = sys.stderr
    first, second = (line for line in console(handler, with_handler=with_handler) if "before flag parsing" not in line)
    assert (first == _OF_PACKAGE) is with_handler and first.endswith("of ours") and second.endswith("] of the program")


def test_a_root_handler_for_errors_leaves_the_line_to_tensorflow(console):
    assert console(_handler(level=logging.ERROR)) == [_OF_PACKAGE]


def test_a_file_gets_every_line(console, tmp_path):
    with (tmp_path / "log").open("w") as file:
        assert console(_handler(stream=file)) == [_OF_PACKAGE]
    assert (tmp_path / "log").read_text().splitlines() == [_OF_PACKAGE, _OF_THE_PROGRAM]


# Start --------------------------------------------------------------------------------------------------

_ALWAYS = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795959980.197382   18477 port.cc:153] oneDNN custom operations are on. You may see slightly",
    "I0000 00:00:1795960191.545145   20601 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use "
    "available CPU instructions in performance-critical operations.",
    "To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow",
    "E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to",
]
_CUDA = [
    "I0000 00:00:1795959980.197722   18477 cudart_stub.cc:31] Could not find cuda drivers on your machine",
    "E0000 00:00:1795960201.354886   20601 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
]
_ERRORS = ["E0000 00:00:1795960201.354886   20601 coordination_service_agent.cc:10] failed", "RuntimeWarning: NumPy"]

_PROGRAM = """
import os
from estimator_pipeline.compat.bootstrap import start_lines
start_lines._has_accelerator = lambda: {accelerator}
with start_lines.hidden():
    os.write(2, {text!r}.encode())
"""


@pytest.mark.parametrize(
    ("level", "accelerator", "shown"),
    [
        (None, False, _ERRORS),
        ("2", True, _CUDA + _ERRORS),
        ("0", False, _ALWAYS + _CUDA + _ERRORS),
    ],
)
def test_known_lines_of_the_start_are_hidden(level, accelerator, shown):
    """Those about CUDA remain where there is a device that it should have records."""
    environ = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environ |= {} if level is None else {"TF_CPP_MIN_LOG_LEVEL": level}
    code = _PROGRAM.format(accelerator=accelerator, text="\n".join([*_ALWAYS, *_CUDA, *_ERRORS, ""]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 0 and done.stderr.splitlines() == shown, done.stderr
