"""Description of the saved training progress, for messages."""

from __future__ import annotations

from estimator_pipeline import compat
from estimator_pipeline.engines.model_dir.layout import checkpoint_step

__all__ = ["saved_progress"]


def saved_progress(model_dir: str, *, reached: int) -> str:
    """Describe the latest checkpoint, and the number of lost steps.

    Args:
        model_dir: Model directory of the task that writes the checkpoints.
        reached: The global step that training had reached.
    """
    latest = compat.tensorflow().train.latest_checkpoint(model_dir)
    step = 0 if latest is None else max(0, checkpoint_step(latest))
    place = "there is no checkpoint yet" if latest is None else f"training is saved after step {step}, in {latest}"
    lost = reached - step
    return place if lost <= 0 else f"{place}; {lost} later {'step is' if lost == 1 else 'steps are'} lost"
