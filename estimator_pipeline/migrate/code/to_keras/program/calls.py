"""Tables of the call-by-call conversion: replaced, rejected and unchanged names of tf.estimator."""

from __future__ import annotations

import re

from estimator_pipeline.migrate.code.analysis.files import SourceFile

RUNTIME = "estimator_pipeline.models.keras_runtime"
NAME = "keras_model_fn"
# Catalogue row -> name in keras_model_fn.
NAMES = {
    "tf.estimator.Estimator": "ModelFnModel",
    "tf.compat.v1.estimator.tpu.TPUEstimator": "tpu_model",
    "tf.estimator.EstimatorSpec": "ModelFnSpec",
    "tf.compat.v1.estimator.tpu.TPUEstimatorSpec": "TPUModelFnSpec",
    "tf.estimator.RunConfig": "RunConfig",
    "tf.compat.v1.estimator.tpu.RunConfig": "RunConfig",
    "tf.compat.v1.estimator.tpu.TPUConfig": "TPUConfig",
    "tf.compat.v1.estimator.tpu.InputPipelineConfig": "TPUConfig.InputPipelineConfig",
    "tf.estimator.TrainSpec": "TrainSpec",
    "tf.estimator.EvalSpec": "EvalSpec",
    "tf.estimator.train_and_evaluate": "train_and_evaluate",
    "tf.estimator.LatestExporter": "LatestExporter",
    "tf.estimator.FinalExporter": "FinalExporter",
    "tf.estimator.BestExporter": "BestExporter",
    "tf.estimator.export.PredictOutput": "PredictOutput",
    "tf.estimator.export.ClassificationOutput": "ClassificationOutput",
    "tf.estimator.export.RegressionOutput": "RegressionOutput",
    "tf.estimator.export.ServingInputReceiver": "ServingInputReceiver",
    "tf.estimator.export.TensorServingInputReceiver": "TensorServingInputReceiver",
    "tf.estimator.export.build_parsing_serving_input_receiver_fn": "build_parsing_serving_input_receiver_fn",
    "tf.estimator.export.build_raw_serving_input_receiver_fn": "build_raw_serving_input_receiver_fn",
    "tf.compat.v1.estimator.inputs.numpy_input_fn": "numpy_input_fn",
    "tf.compat.v1.estimator.inputs.pandas_input_fn": "pandas_input_fn",
    "tf.estimator.WarmStartSettings": "WarmStartSettings",
    "tf.estimator.add_metrics": "add_metrics",
    "tf.estimator.ProfilerHook": "ProfilerHook",
    "tf.estimator.experimental.InMemoryEvaluatorHook": "EvaluationHook",
    **{f"tf.estimator.experimental.{name}": name
       for name in ("make_early_stopping_hook", "stop_if_higher_hook", "stop_if_lower_hook",
                    "stop_if_no_decrease_hook", "stop_if_no_increase_hook")},
    **{f"tf.estimator.{name}": name
       for name in ("BinaryClassHead", "LogisticRegressionHead", "MultiClassHead", "MultiHead", "MultiLabelHead",
                    "PoissonRegressionHead", "RegressionHead")},
    **{f"tf.{module}keras.estimator.model_to_estimator": "model_to_estimator" for module in ("", "compat.v1.")},
}  # fmt: skip
# The canned Estimators of TensorFlow 2 differ in losses, optimizers and variable names; theirs end with V2.
CANNED = re.compile(r"tf\.(compat\.v1\.)?estimator\.((?:DNN|Linear|DNNLinearCombined)(?:Classifier|Regressor))$")
# Estimator modules of tf.contrib.
CONTRIB = re.compile(r"contrib\.(estimator|learn|distribute|tpu)\.\w+")
OF_CONTRIB = {
    f"estimator.{name}": name
    for name in ("binary_classification_head", "forward_features", "logistic_regression_head", "multi_class_head",
                 "poisson_regression_head", "regression_head")
}  # fmt: skip
# Private names of the Estimator package.
PRIVATE = {"canned.head._binary_logistic_or_multi_class_head": "binary_or_multi_class_head"}
MODES = {"TRAIN": "'train'", "EVAL": "'eval'", "PREDICT": "'infer'", "INFER": "'infer'"}
# Estimator modules: every use of a name imported from them must be replaced.
OF_ESTIMATORS = re.compile(r"tensorflow(\.compat\.v[12]|\.python)?\.estimator\b|tensorflow_estimator\b")
OF_OTHERS = re.compile(r"(?!tensorflow\b|tf_keras\b|keras\b|estimator_pipeline\b|sklearn\b)[\w.]+\.\w*Estimator$")
OF_ROOT = re.compile(r"(tf|tensorflow)(\.compat\.v[12])?\.estimator\.")
# Hooks belong to TensorFlow and only change their names.
HOOKS = re.compile(r"tf\.estimator\.(SessionRun\w+|\w+Hook|CheckpointSaverListener|SecondOrStepTimer|NanLoss\w+)$")
METHOD = "tf.estimator.Estimator."
FIELDS = {
    "train": ("input_fn", "hooks", "steps", "max_steps", "saving_listeners"),
    "evaluate": ("input_fn", "steps", "hooks", "checkpoint_path", "name"),
    "predict": ("input_fn", "predict_keys", "hooks", "checkpoint_path", "yield_single_examples"),
}
STAY = ("get_variable_names", "get_variable_value", "latest_checkpoint", "eval_dir")
EXPORTS = ("export_saved_model", "export_savedmodel")
# Kinds of Estimator rows: a file is rejected if one of them is not converted.
KINDS = ("estimator", "canned estimator", "spec", "run config", "train and eval spec", "call", "keras estimator",
          "exporter", "head", "export output", "serving input", "tpu")  # fmt: skip
# Names used for training with several processes.
CLUSTERS = ("tf.distribute.MultiWorkerMirroredStrategy", "tf.distribute.experimental.MultiWorkerMirroredStrategy",
             "tf.distribute.experimental.ParameterServerStrategy", "tf.distribute.ParameterServerStrategy",
             "tf.distribute.TPUStrategy", "tf.distribute.experimental.TPUStrategy",
             "tf.contrib.distribute.CollectiveAllReduceStrategy", "tf.compat.v1.train.Server")  # fmt: skip
# Names that need a graph, outside of the Estimator's graph.
OF_GRAPHS = ("tf.compat.v1.placeholder", "tf.compat.v1.Session", "tf.compat.v1.InteractiveSession",
              "tf.compat.v1.summary.FileWriter", "tf.compat.v1.train.Saver")  # fmt: skip
# Names of TensorFlow, unchanged.
TENSORFLOWS = ("tf.compat.v1.tpu.CrossShardOptimizer",)
# Signs that an unreadable cell uses the Estimators of other cells.
_OF_OTHER_CELLS = re.compile(r"\bestimator\b|\.(?:train|evaluate|predict)\(|train_and_evaluate|model_fn|input_fn")


def unread_cell(source: SourceFile) -> int:
    """Return the line of an unreadable notebook cell that uses Estimators, or 0."""
    for problem in source.problems:
        cell = next((candidate for candidate in source.cells if candidate.number == problem.cell), None)
        if cell is not None and _OF_OTHER_CELLS.search(cell.source):
            return cell.first + problem.line - 1
    return 0
