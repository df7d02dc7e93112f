"""TensorFlow Datasets by name: the embedded `digits`, prepared offline, and any other where its files are."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from estimator_pipeline import compat, inputs
from estimator_pipeline.errors import InputError
from estimator_pipeline.inputs import digits

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
    return digits.prepare(environ=environ)


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
            mine = data.train_plan(inputs.Replicas(2, pipeline, 2)).parts
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


def test_processes_that_prepare_at_once_do_not_disturb_one_another(tmp_path):
    code = "import sys\nfrom estimator_pipeline.inputs import digits\nprint(digits.prepare(sys.argv[1], environ={}))\n"
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

WRITE_MNIST = textwrap.dedent(
    """
    import sys
    import numpy as np
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


    Mnist(data_dir=sys.argv[1]).download_and_prepare()
    """
)


def test_mnist_by_name_where_its_files_are(tf, tmp_path, environ):
    subprocess.run([sys.executable, "-c", WRITE_MNIST, str(tmp_path)], check=True, timeout=240, capture_output=True)
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


def test_mnist_without_files_and_without_a_network_says_what_to_do(tmp_path):
    """TFDS itself tries again for minutes. The name server is taken away, for machines with a network."""
    code = textwrap.dedent(
        """
        import socket, sys
        from estimator_pipeline import inputs
        from estimator_pipeline.errors import InputError

        asked = []
        def none(host, *args, **kwargs):
            asked.append(host)
            raise socket.gaierror("no name server")
        socket.getaddrinfo = none
        for download in (True, False):
            try:
                where = {"data_dir": sys.argv[1], "environ": {"HOME": sys.argv[1]}}
                inputs.from_tfds("mnist", global_batch_size=8, download=download, **where)
            except InputError as error:
                print(error)
        print("ASKED", sorted(set(asked)))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    text = done.stdout
    assert text.count("The data set mnist is not prepared, and cannot be downloaded here") == 2
    assert "no network: storage.googleapis.com does not answer" in text and "download=False" in text
    assert "tfds build mnist --data_dir=DIR" in text and "use the embedded data set 'digits'" in text
    assert "ASKED ['storage.googleapis.com']" in text, "one look for the host, no attempt to download"


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
