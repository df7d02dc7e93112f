"""V1 layers, losses and metrics."""

from __future__ import annotations

from dataclasses import replace

from estimator_pipeline.migrate.code.catalogue.row import Row, table

__all__ = ["ROWS"]

_POOLS = ("average_pooling1d", "average_pooling2d", "average_pooling3d", "max_pooling1d", "max_pooling2d",
          "max_pooling3d")  # fmt: skip
_FUNCTIONS = {
    "conv1d": "Conv1D", "conv2d": "Conv2D", "conv3d": "Conv3D", "conv2d_transpose": "Conv2DTranspose",
    "conv3d_transpose": "Conv3DTranspose", "separable_conv1d": "SeparableConv1D", "separable_conv2d": "SeparableConv2D",
    "dense": "Dense", "flatten": "Flatten", "batch_normalization": "BatchNormalization", "dropout": "Dropout",
    **{name: name.split("_")[0].capitalize() + "Pooling" + name[-2:].upper() for name in _POOLS},
}  # fmt: skip
_ARGUMENTS = {
    "dense": "units", "flatten": "", "batch_normalization": "momentum=0.99, epsilon=1e-3", "dropout": "rate",
    **dict.fromkeys(_POOLS, "pool_size, strides"),
}  # fmt: skip
_NOTES = {
    "dropout": "(x, training=training)",
    "batch_normalization": "(x, training=training)  # fit updates its averages: no UPDATE_OPS",
}


def _layers() -> tuple[Row, ...]:
    rows = []
    for name, keras in _FUNCTIONS.items():
        arguments = _ARGUMENTS.get(name, "filters, kernel_size")
        call = f"x = tf.keras.layers.{keras}({arguments}){_NOTES.get(name, '(x)')}"
        rows.append(Row(f"tf.compat.v1.layers.{name}", "layer", f"tf.keras.layers.{keras}", call, rule=f"layer:{name}"))
        rows.append(
            Row(f"tf.compat.v1.layers.{keras}", "layer", f"tf.keras.layers.{keras}", f"tf.keras.layers.{keras}(...)",
                rule=f"layer:{keras}")
        )  # fmt: skip
    return tuple(rows)


_OTHERS = (
    Row("tf.compat.v1.layers.Layer", "layer", "tf.keras.layers.Layer", "class Mine(tf.keras.layers.Layer): ..."),
    Row("tf.compat.v1.layers.InputSpec", "layer", "tf.keras.layers.InputSpec", "tf.keras.layers.InputSpec(ndim=2)"),
    Row("tf.compat.v1.layers.experimental.keras_style_scope", "layer",
        "not needed: Keras layers keep their variables", ""),
    Row("tf.compat.v1.layers.experimental.set_keras_style", "layer",
        "not needed: Keras layers keep their variables", ""),
    *(
        replace(row, runs=False, because="tf.contrib was removed in TensorFlow 2.0; tf-slim has these layers")
        for row in table(
            "contrib",
            "tf.contrib.layers.",
            (
                ("fully_connected", "tf.keras.layers.Dense", "tf.keras.layers.Dense(n, activation='relu')(x)"),
                ("linear", "tf.keras.layers.Dense", "tf.keras.layers.Dense(n)(x)"),
                ("relu", "tf.keras.layers.Dense", "tf.keras.layers.Dense(n, activation='relu')(x)"),
                ("conv2d", "tf.keras.layers.Conv2D",
                 "tf.keras.layers.Conv2D(n, k, padding='same', activation='relu')(x)"),
                ("convolution2d", "tf.keras.layers.Conv2D",
                 "tf.keras.layers.Conv2D(n, k, padding='same', activation='relu')(x)"),
                ("max_pool2d", "tf.keras.layers.MaxPooling2D", "tf.keras.layers.MaxPooling2D(k, strides=2)(x)"),
                ("avg_pool2d", "tf.keras.layers.AveragePooling2D", "tf.keras.layers.AveragePooling2D(k, strides=2)(x)"),
                ("flatten", "tf.keras.layers.Flatten", "tf.keras.layers.Flatten()(x)"),
                ("dropout", "tf.keras.layers.Dropout", "tf.keras.layers.Dropout(1 - keep_prob)(x, training=training)"),
                ("batch_norm", "tf.keras.layers.BatchNormalization",
                 "tf.keras.layers.BatchNormalization(momentum=0.999, scale=False)(x, training=training)"),
                ("layer_norm", "tf.keras.layers.LayerNormalization", "tf.keras.layers.LayerNormalization()(x)"),
                ("embed_sequence", "tf.keras.layers.Embedding", "tf.keras.layers.Embedding(n, dimension)(ids)"),
                ("optimize_loss", "the optimizer of compile", "model.compile(optimizer=...)"),
                ("xavier_initializer", "tf.keras.initializers.GlorotUniform", "tf.keras.initializers.GlorotUniform()"),
                ("xavier_initializer_conv2d", "tf.keras.initializers.GlorotUniform",
                 "tf.keras.initializers.GlorotUniform()"),
                ("variance_scaling_initializer", "tf.keras.initializers.VarianceScaling",
                 "tf.keras.initializers.VarianceScaling(2.0)"),
                ("l1_regularizer", "tf.keras.regularizers.L1", "tf.keras.regularizers.L1(scale)"),
                ("l2_regularizer", "tf.keras.regularizers.L2",
                 "tf.keras.regularizers.L2(scale / 2)  # tf.nn.l2_loss halves, Keras does not"),
            ),
        )
    ),
)  # fmt: skip

_LOSSES = (
    *table(
        "loss",
        "tf.compat.v1.losses.",
        (
            ("absolute_difference", "MeanAbsoluteError", "tf.keras.losses.MeanAbsoluteError()"),
            ("add_loss", "add_loss of a layer or model", "model.add_loss(loss)"),
            ("compute_weighted_loss", "sample_weight", "tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)"),
            ("cosine_distance", "CosineSimilarity; 1 + it", "1.0 + tf.keras.losses.CosineSimilarity(axis)(y, x)"),
            ("get_losses", "model.losses", "model.losses"),
            ("get_regularization_loss", "model.losses: fit adds them", "tf.add_n(model.losses)"),
            ("get_regularization_losses", "model.losses: fit adds them", "model.losses"),
            ("get_total_loss", "not needed: fit adds model.losses to the loss", ""),
            ("hinge_loss", "Hinge", "tf.keras.losses.Hinge()"),
            ("huber_loss", "Huber", "tf.keras.losses.Huber(delta)"),
            ("log_loss", "BinaryCrossentropy of probabilities", "tf.keras.losses.BinaryCrossentropy()"),
            ("mean_pairwise_squared_error", "a custom function", "def loss(y_true, y_pred): ..."),
            ("mean_squared_error", "MeanSquaredError", "tf.keras.losses.MeanSquaredError()"),
            ("sigmoid_cross_entropy", "BinaryCrossentropy from logits",
             "tf.keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=s)"),
            ("softmax_cross_entropy", "CategoricalCrossentropy from logits",
             "tf.keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=s)"),
            ("sparse_softmax_cross_entropy", "SparseCategoricalCrossentropy from logits",
             "tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)"),
        ),
    ),
    Row("tf.compat.v1.losses.Reduction", "loss", "tf.keras.losses.Reduction",
        "tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE"),
)  # fmt: skip

_METRICS = (
    *table(
        "metric",
        "tf.compat.v1.metrics.",
        (
            ("accuracy", "Accuracy, SparseCategoricalAccuracy, BinaryAccuracy", "tf.keras.metrics.Accuracy()"),
            ("auc", "AUC", "tf.keras.metrics.AUC(num_thresholds=200)"),
            ("average_precision_at_k", "a custom metric", "class M(tf.keras.metrics.Metric): ..."),
            ("false_negatives", "FalseNegatives", "tf.keras.metrics.FalseNegatives()"),
            ("false_negatives_at_thresholds", "FalseNegatives", "tf.keras.metrics.FalseNegatives(thresholds)"),
            ("false_positives", "FalsePositives", "tf.keras.metrics.FalsePositives()"),
            ("false_positives_at_thresholds", "FalsePositives", "tf.keras.metrics.FalsePositives(thresholds)"),
            ("mean", "Mean", "tf.keras.metrics.Mean()"),
            ("mean_absolute_error", "MeanAbsoluteError", "tf.keras.metrics.MeanAbsoluteError()"),
            ("mean_cosine_distance", "CosineSimilarity; 1 - it", "tf.keras.metrics.CosineSimilarity(axis=dim)"),
            ("mean_iou", "MeanIoU", "tf.keras.metrics.MeanIoU(num_classes)"),
            ("mean_per_class_accuracy", "a custom metric", "class M(tf.keras.metrics.Metric): ..."),
            ("mean_relative_error", "MeanRelativeError", "tf.keras.metrics.MeanRelativeError(normalizer)"),
            ("mean_squared_error", "MeanSquaredError", "tf.keras.metrics.MeanSquaredError()"),
            ("mean_tensor", "MeanTensor", "tf.keras.metrics.MeanTensor()"),
            ("percentage_below", "Mean of a comparison", "tf.keras.metrics.Mean()  # of tf.cast(x < t, tf.float32)"),
            ("precision", "Precision", "tf.keras.metrics.Precision()"),
            ("precision_at_k", "Precision with top_k", "tf.keras.metrics.Precision(top_k=k)"),
            ("precision_at_thresholds", "Precision", "tf.keras.metrics.Precision(thresholds)"),
            ("precision_at_top_k", "Precision with top_k", "tf.keras.metrics.Precision(top_k=k)"),
            ("recall", "Recall", "tf.keras.metrics.Recall()"),
            ("recall_at_k", "Recall with top_k", "tf.keras.metrics.Recall(top_k=k)"),
            ("recall_at_thresholds", "Recall", "tf.keras.metrics.Recall(thresholds)"),
            ("recall_at_top_k", "Recall with top_k", "tf.keras.metrics.Recall(top_k=k)"),
            ("root_mean_squared_error", "RootMeanSquaredError", "tf.keras.metrics.RootMeanSquaredError()"),
            ("sensitivity_at_specificity", "SensitivityAtSpecificity",
             "tf.keras.metrics.SensitivityAtSpecificity(specificity)"),
            ("sparse_average_precision_at_k", "a custom metric", "class M(tf.keras.metrics.Metric): ..."),
            ("sparse_precision_at_k", "Precision with top_k", "tf.keras.metrics.Precision(top_k=k)"),
            ("specificity_at_sensitivity", "SpecificityAtSensitivity",
             "tf.keras.metrics.SpecificityAtSensitivity(sensitivity)"),
            ("true_negatives", "TrueNegatives", "tf.keras.metrics.TrueNegatives()"),
            ("true_negatives_at_thresholds", "TrueNegatives", "tf.keras.metrics.TrueNegatives(thresholds)"),
            ("true_positives", "TruePositives", "tf.keras.metrics.TruePositives()"),
            ("true_positives_at_thresholds", "TruePositives", "tf.keras.metrics.TruePositives(thresholds)"),
        ),
    ),
)  # fmt: skip

ROWS = (*_layers(), *_OTHERS, *_LOSSES, *_METRICS)
