"""Take an Estimator program to Keras, and back: code, checkpoints, exports, configurations.

Nothing here imports TensorFlow when it is imported itself, and what does later is imported when it is first used:
configurations are read, and programs scanned, without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator_pipeline.utils import lazy

if TYPE_CHECKING:
    from estimator_pipeline.migrate import code
    from estimator_pipeline.migrate import configs as config
    from estimator_pipeline.migrate.checkpoints.api import migrate_checkpoint
    from estimator_pipeline.migrate.checkpoints.result import MigratedCheckpoint
    from estimator_pipeline.migrate.exports.api import migrate_export
    from estimator_pipeline.migrate.exports.result import MigratedExport

__all__ = ["MigratedCheckpoint", "MigratedExport", "code", "config", "migrate_checkpoint", "migrate_export"]

_PUBLIC = {
    "MigratedCheckpoint": "estimator_pipeline.migrate.checkpoints.result:MigratedCheckpoint",
    "MigratedExport": "estimator_pipeline.migrate.exports.result:MigratedExport",
    "code": "estimator_pipeline.migrate.code",
    "config": "estimator_pipeline.migrate.configs",
    "migrate_checkpoint": "estimator_pipeline.migrate.checkpoints.api:migrate_checkpoint",
    "migrate_export": "estimator_pipeline.migrate.exports.api:migrate_export",
}

__getattr__, __dir__ = lazy.attach(__name__, _PUBLIC)
