"""What two engines of a job owe each other where its file says nothing: the same bits, where they run the same kernels.

The Estimator engine and the Keras engine build the same layers on the same kernels, sum over the same replicas, and
update by the same arithmetic (`keras_optimizers`); a session and a tf.function have their graphs rewritten by as many
passes (`engines/jobs/runner.py`). That is measured for the models of `model_fns`, on CPUs. What it does not cover has a
tolerance here, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from estimator_pipeline.job.tolerances import KINDS, Tolerances, kind_of, rounding
from estimator_pipeline.utils.arrays import BIT_EQUAL, Tolerance

__all__ = ["of_job"]

_SUMS = 1e-6
# A sum that is told, and that nothing is computed from.
_LOSS = Tolerance(ulp=4, rtol=_SUMS, reason="the replicas' and the regularisers' losses are added up in another order")
_METRICS = Tolerance(rtol=_SUMS, reason="what batches and replicas count is added up in another order")
_STATISTICS = Tolerance(
    rtol=1e-5,
    rtol_of_max=1e-5,
    atol=1e-7,
    reason="in a tf.function the fused kernel makes the moving averages, in a session operations of their own do",
)
_FOLLOWS = "it is computed from moving statistics, which are rounded otherwise"


def of_job(
    job: Any, *, engines: Sequence[str], variables: Iterable[str], devices: Iterable[str] = ()
) -> Mapping[str, Tolerance]:
    """Return what is compared -> its tolerance by default; what is missing has that of `Tolerances`, for rounding.

    Args:
        job: as it was trained.
        engines: the two.
        variables: canonical names.
        devices: kinds of devices that the processes have seen: "CPU", or the name of a GPU.
    """
    why = _other_arithmetic(job, engines, devices)
    if why:
        plain = Tolerances()
        return {kind: rounding(why) for kind in KINDS if plain.number(kind) == rounding()}
    found = {**dict.fromkeys(("weights", "slots", "update_norm", "predictions"), BIT_EQUAL), "loss": _LOSS}
    found["metrics"] = _METRICS
    if any(kind_of(name) == "statistics" for name in variables):
        found["statistics"] = _STATISTICS
        found["predictions"] = found["metrics"] = rounding(_FOLLOWS)
    return found


def _other_arithmetic(job: Any, engines: Sequence[str], devices: Iterable[str]) -> str:
    """Why the engines do not run the same kernels; "" where they do."""
    if set(engines) != {"estimator", "keras"}:
        return "Keras 3 has kernels of its own, and sums in another order"
    if not job.model.name:
        # A convolution's bias without an activation, say: its gradient is made with the kernel's under `Model.fit`.
        return "a session and a tf.function may fuse other operations of a model of one's own, which rounds otherwise"
    if job.model.mixed_precision:
        return "in 16 bits each product is rounded to 8 bits of mantissa, and fused operations round less often"
    others = sorted(set(devices) - {"CPU"})
    if others:
        return f"{', '.join(others)} adds up in no fixed order"
    if job.run.session_config:
        return "run.session_config rewrites the session's graph, and not the other engine's"
    return ""
