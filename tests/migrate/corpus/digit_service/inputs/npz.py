"""Input functions over a .npz file, and the receiver for serving."""

import numpy as np

from digit_service.tf_compat import tf


class NpzInputs:

    def __init__(self, path, batch_size):
        with np.load(path) as arrays:
            self._arrays = {name: arrays[name] for name in arrays.files}
        self.batch_size = batch_size

    def _make(self, part):
        images = self._arrays['x_' + part][..., np.newaxis].astype(np.float32) / 255
        return tf.data.Dataset.from_tensor_slices(({'image': images}, self._arrays['y_' + part]))

    def train(self):
        return self._make('train').shuffle(1500, seed=21).repeat().batch(self.batch_size)

    def evaluate(self):
        return self._make('test').batch(100)

    def serving_receiver_fn(self):
        image = tf.placeholder(tf.uint8, [None, 8, 8, 1], name='image')
        return tf.estimator.export.ServingInputReceiver(
            {'image': tf.cast(image, tf.float32) / 255}, {'image': image})
