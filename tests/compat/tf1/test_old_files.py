"""Files of TensorFlow 1 under `exec --tf1`: checkpoints of both formats, graphs, exports, event files.

docs/guides/tf1.md says which files of public repositories, of TensorFlow 1.2 to 1.13, were read as well.
"""

from __future__ import annotations

import importlib.util
import json

import pytest

from tests.support.tasks_by_hand import EXEC, Tasks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tf_slim") is None, reason="no tf-slim")
NAMES = ["bert/LayerNorm/beta", "bert/LayerNorm/gamma", "bert/dense/bias", "bert/dense/kernel"]

_FILES = """
import json, os, sys
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

folder = sys.argv[1]


def old(graph_def):
    # Of TensorFlow 1.4, with variables by reference.
    graph_def.versions.producer, graph_def.versions.min_consumer = 24, 0
    assert any(node.op == "VariableV2" for node in graph_def.node)


with tf.Graph().as_default(), tf.Session() as session:
    x = tf.placeholder(tf.float32, [None], name="x")
    weight = tf.get_variable("weight", initializer=3.0)
    y = tf.multiply(x, weight, name="y")
    saver = tf.train.Saver()
    session.run(tf.global_variables_initializer())
    saver.save(session, folder + "/model.ckpt")
    builder = tf.saved_model.builder.SavedModelBuilder(folder + "/export")
    signature = tf.saved_model.signature_def_utils.predict_signature_def({"x": x}, {"y": y})
    builder.add_meta_graph_and_variables(session, ["serve"], {"predict": signature})
    builder.save()
    writer = tf.summary.FileWriter(folder + "/events", session.graph)
    writer.add_summary(session.run(tf.summary.scalar("loss", 2.0)), 7)
    writer.close()

meta = tf.MetaGraphDef.FromString(open(folder + "/model.ckpt.meta", "rb").read())
old(meta.graph_def)
open(folder + "/model.ckpt.meta", "wb").write(meta.SerializeToString())
path = folder + "/export/saved_model.pb"
saved = saved_model_pb2.SavedModel.FromString(open(path, "rb").read())
saved.meta_graphs[0].meta_info_def.tensorflow_version = "1.4.1"
old(saved.meta_graphs[0].graph_def)
open(path, "wb").write(saved.SerializeToString())

found = {}
with tf.Session(graph=tf.Graph()) as session:
    tf.train.import_meta_graph(folder + "/model.ckpt.meta", clear_devices=True).restore(session, folder + "/model.ckpt")
    found["graph"] = session.run("y:0", {"x:0": [2.0]}).tolist()
    found["producer"] = session.graph.graph_def_versions.producer
with tf.Session(graph=tf.Graph()) as session:
    meta = tf.saved_model.loader.load(session, ["serve"], folder + "/export")
    found["export"] = [meta.meta_info_def.tensorflow_version, session.run("y:0", {"x:0": [2.0]}).tolist()]
predict = tf.contrib.predictor.from_saved_model(folder + "/export", signature_def_key="predict")
found["predictor"] = predict({"x": [2.0]})["y"].tolist()
events = [os.path.join(folder, "events", name) for name in os.listdir(folder + "/events")]
values = [value for path in events for event in tf.train.summary_iterator(path) for value in event.summary.value]
found["events"] = [[value.tag, value.simple_value] for value in values]
print(json.dumps(found))
"""


@pytest.mark.nightly
def test_graphs_exports_and_events(run_warm, tmp_path):
    (tmp_path / "files.py").write_text(_FILES)
    done = run_warm([*EXEC[1:], "--tf1", tmp_path / "files.py", tmp_path], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "graph": [6.0],
        "producer": 24,
        "export": ["1.4.1", [6.0]],
        "predictor": [6.0],
        "events": [["loss", 2.0]],
    }


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["map", "warm"])
@pytest.mark.parametrize("cluster", ["none", "mirrored", "workers", "ps"])
def test_half_a_model_from_a_checkpoint(run_warm, programs, tmp_path, way, cluster):
    """By `init_from_checkpoint` and an assignment map, and by WarmStartSettings, from a file of the first format; under
    the strategies of contrib.distribute."""
    checkpoint = tmp_path / "old.ckpt"
    command = [*EXEC, "--tf1", programs / "tf1/warm_start.py", tmp_path / "model", checkpoint]
    done = run_warm([*command[1:], "write"], cwd=tmp_path)
    assert done.returncode == 0 and checkpoint.is_file(), done.stderr[-4000:]
    jobs = {"workers": {"worker": 2}, "ps": {"chief": 1, "worker": 1, "ps": 1}}.get(cluster)
    env = {} if jobs else {"TF_CONFIG": "{}"}
    with Tasks(jobs or {"chief": 1}, [*command, way, cluster], tmp_path, env=env) as running:
        assert set(running.wait().values()) == {0}, running.tails()
        for name in running.processes:
            found = [json.loads(line) for line in running.log(name).splitlines() if line.startswith("{")]
            assert found == [{"names": NAMES, "same": True, "trained": True}]
