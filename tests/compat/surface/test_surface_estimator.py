"""`Estimator` itself, its specifications and configurations: what each argument does, and what is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.support.surface_data import APIS, FLOAT32, config, feed, line, tf

v1 = tf.compat.v1
X, Y = line(records=12)
FEATURES = {"x": X}


def both(*names):
    return pytest.mark.symbols(*[f"tf.{api}{name}" for name in names for api in ("estimator.", "compat.v1.estimator.")])


def model_fn(features, labels, mode, params, config):
    """One weight; the step is gradient descent written by hand. Tells what it was given."""
    weight = v1.get_variable("weight", initializer=tf.constant(0.0))
    output = weight * features["x"][:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        tags = tf.fill(tf.shape(output), os.path.basename(config.model_dir))
        doubled = tf.estimator.export.PredictOutput({"doubled": 2 * output})
        return tf.estimator.EstimatorSpec(
            mode, {"output": output, "tag": tags}, export_outputs={"serving_default": doubled}
        )
    loss = tf.reduce_mean((labels - output) ** 2)
    slope = tf.gradients(loss, weight)[0]
    step = tf.group(weight.assign_sub(params["rate"] * slope), v1.train.get_global_step().assign_add(1))
    metrics = {"error": v1.metrics.mean_absolute_error(labels, output)}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step, eval_metric_ops=metrics)


def walk(steps, rate=0.1):
    weight, x = 0.0, X[:, 0].astype(np.float64)
    for _ in range(steps):
        weight -= rate * 2 * (x * (weight * x - Y)).mean()
    return weight


def estimator(model_dir, api="v2", **options):
    return APIS[api].Estimator(model_fn, params={"rate": 0.1}, config=config(model_dir, **options))


@pytest.mark.gate("v2")
@both("Estimator", "EstimatorSpec")
@pytest.mark.parametrize("api", APIS)
def test_life_of_an_estimator(tmp_path, api):
    """steps and max_steps, the named evaluation, an older checkpoint, keys, whole batches, an export."""
    made = estimator(tmp_path / "m", api, save_checkpoints_steps=5, keep_checkpoint_max=3)
    input_fn = feed(FEATURES, Y, repeat=True)
    assert made.train(input_fn, steps=10) is made
    made.train(input_fn, steps=5)  # 5 more
    made.train(input_fn, max_steps=15)  # no more: it is there already
    np.testing.assert_allclose(made.get_variable_value("weight"), walk(15), **FLOAT32)
    assert made.get_variable_names() == ["global_step", "weight"]
    assert made.latest_checkpoint() == str(tmp_path / "m" / "model.ckpt-15")
    kept = tf.train.get_checkpoint_state(str(tmp_path / "m")).all_model_checkpoint_paths
    assert [path.rsplit("-")[-1] for path in kept] == ["5", "10", "15"]

    def figures(weight):
        return {
            "loss": ((Y - weight * X[:, 0]) ** 2).mean(),
            "error": np.abs(Y - weight * X[:, 0]).mean(),
        }

    metrics = made.evaluate(feed(FEATURES, Y), name="dev")
    assert metrics.pop("global_step") == 15
    assert metrics.keys() == {"loss", "error"}
    for name, value in figures(walk(15)).items():
        np.testing.assert_allclose(metrics[name], value, **FLOAT32)
    assert os.listdir(made.eval_dir("dev"))
    older = made.evaluate(feed(FEATURES, Y), checkpoint_path=str(tmp_path / "m" / "model.ckpt-5"))
    np.testing.assert_allclose(older["loss"], figures(walk(5))["loss"], **FLOAT32)

    # Half of the data: `steps` counts batches.
    half = made.evaluate(feed(FEATURES, Y, batch=6), steps=1)
    np.testing.assert_allclose(half["error"], np.abs(Y - walk(15) * X[:, 0])[:6].mean(), **FLOAT32)

    rows = list(made.predict(feed(FEATURES), predict_keys="output"))
    assert [set(row) for row in rows] == [{"output"}] * 12
    np.testing.assert_allclose([row["output"] for row in rows], walk(15) * X[:, 0], **FLOAT32)
    (batch,) = made.predict(feed(FEATURES), yield_single_examples=False)
    assert batch["output"].shape == (12,)
    assert set(batch["tag"]) == {b"m"}

    (tmp_path / "words.txt").write_text("word")
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.constant(X)})
    folder = made.export_saved_model(
        str(tmp_path / "export"), receiver, assets_extra={"more/words.txt": str(tmp_path / "words.txt")}, as_text=True
    ).decode()
    assert os.path.exists(os.path.join(folder, "saved_model.pbtxt"))
    assert os.path.exists(os.path.join(folder, "assets.extra", "more", "words.txt"))
    served = tf.saved_model.load(folder).signatures["serving_default"](x=tf.constant(X))
    np.testing.assert_allclose(served["doubled"], 2 * walk(15) * X[:, 0], **FLOAT32)


@both("Estimator")
@pytest.mark.parametrize("api", APIS)
def test_what_an_estimator_refuses(tmp_path, api):
    made = estimator(tmp_path, api)
    input_fn = feed(FEATURES, Y, repeat=True)
    for options, message in (
        ({"steps": 1, "max_steps": 1}, "both steps and max_steps"),
        ({"steps": 0}, "steps > 0"),
        ({"max_steps": 0}, "max_steps > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            made.train(input_fn, **options)
    # No key matches: the error names the keys of the model and the requested one.
    with pytest.raises(ValueError, match=r"at least one output from .*'output'.*'tag'.*, provided \['outputs'\]"):
        next(made.predict(feed(FEATURES), predict_keys=["outputs"]))
    with pytest.raises(ValueError, match="find trained model"):
        made.get_variable_value("weight")
    with pytest.raises(ValueError, match="model_fn"):
        APIS[api].Estimator(model_fn=None)
    with pytest.raises(ValueError, match="must include features argument"):
        APIS[api].Estimator(model_fn=lambda labels, mode: None)
    with pytest.raises(ValueError, match="does not include params argument"):
        APIS[api].Estimator(model_fn=lambda features, labels, mode: None, params={"a": 1})
    with pytest.raises(ValueError, match="config must be an instance"):
        APIS[api].Estimator(model_fn, config=7)
    with pytest.raises(ValueError, match="model_dir"):
        APIS[api].Estimator(model_fn, model_dir="other", config=config(tmp_path))


@both("ModeKeys")
def test_mode_keys():
    for api in APIS.values():
        modes = api.ModeKeys
        assert (modes.TRAIN, modes.EVAL, modes.PREDICT) == ("train", "eval", "infer")


@both("EstimatorSpec")
@pytest.mark.parametrize(
    "mode, given, kind, message",
    [
        ("train", {"loss": True}, ValueError, "Missing train_op"),
        ("train", {"train_op": True}, ValueError, "Missing loss"),
        ("eval", {}, ValueError, "Missing loss"),
        ("infer", {}, ValueError, "Missing predictions"),
        ("train", {"loss": "vector", "train_op": True}, ValueError, "Loss must be scalar"),
        ("eval", {"loss": True, "eval_metric_ops": {"a": 1}}, TypeError, "must be"),
        ("eval", {"loss": True, "training_hooks": [1]}, TypeError, "SessionRunHook"),
        ("infer", {"predictions": {"a": True}, "export_outputs": {"a": 1}}, TypeError, "ExportOutput"),
        ("infer", {"predictions": {"a": 7}}, TypeError, "must be"),
        ("train", {"loss": True, "train_op": 7}, TypeError, "must be Operation or Tensor"),
    ],
)
def test_what_a_specification_refuses(mode, given, kind, message):
    with tf.Graph().as_default():
        tensors = {True: tf.constant(1.0), "vector": tf.constant([1.0, 2.0])}
        options = {k: tensors.get(v, v) if isinstance(v, (bool, str)) else v for k, v in given.items()}
        if given.get("predictions", {}).get("a") is True:
            options["predictions"] = {"a": tf.constant(1.0)}
        for api in APIS.values():
            with pytest.raises(kind, match=message):
                api.EstimatorSpec(mode, **options)


@both("EstimatorSpec")
def test_specification_fills_in():
    """A scalar in a vector of one is taken as the loss; one prediction is exported by itself; modes do not change."""
    with tf.Graph().as_default():
        spec = tf.estimator.EstimatorSpec("eval", loss=tf.constant([1.5]))
        assert spec.loss.shape.rank == 0
        spec = tf.estimator.EstimatorSpec("infer", predictions={"a": tf.constant([1.0])})
        assert set(spec.export_outputs) == {"serving_default"}
        assert isinstance(spec.export_outputs["serving_default"], tf.estimator.export.PredictOutput)
        with pytest.raises(ValueError, match="cannot be changed"):
            spec._replace(mode="eval")


@both("RunConfig")
@pytest.mark.parametrize("api", APIS)
def test_run_config(api, monkeypatch):
    """Defaults, what replace() changes and keeps, and what is refused."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    first = APIS[api].RunConfig(model_dir="a", save_checkpoints_steps=7)
    assert (first.save_checkpoints_steps, first.save_checkpoints_secs, first.keep_checkpoint_max) == (7, None, 5)
    assert (first.is_chief, first.num_worker_replicas, first.task_id, first.master) == (True, 1, 0, "")
    second = first.replace(model_dir="b", save_checkpoints_secs=60, tf_random_seed=3)
    assert (second.model_dir, second.save_checkpoints_secs, second.tf_random_seed) == ("b", 60, 3)
    assert second.save_checkpoints_steps is None  # one of the two: the last one given
    assert (first.model_dir, first.save_checkpoints_steps) == ("a", 7)
    assert second.replace(keep_checkpoint_max=9).tf_random_seed == 3
    for refused, message in (
        ({"save_checkpoints_steps": 1, "save_checkpoints_secs": 1}, "cannot be both set"),
        ({"save_checkpoints_steps": -1}, "should be >= 0"),
        ({"model_dir": ""}, "non-empty"),
        ({"save_summary_steps": -1}, "should be >= 0"),
        ({"session_config": 1}, "ConfigProto"),
    ):
        with pytest.raises(ValueError, match=message):
            APIS[api].RunConfig(**refused)
    with pytest.raises(ValueError, match="Replacing master"):
        first.replace(master="grpc://elsewhere")


@both("TrainSpec", "EvalSpec")
@pytest.mark.parametrize("api", APIS)
def test_train_and_eval_specs(api):
    """What they hold by default, and what they refuse."""
    api = APIS[api]
    train = api.TrainSpec(feed(FEATURES, Y), max_steps=5)
    assert (train.max_steps, train.hooks) == (5, ())
    evaluate = api.EvalSpec(feed(FEATURES, Y))
    assert (evaluate.steps, evaluate.name, evaluate.start_delay_secs, evaluate.throttle_secs) == (100, None, 120, 600)
    last = api.FinalExporter("last", lambda: None)
    assert list(api.EvalSpec(feed(FEATURES, Y), exporters=last).exporters) == [last]
    for make, kind, message in (
        (lambda: api.TrainSpec(1), TypeError, "`input_fn` must be callable"),
        (lambda: api.TrainSpec(feed(FEATURES), max_steps=0), ValueError, "max_steps > 0"),
        (lambda: api.TrainSpec(feed(FEATURES), hooks=[1]), TypeError, "SessionRunHook"),
        (lambda: api.EvalSpec(feed(FEATURES), steps=0), ValueError, "steps > 0"),
        (lambda: api.EvalSpec(feed(FEATURES), name=1), TypeError, "`name` must be string"),
        (lambda: api.EvalSpec(feed(FEATURES), throttle_secs=-1), ValueError, "throttle_secs >= 0"),
        (lambda: api.EvalSpec(feed(FEATURES), start_delay_secs=-1), ValueError, "start_delay_secs >= 0"),
        (lambda: api.EvalSpec(feed(FEATURES), exporters=[last, last]), ValueError, "must be unique|unique"),
        (lambda: api.EvalSpec(feed(FEATURES), exporters=1), TypeError, "must be an Exporter"),
    ):
        with pytest.raises(kind, match=message):
            make()
