"""A plot of which task reads which records: steps on the x axis, records on the y axis, a colour for each worker.

It uses matplotlib without pyplot, which neither opens a window nor changes global state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.inputs.ledger.layout import LedgerLayout, row_of

__all__ = ["draw"]

# Safe for colour-blind readers (Okabe and Ito, 2008); red is reserved for records read twice.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#7a6a00", "#5a3fa0", "#555555")
_BAD = "#D00000"
_ENDINGS = (".png", ".svg", ".pdf")
_CELLS = (640, 900)  # Limits: rows of records, columns of steps. Beyond these, several share a cell.
_MANY = 12  # Limit of drawn epoch borders.


def draw(layout: LedgerLayout, path: Path, *, title: str) -> None:
    """Write the picture.

    Args:
        layout: The records of each task.
        path: A .png, .svg or .pdf file.
        title: The title.

    Raises:
        ConfigError: Unknown extension, no steps, or the file cannot be written.
    """
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(
            f"a picture cannot be written as {path.name}",
            code="argument/bad-value",
            hint=f"end its name in {', '.join(_ENDINGS)}",
        )
    if not layout.steps:
        raise ConfigError(
            "there is no step to draw", code="data/empty", hint="select existing steps: --steps FIRST:LAST"
        )
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.2), dpi=130, layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=(5, 1))
    main = figure.add_subplot(grid[0, 0])
    side = figure.add_subplot(grid[0, 1], sharey=main)
    shown = _draw_cells(main, layout)
    _draw_epochs(main, layout)
    _draw_reads(side, layout)
    main.set_xlabel("step")
    main.set_ylabel("record, in the order of coming" if layout.fingerprints else "record")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    _legend(figure, main, layout, shown)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(
            f"the picture cannot be written: {error}", code="file/unwritable", hint="name a different file"
        ) from error


def _draw_cells(axes: Any, layout: LedgerLayout) -> set[str]:
    """Draw the coloured cells, and return the further entries of the legend."""
    from matplotlib.colors import to_rgb

    rows, records = row_of(layout)
    steps = list(layout.steps)
    first, last = steps[0], steps[-1]
    height, width = min(records, _CELLS[0]), min(last - first + 1, _CELLS[1])
    reads = np.zeros((len(layout.tasks), height, width))
    bad = np.zeros((height, width), dtype=bool)
    lost = np.zeros(width, dtype=bool)
    epochs = np.full(records, -1, dtype=np.int64)
    for step, read in layout.steps.items():
        column = (step - first) * width // (last - first + 1)
        for number, task in enumerate(layout.tasks):
            ids = read.get(task)
            if ids is None:
                lost[column] |= task in read
                continue
            at = rows(ids)
            inside = (at >= 0) & (at < records)
            np.add.at(reads[number, :, column], at[inside] * height // records, 1)
        if layout.per_epoch is not None:
            _mark_twice(layout, step, read, rows, epochs, bad[:, column])
    total = reads.sum(axis=0)
    colours = np.array([to_rgb(_COLOURS[n % len(_COLOURS)]) for n in range(len(layout.tasks))])
    image = np.ones((height, width, 3))
    there = total > 0
    mixed = np.einsum("thw,tc->hwc", reads, colours)
    # The density of a cell with many records is its share of records, with a minimum that remains visible.
    single = height == records and width == last - first + 1
    density = np.clip(total / max(float(total.max()), 1.0), 1.0 if single else 0.55, 1.0)[..., np.newaxis]
    image[there] = (mixed[there] / total[there][:, np.newaxis]) * density[there] + (1 - density[there])
    image[bad] = to_rgb(_BAD)
    image[:, lost] = np.where(there[:, lost][..., np.newaxis], image[:, lost], 0.86)
    extent = (first - 0.5, last + 0.5, -0.5, records - 0.5)
    axes.imshow(image, origin="lower", aspect="auto", interpolation="nearest", extent=extent)
    return {name for name, shown in (("twice", bad.any()), ("lost", lost.any())) if shown}


def _mark_twice(layout: LedgerLayout, step: int, read: Any, rows: Any, epochs: np.ndarray, column: np.ndarray) -> None:
    """Mark records that repeat within an epoch, as far as the drawn steps show it."""
    assert layout.per_epoch is not None
    parts = [ids for ids in read.values() if ids is not None]
    if len(parts) < len(read) or not parts:
        return
    ids = rows(np.concatenate(parts))
    at = (step - 1) * len(ids) + np.arange(len(ids))
    epoch = at // max(round(layout.per_epoch * len(ids)), 1)
    inside = (ids >= 0) & (ids < len(epochs))
    ids, epoch = ids[inside], epoch[inside]
    _, kept = np.unique(ids + epoch * len(epochs), return_index=True)
    again = np.ones(len(ids), dtype=bool)
    again[kept] = False
    again |= epochs[ids] == epoch
    column[ids[again] * len(column) // len(epochs)] = True
    epochs[ids] = epoch


def _draw_epochs(axes: Any, layout: LedgerLayout) -> None:
    if layout.per_epoch is None:
        return
    first, last = min(layout.steps), max(layout.steps)
    borders = np.arange(np.ceil((first - 1) / layout.per_epoch), last / layout.per_epoch + 1) * layout.per_epoch
    borders = borders[(borders > first - 1) & (borders < last)]
    for border in borders[:: max(1, -(-len(borders) // _MANY))]:
        axes.axvline(border + 0.5, color="#24292f", linewidth=0.8, linestyle=(0, (4, 3)))


def _draw_reads(axes: Any, layout: LedgerLayout) -> None:
    """Draw how often each record is read in these steps."""
    rows, records = row_of(layout)
    parts = [rows(ids) for read in layout.steps.values() for ids in read.values() if ids is not None]
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    counts = np.bincount(ids[(ids >= 0) & (ids < records)], minlength=records)
    if records <= _CELLS[0]:
        axes.barh(np.arange(records), counts, height=1.0, color="#8c959f")
    else:
        # The least and the most of the records that share a row.
        edges = np.arange(_CELLS[0]) * records // _CELLS[0]
        least, most = np.minimum.reduceat(counts, edges), np.maximum.reduceat(counts, edges)
        axes.fill_betweenx(edges, 0, most, color="#c8d1da", step="post", linewidth=0)
        axes.fill_betweenx(edges, 0, least, color="#8c959f", step="post", linewidth=0)
    axes.set_xlim(0, max(int(counts.max()), 1) + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("times read")
    axes.tick_params(labelleft=False)
    never = int(np.count_nonzero(counts == 0))
    axes.set_title(f"{counts.min()} to {counts.max()} times" + (f", {never} not" if never else ""), fontsize=9)


def _legend(figure: Any, axes: Any, layout: LedgerLayout, shown: set[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks: list[Any] = [
        Patch(color=_COLOURS[number % len(_COLOURS)], label=task) for number, task in enumerate(layout.tasks)
    ]
    if layout.per_epoch is not None:
        marks.append(Line2D([], [], color="#24292f", linewidth=0.8, linestyle=(0, (4, 3)), label="end of an epoch"))
    if "twice" in shown:
        marks.append(Patch(color=_BAD, label="again in the same epoch"))
    if "lost" in shown:
        marks.append(Patch(color="#dbdbdb", label="not in the ledger"))
    figure.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 6), fontsize=9, frameon=False)
