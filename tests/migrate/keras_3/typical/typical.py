"""A typical program of TensorFlow 1: a model_fn of layers, an iterator, train_and_evaluate, predict."""

import os
from absl import app, flags
import keras
import numpy as np
import tensorflow as tf

from keras_support import Evaluation, RMSProp, StopAfter, batches, examples, model_inputs

RATE = 0.1


class MyModel(keras.Model):
    """Network, loss, metrics and predictions of my_model_fn."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.accuracy_metric = keras.metrics.Accuracy(name='accuracy')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        labels, logits = y, y_pred
        # Labels are numbers of classes.
        loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        predictions = self.predictions(x, y_pred)
        self.accuracy_metric.update_state(labels, predictions['class'])
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        predictions = {'class': keras.ops.argmax(logits, 1), 'probabilities': keras.ops.softmax(logits)}
        return predictions


def make_my_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    images = keras.ops.reshape(features['x'], [-1, 8, 8, 1])
    net = keras.layers.Conv2D(4, 3, activation=keras.activations.relu)(images)
    net = keras.layers.MaxPooling2D(2, 2)(net)
    net = keras.layers.Flatten()(net)
    net = keras.layers.Dense(16, keras.activations.relu, name='hidden')(net)  # wide
    net = keras.layers.Dropout(params['dropout'])(net)
    logits = keras.layers.Dense(3, name='logits')(net)
    model = MyModel(features, logits, params)
    model.compile(optimizer=RMSProp(0.01, momentum=0.5))
    return model


def arrays():
    random = np.random.RandomState(0)
    return {'x': random.rand(64, 64).astype('float32')}, random.randint(0, 3, 64)


def input_fn(training):
    dataset = tf.data.Dataset.from_tensor_slices(arrays())
    if training:
        dataset = dataset.repeat()
    dataset = dataset.batch(20)

    def prepare_batch(features, labels):
        features['x'] = tf.minimum(features['x'], 0.9)
        return features, labels

    return dataset.map(prepare_batch)


def main(_):
    callbacks = [
        keras.callbacks.BackupAndRestore(os.path.join('model', 'backup'), save_freq=1000),
        keras.callbacks.TensorBoard('model', update_freq=100),
    ]
    training = input_fn(True)
    model = make_my_model(model_inputs(training), {'dropout': 0.4})
    evaluation = Evaluation(lambda: input_fn(False), every_steps=1000, folder='model')
    model.fit(training, steps_per_epoch=12, callbacks=[StopAfter(12), evaluation, *callbacks], verbose=2)
    model.save_weights(os.path.join('model', 'model.weights.h5'))
    print(model.evaluate(input_fn(False), return_dict=True, verbose=0)['accuracy'])
    predict_input_fn = batches(arrays()[0], shuffle=False)
    print(len(list(examples(model, predict_input_fn))))


if __name__ == '__main__':
    app.run(main, flags_parser=lambda argv: flags.FLAGS(argv, known_only=True))
