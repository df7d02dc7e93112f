"""Reports of a scan as text and SARIF, and of a conversion as text and diff."""

from estimator_pipeline.migrate.code.reports.conversion import NOT_RUN, diff, summary
from estimator_pipeline.migrate.code.reports.sarif import sarif as sarif_document
from estimator_pipeline.migrate.code.reports.text import text

__all__ = ["NOT_RUN", "diff", "sarif_document", "summary", "text"]
