"""`estimator-pipeline index`: where the records of TFRecord files begin, written beside them."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="TFRecord files, not compressed; or quoted patterns.")
    ],
) -> None:
    """Write beside each TFRecord file where its records begin, so that no worker has to walk through all files first.

    FILE.idx has a line "offset size" for each record, as tfrecord2idx writes it. Without it each machine finds out by
    itself when a job first starts there, for all files, though it trains on its share. An index that is right stays.
    """
    from estimator_pipeline.inputs.sources.paths import find_files
    from estimator_pipeline.inputs.sources.tfrecord_index import INDEX_SUFFIX, write_index

    found = find_files(files, what="TFRecord")
    total = 0
    for path in found:
        count, written = write_index(path)
        total += count
        typer.echo(f"{path}{INDEX_SUFFIX}: {count:,} records{'' if written else ', was there'}")
    if len(found) > 1:
        typer.echo(f"{len(found)} files: {total:,} records")
