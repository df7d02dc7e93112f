"""Children that `multiprocessing` spawns have `tf.estimator`, as the program that spawned them has.

A spawned child imports the program anew, in a fresh Python, where nothing has been put back. So the child's command
line gets one import more, which waits for TensorFlow to be imported and then does what `compat.install()` did in the
parent; a child that needs no TensorFlow imports none. (Forked children have everything; those of a fork server have
not: they must call `compat.install()`.)

Private use: `multiprocessing.spawn.get_command_line` of the standard library, the same from Python 3.10 to 3.13.
"""

from __future__ import annotations

import functools
import multiprocessing.spawn as spawn

NAME = "spawned-children"
WHAT = "processes that multiprocessing spawns find tf.estimator, as forked ones do"

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
