"""What of tf.estimator has a counterpart in `keras_model_fn`, name by name; what declines a file, and what stays."""

from __future__ import annotations

import re

from estimator_pipeline.migrate.code.analysis.files import SourceFile

RUNTIME = "estimator_pipeline.models.keras_runtime"
NAME = "keras_model_fn"
# Row of the catalogue -> name in keras_model_fn.
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
# Those of TensorFlow 2 have other losses, optimizers and names of variables, and a V2 behind their names.
CANNED = re.compile(r"tf\.(compat\.v1\.)?estimator\.((?:DNN|Linear|DNNLinearCombined)(?:Classifier|Regressor))$")
# Of tf.contrib what is about Estimators.
CONTRIB = re.compile(r"contrib\.(estimator|learn|distribute|tpu)\.\w+")
OF_CONTRIB = {
    f"estimator.{name}": name
    for name in ("binary_classification_head", "forward_features", "logistic_regression_head", "multi_class_head",
                 "poisson_regression_head", "regression_head")
}  # fmt: skip
# Of the Estimator's own modules what has no public name.
PRIVATE = {"canned.head._binary_logistic_or_multi_class_head": "binary_or_multi_class_head"}
MODES = {"TRAIN": "'train'", "EVAL": "'eval'", "PREDICT": "'infer'", "INFER": "'infer'"}
# Modules of Estimators: every use of what is imported from them is to be replaced.
OF_ESTIMATORS = re.compile(r"tensorflow(\.compat\.v[12]|\.python)?\.estimator\b|tensorflow_estimator\b")
OF_OTHERS = re.compile(r"(?!tensorflow\b|tf_keras\b|keras\b|estimator_pipeline\b|sklearn\b)[\w.]+\.\w*Estimator$")
OF_ROOT = re.compile(r"(tf|tensorflow)(\.compat\.v[12])?\.estimator\.")
# Hooks are TensorFlow's own, and stay under another name.
HOOKS = re.compile(r"tf\.estimator\.(SessionRun\w+|\w+Hook|CheckpointSaverListener|SecondOrStepTimer|NanLoss\w+)$")
METHOD = "tf.estimator.Estimator."
FIELDS = {
    "train": ("input_fn", "hooks", "steps", "max_steps", "saving_listeners"),
    "evaluate": ("input_fn", "steps", "hooks", "checkpoint_path", "name"),
    "predict": ("input_fn", "predict_keys", "hooks", "checkpoint_path", "yield_single_examples"),
}
STAY = ("get_variable_names", "get_variable_value", "latest_checkpoint", "eval_dir")
EXPORTS = ("export_saved_model", "export_savedmodel")
# A row of one of these kinds is the Estimator's: what is not converted of it declines the file.
KINDS = ("estimator", "canned estimator", "spec", "run config", "train and eval spec", "call", "keras estimator",
          "exporter", "head", "export output", "serving input", "tpu")  # fmt: skip
# What several processes train by.
CLUSTERS = ("tf.distribute.MultiWorkerMirroredStrategy", "tf.distribute.experimental.MultiWorkerMirroredStrategy",
             "tf.distribute.experimental.ParameterServerStrategy", "tf.distribute.ParameterServerStrategy",
             "tf.distribute.TPUStrategy", "tf.distribute.experimental.TPUStrategy",
             "tf.contrib.distribute.CollectiveAllReduceStrategy", "tf.compat.v1.train.Server")  # fmt: skip
# What needs a graph, where an Estimator made its own.
OF_GRAPHS = ("tf.compat.v1.placeholder", "tf.compat.v1.Session", "tf.compat.v1.InteractiveSession",
              "tf.compat.v1.summary.FileWriter", "tf.compat.v1.train.Saver")  # fmt: skip
# TensorFlow's own, which stays.
TENSORFLOWS = ("tf.compat.v1.tpu.CrossShardOptimizer",)
# What of a cell that cannot be read may be about the Estimators of the others.
_OF_OTHER_CELLS = re.compile(r"\bestimator\b|\.(?:train|evaluate|predict)\(|train_and_evaluate|model_fn|input_fn")


def unread_cell(source: SourceFile) -> int:
    """The line of a notebook's cell that has to do with Estimators and that cannot be read; 0 where there is none."""
    for problem in source.problems:
        cell = next((one for one in source.cells if one.number == problem.cell), None)
        if cell is not None and _OF_OTHER_CELLS.search(cell.source):
            return cell.first + problem.line - 1
    return 0
