"""What is wrong with a job before it starts: small named checks, each finding with its reason and a hint.

    from estimator_pipeline import doctor

    report = doctor.examine(doctor.Context(environ=os.environ, job=load_job("job.yaml")))
    print(report)

Nothing is changed, and what is written for a try is taken away again. TensorFlow is imported only where
`Context.deep` asks for it.
"""

from __future__ import annotations

from estimator_pipeline.doctor.checks import CHECKS, DoctorCheck, examine
from estimator_pipeline.doctor.context import Context
from estimator_pipeline.doctor.findings import SEVERITIES, DoctorFinding, DoctorReport

__all__ = ["CHECKS", "SEVERITIES", "Context", "DoctorCheck", "DoctorFinding", "DoctorReport", "examine"]
