"""Torn, missing and unwritable checkpoints; two jobs in one model directory; a run that is another one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import estimator_pipeline as ep
import model_fns
from estimator_pipeline import inputs
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.engines.model_dir import checkpoints, lock
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity, check, code_of_reference
from estimator_pipeline.errors import ConfigError, TaskFailedError
from estimator_pipeline.job import make_job
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
RNG = np.random.default_rng(5)
FEATURES = RNG.random((60, 8, 8, 1), dtype=np.float32)
LABELS = (FEATURES.mean(axis=(1, 2, 3)) * 10).astype(np.int64)


def data(features=FEATURES, **options):
    options = {"global_batch_size": 12, "seed": 4, **options}
    return inputs.from_arrays(train=(features, LABELS), eval=(features[:25], LABELS[:25]), **options)


def run(model_dir, *, max_steps=10, source=None, seed=1, hooks=(), **options):
    source = source or data()
    config = ep.build_run_config(
        model_dir, environ={}, save_checkpoints_steps=5, seed=seed, checkpoint_save_graph_def=False
    )
    return ep.train_and_evaluate(
        tf.estimator.Estimator(model_fns.model_fn("linear", optimizer={"name": "adam"}), config=config),
        tf.estimator.TrainSpec(source.train_input_fn, max_steps=max_steps, hooks=list(hooks)),
        tf.estimator.EvalSpec(source.eval_input_fn, steps=None),
        environ={},
        **options,
    )


def variables(path):
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def same(one, other):
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model directory with the checkpoints of steps 0, 5 and 10, and the variables after 20 steps undisturbed."""
    folder = tmp_path_factory.mktemp("trained")
    whole = run(folder / "whole", max_steps=20)
    run(folder / "ten", max_steps=10)
    return folder / "ten", variables(whole.checkpoint)


@pytest.fixture
def model_dir(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "model")
    return tmp_path / "model"


def newest(model_dir):
    return os.path.basename(tf.train.latest_checkpoint(str(model_dir)) or "")


def restored(model_dir, backup):
    """The directory as it was, from the copy in memory: rescue() moves files."""
    shutil.rmtree(model_dir / "damaged", ignore_errors=True)
    for name, content in backup.items():
        (model_dir / name).write_bytes(content)


@pytest.mark.parametrize(
    ("suffix", "apart"),
    [pytest.param("index", 1, marks=pytest.mark.nightly), ("index", 9), ("data-00000-of-00001", 97)],
)
def test_a_write_cut_off_at_any_byte_leaves_the_checkpoint_before(model_dir, suffix, apart):
    backup = {path.name: path.read_bytes() for path in model_dir.iterdir() if path.is_file()}
    torn = f"model.ckpt-10.{suffix}"
    whole = len(backup[torn])
    # The ends and some of what is between; of the index, nightly, all bytes.
    ends = 40 if suffix != "index" else 5
    sizes = sorted({*range(ends), *range(0, whole, apart), *range(whole - ends, whole)})
    for size in sizes:
        restored(model_dir, {**backup, torn: backup[torn][:size]})
        assert os.path.basename(checkpoints.rescue(str(model_dir))) == "model.ckpt-5", size
        assert newest(model_dir) == "model.ckpt-5", size
        assert not list(model_dir.glob("model.ckpt-10*")), size


def test_a_flipped_byte_of_a_tensor_is_damage(model_dir):
    path = model_dir / "model.ckpt-10.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    assert os.path.basename(checkpoints.rescue(str(model_dir))) == "model.ckpt-5"


@pytest.mark.parametrize("missing", ["index", "data-00000-of-00001"])
def test_a_missing_file_is_damage(model_dir, missing):
    (model_dir / f"model.ckpt-10.{missing}").unlink()
    assert os.path.basename(checkpoints.rescue(str(model_dir))) == "model.ckpt-5"


@pytest.mark.parametrize("content", [b"", b"model_checkpoint_pa", b"\0" * 64, b'model_checkpoint_path: "else-7"\n'])
def test_a_torn_state_file_is_made_anew_from_what_is_there(model_dir, content):
    (model_dir / "checkpoint").write_bytes(content)
    assert os.path.basename(checkpoints.rescue(str(model_dir))) == "model.ckpt-10"
    assert newest(model_dir) == "model.ckpt-10"


def test_training_goes_on_from_the_checkpoint_before_and_ends_the_same(model_dir, trained, logged):
    """What a damaged checkpoint costs is time: the weights are those of the run that met none."""
    (model_dir / "model.ckpt-10.data-00000-of-00001").write_bytes(b"torn")
    (model_dir / "model.ckpt-15_temp").mkdir()
    outcome = run(model_dir, max_steps=20)
    assert outcome.tasks["worker:0"].steps == 15, "from step 5"
    same(variables(outcome.checkpoint), trained[1])
    assert "model.ckpt-10 is damaged" in logged.text and "set aside" in logged.text
    assert [path.name for path in (model_dir / "damaged").glob("*/*data*")] == ["model.ckpt-10.data-00000-of-00001"]
    assert not (model_dir / "model.ckpt-15_temp").exists()


def test_where_no_checkpoint_is_whole_training_does_not_begin_at_0(model_dir):
    for path in model_dir.glob("model.ckpt-*.index"):
        path.write_bytes(b"")
    with pytest.raises(TaskFailedError, match=r"no checkpoint in .* can be restored") as failed:
        run(model_dir, max_steps=20)
    assert "model.ckpt-10" in str(failed.value) and "use a different model_dir" in str(failed.value)


def test_without_a_state_file_training_begins_anew_and_says_so(model_dir, logged):
    (model_dir / "checkpoint").unlink()
    assert checkpoints.rescue(str(model_dir)) is None
    assert "training starts at step 0" in logged.text


def test_values_that_are_not_finite_are_damage_after_a_run_that_diverged(model_dir):
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        tf.compat.v1.get_variable("w", initializer=tf.constant([1.0, float("nan")]))
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver()
        saver.recover_last_checkpoints([str(model_dir / f"model.ckpt-{n}") for n in (0, 5, 10)])
        path = saver.save(session, str(model_dir / "model.ckpt"), global_step=15)
    assert checkpoints.damage(path) is None
    assert "not finite" in checkpoints.damage(path, finite=True)
    assert os.path.basename(checkpoints.rescue(str(model_dir), finite=True)) == "model.ckpt-10"


# -- a disk that is full ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 800 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a file system cannot be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_one_clear_error_and_nothing_is_lost(small_disk, tmp_path, trained):
    model_dir = small_disk / "model"

    class Fill(tf.estimator.SessionRunHook):
        """Takes all the room that is left, after the checkpoint of step 5."""

        steps = 0

        def after_run(self, run_context, run_values):
            self.steps += 1
            if self.steps == 7:
                with open(small_disk / "ballast", "wb", buffering=0) as file:
                    try:
                        while True:
                            file.write(b"x" * 1024)
                    except OSError:
                        pass

    with pytest.raises(TaskFailedError, match="no space left on device") as failed:
        run(model_dir, max_steps=20, hooks=[Fill()])
    assert "is at step 5" in str(failed.value) and "free space" in str(failed.value)
    (small_disk / "ballast").unlink()
    outcome = run(model_dir, max_steps=20)
    assert outcome.tasks["worker:0"].steps == 15, "from step 5"
    same(variables(outcome.checkpoint), trained[1])


def test_a_directory_that_cannot_be_written_is_one_clear_error(small_disk, tmp_path, trained):
    """As a disk is that its server or the kernel has made read-only; here a second, read-only view of the same."""
    run(small_disk / "model", max_steps=10)
    view = tmp_path / "view"
    view.mkdir()
    subprocess.run(["mount", "--bind", small_disk, view], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", view], check=True)
        with pytest.raises(ConfigError, match=r"the model directory .* cannot be written") as failed:
            run(view / "model", max_steps=20)
    finally:
        subprocess.run(["umount", "-l", view], check=True)
    assert "Read-only file system" in str(failed.value)
    outcome = run(small_disk / "model", max_steps=20)
    assert outcome.tasks["worker:0"].steps == 10, "from step 10"
    same(variables(outcome.checkpoint), trained[1])


# -- two jobs ---------------------------------------------------------------------------------------------------------


def take(model_dir, *, wait=0.0):
    with lock.hold(str(model_dir), owner="worker:0", run_id="second", wait=wait):
        pass


HOLDER = """
import sys, time
from estimator_pipeline.engines.model_dir import lock
with lock.hold(sys.argv[1], owner="chief:0", run_id="first"):
    print("held", flush=True)
    time.sleep(120)
"""


def test_two_jobs_in_one_model_dir_are_refused_until_the_first_is_dead(tmp_path, run_environment):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=run_environment
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="another job trains in") as refused:
            take(tmp_path, wait=0.3)
        assert f"chief:0, process {holder.pid} on " in str(refused.value)
        killer = threading.Timer(0.5, holder.kill)
        killer.start()
        with lock.hold(str(tmp_path), owner="chief:0", run_id="second", wait=30):
            assert json.loads((tmp_path / "estimator_pipeline" / "lock").read_text())["run_id"] == "second"
    finally:
        holder.kill()
        holder.wait(30)
        holder.stdout.close()
    take(tmp_path)


def test_a_forked_child_does_not_hold_the_lock_on(tmp_path):
    child = 0
    try:
        with lock.hold(str(tmp_path), owner="chief:0", run_id="first"):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
        take(tmp_path)
    finally:
        if child:
            os.kill(child, 9)
            os.waitpid(child, 0)


def test_a_lease_is_renewed_refused_and_taken_over(tmp_path, monkeypatch):
    """Where the file system has no locks."""
    monkeypatch.setattr(lock, "RENEW_SECS", 0.1)
    monkeypatch.setattr(lock, "_LOOK_SECS", 0.1)
    monkeypatch.setattr(lock, "_kernel_lock", lambda *_: _Raises())
    with (
        lock.hold(str(tmp_path), owner="chief:0", run_id="first"),
        pytest.raises(ConfigError, match="it is renewed every"),
    ):
        take(tmp_path, wait=0.5)
    path = tmp_path / "estimator_pipeline" / "lock.lease"
    assert not path.exists()
    monkeypatch.setattr(lock, "LEASE_SECS", 0.8)
    path.write_text(json.dumps({"task": "chief:0", "host": "gone", "pid": 7, "renewed": 3}))
    with lock.hold(str(tmp_path), owner="chief:0", run_id="third", wait=0.5):
        assert json.loads(path.read_text())["run_id"] == "third"


@pytest.fixture
def leases(monkeypatch):
    """As on a file system without locks; and in a job that a script has put into the background, with `&`."""
    monkeypatch.setattr(lock, "RENEW_SECS", 0.1)
    monkeypatch.setattr(lock, "_LOOK_SECS", 0.1)
    monkeypatch.setattr(lock, "_kernel_lock", lambda *_: _Raises())
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


# The same host and process number, as the first processes of two containers have them.
ANOTHER = {"task": "chief:0", "host": socket.gethostname(), "pid": os.getpid(), "nonce": "another", "renewed": 3}
LOST = "was not renewed for 90 s, and another job has taken it"


def takes_over(path):
    """Another job, after this one's machine stood still. A renewal that had looked already may still come after it."""
    if lock._read(path) != ANOTHER:
        path.with_suffix(".new").write_text(json.dumps(ANOTHER))
        os.replace(path.with_suffix(".new"), path)


def test_who_has_lost_a_lease_stops_and_leaves_it(tmp_path, leases):
    """Its machine stood still for longer than a lease, and another has begun: that one is not disturbed."""
    path = tmp_path / "estimator_pipeline" / "lock.lease"
    with pytest.raises(ConfigError, match=LOST), lock.hold(str(tmp_path), owner="chief:0", run_id="first"):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            takes_over(path)
            time.sleep(0.05)
    assert json.loads(path.read_text()) == ANOTHER


@pytest.mark.gate("keras")
@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_a_training_that_has_lost_its_lease_stops_and_leaves_it(tmp_path, leases, engine):
    path = tmp_path / "model" / "estimator_pipeline" / "lock.lease"
    arrays = str(tmp_path / "records.npz")
    np.savez(arrays, image=FEATURES, label=LABELS)
    job = make_job(
        {
            "model": {"name": "linear", "params": {"classes": 10}},
            "input": {"source": "arrays", "train": arrays, "eval": arrays, "global_batch_size": 12},
            "train": {"max_steps": 10**9},
            "run": {"engine": engine, "model_dir": str(tmp_path / "model"), "save_checkpoints_steps": 50},
        }
    )
    over = threading.Event()

    def other():
        while not over.wait(0.05):
            if newest(tmp_path / "model") not in ("", "model.ckpt-0"):
                takes_over(path)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        with pytest.raises(ConfigError, match=LOST):
            run_job(job, environ={})
    finally:
        over.set()
        thread.join()
    assert json.loads(path.read_text()) == ANOTHER


class _Raises:
    def __enter__(self):
        raise lock._NoLocks

    def __exit__(self, *error):
        return False


# -- another run ------------------------------------------------------------------------------------------------------

OTHERS = {
    "seed": ({"seed": 2}, "seed was 1 and is 2"),
    "order": ({"source": data(seed=5)}, "input.seed was 4 and is 5"),
    "batch": ({"source": data(global_batch_size=6)}, "global_batch_size was 12 and is 6"),
    "data": ({"source": data(FEATURES + 1)}, "input.fingerprint was "),
}


@pytest.mark.gate("batch", "data")
@pytest.mark.parametrize("case", OTHERS)
def test_another_run_is_refused_by_name_or_accepted_by_a_flag(model_dir, case):
    changed, words = OTHERS[case]
    with pytest.raises(ConfigError, match="this run is not the one that trained to step 10") as refused:
        run(model_dir, max_steps=15, **changed)
    assert words in str(refused.value) and "--accept-changes" in str(refused.value)
    assert newest(model_dir) == "model.ckpt-10"
    assert run(model_dir, max_steps=15, accept_changes=True, **changed).global_step == 15
    assert run(model_dir, max_steps=20, **changed).global_step == 20, "the change has become the run's own"


def own():
    """An input function that nobody can address by step."""
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(12).repeat()


def test_data_that_can_no_longer_be_addressed_are_other_data(model_dir):
    config = ep.build_run_config(model_dir, environ={}, save_checkpoints_steps=5, seed=1)

    def go_on(**options):
        return ep.train_and_evaluate(
            tf.estimator.Estimator(model_fns.model_fn("linear", optimizer={"name": "adam"}), config=config),
            tf.estimator.TrainSpec(own, max_steps=15), tf.estimator.EvalSpec(own, steps=1), environ={}, **options,
        )  # fmt: skip

    with pytest.raises(ConfigError, match="input was records addressed by step and is a function of one's own"):
        go_on()
    assert go_on(accept_changes=True).global_step == 15


@pytest.mark.nightly
def test_another_model_of_a_programs_own_is_told(model_dir, logged):
    """Its shapes may be those of before: then nothing but its code and params tell that it is another one."""
    config = ep.build_run_config(model_dir, environ={}, save_checkpoints_steps=5, seed=1)
    made = model_fns.model_fn("linear", optimizer={"name": "adam"})

    def plain(features, labels, mode, params):
        del params  # a comment
        return made(features, labels, mode)

    def doubled(features, labels, mode, params):
        del params
        return made(features * 2, labels, mode)

    def go_on(model_fn, max_steps, **params):
        logged.clear()
        source = data()
        ep.train_and_evaluate(
            tf.estimator.Estimator(model_fn, params={"rate": 0.1, "object": object(), **params}, config=config),
            tf.estimator.TrainSpec(source.train_input_fn, max_steps=max_steps),
            tf.estimator.EvalSpec(source.eval_input_fn, steps=1),
            environ={},
        )
        return [record.getMessage() for record in logged.records if "with a change" in record.getMessage()]

    (said,) = go_on(plain, 12)  # the run before had another
    assert "model_fn was build_model_fn" in said
    assert go_on(plain, 14) == []
    assert go_on(plain, 16, rate=0.2) == ["Training resumes at step 14 with a change: params.rate was 0.1 and is 0.2"]
    assert go_on(plain, 17, rate=0.2, relu="1")[0].endswith("params.relu was not given and is 1")
    kept = json.loads((model_dir / "estimator_pipeline" / "identity.json").read_text())["told"]["params"]
    assert kept == {"rate": 0.2, "relu": "1"}, "an object has another address each time"
    words = {"rate": 0.2, "relu": "1", "words": ["word"] * 1000}
    assert "params.words was not given and is sha256 " in go_on(plain, 18, **words)[0]
    (said,) = go_on(doubled, 19, **words)
    assert re.search(
        r"at step 18 with a change: model_fn was \S+plain and is \S+doubled; the code of model_fn was ", said
    )


def test_code_is_its_text_without_comments_and_blanks(tmp_path, monkeypatch):
    one = "import nowhere\n\ndef model(x):\n    return x  # as it is\n"
    (tmp_path / "mine.py").write_text(one)
    monkeypatch.syspath_prepend(tmp_path)
    first = code_of_reference(f"{tmp_path}/mine.py:model")
    assert first and first == code_of_reference("mine:model")
    for other, same in ((one.replace("  # as it is", "\n"), True), (one.replace("return x", "return -x"), False)):
        (tmp_path / "mine.py").write_text(other)
        assert (code_of_reference(f"{tmp_path}/mine.py:model") == first) is same
    assert [code_of_reference(each) for each in ("mine:other", "nowhere.at.all:model", "/none.py:x")] == [None] * 3
    (tmp_path / "mine.py").write_text("def model(:")
    assert code_of_reference("mine:model") is None


@pytest.mark.parametrize("content", [pytest.param("[1]", marks=pytest.mark.nightly), '{"told": {}}'])
def test_what_cannot_be_read_is_not_taken_for_nothing(model_dir, content, logged):
    (model_dir / "estimator_pipeline" / "identity.json").write_text(content)
    with pytest.raises(ConfigError, match=r"identity\.json cannot be read, so it is unknown") as refused:
        run(model_dir, max_steps=15)
    assert "--accept-changes" in str(refused.value)
    assert run(model_dir, max_steps=15, accept_changes=True).global_step == 15
    assert "training resumes with the current settings" in logged.text


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", marks=pytest.mark.nightly),
        b'{"fixed": {"seed": 1',
        pytest.param(b"\0" * 64, marks=pytest.mark.nightly),
        b"\xff\xfe",
    ],
)
def test_what_was_cut_off_holds_up_nobody_and_is_said(model_dir, content, logged):
    """As a power loss may leave it: who starts a job again by itself cannot mend that, and what is trained is whole."""
    path = model_dir / "estimator_pipeline" / "identity.json"
    path.write_bytes(content)
    assert run(model_dir, max_steps=15).global_step == 15
    assert "it is unknown whether this is the run that has trained so far" in logged.text
    (change,) = json.loads(path.read_text())["changes"]
    assert change["step"] == 10 and change["changed"][0].startswith("not known: ")
    with pytest.raises(ConfigError, match="seed was 1 and is 2"):
        run(model_dir, max_steps=20, seed=2)


def test_a_run_of_an_earlier_version_goes_on(model_dir):
    """It did not write which kind of input it had, nor a policy by which any worker may read any record."""
    path = model_dir / "estimator_pipeline" / "identity.json"
    document = json.loads(path.read_text())
    assert document["fixed"].pop("input") and document["fixed"].pop("input.shard_policy") == "by record"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"input\.seed was 4 and is 5"):
        run(model_dir, max_steps=15, source=data(seed=5))
    assert run(model_dir, max_steps=15).global_step == 15


def test_a_policy_that_ties_records_to_workers_is_another_order(model_dir):
    with pytest.raises(ConfigError, match=r"input\.shard_policy was by record and is off"):
        run(model_dir, max_steps=15, source=data(shard_policy="off"))
    assert run(model_dir, max_steps=15, source=data(shard_policy="off"), accept_changes=True).global_step == 15
    with pytest.raises(ConfigError, match=r"input\.shard_policy was off and is by record"):
        run(model_dir, max_steps=20)


# What a job file says about its records. Each of these reads the same file, in the same order, as other numbers.
CSV = {
    "source": "csv", "train": "{folder}/a.csv", "eval": "{folder}/a.csv", "global_batch_size": 4, "header": False,
    "columns": {"a": "float32", "label": "int64", "other": "int64", "weight": "float32"}, "features_key": "a",
    "weight_key": "weight",
}  # fmt: skip
RECORDS = {
    "source": "tfrecord", "train": "{folder}/a.tfrecord", "eval": "{folder}/a.tfrecord", "global_batch_size": 4,
    "features": {"a": {"dtype": "float32", "shape": [1]}, "b": {"dtype": "float32", "shape": [1]},
                 "label": {"dtype": "int64", "default": 0}},
    "features_key": "a",
}  # fmt: skip
CONTENTS = {
    "columns": (CSV, {"columns": {"weight": "float32", "label": "int64", "other": "int64", "a": "float32"}}),
    "label_key": (CSV, {"label_key": "other"}),
    "weight_key": (CSV, {"weight_key": None}),
    "features_key": (RECORDS, {"features_key": "b"}),
    "features": (RECORDS, {"features": {**RECORDS["features"], "label": {"dtype": "int64", "default": 1}}}),
    "scale": (RECORDS, {"scale": 0.5}),
}


@pytest.mark.gate("columns", "scale")
@pytest.mark.parametrize("name", CONTENTS)
def test_other_numbers_of_the_same_records_are_other_data(tmp_path, name):
    source, change = CONTENTS[name]
    (tmp_path / "a.csv").write_text("0.5,1,0,2\n" * 12)
    example = {
        "a": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
        "b": tf.train.Feature(float_list=tf.train.FloatList(value=[0.25])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1])),
    }
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for _ in range(12):
            writer.write(tf.train.Example(features=tf.train.Features(feature=example)).SerializeToString())

    def go_on(steps, **changes):
        section = {**source, "train": source["train"].format(folder=tmp_path), **changes}
        model = {"name": "linear", "params": {"classes": 3}}
        job = make_job({
            "model": model, "input": {**section, "eval": section["train"]}, "train": {"max_steps": steps},
            "run": {"model_dir": str(tmp_path / "model"), "save_checkpoints_steps": 2},
        })  # fmt: skip
        return run_job(job, environ={}).global_step

    assert go_on(2) == 2
    with pytest.raises(ConfigError, match=rf"this run is not the one that trained to step 2 .*input\.{name}[. ].*was "):
        go_on(4, **change)
    assert go_on(4) == 4


def test_more_steps_and_epochs_are_no_other_run(model_dir):
    assert run(model_dir, max_steps=15, source=data(epochs=9)).global_step == 15


def test_what_is_meant_is_told_and_what_is_new_is_no_change(tmp_path, logged):
    first = RunIdentity(fixed={"seed": 1}, described={"rate": 0.1})
    check(str(tmp_path), first, step=0, accept=False)
    check(str(tmp_path), RunIdentity(fixed={"seed": 1, "new": 3}, described={"rate": 0.01}), step=5, accept=False)
    assert "Training resumes at step 5 with a change: rate was 0.1 and is 0.01" in logged.text
    kept = json.loads((tmp_path / "estimator_pipeline" / "identity.json").read_text())
    assert kept["changes"][0]["changed"] == ["rate"] and kept["fixed"] == {"seed": 1, "new": 3}
    # A run from the start is nobody's heir.
    check(str(tmp_path), RunIdentity(fixed={"seed": 2}), step=0, accept=False)


def test_an_input_function_of_ones_own_says_what_it_cannot_promise(tmp_path):
    config = ep.build_run_config(tmp_path, environ={}, save_checkpoints_steps=5, seed=1)
    ep.train_and_evaluate(
        tf.estimator.Estimator(model_fns.model_fn("linear"), config=config),
        tf.estimator.TrainSpec(own, max_steps=5),
        tf.estimator.EvalSpec(own, steps=1),
        environ={},
    )
    kept = json.loads((tmp_path / "estimator_pipeline" / "identity.json").read_text())
    assert "starts over at each start" in kept["open"][0]
