"""Functions that converted programs bring along, each where it is called."""

from __future__ import annotations

__all__ = ["HELPERS"]

HELPERS = {
    "batches": '''def batches(x, y=None, batch_size=128, num_epochs=1, shuffle=False):
    """Batches of arrays or the columns of a data frame, and of their labels; without end where num_epochs is None."""
    if hasattr(x, 'columns'):
        x = {name: column.to_numpy() for name, column in x.items()}
    y = y.to_numpy() if hasattr(y, 'to_numpy') else y
    data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
    if shuffle:
        data = data.shuffle(len(data))
    return data.repeat(num_epochs).batch(batch_size)''',
    "model_inputs": '''def model_inputs(data):
    """A Keras input for each feature of a data set."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(one.shape[1:], name=name, dtype=one.dtype) for name, one in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)''',
    "WhenTraining": '''class WhenTraining(tf.keras.layers.Layer):
    """The first of two tensors while the model trains, the second one otherwise."""

    def call(self, inputs, training=None):
        trained, otherwise = inputs
        return trained if training else otherwise''',
    "TableLookup": '''class TableLookup(tf.keras.layers.Layer):
    """What a table has for keys."""

    def __init__(self, table, **options):
        super().__init__(**options)
        self.table = table

    def call(self, keys):
        return self.table.lookup(keys)''',
    "Timer": '''class Timer:
    """Says when so many seconds or steps have gone by since it was last triggered."""

    def __init__(self, every_secs=None, every_steps=None):
        self.every_secs, self.every_steps = every_secs, every_steps
        self.reset()

    def reset(self):
        self.time = self.step = None

    def should_trigger_for_step(self, step):
        if self.step is None or step == self.step:
            return self.step is None
        if self.every_secs is not None:
            return time.time() >= self.time + self.every_secs
        return step >= self.step + self.every_steps

    def update_last_triggered_step(self, step):
        """Gives the seconds and the steps since the last time, None where there was none."""
        now = time.time()
        gone = (None, None) if self.step is None else (now - self.time, step - self.step)
        self.time, self.step = now, step
        return gone

    def last_triggered_step(self):
        return self.step''',
    "AtCheckpoints": '''class AtCheckpoints(tf.keras.callbacks.Callback):
    """Calls a listener with the step where a checkpoint is written: at first, after each so many steps, at the end."""

    def __init__(self, listener, every_steps):
        super().__init__()
        self.listener, self.every_steps, self.saved = listener, every_steps, None

    def tell(self, method, *step):
        return getattr(self.listener, method)(*step) if hasattr(self.listener, method) else None

    def save(self):
        self.saved = int(self.model.optimizer.iterations)
        self.tell('before_save', self.saved)
        if self.tell('after_save', self.saved):
            self.model.stop_training = True

    def on_train_begin(self, logs=None):
        self.tell('begin')
        self.save()

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) % self.every_steps == 0:
            self.save()

    def on_train_end(self, logs=None):
        if self.saved != int(self.model.optimizer.iterations):
            self.save()
        self.tell('end', self.saved)''',
    "examples": '''def examples(model, data, keys=None):
    """The predictions for a data set, a dict for each example."""
    for batch in data:
        predicted = model.predict_on_batch(batch[0] if isinstance(batch, tuple) else batch)
        for row in zip(*(predicted[key] for key in keys or predicted)):
            yield dict(zip(keys or predicted, row))''',
}
"""Name -> text."""
