"""Helper functions and classes that converted programs include where they use them."""

from __future__ import annotations

__all__ = ["HELPERS", "PREDICTS", "PREDICTS_SEPARATELY"]

HELPERS = {
    "batches": '''def batches(x, y=None, batch_size=128, num_epochs=1, shuffle=False):
    """Return batches of arrays or data-frame columns and their labels, endlessly if num_epochs is None."""
    if hasattr(x, 'columns'):
        x = {name: column.to_numpy() for name, column in x.items()}
    y = y.to_numpy() if hasattr(y, 'to_numpy') else y
    data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
    if shuffle:
        data = data.shuffle(len(data))
    return data.repeat(num_epochs).batch(batch_size)''',
    "model_inputs": '''def model_inputs(data):
    """Return a Keras input for each feature of a dataset."""
    features = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
    if isinstance(features, dict):
        return {name: tf.keras.Input(spec.shape[1:], name=name, dtype=spec.dtype) for name, spec in features.items()}
    return tf.keras.Input(features.shape[1:], dtype=features.dtype)''',
    "WhenTraining": '''class WhenTraining(tf.keras.layers.Layer):
    """Returns the first of two tensors during training and the second otherwise."""

    def call(self, inputs, training=None):
        trained, otherwise = inputs
        return trained if training else otherwise''',
    "TableLookup": '''class TableLookup(tf.keras.layers.Layer):
    """Looks up keys in a table."""

    def __init__(self, table, **options):
        super().__init__(**options)
        self.table = table

    def call(self, keys):
        return self.table.lookup(keys)''',
    "Timer": '''class Timer:
    """Triggers after a number of seconds or steps since it was last triggered."""

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
        """Return the seconds and steps since the last trigger, or None for both."""
        now = time.time()
        gone = (None, None) if self.step is None else (now - self.time, step - self.step)
        self.time, self.step = now, step
        return gone

    def last_triggered_step(self):
        return self.step''',
    "AtCheckpoints": '''class AtCheckpoints(tf.keras.callbacks.Callback):
    """Calls a listener with the step of each checkpoint: at the start, every N steps and at the end."""

    def __init__(self, listener, every_steps):
        super().__init__()
        self.listener, self.every_steps, self.saved = listener, every_steps, None

    def notify(self, method, *step):
        return getattr(self.listener, method)(*step) if hasattr(self.listener, method) else None

    def save(self):
        self.saved = int(self.model.optimizer.iterations)
        self.notify('before_save', self.saved)
        if self.notify('after_save', self.saved):
            self.model.stop_training = True

    def on_train_begin(self, logs=None):
        self.notify('begin')
        self.save()

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) % self.every_steps == 0:
            self.save()

    def on_train_end(self, logs=None):
        if self.saved != int(self.model.optimizer.iterations):
            self.save()
        self.notify('end', self.saved)''',
    "examples": '''def examples(model, data, keys=None):
    """Yield the predictions for a dataset, one dict per example; only those of `keys`, if any."""
    for batch in data:
        predicted = model.predict_on_batch(batch[0] if isinstance(batch, tuple) else batch)
        names = [name for name in predicted if not keys or name in keys]
        if not names:
            raise ValueError(f'no predictions {keys}: there are {list(predicted)}')
        for row in zip(*(predicted[name] for name in names)):
            yield dict(zip(names, row))''',
}
"""Name of each helper -> its source."""

PREDICTS = "    for batch in data:\n        predicted = model"
"""Start of `examples`, and its replacement if PREDICT builds a different network."""
PREDICTS_SEPARATELY = "    model = getattr(model, 'prediction_model', lambda data: model)(data)\n" + PREDICTS
