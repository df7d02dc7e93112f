"""Reads checkpoints and SavedModels of a job that was hit, and prints what is wrong with them as JSON.

A process of its own (`fault_judging.py` starts it): it imports TensorFlow, and a file that was torn may end it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

# Of numbers that went on in other sums: ten times what parity calls rounding, for some thousand steps.
NEAR = 1e-3
_BOOKKEEPING = ("save_counter", "OBJECT_GRAPH")


def values(path: str) -> dict[str, np.ndarray]:
    """Every variable of a checkpoint, by its name; bookkeeping left out."""
    reader = tf.train.load_checkpoint(path)
    names = sorted(reader.get_variable_to_shape_map())
    return {name: reader.get_tensor(name) for name in names if not any(word in name for word in _BOOKKEEPING)}


def differences(one: dict[str, np.ndarray], other: dict[str, np.ndarray], *, near: bool) -> tuple[list[str], float]:
    """The variables that differ, or are on one side alone; and how far the worst is off, of its largest element."""
    bad, worst = sorted(one.keys() ^ other.keys()), 0.0
    for name in sorted(one.keys() & other.keys()):
        ours, theirs = one[name], other[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            bad.append(name)
        elif not np.array_equal(ours, theirs):
            if ours.dtype.kind != "f" or not np.isfinite(ours).all():
                bad.append(name)
                continue
            off = float(np.max(np.abs(ours - theirs)) / max(float(np.max(np.abs(theirs))), 1e-12))
            worst = max(worst, off)
            if not near or off > NEAR:
                bad.append(name)
    return bad, worst


def of_export(path: str) -> str:
    """Why a SavedModel cannot be used: it is loaded, and asked once."""
    try:
        loaded = tf.saved_model.load(path)
        signatures = list(loaded.signatures)
        if not signatures:
            return "it has no signature"
        function = loaded.signatures[signatures[0]]
        given = {
            name: tf.zeros([1 if size is None else size for size in spec.shape], spec.dtype)
            for name, spec in function.structured_input_signature[1].items()
        }
        answer = function(**given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    numbers = [value.numpy() for value in answer.values() if value.dtype.is_floating]
    return "" if all(np.isfinite(value).all() for value in numbers) else "its answer is not finite"


def look(asked: dict[str, Any]) -> dict[str, Any]:
    """What is wrong, and what was measured."""
    problems: list[str] = []
    measured: dict[str, float] = {}
    final = values(tf.train.latest_checkpoint(asked["model_dir"]))
    if asked["reference"] is not None:
        wanted = values(tf.train.latest_checkpoint(asked["reference"]))
        bad, worst = differences(final, wanted, near=asked["near"])
        if bad:
            problems.append(f"weights differ from those of an undisturbed job: {', '.join(bad)}")
        if asked["near"]:
            measured["weights off by"] = worst
    for path in asked["exports"]:
        if why := of_export(path):
            problems.append(f"export {path.rpartition('/')[2]}: {why}")
    if asked["exports"] and not problems:
        exported = values(asked["exports"][-1] + "/variables/variables")
        bad, _ = differences(exported, {name: final[name] for name in exported if name in final}, near=False)
        if bad or not exported:
            problems.append(f"the last export has other values than the last checkpoint: {', '.join(bad)}")
        if asked["reference_exports"]:
            wanted = values(asked["reference_exports"][-1] + "/variables/variables")
            if bad := differences(exported, wanted, near=asked["near"])[0]:
                problems.append(f"the last export differs from that of an undisturbed job: {', '.join(bad)}")
    return {"problems": problems, "measured": measured}


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]))))
