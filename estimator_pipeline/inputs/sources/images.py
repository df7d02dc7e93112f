"""Image files in a folder for each class, as `keras.utils.image_dataset_from_directory` reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.input_fn import Inputs
from estimator_pipeline.inputs.options import FactoryOptions, make_options
from estimator_pipeline.inputs.source import Source, tensorflow
from estimator_pipeline.inputs.subset import open_splits
from estimator_pipeline.utils.text import few

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ImageFiles", "ImageSource", "decode_images", "find_images", "from_images", "images_below"]

_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


def from_images(
    train: str | os.PathLike[str] | None = None,
    eval: str | os.PathLike[str] | None = None,
    *,
    size: Sequence[int],
    channels: int = 3,
    classes: Sequence[str] | None = None,
    eval_fraction: float | None = None,
    **options: Unpack[FactoryOptions],
) -> Inputs:
    """Return an `input_fn` from image files (JPEG, PNG, BMP or GIF) in a folder for each class.

    Features are images, float32 [B, height, width, channels] in [0, 1], labels the numbers of classes, int64 [B].
    The names of the files identify the data of a run, not their content.

    Args:
        train: Folder of the training data: its folders are the classes, with images at any depth.
        eval: The same for evaluation, with some of these classes.
        size: Height and width. Images of other sizes are resized, bilinear.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).
        classes: Names of the class folders, in the order of their numbers; sorted by default.
        eval_fraction: Instead of `eval`, about this share of the training images, chosen by `seed`.
        **options: See `estimator_pipeline.inputs.options.InputOptions`; global_batch_size is required. `scale` is
            1/255 by default; with None images are uint8.

    Returns:
        The data, with `train_input_fn`, `eval_input_fn` and `class_names`.

    Raises:
        InputError: A folder is missing, has no classes or no images, or options are in conflict.
    """
    settings = make_options("from_images", {"scale": 1 / 255, **options})  # type: ignore[typeddict-item]

    def opened(use: str, folder: str | os.PathLike[str]) -> Source:
        nonlocal classes
        files = find_images(folder, use=use, classes=classes, some=use == "evaluation" and train is not None)
        classes = files.classes
        return ImageSource(files, (*size, channels), description=f"the {use} images in {files.folder}")

    training, evaluation = open_splits(
        "from_images", train, eval, opened, eval_fraction=eval_fraction, seed=settings.seed
    )
    return Inputs(
        train=training,
        evaluation=evaluation,
        options=settings,
        features_key="image",
        label_key="label",
        num_classes=len(classes or ()),
        class_names=tuple(classes or ()),
    )


@dataclass(frozen=True)
class ImageFiles:
    """The image files of a folder.

    Attributes:
        folder: The folder.
        classes: Names of the class folders, in the order of their numbers.
        names: Paths below the folder, in the order of the classes, and sorted within each.
        labels: Number of the class of each.
    """

    folder: str
    classes: tuple[str, ...]
    names: tuple[str, ...]
    labels: tuple[int, ...]


def find_images(
    folder: str | os.PathLike[str], *, use: str, classes: Sequence[str] | None = None, some: bool = False
) -> ImageFiles:
    """List the images of a folder that has a folder for each class.

    Args:
        folder: The folder.
        use: "training" or "evaluation", for messages.
        classes: The names of the class folders; None: all, sorted.
        some: Whether classes may be missing.

    Raises:
        InputError: The folder does not exist, its classes differ, or a class has no images.
    """
    root = os.fspath(folder)
    if not os.path.isdir(root):
        raise InputError(
            f"The folder of the {use} images is missing", code="data/not-found", found=root, hint="check the path"
        )
    there = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not there:
        raise InputError(
            f"The folder of the {use} images has no folders, whose names are the classes",
            code="data/empty",
            found=f"{root}: {few(sorted(os.listdir(root)), 4) or 'an empty folder'}",
            hint="move the images of each class to a folder with its name",
        )
    names = tuple(there if classes is None else classes)
    unknown, missing = sorted(set(there) - set(names)), sorted(set(names) - set(there))
    if unknown or (missing and not some):
        raise InputError(
            f"The folders of the {use} images are not the classes",
            code="data/bad-feature",
            found=f"{root}: {few(there, 8)}; classes: {few(names, 8)}",
            hint="rename the folders; the classes are those of the training images, or of model.label_vocabulary",
        )
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = images_below(root, name)
        if not images and not some:
            raise InputError(
                f"A class of the {use} data has no images",
                code="data/empty",
                found=f"{os.path.join(root, name)}; allowed: {', '.join(_SUFFIXES)}",
                hint="remove the folder, or add images",
            )
        paths += images
        labels += [label] * len(images)
    return ImageFiles(root, names, tuple(paths), tuple(labels))


def images_below(root: str, name: str = "") -> list[str]:
    """Return the sorted paths, below a folder, of the images in its folder `name`, at any depth."""
    return sorted(
        os.path.relpath(os.path.join(folder, file), root)
        for folder, _, files in os.walk(os.path.join(root, name))
        for file in files
        if file.lower().endswith(_SUFFIXES) and not file.startswith(".")
    )


class ImageSource(Source):
    """Image files. TensorFlow reads and decodes them; the raw values of a record are its path and label."""

    part_names = None
    raw_specs = (("string", ()), (np.int64, ()))

    def __init__(self, files: ImageFiles, shape: tuple[int, ...], *, description: str) -> None:
        self.description = description
        self.part_records = (len(files.names),)
        self._files, self._shape = files, shape
        self._labels = np.array(files.labels, dtype=np.int64)

    def select(self, parts: Sequence[int]) -> ImageSource:
        return self  # The only part.

    def raw(self, ids: np.ndarray) -> list[np.ndarray]:
        paths = np.empty(len(ids), dtype=object)
        paths[:] = [os.fsencode(self.place(int(record))) for record in ids]
        return [paths, self._labels[ids]]

    def decode(self, raw: Sequence[Any]) -> dict[str, Any]:
        tf = tensorflow()
        return {"image": decode_images(tf, raw[0], self._shape, read=tf.io.read_file, resize=True), "label": raw[1]}

    def specs(self) -> dict[str, Any]:
        tf = tensorflow()
        return {"image": tf.TensorSpec([None, *self._shape], tf.uint8), "label": tf.TensorSpec([None], tf.int64)}

    def parse_examples(self, records: Any, names: Sequence[str]) -> dict[str, Any]:
        tf = tensorflow()
        encoded = tf.io.parse_example(records, {"image": tf.io.FixedLenFeature([], tf.string)})["image"]
        return {"image": decode_images(tf, encoded, self._shape, resize=True)}

    def examples(self, ids: np.ndarray) -> list[bytes]:
        records = []
        for record in ids:
            example = tensorflow().train.Example()
            with open(self.place(int(record)), "rb") as file:
                example.features.feature["image"].bytes_list.value.append(file.read())
            records.append(example.SerializeToString())
        return records

    def place(self, record: int) -> str:
        return os.path.join(self._files.folder, self._files.names[record])

    def record_names(self) -> list[str]:
        return [f"{label} {name}" for label, name in zip(self._files.labels, self._files.names, strict=True)]


def decode_images(
    tf: Any,
    images: Any,
    shape: Sequence[int],
    *,
    dtype: str = "uint8",
    read: Callable[[Any], Any] = lambda image: image,
    resize: bool = False,
) -> Any:
    """Return decoded images [B, height, width, channels] of the bytes of PNG, JPEG, BMP or GIF files, string [B].

    Args:
        tf: TensorFlow.
        images: The bytes, or what `read` reads them from.
        shape: Height, width and channels.
        dtype: uint8 or uint16.
        read: Returns the bytes of one image.
        resize: Resize images to `shape`, bilinear, as `keras.utils.image_dataset_from_directory`, and round them.
    """

    def decode(image: Any) -> Any:
        pixels = tf.io.decode_image(read(image), channels=shape[2], dtype=tf.as_dtype(dtype), expand_animations=False)
        if resize:
            pixels = tf.image.resize(tf.ensure_shape(pixels, [None, None, shape[2]]), shape[:2])
            pixels = tf.cast(tf.round(pixels), dtype)
        return tf.ensure_shape(pixels, shape)

    return tf.map_fn(decode, images, fn_output_signature=tf.TensorSpec(shape, tf.as_dtype(dtype)))
