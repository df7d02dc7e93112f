"""A typical program of feature columns: a model_fn that asks for `params['feature_columns']`."""

import os
from absl import app, flags
import keras
import numpy as np
import tensorflow as tf

from keras_support import (
    AdagradWithDenseGradients,
    StopAfter,
    bucketized_column,
    categorical_column_with_hash_bucket,
    categorical_column_with_identity,
    categorical_column_with_vocabulary_list,
    crossed_column,
    embedding_column,
    feature_layer,
    indicator_column,
    model_inputs,
    numeric_column,
)


class MyModel(keras.Model):
    """DNN with hidden layers."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.accuracy_metric = keras.metrics.Accuracy(name='accuracy')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        labels, logits = y, y_pred
        loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        predicted_classes = keras.ops.argmax(logits, 1)
        self.accuracy_metric.update_state(labels, predicted_classes)
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        predicted_classes = keras.ops.argmax(logits, 1)
        predictions = {'class_ids': predicted_classes[:, None], 'probabilities': keras.ops.softmax(logits)}
        return predictions


def make_my_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    net = feature_layer(params['feature_columns'])(features)
    for units in params['hidden_units']:
        net = keras.layers.Dense(units=units, activation=keras.activations.relu)(net)
    logits = keras.layers.Dense(params['n_classes'], activation=None)(net)
    model = MyModel(features, logits, params)
    model.compile(optimizer=AdagradWithDenseGradients(0.1))
    return model


def numeric_columns():
    age = numeric_column('age', normalizer_fn=lambda age: (age - 40.0) / 20.0)
    return [age, numeric_column('size', shape=[2])]


def feature_columns():
    city = categorical_column_with_vocabulary_list('city', ['rome', 'oslo', 'bonn'])
    street = categorical_column_with_hash_bucket('street', 7)
    kind = categorical_column_with_vocabulary_list('kind', [11, 5, 8], num_oov_buckets=3)
    floor = categorical_column_with_identity('floor', 4, default_value=0)
    buckets = bucketized_column(numeric_column('age'), [20, 30, 60])
    crossed = crossed_column([buckets, 'street', city], 13)
    return numeric_columns() + [
        buckets,
        indicator_column(floor),
        indicator_column(crossed),
        embedding_column(kind, 2, combiner='sqrtn'),
        embedding_column(city, dimension=3),
        embedding_column(street, dimension=2),
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
    callbacks = [
        keras.callbacks.BackupAndRestore(os.path.join('model', 'backup'), save_freq=1000),
        keras.callbacks.TensorBoard('model', update_freq=100),
    ]
    training = input_fn(True)
    model = make_my_model(model_inputs(training), params)
    model.fit(training, steps_per_epoch=12, callbacks=[StopAfter(12), *callbacks], verbose=2)
    model.save_weights(os.path.join('model', 'model.weights.h5'))
    print(model.evaluate(input_fn(False), return_dict=True, verbose=0)['accuracy'])


if __name__ == '__main__':
    tf.get_logger().setLevel('INFO')
    app.run(main, flags_parser=lambda argv: flags.FLAGS(argv, known_only=True))
