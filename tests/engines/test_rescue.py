"""Which checkpoint a run goes on from, whatever it is called and whenever somebody is killed; a disk that is full, from
the first moment on."""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import json
import os
import shutil
import socket
from unittest import mock

import pytest

import estimator_pipeline as ep
import model_fns
from estimator_pipeline import inputs
from estimator_pipeline.engines.core import failures
from estimator_pipeline.engines.core import startup as beginning
from estimator_pipeline.engines.core.failures import text_of
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.engines.model_dir import checkpoints, lock
from estimator_pipeline.engines.model_dir import disk_errors as disk
from estimator_pipeline.engines.model_dir.run_identity import RunIdentity, check, of_inputs
from estimator_pipeline.errors import ConfigError, PipelineError, TaskFailedError
from estimator_pipeline.job import make_job
from estimator_pipeline.progress.progress_file import CHECKPOINT_VARIABLE
from tests.engines.test_trusted_checkpoints import FEATURES, LABELS, data, newest, run, small_disk
from tests.support.contexts import task_context
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
__all__ = ["small_disk"]

# How each engine's checkpoints are called, and a program's own.
KINDS = ["model.ckpt", "ckpt", "keras3", "best.ckpt"]


def save(folder, kind, steps=(100, 200, 300), **options):
    """Checkpoints as the engine that calls them so writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind in ("ckpt", "keras3"):
        checkpoint = tf.train.Checkpoint(v=tf.Variable(0.0))
        manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=9, checkpoint_name=kind)
        for step in steps:
            checkpoint.v.assign(float(step))
            manager.save(checkpoint_number=step)
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=0.0)
        saver = tf.compat.v1.train.Saver(max_to_keep=9, **options)
        for step in steps:
            session.run(variable.initializer)
            session.run(variable.assign(float(step)))
            saver.save(session, str(folder / kind), global_step=step)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def folder(tmp_path, kind):
    """A model directory with the checkpoints of steps 100, 200 and 300."""
    save(tmp_path / "model", kind)
    return tmp_path / "model"


def tear(folder, name):
    (folder / f"{name}.data-00000-of-00001").write_bytes(b"torn")


def remove(folder, name):
    for path in folder.glob(f"{name}.*"):
        path.unlink()


def named(folder):
    state = tf.train.get_checkpoint_state(str(folder))
    return [os.path.basename(path) for path in state.all_model_checkpoint_paths]


def rescued(folder):
    """What rescue() gives, which must be what everybody finds then."""
    found = checkpoints.rescue(str(folder))
    assert tf.train.latest_checkpoint(str(folder)) == found
    return found and os.path.basename(found)


def on_disk(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


# -- names ------------------------------------------------------------------------------------------------------------


def test_what_the_state_file_names_counts_whatever_it_is_called(folder, kind, logged):
    before = (folder / "checkpoint").read_bytes()
    assert rescued(folder) == f"{kind}-300"
    assert (folder / "checkpoint").read_bytes() == before
    tear(folder, f"{kind}-300")
    assert rescued(folder) == f"{kind}-200"
    assert named(folder) == [f"{kind}-100", f"{kind}-200"]
    assert f"{kind}-300 is damaged" in logged.text
    assert {path.name.partition("-")[0] for path in (folder / "damaged").glob("*/*")} == {kind}


def test_a_program_with_a_name_of_its_own_goes_on(tmp_path):
    """`CheckpointSaverHook(checkpoint_basename=...)`: its run began at step 0, and wrote over what was there."""
    source = data()
    config = ep.build_run_config(tmp_path / "model", environ={}, seed=1)

    def train(max_steps):
        hook = tf.compat.v1.train.CheckpointSaverHook(
            str(tmp_path / "model"), save_steps=5, checkpoint_basename="best.ckpt"
        )
        return ep.train_and_evaluate(
            tf.estimator.Estimator(model_fns.model_fn("linear"), config=config),
            tf.estimator.TrainSpec(source.train_input_fn, max_steps=max_steps, hooks=[hook]),
            tf.estimator.EvalSpec(source.eval_input_fn, steps=1),
            environ={},
        )

    assert train(10).tasks["worker:0"].steps == 10
    assert newest(tmp_path / "model") == "best.ckpt-10"
    assert train(15).tasks["worker:0"].steps == 5, "from step 10"
    tear(tmp_path / "model", "best.ckpt-15")
    assert train(20).tasks["worker:0"].steps == 10, "from step 10"


def test_paths_of_the_place_before_are_found_in_a_directory_that_was_moved(tmp_path, kind):
    save(tmp_path / "old", kind)
    state = tmp_path / "old" / "checkpoint"
    paths = [tmp_path / "old" / f"{kind}-{step}" for step in (300, 100, 200, 300)]
    lines = [f'{"all_" if index else ""}model_checkpoint_path{"s" if index else ""}: "{path}"' for index, path in
             enumerate(paths)]  # fmt: skip
    state.write_text("\n".join(lines))
    assert rescued(tmp_path / "old") == f"{kind}-300"
    (tmp_path / "old").rename(tmp_path / "new")
    assert rescued(tmp_path / "new") == f"{kind}-300"
    assert named(tmp_path / "new") == [f"{kind}-{step}" for step in (100, 200, 300)]


def test_files_of_another_directory_are_not_moved(tmp_path, kind):
    save(tmp_path / "other", kind)
    (tmp_path / "model").mkdir()
    lines = [f'all_model_checkpoint_paths: "{tmp_path}/other/{kind}-{step}"' for step in (100, 200, 300)]
    (tmp_path / "model" / "checkpoint").write_text(
        "\n".join([f'model_checkpoint_path: "{tmp_path}/other/{kind}-300"', *lines])
    )
    tear(tmp_path / "other", f"{kind}-300")
    before = on_disk(tmp_path / "other")
    assert rescued(tmp_path / "model") == f"{kind}-200"
    assert on_disk(tmp_path / "other") == before


def test_what_is_neither_named_nor_called_as_ours_is_left_alone(folder, kind):
    """Torn as they are: a model to warm-start from, other things of the program's, an exporter's best."""
    save(folder / "best", "model.ckpt", steps=(7,))
    other = "ckpt" if kind == "model.ckpt" else "model.ckpt"
    for name in ("warm-900", f"{other}-900", "warm"):
        for suffix in ("index", "data-00000-of-00001"):
            (folder / f"{name}.{suffix}").write_bytes(b"torn")
    tear(folder / "best", "model.ckpt-7")
    tear(folder, f"{kind}-300")
    others = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and kind not in path.name}
    others.pop(folder / "checkpoint")
    others |= {path: path.read_bytes() for path in (folder / "best").iterdir()}
    assert rescued(folder) == f"{kind}-200"
    assert {path: path.read_bytes() for path in others} == others
    for step in (100, 200):
        tear(folder, f"{kind}-{step}")
    # Nor is one of them taken where all others are damaged.
    with pytest.raises(TaskFailedError, match=r"no checkpoint in .* can be restored"):
        checkpoints.rescue(str(folder))
    assert {path: path.read_bytes() for path in others} == others


def test_a_state_put_back_from_a_copy_names_less_than_there_is(folder, kind):
    state = (folder / "checkpoint").read_text().replace("300", "100")
    (folder / "checkpoint").write_text(state.splitlines()[0])
    tear(folder, f"{kind}-100")
    assert rescued(folder) == f"{kind}-300"
    assert on_disk(folder / "damaged" / os.listdir(folder / "damaged")[0])


def test_who_went_back_to_an_older_checkpoint_by_hand_stays_there(folder, kind):
    lines = (folder / "checkpoint").read_text().splitlines()
    (folder / "checkpoint").write_text("\n".join([lines[0].replace('-300"', '-200"'), *lines[1:]]))
    before = (folder / "checkpoint").read_bytes()
    assert rescued(folder) == f"{kind}-200"
    assert (folder / "checkpoint").read_bytes() == before
    tear(folder, f"{kind}-200")
    assert rescued(folder) == f"{kind}-100", "not what they went back behind"
    assert f"{kind}-300.index" in on_disk(folder)


def test_a_state_that_cannot_be_read_is_no_guess_between_kinds(folder, kind):
    save(folder, "warm", steps=(900,))
    before = on_disk(folder)
    (folder / "checkpoint").write_bytes(b"")
    if kind in checkpoints.KINDS:
        assert rescued(folder) == f"{kind}-300", "the only ones that an engine calls so"
        return
    with pytest.raises(TaskFailedError, match="cannot be read, and it is unknown which") as failed:
        checkpoints.rescue(str(folder))
    assert "best.ckpt-300, warm-900" in str(failed.value) or "warm-900, best.ckpt-300" in str(failed.value)
    assert on_disk(folder) == before
    (folder / "checkpoint").write_text('model_checkpoint_path: "best.ckpt-300"\n')
    assert rescued(folder) == "best.ckpt-300"


@pytest.mark.parametrize("content", [b"", b"\x96\xbc torn"], ids=["empty", "garbage"])
def test_a_state_that_cannot_be_read_does_not_hide_whose_checkpoints_they_are(tmp_path, content):
    save(tmp_path, "model.ckpt", steps=(100,))
    (tmp_path / "checkpoint").write_bytes(content)
    checkpoints.refuse_others(str(tmp_path), engine="estimator")
    with pytest.raises(ConfigError, match="an Estimator's checkpoint") as error:
        checkpoints.refuse_others(str(tmp_path), engine="keras")
    assert error.value.found == str(tmp_path / "model.ckpt-100")
    assert rescued(tmp_path) == "model.ckpt-100"
    for path in tmp_path.glob("*.index"):
        path.unlink()
    checkpoints.refuse_others(str(tmp_path), engine="keras")


@pytest.mark.parametrize("content", [b"", b'model_checkpoint_path: "best.ckpt-300"\n'])
def test_a_state_of_nothing_is_set_aside_and_said(tmp_path, content, logged):
    (tmp_path / "checkpoint").write_bytes(content)
    assert rescued(tmp_path) is None
    assert "training starts at step 0" in logged.text
    assert [path.read_bytes() for path in tmp_path.glob("damaged/*/checkpoint")] == [content]


# -- a newest one that is gone ----------------------------------------------------------------------------------------


def test_a_newest_one_that_is_gone_is_not_named_on(folder, kind, logged):
    remove(folder, f"{kind}-300")
    assert tf.train.latest_checkpoint(str(folder)) is None, "as TensorFlow has it"
    assert rescued(folder) == f"{kind}-200"
    assert named(folder) == [f"{kind}-100", f"{kind}-200"]
    assert f"{kind}-300, the newest according to the state file, does not exist" in logged.text


def test_older_ones_that_are_gone_change_nothing(folder, kind):
    """`keep_checkpoint_max` has deleted them."""
    remove(folder, f"{kind}-100")
    before = (folder / "checkpoint").read_bytes()
    assert rescued(folder) == f"{kind}-300"
    assert (folder / "checkpoint").read_bytes() == before


# -- killed amid it ---------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


class Operations:
    """The operations on files, of which one is the last: from there on this process does nothing any more."""

    def __init__(self, monkeypatch, last):
        self.count, self.last = 0, last
        for module, name in (
            (tf.io.gfile, "rename"), (tf.io.gfile, "remove"), (tf.io.gfile, "rmtree"), (tf.io.gfile, "makedirs"),
            (os, "replace"), (os, "fsync"), (os, "remove"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))
        monkeypatch.setattr(builtins, "open", self._opened(open))

    def _counted(self, operation):
        def counted(*args, **kwargs):
            if self.count >= self.last:
                raise Killed
            self.count += 1
            return operation(*args, **kwargs)

        return counted

    def _opened(self, original):
        def opened(path, mode="r", *args, **kwargs):
            if mode == "w":
                if self.count >= self.last:
                    raise Killed
                self.count += 1
            return original(path, mode, *args, **kwargs)

        return opened


def torn_newest(folder, kind):
    tear(folder, f"{kind}-300")


def two_torn(folder, kind):
    tear(folder, f"{kind}-300")
    (folder / f"{kind}-200.index").unlink()
    (folder / "checkpoint.77.tmp").write_text("")


def gone_newest(folder, kind):
    remove(folder, f"{kind}-300")
    tear(folder, f"{kind}-200")


def torn_state(folder, kind):
    """Nothing, as after a power loss; or one that is gone as all are that it names."""
    gone = f'model_checkpoint_path: "{kind}-7"\n'
    (folder / "checkpoint").write_text("" if kind in checkpoints.KINDS else gone)
    tear(folder, f"{kind}-300")


def cut_off(folder, kind):
    """Amid the write of the next one."""
    (folder / f"{kind}-400_temp").mkdir()
    (folder / f"{kind}-400_temp" / "part-00000").write_bytes(b"")
    (folder / f"{kind}-400.index.tempstate12").write_bytes(b"")
    tear(folder, f"{kind}-300")


@pytest.mark.gate(
    "model.ckpt-cut_off", "ckpt-two_torn", "keras3-gone_newest", "best.ckpt-torn_state", "ckpt-torn_state"
)
@pytest.mark.parametrize("harm", [torn_newest, two_torn, gone_newest, torn_state, cut_off])
def test_a_kill_between_any_two_operations_leaves_the_same_to_do(folder, kind, harm, tmp_path):
    harm(folder, kind)
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    best = rescued(whole)
    assert best == (f"{kind}-200" if harm in (torn_newest, cut_off, torn_state) else f"{kind}-100")
    for last in range(100):
        model_dir = tmp_path / f"killed{last}"
        shutil.copytree(folder, model_dir)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            operations = Operations(patch, last)
            checkpoints.rescue(str(model_dir))
        complete = operations.count < last
        if not complete:
            assert rescued(model_dir) == best, last
        assert on_disk(model_dir) == on_disk(whole), last
        assert (model_dir / "checkpoint").read_text() == (whole / "checkpoint").read_text(), last
        aside = [path.name for path in model_dir.glob("damaged/*/*")]
        assert sorted(aside) == sorted(path.name for path in whole.glob("damaged/*/*")), last
        if complete:
            assert last > 5, "the operations were not seen"
            return
    pytest.fail("it has no end")


@pytest.mark.gate("1-keras")
@pytest.mark.parametrize("engine", ["estimator", "keras"])
@pytest.mark.parametrize("after", [1, 2])
def test_a_job_goes_on_after_a_kill_amid_the_rescue(tmp_path, engine, after, monkeypatch):
    """The Estimator failed at every start with "not a valid checkpoint"; Keras trained from step 0."""
    model_dir = tmp_path / "model"
    assert run_job(job(tmp_path, engine, 10), environ={}).global_step == 10
    tear(model_dir, newest(model_dir))
    original, calls = checkpoints._write_state, []

    def write_state(*args, **kwargs):
        calls.append(args)
        if len(calls) == after:
            raise Killed
        original(*args, **kwargs)

    monkeypatch.setattr(checkpoints, "_write_state", write_state)
    with pytest.raises(Killed):
        run_job(job(tmp_path, engine, 20), environ={})
    monkeypatch.undo()
    assert run_job(job(tmp_path, engine, 20), environ={}).tasks["worker:0"].steps == 15, "from step 5"


def job(folder, engine, steps):
    import numpy as np

    arrays = folder / "records.npz"
    np.savez(arrays, image=FEATURES, label=LABELS)
    return make_job(
        {
            "model": {"name": "linear", "params": {"classes": 10}},
            "input": {"source": "arrays", "train": str(arrays), "eval": str(arrays), "global_batch_size": 12},
            "train": {"max_steps": steps},
            "run": {"engine": engine, "model_dir": str(folder / "model"), "save_checkpoints_steps": 5},
        }
    )


# -- a disk that is full at the start ---------------------------------------------------------------------------------


def fill(folder):
    with open(folder / "ballast", "wb", buffering=0) as file:
        for size in (1024, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def files_below(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_start_on_a_full_disk_is_one_clear_error(small_disk):
    """As of a job that is started again after the disk was full."""
    run(small_disk / "model", max_steps=10)
    before = files_below(small_disk / "model")
    fill(small_disk)
    with pytest.raises(TaskFailedError, match="no space left on device") as failed:
        run(small_disk / "model", max_steps=20)
    assert failed.value.exit_code == 1, "worth another start"
    assert "is at step 10" in str(failed.value) and "free space" in str(failed.value)
    after = files_below(small_disk / "model")
    assert set(after) == set(before), "no temporary files"
    (small_disk / "ballast").unlink()
    assert run(small_disk / "model", max_steps=20).tasks["worker:0"].steps == 10, "from step 10"


@pytest.mark.nightly
def test_a_damaged_checkpoint_on_a_full_disk_is_one_clear_error(small_disk):
    run(small_disk / "model", max_steps=10)
    tear(small_disk / "model", "model.ckpt-10")
    before = files_below(small_disk / "model")
    fill(small_disk)
    with pytest.raises(TaskFailedError, match="no space left on device"):
        run(small_disk / "model", max_steps=20)
    assert set(files_below(small_disk / "model")) == set(before)
    (small_disk / "ballast").unlink()
    assert run(small_disk / "model", max_steps=20).tasks["worker:0"].steps == 15, "from step 5"


class Full:
    """No room for some files."""

    def __init__(self, monkeypatch, *names):
        self.names = names
        original, original_open = tf.io.gfile.GFile, builtins.open

        def gfile(path, mode="r"):
            self.refuse(path, mode, tf.errors.ResourceExhaustedError(None, None, f"{path}; No space left on device"))
            return original(path, mode)

        def opened(path, mode="r", *args, **kwargs):
            self.refuse(path, mode, OSError(errno.ENOSPC, "No space left on device", os.fspath(path)))
            return original_open(path, mode, *args, **kwargs)

        monkeypatch.setattr(tf.io.gfile, "GFile", gfile)
        monkeypatch.setattr(builtins, "open", opened)

    def refuse(self, path, mode, error):
        if "w" in mode and any(name in str(path) for name in self.names):
            raise error


CHIEF_AND_EVALUATOR = {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "evaluator", "index": 0}}


@contextlib.contextmanager
def own_model_dir(
    model_dir, reported, made_of=lambda input_fn: RunIdentity(fixed={"seed": 1}), *, known="", input_fn=None
):
    environ = {CHECKPOINT_VARIABLE: known} if known else {}
    context = task_context(model_dir, environ=environ, identity=made_of, input_fn=input_fn)
    with (
        mock.patch.object(failures, "report", lambda context, error: reported.append(error)),
        beginning.own_model_dir(context) as started,
    ):
        yield started


@pytest.mark.parametrize("there", [True, False])
def test_checkpoints_that_are_gone_are_not_begun_anew(tmp_path, there):
    """As after a file system was not mounted again."""
    model_dir, reported = tmp_path / "model", []
    if there:
        model_dir.mkdir()
    gone = own_model_dir(model_dir, reported, known=str(model_dir / "model.ckpt-200"))
    with pytest.raises(ConfigError, match=r"training had written model\.ckpt-200, which is missing"), gone:
        pass
    assert len(reported) == 1
    # Another training of the same program begins at step 0.
    with own_model_dir(model_dir, reported, known=str(tmp_path / "other" / "model.ckpt-200")) as started:
        assert started.start_step == 0


def test_an_older_checkpoint_is_gone_on_from(tmp_path):
    save(tmp_path, "model.ckpt", steps=(100,))
    with own_model_dir(tmp_path, [], known=str(tmp_path / "model.ckpt-200")) as started:
        assert started.start_step == 100


def test_what_began_by_file_goes_on_by_file(tmp_path, logged):
    """As "auto" could mean it: with two workers, no checkpoint, and a policy that was asked for since."""
    for part in range(2):
        (tmp_path / f"{part}.csv").write_text("x,label\n" + "1,1\n" * 20)

    def read_by(policy):
        source = inputs.from_csv(str(tmp_path / "*.csv"), global_batch_size=4, shard_policy=policy).train_input_fn
        return source, functools.partial(of_inputs, seed=1, num_pipelines=2)

    def going_on(folder, policy="auto"):
        source, made_of = read_by(policy)
        with own_model_dir(tmp_path / folder, [], made_of, input_fn=source) as started:
            return made_of(started.input_fn).fixed["input.shard_policy"]

    for folder in ("begun", "not begun"):
        source, made_of = read_by("file")
        check(str(tmp_path / folder), made_of(source), step=0, accept=False)
    save(tmp_path / "begun", "model.ckpt", steps=(100,))
    assert going_on("not begun") == "by record" and "shard_policy" not in logged.text
    assert going_on("begun") == going_on("begun") == "file"
    assert logged.text.count("resumes with shard_policy file, with which this run started") == 2
    with pytest.raises(ConfigError, match=r"input\.shard_policy was file and is by record"):
        going_on("begun", policy="data")


def test_the_others_are_told_of_a_disk_that_is_full_at_the_start(tmp_path, monkeypatch):
    Full(monkeypatch, "identity.json")
    reported = []
    with pytest.raises(TaskFailedError, match="no space left on device"), own_model_dir(tmp_path, reported):
        pass
    assert len(reported) == 1 and "no space left on device" in text_of(reported[0])
    assert [path.name for path in (tmp_path / "estimator_pipeline").iterdir()] == ["lock"]


def test_the_others_are_told_of_any_end_at_the_start(tmp_path):
    def denied(input_fn):
        raise PermissionError(errno.EACCES, "Permission denied", "/data/train.csv")

    reported = []
    with pytest.raises(PermissionError), own_model_dir(tmp_path, reported, denied):
        pass
    assert [text_of(one) for one in reported] == ["PermissionError: [Errno 13] Permission denied: '/data/train.csv'"]


@pytest.mark.parametrize("name", ["tasks", "training.json"])
def test_a_word_that_finds_no_room_is_one_clear_error(tmp_path, name, monkeypatch):
    """The chief's first words to the others."""
    with monkeypatch.context() as patch:
        Full(patch, name)
        with pytest.raises(TaskFailedError, match="no space left on device"):
            run(tmp_path / "model")
    assert not list(tmp_path.rglob("*.tmp"))
    if name == "tasks":
        said = json.loads((tmp_path / "model" / "estimator_pipeline" / "training.json").read_text())
        assert said["state"] == "failed" and "no space left on device" in said["error"]


@pytest.mark.gate("events.out")
@pytest.mark.parametrize("name", ["tasks", "events.out"])
def test_an_evaluator_on_a_full_disk_is_one_clear_error(tmp_path, name, monkeypatch):
    run(tmp_path / "model", max_steps=10)
    source = data()
    environ = {"TF_CONFIG": json.dumps(CHIEF_AND_EVALUATOR)}
    with monkeypatch.context() as patch:
        Full(patch, name)
        if name == "events.out":
            full = tf.errors.ResourceExhaustedError(None, None, f"{tmp_path}/model/eval/x; No space left on device")
            patch.setattr("estimator_pipeline.engines.core.roles.follow_training", _raising(full))
        config = ep.build_run_config(tmp_path / "model", environ=environ, seed=1)
        with pytest.raises(TaskFailedError, match="no space left on device"):
            ep.train_and_evaluate(
                tf.estimator.Estimator(model_fns.model_fn("linear", optimizer={"name": "adam"}), config=config),
                tf.estimator.TrainSpec(source.train_input_fn, max_steps=20),
                tf.estimator.EvalSpec(source.eval_input_fn, steps=1),
                environ=environ,
            )
    if name == "events.out":
        said = json.loads((tmp_path / "model" / "estimator_pipeline" / "tasks" / "evaluator-0.json").read_text())
        assert said["state"] == "failed" and "training cannot write to" in said["error"]


def _raising(error):
    def raising(*_, **__):
        raise error

    return raising


def test_what_is_denied_elsewhere_is_no_disk_that_cannot_be_written(tmp_path):
    """Data that cannot be read say so by themselves."""
    elsewhere = PermissionError(errno.EACCES, "Permission denied", "/data/train.csv")
    assert disk.explained(elsewhere, model_dir=str(tmp_path)) is None
    here = tf.errors.PermissionDeniedError(None, None, f"{tmp_path}/model.ckpt-5.index; Permission denied")
    assert f"cannot write to {tmp_path}: permission" in str(disk.explained(here, model_dir=str(tmp_path)))
    export = OSError(errno.ENOSPC, "No space left on device", "/export/1/saved_model.pb")
    assert "cannot write to /export/1/saved_model.pb: no space" in str(disk.explained(export, model_dir=str(tmp_path)))


# -- what the run is made of ------------------------------------------------------------------------------------------

ONE = RunIdentity(fixed={"seed": 1}, described={"rate": 0.1})


def identity_path(folder):
    return folder / "estimator_pipeline" / "identity.json"


def test_what_has_not_changed_is_not_written_again(tmp_path, monkeypatch):
    check(str(tmp_path), ONE, step=0, accept=False)
    before = identity_path(tmp_path).stat()
    Full(monkeypatch, "identity.json")
    check(str(tmp_path), ONE, step=5, accept=False)
    after = identity_path(tmp_path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with pytest.raises(OSError, match="No space left"):
        check(str(tmp_path), RunIdentity(fixed={"seed": 1}, described={"rate": 0.2}), step=5, accept=False)
    assert json.loads(identity_path(tmp_path).read_text())["told"] == {"rate": 0.1}
    assert os.listdir(tmp_path / "estimator_pipeline") == ["identity.json"]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, n=name, f=original: (done.append(n), f(*args))[1])
    check(str(tmp_path), ONE, step=0, accept=False)
    assert done == ["fsync", "replace", "fsync"]  # of the file, and of the folder


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_write_that_fails_leaves_nothing(tmp_path, operation, monkeypatch):
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, operation, _raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        disk.write_whole(str(tmp_path / "file"), "new")
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "old"


# -- a lock of another machine ----------------------------------------------------------------------------------------


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(("host", "least"), [("gone", 100.0), (None, 15.0)])
def test_who_may_have_crashed_on_another_machine_is_waited_for(tmp_path, host, least, monkeypatch, logged):
    """An NFS server holds the locks of a client that crashed until its lease is over."""
    clock = Clock()
    with lock.hold(str(tmp_path), owner="chief:0", run_id="first"):
        told = {"task": "chief:0", "host": host or socket.gethostname(), "pid": 7}
        (tmp_path / "estimator_pipeline" / "lock").write_text(json.dumps(told))
        monkeypatch.setattr(lock.time, "monotonic", clock.monotonic)
        monkeypatch.setattr(lock.time, "sleep", clock.sleep)
        with (
            pytest.raises(ConfigError, match="another job trains in"),
            lock.hold(str(tmp_path), owner="chief:0", run_id="second"),
        ):
            pass
        monkeypatch.undo()
    assert least < clock.now < least + 30
    assert ("chief:0, process 7 on gone, on a different machine" in logged.text) is (host is not None)


def test_a_lock_that_is_let_go_elsewhere_is_taken(tmp_path, monkeypatch):
    clock = Clock()
    first = contextlib.ExitStack()
    first.enter_context(lock.hold(str(tmp_path), owner="chief:0", run_id="first"))
    (tmp_path / "estimator_pipeline" / "lock").write_text(json.dumps({"task": "chief:0", "host": "gone"}))

    def sleep(seconds):
        clock.sleep(seconds)
        if clock.now > 90:
            first.close()

    monkeypatch.setattr(lock.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(lock.time, "sleep", sleep)
    with lock.hold(str(tmp_path), owner="chief:0", run_id="second"):
        assert clock.now > 90


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EROFS, 2)])
def test_a_lock_without_room_is_worth_another_start(tmp_path, number, code, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "makedirs", _raising(OSError(number, os.strerror(number))))
        with (
            pytest.raises(PipelineError, match="cannot be written") as failed,
            lock.hold(str(tmp_path), owner="chief:0", run_id="first"),
        ):
            pass
    assert failed.value.exit_code == code
