"""Child processes that `multiprocessing` spawns have `tf.estimator`, like their parent.

A spawned child imports the program again, in a new Python process without tf.estimator. So an import is added to the
child's command line, which waits for the import of TensorFlow and then calls `compat.install()`; a child without
TensorFlow does not import it. (Forked children inherit everything; children of a fork server must call
`compat.install()`.)

Private use: `multiprocessing.spawn.get_command_line` of the standard library, unchanged from Python 3.10 to 3.13.
"""

from __future__ import annotations

import functools
import multiprocessing.spawn as spawn

NAME = "spawned-children"
WHAT = "processes that multiprocessing spawns have tf.estimator, like forked ones"

_IMPORT = "import estimator_pipeline.compat.script_runner.spawned_child; "


def apply() -> None:
    original = spawn.get_command_line

    @functools.wraps(original)
    def get_command_line(**options):
        command = original(**options)
        if "-c" in command:
            at = command.index("-c") + 1
            command[at] = _IMPORT + command[at]
        return command

    spawn.get_command_line = get_command_line
