"""Checkpoints that can be trusted: which one a run goes on from, when some are damaged or cut off.

TensorFlow writes a checkpoint as a few files and then names it in the state file `checkpoint`. A process that is
killed at any moment of that, a disk that is full or loses power, leave files that are torn or missing. Before a run
trains, the task that writes the checkpoints reads the newest one whole (every tensor has a checksum in the file); one
that is damaged is set aside, and the one before it is taken. What cannot be restored is never silently trained on from
step 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir import checkpoint_files as files
from estimator_pipeline.engines.model_dir.checkpoint_files import CheckpointState, is_there
from estimator_pipeline.engines.model_dir.layout import checkpoint_step
from estimator_pipeline.errors import TaskFailedError
from estimator_pipeline.utils.logger import logger

__all__ = ["damage", "rescue"]


def damage(path: str, *, finite: bool = False) -> str | None:
    """What is wrong with a checkpoint; None where every tensor in it can be read and has its checksum.

    Args:
        path: as TensorFlow names it: "model_dir/model.ckpt-200".
        finite: whether NaN and infinities in a floating-point tensor count as damage.

    Returns:
        One line, or None.
    """
    tf = compat.tensorflow()
    import numpy as np

    try:
        reader = tf.train.load_checkpoint(path)
        for name in sorted(reader.get_variable_to_shape_map()):
            value = reader.get_tensor(name)
            if finite and np.issubdtype(np.asarray(value).dtype, np.floating) and not np.isfinite(value).all():
                return f"{name} holds values that are not finite"
    except Exception as error:
        # An OpError, a ValueError, an IndexError and others: it depends on what is torn, and on the version.
        text = str(getattr(error, "message", error)).strip()
        return text.splitlines()[0][:300] if text else type(error).__name__
    return None


def rescue(model_dir: str, *, finite: bool = False) -> str | None:
    """Leaves the newest good checkpoint as the latest one of the directory; for the task that writes them.

    The one that the state file calls the newest counts as that, also where somebody has made it an older one. A kill at
    any moment of this leaves a directory of which the next call makes the same.

    Args:
        model_dir: the model directory.
        finite: see :func:`damage`; for a run that goes on after one that diverged.

    Returns:
        The path of the latest checkpoint, verified; None where the directory has none.

    Raises:
        TaskFailedError: there are checkpoints, and none of them can be restored; or nobody can tell which of them the
            state file named.
        OSError: a file cannot be written or moved; or the error of `tf.io.gfile`.
    """
    if not compat.tensorflow().io.gfile.isdir(model_dir):
        return None
    state = files.read_state(model_dir)
    files.remove_leftovers(model_dir, files.KINDS | state.kinds)
    if not state.is_there:
        _tell_of_unnamed(model_dir)
        return None
    candidates = _candidates(model_dir, state)
    # What the state file is to name, oldest first. Files that keep_checkpoint_max has deleted are no damage.
    pool = [path for path in state.paths if is_there(path)] if candidates else []
    if not candidates:
        pool = _guessed(model_dir, state)
        candidates = pool[::-1]
    if not candidates:
        _begin_anew(model_dir)
        return None
    good, bad = _first_good(candidates, finite=finite)
    if good is None:
        raise TaskFailedError(
            f"no checkpoint in {model_dir} can be restored",
            code="model-dir/damaged",
            found="; ".join(f"{os.path.basename(path)}: {reason}" for path, reason in bad),
            hint="put a copy of a good one back, or give another model_dir to train from the start",
        )
    later = _later(state) if good == state.newest else ()
    bad += [(path, why) for path in later if is_there(path) and (why := damage(path, finite=finite)) is not None]
    spoilt = [path for path, _ in bad]
    kept = [path for path in pool if path not in spoilt]
    kept = kept if good in kept else [*kept, good]
    _leave(model_dir, good, kept, bad, state)
    return good


def _candidates(model_dir: str, state: CheckpointState) -> list[str]:
    """The checkpoints that a run may go on from, the first choice first: those that are named, then others like them.

    Of those that are named the newest is the first, and then the one before it: one of a later step is there only
    where somebody went back behind it.
    """
    if state.newest is None:
        return []
    there = [path for path in reversed(state.paths) if is_there(path)]
    step = checkpoint_step(state.newest)
    there.sort(key=lambda path: (path != state.newest, checkpoint_step(path) > step))
    # The state file may name less than there is: a state that was put back from a copy.
    kind = files.kind_of(state.newest)
    like_it = files.kinds_on_disk(model_dir).get(kind, []) if kind else []
    known = {os.path.basename(path) for path in there}
    return [*there, *(path for path in reversed(like_it) if os.path.basename(path) not in known)]


def _guessed(model_dir: str, state: CheckpointState) -> list[str]:
    """The checkpoints of a directory, oldest first, where the state file names none that is there.

    Raises:
        TaskFailedError: which ones they are cannot be told.
    """
    kinds = files.kinds_on_disk(model_dir)
    known = [kind for kind in kinds if kind in files.KINDS]
    if len(known) == 1:
        return kinds[known[0]]
    # Where the names can be read, files of another name are none of this run's.
    unsure = known if state.newest else list(kinds)
    if not unsure:
        return []
    newest = [os.path.basename(kinds[kind][-1]) for kind in unsure]
    says = f"names {state.latest}, which is not there" if state.latest else "cannot be read"
    raise TaskFailedError(
        f"the file {os.path.join(model_dir, files.STATE)} {says}, and nobody can tell which checkpoint is this run's",
        code="model-dir/damaged",
        found=", ".join(newest),
        hint=f'let that file name the one to go on from (model_checkpoint_path: "{newest[-1]}"), or remove it to train '
        "from the start",
    )


def _first_good(paths: Iterable[str], *, finite: bool) -> tuple[str | None, list[tuple[str, str]]]:
    """The first one that is whole, if any, and what is wrong with those before it."""
    bad: list[tuple[str, str]] = []
    for path in paths:
        reason = damage(path, finite=finite)
        if reason is None:
            return path, bad
        bad.append((path, reason))
    return None, bad


def _later(state: CheckpointState) -> tuple[str, ...]:
    """What the state file names after the newest one: what a killed rescue() was about to set aside, or what somebody
    went back behind."""
    return state.paths[state.paths.index(state.newest) + 1 :] if state.newest is not None else ()


def _leave(model_dir: str, good: str, kept: list[str], bad: list[tuple[str, str]], state: CheckpointState) -> None:
    """Names `good` as the latest one, and sets the damaged ones aside.

    The state file goes first: whoever is killed after a move and before its new state would leave a state that names
    what is no longer there. It names the damaged ones last until they are away, for the next rescue() to find.
    """
    if state.newest is not None and not is_there(state.newest):
        logger.warning("The checkpoint %s, which the state file calls the newest, is not there", state.latest)
    if bad:
        files.write_state(model_dir, newest=good, paths=[*kept, *(path for path, _ in bad)], before=state)
        files.set_aside(model_dir, bad)
    moved = state.latest != good
    if bad or moved or any(path not in kept for path in _later(state)):
        files.write_state(model_dir, newest=good, paths=kept, before=state)
    if bad or moved:
        logger.warning("Training goes on from %s", good)


def _begin_anew(model_dir: str) -> None:
    to = files.set_state_aside(model_dir)
    logger.warning(
        "The file %r of %s names no checkpoint that is there: training begins at step 0. The file lies in %s now",
        *(files.STATE, model_dir, to),
    )


def _tell_of_unnamed(model_dir: str) -> None:
    kinds = files.kinds_on_disk(model_dir)
    found = sorted((path for kind in files.KINDS for path in kinds.get(kind, [])), key=checkpoint_step)
    if found:
        logger.warning(
            "%s has checkpoints (the newest is %s) and no file named %r that says so: training begins at step 0, as "
            "it does with TensorFlow",
            *(model_dir, os.path.basename(found[-1]), files.STATE),
        )
