"""Source of the parts of keras_support.py for canned Estimators."""

from __future__ import annotations

__all__ = ["CANNED"]

_CLASSES = "weight_column=None, label_vocabulary=None"
_END = 'loss_reduction="sum_over_batch_size"'
_LINEAR = f'optimizer="Ftrl", {_END}, sparse_combiner="sum"'
_DEEP = 'optimizer="Adagrad", activation_fn="relu", dropout=None,'

CANNED = {
    "_optimizer": '''def _optimizer(optimizer, **options):
    """Return an optimizer from its name, an optimizer, or a function that creates one."""
    kinds = {
        "Adagrad": AdagradWithDenseGradients,
        "Adam": AdamWithDenseGradients,
        "Ftrl": FtrlWithDenseGradients,
        "SGD": SGDWithDenseGradients,
    }
    if isinstance(optimizer, str):
        return kinds[optimizer](**options)
    return optimizer if isinstance(optimizer, keras.optimizers.Optimizer) else optimizer()''',
    "_Head": '''class _Head:
    """Computes the loss from logits [B, width], and metrics and predictions with the names of Estimators."""

    kinds = {"average_loss": keras.metrics.Mean}

    def __init__(self, width, weight_column, loss_reduction):
        self.width, self.weight_column, self.loss_reduction = width, weight_column, loss_reduction

    def weights(self, features, losses):
        if self.weight_column is None:
            return keras.ops.ones_like(losses[:, :1])
        named = isinstance(self.weight_column, str)
        value = features[self.weight_column] if named else self.weight_column.encoded(features)
        return keras.ops.reshape(keras.ops.cast(value, "float32"), [-1, 1])

    def loss(self, features, labels, logits):
        losses = self.losses(self.label_values(labels), logits)
        total = keras.ops.sum(losses * self.weights(features, losses))
        return total if self.loss_reduction == "sum" else total / keras.ops.cast(keras.ops.size(losses), "float32")

    def update(self, metrics, features, labels, logits):
        labels = self.label_values(labels)
        losses = self.losses(labels, logits)
        weights = self.weights(features, losses)
        for name, values in {**self.metric_values(labels, logits), "average_loss": (losses,)}.items():
            metrics[name].update_state(*values, sample_weight=weights)

    def add_results(self, results):
        return results''',
    "_Numbers": '''class _Numbers(_Head):
    """A head for regression with the squared error."""

    kinds = {**_Head.kinds, "label/mean": keras.metrics.Mean, "prediction/mean": keras.metrics.Mean}

    def label_values(self, labels):
        return keras.ops.reshape(keras.ops.cast(labels, "float32"), [-1, self.width])

    def losses(self, labels, logits):
        return keras.ops.square(logits - labels)

    def metric_values(self, labels, logits):
        return {"label/mean": (labels,), "prediction/mean": (logits,)}

    def predictions(self, logits):
        return {"predictions": logits}''',
    "_Classes": '''class _Classes(_Head):
    """A head for several classes with softmax cross entropy."""

    kinds = {**_Head.kinds, "accuracy": keras.metrics.Accuracy}

    def __init__(self, width, weight_column, loss_reduction, n_classes, label_vocabulary):
        super().__init__(width, weight_column, loss_reduction)
        self.words = list(label_vocabulary or map(str, range(n_classes)))
        self.lookup = label_vocabulary and keras.layers.StringLookup(vocabulary=self.words, num_oov_indices=0)

    def label_values(self, labels):
        labels = keras.ops.reshape(self.lookup(labels) if self.lookup else labels, [-1, 1])
        return keras.ops.cast(labels, "int32")

    def losses(self, labels, logits):
        return keras.ops.sparse_categorical_crossentropy(labels[:, 0], logits, from_logits=True)[:, None]

    def class_logits(self, logits):
        return logits

    def metric_values(self, labels, logits):
        return {"accuracy": (labels, keras.ops.argmax(self.class_logits(logits), axis=-1)[:, None])}

    def predictions(self, logits):
        logits = self.class_logits(logits)
        ids = keras.ops.convert_to_numpy(keras.ops.argmax(logits, axis=-1)[:, None])
        every = np.tile(np.arange(len(self.words)), [len(ids), 1])
        words = np.array([word.encode() for word in self.words])
        return {
            "logits": logits,
            "probabilities": keras.ops.softmax(logits),
            "class_ids": ids,
            "classes": words[ids],
            "all_class_ids": every,
            "all_classes": words[every],
        }''',
    "_TwoClasses": '''class _TwoClasses(_Classes):
    """A head for two classes with sigmoid cross entropy."""

    kinds = {
        **_Classes.kinds,
        "label/mean": keras.metrics.Mean,
        "prediction/mean": keras.metrics.Mean,
        "precision": keras.metrics.Precision,
        "recall": keras.metrics.Recall,
        "auc": keras.metrics.AUC,
        "auc_precision_recall": lambda name: keras.metrics.AUC(name=name, curve="PR"),
    }

    def losses(self, labels, logits):
        return keras.ops.binary_crossentropy(keras.ops.cast(labels, logits.dtype), logits, from_logits=True)

    def class_logits(self, logits):
        return keras.ops.concatenate([keras.ops.zeros_like(logits), logits], axis=-1)

    def metric_values(self, labels, logits):
        probability, values = keras.ops.sigmoid(logits), super().metric_values(labels, logits)
        values |= {"label/mean": (labels,), "prediction/mean": (probability,)}
        values |= {"precision": values["accuracy"], "recall": values["accuracy"]}
        return {**values, "auc": (labels, probability), "auc_precision_recall": (labels, probability)}

    def add_results(self, results):
        mean = results["label/mean"]
        return {**results, "accuracy_baseline": keras.ops.maximum(mean, 1 - mean)}

    def predictions(self, logits):
        return {**super().predictions(logits), "logits": logits, "logistic": keras.ops.sigmoid(logits)}''',
    "_head_of_classes": """def _head_of_classes(n_classes, weight_column, label_vocabulary, loss_reduction):
    kind, width = (_TwoClasses, 1) if n_classes == 2 else (_Classes, n_classes)
    return kind(width, weight_column, loss_reduction, n_classes, label_vocabulary)""",
    "CannedModel": '''class CannedModel(keras.Model):
    """A sequence of layers and a head for their logits."""

    def __init__(self, head, parts, optimizer):
        super().__init__()
        self.head, self.parts = head, parts
        self.by_name = {name: kind(name=name) for name, kind in head.kinds.items()}
        self.compile(optimizer=optimizer)

    def call(self, features):
        for part in self.parts:
            features = part(features)
        return features

    def fit(self, x=None, *args, **options):
        if not self.built:
            self(model_inputs(x))  # a backup is restored into existing weights
        return super().fit(x, *args, **options)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.head.loss(x, y, y_pred)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.head.update(self.by_name, x, y, y_pred)
        return self.head.add_results(self.get_metrics_result())

    def predictions(self, features, outputs):
        return self.head.predictions(outputs)''',
    "_LinearModel": '''class _LinearModel(keras.layers.Layer):
    """The weighted sum of the categories and numbers of columns, and a bias."""

    def __init__(self, columns, units, sparse_combiner):
        super().__init__(name="linear_model")
        self.supports_jit = keras.backend.backend() != "tensorflow"  # XLA does not support lookups and hashes
        self.columns, self.units, self.combiner = columns, units, sparse_combiner
        self.lookups = [lookup for column in columns for lookup in column.lookups]

    def build(self, input_shape):
        self.parts = {column.name: keras.layers.Layer(name=column.name) for column in self.columns}
        for column in self.columns:
            part, shape = self.parts[column.name], [column.size or column.width, self.units]
            part.kernel = part.add_weight(name="weights", shape=shape, initializer="zeros")
        self.bias = self.add_weight(name="bias_weights", shape=[self.units], initializer="zeros")

    def call(self, features):
        return sum((self.part(column, features) for column in self.columns), self.bias)

    def part(self, column, features):
        kernel = self.parts[column.name].kernel
        if column.ids:
            return _combined(kernel, column.ids(features), self.combiner)
        return keras.ops.matmul(column.encoded(features), kernel)''',
    "_linear": """def _linear(head, columns, optimizer, sparse_combiner):
    rate = min(0.2, len(columns) ** -0.5)
    wide = _LinearModel(columns, head.width, sparse_combiner)
    return CannedModel(head, [wide], _optimizer(optimizer, learning_rate=rate))""",
    "_deep": """def _deep(head, columns, hidden_units, optimizer, activation_fn, dropout, batch_norm):
    parts = [InputLayer(columns, name="input_layer")]
    for number, units in enumerate(hidden_units):
        parts.append(keras.layers.Dense(units, activation=activation_fn, name=f"hiddenlayer_{number}"))
        if dropout:
            parts.append(keras.layers.Dropout(dropout))
        if batch_norm:
            norm = keras.layers.BatchNormalization(momentum=0.999, name=f"hiddenlayer_{number}_batchnorm")
            parts.append(norm)
    return CannedModel(head, [*parts, keras.layers.Dense(head.width, name="logits")], _optimizer(optimizer))""",
    "LinearClassifier": f'''def LinearClassifier(
    feature_columns, model_dir=None, n_classes=2, {_CLASSES},
    {_LINEAR},
):  # fmt: skip
    """Return a linear classifier."""
    head = _head_of_classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    return _linear(head, feature_columns, optimizer, sparse_combiner)''',
    "LinearRegressor": f'''def LinearRegressor(
    feature_columns, model_dir=None, label_dimension=1, weight_column=None,
    {_LINEAR},
):  # fmt: skip
    """Return a linear regressor."""
    head = _Numbers(label_dimension, weight_column, loss_reduction)
    return _linear(head, feature_columns, optimizer, sparse_combiner)''',
    "DNNClassifier": f'''def DNNClassifier(
    hidden_units, feature_columns, model_dir=None, n_classes=2, {_CLASSES},
    {_DEEP}
    {_END}, batch_norm=False,
):  # fmt: skip
    """Return a classifier of dense layers."""
    head = _head_of_classes(n_classes, weight_column, label_vocabulary, loss_reduction)
    return _deep(head, feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)''',
    "DNNRegressor": f'''def DNNRegressor(
    hidden_units, feature_columns, model_dir=None, label_dimension=1, weight_column=None,
    {_DEEP}
    {_END}, batch_norm=False,
):  # fmt: skip
    """Return a regressor of dense layers."""
    head = _Numbers(label_dimension, weight_column, loss_reduction)
    return _deep(head, feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)''',
}
"""Name of a part -> its source."""
