"""Where training stands when it is left, in words."""

from __future__ import annotations

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir.layout import checkpoint_step

__all__ = ["standing"]


def standing(model_dir: str, *, reached: int) -> str:
    """Which checkpoint it is in, and how many steps are lost.

    Args:
        model_dir: of the task that writes the checkpoints.
        reached: the global step that training had come to.
    """
    latest = compat.tensorflow().train.latest_checkpoint(model_dir)
    step = 0 if latest is None else max(0, checkpoint_step(latest))
    place = "there is no checkpoint yet" if latest is None else f"training stands after step {step}, in {latest}"
    lost = reached - step
    return place if lost <= 0 else f"{place}; {lost} later {'step is' if lost == 1 else 'steps are'} lost"
