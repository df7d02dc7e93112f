"""Charts as inline SVG for a page, or as PNG files.

In SVG the colours come from the page, and text is selectable text. Drawn by matplotlib without pyplot: no window, and
no global state.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import re
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

__all__ = [
    "BAD",
    "COLOURS",
    "Chart",
    "FAINT",
    "FOUR",
    "INK",
    "MARKED",
    "ONE",
    "QUIET",
    "THREE",
    "TWO",
    "curves",
    "finish",
    "new_figure",
    "png_of",
    "scale",
    "svg_of",
]

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
INK, FAINT, QUIET, ONE, TWO, THREE, FOUR, BAD = COLOURS
_SIZE = (7.6, 3.1)
MARKED = 60
"""Lines with more points than this have no markers."""
# Of several curves: matplotlib's ten colours, which are seen on light and dark pages, then again with a different dash.
_CURVES = [f"C{number}" for number in range(10)]
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))


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


def curves(series: Mapping[str, Mapping[int, float]], *, ylabel: str, page: bool = True) -> Figure:
    """Return a figure with a line for each series of values by step; values that are not finite are gaps.

    Args:
        series: Name -> step -> value. A series without values is left out.
        ylabel: Label of the y axis.
        page: Whether the figure becomes SVG in a page; otherwise it has fixed colours, on white.
    """
    figure, axes = new_figure()
    drawn = {name: points for name, points in series.items() if points}
    scale(axes, [value for points in drawn.values() for value in points.values()])
    for (name, points), (dash, colour) in zip(
        drawn.items(), itertools.cycle(itertools.product(_DASHES, _CURVES)), strict=False
    ):
        mark = "o" if len(points) <= MARKED else ""
        steps, values = list(points), list(points.values())
        axes.plot(steps, values, label=name, color=colour, linestyle=dash, linewidth=1.6, marker=mark, markersize=4)
    steps = sorted({step for points in drawn.values() for step in points})
    # As many columns as names of this length have room.
    columns = max(1, min(5, 85 // (7 + max(map(len, drawn), default=0))))
    finish(axes, steps, ylabel=ylabel, legend=columns if len(drawn) > 1 else 0, page=page)
    return figure


def new_figure() -> tuple[Figure, Axes]:
    """Return an empty figure of the usual size, and its axes."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    return figure, figure.add_subplot()


def scale(axes: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic for positive values over two orders of magnitude or more."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) > 100 * min(finite):
        axes.set_yscale("log")


def finish(
    axes: Axes, steps: Sequence[int], *, ylabel: str, parted: int | None = None, legend: int = 5, page: bool = True
) -> None:
    """Style the axes of a chart by step.

    Args:
        axes: The axes with their curves.
        steps: The steps, in order.
        ylabel: Label of the y axis.
        parted: The first step that differs, which is marked.
        legend: The number of columns of the legend; 0 for none.
        page: As in `curves`.
    """
    ink, faint, quiet, bad = (shade if page else COLOURS[shade][1] for shade in (INK, FAINT, QUIET, BAD))
    axes.set_xlabel("step", color=quiet)
    axes.set_ylabel(ylabel, color=quiet)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, steps=[1, 2, 5, 10]))
    if len(steps) == 1:
        axes.set_xlim(steps[0] - 1, steps[0] + 1)
    if parted is not None and steps and steps[0] <= parted <= steps[-1]:
        axes.axvline(parted, color=bad, linewidth=1.0, linestyle=(0, (2, 2)), label=f"first difference: step {parted}")
    axes.grid(color=faint, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=quiet, labelcolor=ink, which="both")
    for place, spine in axes.spines.items():
        spine.set_visible(place in ("left", "bottom"))
        spine.set_color(quiet)
    if legend:  # above the axes, where it cannot hide a curve
        axes.figure.legend(loc="outside upper left", ncols=legend, frameon=False, labelcolor=ink, handlelength=3)


def png_of(figure: Figure) -> bytes:
    """Return the figure as a PNG file."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    return content.getvalue()


def svg_of(figure: Figure, name: str) -> str:
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
