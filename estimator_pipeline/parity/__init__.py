"""Comparison of two trainings: names, shapes, types and values, and the cause of a difference.

========================= =====================================================================================
`run_parity`              a job file on two engines, each in its own processes
`compare_models`          any Estimator against a Keras model, in this process
`compare`                 two sets of named arrays
`Tolerance`               an allowed difference and its reason; `Tolerances` for everything that is compared
`Parity`, `ParityFinding` the result
`summary`, `document`     the result as text, and as plain values
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
