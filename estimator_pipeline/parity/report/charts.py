"""Charts of a comparison as inline SVG: colours come from the page, and text is selectable text.

Drawn by matplotlib without pyplot: no window, and no global state.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from estimator_pipeline.utils.text import counted

__all__ = ["COLOURS", "Chart", "differences", "losses"]

# Placeholder colours that matplotlib writes -> the page's colour, and the colour without a page.
COLOURS = {
    "#010101": ("ink", "#24292f"),
    "#020202": ("faint", "#d0d7de"),
    "#030303": ("quiet", "#57606a"),
    "#040404": ("one", "#7aaede"),
    "#050505": ("two", "#b3490b"),
    "#060606": ("three", "#7d3fb0"),
    "#070707": ("four", "#1a7f37"),
    "#080808": ("bad", "#cf222e"),
}
_INK, _FAINT, _QUIET, _ONE, _TWO, _THREE, _FOUR, _BAD = COLOURS
_SIZE = (7.6, 3.1)
# Lines with more points than this have no markers.
_MARKED = 60
# Distance of the rows for non-numbers from the numbers on the axis of differences, as a part of their range.
_ROW = 0.14
# Colour, marker, line width and marker size, by series.
_LOOKS = ((_ONE, "o", 4.5, 7.5), (_TWO, "s", 1.6, 4.5), (_THREE, "^", 1.6, 4.5), (_FOUR, "v", 1.6, 4.5))
_BETWEEN_ROWS: dict[str, Any] = {"color": _QUIET, "linewidth": 0.6, "linestyle": (0, (1, 2))}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart in a page.

    Attributes:
        svg: the element `<svg>`.
        label: description for screen readers.
        notes: values that it cannot show, in sentences.
    """

    svg: str
    label: str
    notes: tuple[str, ...] = ()


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
    figure, axes = _figure()
    finite = [value for side in values.values() for value in side if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) > 100 * min(finite):
        axes.set_yscale("log")
    styles: tuple[dict[str, Any], ...] = (
        {"color": _ONE, "linewidth": 5.0},
        {"color": _TWO, "linewidth": 1.6, "linestyle": (0, (4, 2.5))},
    )
    notes = []
    for (side, values_of_side), style, size in zip(values.items(), styles[begin:], (8, 4)[begin:], strict=False):
        mark = "o" if len(steps) <= _MARKED else ""
        axes.plot(
            steps, list(values_of_side), label=side, marker=mark, markersize=size, solid_capstyle="round", **style
        )
        unshown = [step for step, value in zip(steps, values_of_side, strict=True) if not math.isfinite(value)]
        if unshown:
            more = "" if len(unshown) == 1 else f" and of {counted(len(unshown) - 1, 'further step')}"
            notes.append(
                f"The {quantity} of {side} at step {unshown[0]}{more} is not a finite number and is not drawn."
            )
    _finish(axes, steps, parted, ylabel=ylabel)
    sides = " and ".join(values)
    return Chart(svg=_svg(figure, name), label=f"The {quantity} of {sides} by step", notes=tuple(notes))


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

    figure, axes = _figure()
    for (label, points), (colour, mark, width, size) in zip(drawn.items(), itertools.cycle(_LOOKS), strict=False):
        axes.plot(
            [step for step, _ in points],
            [height(error) for _, error in points],
            label=label,
            color=colour,
            marker=mark if len(points) <= _MARKED else "",
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
    _finish(axes, steps, parted, ylabel="largest absolute difference")
    return Chart(svg=_svg(figure, name), label=f"Largest absolute difference by step: {', '.join(drawn)}")


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    return figure, figure.add_subplot()


def _finish(axes: Axes, steps: Sequence[int], parted: int | None, *, ylabel: str) -> None:
    axes.set_xlabel("step", color=_QUIET)
    axes.set_ylabel(ylabel, color=_QUIET)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, steps=[1, 2, 5, 10]))
    if len(steps) == 1:
        axes.set_xlim(steps[0] - 1, steps[0] + 1)
    if parted is not None and steps and steps[0] <= parted <= steps[-1]:
        axes.axvline(parted, color=_BAD, linewidth=1.0, linestyle=(0, (2, 2)), label=f"first difference: step {parted}")
    axes.grid(color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_QUIET, labelcolor=_INK, which="both")
    for place, spine in axes.spines.items():
        spine.set_visible(place in ("left", "bottom"))
        spine.set_color(_QUIET)
    # Above the axes, where it cannot hide a curve.
    axes.figure.legend(loc="outside upper left", ncols=5, frameon=False, labelcolor=_INK, handlelength=3)


def _svg(figure: Figure, name: str) -> str:
    """Return the figure as an element for a page, with unique ids and the page's colours and fonts."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # A fixed salt: the same chart is the same text.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}):
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    # Its style would apply to the whole page; the page defines it for charts only.
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"; font-family: [^;\"]*|font-family: [^;\"]*;? ?", "", svg)
    for stand_in, (colour, without) in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{colour}, {without})")
    return svg
