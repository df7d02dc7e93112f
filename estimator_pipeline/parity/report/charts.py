"""Charts of a comparison as inline SVG: losses of both sides, and differences by step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from estimator_pipeline.utils.charts import (
    FOUR,
    MARKED,
    ONE,
    QUIET,
    THREE,
    TWO,
    Chart,
    finish,
    new_figure,
    scale,
    svg_of,
)
from estimator_pipeline.utils.text import counted

__all__ = ["differences", "losses"]

# Distance of the rows for non-numbers from the numbers on the axis of differences, as a part of their range.
_ROW = 0.14
# Colour, marker, line width and marker size, by series.
_LOOKS = ((ONE, "o", 4.5, 7.5), (TWO, "s", 1.6, 4.5), (THREE, "^", 1.6, 4.5), (FOUR, "v", 1.6, 4.5))
_BETWEEN_ROWS: dict[str, Any] = {"color": QUIET, "linewidth": 0.6, "linestyle": (0, (1, 2))}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def losses(
    steps: Sequence[int], values: Mapping[str, Sequence[float]], *, parted: int | None = None, name: str = "losses",
    quantity: str = "loss", begin: int = 0, ylabel: str = "loss of the global batch",
) -> Chart:  # fmt: skip
    """Return the losses of both sides by step: a wide line, and a thin dashed line over it.

    Args:
        steps: in order.
        values: side -> its loss at each step, for one or two sides. Values that are not finite are left out and noted.
        parted: the first step that differs, which is marked.
        name: prefix of the ids in the SVG, which must differ between charts of one page.
        quantity: name of the plotted quantity.
        begin: 1 if only the second side is drawn, so that it has the style of the second side.
        ylabel: label of the y axis.
    """
    figure, axes = new_figure()
    scale(axes, [value for side in values.values() for value in side])
    styles: tuple[dict[str, Any], ...] = (
        {"color": ONE, "linewidth": 5.0},
        {"color": TWO, "linewidth": 1.6, "linestyle": (0, (4, 2.5))},
    )
    notes = []
    for (side, values_of_side), style, size in zip(values.items(), styles[begin:], (8, 4)[begin:], strict=False):
        mark = "o" if len(steps) <= MARKED else ""
        axes.plot(
            steps, list(values_of_side), label=side, marker=mark, markersize=size, solid_capstyle="round", **style
        )
        unshown = [step for step, value in zip(steps, values_of_side, strict=True) if not math.isfinite(value)]
        if unshown:
            more = "" if len(unshown) == 1 else f" and of {counted(len(unshown) - 1, 'further step')}"
            notes.append(
                f"The {quantity} of {side} at step {unshown[0]}{more} is not a finite number and is not drawn."
            )
    finish(axes, steps, parted=parted, ylabel=ylabel)
    sides = " and ".join(values)
    return Chart(svg=svg_of(figure, name), label=f"The {quantity} of {sides} by step", notes=tuple(notes))


def differences(
    series: Mapping[str, Sequence[tuple[int, float]]], *, parted: int | None = None, name: str = "differences"
) -> Chart:
    """Return the largest absolute error of each series by step, on a logarithmic axis.

    0 and infinity, which have no place on such an axis, get a row each: "bit-equal" below, "NaN or ∞" above. A series
    that is bit-equal at every step is left out.

    Args:
        series: name -> (step, error), the same steps in all of them.
        parted, name: as in `losses`.
    """
    drawn = {name: points for name, points in series.items() if any(error for _, error in points)}
    every = [error for points in drawn.values() for _, error in points]
    exponents = [math.log10(error) for error in every if 0 < error < math.inf]
    low = math.floor(min(exponents, default=-1))
    high = max(math.ceil(max(exponents, default=0)), low + 1)
    apart = _ROW * (high - low)
    equal, infinite = low - apart, high + apart

    def height(error: float) -> float:
        if error == 0:
            return equal
        return math.log10(error) if math.isfinite(error) else infinite

    figure, axes = new_figure()
    for (label, points), (colour, mark, width, size) in zip(drawn.items(), itertools.cycle(_LOOKS), strict=False):
        axes.plot(
            [step for step, _ in points],
            [height(error) for _, error in points],
            label=label,
            color=colour,
            marker=mark if len(points) <= MARKED else "",
            markersize=size,
            linewidth=width,
        )
    # Nine ticks at most.
    shown = range(low, high + 1, math.ceil((high - low) / 8)) if exponents else ()
    ticks: dict[float, str] = {exponent: f"10{str(exponent).translate(_RAISED)}" for exponent in shown}
    ends = [float(low), float(high)]
    if any(error == 0 for error in every):
        axes.axhline(low - apart / 2, **_BETWEEN_ROWS)
        ticks[equal], ends[0] = "bit-equal", equal
    if not all(map(math.isfinite, every)):
        axes.axhline(high + apart / 2, **_BETWEEN_ROWS)
        ticks[infinite], ends[1] = "NaN or ∞", infinite
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(ends[0] - apart / 2, ends[1] + apart / 2)
    steps = [step for step, _ in next(iter(drawn.values()), [])]
    finish(axes, steps, parted=parted, ylabel="largest absolute difference")
    return Chart(svg=svg_of(figure, name), label=f"Largest absolute difference by step: {', '.join(drawn)}")
