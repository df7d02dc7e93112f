"""An assertion for pytest: a job trains equally on two engines, or an Estimator and a Keras model train equally."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError

__all__ = ["ParityError", "assert_parity"]


class ParityError(AssertionError):
    """Two trainings differ; the message has the summary, `parity` the whole comparison."""

    def __init__(self, message: str, parity: Any) -> None:
        super().__init__(message)
        self.parity = parity


def assert_parity(job: str | Path | None = None, *, estimator: Any = None, model: Any = None, **options: Any) -> Any:
    """Fail unless the Estimator and Keras train equally.

        assert_parity("job.yaml", steps=20, workers=2)
        assert_parity(estimator=estimator, model=model, input_fn=input_fn, mapping={"dense/kernel": "fc1/weights"})

    Args:
        job: a job file, run by both engines as processes; see `estimator_pipeline.parity.run_parity`.
        estimator: an Estimator, compared with `model` in this process; see
            `estimator_pipeline.parity.compare_models`.
        model: the Keras model.
        **options: options of the function that runs the comparison.

    Returns:
        The `estimator_pipeline.parity.Parity`.

    Raises:
        ParityError: an AssertionError; they are not equal.
        ConfigError: neither a job file nor an Estimator with a model was passed, or both; and what those functions
            raise.
    """
    if (job is None) == (estimator is None) or (estimator is None) != (model is None):
        raise ConfigError(
            "assert_parity needs a job file, or an estimator and a model",
            code="argument/missing",
            found=f"job {job!r}, estimator {type(estimator).__name__}, model {type(model).__name__}",
            hint='assert_parity("job.yaml"), or assert_parity(estimator=..., model=..., input_fn=...)',
        )
    from estimator_pipeline import parity

    result = parity.compare_models(estimator, model, **options) if job is None else parity.run_parity(job, **options)
    if not result.equal:
        raise ParityError(parity.summary(result), result)
    return result
