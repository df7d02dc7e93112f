"""In each task of a job under attack: it leaves with exit code 0 when the campaign has put a file there for it.

As a library does that ends the process. Python imports this at its start, where the folder is in PYTHONPATH.
"""

import os
import sys
import threading
import time


def _leave(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.02)
    os.unlink(path)
    os._exit(0)


_task, _folder = os.environ.get("ESTIMATOR_PIPELINE_TASK"), os.environ.get("FAULTS_LEAVE")
if _task and _folder and "train" in sys.orig_argv:
    _path = os.path.join(_folder, _task.replace(":", "-"))
    threading.Thread(target=_leave, args=(_path,), name="leave", daemon=True).start()
