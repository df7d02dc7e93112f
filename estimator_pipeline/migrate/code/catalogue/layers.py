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
    found = []
    for name, keras in _FUNCTIONS.items():
        arguments = _ARGUMENTS.get(name, "filters, kernel_size")
        call = f"x = tf.keras.layers.{keras}({arguments}){_NOTES.get(name, '(x)')}"
        found.append(
            Row(f"tf.compat.v1.layers.{name}", "layer", f"tf.keras.layers.{keras}", call, 5, rule=f"layer:{name}")
        )
        found.append(
            Row(f"tf.compat.v1.layers.{keras}", "layer", f"tf.keras.layers.{keras}", f"tf.keras.layers.{keras}(...)", 1,
                rule=f"layer:{keras}")
        )  # fmt: skip
    return tuple(found)


_OTHERS = (
    Row("tf.compat.v1.layers.Layer", "layer", "tf.keras.layers.Layer", "class Mine(tf.keras.layers.Layer): ...", 15),
    Row("tf.compat.v1.layers.InputSpec", "layer", "tf.keras.layers.InputSpec", "tf.keras.layers.InputSpec(ndim=2)", 1),
    Row("tf.compat.v1.layers.experimental.keras_style_scope", "layer", "nothing: Keras layers keep their variables", "",
        5),
    Row("tf.compat.v1.layers.experimental.set_keras_style", "layer", "nothing: Keras layers keep their variables", "",
         1),
    *(
        replace(row, runs=False, because="tf.contrib is gone since TensorFlow 2.0; the package tf-slim has such layers")
        for row in table(
            "contrib",
            "tf.contrib.layers.",
            (
                ("fully_connected", "tf.keras.layers.Dense", "tf.keras.layers.Dense(n, activation='relu')(x)", 5),
                ("linear", "tf.keras.layers.Dense", "tf.keras.layers.Dense(n)(x)", 5),
                ("relu", "tf.keras.layers.Dense", "tf.keras.layers.Dense(n, activation='relu')(x)", 5),
                ("conv2d", "tf.keras.layers.Conv2D",
                 "tf.keras.layers.Conv2D(n, k, padding='same', activation='relu')(x)",
                 5),
                ("convolution2d", "tf.keras.layers.Conv2D",
                 "tf.keras.layers.Conv2D(n, k, padding='same', activation='relu')(x)", 5),
                ("max_pool2d", "tf.keras.layers.MaxPooling2D", "tf.keras.layers.MaxPooling2D(k, strides=2)(x)", 5),
                ("avg_pool2d", "tf.keras.layers.AveragePooling2D", "tf.keras.layers.AveragePooling2D(k, strides=2)(x)",
                 5),
                ("flatten", "tf.keras.layers.Flatten", "tf.keras.layers.Flatten()(x)", 5),
                ("dropout", "tf.keras.layers.Dropout", "tf.keras.layers.Dropout(1 - keep_prob)(x, training=training)",
                 5),
                ("batch_norm", "tf.keras.layers.BatchNormalization",
                 "tf.keras.layers.BatchNormalization(momentum=0.999, scale=False)(x, training=training)", 5),
                ("layer_norm", "tf.keras.layers.LayerNormalization", "tf.keras.layers.LayerNormalization()(x)", 5),
                ("embed_sequence", "tf.keras.layers.Embedding", "tf.keras.layers.Embedding(n, dimension)(ids)", 5),
                ("optimize_loss", "the optimizer of compile", "model.compile(optimizer=...)", 15),
                ("xavier_initializer", "tf.keras.initializers.GlorotUniform", "tf.keras.initializers.GlorotUniform()",
                 1),
                ("xavier_initializer_conv2d", "tf.keras.initializers.GlorotUniform",
                 "tf.keras.initializers.GlorotUniform()", 1),
                ("variance_scaling_initializer", "tf.keras.initializers.VarianceScaling",
                 "tf.keras.initializers.VarianceScaling(2.0)", 1),
                ("l1_regularizer", "tf.keras.regularizers.L1", "tf.keras.regularizers.L1(scale)", 1),
                ("l2_regularizer", "tf.keras.regularizers.L2",
                 "tf.keras.regularizers.L2(scale / 2)  # tf.nn.l2_loss halves, Keras does not", 1),
            ),
        )
    ),
)  # fmt: skip

_LOSSES = (
    *table(
        "loss",
        "tf.compat.v1.losses.",
        (
            ("absolute_difference", "MeanAbsoluteError", "tf.keras.losses.MeanAbsoluteError()", 5),
            ("add_loss", "add_loss of a layer or model", "model.add_loss(loss)", 5),
            ("compute_weighted_loss", "sample_weight", "tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)", 5),
            ("cosine_distance", "CosineSimilarity; 1 + it", "1.0 + tf.keras.losses.CosineSimilarity(axis)(y, x)", 5),
            ("get_losses", "model.losses", "model.losses", 5),
            ("get_regularization_loss", "model.losses: fit adds them by itself", "tf.add_n(model.losses)", 5),
            ("get_regularization_losses", "model.losses: fit adds them by itself", "model.losses", 5),
            ("get_total_loss", "nothing: fit adds model.losses to the loss", "", 5),
            ("hinge_loss", "Hinge", "tf.keras.losses.Hinge()", 5),
            ("huber_loss", "Huber", "tf.keras.losses.Huber(delta)", 5),
            ("log_loss", "BinaryCrossentropy of probabilities", "tf.keras.losses.BinaryCrossentropy()", 5),
            ("mean_pairwise_squared_error", "a function of one's own", "def loss(y_true, y_pred): ...", 60),
            ("mean_squared_error", "MeanSquaredError", "tf.keras.losses.MeanSquaredError()", 5),
            ("sigmoid_cross_entropy", "BinaryCrossentropy from logits",
             "tf.keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=s)", 5),
            ("softmax_cross_entropy", "CategoricalCrossentropy from logits",
             "tf.keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=s)", 5),
            ("sparse_softmax_cross_entropy", "SparseCategoricalCrossentropy from logits",
             "tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)", 5),
        ),
    ),
    Row("tf.compat.v1.losses.Reduction", "loss", "tf.keras.losses.Reduction",
        "tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE", 5),
)  # fmt: skip

_METRICS = (
    *table(
        "metric",
        "tf.compat.v1.metrics.",
        (
            ("accuracy", "Accuracy, SparseCategoricalAccuracy, BinaryAccuracy", "tf.keras.metrics.Accuracy()", 5),
            ("auc", "AUC", "tf.keras.metrics.AUC(num_thresholds=200)", 5),
            ("average_precision_at_k", "a metric of one's own", "class M(tf.keras.metrics.Metric): ...", 60),
            ("false_negatives", "FalseNegatives", "tf.keras.metrics.FalseNegatives()", 5),
            ("false_negatives_at_thresholds", "FalseNegatives", "tf.keras.metrics.FalseNegatives(thresholds)", 5),
            ("false_positives", "FalsePositives", "tf.keras.metrics.FalsePositives()", 5),
            ("false_positives_at_thresholds", "FalsePositives", "tf.keras.metrics.FalsePositives(thresholds)", 5),
            ("mean", "Mean", "tf.keras.metrics.Mean()", 5),
            ("mean_absolute_error", "MeanAbsoluteError", "tf.keras.metrics.MeanAbsoluteError()", 5),
            ("mean_cosine_distance", "CosineSimilarity; 1 - it", "tf.keras.metrics.CosineSimilarity(axis=dim)", 5),
            ("mean_iou", "MeanIoU", "tf.keras.metrics.MeanIoU(num_classes)", 5),
            ("mean_per_class_accuracy", "a metric of one's own", "class M(tf.keras.metrics.Metric): ...", 60),
            ("mean_relative_error", "MeanRelativeError", "tf.keras.metrics.MeanRelativeError(normalizer)", 5),
            ("mean_squared_error", "MeanSquaredError", "tf.keras.metrics.MeanSquaredError()", 5),
            ("mean_tensor", "MeanTensor", "tf.keras.metrics.MeanTensor()", 5),
            ("percentage_below", "Mean of a comparison", "tf.keras.metrics.Mean()  # of tf.cast(x < t, tf.float32)", 5),
            ("precision", "Precision", "tf.keras.metrics.Precision()", 5),
            ("precision_at_k", "Precision with top_k", "tf.keras.metrics.Precision(top_k=k)", 15),
            ("precision_at_thresholds", "Precision", "tf.keras.metrics.Precision(thresholds)", 5),
            ("precision_at_top_k", "Precision with top_k", "tf.keras.metrics.Precision(top_k=k)", 15),
            ("recall", "Recall", "tf.keras.metrics.Recall()", 5),
            ("recall_at_k", "Recall with top_k", "tf.keras.metrics.Recall(top_k=k)", 15),
            ("recall_at_thresholds", "Recall", "tf.keras.metrics.Recall(thresholds)", 5),
            ("recall_at_top_k", "Recall with top_k", "tf.keras.metrics.Recall(top_k=k)", 15),
            ("root_mean_squared_error", "RootMeanSquaredError", "tf.keras.metrics.RootMeanSquaredError()", 5),
            ("sensitivity_at_specificity", "SensitivityAtSpecificity",
             "tf.keras.metrics.SensitivityAtSpecificity(specificity)", 5),
            ("sparse_average_precision_at_k", "a metric of one's own", "class M(tf.keras.metrics.Metric): ...", 60),
            ("sparse_precision_at_k", "Precision with top_k", "tf.keras.metrics.Precision(top_k=k)", 15),
            ("specificity_at_sensitivity", "SpecificityAtSensitivity",
             "tf.keras.metrics.SpecificityAtSensitivity(sensitivity)", 5),
            ("true_negatives", "TrueNegatives", "tf.keras.metrics.TrueNegatives()", 5),
            ("true_negatives_at_thresholds", "TrueNegatives", "tf.keras.metrics.TrueNegatives(thresholds)", 5),
            ("true_positives", "TruePositives", "tf.keras.metrics.TruePositives()", 5),
            ("true_positives_at_thresholds", "TruePositives", "tf.keras.metrics.TruePositives(thresholds)", 5),
        ),
    ),
)  # fmt: skip

ROWS = (*_layers(), *_OTHERS, *_LOSSES, *_METRICS)
