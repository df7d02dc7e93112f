"""Run by Python at the start of child processes of a program under `exec`, by PYTHONPATH.

It removes its folder from the path, runs the `sitecustomize` that would run without it, and lets the process call
`compat.install()` after its first import of TensorFlow. It runs on any version of Python, since the child may use a
different environment without this package.
"""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _folder]
_this_module = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401
except ImportError:
    if _this_module is not None:
        sys.modules["sitecustomize"] = _this_module

if os.environ.get("ESTIMATOR_PIPELINE_CHILDREN") == "1" and sys.version_info >= (3, 10):
    import importlib.util

    _spec = importlib.util.spec_from_file_location(
        "_estimator_pipeline_child", os.path.join(os.path.dirname(_folder), "spawned_child.py")
    )
    if _spec is not None and _spec.loader is not None and importlib.util.find_spec("estimator_pipeline") is not None:
        _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
