"""Keras models of an Estimator's model_fn, and the other Estimator features of its program.

    from estimator_pipeline.models.keras_runtime import model_fn as keras_model_fn
    import tensorflow as tf

    model = keras_model_fn.ModelFnModel(model_fn, model_dir="model", params={"rate": 0.01})
    model.fit(keras_model_fn.dataset(train_input_fn), steps_per_epoch=1000)
    print(model.evaluate(keras_model_fn.dataset(eval_input_fn), return_dict=True))

Import it before TensorFlow: it selects Keras 2, where TensorFlow would otherwise load Keras 3.
"""

from __future__ import annotations

from estimator_pipeline import compat
from estimator_pipeline.models.keras_runtime.model_fn.canned import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
)
from estimator_pipeline.models.keras_runtime.model_fn.canned_v2 import (
    DNNClassifierV2,
    DNNLinearCombinedClassifierV2,
    DNNLinearCombinedRegressorV2,
    DNNRegressorV2,
    LinearClassifierV2,
    LinearRegressorV2,
)
from estimator_pipeline.models.keras_runtime.model_fn.derived import add_metrics, forward_features
from estimator_pipeline.models.keras_runtime.model_fn.exports import (
    BestExporter,
    FinalExporter,
    LatestExporter,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
    export_saved_model,
)
from estimator_pipeline.models.keras_runtime.model_fn.from_keras import model_to_estimator
from estimator_pipeline.models.keras_runtime.model_fn.heads import (
    binary_classification_head,
    binary_or_multi_class_head,
    logistic_regression_head,
    multi_class_head,
    poisson_regression_head,
    regression_head,
)
from estimator_pipeline.models.keras_runtime.model_fn.heads_v2 import (
    LogisticRegressionHead,
    PoissonRegressionHead,
    V2BinaryClassHead,
    V2MultiClassHead,
    V2MultiHead,
    V2MultiLabelHead,
    V2RegressionHead,
)
from estimator_pipeline.models.keras_runtime.model_fn.hooks import (
    EvaluationHook,
    ProfilerHook,
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from estimator_pipeline.models.keras_runtime.model_fn.inputs import dataset, numpy_input_fn, pandas_input_fn
from estimator_pipeline.models.keras_runtime.model_fn.model import ModelFnModel, predictions, tpu_model
from estimator_pipeline.models.keras_runtime.model_fn.settings import (
    ClassificationOutput,
    EvalSpec,
    ModelFnModeKeys,
    ModelFnRunConfig,
    ModelFnSpec,
    PredictOutput,
    RegressionOutput,
    ServingInputReceiver,
    TensorServingInputReceiver,
    TPUConfig,
    TPUModelFnSpec,
    TrainSpec,
)
from estimator_pipeline.models.keras_runtime.model_fn.training import train_and_evaluate
from estimator_pipeline.models.keras_runtime.warm_start import WarmStartSettings

RunConfig, ModeKeys = ModelFnRunConfig, ModelFnModeKeys
BinaryClassHead, MultiClassHead, MultiHead = V2BinaryClassHead, V2MultiClassHead, V2MultiHead
MultiLabelHead, RegressionHead = V2MultiLabelHead, V2RegressionHead

__all__ = [
    "BestExporter", "BinaryClassHead", "ClassificationOutput", "DNNClassifier", "DNNClassifierV2",
    "DNNLinearCombinedClassifier", "DNNLinearCombinedClassifierV2", "DNNLinearCombinedRegressor",
    "DNNLinearCombinedRegressorV2", "DNNRegressor", "DNNRegressorV2", "EvalSpec", "EvaluationHook", "FinalExporter",
    "LatestExporter", "LinearClassifier", "LinearClassifierV2", "LinearRegressor", "LinearRegressorV2",
    "LogisticRegressionHead", "ModeKeys", "ModelFnModel", "ModelFnSpec", "MultiClassHead", "MultiHead",
    "MultiLabelHead", "PoissonRegressionHead", "PredictOutput", "ProfilerHook", "RegressionHead", "RegressionOutput",
    "RunConfig", "ServingInputReceiver", "TPUConfig", "TPUModelFnSpec", "TensorServingInputReceiver", "TrainSpec",
    "WarmStartSettings", "add_metrics", "binary_classification_head", "binary_or_multi_class_head",
    "build_parsing_serving_input_receiver_fn", "build_raw_serving_input_receiver_fn", "dataset", "export_saved_model",
    "forward_features", "logistic_regression_head", "make_early_stopping_hook", "model_to_estimator",
    "multi_class_head", "numpy_input_fn", "pandas_input_fn", "poisson_regression_head", "predictions",
    "regression_head", "stop_if_higher_hook", "stop_if_lower_hook", "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook", "tpu_model", "train_and_evaluate",
]  # fmt: skip

# Before the program's other imports: they may need Keras 2, or names of tf.estimator.
compat.install()
