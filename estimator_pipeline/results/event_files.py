"""Scalars from TensorBoard's event files, as `tf.estimator` and the Keras engines write them.

`tensorboard`'s own readers import TensorFlow where it is installed, which takes seconds. An event file is a TFRecord
file of `tf.Event` messages, whose Python classes `tensorboard` brings.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from estimator_pipeline.inputs.sources.tfrecord_index import masked_crc

__all__ = ["event_files", "read_scalars"]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


def event_files(folder: Path) -> list[Path]:
    """Return the event files of a folder, the oldest first: their names have the time."""
    return sorted(folder.glob("events.out.tfevents.*"))


def read_scalars(folder: Path) -> tuple[dict[str, dict[int, float]], list[str]]:
    """Read the scalars in the event files of a folder.

    A run that resumes from a checkpoint writes some steps again; the newest value counts.

    Returns:
        Tag -> step -> value, in order of the steps; and a note for each damaged file, which is read up to the damage.

    Raises:
        OSError: A file cannot be read.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.util.tensor_util import make_ndarray

    scalars: dict[str, dict[int, float]] = defaultdict(dict)
    notes = []
    for path in event_files(folder):
        try:
            for record in _records(path):
                event = Event.FromString(record)
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        scalars[value.tag][event.step] = value.simple_value
                    elif value.metadata.plugin_data.plugin_name == "scalars" and value.HasField("tensor"):
                        scalars[value.tag][event.step] = float(make_ndarray(value.tensor))
        except (ValueError, DecodeError) as error:
            notes.append(f"{path} is damaged, and was read up to the damage: {error}")
    return {tag: dict(sorted(points.items())) for tag, points in scalars.items()}, notes


def _records(path: Path) -> Iterator[bytes]:
    """Iterate over the records of a TFRecord file; an incomplete last one, which is still written, is left out.

    Raises:
        ValueError: A record does not match its checksum.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            length, crc = _HEADER.unpack(header)
            if masked_crc(google_crc32c.value(header[:8])) != crc:
                raise ValueError("the length of a record does not match its checksum")
            if file.tell() + length + _FOOTER.size > size:
                return
            record = file.read(length)
            if masked_crc(google_crc32c.value(record)) != _FOOTER.unpack(file.read(_FOOTER.size))[0]:
                raise ValueError("a record does not match its checksum")
            yield record
