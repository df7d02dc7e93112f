"""The report of a comparison: one self-contained HTML page, and the same as JSON.

The page holds its style and its charts (SVG); it loads nothing else and runs no script. `sections.py` builds its text,
`charts.py` its charts.
"""

from __future__ import annotations

import importlib.resources
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from estimator_pipeline.parity import folders, summaries, text
from estimator_pipeline.parity.report.sections import sections
from estimator_pipeline.parity.result import Parity
from estimator_pipeline.utils import durable_files as durable
from estimator_pipeline.utils.jsonable import finite
from estimator_pipeline.utils.version import __version__

__all__ = ["HTML", "JSON", "prepare", "render", "write_report"]

HTML = "report.html"
JSON = "report.json"
_TEMPLATE = "report.html.jinja"
# Sentences below the verdict on what only one side has.
_MOST_SENTENCES = 8


def prepare(folder: str | os.PathLike[str]) -> Path:
    """Create the folder of a report and check that it is writable, before the runs start.

    Raises:
        ConfigError: it is a file, or is not writable.
    """
    return folders.prepare(folder, option="--report", contents="the report", files=(HTML, JSON))


def write_report(parity: Parity, folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` and `report.json`, each atomically.

    Args:
        parity: the result of the comparison.
        folder: folder of both files; created if it is missing. Earlier files are replaced.

    Returns:
        The path of the page.

    Raises:
        ConfigError: the folder is not writable.
    """
    folder = prepare(folder)
    page = render(parity)
    durable.write(folder / JSON, (json.dumps(finite(text.document(parity)), indent=2) + "\n").encode())
    durable.write(folder / HTML, page.encode())
    return folder / HTML


def render(parity: Parity) -> str:
    """Return the page, as text."""
    jinja = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters["breakable"] = _breakable
    template = jinja.from_string(importlib.resources.files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8"))
    return template.render(
        title=_title(parity.about),
        equal=parity.equal,
        verdict=summaries.verdict(parity),
        one_sided=summaries.one_sided(parity),
        most=_MOST_SENTENCES,
        sections=sections(parity),
        # Charts are generated here; everything else on the page is escaped.
        svg=markupsafe.Markup,
        folder=str(parity.folder),
        version=__version__,
    )


def _title(about: Mapping[str, Any]) -> str:
    """Return a title from the job file, or from the Estimator and the model of a program."""
    job = os.path.basename(str(about.get("job", "")))
    if job or not {"estimator", "model"} <= set(about):
        return f"Parity of {job or 'a job'}"
    # A plain Estimator is identified by its model_fn; the name of a model often equals its class.
    estimator = str(about["estimator"]).removeprefix("model_fn ")
    kind, _, name = str(about["model"]).partition(" ")
    return f"Parity of {estimator} and {kind if name in ('', kind.lower()) else f'{kind} {name}'}"


def _breakable(name: str) -> markupsafe.Markup:
    """Return a name that may wrap after its slashes."""
    return markupsafe.Markup("/<wbr>").join(name.split("/"))
