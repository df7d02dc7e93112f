"""A typical program of feature columns: a model_fn that asks for `params['feature_columns']`."""

import numpy as np
import tensorflow as tf


def my_model(features, labels, mode, params):
    """DNN with hidden layers."""
    net = tf.feature_column.input_layer(features, params['feature_columns'])
    for units in params['hidden_units']:
        net = tf.layers.dense(net, units=units, activation=tf.nn.relu)
    logits = tf.layers.dense(net, params['n_classes'], activation=None)
    predicted_classes = tf.argmax(logits, 1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {'class_ids': predicted_classes[:, tf.newaxis], 'probabilities': tf.nn.softmax(logits)}
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    accuracy = tf.metrics.accuracy(labels=labels, predictions=predicted_classes, name='acc_op')
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={'accuracy': accuracy})
    optimizer = tf.train.AdagradOptimizer(learning_rate=0.1)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def numeric_columns():
    age = tf.feature_column.numeric_column('age', normalizer_fn=lambda age: (age - 40.0) / 20.0)
    return [age, tf.feature_column.numeric_column('size', shape=[2])]


def feature_columns():
    city = tf.feature_column.categorical_column_with_vocabulary_list('city', ['rome', 'oslo', 'bonn'])
    street = tf.feature_column.categorical_column_with_hash_bucket('street', 7)
    kind = tf.feature_column.categorical_column_with_vocabulary_list('kind', [11, 5, 8], num_oov_buckets=3)
    floor = tf.feature_column.categorical_column_with_identity('floor', 4, default_value=0)
    buckets = tf.feature_column.bucketized_column(tf.feature_column.numeric_column('age'), [20, 30, 60])
    crossed = tf.feature_column.crossed_column([buckets, 'street', city], 13)
    return numeric_columns() + [
        buckets,
        tf.feature_column.indicator_column(floor),
        tf.feature_column.indicator_column(crossed),
        tf.feature_column.embedding_column(kind, 2, combiner='sqrtn'),
        tf.feature_column.embedding_column(city, dimension=3),
        tf.feature_column.embedding_column(street, dimension=2),
    ]


def arrays():
    random = np.random.RandomState(0)
    features = {
        'age': random.randint(15, 70, 64).astype('float32'),
        'size': random.rand(64, 2),
        'city': random.choice(['oslo', 'bonn', 'rome', 'lima', ''], [64, 2]),
        'street': random.choice(['a', 'b', 'c', 'd'], 64),
        'kind': random.randint(-1, 14, [64, 3]),
        'floor': random.randint(0, 6, 64),
    }
    return features, random.randint(0, 3, 64)


def input_fn(training):
    dataset = tf.data.Dataset.from_tensor_slices(arrays())
    if training:
        dataset = dataset.repeat()
    return dataset.batch(20)


def main(argv):
    params = {'feature_columns': feature_columns(), 'hidden_units': [10, 10], 'n_classes': 3}
    classifier = tf.estimator.Estimator(model_fn=my_model, model_dir='model', params=params)
    classifier.train(input_fn=lambda: input_fn(True), steps=12)
    print(classifier.evaluate(input_fn=lambda: input_fn(False))['accuracy'])


if __name__ == '__main__':
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.app.run(main)
