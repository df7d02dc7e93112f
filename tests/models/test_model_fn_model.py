"""A model_fn as a Keras model, held against the Estimator: numbers, checkpoints, hooks, exports, restarts."""

from __future__ import annotations

import json
import shutil
import sys
import types

import numpy as np
import pytest

from estimator_pipeline import compat
from estimator_pipeline.compat.script_runner import runner
from estimator_pipeline.errors import ClusterError, ConfigError, DivergedError
from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn

tf = compat.install()
v1 = tf.compat.v1
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
RANDOM = np.random.RandomState(0)
X = RANDOM.rand(64, 3).astype("float32")
WORKERS = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}})
Y = (X.sum(1) > 1.5).astype("int64")


def data(repeat=None):
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(16).repeat(repeat)


def model_fn_of(spec):
    """A model_fn of layers, normalisation, a variable, a schedule; `spec` is the class of what it gives."""

    def model_fn(features, labels, mode, params):
        net = v1.layers.dense(features["x"], 8, tf.nn.relu, kernel_regularizer=tf.keras.regularizers.l2(0.01))
        net = v1.layers.batch_normalization(net, training=mode == "train")
        with v1.variable_scope("head"):
            weights = v1.get_variable("w", [8, 2], regularizer=tf.keras.regularizers.l2(0.01))
            offset = v1.Variable(tf.fill([2], params["offset"]), name="offset")
        logits = tf.identity(tf.matmul(net, weights) + offset, name="logits")
        assert {net: "net", offset: "offset"}[offset] == offset.op.name.rpartition("/")[2] and net != logits
        found = {"class": tf.argmax(logits, 1), "logits": logits}
        if mode == "infer":
            return spec(mode, predictions=found)
        v1.losses.sparse_softmax_cross_entropy(labels, logits)
        loss = v1.losses.get_total_loss()
        accuracy = v1.metrics.accuracy(labels, found["class"])
        if mode == "eval":
            return spec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
        step = v1.train.get_global_step()
        optimizer = v1.train.AdamOptimizer(v1.train.exponential_decay(0.1, step, 5, 0.5))
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, step)
        return spec(mode, loss=loss, train_op=train_op)

    return model_fn


PARAMS = {"offset": 0.5}


def made(folder, *, params=PARAMS, **config):
    config = {"save_summary_steps": None, "log_step_count_steps": None, **config}
    spec = keras_model_fn.ModelFnSpec
    return keras_model_fn.ModelFnModel(model_fn_of(spec), str(folder), keras_model_fn.RunConfig(**config), params)


def variables(folder):
    reader = tf.train.load_checkpoint(str(folder))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_as_the_estimator(tmp_path):
    """From the same checkpoint the same numbers, to the bit, and each goes on from what the other one has written."""
    estimator = tf.estimator.Estimator(model_fn_of(tf.estimator.EstimatorSpec), str(tmp_path / "old"), params=PARAMS)
    estimator.train(data, steps=1)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    estimator.train(data, steps=10)
    model = made(tmp_path / "new")
    model.fit(keras_model_fn.dataset(data), steps_per_epoch=10)
    old, new = variables(tmp_path / "old"), variables(tmp_path / "new")
    assert old.keys() == new.keys() == set(model.get_variable_names()) and "head/w/Adam_1" in new
    assert all(np.array_equal(old[name], new[name]) for name in old) and new["global_step"] == 11
    wanted = estimator.evaluate(lambda: data(1))
    assert model.evaluate(data(1), return_dict=True) == {name: pytest.approx(wanted[name], abs=0) for name in wanted}
    told, found = list(estimator.predict(lambda: data(1))), list(keras_model_fn.predictions(model, data(1)))
    assert len(found) == 64 and all(np.array_equal(one[key], other[key]) and one.keys() == other.keys()
                                    for one, other in zip(told, found, strict=True) for key in one)  # fmt: skip
    back = tf.estimator.Estimator(model_fn_of(tf.estimator.EstimatorSpec), str(tmp_path / "new"), params=PARAMS)
    assert back.evaluate(lambda: data(1)) == wanted


def test_goes_on_where_it_was(tmp_path):
    """`max_steps` is the step until which all runs together train; one that has come to it trains no more."""
    whole, parts = made(tmp_path / "whole"), tmp_path / "parts"
    whole.fit(data(), steps_per_epoch=1)
    shutil.copytree(tmp_path / "whole", parts)
    whole.fit(data(), max_steps=9)
    for steps in (5, 9):
        made(parts).fit(data().skip(4 if steps == 9 else 0), max_steps=steps)
    one, other = variables(tmp_path / "whole"), variables(parts)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert made(parts).fit(data(), max_steps=9) is None and made(parts).global_step == 9


def test_gradients_within_a_loop(tmp_path):
    """As an optimizer with differential privacy makes them, for each part of a batch: a variable outside has one."""

    def model_fn(features, labels, mode):
        weight = v1.get_variable("w", [3, 2])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.matmul(features["x"], weight))

        def add(part, total):
            return part + 1, total + v1.gradients(tf.reduce_mean(losses[part * 4 : part * 4 + 4]), weight)[0]

        _, total = tf.while_loop(lambda part, _: part < 4, add, [0, tf.zeros([3, 2])])
        step = v1.train.get_global_step()
        train_op = v1.train.GradientDescentOptimizer(0.1).apply_gradients([(total, weight)], step)
        return keras_model_fn.ModelFnSpec(mode, loss=tf.reduce_mean(losses), train_op=train_op)

    model = keras_model_fn.ModelFnModel(model_fn, str(tmp_path))
    model.fit(data(), max_steps=1)
    before = variables(tmp_path)["w"]
    model.fit(data(), max_steps=2)
    assert np.abs(variables(tmp_path)["w"] - before).min() > 1e-4


def test_keras_layers_in_a_model_fn(tmp_path):
    """A Sequential model and Keras's metrics and optimizer: moving statistics are those that were trained."""

    def model_fn(features, labels, mode):
        layers = tf.keras.layers
        net = tf.keras.Sequential([layers.Dense(4, "relu"), layers.BatchNormalization(momentum=0.5), layers.Dense(2)])
        logits = net(features["x"], training=mode == "train")
        loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        if mode == "eval":
            accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
            accuracy.update_state(labels, logits)
            return keras_model_fn.ModelFnSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
        optimizer = tf.keras.optimizers.legacy.SGD(0.1)
        optimizer.iterations = v1.train.get_global_step()
        updates = [*optimizer.get_updates(loss, net.trainable_variables), *net.get_updates_for(features["x"])]
        return keras_model_fn.ModelFnSpec(mode, loss=loss, train_op=tf.group(*updates))

    model = keras_model_fn.ModelFnModel(model_fn, str(tmp_path))
    model.fit(data(), steps_per_epoch=8)
    found = model.evaluate(data(1), return_dict=True)
    assert keras_model_fn.ModelFnModel(model_fn, str(tmp_path)).evaluate(data(1), return_dict=True) == found
    kept = {name.removeprefix("sequential/"): value for name, value in variables(tmp_path).items()}
    hidden = np.maximum(X @ kept["dense/kernel"] + kept["dense/bias"], 0)
    norm = {name: kept[f"batch_normalization/{name}"] for name in ("gamma", "beta", "moving_mean", "moving_variance")}
    hidden = (hidden - norm["moving_mean"]) / np.sqrt(norm["moving_variance"] + 1e-3) * norm["gamma"] + norm["beta"]
    logits = hidden @ kept["dense_1/kernel"] + kept["dense_1/bias"]
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert found["loss"] == pytest.approx(-np.log(chances[np.arange(64), Y]).mean(), rel=1e-5)
    assert found["accuracy"] == np.mean(logits.argmax(1) == Y) and norm["moving_mean"].any()


class Watching(v1.train.SessionRunHook):
    """Keeps what it sees, and asks for an end."""

    def __init__(self, until):
        self.until, self.seen, self.ended = until, [], None

    def begin(self):
        self.step = v1.train.get_global_step()

    def after_create_session(self, session, coord):
        self.first = session.run(self.step)

    def before_run(self, context):
        return v1.train.SessionRunArgs({"step": self.step, "logits": "logits:0"})

    def after_run(self, context, values):
        self.seen.append(values.results["logits"].shape)
        if len(self.seen) == self.until:
            context.request_stop()

    def end(self, session):
        self.ended = session.run(self.step)


def test_hooks_and_listeners(tmp_path):
    """What a hook asks for by name or tensor is that of the step; StopAtStepHook is a number of steps."""
    hook, saved = Watching(3), []

    class Listener(v1.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            saved.append(global_step_value)

    model = made(tmp_path, save_checkpoints_steps=2, keep_checkpoint_max=2)
    model.fit(data(), steps_per_epoch=20, hooks=[hook], saving_listeners=[Listener()])
    assert hook.first == 0 and hook.ended == 3 and hook.seen == [(16, 2)] * 3 and saved == [0, 2, 3]
    model.fit(data(), hooks=[v1.train.StopAtStepHook(num_steps=2)])
    assert model.global_step == 5
    names = {path.name for path in tmp_path.iterdir()}
    assert {"model.ckpt-4.index", "model.ckpt-5.index"} <= names and "model.ckpt-3.index" not in names


def test_summaries(tmp_path):
    model = made(tmp_path, save_summary_steps=2)
    model.fit(data(), steps_per_epoch=4)
    (path,) = map(str, tmp_path.glob("events*"))
    steps = [one.step for one in v1.train.summary_iterator(path) for value in one.summary.value if value.tag == "loss"]
    assert steps == [1, 3]


def test_other_checkpoints(tmp_path):
    """init_from_checkpoint, a warm start, and a checkpoint of another model."""
    made(tmp_path / "old").fit(data(), steps_per_epoch=3)
    old = variables(tmp_path / "old")

    def model_fn(features, labels, mode):
        net = v1.layers.dense(features["x"], 8)
        if mode == "train":
            v1.train.init_from_checkpoint(str(tmp_path / "old"), {"dense/": "dense/"})
        loss = tf.reduce_mean(net)
        step = v1.train.get_global_step()
        return keras_model_fn.ModelFnSpec(mode, loss=loss, train_op=v1.assign_add(step, 1))

    for warm_start, folder in ((None, "new"), (str(tmp_path / "old"), "warm")):
        model = keras_model_fn.ModelFnModel(model_fn, str(tmp_path / folder), warm_start_from=warm_start)
        model.fit(data(), steps_per_epoch=1)
        assert np.array_equal(model.get_variable_value("dense/kernel"), old["dense/kernel"])
    with pytest.raises(ConfigError, match="has no variable 'batch_normalization/") as error:
        made(tmp_path / "new").evaluate(data(1))
    assert "dense/kernel" in str(error.value)


def serving():
    return keras_model_fn.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 3], tf.float32)})


@pytest.mark.nightly
def test_train_and_evaluate(tmp_path):
    """Evaluations after checkpoints, exporters, and a SavedModel that gives what the model predicts."""
    model = made(tmp_path, save_checkpoints_steps=2)
    exporters = [keras_model_fn.BestExporter("best", serving()), keras_model_fn.FinalExporter("final", serving())]
    train = keras_model_fn.TrainSpec(data, max_steps=5)
    evaluation = keras_model_fn.EvalSpec(lambda: data(1), name="held_out", exporters=exporters, throttle_secs=0)
    result, exports = keras_model_fn.train_and_evaluate(model, train, evaluation)
    kept = json.loads((tmp_path / "eval_held_out" / "evaluations.json").read_text())
    assert [one["global_step"] for one in kept] == [2, 4, 5] and kept[-1] == result
    served = tf.saved_model.load(exports[1].decode()).signatures["serving_default"](x=tf.constant(X))
    wanted = list(keras_model_fn.predictions(model, data(1)))
    assert np.allclose(served["logits"], [one["logits"] for one in wanted], atol=1e-6)
    assert list(tmp_path.glob("export/best/*/saved_model.pb"))
    assert keras_model_fn.train_and_evaluate(model, train, evaluation) == (None, [])


@pytest.mark.nightly
@pytest.mark.parametrize(("throttle", "steps"), [(0, [2, 4, 5]), (900, [2, 5])])
def test_the_same_checkpoints_are_evaluated(tmp_path, throttle, steps):
    """As by an Estimator, with its specs."""
    specs = tf.estimator.TrainSpec(data, max_steps=5), tf.estimator.EvalSpec(lambda: data(1), throttle_secs=throttle)
    config = tf.estimator.RunConfig(str(tmp_path / "old"), save_checkpoints_steps=2)
    estimator = tf.estimator.Estimator(model_fn_of(tf.estimator.EstimatorSpec), config=config, params=PARAMS)
    tf.estimator.train_and_evaluate(estimator, *specs)
    keras_model_fn.train_and_evaluate(made(tmp_path / "new", save_checkpoints_steps=2), *specs)
    for folder in ("old", "new"):
        paths = map(str, (tmp_path / folder / "eval").glob("events*"))
        events = [event for path in paths for event in v1.train.summary_iterator(path)]
        found = [one.step for one in events for value in one.summary.value if value.tag == "loss"]
        assert sorted(found) == steps, folder


def test_input_functions(tmp_path, monkeypatch):
    """fit, evaluate and predict take them; batches of any length share one graph; a step reads its number once."""
    modes, told, reads = [], [], []

    def model_fn(features, labels, mode):
        modes.append(mode)
        total = tf.reduce_sum(features, 1) * v1.get_variable("weight", [], initializer=v1.ones_initializer())
        if mode == "infer":
            return keras_model_fn.ModelFnSpec(mode, predictions=total)
        train_op = v1.assign_add(v1.train.get_global_step(), 1)
        return keras_model_fn.ModelFnSpec(mode, loss=tf.reduce_mean(total - labels), train_op=train_op)

    def input_fn(mode, params, config):
        told.append((mode, params["size"], config.model_dir))
        records = tf.data.Dataset.range(1, 9).map(lambda length: (tf.ones([length]), tf.cast(length, tf.float32)))
        return records.padded_batch(params["size"], ([None], []))

    model = keras_model_fn.ModelFnModel(model_fn, str(tmp_path), params={"size": 2})
    step = type(model).global_step.fget
    monkeypatch.setattr(type(model), "global_step", property(lambda self: reads.append(self) or step(self)))
    model.fit(input_fn)
    assert len(reads) == 5 and model.global_step == 4
    assert model.evaluate(input_fn, return_dict=True)["loss"] == 0
    wanted = list(range(1, 9))
    assert model.predict(input_fn).tolist() == list(keras_model_fn.predictions(model, input_fn)) == wanted
    assert modes == ["train", "eval", "infer"] and len(set(told)) == 3 and len(told) == 4
    assert told[0] == ("train", 2, str(tmp_path))
    assert model.predict_on_batch(tf.ones([1, 3])).tolist() == [3]


def test_a_cluster_is_refused_by_the_command(tmp_path, monkeypatch, capsys):
    """By `exec`: before anything is made, with what to do, the exit code of bad input, and no traceback."""
    program = tmp_path / "program.py"
    program.write_text(
        "from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn\n\n"
        "keras_model_fn.ModelFnModel(None, 'model')\n"
    )
    monkeypatch.setenv("TF_CONFIG", WORKERS)
    monkeypatch.chdir(tmp_path)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, [*getattr(sys, name)])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    assert runner.run_script(str(program)) == 2
    said = capsys.readouterr().err
    assert "[training/unsupported]" in said and "--to keras-layers" in said and "Traceback" not in said
    assert not (tmp_path / "model").exists()


def test_as_an_estimator_by_the_names_of_its_arguments(tmp_path):
    """For functions of a program that are handed one, and call it."""
    model = made(tmp_path)

    def work(estimator):
        assert estimator.train(input_fn=data, steps=2) is estimator
        found = estimator.evaluate(input_fn=data, steps=1)
        return found["global_step"], next(estimator.predict(input_fn=data, predict_keys=["class"])).keys()

    assert work(model) == (2, {"class"})


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="use_tpu=False"):
        keras_model_fn.tpu_model(model_fn_of(keras_model_fn.ModelFnSpec), str(tmp_path))
    with pytest.raises(ConfigError, match="both set"):
        keras_model_fn.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)
    with pytest.raises(ConfigError, match="no checkpoint"):
        keras_model_fn.export_saved_model(made(tmp_path), str(tmp_path / "export"), serving())
    with pytest.raises(DivergedError, match="the loss is nan at step 1"):
        made(tmp_path, params={"offset": float("nan")}).fit(data(), steps_per_epoch=2)
    for wrong in (lambda: keras_model_fn.TrainSpec(data, max_steps=0), lambda: keras_model_fn.EvalSpec(data, steps=0)):
        with pytest.raises(ConfigError) as error:
            wrong()
        assert error.value.code == "argument/bad-value"
    with pytest.raises(ClusterError, match="of 2 replicas"):
        keras_model_fn.RunConfig(train_distribute=types.SimpleNamespace(num_replicas_in_sync=2))
    assert keras_model_fn.RunConfig().is_chief and keras_model_fn.RunConfig().num_worker_replicas == 1
    monkeypatch.setenv("TF_CONFIG", WORKERS)
    with pytest.raises(ClusterError, match="trains in one process"):
        made(tmp_path)


def test_a_tpu_estimator(tmp_path):
    """Without TPUs: the batch size of the mode in params, metrics by a function."""

    def model_fn(features, labels, mode, config, params):
        logits = v1.layers.dense(features["x"], 2)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        size = tf.ones([]) * params["batch_size"] + config.tpu_config.iterations_per_loop
        step = v1.train.get_global_step()
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        return keras_model_fn.TPUModelFnSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss, step) if mode == "train" else None,
            eval_metrics=(lambda size: {"size": v1.metrics.mean(size)}, [size]),
        )  # fmt: skip

    def input_fn(params):
        return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(params["batch_size"])

    config = keras_model_fn.RunConfig(tpu_config=keras_model_fn.TPUConfig(iterations_per_loop=100))
    model = keras_model_fn.tpu_model(model_fn, str(tmp_path), config, use_tpu=False, train_batch_size=8,
                                     eval_batch_size=4)  # fmt: skip
    model.fit(keras_model_fn.dataset(input_fn, model=model))
    assert model.global_step == 8
    found = model.evaluate(keras_model_fn.dataset(input_fn, "eval", model=model), return_dict=True)
    assert found["size"] == 104
