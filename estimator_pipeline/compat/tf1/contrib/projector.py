"""`tf.contrib.tensorboard.plugins.projector`: TensorBoard's projector for TensorFlow 1 summary writers."""

from __future__ import annotations

from typing import Any

from tensorboard.plugins import projector

__all__ = ["visualize_embeddings"]


def visualize_embeddings(summary_writer: Any, config: Any) -> None:
    """Write the projector's configuration to the folder of a `tf.summary.FileWriter`.

    Args:
        summary_writer: The writer, or the folder.
        config: A ProjectorConfig.
    """
    folder = summary_writer.get_logdir() if hasattr(summary_writer, "get_logdir") else summary_writer
    projector.visualize_embeddings(folder, config)
