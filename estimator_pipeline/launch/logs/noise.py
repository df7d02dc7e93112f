"""What TensorFlow's C++ logs whatever happens, between the lines that a person looks for."""

from __future__ import annotations

import re

__all__ = ["is_noise"]

# Information, as absl and the logging of older versions write it; devices and libraries that a machine without a GPU
# does not have; and what goes before and after those lines.
_NOISE = re.compile(
    r"I\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I "
    r"|(?:[WE]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [WE] ).*"
    r"(?:cuda|cuInit|cudnn|cuDNN|cuFFT|cublas|cuBLAS|computation_placer|TF-TRT|tensorrt|TensorRT|dso_loader)"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$"
    r"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\.$"
)


def is_noise(line: str) -> bool:
    """Whether a line of a log is one of those."""
    return _NOISE.match(line) is not None
