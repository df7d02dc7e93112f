"""TensorFlow Datasets by name: the embedded `digits`, prepared offline, and any other where its files are."""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
import subprocess
import sys
from concurrent import futures

import numpy as np
import pytest

from estimator_pipeline import compat, inputs
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs.sources import digits

sklearn_datasets = pytest.importorskip("sklearn.datasets")


@pytest.fixture(scope="module")
def tf():
    return compat.install()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def environ(home):
    """No test writes to the user's cache; `digits` is prepared once for all of them."""
    return {"HOME": str(home)}


@pytest.fixture(scope="module")
def prepared(tf, environ):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        folder = digits.prepare(environ=environ)
    assert not said.getvalue(), "standard output belongs to the program"
    return folder


def rows(dataset):
    pairs = [(features.numpy(), labels.numpy()) for features, labels in dataset]
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def test_digits_is_prepared_offline_as_a_real_tfds_data_set(prepared, home):
    import tensorflow_datasets as tfds

    assert prepared == home / ".cache" / "estimator_pipeline" / "tfds" / "digits" / "1.0.0"
    builder = tfds.builder("digits", data_dir=str(prepared.parents[1]), try_gcs=False)
    assert str(builder.info.version) == "1.0.0" and builder.info.supervised_keys == ("image", "label")
    assert builder.info.features["image"].shape == (8, 8, 1)
    assert builder.info.features["image"].np_dtype == np.uint8
    assert builder.info.features["label"].num_classes == 10
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        "train": 1437,
        "test": 360,
    }
    lengths = builder.info.splits["train"].shard_lengths
    assert len(lengths) == 4 and sum(lengths) == 1437 and min(lengths) > 300
    assert [path.name for path in prepared.parent.iterdir()] == ["1.0.0"], "no unfinished directory may stay behind"


def test_no_image_is_lost_or_changed_and_the_split_is_stratified(tf, prepared, environ):
    data = inputs.from_tfds("digits", global_batch_size=64, environ=environ, train_split="test")
    whole = inputs.from_tfds("digits", global_batch_size=64, environ=environ, eval_split="train")
    test_x, test_y = rows(data.eval_input_fn())
    train_x, train_y = rows(whole.eval_input_fn())
    bunch = sklearn_datasets.load_digits()
    expected = sorted(
        (image.astype(np.uint8).tobytes(), int(label)) for image, label in zip(bunch.images, bunch.target, strict=True)
    )
    found = sorted(
        (x.tobytes(), int(y))
        for x, y in zip(np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y]), strict=True)
    )
    assert found == expected
    share = np.bincount(test_y) / np.bincount(bunch.target)
    assert (np.abs(share - 360 / 1797) < 0.005).all()


def test_the_split_never_changes():
    train, test = digits.split_indices(sklearn_datasets.load_digits().target)
    assert (len(train), len(test)) == (1437, 360)
    assert sorted([*train, *test]) == list(range(1797))
    assert test[:10].tolist() == [3, 9, 10, 21, 22, 24, 26, 27, 29, 33]
    assert int(test.sum()) == 326831


def test_e1_digits_scaled_sharded_and_the_same_for_any_number_of_workers(tf, prepared, environ):
    data = inputs.from_tfds("digits", global_batch_size=48, seed=7, scale=1 / 16, environ=environ)
    assert (data.num_train_records, data.num_eval_records, data.steps_per_epoch) == (1437, 360, 30)
    assert data.features_spec == {"image": tf.TensorSpec((8, 8, 1), tf.float32)}
    assert data.label_spec == tf.TensorSpec((), tf.int64)
    alone = rows(data.train_input_fn().take(31))
    assert alone[0].min() == 0 and alone[0].max() == 1
    for pipelines in (2, 3):
        contexts = [tf.distribute.InputContext(pipelines, p, pipelines) for p in range(pipelines)]
        parts = [list(data.train_input_fn(input_context=where).take(31)) for where in contexts]
        together = [np.concatenate([part[step][1].numpy() for part in parts]) for step in range(31)]
        assert np.array_equal(np.concatenate(together), alone[1])
    _, labels = rows(data.eval_input_fn())
    assert len(labels) == 360


def test_file_policy_no_worker_opens_anothers_file(tf, prepared, environ, tmp_path):
    """The counts are in the data set's description: another's file is not even opened to count."""
    copy = tmp_path / "tfds" / "digits" / "1.0.0"
    copy.mkdir(parents=True)
    for file in prepared.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    options = {"global_batch_size": 16, "data_dir": tmp_path / "tfds", "environ": environ}
    everything = inputs.from_tfds("digits", eval_split="train", **options)
    expected = sorted(x.tobytes() for x in rows(everything.eval_input_fn())[0])
    for limit in (2**30, 0):
        found = []
        for pipeline in range(2):
            data = inputs.from_tfds("digits", eval_split="train", shard_policy="file", memory_limit=limit, **options)
            mine = data.train_shards(inputs.ShardOptions(2, pipeline, 2)).parts
            away = [copy / f"digits-train.tfrecord-{i:05}-of-00004" for i in range(4) if i not in mine]
            for path in away:
                path.rename(f"{path}.away")
            try:
                where = tf.distribute.InputContext(2, pipeline, 2)
                evaluated = rows(data.eval_input_fn(where))[0]
                trained = rows(data.train_input_fn(where).take(100))[0]
                own = {x.tobytes() for x in evaluated}
                assert {x.tobytes() for x in trained} == own
                found += [x.tobytes() for x in evaluated]
            finally:
                for path in away:
                    path.with_name(path.name + ".away").rename(path)
        assert sorted(found) == expected


def test_slices_of_splits(tf, prepared, environ):
    data = inputs.from_tfds(
        "digits", train_split="train[:80%]", eval_split="train[80%:]", global_batch_size=10, environ=environ
    )
    assert data.num_train_records + data.num_eval_records == 1437
    train = {x.tobytes() for x in rows(data.train_input_fn().take(200))[0]}
    held_out = {x.tobytes() for x in rows(data.eval_input_fn())[0]}
    assert len(held_out) == data.num_eval_records and not train & held_out


def test_who_has_waited_for_another_process_takes_its_files(tf, prepared, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(digits, "_builder_class", lambda: made.append(1))
    with futures.ThreadPoolExecutor() as pool:
        with digits.locked(tmp_path, digits.NAME):
            waiting = pool.submit(digits.prepare, tmp_path, environ={})
            with pytest.raises(futures.TimeoutError):
                waiting.result(timeout=0.2)
            shutil.copytree(prepared, tmp_path / "digits" / "1.0.0")
        assert waiting.result(timeout=60) == tmp_path / "digits" / "1.0.0"
    assert not made, "what is there is not made again"


@pytest.mark.nightly
def test_processes_that_prepare_at_once_do_not_disturb_one_another(tmp_path):
    code = "import sys\nfrom estimator_pipeline.inputs.sources import digits\n"
    code += "print(digits.prepare(sys.argv[1], environ={}))\n"
    command = [sys.executable, "-c", code, str(tmp_path)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:
        out, err = worker.communicate(timeout=240)
        assert worker.returncode == 0, err[-2000:]
        assert out.strip() == str(tmp_path / "digits" / "1.0.0"), "nothing else belongs on standard output"
    names = sorted(path.name for path in (tmp_path / "digits").iterdir())
    assert names == ["1.0.0"], "no unfinished directory may stay behind"
    assert len(list((tmp_path / "digits" / "1.0.0").glob("*.tfrecord-*"))) == 8


def test_where_digits_goes():
    assert digits.default_data_dir({"TFDS_DATA_DIR": "/data"}).as_posix() == "/data"
    assert digits.default_data_dir({"XDG_CACHE_HOME": "/c"}).as_posix() == "/c/estimator_pipeline/tfds"
    assert digits.default_data_dir({"HOME": "/h"}).as_posix() == "/h/.cache/estimator_pipeline/tfds"


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="give a data_dir that can be written"):
        digits.prepare(tmp_path / "file" / "below")


# --- any other data set -------------------------------------------------------------------------------------


def write_mnist(folder):
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import registered

    with registered.skip_registration():  # TFDS has an mnist of its own, whose files these stand in for

        class Mnist(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("3.0.1")

            def _info(self):
                features = tfds.features.FeaturesDict(
                    {
                        "image": tfds.features.Image(shape=(28, 28, 1)),
                        "label": tfds.features.ClassLabel(num_classes=10),
                    }
                )
                keys = ("image", "label")
                return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=keys)

            def _split_generators(self, dl_manager):
                return {"train": self._generate_examples(60), "test": self._generate_examples(20)}

            def _generate_examples(self, count):
                for i in range(count):
                    yield i, {"image": np.full((28, 28, 1), i, np.uint8), "label": i % 10}

    Mnist(data_dir=str(folder)).download_and_prepare()


def test_mnist_by_name_where_its_files_are(tf, tmp_path, environ):
    write_mnist(tmp_path)
    for source in ({"data_dir": tmp_path}, {"environ": {**environ, "TFDS_DATA_DIR": str(tmp_path)}}):
        options = {"environ": environ, **source}
        data = inputs.from_tfds("mnist", global_batch_size=8, scale=1 / 255, **options)
        assert (data.num_train_records, data.num_eval_records, data.num_classes) == (60, 20, 10)
        images, labels = rows(data.eval_input_fn())
        assert images.shape == (20, 28, 28, 1) and images.dtype == np.float32
        values = np.rint(images[:, 0, 0, 0] * 255).astype(int)
        assert sorted(values) == list(range(20)) and (values % 10 == labels).all()
        features, labels = next(iter(data.train_input_fn(tf.distribute.InputContext(2, 1, 2))))
        assert features.shape == (4, 28, 28, 1) and labels.shape == (4,)
    both = inputs.from_tfds(
        "mnist:3.0.1",
        global_batch_size=8,
        features_key=["image", "label"],
        data_dir=tmp_path,
        environ=environ,
    )
    assert set(both.features_spec) == {"image", "label"}


def test_mnist_without_files_and_without_a_network_says_what_to_do(tf, tmp_path, monkeypatch):
    """TFDS itself tries again for minutes. The name server is taken away, for machines with a network."""
    asked = []

    def none(host, *args, **kwargs):
        asked.append(host)
        raise socket.gaierror("no name server")

    monkeypatch.setattr(socket, "getaddrinfo", none)
    where = {"data_dir": tmp_path, "environ": {"HOME": str(tmp_path)}}
    for download in (True, False):
        with pytest.raises(InputError) as refused:
            inputs.from_tfds("mnist", global_batch_size=8, download=download, **where)
        text = str(refused.value)
        assert text.startswith("The data set mnist is not prepared, and cannot be downloaded here")
        assert ("no network: storage.googleapis.com does not answer" in text) == download
        assert ("download=False" in text) != download
        assert "tfds build mnist --data_dir=DIR" in text and "use the embedded data set 'digits'" in text
    assert asked == ["storage.googleapis.com"], "one look for the host, no attempt to download"


REFUSED = [
    ({"name": "mnits"}, "did you mean mnist"),
    ({"name": "digist"}, "did you mean digits"),
    ({"name": "digits", "train_split": "valid"}, "splits"),
    ({"name": "digits", "features_key": "pixels"}, "The data set digits has no feature 'pixels'"),
    ({"name": "digits", "label_key": "class"}, "The data set digits has no feature 'class'"),
    ({"name": "digits", "batch": 3}, "from_tfds has no option 'batch'"),
    ({"name": "digits", "train_split": None, "eval_split": "none"}, "splits"),
]


@pytest.mark.parametrize("arguments,words", REFUSED, ids=[words for _, words in REFUSED])
def test_wrong_names_are_refused_with_what_there_is(tf, prepared, environ, arguments, words):
    with pytest.raises(InputError) as refused:
        inputs.from_tfds(**{"global_batch_size": 8, "environ": environ, **arguments})
    assert words in str(refused.value)
