"""Checks of a job, its cluster and this machine before the job starts.

    from estimator_pipeline import doctor

    report = doctor.examine(doctor.Context(environ=os.environ, job=load_job("job.yaml")))
    print(report)

Each finding has a severity, the reason why it matters, and a hint. The checks change nothing, and remove their
temporary files. TensorFlow is imported only with `Context.deep`.
"""

from __future__ import annotations

from estimator_pipeline.doctor.checks import CHECKS, DoctorCheck, examine
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import SEVERITIES, DoctorFinding, DoctorReport

__all__ = ["CHECKS", "SEVERITIES", "Context", "DoctorCheck", "DoctorFinding", "DoctorReport", "examine"]
