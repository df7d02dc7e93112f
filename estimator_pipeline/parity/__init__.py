"""Whether two trainings are equal: names first, then shapes, types, values; and what a difference comes from.

========================= =====================================================================================
`run_parity`              a job file by both engines, as processes
`compare_models`          any Estimator against a Keras model, in this process
`compare`                 two sets of named arrays
`Tolerance`               what may differ by how much, and why; `Tolerances` for all that is compared
`Parity`, `ParityFinding` what came of it
`summary`, `document`     the same in words, and as plain values
========================= =====================================================================================
"""

from estimator_pipeline.job.tolerances import Tolerances
from estimator_pipeline.parity.diagnosis.diagnose import ParityFinding
from estimator_pipeline.parity.jobs.run import run_parity
from estimator_pipeline.parity.models.compare import compare_models
from estimator_pipeline.parity.result import Parity, StepParity
from estimator_pipeline.parity.text import document, summary
from estimator_pipeline.utils.arrays import BIT_EQUAL, Comparison, Difference, Tolerance, compare, ulps

__all__ = [
    "BIT_EQUAL",
    "Comparison",
    "Difference",
    "Parity",
    "ParityFinding",
    "StepParity",
    "Tolerance",
    "Tolerances",
    "compare",
    "compare_models",
    "document",
    "run_parity",
    "summary",
    "ulps",
]
