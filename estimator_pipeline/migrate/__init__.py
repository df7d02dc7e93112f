"""Take an Estimator program to Keras, and back: code, checkpoints, exports, configurations.

Nothing here imports TensorFlow when it is imported itself, and what does later is imported when it is first used:
configurations are read, and programs scanned, without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator_pipeline.migrate import code
    from estimator_pipeline.migrate import configs as config
    from estimator_pipeline.migrate.checkpoints.api import MigratedCheckpoint, migrate_checkpoint
    from estimator_pipeline.migrate.exports.api import MigratedExport, migrate_export

__all__ = ["MigratedCheckpoint", "MigratedExport", "code", "config", "migrate_checkpoint", "migrate_export"]

# Name -> its module here, and the attribute of it; None for the module itself.
_WHERE = {
    "MigratedCheckpoint": ("checkpoint", "MigratedCheckpoint"),
    "MigratedExport": ("export", "MigratedExport"),
    "code": ("code", None),
    "config": ("config", None),
    "migrate_checkpoint": ("checkpoint", "migrate_checkpoint"),
    "migrate_export": ("export", "migrate_export"),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _WHERE[name]
    found = importlib.import_module(f"{__name__}.{module}")
    return found if attribute is None else getattr(found, attribute)
