"""The embedded data set `digits`: 1,797 images of handwritten digits, 8 by 8 pixels, with no network.

The images are scikit-learn's copy of the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin
and C. Kaynak, UCI Machine Learning Repository, 1998). They are prepared once, by a TensorFlow Datasets
builder, into files like those of any other TFDS data set: 1,437 records to train on and 360 to test, four
files each.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import io
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sampler import IndexSampler, record_ids
from estimator_pipeline.inputs.sources.tfrecord_index import cache_dir

__all__ = ["CLASSES", "NAME", "SHAPE", "VERSION", "default_data_dir", "locked", "prepare", "split_indices"]

NAME = "digits"
VERSION = "1.0.0"
NUM_TRAIN, NUM_TEST = 1437, 360
SHAPE, CLASSES = (8, 8, 1), 10  # of an image; digits
_SHARDS = 4


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder of the prepared `digits`: TFDS_DATA_DIR, or `tfds` in this package's cache."""
    folder = environ.get("TFDS_DATA_DIR")
    return Path(folder) if folder else cache_dir(environ) / "tfds"


def prepare(data_dir: str | os.PathLike[str] | None = None, *, environ: Mapping[str, str] | None = None) -> Path:
    """Write the data set's files unless they exist, and return their folder.

    Several processes may call it at the same time: one writes, the others wait; the files appear atomically.

    Args:
        data_dir: The TFDS data directory; by default `default_data_dir`.
        environ: Where TFDS_DATA_DIR, XDG_CACHE_HOME and HOME are looked up; os.environ by default.

    Returns:
        The directory of the prepared version, ready for `tfds.builder_from_directory`.

    Raises:
        InputError: The directory can't be written, or scikit-learn is not installed.
    """
    base = Path(data_dir) if data_dir is not None else default_data_dir(os.environ if environ is None else environ)
    there = base / NAME / VERSION
    if (there / "dataset_info.json").is_file():
        return there
    with locked(base, NAME):
        if not (there / "dataset_info.json").is_file():
            import tensorflow_datasets as tfds

            builder = _builder_class()(data_dir=str(base))
            config = tfds.download.DownloadConfig(num_shards=_SHARDS)
            # TFDS reports to standard output, which belongs to the program.
            with contextlib.redirect_stdout(io.StringIO()):
                tfds.disable_progress_bar()
                builder.download_and_prepare(download_config=config)
    return there


@contextlib.contextmanager
def locked(data_dir: Path, name: str) -> Iterator[None]:
    """Keep other processes of this machine from preparing the same data set meanwhile.

    Raises:
        InputError: The directory can't be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = open(data_dir / f".{name}.lock", "w")  # noqa: SIM115  closed below, and with it released
    except OSError as error:
        raise InputError(
            f"The data set {name} cannot be prepared",
            code="file/unwritable",
            found=f"{data_dir}: {error.strerror}",
            hint="give a data_dir that can be written",
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def split_indices(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fixed, stratified split: which records train and which test.

    Args:
        labels: int array of shape (1797,), the digits' classes.

    Returns:
        Indices to train on and to test, each ascending. Each class gives its share of the test records,
        rounded so that the sum is right (largest remainder).
    """
    classes, counts = np.unique(labels, return_counts=True)
    exact = counts * NUM_TEST
    quota = exact // len(labels)
    most = np.argsort(-(exact % len(labels)), kind="stable")[: NUM_TEST - int(quota.sum())]
    quota[most] += 1
    chosen = []
    for value, count, take in zip(classes, counts, quota, strict=True):
        members = np.flatnonzero(labels == value)
        # This package's own permutation, as a library's generator might change with its version.
        chosen.append(members[record_ids(IndexSampler(int(count), seed=int(value)), 0, int(take))])
    test = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(labels)), test), test


def _png(image: np.ndarray) -> bytes:
    """Return a grey image as a PNG file (W3C, "Portable Network Graphics", second edition).

    TFDS would encode an array with TensorFlow, whose runtime then starts; a MultiWorkerMirroredStrategy can't
    be made after that, and the first run of a job would fail where the second does not.

    Args:
        image: uint8 array of shape (height, width, 1).
    """
    height, width, _ = image.shape
    lines = b"".join(b"\0" + line.tobytes() for line in image)  # 0: the line is stored without a filter.

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits a pixel, grey.
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines, 9)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@functools.cache
def _builder_class() -> type[Any]:
    """Yield the builder, made when first asked for: its base class is TensorFlow Datasets' own."""
    import tensorflow_datasets as tfds

    class Digits(tfds.core.GeneratorBasedBuilder):
        """Handwritten digits, 8 by 8 pixels of 0 to 16."""

        VERSION = tfds.core.Version(VERSION)
        RELEASE_NOTES: ClassVar = {"1.0.0": "The first version."}

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self,
                description="Handwritten digits, 8 by 8 pixels of 0 to 16, from scikit-learn.",
                features=tfds.features.FeaturesDict(
                    {
                        "image": tfds.features.Image(shape=SHAPE, dtype=np.uint8),
                        "label": tfds.features.ClassLabel(num_classes=CLASSES),
                    }
                ),
                supervised_keys=("image", "label"),
                homepage="https://archive.ics.uci.edu/dataset/80",
                citation="E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. UCI, 1998.",
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            try:
                from sklearn.datasets import load_digits
            except ImportError as error:
                raise InputError(
                    "The data set digits comes with scikit-learn, which is not installed",
                    code="tensorflow/not-installed",
                    found=str(error),
                    hint="pip install scikit-learn",
                ) from error
            bunch = load_digits()
            images = bunch.images.astype(np.uint8)[..., np.newaxis]
            train, test = split_indices(bunch.target)
            return {
                "train": self._generate_examples(images, bunch.target, train),
                "test": self._generate_examples(images, bunch.target, test),
            }

        def _generate_examples(self, images: np.ndarray, labels: np.ndarray, chosen: np.ndarray) -> Iterator[Any]:
            for index in chosen.tolist():
                yield index, {"image": io.BytesIO(_png(images[index])), "label": int(labels[index])}

    return Digits
