"""Default tolerances for two engines of a job: bit-equal where they run the same kernels.

The Estimator engine and the Keras engine build the same layers on the same kernels, sum over the same replicas, and
update by the same arithmetic (`keras_optimizers`); a session and a tf.function rewrite their graphs in equally many
passes (`engines/jobs/build.py`). This is measured for the models of `model_fns`, on CPUs. All other cases have a
tolerance here, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from estimator_pipeline.job.tolerances import KINDS, Tolerances, kind_of, rounding
from estimator_pipeline.utils.arrays import BIT_EQUAL, Tolerance

__all__ = ["of_job"]

_SUMS = 1e-6
# A sum that is only reported; nothing is computed from it.
_LOSS = Tolerance(
    ulp=4, rtol=_SUMS, reason="the replicas' and the regularisers' losses are summed in a different order"
)
_METRICS = Tolerance(rtol=_SUMS, reason="values of batches and replicas are summed in a different order")
_STATISTICS = Tolerance(
    rtol=1e-5,
    rtol_of_max=1e-5,
    atol=1e-7,
    reason="moving averages come from the fused kernel in a tf.function, and from separate operations in a session",
)
_FOLLOWS = "it is computed from moving statistics, which are rounded differently"


def of_job(
    job: Any, *, engines: Sequence[str], variables: Iterable[str], devices: Iterable[str] = ()
) -> Mapping[str, Tolerance]:
    """Return kind -> its default tolerance; missing kinds have the default of `Tolerances`, for rounding.

    Args:
        job: the job as it was trained.
        engines: the two engines.
        variables: canonical names.
        devices: kinds of devices that the processes used: "CPU", or the name of a GPU.
    """
    why = _other_arithmetic(job, engines, devices)
    if why:
        plain = Tolerances()
        return {kind: rounding(why) for kind in KINDS if plain.number(kind) == rounding()}
    tolerances = {**dict.fromkeys(("weights", "slots", "update_norm", "predictions"), BIT_EQUAL), "loss": _LOSS}
    tolerances["metrics"] = _METRICS
    if any(kind_of(name) == "statistics" for name in variables):
        tolerances["statistics"] = _STATISTICS
        tolerances["predictions"] = tolerances["metrics"] = rounding(_FOLLOWS)
    return tolerances


def _other_arithmetic(job: Any, engines: Sequence[str], devices: Iterable[str]) -> str:
    """Return the reason why the engines do not run the same kernels; "" if they do."""
    if set(engines) != {"estimator", "keras"}:
        return "Keras 3 has different kernels, and sums in a different order"
    if not job.model.name:
        # For example a convolution's bias without an activation: `Model.fit` fuses its gradient with the kernel's.
        return "a session and a tf.function may fuse different operations of a custom model, which rounds differently"
    if job.model.mixed_precision:
        return "in 16 bits each product is rounded to 8 bits of mantissa, and fused operations round less often"
    others = sorted(set(devices) - {"CPU"})
    if others:
        return f"{', '.join(others)} sums in no fixed order"
    if job.run.session_config:
        return "run.session_config rewrites only the graph of the session"
    return ""
