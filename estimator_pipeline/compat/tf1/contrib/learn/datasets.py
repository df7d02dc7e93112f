"""`tf.contrib.learn.datasets` and `tensorflow.examples.tutorials.mnist`: MNIST and CSV files, in NumPy.

MNIST is read from the four files of its web page (`train-images-idx3-ubyte.gz`, …) in the program's folder. Missing
files are downloaded from TensorFlow's copy.
"""

from __future__ import annotations

import collections
import csv
import gzip
import os
import urllib.request
from typing import Any

import numpy as np
import tensorflow as tf

from estimator_pipeline.errors import CompatError
from estimator_pipeline.utils import durable_files

__all__ = [
    "DATASETS",
    "DataSet",
    "Dataset",
    "Datasets",
    "extract_images",
    "extract_labels",
    "load_csv_with_header",
    "load_csv_without_header",
    "load_dataset",
    "load_iris",
    "load_mnist",
    "maybe_download",
    "read_data_sets",
]

Dataset = collections.namedtuple("Dataset", ["data", "target"])
Datasets = collections.namedtuple("Datasets", ["train", "validation", "test"])

DEFAULT_SOURCE_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FILES = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_IMAGES, _LABELS = 2051, 2049  # the magic numbers of image files and of label files


def maybe_download(filename: str, work_directory: str, source_url: str) -> str:
    """Return the path of a file in a folder, after downloading it if it is missing.

    Raises:
        CompatError: The file is missing and cannot be downloaded.
    """
    path = os.path.join(work_directory, filename)
    if not os.path.exists(path):
        os.makedirs(work_directory, exist_ok=True)
        try:
            with urllib.request.urlopen(source_url, timeout=60) as answer:
                content = answer.read()
        except OSError as error:
            raise CompatError(
                f"{path} does not exist, and cannot be downloaded from {source_url}",
                code="file/not-found",
                found=str(error),
                hint=f"copy {filename} to {work_directory}",
            ) from error
        durable_files.write(path, content)
    return path


def _numbers(content: bytes, count: int) -> list[int]:
    return [int(each) for each in np.frombuffer(content[: 4 * count], ">u4")]


def extract_images(f: Any) -> np.ndarray:
    """Return the images of an open file: [count, rows, columns, 1], uint8."""
    content = gzip.GzipFile(fileobj=f).read()
    magic, count, rows, columns = _numbers(content, 4)
    if magic != _IMAGES:
        raise ValueError(f"Invalid magic number {magic} in MNIST image file: {getattr(f, 'name', f)}")
    return np.frombuffer(content, np.uint8, offset=16).reshape(count, rows, columns, 1)


def extract_labels(f: Any, one_hot: bool = False, num_classes: int = 10) -> np.ndarray:
    """Return the labels of an open file: [count], uint8, or [count, classes]."""
    content = gzip.GzipFile(fileobj=f).read()
    magic, _ = _numbers(content, 2)
    if magic != _LABELS:
        raise ValueError(f"Invalid magic number {magic} in MNIST label file: {getattr(f, 'name', f)}")
    labels = np.frombuffer(content, np.uint8, offset=8)
    return np.eye(num_classes)[labels] if one_hot else labels


class DataSet:
    """Images and labels, with repeating batches.

    Args:
        images: [count, rows, columns, 1], uint8.
        labels: [count, …].
        fake_data: Whether to return images of ones and the label 0 instead of data.
        one_hot: Whether the labels of fake data are one-hot.
        dtype: tf.uint8, or tf.float32, which scales the pixels to [0, 1].
        reshape: Whether to flatten the images.
        seed: The seed of the order.
    """

    def __init__(
        self,
        images: Any,
        labels: Any,
        fake_data: bool = False,
        one_hot: bool = False,
        dtype: Any = tf.float32,
        reshape: bool = True,
        seed: int | None = None,
    ) -> None:
        dtype = tf.as_dtype(dtype).base_dtype
        if dtype not in (tf.uint8, tf.float32):
            raise TypeError(f"Invalid image dtype {dtype}, expected uint8 or float32")
        self._random = np.random.RandomState(seed)
        self._fake, self._one_hot = fake_data, one_hot
        if not fake_data:
            if len(images) != len(labels):
                raise ValueError(f"{len(images)} images and {len(labels)} labels")
            if reshape:
                images = images.reshape(len(images), -1)
            if dtype == tf.float32:
                images = images.astype(np.float32) / np.float32(255)
        self._images, self._labels = images, labels
        self._num_examples = 10000 if fake_data else len(images)
        self._epochs_completed = self._index_in_epoch = 0

    @property
    def images(self) -> Any:
        return self._images

    @property
    def labels(self) -> Any:
        return self._labels

    @property
    def num_examples(self) -> int:
        return self._num_examples

    @property
    def epochs_completed(self) -> int:
        return self._epochs_completed

    def next_batch(self, batch_size: int, fake_data: bool = False, shuffle: bool = True) -> tuple[Any, Any]:
        """Return the next images and labels; the next epoch follows the last ones."""
        if fake_data or self._fake:
            label: Any = [1] + [0] * 9 if self._one_hot else 0
            return [[1] * 784 for _ in range(batch_size)], [label] * batch_size
        if self._index_in_epoch == 0 and self._epochs_completed == 0 and shuffle:
            self._shuffle()
        start, end = self._index_in_epoch, self._index_in_epoch + batch_size
        images, labels = self._images[start:end], self._labels[start:end]
        if end <= self._num_examples:
            self._index_in_epoch = end
            return images, labels
        self._epochs_completed += 1
        if shuffle:
            self._shuffle()
        self._index_in_epoch = end - self._num_examples
        return (
            np.concatenate([images, self._images[: self._index_in_epoch]]),
            np.concatenate([labels, self._labels[: self._index_in_epoch]]),
        )

    def _shuffle(self) -> None:
        order = self._random.permutation(self._num_examples)
        self._images, self._labels = self._images[order], self._labels[order]


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = tf.float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str = DEFAULT_SOURCE_URL,
) -> Datasets:
    """Return MNIST: train, validation (the first `validation_size` of the training data) and test.

    Raises:
        CompatError: A file is not in `train_dir` and cannot be downloaded.
    """
    if fake_data:
        fake = [DataSet([], [], fake_data=True, one_hot=one_hot, dtype=dtype, seed=seed) for _ in range(3)]
        return Datasets(*fake)
    arrays = []
    for name in _FILES:
        with open(maybe_download(name, train_dir, (source_url or DEFAULT_SOURCE_URL) + name), "rb") as file:
            arrays.append(extract_images(file) if "images" in name else extract_labels(file, one_hot=one_hot))
    images, labels, test_images, test_labels = arrays
    if not 0 <= validation_size <= len(images):
        raise ValueError(f"Validation size should be between 0 and {len(images)}. Received: {validation_size}.")
    parts = (
        (images[validation_size:], labels[validation_size:]),
        (images[:validation_size], labels[:validation_size]),
        (test_images, test_labels),
    )
    return Datasets(*(DataSet(*part, dtype=dtype, reshape=reshape, seed=seed) for part in parts))


def load_mnist(train_dir: str = "MNIST-data") -> Datasets:
    return read_data_sets(train_dir)


def load_csv_with_header(filename: str, target_dtype: Any, features_dtype: Any, target_column: int = -1) -> Dataset:
    """Load a CSV file whose first row starts with the numbers of rows and columns."""
    with tf.io.gfile.GFile(filename) as file:
        rows = csv.reader(file)
        count, width = map(int, next(rows)[:2])
        data, target = _split(rows, target_dtype, features_dtype, target_column)
    if data.shape != (count, width):
        raise ValueError(f"{filename}: the header has {count} rows of {width} columns, the data {data.shape}")
    return Dataset(data, target)


def load_csv_without_header(filename: str, target_dtype: Any, features_dtype: Any, target_column: int = -1) -> Dataset:
    """Load a CSV file without a header."""
    with tf.io.gfile.GFile(filename) as file:
        return Dataset(*_split(csv.reader(file), target_dtype, features_dtype, target_column))


def _split(rows: Any, target_dtype: Any, features_dtype: Any, column: int) -> tuple[np.ndarray, np.ndarray]:
    data, target = [], []
    for row in rows:
        target.append(row.pop(column))
        data.append(np.asarray(row, dtype=features_dtype))
    return np.array(data), np.array(target, dtype=target_dtype)


def load_iris(data_path: str | None = None) -> Dataset:
    """Load the iris data from a CSV file with a header, or from scikit-learn."""
    if data_path is not None:
        return load_csv_with_header(data_path, target_dtype=int, features_dtype=float)
    from sklearn import datasets

    return Dataset(*datasets.load_iris(return_X_y=True))


DATASETS = {"iris": load_iris, "mnist": load_mnist}


def load_dataset(name: str, size: str = "small", test_with_fake_data: bool = False) -> Any:
    """Load a dataset by name: "iris" or "mnist"."""
    if name not in DATASETS:
        raise ValueError(f"Name of dataset is not found: {name}. It is one of {sorted(DATASETS)}.")
    return DATASETS[name]()
