"""Lines that TensorFlow's kernels write to standard error at their start and that no user can act upon.

Static initializers of TensorFlow 2.21 write them before its log is initialized, at any TF_CPP_MIN_LOG_LEVEL. So a child
process filters standard error while TensorFlow is imported. It passes on every other line at once, also if the import
hangs, or aborts the process (on a CPU without the instructions that TensorFlow was compiled for).

Private use: `tensorflow.python.pywrap_tfe.TF_ListPhysicalDevices`.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["hidden"]

_ALWAYS = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "oneDNN custom operations are on.",
    "This TensorFlow binary is optimized to use available CPU instructions",
    "To enable the following instructions:",
    "Unable to register cuDNN factory",  # 2.15 to 2.19, on each machine
    "Unable to register cuFFT factory",
    "Unable to register cuBLAS factory",
    "computation placer already registered",
)
_WITHOUT_ACCELERATOR = (
    "Could not find cuda drivers on your machine",
    "TF-TRT Warning: Could not find TensorRT",
    "failed call to cuInit",
    "cuda_diagnostics.cc",
)
_DEVICES = ("/dev/nvidia*", "/dev/dxg", "/dev/kfd", "/dev/accel*", "/dev/vfio/[0-9]*")

_FILTER = """
import sys
known = [text.encode() for text in sys.argv[1:]]
for line in sys.stdin.buffer:
    if not any(text in line for text in known):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Hide the lines in a block that imports TensorFlow; TF_CPP_MIN_LOG_LEVEL=0 shows them.

    If no process can be started, nothing is hidden.
    """
    # Process 1 is that of a container, whose processes all end with it: the filter could lose its last lines.
    shown = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0" or os.getpid() == 1 or sys.stderr is None
    if shown or "tensorflow" in sys.modules:
        yield
        return
    has_accelerator = _has_accelerator()
    known = _ALWAYS if has_accelerator else _ALWAYS + _WITHOUT_ACCELERATOR
    with contextlib.ExitStack() as stack:
        try:
            original = os.dup(2)  # fails if descriptor 2 is closed
            stack.callback(os.close, original)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _FILTER, *known],
                stdin=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the command, whose last lines the filter writes
            )
        except OSError:
            yield
            return
        assert process.stdin is not None
        sys.stderr.flush()
        os.dup2(process.stdin.fileno(), 2)
        try:
            yield
            if not has_accelerator and "tensorflow" in sys.modules:
                # CUDA reports its absence when devices are listed. `tf.config.list_physical_devices` would also create
                # TensorFlow's context, after which `enable_eager_execution(config=...)` is an error.
                importlib.import_module("tensorflow.python.pywrap_tfe").TF_ListPhysicalDevices()
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process that the import started has the pipe
                process.wait(timeout=10)


def _has_accelerator() -> bool:
    """Return whether this machine has a GPU or TPU that CUDA's lines may concern, with or without its driver."""
    if any(glob.glob(pattern) for pattern in _DEVICES):
        return True
    for vendor in glob.glob("/sys/bus/pci/devices/*/vendor"):
        with contextlib.suppress(OSError):
            if Path(vendor).read_text().strip() == "0x10de":  # NVIDIA
                return True
    return False
