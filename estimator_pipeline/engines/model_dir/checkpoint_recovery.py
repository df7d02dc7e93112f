"""Recovery from damaged or incomplete checkpoints: selects the checkpoint that a run resumes from.

TensorFlow writes a checkpoint as several files and then names it in the state file `checkpoint`. A process killed in
between, a full disk or a power loss leaves files that are truncated or missing. Before a run trains, the task that
writes the checkpoints reads the newest one completely (the file has a checksum for every tensor). A damaged checkpoint
is set aside, and the previous one is used. If none can be restored, training never silently starts at step 0.
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
    """Return the damage of a checkpoint; None if every tensor can be read and matches its checksum.

    Args:
        path: As TensorFlow names it: "model_dir/model.ckpt-200".
        finite: Whether NaN and infinities in a floating-point tensor count as damage.

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
        # OpError, ValueError, IndexError or others, depending on the damage and the TensorFlow version.
        text = str(getattr(error, "message", error)).strip()
        return text.splitlines()[0][:300] if text else type(error).__name__
    return None


def rescue(model_dir: str, *, finite: bool = False) -> str | None:
    """Make the newest undamaged checkpoint the latest one of the directory; for the task that writes checkpoints.

    The checkpoint that the state file names as the newest has priority, even if a user set it to an older one. If this
    is killed at any point, the next call has the same result.

    Args:
        model_dir: The model directory.
        finite: See `damage`; for a run that resumes after one that diverged.

    Returns:
        The path of the latest checkpoint, verified; None if the directory has none.

    Raises:
        TaskFailedError: No checkpoint can be restored; or it is unknown which ones belong to this run.
        OSError: A file cannot be written or moved; or the error of `tf.io.gfile`.
    """
    if not compat.tensorflow().io.gfile.isdir(model_dir):
        return None
    state = files.read_state(model_dir)
    files.remove_leftovers(model_dir, files.KINDS | state.kinds)
    if not state.is_there:
        _warn_of_unnamed(model_dir)
        return None
    candidates = _candidates(model_dir, state)
    # The checkpoints for the new state file, oldest first. Files deleted by keep_checkpoint_max are not damage.
    pool = [path for path in state.paths if is_there(path)] if candidates else []
    if not candidates:
        pool = _guessed(model_dir, state)
        candidates = pool[::-1]
    if not candidates:
        _start_from_scratch(model_dir)
        return None
    good, bad = _first_good(candidates, finite=finite)
    if good is None:
        raise TaskFailedError(
            f"no checkpoint in {model_dir} can be restored",
            code="model-dir/damaged",
            found="; ".join(f"{os.path.basename(path)}: {reason}" for path, reason in bad),
            hint="restore a copy of an undamaged one, or use a different model_dir to train from the start",
        )
    later = _later(state) if good == state.newest else ()
    bad += [(path, why) for path in later if is_there(path) and (why := damage(path, finite=finite)) is not None]
    damaged = [path for path, _ in bad]
    kept = [path for path in pool if path not in damaged]
    kept = kept if good in kept else [*kept, good]
    _leave(model_dir, good, kept, bad, state)
    return good


def _candidates(model_dir: str, state: CheckpointState) -> list[str]:
    """Return the checkpoints that a run may resume from, best first: named ones, then others of the same name.

    Of the named ones, the newest is first, then the previous one. A named checkpoint of a later step exists only if
    a user went back to an earlier one.
    """
    if state.newest is None:
        return []
    there = [path for path in reversed(state.paths) if is_there(path)]
    step = checkpoint_step(state.newest)
    there.sort(key=lambda path: (path != state.newest, checkpoint_step(path) > step))
    # The state file may name only some of them, if it was restored from a copy.
    kind = files.kind_of(state.newest)
    like_it = files.kinds_on_disk(model_dir).get(kind, []) if kind else []
    known = {os.path.basename(path) for path in there}
    return [*there, *(path for path in reversed(like_it) if os.path.basename(path) not in known)]


def _guessed(model_dir: str, state: CheckpointState) -> list[str]:
    """Return the checkpoints of a directory, oldest first, if the state file names no existing one.

    Raises:
        TaskFailedError: It is unknown which checkpoints belong to the run.
    """
    kinds = files.kinds_on_disk(model_dir)
    known = [kind for kind in kinds if kind in files.KINDS]
    if len(known) == 1:
        return kinds[known[0]]
    # If the state file can be read, files of other names do not belong to this run.
    unsure = known if state.newest else list(kinds)
    if not unsure:
        return []
    newest = [os.path.basename(kinds[kind][-1]) for kind in unsure]
    problem = f"names {state.latest}, which does not exist" if state.latest else "cannot be read"
    raise TaskFailedError(
        f"the file {os.path.join(model_dir, files.STATE)} {problem}, and it is unknown which checkpoint is this run's",
        code="model-dir/damaged",
        found=", ".join(newest),
        hint=f'name the checkpoint to resume from in that file (model_checkpoint_path: "{newest[-1]}"), or remove it '
        "to train from the start",
    )


def _first_good(paths: Iterable[str], *, finite: bool) -> tuple[str | None, list[tuple[str, str]]]:
    """Return the first undamaged checkpoint, if any, and the damage of those before it."""
    bad: list[tuple[str, str]] = []
    for path in paths:
        reason = damage(path, finite=finite)
        if reason is None:
            return path, bad
        bad.append((path, reason))
    return None, bad


def _later(state: CheckpointState) -> tuple[str, ...]:
    """Return the checkpoints that the state file names after the newest one.

    A killed rescue() was about to set them aside, or a user went back to an earlier checkpoint.
    """
    return state.paths[state.paths.index(state.newest) + 1 :] if state.newest is not None else ()


def _leave(model_dir: str, good: str, kept: list[str], bad: list[tuple[str, str]], state: CheckpointState) -> None:
    """Name `good` as the latest checkpoint, and set the damaged ones aside.

    The state file is written first: otherwise a kill after a move would leave a state file that names missing files.
    It lists the damaged ones last until they are moved, so that the next rescue() finds them.
    """
    if state.newest is not None and not is_there(state.newest):
        logger.warning("The checkpoint %s, the newest according to the state file, does not exist", state.latest)
    if bad:
        files.write_state(model_dir, newest=good, paths=[*kept, *(path for path, _ in bad)], before=state)
        files.set_aside(model_dir, bad)
    moved = state.latest != good
    if bad or moved or any(path not in kept for path in _later(state)):
        files.write_state(model_dir, newest=good, paths=kept, before=state)
    if bad or moved:
        logger.warning("Training resumes from %s", good)


def _start_from_scratch(model_dir: str) -> None:
    to = files.set_state_aside(model_dir)
    logger.warning(
        "The file %r of %s names no existing checkpoint: training starts at step 0. The file was moved to %s",
        *(files.STATE, model_dir, to),
    )


def _warn_of_unnamed(model_dir: str) -> None:
    kinds = files.kinds_on_disk(model_dir)
    unnamed = sorted((path for kind in files.KINDS for path in kinds.get(kind, [])), key=checkpoint_step)
    if unnamed:
        logger.warning(
            "%s has checkpoints (the newest is %s) but no file %r that names them: training starts at step 0, as with "
            "TensorFlow",
            *(model_dir, os.path.basename(unnamed[-1]), files.STATE),
        )
