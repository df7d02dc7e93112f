"""An assertion for pytest: that a job, or an Estimator and the Keras model made of it, come to the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator_pipeline.errors import ConfigError

__all__ = ["ParityError", "assert_parity"]


class ParityError(AssertionError):
    """Two trainings part; the message has the summary, `parity` the whole comparison."""

    def __init__(self, message: str, parity: Any) -> None:
        super().__init__(message)
        self.parity = parity


def assert_parity(job: str | Path | None = None, *, estimator: Any = None, model: Any = None, **options: Any) -> Any:
    """Fails where the Estimator's and Keras's training of the same thing are not equal.

        assert_parity("job.yaml", steps=20, workers=2)
        assert_parity(estimator=estimator, model=model, input_fn=input_fn, mapping={"dense/kernel": "fc1/weights"})

    Args:
        job: a job file, run by both engines as processes; see `estimator_pipeline.parity.run_parity`.
        estimator: an Estimator, compared with `model` in this process; see
            `estimator_pipeline.parity.compare_models`.
        model: the Keras model.
        **options: of the one or the other.

    Returns:
        The `estimator_pipeline.parity.Parity`.

    Raises:
        ParityError: an AssertionError; they are not equal.
        ConfigError: neither of the two was given, or both; `eval_steps` beside a job file; and what those functions
            raise.
    """
    if (job is None) == (estimator is None) or (estimator is None) != (model is None):
        raise ConfigError(
            "assert_parity needs a job file, or an estimator and a model",
            code="argument/missing",
            found=f"job {job!r}, estimator {type(estimator).__name__}, model {type(model).__name__}",
            hint='assert_parity("job.yaml"), or assert_parity(estimator=..., model=..., input_fn=...)',
        )
    if job is not None and options.get("eval_steps") is not None:
        raise ConfigError(
            "eval_steps is for an estimator and a model, and a job file was given",
            code="argument/not-applicable",
            found=f"job {job!r}, eval_steps={options['eval_steps']!r}",
            hint=f'eval.steps of the job file says it, or settings=["eval.steps={options["eval_steps"]}"]',
        )
    from estimator_pipeline import parity

    found = parity.compare_models(estimator, model, **options) if job is None else parity.run_parity(job, **options)
    if not found.equal:
        raise ParityError(parity.summary(found), found)
    return found
