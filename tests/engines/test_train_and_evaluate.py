"""The Estimator engine in a single process: how training ends, what is evaluated and exported, how it resumes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import estimator_pipeline as ep
import model_fns
from estimator_pipeline import inputs
from estimator_pipeline.engines.core import result as results
from estimator_pipeline.engines.core.options import options_of
from estimator_pipeline.engines.estimator import exporters as exporting
from estimator_pipeline.engines.jobs.run import run_job
from estimator_pipeline.errors import ConfigError
from estimator_pipeline.job import load_job
from tests.support.processes import tensorflow_with_three_cpus

tf = tensorflow_with_three_cpus()
RNG = np.random.default_rng(3)
FEATURES = RNG.random((60, 8, 8, 1), dtype=np.float32)
LABELS = (FEATURES.mean(axis=(1, 2, 3)) * 10).astype(np.int64)
ALONE: dict[str, str] = {}


def data(**options):
    options = {"global_batch_size": 12, "seed": 4, **options}
    return inputs.from_arrays(train=(FEATURES, LABELS), eval=(FEATURES[:25], LABELS[:25]), **options)


def estimator(model_dir, *, model="linear", **config):
    config = {"save_checkpoints_steps": 5, "seed": 1, **config}
    run = ep.build_run_config(model_dir, environ=dict(ALONE), **config)
    return tf.estimator.Estimator(model_fns.model_fn(model, optimizer={"name": "sgd"}), config=run)


def run(model_dir, *, max_steps=10, hooks=(), source=None, exporters=None, throttle=600, config=None, **options):
    source = source or data()
    return ep.train_and_evaluate(
        estimator(model_dir, **(config or {})),
        tf.estimator.TrainSpec(source.train_input_fn, max_steps=max_steps, hooks=list(hooks)),
        tf.estimator.EvalSpec(source.eval_input_fn, steps=None, exporters=exporters, throttle_secs=throttle),
        environ=dict(ALONE),
        **options,
    )


def test_e6_result(tmp_path):
    outcome = run(tmp_path)
    assert outcome.global_step == 10
    assert outcome.ended == results.REACHED
    assert [e.global_step for e in outcome.evaluations] == [5, 10], "each checkpoint, and the final one once"
    assert outcome.metrics == outcome.evaluations[-1].metrics
    assert outcome.metrics["global_step"] == 10
    assert outcome.tasks == {"worker:0": results.TaskReport(steps=10, records=120)}
    assert outcome.evaluated_by == "worker:0" and outcome.model_dir == str(tmp_path)
    assert outcome.checkpoint == str(tmp_path / "model.ckpt-10")
    stored = json.loads((tmp_path / "estimator_pipeline" / "result.json").read_text())
    assert results.TrainResult.from_dict(stored["result"], task="worker:0") == outcome
    assert "step 10 (max_steps reached): accuracy" in str(outcome)


def test_options_are_an_object_or_keywords(tmp_path):
    options = ep.TrainOptions(evaluate_during_training=False, result_timeout=7.0)
    assert [e.global_step for e in run(tmp_path / "object", options=options).evaluations] == [10]
    outcome = run(tmp_path / "both", options=options, evaluate_during_training=True)
    assert [e.global_step for e in outcome.evaluations] == [5, 10], "a keyword replaces the option of the object"
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'evaluate_in_training'; did you mean"):
        run(tmp_path / "wrong", evaluate_in_training=True)
    assert not (tmp_path / "wrong" / "checkpoint").exists()


def test_options_of_a_call():
    environ = {"ESTIMATOR_PIPELINE_START_SECS": "5"}
    assert options_of(None, {}, environ=environ).startup_timeout == 5.0
    assert options_of(None, {"startup_timeout": None}, environ=environ).startup_timeout == 5.0
    options = ep.TrainOptions(startup_timeout=3.0)
    assert options_of(options, {}, environ=environ) == options
    assert options_of(options, {"startup_timeout": 4.0}, environ=environ).startup_timeout == 4.0
    assert ep.TrainOptions(startup_timeout=3.0, ledger="a") == options_of(options, {"ledger": "a"}, environ=environ)
    with pytest.raises(ConfigError, match="steps_per_execution is 0"):
        ep.TrainOptions(steps_per_execution=0)


def test_evaluation_reads_every_record_once(tmp_path):
    """25 records in batches of 12: the metrics are those of all 25, computed by hand."""
    outcome = run(tmp_path)
    model = model_fns.keras_model("linear")
    reader = tf.train.load_checkpoint(outcome.checkpoint)
    model.set_weights([reader.get_tensor("dense/kernel"), reader.get_tensor("dense/bias")])
    right = np.argmax(model(FEATURES[:25]).numpy(), axis=1) == LABELS[:25]
    assert outcome.metrics["accuracy"] == pytest.approx(right.mean(), rel=1e-6)


def test_data_at_an_end(tmp_path):
    outcome = run(tmp_path, max_steps=None, source=data(epochs=1))
    assert outcome.ended == results.DATA_ENDED
    assert outcome.global_step == 5
    assert outcome.evaluations[-1].global_step == 5


def test_a_hook_stops_training(tmp_path):
    class Stop(tf.estimator.SessionRunHook):
        count = 0

        def after_run(self, run_context, run_values):
            self.count += 1
            if self.count == 7:
                run_context.request_stop()

    outcome = run(tmp_path, max_steps=50, hooks=[Stop()])
    assert (outcome.ended, outcome.global_step) == (results.STOPPED, 7)
    assert [e.global_step for e in outcome.evaluations] == [5, 7], "the last checkpoint is evaluated all the same"


def test_resume_goes_on_from_the_checkpoint_and_the_record(tmp_path):
    """10 steps and then 10 more end where 20 steps end, bit by bit: the data goes on at the exact record."""
    whole = run(tmp_path / "whole", max_steps=20)
    first = run(tmp_path / "parts", max_steps=10)
    second = run(tmp_path / "parts", max_steps=20)
    assert (first.global_step, second.global_step) == (10, 20)
    assert second.tasks["worker:0"].steps == 10
    assert [e.global_step for e in second.evaluations] == [15, 20]
    readers = [tf.train.load_checkpoint(r.checkpoint) for r in (whole, second)]
    for name in readers[0].get_variable_to_shape_map():
        np.testing.assert_array_equal(readers[0].get_tensor(name), readers[1].get_tensor(name), err_msg=name)


def test_a_finished_job_gives_its_result_again(tmp_path):
    first = run(tmp_path)
    again = run(tmp_path)
    assert again.metrics == first.metrics and again.global_step == 10
    assert again.tasks["worker:0"].steps == 0


def exporters():
    receiver = exporting.serving_receiver(data().features_spec, single=True)
    return [
        tf.estimator.FinalExporter("final", receiver),
        tf.estimator.LatestExporter("latest", receiver, exports_to_keep=None),
        tf.estimator.BestExporter("best", receiver),
    ]


@pytest.mark.gate("None")
@pytest.mark.parametrize("stop_at", [None, 10])
def test_exports(tmp_path, stop_at):
    """The final exporter exports once, for the last checkpoint, also where a hook ended training there."""

    class Stop(tf.estimator.SessionRunHook):
        steps = 0

        def after_run(self, run_context, run_values):
            self.steps += 1
            if self.steps == stop_at:
                run_context.request_stop()

    outcome = run(tmp_path, max_steps=50 if stop_at else 10, hooks=[Stop()], exporters=exporters())
    by_kind = {kind: [p for p in outcome.exports if f"/export/{kind}/" in p] for kind in ("final", "latest", "best")}
    assert len(by_kind["final"]) == 1
    assert len(by_kind["latest"]) == 2, "one for each evaluated checkpoint"
    assert len(by_kind["best"]) >= 1
    loaded = tf.saved_model.load(by_kind["final"][0])
    answer = loaded.signatures["serving_default"](tf.constant(FEATURES[:3]))
    assert answer["probabilities"].shape == (3, 10)
    reader = tf.train.load_checkpoint(outcome.checkpoint)
    logits = FEATURES[:3].reshape(3, -1) @ reader.get_tensor("dense/kernel") + reader.get_tensor("dense/bias")
    np.testing.assert_allclose(answer["logits"].numpy(), logits, rtol=1e-4, atol=1e-5)


def test_an_explicit_throttle_is_kept_to_but_not_for_the_last(tmp_path):
    outcome = run(tmp_path, max_steps=20, throttle=3600)
    assert [e.global_step for e in outcome.evaluations] == [5, 20]


def test_no_evaluation_during_training_when_not_asked_for(tmp_path):
    outcome = run(tmp_path, evaluate_during_training=False)
    assert [e.global_step for e in outcome.evaluations] == [10]


@pytest.mark.gate("none-mirrored")
@pytest.mark.parametrize("eval_distribute", ["none", "mirrored"])
@pytest.mark.parametrize("train_distribute", ["none", "mirrored"])
def test_e5_distribute_training_evaluation_or_both(tmp_path, train_distribute, eval_distribute):
    """All four give the same model and the same metrics: 25 records over 2 devices, each once."""
    config = {
        "train_distribute": train_distribute,
        "eval_distribute": eval_distribute,
        "num_devices": 2 if "mirrored" in (train_distribute, eval_distribute) else None,
    }
    outcome = run(tmp_path, config=config)
    alone = run(tmp_path / "alone")
    assert outcome.metrics["accuracy"] == pytest.approx(alone.metrics["accuracy"], abs=1e-6)
    assert outcome.metrics["average_loss"] == pytest.approx(alone.metrics["average_loss"], rel=1e-4)
    assert outcome.tasks["worker:0"].records == 120


def test_m1_mirrored_batchnorm(tmp_path):
    config = {"model": "resnet", "train_distribute": "mirrored", "num_devices": 2}
    outcome = run(tmp_path, config=config, evaluate_during_training=False)
    assert outcome.global_step == 10


def test_progress_is_told(tmp_path):
    path = tmp_path / "progress.jsonl"
    source = data()
    ep.train_and_evaluate(
        estimator(tmp_path / "model"),
        tf.estimator.TrainSpec(source.train_input_fn, max_steps=10),
        tf.estimator.EvalSpec(source.eval_input_fn, steps=None),
        environ={"ESTIMATOR_PIPELINE_PROGRESS": str(path)},
    )
    events = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [e["event"] for e in events]
    assert kinds[0] == "start" and kinds[-1] == "result"
    assert [e["step"] for e in events if e["event"] == "evaluation"] == [5, 10]
    assert [e["step"] for e in events if e["event"] == "step"][-1] == 10


def test_failure_is_written_down_for_the_other_tasks(tmp_path):
    class Fail(tf.estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            raise ArithmeticError("planted")

    with pytest.raises(ArithmeticError, match="planted"):
        run(tmp_path, hooks=[Fail()])
    training = json.loads((tmp_path / "estimator_pipeline" / "training.json").read_text())
    assert training["state"] == "failed" and "planted" in training["error"]


CLUSTER = json.dumps({"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}})


def test_workers_without_a_strategy_are_refused(tmp_path):
    source = data()
    with pytest.raises(ConfigError, match="each would train a separate model") as error:
        ep.train_and_evaluate(
            estimator(tmp_path),
            tf.estimator.TrainSpec(source.train_input_fn, max_steps=10),
            tf.estimator.EvalSpec(source.eval_input_fn),
            environ={"TF_CONFIG": CLUSTER},
        )
    assert "train_distribute='multi_worker_mirrored'" in str(error.value)


@pytest.mark.parametrize("wrong", ["estimator", "train_spec", "eval_spec"])
def test_wrong_arguments(tmp_path, wrong):
    source = data()
    arguments = {
        "estimator": estimator(tmp_path),
        "train_spec": tf.estimator.TrainSpec(source.train_input_fn, max_steps=1),
        "eval_spec": tf.estimator.EvalSpec(source.eval_input_fn),
    }
    arguments[wrong] = "text"
    with pytest.raises(ConfigError, match=f"{wrong} is a str"):
        ep.train_and_evaluate(*arguments.values(), environ=dict(ALONE))


def test_classification_takes_examples_and_prediction_tensors_by_name(tmp_path):
    """TensorFlow Serving requires examples for `classify`; the clients of `predict` do not change with it."""

    def model_fn(features, labels, mode, params):
        return model_fns.model_fn("linear")(features, labels, mode, params)

    receiver = exporting.serving_receiver(data().features_spec, single=True, examples=data().parse_examples)
    estimator = tf.estimator.Estimator(exporting.with_examples(model_fn), str(tmp_path / "model"), params={})
    estimator.train(data().train_input_fn, max_steps=1)
    served = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "export"), receiver)).signatures
    inputs = {key: sorted(function.structured_input_signature[1].items()) for key, function in served.items()}
    by_name = [("features", tf.TensorSpec([None, 8, 8, 1], tf.float32, name="features"))]
    assert inputs == {
        "serving_default": by_name,
        "predict": by_name,
        "classification": [("inputs", tf.TensorSpec([None], tf.string, name="inputs"))],
    }
    example = tf.train.Example()
    example.features.feature["features"].float_list.value.extend(FEATURES[0].ravel().tolist())
    answer = served["classification"](tf.constant([example.SerializeToString()]))
    raw = served["predict"](tf.constant(FEATURES[:1]))
    np.testing.assert_array_equal(answer["scores"].numpy(), raw["probabilities"].numpy())
    kernel, bias = (estimator.get_variable_value(f"dense/{name}") for name in ("kernel", "bias"))
    np.testing.assert_allclose(raw["logits"].numpy(), FEATURES[:1].reshape(1, -1) @ kernel + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_a_job_with_an_evaluator_is_whole_in_one_process(engine, tmp_path, logged):
    """Nobody else evaluates: it waited, without a word, for an evaluator that nobody had started."""
    changes = [f"run.model_dir={tmp_path}", f"run.engine={engine}", "model.name=linear", "train.max_steps=4"]
    job = load_job("legacy_configs/digits_cnn_two_workers.yaml", overrides=[*changes, "run.save_checkpoints_steps=2"])
    outcome = run_job(job, environ={})
    assert [each.global_step for each in outcome.evaluations] == [2, 4] and outcome.evaluated_by == "worker:0"
    assert "There is no TF_CONFIG, so this process runs the whole job" in logged.text


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["estimator", "keras"])
def test_the_threads_of_a_job_file_are_those_of_the_process(engine, tmp_path, run_python):
    """TensorFlow makes its pool with the first device; what a session asks for later had no effect."""
    program = """
import glob, sys
import estimator_pipeline as ep
from estimator_pipeline.engines.jobs.run import run_job
changes = ["model.name=linear", "train.max_steps=2", *sys.argv[1:]]
run_job(load_job("legacy_configs/single.yaml", overrides=changes), environ={})
print(sum(open(name).read().startswith("python") for name in glob.glob("/proc/self/task/*/comm")))
"""
    found = []
    for threads in (1, 4):
        changes = [f"run.engine={engine}", f"run.model_dir={tmp_path / str(threads)}"]
        done = run_python(["-c", program, *changes, f"run.threads={{intra_op: {threads}, inter_op: 2}}"])
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(int(done.stdout.split()[-1]))
    # Without an effect there were as many, but for one that happens to live.
    assert found[1] - found[0] >= 2
