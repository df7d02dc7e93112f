"""`from_images`: a folder of images for each class, against `keras.utils.image_dataset_from_directory`."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from estimator_pipeline import compat, inputs
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs import tf_dataset as blocks
from estimator_pipeline.inputs.sources.images import find_images

tf = compat.install()
SIZES = {"ant": 4, "bee": 7, "cow": 5}


@pytest.fixture
def folder(tmp_path):
    """Images of 8x6 and of other sizes, as PNG and JPEG, some of them deeper; hidden and other files."""
    rng = np.random.default_rng(0)
    root = tmp_path / "images"
    for label, (name, count) in enumerate(SIZES.items()):
        (root / name / "deeper").mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (8, 6 + number % 2, 3)).astype(np.uint8)
            encode, suffix = ((tf.io.encode_png, "png"), (tf.io.encode_jpeg, "JPG"))[(label + number) % 2]
            path = root / name / ("deeper" if number == 1 else "") / f"{number}.{suffix}"
            path.write_bytes(encode(pixels).numpy())
        (root / name / "notes.txt").write_text("none")
        (root / name / ".hidden.png").write_text("none")
    (root / ".ipynb_checkpoints").mkdir()
    return root


def read(folder, eval=None, **options):
    return inputs.from_images(folder, eval, size=(8, 6), **{"global_batch_size": 4, **options})


def batches(input_fn, count, context=None):
    return [(x.numpy(), y.numpy()) for x, y in input_fn(context).take(count)]


@pytest.mark.parametrize("limit", [0, 2**30])
def test_images_are_those_of_keras(folder, limit):
    data = read(folder, folder, memory_limit=limit, eval_batch_size=16)
    for path in folder.glob("*/.hidden.png"):
        path.unlink()  # Keras reads them.
    theirs = tf.keras.utils.image_dataset_from_directory(folder, image_size=(8, 6), batch_size=None, shuffle=False)
    pixels, labels = zip(*theirs.as_numpy_iterator(), strict=True)
    (ours, numbers), = batches(data.eval_input_fn, 1)  # fmt: skip
    assert numbers.tolist() == list(labels) and data.class_names == tuple(SIZES) and data.num_classes == 3
    assert data.features_spec == {"image": tf.TensorSpec((8, 6, 3), tf.float32)}
    np.testing.assert_allclose(ours, np.round(pixels) / 255, rtol=1e-6)
    gray = read(folder, scale=None, channels=1, memory_limit=limit)
    assert gray.features_spec == {"image": tf.TensorSpec((8, 6, 1), tf.uint8)}
    assert batches(gray.train_input_fn, 1)[0][0].dtype == np.uint8


@pytest.mark.parametrize("limit", [0, 2**30])
def test_workers_and_resumed_runs_read_the_same_records(folder, limit):
    data = read(folder, seed=3, memory_limit=limit)
    whole = batches(data.train_input_fn, 8)
    assert sorted(np.concatenate([labels for _, labels in whole[:4]]).tolist()) == [0] * 4 + [1] * 7 + [2] * 5
    for (x, y), (wanted, labels) in zip(batches(data.train_input_fn.at(5), 3), whole[5:], strict=True):
        assert np.array_equal(x, wanted) and np.array_equal(y, labels)
    contexts = [tf.distribute.InputContext(2, pipeline, 2) for pipeline in range(2)]
    parts = [batches(data.train_input_fn, 8, context) for context in contexts]
    for step, (wanted, _) in enumerate(whole):
        assert np.array_equal(np.concatenate([part[step][0] for part in parts]), wanted)


def test_a_share_of_the_images(folder):
    data = read(folder, eval_fraction=0.5, shuffle=False, drop_remainder=False, epochs=1, global_batch_size=1)
    assert data.num_train_records + data.num_eval_records == 16 and data.num_eval_records > 1
    images = [x.tobytes() for f in (data.train_input_fn, data.eval_input_fn) for x, _ in batches(f, 16)]
    assert len(set(images)) == 16
    evaluated = {x.tobytes() for x, _ in batches(data.eval_input_fn, 16)}
    shutil.copy(folder / "ant" / os.listdir(folder / "ant")[0], folder / "ant" / "00.png")
    more = read(folder, eval_fraction=0.5, global_batch_size=1)
    assert evaluated <= {x.tobytes() for x, _ in batches(more.eval_input_fn, 17)}, "the others stay where they are"
    served = data.parse_examples(tf.constant(data.eval_examples(1)))["image"]
    assert np.array_equal(served, batches(data.eval_input_fn, 1)[0][0])


def test_names_and_classes_identify_the_data(folder):
    def fingerprint(**options):
        return read(folder, **options).identity()[0]["input.fingerprint"]

    first = fingerprint()
    assert fingerprint(classes=["bee", "ant", "cow"]) != first
    share = fingerprint(eval_fraction=0.3)
    assert share != first and share != fingerprint(eval_fraction=0.3, seed=7)
    os.rename(folder / "bee" / "0.JPG", folder / "bee" / "00.JPG")
    assert fingerprint() != first


@pytest.mark.parametrize("limit", [0, 2**30])
def test_a_damaged_image_is_named(folder, limit):
    path = folder / "bee" / "2.JPG"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(tf.errors.OpError) as raised:
        batches(read(folder, memory_limit=limit).train_input_fn, 4)
    error = blocks.explained(raised.value)
    assert isinstance(error, InputError) and error.code == "data/bad-record"
    assert error.found.startswith(f"{path}: ")


def test_folders_that_are_not_classes_are_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "1.png").write_text("x")
    (tmp_path / "hollow" / "ant").mkdir(parents=True)
    (tmp_path / "other" / "bees").mkdir(parents=True)
    cases = [
        ({"folder": tmp_path / "gone"}, "data/not-found"),
        ({"folder": tmp_path / "empty"}, "data/empty"),
        ({"folder": tmp_path / "flat"}, "data/empty"),
        ({"folder": tmp_path / "hollow"}, "data/empty"),
        ({"folder": folder, "eval": tmp_path / "other"}, "data/bad-feature"),
        ({"folder": folder, "classes": ["ant", "bee"]}, "data/bad-feature"),
        ({"folder": folder, "classes": ["ant", "bee", "cow", "dog"]}, "data/bad-feature"),
        ({"folder": folder, "eval": folder, "eval_fraction": 0.2}, "argument/conflict"),
        ({"folder": None}, "argument/missing"),
    ]
    for options, code in cases:
        with pytest.raises(InputError) as raised:
            read(**options)
        assert raised.value.code == code, options
    some = find_images(tmp_path / "hollow", use="evaluation", classes=["ant", "bee"], some=True)
    assert (some.classes, some.names) == (("ant", "bee"), ())
