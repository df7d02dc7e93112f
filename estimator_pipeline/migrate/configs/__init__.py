"""Conversion of older configuration files to job files, with a report on every field. Does not import TensorFlow.

from estimator_pipeline.migrate.configs import convert_config, write_conversion
conversion = convert_config("config.yaml", template="job.yaml")
write_conversion(conversion, "new.yaml")
"""

from __future__ import annotations

from estimator_pipeline.migrate.configs.convert import FORMATS, STATES, Conversion, convert_config, write_conversion
from estimator_pipeline.migrate.configs.findings import ConfigFinding
from estimator_pipeline.migrate.configs.report import report_text

__all__ = ["FORMATS", "STATES", "ConfigFinding", "Conversion", "convert_config", "report_text", "write_conversion"]
