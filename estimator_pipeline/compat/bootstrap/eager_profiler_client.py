"""`tensorflow.python.eager.profiler_client`, which TensorFlow 2.20 removed, on `tf.profiler.experimental.client`.

Private use: `profiler.internal._pywrap_profiler_plugin`, because the public functions have neither `display_timestamp`
of `monitor` nor `include_dataset_ops` of `start_tracing`.
"""

from __future__ import annotations

__all__ = ["monitor", "start_tracing"]


def start_tracing(
    service_addr: str,
    logdir: str,
    duration_ms: int,
    worker_list: str = "",
    include_dataset_ops: bool = True,
    num_tracing_attempts: int = 3,
) -> None:
    """Trace with the profiler server at `service_addr` ("host:port"), which saves the trace to `logdir`."""
    from tensorflow.python.profiler.internal import _pywrap_profiler_plugin

    _pywrap_profiler_plugin.trace(
        service_addr, logdir, worker_list, include_dataset_ops, duration_ms, num_tracing_attempts, {}
    )


def monitor(service_addr: str, duration_ms: int, monitoring_level: int = 1, display_timestamp: bool = False) -> str:
    """Return a performance summary of the server at `service_addr` ("host:port") for a duration."""
    from tensorflow.python.profiler.internal import _pywrap_profiler_plugin

    return _pywrap_profiler_plugin.monitor(service_addr, duration_ms, monitoring_level, display_timestamp)
