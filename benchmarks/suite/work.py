"""Work of all contenders: models, data, batches, steps. Only `prepare` imports TensorFlow.

The data are TFRecord files of images (28 by 28 bytes) or of table rows (eight numbers, eight categories), generated
from a fixed seed. The contents of the pixels do not change the time of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "BATCH",
    "MODELS",
    "PROFILES",
    "BenchModel",
    "Profile",
    "feature_fields",
    "feature_texts",
    "files_of",
    "prepare",
]

BATCH = 64
"""Records per step of one worker, as in the tutorials; two workers use twice as many."""
FILES = 8
IMAGE_SIDE, CLASSES = 28, 10
NUMBERS = tuple(f"number_{index}" for index in range(8))
CATEGORIES = tuple(f"category_{index}" for index in range(8))
BUCKETS = 1000
LEARNING_RATE = 0.01
STEPS_PER_EXECUTION = "auto"
"""Option `steps_per_execution` of the engines."""


@dataclass(frozen=True, kw_only=True)
class BenchModel:
    """A model of `model_fns/` with its measured size.

    Attributes:
        name: the name in `model_fns/`.
        params: the parameters of its layers.
        data: "images" or "table".
        steps: number of workers -> (warm-up steps, counted steps), for the whole run.
    """

    name: str
    params: Mapping[str, Any]
    data: str
    steps: Mapping[int, tuple[int, int]]

    @property
    def loss(self) -> str:
        """The name of the loss."""
        return "binary_crossentropy" if self.data == "table" else "sparse_categorical_crossentropy"


_SHAPE = {"input_shape": (IMAGE_SIDE, IMAGE_SIDE, 1)}
MODELS = {
    "cnn": BenchModel(name="cnn", params=_SHAPE, data="images", steps={1: (100, 400), 2: (150, 240)}),
    "dnn": BenchModel(name="dnn", params=_SHAPE, data="images", steps={1: (200, 2000), 2: (150, 400)}),
    "wide_deep": BenchModel(
        name="wide_deep",
        params={"numeric": NUMBERS, "categorical": dict.fromkeys(CATEGORIES, BUCKETS)},
        data="table",
        steps={1: (200, 1600), 2: (150, 320)},
    ),
    "softmax": BenchModel(name="linear", params=_SHAPE, data="images", steps={1: (200, 3600), 2: (150, 400)}),
}
"""Models by the name in cases. The warm-up is at least one pass over the data, which fills the caches."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The size of a run.

    Attributes:
        name: "full", "quick" or "tiny".
        runs: measurements of each contender.
        records: records of the training data.
        divide: divisor of the steps, but not below `least_steps`.
        least_steps: the minimum of counted steps.
        evaluations: evaluations in one process.
        stream_records: records of the data for the input pipelines.
        seconds: length of a window without a number of steps (parameter servers, input pipelines).
    """

    name: str
    runs: int
    records: int
    divide: int
    least_steps: int
    evaluations: int
    stream_records: int
    seconds: float

    def steps(self, model: BenchModel, workers: int) -> tuple[int, int]:
        """Return the warm-up steps and the counted steps."""
        warm, count = model.steps[workers]
        warm = max(warm // self.divide, self.records // BATCH // workers)
        return warm, max(count // self.divide, self.least_steps)


PROFILES = {
    "full": Profile(
        name="full",
        runs=3,
        records=4096,
        divide=1,
        least_steps=240,
        evaluations=8,
        stream_records=32768,
        seconds=2.0,
    ),
    "quick": Profile(
        name="quick",
        runs=1,
        records=2048,
        divide=4,
        least_steps=80,
        evaluations=4,
        stream_records=16384,
        seconds=1.0,
    ),
    # Only for tests of the benchmark: its figures are meaningless.
    "tiny": Profile(
        name="tiny",
        runs=1,
        records=512,
        divide=100,
        least_steps=300,
        evaluations=2,
        stream_records=2048,
        seconds=0.2,
    ),
}


def feature_texts(data: str) -> dict[str, str]:
    """Return the features of the files in the syntax of `inputs.from_tfrecord`."""
    if data == "images":
        return {"image": f"raw uint8[{IMAGE_SIDE},{IMAGE_SIDE},1]", "label": "int64"}
    return {**dict.fromkeys(NUMBERS, "float32[1]"), **dict.fromkeys(CATEGORIES, "int64[1]"), "label": "int64"}


def feature_fields(data: str) -> dict[str, dict[str, Any]]:
    """Return the features of the files as fields of a job file."""
    if data == "images":
        image = {"dtype": "uint8", "shape": [IMAGE_SIDE, IMAGE_SIDE, 1], "kind": "raw"}
        return {"image": image, "label": {"dtype": "int64"}}
    return {
        **{name: {"dtype": "float32", "shape": [1]} for name in NUMBERS},
        **{name: {"dtype": "int64", "shape": [1]} for name in CATEGORIES},
        "label": {"dtype": "int64"},
    }


def files_of(folder: Path, data: str, split: str = "train") -> list[str]:
    """Return the files of a data set that `prepare` wrote, in order."""
    return sorted(str(path) for path in (folder / data).glob(f"{split}-*.tfrecord"))


def prepare(folder: Path, data: str, *, records: int, files: int = FILES, evaluation: int = BATCH) -> None:
    """Write a data set: `files` files to train on and one to evaluate. Imports TensorFlow."""
    import numpy as np
    import tensorflow as tf

    place = folder / data
    place.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(7)

    def integers(*values: int) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def example() -> bytes:
        if data == "images":
            pixels = chance.integers(0, 256, IMAGE_SIDE * IMAGE_SIDE, dtype=np.uint8).tobytes()
            features = {"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels]))}
            features["label"] = integers(int(chance.integers(CLASSES)))
        else:
            numbers = chance.random(len(NUMBERS)).tolist()
            features = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
                for name, value in zip(NUMBERS, numbers, strict=True)
            }
            features |= {name: integers(int(chance.integers(BUCKETS))) for name in CATEGORIES}
            features["label"] = integers(int(chance.integers(2)))
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    def write(name: str, count: int) -> None:
        with tf.io.TFRecordWriter(str(place / name)) as writer:
            for _ in range(count):
                writer.write(example())

    for index in range(files):
        write(f"train-{index:03d}.tfrecord", records // files)
    write("eval-000.tfrecord", evaluation)
