"""Log lines that TensorFlow's C++ code always writes."""

from __future__ import annotations

import re

__all__ = ["is_noise"]

# INFO lines in the formats of absl and of older versions; warnings about missing devices and libraries on a machine
# without a GPU; and the lines around them.
_NOISE = re.compile(
    r"I\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I "
    r"|(?:[WE]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [WE] ).*"
    r"(?:cuda|cuInit|cudnn|cuDNN|cuFFT|cublas|cuBLAS|computation_placer|TF-TRT|tensorrt|TensorRT|dso_loader)"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$"
    r"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\.$"
)


def is_noise(line: str) -> bool:
    """Return whether a log line is one of these."""
    return _NOISE.match(line) is not None
