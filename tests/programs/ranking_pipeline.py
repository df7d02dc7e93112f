"""tensorflow-ranking's Estimators on generated search results. Prints one line of JSON for each.

    python ranking_pipeline.py WORK_DIR

The data are TFRecord files in the package's own format, ExampleListWithContext: a query with its kind, and some
documents with eight features and a grade from 0 to 4. What makes a document good depends on the kind of the query.
The first line has the NDCG of random orders of the same lists, and the serialized query that the canned Estimators'
predictions are about.
"""

import base64
import json
import os
import sys

import numpy as np
import tensorflow as tf
import tensorflow_ranking as tfr
from tensorflow_serving.apis import input_pb2

KINDS, FEATURES, LONGEST = 3, 8, 12
STEPS, EVAL_QUERIES = 150, 192
WEIGHTS = np.random.RandomState(0).randn(KINDS, FEATURES)


def lists(count, seed):
    """(kind, features [documents, 8], grades [documents]) of each query."""
    random = np.random.RandomState(seed)
    for _ in range(count):
        kind = random.randint(KINDS)
        features = random.randn(random.randint(6, LONGEST + 1), FEATURES).astype(np.float32)
        worth = features @ WEIGHTS[kind] + random.normal(0, 0.3, len(features))
        yield kind, features, np.digitize(worth, [-1.5, 0, 1.5, 3]).astype(int)


def serialized(count, seed):
    for kind, features, grades in lists(count, seed):
        query = input_pb2.ExampleListWithContext()
        query.context.features.feature["kind"].int64_list.value.append(kind)
        for document, grade in zip(features, grades):
            example = query.examples.add()
            example.features.feature["text_match"].float_list.value.extend(document)
            example.features.feature["relevance"].int64_list.value.append(grade)
        yield query.SerializeToString()


def write(path, count, seed):
    with tf.io.TFRecordWriter(path) as writer:
        for query in serialized(count, seed):
            writer.write(query)


def ndcg(orders, top=5):
    def gain(grades):
        return np.sum((2.0 ** grades[:top] - 1) / np.log2(np.arange(2, 2 + len(grades[:top]))))

    ratios = [gain(grades) / gain(np.sort(grades)[::-1]) for grades in orders if grades.max() > 0]
    return float(np.mean(ratios))


def context_columns():
    kind = tf.feature_column.categorical_column_with_identity("kind", KINDS)
    return {"kind": tf.feature_column.indicator_column(kind)}


def example_columns():
    return {"text_match": tf.feature_column.numeric_column("text_match", shape=(FEATURES,), default_value=0.0)}


def say(name, metrics, **more):
    metrics = {key: float(value) for key, value in metrics.items()}
    said = {"what": name, "ndcg": metrics["metric/ndcg_5"], "step": metrics["global_step"]}
    print(json.dumps({**said, **more}), flush=True)


def pipeline_of(estimator, work_dir, name):
    """The package's RankingPipeline: it makes the input functions, the specs and the exporters."""
    return tfr.ext.pipeline.RankingPipeline(
        context_columns(),
        example_columns(),
        dict(
            train_input_pattern=os.path.join(work_dir, "train-*"),
            eval_input_pattern=os.path.join(work_dir, "eval-*"),
            train_batch_size=32,
            eval_batch_size=32,
            checkpoint_secs=120,
            num_checkpoints=3,
            num_train_steps=STEPS,
            # The pipeline's evaluation data have no end.
            num_eval_steps=EVAL_QUERIES // 32,
            loss="approx_ndcg_loss",
            list_size=LONGEST,
            convert_labels_to_binary=False,
            model_dir=os.path.join(work_dir, name),
            listwise_inference=True,
        ),
        estimator=estimator,
        best_exporter_metric="metric/ndcg_5",
    )


def canned(name, make, work_dir, **given):
    estimator = make(
        example_columns(),
        context_feature_columns=context_columns(),
        optimizer=tf.compat.v1.train.AdagradOptimizer(0.3),
        loss="approx_ndcg_loss",
        model_dir=os.path.join(work_dir, name),
        listwise_inference=True,
        **given,
    )
    pipeline = pipeline_of(estimator, work_dir, name)
    pipeline.train_and_eval()
    metrics = estimator.evaluate(pipeline._make_input_fn(os.path.join(work_dir, "eval-*"), 32, LONGEST, False, 1))
    exported = {
        each: sorted(tf.io.gfile.glob(os.path.join(work_dir, name, "export", each, "*")))
        for each in ("latest_model", "best_model_by_metric")
    }
    scores = next(iter(estimator.predict(unlabelled(os.path.join(work_dir, "eval-00")))))
    say(name, metrics, exported=exported, predicted=np.asarray(scores).ravel().tolist())


def read(pattern, epochs, shuffle):
    specs = tf.feature_column.make_parse_example_spec(list(example_columns().values()))
    specs["relevance"] = tf.io.FixedLenFeature([1], tf.int64, default_value=[-1])
    return tfr.data.build_ranking_dataset(
        file_pattern=pattern,
        data_format=tfr.data.ELWC,
        batch_size=32,
        list_size=LONGEST,
        context_feature_spec=tf.feature_column.make_parse_example_spec(list(context_columns().values())),
        example_feature_spec=specs,
        num_epochs=epochs,
        shuffle=shuffle,
        shuffle_seed=3,
        size_feature_name="list_size",
    )


def unlabelled(pattern):
    def input_fn():
        return read(pattern, 1, False).map(lambda features: {k: features[k] for k in ("kind", "text_match")})

    return input_fn


def labelled(pattern, epochs, shuffle, keep=("kind", "text_match")):
    def input_fn():
        def split(features):
            grades = tf.cast(tf.squeeze(features["relevance"], 2), tf.float32)
            return {key: features[key] for key in keep}, grades

        return read(pattern, epochs, shuffle).map(split)

    return input_fn


def groupwise(work_dir):
    """A model that scores pairs of documents together, written with the package's parts."""

    def transform(features, mode):
        # The context arrives as [batch, ...] and the examples as [batch, list, ...].
        return tfr.feature.encode_listwise_features(
            {key: features[key] for key in ("kind", "text_match")},
            context_feature_columns=context_columns(),
            example_feature_columns=example_columns(),
            mode=mode,
            scope="transform",
        )

    def score(context, group, mode, params, config):
        parts = [tf.compat.v1.layers.flatten(context["kind"]), tf.compat.v1.layers.flatten(group["text_match"])]
        layer = tf.compat.v1.layers.dense(tf.concat(parts, 1), 32, activation=tf.nn.relu)
        return tf.compat.v1.layers.dense(layer, params["group"])

    optimizer = tf.compat.v1.train.AdagradOptimizer(0.2)
    head = tfr.head.create_ranking_head(
        loss_fn=tfr.losses.make_loss_fn(tfr.losses.RankingLossKey.SOFTMAX_LOSS),
        eval_metric_fns={
            "metric/ndcg_5": tfr.metrics.make_ranking_metric_fn(tfr.metrics.RankingMetricKey.NDCG, topn=5),
        },
        train_op_fn=lambda loss: optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step()),
    )
    params = {"group": 2}
    estimator = tf.estimator.Estimator(
        tfr.model.make_groupwise_ranking_fn(score, params["group"], ranking_head=head, transform_fn=transform),
        model_dir=os.path.join(work_dir, "groupwise"),
        params=params,
        config=tf.estimator.RunConfig(tf_random_seed=1),
    )
    estimator.train(labelled(os.path.join(work_dir, "train-*"), None, True), max_steps=STEPS)
    say("groupwise", estimator.evaluate(labelled(os.path.join(work_dir, "eval-*"), 1, False)))


def from_keras(work_dir):
    """The package's Keras network, trained as an Estimator."""
    network = tfr.keras.canned.DNNRankingNetwork(
        context_feature_columns=context_columns(),
        example_feature_columns=example_columns(),
        hidden_layer_dims=[32, 16],
        activation=tf.nn.relu,
        use_batch_norm=False,
        dropout=0.0,
    )
    model = tfr.keras.model.create_keras_model(
        network=network,
        loss=tfr.keras.losses.get(tfr.losses.RankingLossKey.SOFTMAX_LOSS),
        metrics={"metric/ndcg_5": tfr.keras.metrics.get(tfr.metrics.RankingMetricKey.NDCG, topn=5)},
        optimizer=tf.keras.optimizers.legacy.Adagrad(0.2),
        size_feature_name="list_size",
    )
    estimator = tfr.keras.estimator.model_to_estimator(
        model, os.path.join(work_dir, "keras"), tf.estimator.RunConfig(tf_random_seed=1)
    )
    keep = ("kind", "text_match", "list_size")
    estimator.train(labelled(os.path.join(work_dir, "train-*"), None, True, keep), max_steps=STEPS)
    say("keras", estimator.evaluate(labelled(os.path.join(work_dir, "eval-*"), 1, False, keep)))


def main(work_dir):
    os.makedirs(work_dir, exist_ok=True)
    tf.compat.v1.set_random_seed(1)
    for index in range(2):
        write(os.path.join(work_dir, "train-%02d" % index), 400, seed=index)
        write(os.path.join(work_dir, "eval-%02d" % index), EVAL_QUERIES // 2, seed=10 + index)
    held_out = [grades for index in range(2) for _, _, grades in lists(EVAL_QUERIES // 2, seed=10 + index)]
    random = np.random.RandomState(0)
    shuffled = [random.permutation(grades) for _ in range(20) for grades in held_out]
    query = base64.b64encode(next(serialized(1, seed=10))).decode()
    print(json.dumps({"what": "random", "ndcg": ndcg(shuffled), "records": [query]}), flush=True)

    canned("dnn", tfr.estimator.make_dnn_ranking_estimator, work_dir, hidden_units=[32, 16])
    gam = {"example_hidden_units": [8], "context_hidden_units": [8]}
    canned("gam", tfr.estimator.make_gam_ranking_estimator, work_dir, **gam)
    groupwise(work_dir)
    from_keras(work_dir)


if __name__ == "__main__":
    main(sys.argv[1])
