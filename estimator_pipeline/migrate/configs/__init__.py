"""Configurations of other eras as job files of this one; every field of a source is accounted for. No TensorFlow.

from estimator_pipeline.migrate.configs import convert_config, write_conversion
made = convert_config("config.yaml", template="job.yaml")
write_conversion(made, "new.yaml")
"""

from __future__ import annotations

from estimator_pipeline.migrate.configs.convert import FORMATS, STATES, Conversion, convert_config, write_conversion
from estimator_pipeline.migrate.configs.findings import ConfigFinding
from estimator_pipeline.migrate.configs.report import report_text

__all__ = ["FORMATS", "STATES", "ConfigFinding", "Conversion", "convert_config", "report_text", "write_conversion"]
