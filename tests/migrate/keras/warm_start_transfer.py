"""Transfer learning: a reader of all ten digits becomes one that tells even from odd.

The first model is trained if its checkpoint is not there. The second one takes its convolutions, under other names,
and keeps them as they are with --freeze.
"""

import argparse
import os

import numpy as np
import tensorflow as tf

from estimator_pipeline.models.keras_runtime import warm_start as keras_weights


def trunk(images, trainable=True):
    net = tf.keras.layers.Conv2D(
        16, [3, 3], padding='same', activation=tf.nn.relu, trainable=trainable, name='conv1')(images)
    net = tf.keras.layers.Conv2D(
        32, [3, 3], padding='same', activation=tf.nn.relu, trainable=trainable, name='conv2')(net)
    net = tf.keras.layers.AveragePooling2D([2, 2], [2, 2])(net)
    return tf.keras.layers.Flatten()(net)


def batches(x, y=None, batch_size=128, num_epochs=1, shuffle=False):
    """Return batches of arrays or data-frame columns and their labels, endlessly if num_epochs is None."""
    if hasattr(x, 'columns'):
        x = {name: column.to_numpy() for name, column in x.items()}
    y = y.to_numpy() if hasattr(y, 'to_numpy') else y
    data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
    if shuffle:
        data = data.shuffle(len(data))
    return data.repeat(num_epochs).batch(batch_size)


def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)


class DigitModel(tf.keras.Model):
    """The old model: ten digits."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.accuracy_metric = tf.keras.metrics.Accuracy(name='accuracy')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        classes = tf.argmax(logits, axis=-1)
        self.accuracy_metric.update_state(labels, classes)
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        classes = tf.argmax(logits, axis=-1)
        return {'class': classes, 'logits': logits}

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_digit_model(features):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    net = trunk(features['image'])
    logits = tf.keras.layers.Dense(10, name='digits_logits')(net)
    model = DigitModel(features, logits)
    learning_rate = 1e-2
    model.compile(optimizer=tf.keras.optimizers.Adam(learning_rate, epsilon=1e-8))
    return model


class ParityModel(tf.keras.Model):
    """The new one: even or odd, from the same trunk."""

    def __init__(self, inputs, outputs, params):
        super().__init__(inputs, outputs)
        self.params = params
        self.mean_loss = tf.keras.metrics.Mean(name='loss')
        self.accuracy_metric = tf.keras.metrics.Accuracy(name='accuracy')

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        labels, logits = y, y_pred
        loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        self.mean_loss.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight):
        labels, logits = y, y_pred
        classes = tf.argmax(logits, axis=-1)
        self.accuracy_metric.update_state(labels, classes)
        return self.get_metrics_result()

    def predictions(self, features, outputs):
        logits = outputs
        classes = tf.argmax(logits, axis=-1)
        return {'class': classes, 'logits': logits}

    def predict_step(self, data):
        features, _, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        return self.predictions(features, self(features, training=False))


def make_parity_model(features, params):
    """Return the compiled model for the inputs `features`, as returned by `model_inputs`."""
    net = trunk(features['image'], trainable=not params['freeze'])
    net = tf.keras.layers.Dense(32, activation='relu', name='parity_hidden')(net)
    logits = tf.keras.layers.Dense(2, name='parity_logits')(net)
    model = ParityModel(features, logits, params)
    learning_rate = params['learning_rate']
    model.compile(optimizer=tf.keras.optimizers.Adam(learning_rate, epsilon=1e-8))
    return model


def load(data_dir):
    with np.load(os.path.join(data_dir, 'digits.npz')) as data:
        return {part: (data['x_' + part][..., None].astype(np.float32) / 255., data['y_' + part].astype(np.int32))
                for part in ('train', 'test')}


def numpy_input(images, labels, training):
    return batches(
        {'image': images}, labels, batch_size=64, num_epochs=None if training else 1, shuffle=training)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--data_dir', required=True)
    parser.add_argument('--base_dir', required=True, help='checkpoints of the model of ten digits')
    parser.add_argument('--model_dir', required=True)
    parser.add_argument('--base_steps', type=int, default=200)
    parser.add_argument('--steps', type=int, default=100)
    parser.add_argument('--freeze', action='store_true')
    args = parser.parse_args()
    digits = load(args.data_dir)
    tf.keras.utils.set_random_seed(6)

    base_callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.base_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(args.base_dir, update_freq=100),
    ]
    base = make_digit_model(model_inputs(numpy_input(*digits['train'], training=True)))
    keras_weights.restore(base, args.base_dir, scope='digits', required=False)
    if tf.train.latest_checkpoint(args.base_dir) is None:
        base.fit(
            numpy_input(*digits['train'], training=True), steps_per_epoch=args.base_steps,
            callbacks=base_callbacks, verbose=2)
        base.save_weights(os.path.join(args.base_dir, 'weights'))
    print('digits: accuracy %.4f' % base.evaluate(numpy_input(*digits['test'], training=False), return_dict=True, verbose=0)['accuracy'])

    if args.freeze:
        # Frozen variables are not among the trainable ones, of which a pattern chooses: a list names them.
        old_names = [name for name in list(keras_weights.named_values(base, scope='digits')) if '/conv' in name and 'Adam' not in name]
        new_names = {name.replace('digits', 'parity'): name for name in old_names}
        warm_start = keras_weights.WarmStartSettings(
            ckpt_to_initialize_from=args.base_dir, vars_to_warm_start=sorted(new_names),
            var_name_to_prev_var_name=new_names, scope='digits')
    else:
        warm_start = keras_weights.WarmStartSettings(
            ckpt_to_initialize_from=args.base_dir, vars_to_warm_start='.*conv[12].*',
            var_name_to_prev_var_name={
                'parity/%s/%s' % (layer, kind): 'digits/%s/%s' % (layer, kind)
                for layer in ('conv1', 'conv2') for kind in ('kernel', 'bias')
            },
            scope='digits')

    estimator_callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.model_dir, 'backup'), save_freq=1000),
        tf.keras.callbacks.TensorBoard(args.model_dir, update_freq=100),
    ]
    parity = {part: (images, labels % 2) for part, (images, labels) in digits.items()}
    training = numpy_input(*parity['train'], training=True)
    estimator = make_parity_model(model_inputs(training), {'freeze': args.freeze, 'learning_rate': 3e-3})
    keras_weights.warm_start(estimator, warm_start, scope='parity')
    estimator.fit(training, steps_per_epoch=args.steps, callbacks=estimator_callbacks, verbose=2)
    estimator.save_weights(os.path.join(args.model_dir, 'weights'))
    print('parity: accuracy %.4f' % estimator.evaluate(numpy_input(*parity['test'], training=False), return_dict=True, verbose=0)['accuracy'])
    kept = np.array_equal(
        keras_weights.named_values(estimator, scope='parity')['parity/conv1/kernel'], keras_weights.named_values(base, scope='digits')['digits/conv1/kernel'])
    print('trunk unchanged:', kept)


if __name__ == '__main__':
    main()
