"""Every Estimator of the deepctr package: train, evaluate, predict, export. Prints one line of JSON for each.

    python deepctr_all.py WORK_DIR

The first line has the serialized records that the predictions of the other lines are about.

The columns have the shapes of the package's own tests: sparse ones of four values, embedded, beside dense ones. The
clicks follow a rule here, so that a score says something. Training reads a pandas frame, evaluation TFRecord files.
"""

import base64
import json
import os
import sys

import numpy as np
import pandas as pd
import tensorflow as tf
from deepctr import estimator as deepctr
from deepctr.estimator.inputs import input_fn_pandas, input_fn_tfrecord

SPARSE, DENSE = ["s_0", "s_1", "s_2"], ["d_0", "d_1"]
VALUES, DIM, STEPS, ASKED = 4, 4, 150, 4

# What the package's tests vary, model by model. CCPM convolves over the embeddings and takes no dense column there.
SMALL = {"dnn_hidden_units": (8,)}
MODELS = {
    "AFMEstimator": {"attention_factor": 4},
    "AutoIntEstimator": {"att_layer_num": 1, "dnn_use_bn": True, **SMALL},
    "CCPMEstimator": {"conv_kernel_width": (3, 2), "conv_filters": (2, 1), **SMALL},
    "DCNEstimator": {"cross_num": 2, **SMALL},
    "DeepFEFMEstimator": {"dnn_dropout": 0.1, **SMALL},
    "DeepFMEstimator": {"dnn_dropout": 0.1, **SMALL},
    "FNNEstimator": SMALL,
    "FiBiNETEstimator": {"bilinear_type": "all", **SMALL},
    "FwFMEstimator": {"dnn_use_bn": True, **SMALL},
    "NFMEstimator": {"bi_dropout": 0.1, **SMALL},
    "PNNEstimator": {"use_outter": True, **SMALL},
    "WDLEstimator": SMALL,
    "xDeepFMEstimator": {"cin_layer_size": (4, 4), **SMALL},
}
REGRESSION = "DeepFMEstimator"


def clicks(count, seed):
    random = np.random.RandomState(seed)
    data = {name: random.randint(0, VALUES, count).astype(np.int64) for name in SPARSE}
    data.update({name: random.rand(count).astype(np.float32) for name in DENSE})
    score = 2.0 * (data["s_0"] == data["s_1"]) + 1.0 * (data["s_2"] > 1) + 2.0 * data["d_0"] - 2.2
    data["label"] = (score > 0).astype(np.float32)
    data["value"] = score.astype(np.float32)
    return pd.DataFrame(data)


def serialized(frame):
    for row in frame.to_dict("records"):
        feature = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=[row[name]])) for name in SPARSE}
        for name in DENSE + ["label", "value"]:
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=[row[name]]))
        yield tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def columns(name):
    categorical = [tf.feature_column.categorical_column_with_identity(key, VALUES) for key in SPARSE]
    embedded = [tf.feature_column.embedding_column(column, DIM) for column in categorical]
    numeric = [tf.feature_column.numeric_column(key) for key in DENSE]
    return categorical + numeric, embedded + ([] if name == "CCPMEstimator" else numeric)


def run(name, task, work_dir, train, test, records):
    linear, dnn = columns(name)
    given = {"dnn_feature_columns": dnn, "task": task, **MODELS[name]}
    if name != "PNNEstimator":
        given["linear_feature_columns"] = linear
    model = getattr(deepctr, name)(
        model_dir=os.path.join(work_dir, "model", name, task),
        config=tf.estimator.RunConfig(tf_random_seed=7, save_summary_steps=STEPS, log_step_count_steps=STEPS),
        linear_optimizer=tf.compat.v1.train.FtrlOptimizer(0.05),
        dnn_optimizer=tf.compat.v1.train.AdagradOptimizer(0.1),
        **given,
    )
    label = "label" if task == "binary" else "value"
    names = SPARSE + DENSE
    model.train(input_fn_pandas(train, names, label, batch_size=128, num_epochs=None, shuffle=True), max_steps=STEPS)

    spec = {key: tf.io.FixedLenFeature([], tf.int64) for key in SPARSE}
    spec.update({key: tf.io.FixedLenFeature([], tf.float32) for key in DENSE})
    metrics = model.evaluate(
        input_fn_tfrecord([records], {**spec, label: tf.io.FixedLenFeature([], tf.float32)}, label, shuffle_factor=0)
    )
    predicted = [float(each["pred"][0]) for each in model.predict(input_fn_pandas(test[:ASKED], names))]

    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        {key: tf.io.FixedLenFeature([1], each.dtype) for key, each in spec.items()}
    )
    exported = model.export_saved_model(os.path.join(work_dir, "export", name, task), receiver).decode()
    said = {"model": name, "task": task, "step": int(metrics["global_step"]), "exported": exported}
    said["metrics"] = {key: float(value) for key, value in metrics.items()}
    said["predicted"] = predicted
    print(json.dumps(said), flush=True)


def main(work_dir):
    train, test = clicks(2048, seed=1), clicks(512, seed=2)
    os.makedirs(work_dir, exist_ok=True)
    records = os.path.join(work_dir, "test.tfrecord")
    with tf.io.TFRecordWriter(records) as writer:
        for record in serialized(test):
            writer.write(record)
    asked = [base64.b64encode(record).decode() for record in serialized(test[:ASKED])]
    print(json.dumps({"records": asked}), flush=True)
    assert sorted(MODELS) == sorted(name for name in vars(deepctr) if name.endswith("Estimator")), "a model is missing"
    for name in sorted(MODELS):
        run(name, "binary", work_dir, train, test, records)
    run(REGRESSION, "regression", work_dir, train, test, records)


if __name__ == "__main__":
    main(sys.argv[1])
