"""Reports of a scan as text, SARIF and HTML, and of a conversion as text and diff."""

from estimator_pipeline.migrate.code.reports.conversion import NOT_RUN, diff, summary
from estimator_pipeline.migrate.code.reports.page import page
from estimator_pipeline.migrate.code.reports.sarif import sarif as sarif_document
from estimator_pipeline.migrate.code.reports.text import text

__all__ = ["NOT_RUN", "diff", "page", "sarif_document", "summary", "text"]
