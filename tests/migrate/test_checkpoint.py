"""`migrate checkpoint` between the Estimator and Keras 2: round trips, training that goes on, TensorFlow 1, faults."""

from __future__ import annotations

import functools
import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import estimator_pipeline as ep
from estimator_pipeline.cli import main as cli
from estimator_pipeline.engines.jobs.build import BuiltJob
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.engines.model_dir import lock
from estimator_pipeline.engines.recording.step_recorder import StepRecorder
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from estimator_pipeline.job.name_mapping import read_mapping
from estimator_pipeline.migrate import migrate_checkpoint
from estimator_pipeline.migrate.checkpoints import write as checkpoint_writing
from estimator_pipeline.parity.step_records import BatchWriter, StepReader, StepWriter
from estimator_pipeline.utils.variable_names import canonical
from tests.support.migrated_jobs import OPTIMIZERS, assert_same_bits, optimizer, values, write_job
from tests.support.processes import ROOT, tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
v1 = tf.compat.v1
RECORDED = ROOT / "tests" / "records" / "checkpoints"
# Two graphs of the same operations, summed in another order.
ROUNDING = {"rtol": 2e-6, "atol": 1e-7}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    from estimator_pipeline.inputs.sources.digits import prepare

    folder = tmp_path_factory.mktemp("job")
    prepare(str(folder / "tfds"))
    return write_job(folder, folder / "tfds")


def trained(job, model_dir, *settings, steps=4):
    """A plain Estimator's checkpoint of the job."""
    loaded = load_job(job, overrides=[*settings, f"run.model_dir={model_dir}"])
    config = ep.build_run_config(model_dir, seed=1, environ={}, save_summary_steps=None)
    built = BuiltJob(loaded)
    built.estimator(config).train(built.data.train_input_fn, max_steps=steps)
    return tf.train.latest_checkpoint(str(model_dir))


# The round trip ------------------------------------------------------------------------------------------------


@pytest.mark.gate("adam-v1")
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_there_and_back_bit_equal(job, tmp_path, case):
    """Estimator -> Keras -> Estimator: weights, moving statistics, slots, powers of beta, settings, the step."""
    settings = [optimizer(case)]
    first = trained(job, tmp_path / "estimator", *settings)
    there = migrate_checkpoint(first, to="keras", job=job, settings=settings, output=tmp_path / "keras")
    back = migrate_checkpoint(tmp_path / "keras", to="estimator", job=job, settings=settings, output=tmp_path / "back")
    assert there.step == back.step == 4
    assert there.output == str(tmp_path / "keras" / "ckpt-4") == tf.train.latest_checkpoint(str(tmp_path / "keras"))
    before = values(tf, first)
    assert np.abs(before["batch_normalization/moving_mean"]).min() > 0
    assert_same_bits(before, values(tf, back.output))


def recording(folder):
    return StepRecorder(
        writer=functools.partial(StepWriter, folder),
        canonical=canonical,
        batches=lambda t: BatchWriter(folder, t).batch,
    )


# The other way, to the Estimator, bits are what test_there_and_back_bit_equal compares.
@pytest.mark.gate("estimator-keras-adam-v1")
@pytest.mark.parametrize("case", ["adam-v1", "momentum-keras"])
@pytest.mark.parametrize(("one", "other"), [("estimator", "keras"), ("keras", "estimator")])
def test_training_goes_on_with_the_same_loss_and_records(job, tmp_path, case, one, other):
    """Stopped at 4 and gone on to 8 by either engine, from either engine's checkpoint."""

    settings = [optimizer(case), "model.params={names: true}"]

    def run(engine, folder, steps, record=None):
        changes = [*settings, f"run.engine={engine}", f"run.model_dir={tmp_path / folder}", f"train.max_steps={steps}"]
        return run_job(
            load_job(job, overrides=changes),
            recording=None if record is None else recording(tmp_path / record),
            environ={},
        )

    run(one, f"{one}-first", 4)
    shutil.copytree(tmp_path / f"{one}-first", tmp_path / f"{one}-same")
    output = tmp_path / f"{other}-from-{one}"
    migrate_checkpoint(tmp_path / f"{one}-first", to=other, job=job, settings=settings, output=output)
    whole = run(one, f"{one}-same", 8, f"{one}-record")
    moved = run(other, f"{other}-from-{one}", 8, f"{other}-from-{one}-record")
    records = [StepReader(tmp_path / f"{one}-record"), StepReader(tmp_path / f"{other}-from-{one}-record")]
    # Of what was read ahead of the last step nothing is said.
    read = [next(iter(record.batches().values()))[:4] for record in records]
    assert read[0] == read[1] and len(read[0]) == 4
    for step in (5, 6, 7, 8):
        left, right = (record.variables(step) for record in records)
        assert set(left) == set(right) and any(" @" in name for name in left)
        for name in left:
            np.testing.assert_allclose(left[name], right[name], **ROUNDING, err_msg=f"{name} after {step}")
    assert list(records[0].losses) == list(records[1].losses) == [5, 6, 7, 8]
    np.testing.assert_allclose(*(list(record.losses.values()) for record in records), **ROUNDING)
    assert whole.global_step == moved.global_step == 8


def test_an_engine_names_the_command_and_goes_on_after_it(job, tmp_path):
    """In the same model directory: refused, migrated in place, gone on."""
    trained(job, tmp_path / "model", optimizer("momentum-v1"))
    settings = [optimizer("momentum-v1"), f"run.model_dir={tmp_path / 'model'}"]
    keras = load_job(job, overrides=[*settings, "run.engine=keras", "train.max_steps=8"])
    with pytest.raises(ConfigError) as caught:
        run_job(keras, environ={})
    assert f"estimator-pipeline migrate checkpoint {tmp_path / 'model'} --to keras --job JOB.yaml" in str(caught.value)
    migrate_checkpoint(tmp_path / "model", to="keras", job=job, settings=settings)
    result = run_job(keras, environ={})
    assert result.global_step == 8 and result.tasks["worker:0"].steps == 4


def test_a_run_that_goes_on_is_held_against_the_one_before(job, tmp_path):
    """What the run is made of comes along: another seed of the data is refused as ever."""
    settings = [optimizer("sgd-v1"), "train.max_steps=2"]
    run_job(load_job(job, overrides=[*settings, f"run.model_dir={tmp_path / 'one'}"]), environ={})
    migrate_checkpoint(tmp_path / "one", to="keras", job=job, settings=settings, output=tmp_path / "two")
    changed = [*settings, "run.engine=keras", f"run.model_dir={tmp_path / 'two'}", "input.seed=2", "train.max_steps=4"]
    with pytest.raises(ConfigError, match="this run is not the one that trained to step 2"):
        run_job(load_job(job, overrides=changed), environ={})


# Programs ------------------------------------------------------------------------------------------------------


def table_graph(*, partitions=None, average=False, optimizer=None):
    """Rows of a table, averaged and projected, as a program of TensorFlow 1 has it."""
    with v1.variable_scope("", partitioner=partitions and v1.fixed_size_partitioner(partitions)):
        table = v1.get_variable("words/table", [10, 4])
    projection = v1.get_variable("out/weights", [4, 1])
    step = v1.train.get_or_create_global_step()
    rows = tf.nn.embedding_lookup(table, [1, 5, 9])
    loss = tf.reduce_mean(tf.square(tf.matmul(rows, projection) - 1.0))
    train = (optimizer or v1.train.AdamOptimizer(0.1)).minimize(loss, step)
    if average:
        with tf.control_dependencies([train]):
            train = v1.train.ExponentialMovingAverage(0.5).apply([projection])
    return loss, train


def tf1_checkpoint(folder, *, version=2, steps=3, **graph):
    """Written by `tf.compat.v1.train.Saver`."""
    folder.mkdir()
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        _, train = table_graph(**graph)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(steps):
                session.run(train)
            saver = v1.train.Saver(write_version=version)
            path = saver.save(session, str(folder / "model.ckpt"), global_step=steps)
            whole = v1.train.Saver({variable.op.name: variable for variable in v1.global_variables()})
            whole.save(session, str(folder / "apart"))
            return path


def table_model(optimizer=None):
    keras = tf.keras
    ids = keras.Input((), dtype=tf.int32)
    rows = keras.layers.Embedding(10, 4, name="words")(ids)
    model = keras.Model(ids, keras.layers.Dense(1, use_bias=False, name="out")(rows))
    model.compile(optimizer or keras.optimizers.legacy.Adam(0.1, epsilon=1e-8), "mse")
    return model


def table_estimator(model_dir=None, *, partitions=3, optimizer=None):
    def model_fn(features, labels, mode):
        loss, train = table_graph(partitions=partitions, optimizer=optimizer and optimizer())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    return tf.estimator.Estimator(model_fn, model_dir)


def nothing():
    return tf.data.Dataset.from_tensors(({"x": [0.0]}, [0.0])).repeat()


NAMES = {"words/embeddings": "words/table", "out/kernel": "out/weights"}


@pytest.mark.gate("format V1")
@pytest.mark.parametrize("version", [1, 2], ids=["format V1", "format V2"])
def test_a_partitioned_table_of_tensorflow_1(tmp_path, version):
    """A sliced table with its slots, to a Keras model and back to a graph of other partitions."""
    path = tf1_checkpoint(tmp_path / "old", version=version, partitions=3)
    there = migrate_checkpoint(path, to="keras", model=table_model, output=tmp_path / "keras")
    assert there.mapping == NAMES and {row.how for row in there.rows if row.target in NAMES} == {"shape"}
    back = migrate_checkpoint(
        tmp_path / "keras", to="estimator", estimator=lambda: table_estimator(partitions=4), input_fn=nothing,
        output=tmp_path / "back", mapping=there.mapping_file,
    )  # fmt: skip
    apart = values(tf, tmp_path / "old" / "apart")
    again = values(tf, back.output)
    for name in ("words/table", "words/table/Adam", "words/table/Adam_1"):
        head, _, slot = name.partition("/table")
        whole = np.concatenate([apart[f"{head}/table/part_{n}{slot}"] for n in range(3)])
        assert again[name].tobytes() == whole.tobytes(), name
    for name in ("out/weights", "out/weights/Adam", "beta1_power", "beta2_power", "global_step"):
        assert again[name].tobytes() == apart[name].tobytes(), name
    # The Estimator itself goes on from it.
    estimator = table_estimator(str(tmp_path / "back"), partitions=4)
    estimator.train(nothing, steps=1)
    assert estimator.get_variable_value("global_step") == 4


def test_partitions_that_were_saved_one_by_one(tmp_path):
    tf1_checkpoint(tmp_path / "old", partitions=3)
    done = migrate_checkpoint(tmp_path / "old" / "apart", to="keras", model=table_model, output=tmp_path / "keras")
    model = table_model()
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(done.output).assert_existing_objects_matched()
    apart = values(tf, tmp_path / "old" / "apart")
    whole = np.concatenate([apart[f"words/table/part_{n}"] for n in range(3)])
    assert model.get_layer("words").get_weights()[0].tobytes() == whole.tobytes()
    assert int(model.optimizer.iterations) == 3


def test_moving_averages_of_tensorflow_1(tmp_path):
    path = tf1_checkpoint(tmp_path / "old", average=True)
    with pytest.raises(ConfigError, match="ExponentialMovingAverage of the checkpoint has no counterpart in"):
        migrate_checkpoint(path, to="keras", model=table_model, output=tmp_path / "keras")
    done = migrate_checkpoint(path, to="keras", model=table_model, output=tmp_path / "averages.weights.h5",
                              use_ema_weights=True, drop_optimizer_state=True)  # fmt: skip
    model = table_model()
    model.load_weights(done.output)
    old = values(tf, path)
    assert model.get_layer("out").get_weights()[0].tobytes() == old["out/weights/ExponentialMovingAverage"].tobytes()
    assert model.get_layer("words").get_weights()[0].tobytes() == old["words/table"].tobytes()


# V1's optimizer, a Keras one with the same arithmetic but for rounding, the newer one of Keras 2.
STOCK = {
    "adam": (lambda: v1.train.AdamOptimizer(0.1), lambda: tf.keras.optimizers.Adam(0.1, epsilon=1e-8), {}),
    "momentum": (lambda: v1.train.MomentumOptimizer(0.125, 0.9),
                 lambda: tf.keras.optimizers.SGD(0.125, momentum=0.9), {"learning_rate": 0.125}),
    "legacy momentum": (lambda: v1.train.MomentumOptimizer(0.125, 0.9),
                        lambda: tf.keras.optimizers.legacy.SGD(0.125, momentum=0.9), {"learning_rate": 0.125}),
    "rmsprop": (lambda: v1.train.RMSPropOptimizer(0.1, momentum=0.5, centered=True),
                lambda: tf.keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True, epsilon=1e-10), {}),
    "ftrl": (lambda: v1.train.FtrlOptimizer(0.1), lambda: tf.keras.optimizers.Ftrl(0.1), {}),
    "adagrad": (lambda: v1.train.AdagradOptimizer(0.1), lambda: tf.keras.optimizers.Adagrad(0.1, epsilon=1e-30), {}),
}  # fmt: skip


@pytest.mark.gate("adam", "legacy momentum", "rmsprop")
@pytest.mark.parametrize("case", STOCK)
def test_stock_optimizers_of_keras_2_go_on_with_the_same_loss(tmp_path, case):
    """From V1's optimizer to that of Keras; a rate of 1/8 makes the conversion of a momentum exact."""
    of_v1, of_keras, choices = STOCK[case]
    path = tf1_checkpoint(tmp_path / "old", optimizer=of_v1())
    done = migrate_checkpoint(path, to="keras", model=lambda: table_model(of_keras()), output=tmp_path / "keras",
                              mapping=NAMES, **choices)  # fmt: skip
    model = table_model(of_keras())
    model.optimizer.build(model.trainable_variables) if hasattr(model.optimizer, "build") else None
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(done.output).expect_partial()
    ours = [float(model.train_on_batch(np.array([1, 5, 9]), np.ones((3, 1)))) for _ in range(4)]
    with tf.Graph().as_default(), v1.Session() as session:
        loss, train = table_graph(optimizer=of_v1())
        v1.train.Saver().restore(session, path)
        theirs = [session.run([loss, train])[0] for _ in range(4)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert int(model.optimizer.iterations) == 7
    back = migrate_checkpoint(
        tmp_path / "keras", to="estimator", estimator=lambda: table_estimator(partitions=None, optimizer=of_v1),
        input_fn=nothing, output=tmp_path / "back", mapping=NAMES, **choices,
    )  # fmt: skip
    assert_same_bits(values(tf, path), values(tf, back.output))


def test_a_recorded_checkpoint_of_2_15_goes_on_as_it_did_there(tmp_path):
    """Keras layers and Keras's Adam in a model_fn; the Keras model then makes the three steps that 2.15 made."""
    x = np.array([[1.0, 0.5], [-0.5, 1.0], [2.0, -1.0], [0.25, 0.75]], np.float32)
    y = np.array([1.0, -2.0, 3.5, 0.5], np.float32)

    def model():
        keras = tf.keras
        layers = [keras.layers.Dense(3, "tanh", name="hidden"), keras.layers.BatchNormalization(momentum=0.5)]
        built = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1, name="out")])
        built.compile(keras.optimizers.legacy.Adam(0.05), "mse")
        return built

    done = migrate_checkpoint(RECORDED / "keras_layers", to="keras", model=model, output=tmp_path / "model.keras")
    assert done.step == 3
    going_on = ep.load_keras_model(done.output)
    observed = json.loads((RECORDED / "observed.json").read_text())["keras_layers"]
    np.testing.assert_allclose(going_on(x), observed["now"]["predictions"], rtol=1e-4, atol=1e-6)
    for _ in range(3):
        going_on.train_on_batch(x, y)
    assert int(going_on.optimizer.iterations) == observed["later"]["global_step"]
    np.testing.assert_allclose(going_on(x), observed["later"]["predictions"], rtol=1e-3, atol=1e-5)


def test_a_recorded_canned_estimator_needs_a_mapping(tmp_path):
    """Its towers have names that no Keras model has; two biases of one shape do not tell which is which."""

    def model():
        keras = tf.keras
        row = keras.Input((4,))
        found = row
        for number, units in enumerate((4, 3)):
            found = keras.layers.Dense(units, "relu", name=f"h{number}")(found)
        model = keras.Model(row, keras.layers.Dense(3, name="logits")(found))
        model.compile("sgd", "mse")
        return model

    with pytest.raises(ConfigError) as caught:
        migrate_checkpoint(
            RECORDED / "dnn_classifier", to="keras", model=model, output=tmp_path / "x", drop_optimizer_state=True
        )
    assert "dnn/" in str(caught.value) and "--mapping" in str(caught.value)


def test_keras_files_there_and_back(job, tmp_path):
    """`.keras` holds the optimizer's state; `.weights.h5` does not, and that has to be said."""
    path = tf1_checkpoint(tmp_path / "old")
    one = migrate_checkpoint(path, to="keras", model=table_model, output=tmp_path / "table.keras")
    two = migrate_checkpoint(one.output, to="keras", model=table_model, output=tmp_path / "again")
    back = migrate_checkpoint(two.output, to="estimator", estimator=lambda: table_estimator(partitions=None),
                              input_fn=nothing, output=tmp_path / "back", mapping=NAMES)  # fmt: skip
    assert_same_bits(values(tf, path), values(tf, back.output))
    with pytest.raises(ConfigError, match="would contain only weights, without slots and step"):
        migrate_checkpoint(path, to="keras", model=table_model, output=tmp_path / "table.weights.h5")
    with pytest.raises(ConfigError, match="has weights without names"):
        (tmp_path / "x.weights.h5").touch()
        migrate_checkpoint(tmp_path / "x.weights.h5", to="keras", model=table_model, output=tmp_path / "y")


# What is there, what is damaged, what is held ---------------------------------------------------------------------


def test_what_is_there_is_not_replaced_unasked(tmp_path):
    path = tf1_checkpoint(tmp_path / "old")
    for output in (tmp_path / "keras", tmp_path / "table.keras"):
        first = migrate_checkpoint(path, to="keras", model=table_model, output=output)
        with pytest.raises(ConfigError, match="--overwrite"):
            migrate_checkpoint(path, to="keras", model=table_model, output=output)
        again = migrate_checkpoint(path, to="keras", model=table_model, output=output, overwrite=True)
        assert again.output == first.output
    names = {name.name for name in (tmp_path / "keras").iterdir()}
    assert names == {"checkpoint", "ckpt-3.index", "ckpt-3.data-00000-of-00001", "ckpt-3.mapping.yaml",
                     "estimator_pipeline"}  # fmt: skip
    assert read_mapping(tmp_path / "keras" / "ckpt-3.mapping.yaml") == NAMES


def test_nothing_is_written_where_something_does_not_fit(tmp_path):
    path = tf1_checkpoint(tmp_path / "old")
    with pytest.raises(ConfigError, match="optimizer is adam"):
        migrate_checkpoint(path, to="keras", model=lambda: table_model("sgd"), output=tmp_path / "keras")
    assert not (tmp_path / "keras").exists()
    with pytest.raises(ConfigError, match="optimizer is adam"):
        migrate_checkpoint(path, to="estimator", input_fn=nothing, output=tmp_path / "estimator",
                           estimator=lambda: table_estimator(optimizer=STOCK["momentum"][0]))  # fmt: skip
    assert not list((tmp_path / "estimator").glob("*ckpt*")) and not (tmp_path / "estimator" / "checkpoint").exists()


def test_a_folder_where_a_training_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_writing, "_LOCK_SECS", 0.1)
    path = tf1_checkpoint(tmp_path / "old")
    held = {"owner": "worker:0", "run_id": "x"}
    with lock.hold(str(tmp_path / "old"), **held), pytest.raises(ConfigError, match="a training is running in"):
        migrate_checkpoint(tmp_path / "old", to="keras", model=table_model, output=tmp_path / "new")
    with lock.hold(str(tmp_path / "new"), **held), pytest.raises(ConfigError, match="another job trains in"):
        migrate_checkpoint(path, to="keras", model=table_model, output=tmp_path / "new")


@pytest.mark.parametrize("what", ["data", "index", "gone"])
def test_files_that_are_cut_off(tmp_path, what):
    path = tf1_checkpoint(tmp_path / "old")
    data, index = f"{path}.data-00000-of-00001", f"{path}.index"
    if what == "gone":
        (tmp_path / "old" / data).unlink()
    else:
        file = tmp_path / "old" / (data if what == "data" else index)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        migrate_checkpoint(path, to="keras", model=table_model, output=tmp_path / "keras")
    assert "truncated or damaged" in str(caught.value)


def test_no_checkpoint(tmp_path):
    with pytest.raises(ConfigError, match="names no existing checkpoint"):
        migrate_checkpoint(tmp_path, to="keras", model=table_model, output=tmp_path / "x")
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        migrate_checkpoint(tmp_path / "model.ckpt-3", to="keras", model=table_model, output=tmp_path / "x")


# The command line ------------------------------------------------------------------------------------------------


def test_the_command_line(job, tmp_path):
    path = trained(job, tmp_path / "estimator", optimizer("momentum-v1"), steps=1)
    arguments = ["migrate", "checkpoint", path, "--to", "keras", "--job", str(job), "--set", optimizer("momentum-v1"),
                 "--output", str(tmp_path / "keras")]  # fmt: skip
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.endswith(
        f"step 1: {path} -> {tmp_path}/keras/ckpt-1\nmapping: {tmp_path}/keras/ckpt-1.mapping.yaml\n"
    )
    assert "dense/kernel/Momentum" in done.output
    again = CliRunner().invoke(cli.app, [*arguments, "--overwrite", "--json"])
    assert json.loads(again.output)["step"] == 1
    for wrong, told in (
        (["--to", "keras"], "the target keras requires a job file (--job), or --model"),
        (["--to", "pytorch", "--job", "x"], "unknown target 'pytorch'"),
        (["--to", "keras", "--job", "x", "--model", "y:z"], "--model and the job file x are both set"),
        (
            ["--to", "estimator", "--estimator", "x:y"],
            "the target estimator requires a job file (--job), or --estimator and --input-fn",
        ),
        (["--to", "keras", "--model", "x:y"], "the output is missing"),
    ):
        done = CliRunner().invoke(cli.app, ["migrate", "checkpoint", path, *wrong])
        assert done.exit_code == 2 and f"error: {told}" in done.output
