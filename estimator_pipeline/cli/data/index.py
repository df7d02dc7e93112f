"""`estimator-pipeline index`: write index files for TFRecord files."""

from __future__ import annotations

from typing import Annotated

import typer

from estimator_pipeline.cli.options import argument


def command(
    files: Annotated[
        list[str], argument("Index these uncompressed TFRecord files; quoted patterns are allowed.", "FILE...")
    ],
) -> None:
    """Write an index beside each TFRecord file, so that no worker has to scan all files before it starts.

    FILE.idx has a line "offset size" for each record, in the format of tfrecord2idx. Without index files, each machine
    scans all files when a job first starts there, although it trains on a shard only. A correct index is not rewritten.
    """
    from estimator_pipeline.inputs.sources.paths import find_files
    from estimator_pipeline.inputs.sources.tfrecord_index import INDEX_SUFFIX, write_index

    paths = find_files(files, kind="TFRecord")
    total = 0
    for path in paths:
        count, written = write_index(path)
        total += count
        typer.echo(f"{path}{INDEX_SUFFIX}: {count:,} records{'' if written else ', up to date'}")
    if len(paths) > 1:
        typer.echo(f"{len(paths)} files: {total:,} records")
