"""Run by Python at the start of a process that a program under `exec` starts: its folder is on PYTHONPATH there.

It takes its folder off the path, runs the `sitecustomize` that would have been run without it, and has the process
follow its first import of TensorFlow by `compat.install()`. Plain Python of any version: the process may be of another
environment, in which nothing of ours is installed.
"""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _folder]
_own = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401
except ImportError:
    if _own is not None:
        sys.modules["sitecustomize"] = _own

if os.environ.get("ESTIMATOR_PIPELINE_CHILDREN") == "1" and sys.version_info >= (3, 10):
    import importlib.util

    _spec = importlib.util.spec_from_file_location(
        "_estimator_pipeline_child", os.path.join(os.path.dirname(_folder), "spawned_child.py")
    )
    if _spec is not None and _spec.loader is not None and importlib.util.find_spec("estimator_pipeline") is not None:
        _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
