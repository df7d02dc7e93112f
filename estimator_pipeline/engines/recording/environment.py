"""The environment of a training: versions, platform, devices, and variables that affect its arithmetic."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from estimator_pipeline.compat.bootstrap import versions
from estimator_pipeline.utils.system_limits import available_cores
from estimator_pipeline.utils.version import __version__

# A list of names, not a prefix: reports are shared, and a variable such as Terraform's TF_TOKEN_… is a secret.
VARIABLES = (
    "TF_ENABLE_ONEDNN_OPTS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "TF_DETERMINISTIC_OPS",
    "TF_CUDNN_DETERMINISTIC",
    "TF_CUDNN_USE_AUTOTUNE",
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "TF_USE_LEGACY_KERAS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "TF_GPU_THREAD_MODE",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "NVIDIA_TF32_OVERRIDE",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "PYTHONHASHSEED",
)
# Reported even if not set: its default depends on the platform, and it is the first thing to check.
_ALWAYS = ("TF_ENABLE_ONEDNN_OPTS",)


def environment_of(tf: Any, *, strategy: Any, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the environment of this process and its training strategy, as plain values by name."""
    environ = os.environ if environ is None else environ
    name = type(strategy).__name__
    return {
        "estimator_pipeline": __version__,
        "tensorflow": tf.__version__,
        "tf.keras": _keras(tf),
        "tensorflow-estimator": versions.installed("tensorflow-estimator"),
        "numpy": versions.installed("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "cpus of the process": len(available_cores()),
        "devices": [_device(tf, device) for device in tf.config.list_physical_devices()],
        "strategy": "none" if name.startswith("_Default") else name,
        "replicas": int(strategy.num_replicas_in_sync),
        "variables": {name: environ.get(name) for name in VARIABLES if name in environ or name in _ALWAYS},
    }


def _keras(tf: Any) -> str:
    """Return the package behind `tf.keras`, with its version: "tf_keras 2.21.0"."""
    # The public API of tf_keras has no __version__.
    package = tf.keras.Model.__module__.partition(".")[0]
    return f"{package} {versions.installed(package.replace('_', '-'))}"


def _device(tf: Any, device: Any) -> str:
    details = tf.config.experimental.get_device_details(device) if device.device_type == "GPU" else {}
    return str(details.get("device_name", device.device_type))
